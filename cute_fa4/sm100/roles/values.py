"""Values warp: where rows are gathered, it copies V while the load warp copies Q and K.

    slot      0   1   2   3   4   0   1   2       a ring of five
    load      K0  .   K1  .   K2  .   K3  .       skips the slots of V
    values    .   V0  .   V1  .   V2  .   V3      skips the slots of K

One instruction takes four rows, two at depth 128, and uses seven registers of the warp's uniform datapath: one
warp issues the copies of a key tile in 3,000 cycles, while memory needs 2,550. Two warps on two sub-partitions
of the SM issue in parallel, in 1,500 cycles each.

A slot has one barrier for its bytes, whichever warp announces them. It returns to the warp that fills it by its
position in the order K0 V0 K1 V1 ...: neither warp waits for the other. In a ring of three the values warp also waits
for the slots of K (TMAProducerPipeline.skip). Both look up the pages of a tile.
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
    """How the load warp handles V of a key tile: load_v of steps/loads.py, or no copy."""
    return leave_v if cfg.warps.values else loads.load_v


def leave_v(cfg, v, kv: TMAProducerPipeline, work, at: Slot, found) -> Slot:
    """Skip the slot: the values warp fills it."""
    return kv.commit_step(at)


@cute.jit
def run(
    cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, kv: TMAProducerPipeline, queue: WorkQueue
):
    """Every work tile of the CTA."""
    v = KVBuffer(KVBufferConfig.for_v(cfg), smem.kv_address, args.v)
    number, at = Int32(0), kv.skip(kv.first())
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        entries = loads.look_up(cfg, args, work, first)
        for n in cutlass.range(first, first + count, unroll=1):
            if cutlass.const_expr(cfg.tiles.gathers_rows):
                ahead = loads.look_up(cfg, args, work, n + 1)
                _, found = loads.find_rows(cfg, args, work, n, entries)
            else:  # a box needs its page at once: a look-up in flight would be waited for, too
                _, found = loads.find_rows(cfg, args, work, n, entries)
                ahead = loads.look_up_next(cfg, args, work, n, entries)
            at = kv.skip(loads.load_v(cfg, v, kv, work, at, found))
            entries = ahead
        number = number + 1
        work = queue.next(cfg, args, number)
