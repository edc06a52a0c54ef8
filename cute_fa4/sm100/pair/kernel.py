"""PAIR: the grouping of kernels in which two CTAs share their MMAs.

begin    both CTAs initialise mbarriers and sync before either arrives on the other's; then both allocate tensor memory
end      both sync before either frees its tensor memory or exits: no arrival reaches a CTA that has exited
"""

from collections.abc import Callable

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..kernel import CTA, SET_UP, Grouping, initialise_all, say_cluster
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work.queue import NO_MORE, WorkQueue
from .barriers import CTAS
from .checked import pair_queue_of
from .sync import PairConsumer, PairEvents, PairProducer, is_leader


def say_pair() -> None:
    """The traced kernel runs in clusters of a pair."""
    say_cluster((CTAS, 1, 1))


def meet():
    """Every thread of both CTAs."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def allocate(columns: cutlass.Constexpr, address, warp, mma: cutlass.Constexpr):
    """Both CTAs meet; then the mma warps of both allocate tensor memory. address: where a CTA's own is written."""
    meet()
    if warp == mma:
        cute.arch.alloc_tmem(columns, address, is_two_cta=True)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)


@cute.jit
def set_up(cfg: cutlass.Constexpr, args: KernelArgs, cta: CTA, warp, mbarriers):
    """Sync both CTAs after mbarrier init; then allocate tensor memory together, with both CTAs running.

    An allocation whose peer has not been launched yet is undefined (PTX ISA, "tcgen05.alloc"; NVIDIA/cutlass#3316).
    """
    warps = cfg.warps
    if warp == warps.load.start:
        initialise_all(cfg, args, mbarriers)
        cta.queue.begin()
    allocate(cfg.tmem.columns, cta.tmem_address, warp, warps.mma.start)
    if warp == warps.load.start:  # its copies depend on no other warp
        cute.arch.barrier_arrive(barrier_id=SET_UP, number_of_threads=warps.threads)
    else:
        cute.arch.barrier(barrier_id=SET_UP, number_of_threads=warps.threads)


@cute.jit
def tear_down(cfg: cutlass.Constexpr, cta: CTA, warp):
    """Sync both CTAs; then free their tensor memory.

    It is an error on the chip if a CTA frees its memory before the other has allocated, or exits before the last
    arrival from the other (NVIDIA/cutlass#3435; facebookexperimental/triton#1105).
    """
    meet()
    if warp == cfg.warps.mma.start:
        tmem_pointer = cute.arch.retrieve_tmem_ptr(Float32, 16, cta.tmem_address)
        cute.arch.dealloc_tmem(tmem_pointer, cfg.tmem.columns, is_two_cta=True)


@cute.jit
def leader_issues(
    cfg: cutlass.Constexpr,
    products: cutlass.Constexpr[Callable],
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv,
    queue: WorkQueue,
):
    """The mma warp: CTA 0 issues every product; CTA 1 only reads what is announced to every role.

    products: all of a CTA's, as a function of the other arguments
    """
    if is_leader():
        products(cfg, args, smem, tmem, events, kv, queue)
    else:
        read_announcements(cfg, args, queue)


@cute.jit
def read_announcements(cfg: cutlass.Constexpr, args: KernelArgs, queue: WorkQueue):
    """Runs in the mma warp of CTA 1, whose MMAs CTA 0 issues."""
    number = Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count


PAIR = Grouping(
    cluster=(CTAS, 1, 1),
    producer=PairProducer,
    consumer=PairConsumer,
    events_of=PairEvents.of,
    queue_of=pair_queue_of,
    set_up=set_up,
    tear_down=tear_down,
)
"""Two CTAs, of which CTA 0 issues the MMAs of both."""
