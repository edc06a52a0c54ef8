"""The kernel before the others: for every query the sum of dO * O, and the log-sum-exp in units of log2.

    dS = P (dP - delta) scale,  delta = sum over keys of P dP - dL = dO . O - dL

dL, the gradient of the log-sum-exp itself, is 0 unless a call has used it.

Sixteen lanes process a row, eight columns each at a time: a warp reads two rows of 256 bytes at a time. The output for
a tile of 128 queries is a contiguous 1 KiB: 128 log-sum-exps times log2(e), then 128 deltas. Where MMAs subtract both
(subtracted.py), 4 KiB of their parts follow. The other kernels load either with one bulk copy and need no bound on the
queries: where there is no query, or one that sees no key, the log-sum-exp is +inf, and P = 2^(c S - inf) is 0 for any
S. So it is below the negative limit of scores, where the forward pass has no keys (steps/row_math.py) and a sink is
all.

Delta has a separate kernel because the owner of keys would otherwise compute it for each of its query tiles. It would
then load O for each tile, and its mainloop would load half as many bytes again.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..blueprint.problem import LARGEST_SCORE_LOG2
from ..steps.row_math import LOG2_E
from . import subtracted
from .owner import ROWS, STATS
from .work import Sizes, sequence_of, tiles_of

THREADS = 128
LANES = 16  # of a row
PASSES = ROWS * LANES // THREADS
COLUMNS = 8


def over_lanes(value):
    """The sum over the lanes of a row, in a fixed order."""
    for distance in (8, 4, 2, 1):
        value = value + cute.arch.shuffle_sync_bfly(value, distance)
    return value


def held(row: cute.Tensor, piece):
    """Eight columns of a row in registers."""
    layout = cute.make_layout(COLUMNS)
    out = cute.make_rmem_tensor(COLUMNS, row.element_type)
    at = (row.iterator + piece * COLUMNS).align(16)
    cute.autovec_copy(cute.make_tensor(at, layout), out)
    return [out[i].to(Float32) for i in range(COLUMNS)]


@cute.jit
def product(cfg: cutlass.Constexpr, o: cute.Tensor, do: cute.Tensor, lane: Int32) -> Float32:
    """A lane's part of the sum of a row."""
    total, pieces = Float32(0.0), cfg.depth_v // COLUMNS
    for first in cutlass.range_constexpr(0, pieces, LANES):
        piece = first + lane
        if piece < pieces:
            for a, b in zip(held(o, piece), held(do, piece), strict=True):
                total = total + a * b
    return total


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    o: cute.Tensor,
    do: cute.Tensor,
    lses: tuple,
    stats: cute.Tensor,
    scale_log2: Float32,
    sizes: Sizes,
):
    """One tile of queries of a head. lses: the log-sum-exp and its gradient, or None; scale_log2: scale log2(e)."""
    lse, dlse = lses
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    tile, rest = block // (sizes.heads_q * sizes.batch), block % (sizes.heads_q * sizes.batch)
    sequence, head = sequence_of(cfg, sizes, rest // sizes.heads_q), rest % sizes.heads_q
    lane = thread % LANES
    if tile < tiles_of(sequence.length_q):
        for turn in cutlass.range(PASSES, unroll=1):
            row = turn * (THREADS // LANES) + thread // LANES
            query = tile * ROWS + row
            power, total, less = Float32.inf, Float32(0.0), Float32(0.0)
            if query < sequence.length_q:
                at = sequence.first_q + query
                if cutlass.const_expr(cfg.packed):
                    power = lse[head, at]
                    if cutlass.const_expr(dlse is not None):
                        less = dlse[head, at]
                    total = product(cfg, o[at, head, None], do[at, head, None], lane)
                else:
                    power = lse[sequence.index, head, at]
                    if cutlass.const_expr(dlse is not None):
                        less = dlse[sequence.index, head, at]
                    place = sequence.index, at, head, None
                    total = product(cfg, o[place], do[place], lane)
                power = power * LOG2_E
                if power < -(2.0 ** LARGEST_SCORE_LOG2[cfg.dtype]):
                    power = Float32.inf
            total = over_lanes(total)
            if lane == 0:
                line = stats[head, sequence.stats_tile + tile, None]
                line[row] = power
                line[ROWS + row] = total - less
                if cutlass.const_expr(cfg.numbers_of_tile > STATS):
                    parts = cute.domain_offset((STATS,), line)
                    far = cute.arch.fmax(-power / scale_log2, Float32(subtracted.FAR), nan=True)
                    subtracted.store(parts, row, far, less - total)
