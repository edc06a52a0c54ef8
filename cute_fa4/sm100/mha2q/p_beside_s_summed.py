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
than where softmax adds up. A row sum above 2^64 is rescaled no more: it is still there when softmax looks at the last
one, and what is infinite or NaN stays so.

P is stored when all of it is there: P V has until the next tile's P to be done, and softmax nothing to wait for before
its powers.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..instructions import tensor_memory
from ..kernel_args import Events
from ..steps.row_math import RowState
from .p_beside_s import PBesideSCode


def load_sum(cfg, s_address, i) -> Float32:
    """The sum of P in this thread's row, as far as P V has come; s_address: of S_i."""
    of_0, of_1 = (at - s for at, s in zip(cfg.tmem.sums, cfg.tmem.s, strict=True))
    row_sum, _ = tensor_memory.load(s_address + (of_0 + i * (of_1 - of_0)), 2)
    tensor_memory.wait_load()
    tensor_memory.fence_before()
    return row_sum


@cute.jit
def sum_of_all(
    cfg: cutlass.Constexpr,
    s_address: Int32,
    events: Events,
    i: Int32,
    turns: Int32,
    tiles: Int32,
    row_max: Float32,
) -> RowState:
    """The state of a row behind the last of `turns` key tiles of a work tile; tiles: of all work tiles so far."""
    row_sum = Float32(0.0)
    if turns > 0:
        events.pv_done.wait(i, (tiles - 1) & 1)
        tensor_memory.fence_after()
        row_sum = load_sum(cfg, s_address, i)
    return RowState(row_max, row_sum)


@dataclass(frozen=True)
class PBesideSSummedCode(PBesideSCode):
    """The sums are O's last columns, and S0 and S1 have columns in common."""

    def read_first(self, cfg):
        return cfg.tmem.s[1] - cfg.tmem.s[0], 0  # of S0 and of S1 what both have

    def first_read(self, events, i):
        tensor_memory.fence_before()
        events.s_apart.arrive(i)

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

    def last_sum(self, cfg, s_address, events, i, turns, tiles, state):
        return sum_of_all(cfg, s_address, events, i, turns, tiles, state.row_max)

    def hand_over(self, cfg, smem, work, thread, state):
        """Nothing to add to the sum in tensor memory; under an infinite maximum there are no weights."""
        lost = state.row_max == Float32.inf
        smem.row_scale[thread] = select_(lost, Float32.inf - Float32.inf, Float32(0.0))
