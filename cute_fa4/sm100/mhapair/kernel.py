"""SM100MHAPair: forward attention by two CTAs that share their MMAs.

Steady state of a pair. A line is an issue slot, not a duration; both CTAs load, both do softmax and correction of their
own rows, CTA 0 issues. K0' is half of the rows of K0, V0' half of the columns of V0:

    CTA 0     CTA 1     mma of CTA 0     softmax 0 of both    softmax 1 of both    correction of both
    Q0 K0'    Q0 K0'    .                .                    .                    .
    Q1 V0'    Q1 V0'    S0 = Q0 K0       .                    .                    .
    K1'       K1'       S1 = Q1 K0       P0 = 2^(S0-m0)       .                    .
    V1'       V1'       O0 = P0 V0       .                    P1 = 2^(S1-m1)       .
    K2'       K2'       S0 = Q0 K1       .                    .                    .
    V2'       V2'       O1 = P1 V0       P0, factor 0         .                    .
    .         .         S1 = Q1 K1       .                    .                    O0 *= factor 0

    begin    both allocate tensor memory; both initialise mbarriers, and meet before one raises those of the other
    end      both meet before either frees its tensor memory or ends: nothing reaches a CTA that is gone

Read next: schedule.py (who has what), barriers.py (the table), sync.py (what crosses from one CTA to the other). The
orders of the products are those of mha2q/, and so are the roles.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..kernel import CTA, SET_UP, SM100Kernel, initialise_all
from ..kernel_args import Events, KernelArgs, Smem
from ..mha2q.kernel import ORDER_CODE as ORDERS_OF_ONE
from ..mha2q.schedule import ORDERS_OF_UNEVEN_TILES
from ..mha2q.uneven import hooks as uneven
from ..roles import dispatch
from ..roles.order import Order
from ..sync.pipelines import KVConsumerPipeline
from ..work.queue import NO_MORE, WorkQueue
from .barriers import CTAS
from .judged import pair_queue_of
from .schedule import PAIRED_ORDERS
from .sync import PairConsumer, PairEvents, PairProducer, is_leader


def of_pair(code: Order) -> Order:
    """An order of the products whose MMAs CTA 0 issues."""

    @dataclass(frozen=True)
    class OfPair(type(code)):
        def run(self, cfg, args, smem, tmem, events, kv, queue):
            issue(cfg, code, args, smem, tmem, events, kv, queue)

        def may_write_factor(self, events, at, phase):
            # Alone, p_ready says through s_ready that the last factor has been read. Between CTAs that chain is
            # relaxed: it orders tensor memory, not the shared memory that factors lie in.
            events.p_ready.wait(at, phase ^ 1)

        def close(self, events, i):
            """Nothing: a warp does not know whether p_ready of the last tile is complete; CTA 0 does (issue)."""

    return OfPair()


ORDER_CODE = {name: of_pair(ORDERS_OF_ONE[name]) for name in PAIRED_ORDERS}
UNEVEN = {name: of_pair(uneven.CODE[name]) for name in ORDERS_OF_UNEVEN_TILES}


@cute.jit
def issue(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    """The mma warp: in CTA 0 every product, in CTA 1 nothing but to read what is announced to every role."""
    if is_leader():
        order.run(cfg, args, smem, tmem, events, kv, queue)
        for i in cutlass.range_constexpr(cfg.tiles.num_q):  # correction has begun a phase
            events.p_ready.close(i, CTAS * len(cfg.warps.softmax) // cfg.tiles.num_q)
    else:
        read_announcements(cfg, args, queue)


@cute.jit
def read_announcements(cfg: cutlass.Constexpr, args: KernelArgs, queue: WorkQueue):
    """The mma warp of CTA 1, for whom CTA 0 issues."""
    number = Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count


@cute.jit
def set_up(cfg: cutlass.Constexpr, args: KernelArgs, cta: CTA, warp, mbarriers):
    """Both CTAs meet with their mbarriers; then they allocate tensor memory together, and both are there for it.

    An allocation whose peer has not been launched yet is undefined (PTX ISA, "tcgen05.alloc"; NVIDIA/cutlass#3316).
    """
    warps = cfg.warps
    if warp == warps.load.start:
        initialise_all(cfg, args, mbarriers)
        cta.queue.begin()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp == warps.mma.start:
        cute.arch.alloc_tmem(cfg.tmem.columns, cta.tmem_address, is_two_cta=True)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
    if warp == warps.load.start:  # its copies need nothing of the other warps
        cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=warps.threads)
    else:
        cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)


@cute.jit
def tear_down(cfg: cutlass.Constexpr, cta: CTA, warp):
    """Both CTAs meet; then they free their tensor memory.

    A CTA that frees it before the other has allocated, or that ends before the last arrival from the other, is an
    error on the chip (NVIDIA/cutlass#3435; facebookexperimental/triton#1105).
    """
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp == cfg.warps.mma.start:
        tmem_pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, cta.tmem_address)
        cute.arch.dealloc_tmem(tmem_pointer, cfg.tmem.columns, is_two_cta=True)


class SM100MHAPair(SM100Kernel):
    """Forward attention on SM100: two CTAs of 512 threads, 256 query rows each, S, P and O in tensor memory."""

    cluster = (CTAS, 1, 1)
    producer_pipeline = PairProducer
    consumer_pipeline = PairConsumer

    @property
    def queue(self) -> type[WorkQueue]:
        return pair_queue_of(self.cfg)

    def ctas(self, blocks):
        return blocks * CTAS

    def events_of(self, mbarriers) -> PairEvents:
        return PairEvents.of(self.cfg.barriers, mbarriers)

    def set_up(self, args: KernelArgs, cta: CTA, warp, mbarriers):
        set_up(self.cfg, args, cta, warp, mbarriers)

    def roles(self, args: KernelArgs, cta: CTA, warp):
        codes = UNEVEN if self.cfg.uneven else ORDER_CODE
        dispatch.run(self.cfg, codes[self.cfg.schedule.order], args, cta, warp)

    def tear_down(self, cta: CTA, warp):
        tear_down(self.cfg, cta, warp)


KERNEL = SM100MHAPair
