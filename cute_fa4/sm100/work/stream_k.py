"""Split keys, balanced (stream-K): the key tiles of the batch form one line; every CTA takes an equal stretch of it.

A sequence has a row of tiles on the line for each of its blocks (head and query block): as many as its queries see. The
stretch of a CTA may cross borders of blocks: it works on one piece of a block after another. Three sequences of
5, 0 and 2 tiles, one block each, on 4 CTAs: 8 tiles, because a block without keys counts as one, so 2 for each CTA.

    tile of the line      0   1   2   3   4   5   6   7
    block                 0   0   0   0   0   1   2   2
    CTA                   0   0   1   1   2   2   3   3
    slot = CTA + block    0   0   1   1   2   3   5   5      of the piece's partial result in the workspace
    parts of a block      0: slots 0 to 2     1: slot 3     2: slot 5

Whatever the lengths are, no CTA is a whole tile above the mean, and a workspace of CTAs + blocks slots holds every
piece: from one piece to the next the CTA, the block, or both increase by one. The CTA that begins a block writes the
slots of the block into `parts`; the combine kernel reads them there and needs no lengths, masks or CTAs.

The lengths are read on the device: a captured graph is balanced for the lengths of its replay. Before its first tile,
every load warp adds up the whole batch; each lane takes every 32nd sequence. The warp also looks for its stretch among
the first 32, so these are not read again.
"""

from dataclasses import dataclass
from typing import ClassVar

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum, quotient
from . import kv_range, line
from .kv_range import TileRange
from .line import Held
from .sequence import Sequence, find_sequence
from .tile import Work, WorkTile
from .tile_order import blocks, tile_of_block


@dataclass(frozen=True)
class StreamK:
    """How the line is split. Numbers of blocks are the maximum that a sequence can have."""

    num_sequences: Int32
    num_heads: Int32  # scheduled, of a sequence
    num_blocks: Int32  # query blocks of a head
    num_ctas: Int32
    least: Int32  # tiles of a CTA's stretch, if there are that many
    positions: Int32  # of a slot
    parts: cute.Tensor  # (sequences * heads * blocks, 2) Int32: first slot, number of slots

    held: ClassVar[int] = line.LANES
    longest_first: ClassVar[bool] = False  # the parts of a batch lie in its order

    def of_sequence(self, cfg, of: Sequence, sizes):
        """Tiles of a sequence on the line."""
        return tiles_of_block(seen_by(cfg, of, sizes)) * (self.num_heads * self.blocks_of(cfg, of))

    def blocks_of(self, cfg, of: Sequence):
        """Query blocks of a head; those beyond the longest sequence that the host knows of are left out."""
        return minimum(blocks(cfg, of.seqlen_q), self.num_blocks)


@dataclass(frozen=True)
class Stretch:
    """The remaining work of a CTA: tiles [at, end) of the line."""

    at: Int32
    end: Int32
    share: Int32  # tiles of every CTA's stretch
    cta: Int32
    held: Held


def share_of(total, ctas, least):
    """Tiles of a CTA's stretch.

    >>> share_of(8, 4, 1), share_of(9, 4, 1), share_of(9, 4, 4)
    (2, 3, 4)
    """
    return maximum(quotient(total + ctas - 1, ctas), least)


def pieces_of(blocks: list[int], ctas: int, least: int) -> list[tuple[int, int, int, int]]:
    """The whole order, as numbers: (CTA, block, first tile, end) of every piece, in the order of the line.

    blocks: the key tiles of each block, in the order of the line.

    >>> pieces_of([5, 0, 2], 4, 1)
    [(0, 0, 0, 2), (1, 0, 2, 4), (2, 0, 4, 5), (2, 1, 0, 1), (3, 2, 0, 2)]
    """
    share = share_of(sum(max(tiles, 1) for tiles in blocks), ctas, least)
    found, at = [], 0
    for block, tiles in enumerate(max(tiles, 1) for tiles in blocks):
        begin = 0
        while begin < tiles:
            end = min(tiles, begin + share - at % share)
            found.append((at // share, block, begin, end))
            at, begin = at + end - begin, end
    return found


def tiles_of_block(seen: TileRange):
    """Tiles of a block on the line: at least one, so that a CTA writes the result of queries without keys."""
    return maximum(seen.count, 1)


def seen_by(cfg, of: Sequence, sizes) -> TileRange:
    """The key tiles that the queries of a sequence see together."""
    first, last = of.position(0), of.position(of.seqlen_q - 1)
    return kv_range.tile_range(cfg, first, last, of.num_keys, of.key_limit, sizes)


# --- a piece in WorkTile.part: its slot, and whether it begins its block


def part_of(slot, begins):
    return slot * 2 + choose(begins, 0, 1)


def slot_of(part):
    return part // 2


def begins_block(part):
    return part % 2 == 0


# --- the load warp


def stretch_of(cfg, args, cta) -> Stretch:
    """The stretch of CTA number `cta`."""
    order, sizes, lane = args.order, args.mask_sizes, cute.arch.lane_idx()
    given = cfg, args.lengths, args.seqlen_q, args.seqlen_k, order
    # Most batches have no more sequences than these; both lookups are in flight together.
    first, second = (line.sequences_from(*given, Int32(i)) for i in (0, line.LANES))
    here, there = (
        line.on_line(cfg, order, sizes, own, lane + i)
        for i, own in ((0, first), (line.LANES, second))
    )
    total = cute.arch.warp_redux_sync(here, "add") + further_tiles(cfg, args, there)
    share = share_of(total, order.num_ctas, order.least)
    at = minimum(cta * share, total)
    held = line.held_of(cfg, order, sizes, first, Int32(0), Int32(0))
    return Stretch(at, minimum(at + share, total), share, Int32(cta), held)


@cute.jit
def further_tiles(cfg: cutlass.Constexpr, args, mine: Int32) -> Int32:
    """Tiles of the sequences after the first 32 on the line; mine: those of the lane's sequence among the next 32."""
    order, total = args.order, Int32(0)
    if order.num_sequences > line.LANES:
        begin = 2 * line.LANES + cute.arch.lane_idx()
        for batch in cutlass.range(begin, order.num_sequences, line.LANES, unroll=4):
            of = find_sequence(cfg, args.lengths, batch, args.seqlen_q, args.seqlen_k)
            mine = mine + order.of_sequence(cfg, of, args.mask_sizes)
        total = cute.arch.warp_redux_sync(mine, "add")
    return total


def next_of(stretch: Stretch) -> Int32:
    """The next tile of a stretch, or -1."""
    return choose(stretch.at < stretch.end, stretch.at, -1)


@cute.jit
def find_piece(cfg: cutlass.Constexpr, args, stretch: Stretch) -> tuple[Work, Stretch]:
    """The next piece of a stretch, and the remaining stretch. For an empty stretch the piece is arbitrary."""
    order, sizes = args.order, args.mask_sizes
    of, inside, held = line.find(
        cfg, args.lengths, args.seqlen_q, args.seqlen_k, order, sizes, stretch.at, stretch.held
    )
    of, inside = of.uniform(), cute.arch.make_warp_uniform(inside)
    seen = seen_by(cfg, of, sizes)
    each, num_blocks = tiles_of_block(seen), maximum(order.blocks_of(cfg, of), 1)
    row = quotient(inside, each)
    begin = inside - row * each  # of the piece, in its block
    end = minimum(each, begin + stretch.end - stretch.at)
    head = quotient(row, num_blocks)
    block = row - head * num_blocks
    number = (of.batch * order.num_heads + head) * order.num_blocks + block
    if (begin == 0) & (stretch.at < stretch.end):
        last = quotient(stretch.at + each - 1, stretch.share)
        with cute.arch.elect_one():
            order.parts[number, 0] = stretch.cta + number
            order.parts[number, 1] = last - stretch.cta + 1
    tile = tile_of_block(cfg, block, head, of.batch)
    tile = WorkTile(
        tile.first_position,
        tile.head,
        tile.kv_head,
        tile.batch,
        part_of(stretch.cta + number, begin == 0),
    )
    tiles = of_piece(cfg, of, tile, seen, begin, end, sizes)
    return Work(tile, of, tiles), Stretch(
        stretch.at + end - begin, stretch.end, stretch.share, stretch.cta, held
    )


def of_piece(cfg, of: Sequence, tile: WorkTile, seen: TileRange, begin, end, sizes) -> TileRange:
    """Tiles [begin, end) of those that the sequence sees, limited to those that this block sees."""
    last = minimum(tile.first_position + cfg.tiles.positions_per_cta, of.seqlen_q) - 1
    own = kv_range.tile_range(
        cfg, of.position(tile.first_position), of.position(last), of.num_keys, of.key_limit, sizes
    )
    first = maximum(seen.first + begin, own.first)
    stop = minimum(seen.first + end, own.first + own.count)
    return TileRange(first, maximum(stop - first, 0))
