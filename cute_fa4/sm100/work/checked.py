"""A work queue whose tiles are checked: a tile that failed is rerun with the exact row maximum.

If the running maximum of a row lags (steps/lagged.py), a score may exceed all scores before it by so much that its
exponential overflows. The row sum shows this, but too late for the work tile. Its results are stored anyway; then the
tile is rerun and overwrites them:

    softmax      at the end of a work tile      a verdict for each warp, then work_checked
    load warp    before an entry is used again  the verdict is in: failed -> the same tile again, instead of a claim
    load warp    no block is left               a work tile without rows, so that the MMA warp finishes deferred work;
                                                then the last verdicts; then the end
    correction   before it stores the second O  waits until the first one is written

    tile         k - 3    k - 2    k - 1    k
    load warp                      copies   announces k: k - 3 is checked
    softmax               P                                           three entries: load rarely waits for a verdict

Only a tile's own scores decide whether it is rerun, and all rows of the work tile are rerun: results do not depend on
which CTA runs which block. A rerun uses the exact maximum everywhere and never fails, so the reruns end.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.entries import AGAIN_WORDS, CHECKED_ENTRIES, VERDICT_WORDS, WORK_WORDS
from . import part_queue
from .queue import (
    NO_MORE,
    PAUSE,
    OneBlock,
    OwnStretch,
    Search,
    WorkQueue,
    led,
    no_work,
    take_work,
    words_of,
    work_of,
)
from .tile import Work


class Checked:
    """Overrides for a queue whose work tiles are checked; mixed with a queue of queue.py."""

    BARRIERS: ClassVar[dict] = {**WorkQueue.BARRIERS, "checked": "work_checked"}

    @classmethod
    def at(cls, pointer: cute.Pointer, **mbarriers):
        """In shared memory: entries, response, verdicts, flags of tiles that are rerun."""
        places, at = [], pointer
        for words in (
            CHECKED_ENTRIES * WORK_WORDS,
            4,
            CHECKED_ENTRIES * VERDICT_WORDS,
            AGAIN_WORDS,
        ):
            places.append((at, words))
            at = at + words
        entries, verdicts, again = (
            cute.make_tensor(where, cute.make_layout(words))
            for where, words in (places[0], places[2], places[3])
        )
        return cls(entries, places[1][0], **mbarriers, verdicts=verdicts, again=again)

    def publish(self, number, work: Work, again=0):
        """Load warp: announce work tile `number`, -> it; the entry's verdict has been read."""
        at = number % CHECKED_ENTRIES
        cute.arch.mbarrier_wait(self.read + at, (number // CHECKED_ENTRIES & 1) ^ 1)
        work = led(work, self.entries, number, CHECKED_ENTRIES)
        with cute.arch.elect_one():
            for i, word in enumerate(words_of(work)):
                self.entries[at * WORK_WORDS + i] = word
            self.again[at] = Int32(again)
            cute.arch.mbarrier_arrive(self.ready + at)
        return work

    def next(self, cfg, args, number) -> Work:
        at = number % CHECKED_ENTRIES
        cute.arch.mbarrier_wait(self.ready + at, number // CHECKED_ENTRIES & 1)
        work = replace(self.entry(cfg, args, at), again=self.again[at])
        cute.arch.mbarrier_arrive(self.read + at)
        return work

    def entry(self, cfg, args, at) -> Work:
        """The work tile of an entry."""
        return work_of(cfg, args, [self.entries[at * WORK_WORDS + i] for i in range(WORK_WORDS)])

    def report(self, number, failed):
        at, warp = number % CHECKED_ENTRIES, cute.arch.make_warp_uniform(cute.arch.warp_idx())
        verdict = cute.arch.vote_any_sync(failed)
        with cute.arch.elect_one():
            self.verdicts[at * VERDICT_WORDS + warp] = Int32(verdict)
        cute.arch.mbarrier_arrive(self.checked + at)

    def agreed(self, number, found):
        """Load warp: whether work tile `number` is rerun. found: whether this CTA found that it must be."""
        return found

    def nothing_asked(self):
        return cutlass.Boolean(False)

    def ask_next(self, search: Search, number) -> cutlass.Boolean:
        """-> whether the next work tile is a rerun of one that failed."""
        return ask_unless_failed(self, search, number + 1 - CHECKED_ENTRIES)

    def take_next(self, cfg, args, search: Search, number, asked) -> tuple:
        return take_or_repeat(cfg, args, self, search, number, asked)

    def copies_issued(self, cfg, args, following: Work, number) -> tuple:
        return end_or_repeat(cfg, args, self, following, number)


@dataclass(frozen=True)
class CheckedQueue(Checked, WorkQueue):
    verdicts: cute.Tensor  # (CHECKED_ENTRIES * VERDICT_WORDS,) Int32
    again: cute.Tensor  # (AGAIN_WORDS,) Int32
    checked: cute.Pointer


@dataclass(frozen=True)
class CheckedBlock(Checked, OneBlock):
    verdicts: cute.Tensor
    again: cute.Tensor
    checked: cute.Pointer


@dataclass(frozen=True)
class CheckedStretch(Checked, OwnStretch):
    verdicts: cute.Tensor
    again: cute.Tensor
    checked: cute.Pointer


def queue_of(cfg) -> type[WorkQueue]:
    """The queue of a kernel."""
    checked = "work_checked" in cfg.barriers
    if cfg.share_keys:
        return CheckedStretch if checked else OwnStretch
    if cfg.own_parts or cfg.in_runs:
        return part_queue.queue_of(cfg)
    if cfg.schedule.claims:
        return CheckedQueue if checked else WorkQueue
    return CheckedBlock if checked else OneBlock


@cute.jit
def failed(queue: WorkQueue, number: Int32) -> cutlass.Boolean:
    """Load warp: whether work tile `number` must be rerun; waits for its verdict and clears it."""
    found = cutlass.Boolean(False)
    if number >= 0:
        at = number % CHECKED_ENTRIES
        cute.arch.mbarrier_wait(queue.checked + at, number // CHECKED_ENTRIES & 1)
        lane = cute.arch.lane_idx() % VERDICT_WORDS
        word = queue.verdicts[at * VERDICT_WORDS + lane]
        found = cute.arch.vote_any_sync(word != 0)
        if found:
            if cute.arch.lane_idx() < VERDICT_WORDS:
                queue.verdicts[at * VERDICT_WORDS + lane] = Int32(0)
            cute.arch.sync_warp()
        found = queue.agreed(number, found)
    return found


@cute.jit
def ask_unless_failed(queue: WorkQueue, search: Search, number: Int32) -> cutlass.Boolean:
    """Whether work tile `number` failed: then it comes next. Otherwise a block is claimed."""
    again = failed(queue, number)
    if not (again | search.over):
        queue.ask(search)
    return again


@cute.jit
def take_or_repeat(
    cfg: cutlass.Constexpr,
    args,
    queue: WorkQueue,
    search: Search,
    number: Int32,
    again: cutlass.Boolean,
) -> tuple:
    """-> (the search, the work tile after `number`, its number): announced, unless it is the end."""
    following, over = no_work(cfg), search.over
    claims, held, stretch = search.claims, search.held, search.stretch
    if again:
        following = queue.entry(cfg, args, (number + 1) % CHECKED_ENTRIES)
    else:
        if not over:
            answer = queue.answer(search)
            taken = replace(search, claims=claims + 1)
            following, taken = take_work(cfg, args, queue, answer, taken)
            claims, held, stretch = taken.claims, taken.held, taken.stretch
            over = following.tiles.count == NO_MORE
    if following.tiles.count != NO_MORE:
        number = number + 1
        following = queue.publish(number, following, again)
    return Search(claims, held, stretch, over), following, number


@cute.jit
def end_or_repeat(
    cfg: cutlass.Constexpr, args, queue: WorkQueue, following: Work, number: Int32
) -> tuple:
    """-> (the work tile that follows, its number). With no block left: one of the last two if it failed, or the end."""
    if following.tiles.count == NO_MORE:
        last = number
        queue.publish(number + 1, no_work(cfg, PAUSE))
        again, at = failed(queue, last - 1), last - 1
        if not again:
            again, at = failed(queue, last), last
        if again:
            following = queue.entry(cfg, args, at % CHECKED_ENTRIES)
        number = number + 2
        following = queue.publish(number, following, again)
    return following, number
