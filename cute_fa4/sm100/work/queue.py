"""Work queue: the load warp finds the CTA's work tiles, the other roles read them from shared memory.

    first work tile     the block that the CTA was launched as
    further ones        blocks of the grid that have not started: cluster launch control hands one over at a time
                        (PTX ISA: "clusterlaunchcontrol.try_cancel"); none is left: the CTA ends
    shared keys         one piece after another of the CTA's own stretch of the line (stream_k.py): no claims

A CTA sets up once, and the next tile's Q, K and V arrive while the last tile is being finished. The hardware still
distributes the blocks to free CTAs, in the order of the grid. The host launches the same grid as without claims, where
a CTA ends with its block (OneBlock).

    load         | find 0 | copies 0 ... | claim 1 | last copies 0 | copies 1 .. | claim 2 | last copies 1 | copies 2
    mma                   | S, P V of 0 ..................... | S, P V of 1 ............................ | 2
    correction            | rescale 0 ........................... | O of 0 | rescale 1 .................... | O of 1

A block is claimed while the second-to-last key tile is copied: late, so that a free CTA takes it, and early enough for
its first copies. The queue has two entries, so that the load warp can announce a tile before a slower role has begun
the one before. The end is a work tile of NO_MORE key tiles.

`args` are the KernelArgs of the launch (kernel_args.py).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from ..blueprint.entries import CLAIM_ANSWER_BYTES, WORK_ENTRIES, WORK_WORDS
from . import block_lists, blocks, kv_range, list_parts, packed_order, stream_k, tile_order
from .kv_range import TileRange
from .line import Held
from .sequence import Sequence, find_sequence
from .split import taken_in_turn
from .stream_k import Stretch
from .tile import Work, WorkTile

NO_MORE = -1  # key tiles: no work is left
PAUSE = -2  # nothing to do, but more may follow (`checked.py`)
LATE = 16  # in the last word of an entry: `late` begins at this bit, `early` at bit 1, the leader is bit 0
EARLY_AND_LEADER = (1 << LATE) - 1
BEYOND = 1 << 30  # a position beyond every sequence and its block


@dataclass(frozen=True)
class WorkQueue:
    """The queue's place in shared memory and its mbarriers (barriers.py)."""

    entries: cute.Tensor  # (WORK_ENTRIES * WORK_WORDS,) Int32
    response: cute.Pointer  # 16 bytes, 16-byte aligned
    ready: cute.Pointer
    read: cute.Pointer
    claimed: cute.Pointer

    # field: its barrier in the table
    BARRIERS: ClassVar[dict] = {
        "ready": "work_ready",
        "read": "work_read",
        "claimed": "work_claimed",
    }

    @classmethod
    def at(cls, pointer: cute.Pointer, **mbarriers) -> "WorkQueue":
        """The queue whose region of shared memory begins at `pointer` (to Int32): entries, then the response."""
        entries = cute.make_tensor(pointer, cute.make_layout(WORK_ENTRIES * WORK_WORDS))
        return cls(entries, pointer + WORK_ENTRIES * WORK_WORDS, **mbarriers)

    def begin(self):
        """Load warp, before the roles."""

    def publish(self, number, work: Work):
        """Load warp: announce the CTA's work tile `number`; -> it, as it is announced."""
        at = number % WORK_ENTRIES
        cute.arch.mbarrier_wait(self.read + at, (number // WORK_ENTRIES & 1) ^ 1)
        work = led(work, self.entries, number, WORK_ENTRIES)
        with cute.arch.elect_one():
            for i, word in enumerate(words_of(work)):
                self.entries[at * WORK_WORDS + i] = word
            cute.arch.mbarrier_arrive(self.ready + at)
        return work

    def next(self, cfg, args, number) -> Work:
        """Every other role, every thread of it: wait for work tile `number` and read it."""
        at = number % WORK_ENTRIES
        cute.arch.mbarrier_wait(self.ready + at, number // WORK_ENTRIES & 1)
        words = [self.entries[at * WORK_WORDS + i] for i in range(WORK_WORDS)]
        cute.arch.mbarrier_arrive(self.read + at)
        return work_of(cfg, args, words)

    def ask(self, search: "Search"):
        """Load warp: claim another block. One claim at a time, and none after a refused one."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.claimed, CLAIM_ANSWER_BYTES)
            cute.arch.issue_clc_query(self.claimed, self.response, multicast=False)

    def nothing_asked(self):
        """What ask_next returns where it is not called."""
        return None

    def ask_next(self, search: "Search", number):
        """Load warp, in work tile `number`, ahead of take_next: claim the work that follows it."""
        self.ask(search)

    def take_next(self, cfg, args, search: "Search", number, asked) -> tuple:
        """Load warp: -> (the search; the work tile after `number`, announced; its number). asked: from ask_next."""
        answer = self.answer(search)
        search = replace(search, claims=search.claims + 1)
        following, search = take_work(cfg, args, self, answer, search)
        number = number + 1
        return search, self.publish(number, following), number

    def copies_issued(self, cfg, args, following: Work, number) -> tuple:
        """Load warp, after the last copy of a work tile: -> (the next work tile, its number)."""
        return following, number

    def report(self, number, failed):
        """The role that checks, every thread of it, at the end of work tile `number`: whether it must be rerun.

        failed: whether a row of this thread failed
        """

    def answer(self, search: "Search") -> Int32:
        """Load warp: the block that this CTA runs from now on, or -1."""
        cute.arch.mbarrier_wait(self.claimed, search.claims & 1)
        block, _, _, granted = cute.arch.clc_response(self.response)
        # The next response is written by the async proxy, after every lane has read this one.
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        return choose(granted != 0, block, -1)

    def drain(self, search: "Search", number):
        """Load warp, after it has announced the end as work tile `number`: wait for what other CTAs still send."""


def expect_answer(claimed):
    """One thread announces the bytes of an answer that another CTA requests."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(claimed, CLAIM_ANSWER_BYTES)


class OneBlock(WorkQueue):
    """The queue of a CTA that ends with its block: it makes no claim, and the answer is always -1."""

    def ask(self, search: "Search"):
        pass

    def answer(self, search: "Search") -> Int32:
        return Int32(-1)

    def take_next(self, cfg, args, search: "Search", number, asked) -> tuple:
        if not cfg.reads_lengths:
            return super().take_next(cfg, args, search, number, asked)
        # No block is left, so no length is read: the copies of the last key tile would wait for it.
        number = number + 1
        return search, self.publish(number, no_work(cfg)), number


class OwnStretch(OneBlock):
    """The queue of a CTA that has its stretch of the line: the next piece is known, and no claim is made."""

    take_next = WorkQueue.take_next

    def answer(self, search: "Search") -> Int32:
        return stream_k.next_of(search.stretch)


def words_of(work: Work) -> list:
    """A work tile as the words of an entry."""
    tile, of, tiles = work.tile, work.sequence, work.tiles
    last = Int32(0) if tile.part is None else tile.part
    if tiles.early is not None:
        last = tiles.early << 1 | tiles.leader
    if tiles.late is not None:
        last = last | tiles.late << LATE
    if tiles.whole is not None:
        last = tiles.whole
    # A work tile with lists is of one head, which says what its key/value head is.
    in_list = tiles.whole is not None and tile.part is not None
    return [
        tiles.first,
        tiles.count,
        tile.first_position,
        tile.head,
        tile.part if in_list else tile.kv_head,
        tile.batch,
        of.q_first_row,
        of.seqlen_q,
        of.k_first_row,
        of.num_keys,
        of.key_limit,
        last,
    ]


def led(work: Work, entries, number, num_entries: int) -> Work:
    """Work tile `number` with its leader, if any; the queue of `num_entries` entries still holds the tile before."""
    if work.tiles.early is None:
        return work
    leader = leader_of(entries, number, num_entries, work.tiles.late is not None)
    if work.tiles.late is not None:
        leader = leader ^ choose(work.tiles.late > 0, 1, 0)
    return replace(work, tiles=replace(work.tiles, leader=leader))


@cute.jit
def leader_of(
    entries, number: Int32, num_entries: cutlass.Constexpr, with_late: cutlass.Constexpr
) -> Int32:
    """Which warpgroup goes first: the leader of the work tile before, or the other one if that leader went last."""
    leader = Int32(0)
    if number > 0:
        cute.arch.sync_warp()  # one lane has written it
        word = entries[(number - 1) % num_entries * WORK_WORDS + WORK_WORDS - 1]
        leader = word & 1
        if cutlass.const_expr(with_late):
            word = word & EARLY_AND_LEADER
        if word > 1:
            leader = leader ^ 1
    return leader


def work_of(cfg, args, words: list) -> Work:
    """The work tile of an entry's words."""
    first, count, first_position, head, kv_head, batch, *of, last = words
    if cfg.reads_lengths:
        found = Sequence(batch, *of)
    else:  # constants and arguments of the kernel: nothing is read
        found = find_sequence(cfg, args.lengths, batch, args.seqlen_q, args.seqlen_k)
    part = last if cfg.in_parts else None
    if cfg.cut_lists:
        part, kv_head = kv_head, head // cfg.group
    tile = WorkTile(first_position, head, kv_head, batch, part)
    if cfg.lists_blocks:
        return Work(tile, found, TileRange(first, count, whole=last))
    if not cfg.uneven:
        return Work(tile, found, TileRange(first, count))
    if not cfg.begins_late:
        return Work(tile, found, TileRange(first, count, early=last >> 1, leader=last & 1))
    early = (last & EARLY_AND_LEADER) >> 1
    return Work(tile, found, TileRange(first, count, early, last >> LATE, last & 1))


@dataclass(frozen=True)
class Search:
    """Load warp: the state of the search for work tiles.

    claims   number of claims so far
    held     packed queries: the sequences around the last block
    stretch  shared keys: the rest of the CTA's stretch
    """

    claims: Int32
    held: Held | None = None
    stretch: Stretch | None = None
    over: cutlass.Boolean | None = None  # `checked.py`: no block is left


def begin(cfg, args, block) -> tuple[Int32, Search]:
    """Load warp: -> (the CTA's first block or tile, the search). block: its number in the grid."""
    over = cutlass.Boolean(False) if "work_checked" in cfg.barriers else None
    if cfg.share_keys:
        stretch = stream_k.stretch_of(cfg, args, block)
        return stream_k.next_of(stretch), Search(Int32(0), stretch=stretch, over=over)
    held = Held.none(args.order) if cfg.q_layout == "packed" else None
    return block, Search(Int32(0), held, over=over)


def tiles_of_block(cfg, args, tile: WorkTile, of: Sequence) -> TileRange:
    """The key tiles that a block of queries sees."""
    last = minimum(tile.first_position + cfg.tiles.positions_per_block, of.seqlen_q) - 1
    return kv_range.tile_range(
        cfg,
        of.position(tile.first_position),
        of.position(last),
        of.num_keys,
        of.key_limit,
        args.mask_sizes,
    )


@cute.jit
def find_work(
    cfg: cutlass.Constexpr, args, block: Int32, held: Held | None
) -> tuple[Work, Held | None]:
    """The work tile of a block, with its sequence and its key tiles; for block -1, NO_MORE key tiles."""
    number, part = maximum(block, 0), None
    if cutlass.const_expr(cfg.cut_lists):
        entry = list_parts.Entry.at(args.blocks.order, number)
        number = maximum(entry.tile, 0)
    elif cutlass.const_expr(cfg.longest_first):
        number = Int32(args.blocks.order[number])
    if cutlass.const_expr(cfg.split_keys):
        number, part = args.splits.block_and_part(number)
    if cutlass.const_expr(cfg.cluster_parts > 1):
        number, rank = number // cfg.cluster_parts, number % cfg.cluster_parts
    if cutlass.const_expr(cfg.q_layout == "packed" and cfg.longest_first):
        tile = packed_order.numbered(cfg, args.order, args.seqlen_q, number)
        of = find_sequence(cfg, args.lengths, tile.batch, args.seqlen_q, args.seqlen_k)
    elif cutlass.const_expr(cfg.q_layout == "packed"):
        tile, of, held = packed_order.find_block(
            cfg, args.lengths, args.seqlen_k, args.order, number, held
        )
    else:
        tile = tile_order.work_tile(cfg, number, args.order)
        of = find_sequence(cfg, args.lengths, tile.batch, args.seqlen_q, args.seqlen_k)
    if cutlass.const_expr(cfg.lists_blocks):
        tiles = block_lists.range_of(cfg, args, tile, of)
        if cutlass.const_expr(cfg.cut_lists):
            tile, tiles = entry.of(tile, tiles, uniform)
            position = choose(entry.tile < 0, BEYOND, tile.first_position)
            tile = replace(tile, first_position=position)
    else:
        tiles = tiles_of_block(cfg, args, tile, of)
    if cutlass.const_expr(cfg.split_keys):
        tile, tiles = args.splits.first_of(cfg, tile, tiles, part)
    if cutlass.const_expr(cfg.own_parts):
        tile, tiles = args.splits.first_of(tile, tiles)
    if cutlass.const_expr(cfg.cluster_parts > 1):
        tiles = taken_in_turn(tiles, rank, cfg.cluster_parts)
    if cutlass.const_expr(cfg.uneven):
        tiles = kv_range.uneven(cfg, tiles, tile.first_position, of, args.mask_sizes)
        tiles = replace(tiles, leader=Int32(0))  # see led
    tile = replace(tile, first_position=blocks.first_position(cfg, tile.first_position))
    count = choose(block < 0, NO_MORE, tiles.count)
    return Work(tile, of, replace(tiles, count=count)), held


@cute.jit
def take_work(
    cfg: cutlass.Constexpr, args, queue: WorkQueue, block: Int32, search: Search
) -> tuple[Work, Search]:
    """The work of `block`, or of a claimed one if `block` has no rows: with lengths in tensors, or lists that are cut,
    grids are upper bounds.

    Shared keys: the next piece, unless `block` is -1.
    """
    claims, held, stretch = search.claims, search.held, search.stretch
    if cutlass.const_expr(cfg.share_keys):  # every piece has rows
        work, stretch = stream_k.find_piece(cfg, args, stretch)
        count = choose(block < 0, NO_MORE, work.tiles.count)
        tiles = TileRange(uniform(work.tiles.first), uniform(count))
        tile = replace(work.tile, kv_head=uniform(work.tile.kv_head))
        work = Work(tile, work.sequence, tiles)
    elif cutlass.const_expr(not (cfg.clips_queries or cfg.cut_lists)):
        work, held = find_work(cfg, args, block, held)
    else:
        work = no_work(cfg, count=0)
        while _has_no_rows(cfg, work):
            work, held = find_work(cfg, args, block, held)
            if _has_no_rows(cfg, work):
                queue.ask(Search(claims))
                block = queue.answer(Search(claims))
                claims = claims + 1
    return work, replace(search, claims=claims, held=held, stretch=stretch)


def no_work(cfg, count: int = NO_MORE) -> Work:
    """A work tile without rows."""
    zero = Int32(0)
    first = Int32(BEYOND) if count == PAUSE else blocks.first_position(cfg, zero)
    tile = WorkTile(first, zero, zero, zero, zero if cfg.in_parts else None)
    tiles = TileRange(zero, Int32(count))
    if cfg.uneven:
        tiles = replace(tiles, early=zero, late=zero if cfg.begins_late else None, leader=zero)
    if cfg.lists_blocks:
        tiles = replace(tiles, whole=zero)
    return Work(tile, Sequence.empty(), tiles)


def uniform(number) -> Int32:
    """A number that all lanes hold, made uniform for the compiler: redux.sync (PTX ISA) has one result for the warp.

    The compiler does not know that the result of a search by lanes, a division or a shuffle is uniform. A loop over key
    tiles with such bounds elects a lane for every copy anew: 1,730 cycles for a key tile of 16 copies instead of 660
    (pages of 16, depth 64, modeled).
    """
    return cute.arch.warp_redux_sync(Int32(number), "max")


def _has_no_rows(cfg, work: Work):
    """Whether no CTA of the block has rows: all CTAs of the block continue together."""
    first = blocks.block_begin(cfg, work.tile.first_position)
    return (work.tiles.count != NO_MORE) & (first >= work.sequence.seqlen_q)
