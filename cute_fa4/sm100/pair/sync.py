"""Cross-CTA signals: how a pair raises its barriers, announces bytes, and claims blocks.

    who                  raises                                                   in
    load warp of CTA 0   q_full, kv_full: the bytes of both CTAs                  its own CTA
    TMA of either CTA    its bytes, on q_full and kv_full                         CTA 0
    a softmax warp       p_ready, p_last                                          CTA 0
    a correction warp    p_ready in CTA 0; factor_read                            its own CTA
    MMAs of CTA 0        s_ready, o_ready, pv_done, q_free, kv_empty              both
    answer to a claim    work_claimed                                             both

CTA 1 issues a copy as soon as its own slot is empty. Its bytes may count before CTA 0 has announced them: the phase
ends no earlier than the announcement, which is its only arrival. No copy can hit the previous phase either:
kv_empty is raised in both CTAs by MMAs that waited for that phase.

PTX ISA: "mapa"; "mbarrier.arrive" on shared::cluster; "cp.async.bulk.tensor" and "tcgen05.commit" with .cta_group::2.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.barriers import BarrierTable
from ..instructions import mbarriers, tensor_core
from ..sync.kernel_args import Events
from ..sync.pipelines import Event, KVConsumerPipeline, Slot, TMAProducerPipeline
from ..work.blocks import rank_in_cluster
from ..work.queue import Search, WorkQueue, expect_answer
from .barriers import CTAS, LEADER


def is_leader():
    """Whether this CTA issues the MMAs."""
    return rank_in_cluster() == LEADER


def arrive_at_leader(mbarrier, relaxed: bool = True, of_shared: bool = False):
    """One arrival of the warp in CTA 0, after the preceding work of all its lanes.

    relaxed: enough for tensor memory, with tcgen05.fence on both sides; of_shared: the arrival also covers shared
    memory
    """
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        if of_shared:
            mbarriers.release_shared()
        mbarriers.arrive_at(LEADER, mbarrier, relaxed)


@cute.jit
def announce(mbarrier, nbytes: cutlass.Constexpr):
    """CTA 0 announces the bytes of both CTAs; the copies of CTA 1 count on its mbarrier, too."""
    if is_leader():
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(mbarrier, nbytes)


@dataclass(frozen=True)
class RaisedAtLeader(Event):
    """Raised by a warp of either CTA, for the mma warp of CTA 0; it covers tensor memory."""

    def arrive(self, i):
        arrive_at_leader(self.mbarriers + i)

    def wait(self, i, phase):
        mbarriers.wait_for_cluster(self.mbarriers + i, phase)

    def close(self, i, arrivals: int):
        """CTA 0: complete a phase that no other warp completes, so that late arrivals from CTA 1 are seen."""
        mbarriers.arrive_and_wait(self.mbarriers + i, arrivals)


@dataclass(frozen=True)
class RaisedInBoth(Event):
    """Raised in both CTAs by the MMAs of CTA 0."""

    def commit(self, i):
        tensor_core.commit((self.mbarriers + i).toint(), cta_group=CTAS)


@dataclass(frozen=True)
class LoadedForBoth(Event):
    """Raised by the copies of both CTAs."""

    def arrive_and_expect(self, i, nbytes):
        announce(self.mbarriers + i, CTAS * nbytes)
        return self.mbarriers + i


@dataclass(frozen=True)
class SoftmaxSide(RaisedAtLeader):
    """p_ready on the softmax side: raised in CTA 0, but awaited as factor_read of its own CTA."""

    factor_read: cute.Pointer

    def wait(self, i, phase):
        cute.arch.mbarrier_wait(self.factor_read + i, phase)


@dataclass(frozen=True)
class CorrectionSide(RaisedAtLeader):
    """p_ready on the correction side: raised in CTA 0, and for the softmax warps of its own CTA."""

    factor_read: cute.Pointer

    def arrive(self, i):
        arrive_at_leader(self.mbarriers + i)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(self.factor_read + i)


class PairEvents(Events):
    """The events of a pair: each is raised in the CTA that awaits it."""

    @classmethod
    def of(cls, table: BarrierTable, first: cute.Pointer) -> "PairEvents":
        events = super().of(table, first)
        kinds = {
            LoadedForBoth: ("q_full",),
            RaisedAtLeader: ("p_ready", "p_last"),
            RaisedInBoth: ("q_free", "s_ready", "pv_done", "o_ready"),
        }
        changes = {
            name: kind(getattr(events, name).mbarriers)
            for kind, names in kinds.items()
            for name in names
            if name in table
        }
        return replace(events, **changes)

    def seen_by(self, role: str) -> Events:
        side = {"softmax": SoftmaxSide, "correction": CorrectionSide}[role]
        return replace(self, p_ready=side(self.p_ready.mbarriers, self.factor_read.mbarriers))


@dataclass(frozen=True)
class PairProducer(TMAProducerPipeline):
    """The load warp's end of the ring, in either CTA."""

    def _announce(self, slot: Slot, stage: int, nbytes: int):
        mbarrier = self._full(slot, stage)
        announce(mbarrier, CTAS * nbytes)
        return mbarrier

    def drain(self, slot: Slot):
        """A CTA must not exit before the last commit of CTA 0 on one of its slots."""
        for _ in range(self.slots):
            self.acquire(slot)
            slot = self.commit_step(slot)


@dataclass(frozen=True)
class PairConsumer(KVConsumerPipeline):
    """The mma warp's end, in CTA 0; slots are released in both CTAs."""

    def _commit(self, index):
        tensor_core.commit((self.empty + index).toint(), cta_group=CTAS)


@dataclass(frozen=True)
class PairQueue(WorkQueue):
    """Each CTA has a queue; CTA 0 claims for both, and both receive the answer.

    claim_read   CTA 1 has read the last answer, so that the next one may be written over it
    """

    claim_read: cute.Pointer

    BARRIERS: ClassVar[dict] = {**WorkQueue.BARRIERS, "claim_read": "claim_read"}

    def ask(self, search: Search):
        expect_answer(self.claimed)
        ask_for_both(self, search.claims)

    def answer(self, search: Search) -> Int32:
        cta = super().answer(search)
        answer_read(self.claim_read)
        return cta >> 1  # -1 (no work) stays -1

    def drain(self, search: Search, number):
        """CTA 0 must not exit before the last arrival from CTA 1."""
        await_readers(self, search.claims)


@cute.jit
def await_readers(queue: PairQueue, claims: Int32):
    """CTA 0 waits until CTA 1 has read every answer so far."""
    if is_leader():
        mbarriers.wait_for_cluster(queue.claim_read, (claims & 1) ^ 1, relaxed=False)


@cute.jit
def ask_for_both(queue: PairQueue, claims: Int32):
    """CTA 0 claims a block when CTA 1 has read the answer to the last claim."""
    await_readers(queue, claims)
    if is_leader():
        with cute.arch.elect_one():
            cute.arch.issue_clc_query(queue.claimed, queue.response, multicast=True)


@cute.jit
def answer_read(claim_read):
    """CTA 1 has read an answer."""
    if not is_leader():
        arrive_at_leader(claim_read, relaxed=False)
