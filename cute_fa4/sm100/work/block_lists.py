"""Lists of key blocks: the key tiles of a block of queries, where a call lists them (block_sparse_tensors=).

    partial   blocks of which mask_mod hides some keys
    full      blocks that every query of the block sees; None: there are none

A work tile takes the tiles of its full blocks, then those of its partial blocks, each list in its own order. A turn is
a number in this sequence. Full blocks 4, 0, partial block 7, blocks of 256 keys:

    turn        0   1   2   3   4   5       TileRange(first=0, count=6, whole=4)
    key tile    8   9   0   1  14  15

Lists are padded, or packed: one after another, those of a sequence together. Two tensors say where these begin; a list
of the sequence has room for each of its key blocks. Two sequences of one head, of 2 and 1 query blocks, 3 and 2 key
blocks:

    counts     n00 n01 | n10                       begin with first_blocks [0, 2, 3]
    entries    e e e  e e e | e e                  begin with first_entries [0, 6, 8]; None: all have as many key blocks

The host does not read these tensors, so their values are clamped: a count to the entries of its list, a place to the
tensor. An entry that is no block of the sequence becomes the tile after the last one: TMA fills it with zeros, and
every key of it is hidden.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from ..blueprint import listed
from . import blocks
from .kv_range import TileRange


@dataclass(frozen=True)
class BlockLists:
    """Int32 tensors: counts (batch, heads, query blocks), entries (batch, heads, query blocks, entries of a list).

    Packed: counts (heads, query blocks of all sequences), entries (heads, entries of all lists).
    Batch and heads may be 1: the lists are then those of every sequence or head.
    first_blocks, first_entries   (batch + 1,), packed only
    order         (work tiles,): their numbers, the longest lists first; with cfg.longest_first. With cfg.cut_lists
                  (entries, 4), see list_parts.py
    """

    partial_counts: cute.Tensor
    partial: cute.Tensor
    full_counts: cute.Tensor | None = None
    full: cute.Tensor | None = None
    first_blocks: cute.Tensor | None = None
    first_entries: cute.Tensor | None = None
    order: cute.Tensor | None = None

    @classmethod
    def of(cls, cfg, tensors: tuple) -> "BlockLists":
        """From the tensors of a launch, which are those that the configuration has, in this order."""
        given = iter(tensors)
        has_tensors = *listed.has_tensors(cfg), cfg.longest_first
        return cls(*(next(given) if has else None for has in has_tensors))


def of_query_block(cfg, counts, tile) -> tuple:
    """The coordinates of a work tile's list in a padded tensor of counts or entries."""
    place = tile.batch, tile.head, tile.first_position // cfg.q_block
    return tuple(minimum(at, Int32(counts.shape[i]) - 1) for i, at in enumerate(place))


def _within(tensor, i: int, at):
    """`at`, if it is an index of dimension i; otherwise the nearest one."""
    return maximum(minimum(at, Int32(tensor.shape[i]) - 1), 0)


def _place_of_count(cfg, lists: BlockLists, counts, tile) -> tuple:
    """The coordinates of a work tile's count."""
    if not cfg.packed_lists:
        return of_query_block(cfg, counts, tile)
    block = Int32(lists.first_blocks[tile.batch]) + tile.first_position // cfg.q_block
    return _within(counts, 0, tile.head), _within(counts, 1, block)


def _blocks_of_keys(cfg, sequence):
    return (sequence.num_keys + cfg.kv_block - 1) // cfg.kv_block


def _first_entry(cfg, lists: BlockLists, entries, tile, sequence):
    """Where a work tile's packed list begins."""
    each = _blocks_of_keys(cfg, sequence)
    if cfg.list_offsets:
        first = Int32(lists.first_entries[tile.batch])
    else:
        first = Int32(lists.first_blocks[tile.batch]) * each
    return _within(entries, 1, first + tile.first_position // cfg.q_block * each)


def _room(cfg, lists: BlockLists, entries, tile, sequence):
    """Entries of a work tile's list."""
    if not cfg.packed_lists:
        return Int32(entries.shape[3])
    rest = Int32(entries.shape[1]) - _first_entry(cfg, lists, entries, tile, sequence)
    return minimum(_blocks_of_keys(cfg, sequence), rest)


def _place(cfg, lists: BlockLists, entries, work) -> tuple:
    """-> (coordinates of a work tile's list, the number of its first entry)."""
    if not cfg.packed_lists:
        return of_query_block(cfg, entries, work.tile), 0
    head = _within(entries, 0, work.tile.head)
    return (head,), _first_entry(cfg, lists, entries, work.tile, work.sequence)


def _entry(entries, place: tuple, number):
    """Entry `number` of the list at a place, which has it; of an empty list, any number."""
    at, first = place
    return Int32(entries[(*at, first + number)])


def _tiles_of(cfg, lists: BlockLists, counts, entries, tile, sequence):
    """Key tiles of a list."""
    count = Int32(counts[_place_of_count(cfg, lists, counts, tile)])
    count = minimum(maximum(count, 0), _room(cfg, lists, entries, tile, sequence))
    # One result for the warp: see _uniform of queue.py.
    return cute.arch.warp_redux_sync(count, "max") * (cfg.kv_block // cfg.tiles.BN)


def range_of(cfg, args, tile, sequence) -> TileRange:
    """The turns of a work tile."""
    lists, whole = args.blocks, Int32(0)
    if cfg.full_blocks:
        whole = _tiles_of(cfg, lists, lists.full_counts, lists.full, tile, sequence)
    partial = _tiles_of(cfg, lists, lists.partial_counts, lists.partial, tile, sequence)
    return TileRange(Int32(0), whole + partial, whole=whole)


@cute.jit
def key_tile(cfg: cutlass.Constexpr, args, work, n: Int32) -> Int32:
    """The key tile of turn n; beyond the last turn, that of the last one."""
    lists, whole = args.blocks, work.tiles.whole
    tiles_per_block = cfg.kv_block // cfg.tiles.BN
    n = maximum(minimum(n, end_of(cfg, work) - 1), 0)
    block = Int32(0)
    if cutlass.const_expr(cfg.full_blocks):
        if n < whole:
            block = _entry(lists.full, _place(cfg, lists, lists.full, work), n // tiles_per_block)
        else:
            block = _entry(
                lists.partial,
                _place(cfg, lists, lists.partial, work),
                (n - whole) // tiles_per_block,
            )
    else:
        block = _entry(lists.partial, _place(cfg, lists, lists.partial, work), n // tiles_per_block)
    num_keys = work.sequence.num_keys
    num_blocks = _blocks_of_keys(cfg, work.sequence)
    beyond = (num_keys + cfg.tiles.BN - 1) // cfg.tiles.BN
    is_block = (block >= 0) & (block < num_blocks)
    return choose(is_block, block * tiles_per_block + n % tiles_per_block, beyond)


def tile_of_turn(cfg, args, work, n):
    """The key tile of turn n, whether a call has lists or not."""
    return key_tile(cfg, args, work, n) if cfg.lists_blocks else blocks.key_tile(cfg, n)


def end_of(cfg, work):
    """The turn after the last one of a work tile."""
    return work.tiles.first + work.tiles.count if cfg.cut_lists else work.tiles.count


def may_be_whole(cfg) -> bool:
    """Whether some tiles need no mask: those of full blocks, or all where no function hides keys."""
    return cfg.full_blocks or cfg.mask_mod is None


def is_whole(cfg, work, n, tile):
    """Whether every row sees all keys of `tile`, the tile of turn n."""
    exists = (tile + 1) * cfg.tiles.BN <= work.sequence.key_limit
    return exists if cfg.mask_mod is None else exists & is_full(cfg, work, n)


def is_full(cfg, work, n):
    """Whether turn n is one of a full block; None: there are none."""
    return n < work.tiles.whole if cfg.full_blocks else None
