"""Values warp: where rows are gathered, the copies of V, beside the load warp's of Q and K.

    slot      0   1   2   3   4   0   1   2       a ring of five
    load      K0  .   K1  .   K2  .   K3  .       passes by the slots of V
    values    .   V0  .   V1  .   V2  .   V3      the other ones

Four rows take an instruction, two at depth 128, and each of these seven registers of the warp's uniform datapath: one
warp issues the copies of a key tile in 3,000 cycles, of which memory needs 2,550. Two warps live on two sub-partitions
of the SM and issue side by side, 1,500 cycles each.

A slot has one barrier for its bytes, whichever warp announces them, and comes back to the warp that fills it by its
place in the order K0 V0 K1 V1 ...: neither waits for the other. The pages of a tile are looked up by both.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..steps import loads
from ..sync.kernel_args import KernelArgs, Smem
from ..sync.pipelines import Slot, TMAProducerPipeline
from ..work.queue import NO_MORE, WorkQueue


def copies_of_v(cfg):
    """What the load warp does with V of a key tile: load_v of steps/loads.py, or nothing."""
    return leave_v if cfg.warps.values else loads.load_v


def leave_v(cfg, v, kv: TMAProducerPipeline, work, at: Slot, found) -> Slot:
    """The slot is filled by the values warp."""
    return kv.commit_step(at)


@cute.jit
def run(
    cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, kv: TMAProducerPipeline, queue: WorkQueue
):
    """Every work tile of the CTA."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    number, at = Int32(0), kv.commit_step(kv.first())
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        entries = loads.look_up(cfg, args, work, first)
        for n in cutlass.range(first, first + count, unroll=1):
            ahead = loads.look_up(cfg, args, work, n + 1)
            _, found = loads.find_rows(cfg, args, work, n, entries)
            at = kv.commit_step(loads.load_v(cfg, v, kv, work, at, found))
            entries = ahead
        number = number + 1
        work = queue.next(cfg, args, number)
