"""Work queues of CTAs that take all parts of a block, one after the other, before the next block (own_parts.py)."""

from dataclasses import replace

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ..blueprint.entries import WORK_ENTRIES, WORK_WORDS
from . import own_parts
from .kv_range import TileRange
from .queue import OneBlock, Search, WorkQueue, no_work, take_work, uniform, work_of
from .tile import Work


class Parts:
    """Overrides, mixed with a queue of queue.py. asked: whether another part of the same block follows."""

    def nothing_asked(self):
        return cutlass.Boolean(False)

    def ask_next(self, search: Search, number) -> cutlass.Boolean:
        return ask_unless_part_follows(self, search, number)

    def take_next(self, cfg, args, search: Search, number, asked) -> tuple:
        return take_part_or_block(cfg, args, self, search, number, asked)

    def words(self, number) -> list:
        """Load warp: the words of work tile `number`, the last that it has announced."""
        cute.arch.sync_warp()  # one lane has written them
        at = number % WORK_ENTRIES * WORK_WORDS
        return [self.entries[at + i] for i in range(WORK_WORDS)]


class PartsAndClaims(Parts, WorkQueue):
    """Blocks are claimed."""


class PartsOfBlock(Parts, OneBlock):
    """A CTA ends with its block."""


@cute.jit
def ask_unless_part_follows(queue: WorkQueue, search: Search, number: Int32) -> cutlass.Boolean:
    """Whether another part of the block follows work tile `number`. Otherwise a block is claimed."""
    first, count, *_, part = queue.words(number)
    follows = not own_parts.ends_block(part, TileRange(first, count))
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
        following = next_part(args, work_of(cfg, args, queue.words(number)))
    else:
        answer = queue.answer(search)
        following, taken = take_work(cfg, args, queue, answer, replace(search, claims=claims + 1))
        claims, held = taken.claims, taken.held
    number = number + 1
    return replace(search, claims=claims, held=held), queue.publish(number, following), number


def next_part(args, work: Work) -> Work:
    """The part after a work tile that does not end its block. Its words come from shared memory, the same in all
    lanes."""
    part = args.splits.next_of(work)
    tiles = TileRange(uniform(part.tiles.first), uniform(part.tiles.count))
    return replace(part, tile=replace(part.tile, kv_head=uniform(part.tile.kv_head)), tiles=tiles)
