"""Compute warps: P = 2^(c S - L) and dS = P (dP - delta), then the results: two warpgroups with 64 columns each.

A thread has a row of the own side, and half of the columns of the other side. Where queries are owned, its row has one
L and one delta; where keys are owned, every column has its own, in shared memory. P stays in registers until dP comes.

    keys are owned       S -> P over S -> s_read      dP -> dS over dP -> ds_ready
    queries are owned    S -> s_read                  the same

The softmax scale is not in dS: dQ and dK are multiplied by it once, when they are stored.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..instructions import exp2, tensor_memory
from ..steps import row_math
from ..sync.pipelines import Slot
from . import store
from .barriers import SLOTS
from .config import GRANULE, ROWS, STATS
from .operands import OwnerArgs
from .work import Place, Work, seen

BATCH = 32  # columns in registers at a time, beside P


def numbers(cta, slot: Slot, first) -> list:
    """BATCH float32 of the numbers of a slot, from `first` on; the same for all lanes."""
    layout = cute.make_layout(BATCH)
    out = cute.make_rmem_tensor(BATCH, Float32)
    at = (cta.stats.iterator + (slot.index * STATS + first)).align(16)
    cute.autovec_copy(cute.make_tensor(at, layout), out)
    return [out[i] for i in range(BATCH)]


def powers(scores: list, scale_log2, lse: list) -> list:
    """P of scores, each with its log-sum-exp."""
    return [exp2.hardware(s * scale_log2 - of) for s, of in zip(scores, lse, strict=True)]


def visible(p: list, column: int, bounds) -> list:
    """0 in the place of what the row does not see. bounds: (first, last) column that it sees, None: no limit."""
    first, last = bounds
    out = []
    for i, value in enumerate(p, start=column):
        if first is not None:
            value = select_(Int32(i) >= first, value, Float32(0.0))
        if last is not None:
            value = select_(Int32(i) <= last, value, Float32(0.0))
        out.append(value)
    return out


def bounds_of(cfg, owner, args: OwnerArgs, work: Work, row, first_column):
    """-> (first, last) column that an own row sees, counted from first_column; None: no limit."""
    ends = seen(cfg, owner, args.sizes, work.sequence, row)
    return tuple(None if end is None else end - first_column for end in ends)


@cute.jit
def is_cut(
    cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, work: Work, place: Place
) -> cutlass.Boolean:
    """Whether some row of the tile does not see all of its columns."""
    first, _ = bounds_of(cfg, owner, args, work, work.row + (ROWS - 1), place.tile * ROWS)
    _, last = bounds_of(cfg, owner, args, work, work.row, place.tile * ROWS)
    cut = cutlass.Boolean(False)
    if cutlass.const_expr(first is not None):
        cut = cut | (first > 0)
    if cutlass.const_expr(last is not None):
        cut = cut | (last < ROWS - 1)
    return cut


@cute.jit
def tile(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    thread,
    at: tuple,
    bounds: tuple,
):
    """One tile of scores. thread: a Thread; at: (slot, turn); bounds: of the thread's row and columns."""
    slot, n = at
    if cutlass.const_expr(owner.owns_keys):
        cta.other_full.wait(2 * slot.index, slot.phase)
    cta.s_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    p = make_p(cfg, owner, args, cta, thread, slot, bounds)
    if cutlass.const_expr(owner.owns_keys):
        tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.s_read.arrive(0)
    cta.dp_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    make_ds(owner, cta, thread, slot, p)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.ds_ready.arrive(0)


def make_p(cfg, owner, args: OwnerArgs, cta, thread, slot: Slot, bounds) -> list:
    """P of the thread's row and columns; where keys are owned it is stored over S as well."""
    p, s = [], thread.lanes + owner.s_column
    for column, scores in tensor_memory.load_batches(s, GRANULE, BATCH):
        lse = [thread.lse] * BATCH
        if owner.owns_keys:
            lse = numbers(cta, slot, thread.column + column)
        p += visible(powers(scores, args.scale_log2, lse), column, bounds)
    if owner.owns_keys:
        tensor_memory.store(s, row_math.pack(p, owner.dtype))
    return p


def make_ds(owner, cta, thread, slot: Slot, p: list):
    """dS without the scale, stored over dP."""
    ds, at = [], thread.lanes + owner.dp_column
    for column, dp in tensor_memory.load_batches(at, GRANULE, BATCH):
        delta = [thread.delta] * BATCH
        if owner.owns_keys:
            delta = numbers(cta, slot, ROWS + thread.column + column)
        part = p[column : column + BATCH]
        ds += [x * (y - z) for x, y, z in zip(part, dp, delta, strict=True)]
    tensor_memory.store(at, row_math.pack(ds, owner.dtype))


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """Every tile of a CTA, and its results."""
    slot, place = Slot(Int32(0), Int32(0)), Place.of(work)
    for n in cutlass.range(work.count, unroll=1):
        first_column = place.tile * ROWS + thread.column
        if is_cut(cfg, owner, args, work, place):
            bounds = bounds_of(cfg, owner, args, work, work.row + thread.row, first_column)
            tile(cfg, owner, args, cta, thread, (slot, n), bounds)
        else:
            tile(cfg, owner, args, cta, thread, (slot, n), (None, None))
        slot, place = slot.next(SLOTS), place.next(work)
    store.run(cfg, owner, args, cta, thread, work)
