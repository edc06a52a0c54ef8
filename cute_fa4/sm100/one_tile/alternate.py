"""One query tile for both softmax warpgroups: even key tiles make S0 and O0, odd ones S1 and O1 (roles/alternate.py).

A work tile ends with its last product, before the next S, so the tensor core then waits for one softmax. With one query
tile it is idle most of the time anyway (a K and a V tile take 2,560 cycles of memory and 1,024 of the tensor core at
depth 128), and the ring keeps filling.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..roles import alternate, merge
from ..roles.order import Handshake, Order
from ..steps import token_scales
from ..steps.warps import MmaWarp
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline
from ..work.queue import NO_MORE, WorkQueue


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    mma = MmaWarp(smem, tmem, events, kv)
    at, phases = kv.first(), Int32(0)
    number, q_phase = Int32(0), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        at, phases, q_phase = alternate.key_tiles(cfg, Handshake(), mma, at, count, phases, q_phase)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count


@dataclass(frozen=True)
class Alternate(Order):
    """Softmax warpgroup i processes the key tiles i, i + 2, i + 4, ... of the one query tile."""

    sum_early = True
    run = staticmethod(run)
    nothing_corrected = staticmethod(merge.Turns.none)
    correct_tiles = staticmethod(merge.correct_tiles)
    correct_empty = staticmethod(merge.write_empty)

    def stride(self, cfg, work):
        return 2

    def first_tile(self, cfg, work, i):
        return work.tiles.first + i

    def next_tile(self, cfg, work, n, i):
        return n + ((n - work.tiles.first - i) & 1)

    def parity(self, cfg, work, n, i, before):
        return ((n - self.first_tile(cfg, work, i) >> 1) + before) & 1

    def number_of_tiles(self, cfg, work, i):
        return (work.tiles.count + 1 - i) >> 1

    def owner(self, cfg, work, n):
        return (n - work.tiles.first) & 1

    def number_of_scales(self, cfg, work, n, i, before):
        return 2 * ((n - self.first_tile(cfg, work, i) >> 1) + before) + i

    def q_tile(self, cfg, work, i):
        return 0

    def has_sink(self, cfg, work, i):
        return i == 0

    def writes_lse(self, cfg, work):
        return False

    def hand_over(self, cfg, smem, work, thread, state):
        smem.row_scale[thread] = state.row_sum
        smem.row_max[thread] = state.row_max
        token_scales.hand_over_unit(cfg, smem, thread)
