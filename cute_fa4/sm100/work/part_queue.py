"""Work queues of CTAs that take parts of a block one after the other: all (own_parts.py), or a run (runs.py)."""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.entries import WORK_ENTRIES, WORK_WORDS
from . import own_parts, runs
from .kv_range import TileRange
from .queue import (
    OneBlock,
    Search,
    WorkQueue,
    no_work,
    take_work,
    tiles_of_block,
    uniform,
    work_of,
)
from .tile import Work


class Parts:
    """Overrides, mixed with a queue of queue.py. asked: whether the CTA takes another part of the same block."""

    in_run = False

    def nothing_asked(self):
        return cutlass.Boolean(False)

    def ask_next(self, search: Search, number) -> cutlass.Boolean:
        return ask_unless_part_follows(self, search, number)

    def take_next(self, cfg, args, search: Search, number, asked) -> tuple:
        if self.in_run:  # asked in another turn of the loop
            asked = self.is_followed(number)
        return take_part_or_block(cfg, args, self, search, number, asked)

    def words(self, number) -> list:
        """Load warp: the words of work tile `number`, the last that it has announced."""
        cute.arch.sync_warp()  # one lane has written them
        at = number % WORK_ENTRIES * WORK_WORDS
        return [self.entries[at + i] for i in range(WORK_WORDS)]

    def is_followed(self, number):
        """Whether the CTA takes another part of the block after work tile `number`."""
        first, count, *_, part = self.words(number)
        if self.in_run:
            return runs.is_followed(part)
        return own_parts.is_followed(part, TileRange(first, count))


class PartsAndClaims(Parts, WorkQueue):
    """Blocks are claimed."""


class PartsOfBlock(Parts, OneBlock):
    """A CTA ends with its block."""


class RunsAndClaims(PartsAndClaims):
    """Runs are claimed."""

    in_run = True


class Run(PartsOfBlock):
    """A CTA ends with its run."""

    in_run = True


def queue_of(cfg) -> type[WorkQueue]:
    """The queue of a kernel whose CTAs take several parts."""
    if cfg.in_runs:
        return RunsAndClaims if cfg.schedule.claims else Run
    return PartsAndClaims if cfg.schedule.claims else PartsOfBlock


@cute.jit
def ask_unless_part_follows(queue: WorkQueue, search: Search, number: Int32) -> cutlass.Boolean:
    """Whether another part of the block follows work tile `number`. Otherwise a block is claimed."""
    follows = queue.is_followed(number)
    if not follows:
        queue.ask(search)
    return follows


@cute.jit
def take_part_or_block(
    cfg: cutlass.Constexpr,
    args,
    queue: WorkQueue,
    search: Search,
    number: Int32,
    follows: cutlass.Boolean,
) -> tuple:
    """-> (the search; the work tile after `number`, announced; its number)."""
    following, claims, held = no_work(cfg), search.claims, search.held
    if follows:
        following = next_part(cfg, args, work_of(cfg, args, queue.words(number)))
    else:
        answer = queue.answer(search)
        following, taken = take_work(cfg, args, queue, answer, replace(search, claims=claims + 1))
        claims, held = taken.claims, taken.held
    number = number + 1
    return replace(search, claims=claims, held=held), queue.publish(number, following), number


def next_part(cfg, args, work: Work) -> Work:
    """The part after a work tile that has one. Its words come from shared memory, the same in all lanes."""
    if cfg.in_runs:
        tiles = tiles_of_block(cfg, args, work.tile, work.sequence)
        tile, of_part = args.splits.next_of(work.tile, tiles)
        part = replace(work, tile=tile, tiles=of_part)
    else:
        part = args.splits.next_of(work)
    tiles = TileRange(uniform(part.tiles.first), uniform(part.tiles.count))
    return replace(part, tile=replace(part.tile, kv_head=uniform(part.tile.kv_head)), tiles=tiles)
