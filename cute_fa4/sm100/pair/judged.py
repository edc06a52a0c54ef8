"""Work tiles that softmax judges, where both CTAs of a pair must come to the same verdict (work/judged.py).

A score that its reference does not hold may lie in a row of either CTA. Its work tile is run again by both, because
they share its products. So the load warps tell each other what their own softmax warps found, tile by tile:

    load warp    reads the verdict of its own CTA -> stores it in the other, raises `verdict` there -> awaits its own

A word is written again three work tiles later, when the other load warp has long sent the verdict of the tile behind,
which it did after it had read this one.
"""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.entries import JUDGED_ENTRIES, JUDGED_QUEUE_BYTES
from ..instructions import mbarriers
from ..work.blocks import rank_in_cluster
from ..work.judged import Judged
from ..work.queue import OneBlock, WorkQueue
from .entries import LATEST, PEER_WORDS
from .sync import PairQueue


class PairJudged(Judged):
    """Verdicts of both CTAs; mixed with a queue."""

    @classmethod
    def at(cls, pointer: cute.Pointer, **mbarriers_of):
        """In shared memory: what Judged has, and the verdicts of the other CTA."""
        behind = pointer + JUDGED_QUEUE_BYTES // 4
        peers = cute.make_tensor(behind, cute.make_layout(PEER_WORDS))
        return super().at(pointer, **mbarriers_of, peers=peers)

    def begin(self):
        """Load warp, before anything: no verdict has been exchanged."""
        with cute.arch.elect_one():
            self.peers[LATEST] = Int32(-1)

    def agreed(self, number, found):
        return exchanged(self, number, found)


@cute.jit
def exchanged(queue: WorkQueue, number: Int32, found: cutlass.Boolean) -> cutlass.Boolean:
    """Whether either CTA found that work tile `number` is run again; asked a second time, as the caller found."""
    if number > queue.peers[LATEST]:
        at, peer = number % JUDGED_ENTRIES, 1 - rank_in_cluster()
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            queue.peers[LATEST] = number
            mbarriers.store_at(peer, queue.peers.iterator + at, Int32(found))
            mbarriers.arrive_at(peer, queue.verdict_there + at, relaxed=False)
        phase = number // JUDGED_ENTRIES & 1
        mbarriers.wait_for_cluster(queue.verdict_there + at, phase, relaxed=False)
        found = found | (queue.peers[at] != 0)
        cute.arch.sync_warp()
    return found


BARRIERS = {"judged": "work_judged", "verdict_there": "verdict"}


@dataclass(frozen=True)
class PairJudgedQueue(PairJudged, PairQueue):
    verdicts: cute.Tensor
    again: cute.Tensor
    judged: cute.Pointer
    peers: cute.Tensor  # (PEER_WORDS,) Int32
    verdict_there: cute.Pointer

    BARRIERS: ClassVar[dict] = {**PairQueue.BARRIERS, **BARRIERS}


@dataclass(frozen=True)
class PairJudgedBlock(PairJudged, OneBlock):
    verdicts: cute.Tensor
    again: cute.Tensor
    judged: cute.Pointer
    peers: cute.Tensor
    verdict_there: cute.Pointer

    BARRIERS: ClassVar[dict] = {**OneBlock.BARRIERS, **BARRIERS}


def pair_queue_of(cfg) -> type[WorkQueue]:
    """The queue of a kernel."""
    if "work_judged" in cfg.barriers:
        return PairJudgedQueue if cfg.schedule.claims else PairJudgedBlock
    return PairQueue if cfg.schedule.claims else OneBlock
