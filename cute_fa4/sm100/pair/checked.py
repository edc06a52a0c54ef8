"""Work tiles that softmax checks, where both CTAs of a pair must agree on the result (`work/checked.py`).

A score too large for its reference may lie in a row of either CTA. Both CTAs rerun its work tile, because they
share its MMAs. So for each tile the load warps exchange the verdicts of their own softmax warps:

    load warp    reads the verdict of its own CTA -> stores it in the other, raises `verdict` there -> awaits its own

A word is rewritten three work tiles later. By then the other load warp has sent the verdict of the next tile, and it
reads this verdict before it sends that one.
"""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.entries import CHECKED_ENTRIES, CHECKED_QUEUE_BYTES
from ..instructions import mbarriers
from ..work.blocks import rank_in_cluster
from ..work.checked import Checked, queue_of
from ..work.queue import OneBlock, WorkQueue
from .entries import LATEST, PEER_WORDS
from .sync import PairQueue


class PairChecked(Checked):
    """Verdicts of both CTAs; a mixin for a work queue."""

    @classmethod
    def at(cls, pointer: cute.Pointer, **mbarriers_of):
        """In shared memory: the fields of Checked, and the verdicts of the other CTA."""
        peers = cute.make_tensor(pointer + CHECKED_QUEUE_BYTES // 4, cute.make_layout(PEER_WORDS))
        return super().at(pointer, **mbarriers_of, peers=peers)

    def begin(self):
        """Called by the load warp at the start: no verdict has been exchanged."""
        with cute.arch.elect_one():
            self.peers[LATEST] = Int32(-1)

    def agreed(self, number, found):
        return exchanged(self, number, found)


@cute.jit
def exchanged(queue: WorkQueue, number: Int32, found: cutlass.Boolean) -> cutlass.Boolean:
    """Whether either CTA found that work tile `number` must be rerun; a second call for a tile returns `found`."""
    if number > queue.peers[LATEST]:
        at, peer = number % CHECKED_ENTRIES, 1 - rank_in_cluster()
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            queue.peers[LATEST] = number
            mbarriers.store_at(peer, queue.peers.iterator + at, Int32(found))
            mbarriers.arrive_at(peer, queue.verdict_there + at, relaxed=False)
        phase = number // CHECKED_ENTRIES & 1
        mbarriers.wait_for_cluster(queue.verdict_there + at, phase, relaxed=False)
        found = found | (queue.peers[at] != 0)
        cute.arch.sync_warp()
    return found


BARRIERS = {"checked": "work_checked", "verdict_there": "verdict"}


@dataclass(frozen=True)
class PairCheckedQueue(PairChecked, PairQueue):
    verdicts: cute.Tensor
    again: cute.Tensor
    checked: cute.Pointer
    peers: cute.Tensor  # (PEER_WORDS,) Int32
    verdict_there: cute.Pointer

    BARRIERS: ClassVar[dict] = {**PairQueue.BARRIERS, **BARRIERS}


@dataclass(frozen=True)
class PairCheckedBlock(PairChecked, OneBlock):
    verdicts: cute.Tensor
    again: cute.Tensor
    checked: cute.Pointer
    peers: cute.Tensor
    verdict_there: cute.Pointer

    BARRIERS: ClassVar[dict] = {**OneBlock.BARRIERS, **BARRIERS}


def pair_queue_of(cfg) -> type[WorkQueue]:
    """The type of a kernel's work queue."""
    if cfg.share_keys:
        return queue_of(cfg)
    if "work_checked" in cfg.barriers:
        return PairCheckedQueue if cfg.schedule.claims else PairCheckedBlock
    return PairQueue if cfg.schedule.claims else OneBlock
