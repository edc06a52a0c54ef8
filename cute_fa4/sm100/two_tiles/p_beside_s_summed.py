"""P beside S where P V also adds P up: sixty additions fewer in softmax, which is the bound at head dim 64.

    p_beside_s.py           | S0 | P0 | S1 | P1 | O0 | O1 |
    p_beside_s_summed.py    | S0           |                                  0 to 128
                                     | S1           | P0 | P1 | O0 L0 | O1 L1 |     96 to 512

Behind V's last column lie 16 of ones, so O_i has 16 more, L_i, each the row's sum of P as it was rounded, rescaled with
O_i. What they take, S0 and S1 share: 32 columns, which softmax reads first (p_crossed.py says more of both).

Where the reference of a row lags (steps/lagged.py), it is the row sum that moves it. The sum is in tensor memory then,
where it is whole, and nobody changes it, from pv_done to row_scale:

    softmax, key tile n    read S(n) | all of P(n), in registers | wait pv_done | read L(n-1) | row_scale | store P(n)
    correction                                                                               | O, L *= factor |

So the reference of tile n + 1 follows from the sum of tiles up to n - 1, times the factor of tile n: one tile later
than where softmax adds up. A row sum above 2^64 is rescaled no more: it is still there at the end, and what is infinite
or NaN stays so.

The last sum is there when the last P V is done. Correction awaits that anyway, and judges the work tile
(work/judged.py): softmax goes on to the next one at once.

    softmax        last P of k | row_scale | first S of k + 1 ...
    correction                             | o_ready | read O, L | does a row fail? | store O | judged

P is stored when all of it is there: P V has until the next tile's P to be done, and softmax nothing to wait for before
its powers. So p_ready says it all, and there is no p_last.

What S_i waits for is one barrier, s_free[i], which both warpgroups raise: softmax i when it has read S_i, the other one
when it has read of its own S what lies in the same columns. Before the first S1 softmax 1 has none to read,
behind the last one softmax 0: they raise s_free[1] when they begin and end.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..blueprint.chip import WARPS_PER_GROUP
from ..instructions import tensor_memory
from ..roles.correction import Corrected, finish_tile, key_tiles
from ..steps import lagged
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work.tile import Work
from . import summed_products
from .p_beside_s import PBesideSCode


def load_sum(cfg, s_address, i) -> Float32:
    """The sum of P in this thread's row, as far as P V has come; s_address: of S_i."""
    of_0, of_1 = (at - s for at, s in zip(cfg.tmem.sums, cfg.tmem.s, strict=True))
    row_sum, _ = tensor_memory.load(s_address + (of_0 + i * (of_1 - of_0)), 2)
    tensor_memory.wait_load()
    tensor_memory.fence_before()
    return row_sum


def rows_of_both(warp):
    """The softmax warps whose rows a correction warp has."""
    first = warp % WARPS_PER_GROUP
    return first, first + WARPS_PER_GROUP


@dataclass(frozen=True)
class CorrectedAndJudged(Corrected):
    """failed: whether a row of this thread's, of the last work tile, must be computed again."""

    failed: cutlass.Boolean

    @staticmethod
    def none() -> "CorrectedAndJudged":
        return CorrectedAndJudged(Int32(0), Int32(0), cutlass.Boolean(False))


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    before: CorrectedAndJudged,
    row: Int32,
) -> CorrectedAndJudged:
    """correction.correct_tiles, and what the sums say."""
    count = work.tiles.count
    key_tiles(cfg, order, smem, tmem, events, count, before.tiles, row)
    tiles, failed = before.tiles + count, cutlass.Boolean(False)
    for i in cutlass.range_constexpr(cfg.tiles.num_q):
        place = work, i, i, (tiles - 1) & 1, before.o_phase, row
        failed = failed | finish_tile(cfg, order, args, smem, tmem, events, *place)
    return CorrectedAndJudged(tiles, before.o_phase ^ 1, failed)


@cute.jit
def free_for(events: Events, i: Int32, warpgroup: cutlass.Constexpr):
    """s_free[1] from softmax warpgroup `warpgroup`, where it has no S to read for it."""
    if i == warpgroup:
        events.s_free.arrive(1)


@dataclass(frozen=True)
class PBesideSSummedCode(PBesideSCode):
    """The sums are O's last columns, and S0 and S1 have columns in common."""

    asks_behind_copies = True  # correction judges behind the last product, and has O to store
    run = staticmethod(summed_products.run)

    def begin(self, events, i):
        free_for(events, i, 1)  # before the first S1 there is none

    def close(self, events, i):
        super().close(events, i)
        free_for(events, i, 0)  # behind the last S1 comes no S0

    def read_first(self, cfg):
        return cfg.tmem.s[1] - cfg.tmem.s[0], 0  # of S0 and of S1 what both have

    def first_read(self, events, i):
        tensor_memory.fence_before()
        events.s_free.arrive(1 - i)

    def p_stored(self, events, i):
        """p_ready has said it."""

    def holds_p(self, cfg):
        return True

    def p_at(self, cfg, s_address, i):
        of_0, of_1 = (p - s for p, s in zip(cfg.tmem.p, cfg.tmem.s, strict=True))
        return s_address + (of_0 + i * (of_1 - of_0))

    def sum_at(self, cfg, tmem, i):
        return tmem + cfg.tmem.sums[i]

    def sum_so_far(self, cfg, s_address, events, i, phase):
        self.may_write_p(events, i, phase)
        return load_sum(cfg, s_address, i)

    corrected = staticmethod(CorrectedAndJudged.none)
    correct_tiles = staticmethod(correct_tiles)

    def judge(self, cfg, args, queue, work, number, i, state):
        """Correction does: softmax would have to wait for the last product."""

    def sum_complete(self, cfg, args, work, q_tile, row_sum):
        return lagged.failed(cfg, args, work, q_tile, row_sum)

    def judge_corrected(self, cfg, queue, work, number, now):
        failed = now.failed & (work.tiles.count > 0)
        queue.judge(number, failed, words=rows_of_both)

    def hand_over(self, cfg, smem, work, thread, state):
        """Nothing to add to the sum in tensor memory; under an infinite maximum there are no weights."""
        lost = state.row_max == Float32.inf
        smem.row_scale[thread] = select_(lost, Float32.inf - Float32.inf, Float32(0.0))
