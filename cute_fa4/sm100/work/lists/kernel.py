"""Convert lists of key blocks: a CTA for each tile of queries marks what its lists name, and writes what it finds.

A row of shared memory holds two bits for each 16 keys (a unit), for each query block that has queries of the tile:

    block_size (64, 96), tile 0      entries        units 0 ...                    tile of keys 0    1
    query block 0                    full 0, 2      222222 000000 222222 ...       22222200          0000 2222 ..
    query block 1                    partial 1      000000 111111 000000 ...       00000011          1111 0000 ..
    lists of tile 0                                                                partial           partial

A tile of keys is full if all units of its blocks are full in every row, absent if none is listed. Thread n then has key
tile n, and a ballot gives it its place in the list. More than 128 key tiles take several passes over the lists.

    tiles    writes the lists, and the words of the rows: `kinds` of blueprint/small_blocks.py
    kinds    writes the kinds of pairs of tiles, (batch, heads, tiles of queries, tiles of keys), of existing tiles

The marks are atomic ORs in shared memory, so their order changes nothing. Values that are wrong are left out: counts
beyond their list, entries that are no block. Packed lists are found as in work/block_lists.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int8, Int32, Uint8, Uint16, Uint32

from ....layouts.scalars import maximum, minimum
from ...blueprint.listed import FULL, PARTIAL
from .config import (
    ALL_PARTIAL,
    HIDES,
    MOST_BLOCKS,
    SMEM_BYTES,
    THREADS,
    TILE,
    UNIT,
    UNITS_OF_TILE,
    UNITS_OF_WORD,
    WARPS,
    WORDS,
    BlockListsConfig,
)

WARP, WORD_BITS = 32, UNITS_OF_WORD.bit_length() - 1
BYTES = 2 * UNITS_OF_TILE // 8  # of the units of a tile
PARTIAL_UNITS, FULL_UNITS = 0x55555555, 0xAAAAAAAA  # PARTIAL and FULL, of each unit of a word


@dataclass(frozen=True)
class Given:
    """The lists of a call. Padded: counts (batch, heads, query blocks), entries (batch, heads, query blocks, room).

    Packed: counts (1, heads, query blocks of all sequences), entries (1, heads, 1, entries of all lists). Batch and
    heads of a tensor may be 1, for all. Where a call does not have a tensor, another one stands for it.

    packed         whether first_blocks is given; begins: whether first_entries is
    lists          2: of partial and full blocks, 1: of partial ones
    limit_q, limit_k   whether `queries`, `keys` are given, (batch,): rows of each sequence
    """

    counts: tuple
    entries: tuple
    first_blocks: cute.Tensor
    first_entries: cute.Tensor
    queries: cute.Tensor
    keys: cute.Tensor
    lists: Int32
    packed: Int32
    begins: Int32
    limit_q: Int32
    limit_k: Int32


@dataclass(frozen=True)
class Sizes:
    """Of blocks and tiles, and how many there are. Divisors are made by the host.

    q_block, tiles_q, heads   divisors
    tile_q           queries of a tile; units: of a block of keys
    queries, keys    of the longest sequence
    hides            HIDES: a mask_mod hides keys; ALL_PARTIAL: no tile is full
    """

    q_block: object
    kv_block: Int32
    units: Int32
    tile_q: Int32
    queries: Int32
    keys: Int32
    blocks_q: Int32
    blocks_k: Int32
    tiles_q: object
    tiles_k: Int32
    heads: object
    hides: Int32


def sizes_of(sizes: tuple, heads) -> Sizes:
    """On the host, from those of a launch."""
    q_block, kv_block, tile_q, queries, keys, hides = sizes
    divisor = cute.fast_divmod_create_divisor_v2

    def parts(rows, of):
        return (rows + of - 1) // of

    return Sizes(
        divisor(q_block), kv_block, kv_block // UNIT, tile_q, queries, keys, parts(queries, q_block),
        parts(keys, kv_block), divisor(parts(queries, tile_q)), parts(keys, TILE), divisor(heads), hides,
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A tile of queries, and its query blocks: `number` of them from `first` on."""

    batch: Int32
    head: Int32
    tile: Int32
    first: Int32
    number: Int32


def clipped(tensor, dim: int, at):
    """`at`, or the nearest index of the dimension."""
    return maximum(minimum(at, Int32(tensor.shape[dim]) - 1), 0)


@cute.jit
def rows_of(lengths: cute.Tensor, limited: Int32, batch: Int32, longest: Int32) -> Int32:
    """Queries or keys of a sequence."""
    rows = longest
    if limited != 0:
        rows = minimum(maximum(Int32(lengths[batch]), 0), longest)
    return rows


class ListsKernel:
    """Lists of blocks -> lists of tiles with kinds of units, or kinds of pairs of tiles."""

    def __init__(self, cfg: BlockListsConfig):
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        counts: tuple,
        entries: tuple,
        places: tuple,
        lengths: tuple,
        flags: tuple,
        sizes: tuple,
        results: tuple,
        stream,
    ):
        """Launch.

        counts, entries   int32, of partial and of full blocks, as Given has them
        places    first_blocks, first_entries (batch + 1,); lengths: queries, keys (batch,), int32
        flags     lists, packed, begins, limit_q, limit_k of Given
        sizes     queries and keys of a block, queries of a tile, of the longest sequence, its keys, hides
        results   tiles: counts and entries of partial tiles, of full ones, (batch, heads, tiles of queries) and (...,
                  tiles of keys), and kinds, uint8 (batch, heads, query blocks, 2 for each tile of keys)
                  kinds: uint8 (batch, heads, tiles of queries, tiles of keys)
        """
        batch, heads = Int32(results[0].shape[0]), Int32(results[0].shape[1])
        given, of = Given(counts, entries, *places, *lengths, *flags), sizes_of(sizes, heads)
        tiles = (sizes[3] + sizes[2] - 1) // sizes[2]
        self.kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(given, of, results).launch(
            grid=[tiles * heads * batch, 1, 1],
            block=[THREADS, 1, 1],
            smem=SMEM_BYTES,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, given: Given, sizes: Sizes, results: tuple):
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        rest, tile = divmod(block, sizes.tiles_q)
        batch, head = divmod(rest, sizes.heads)
        first, _ = divmod(tile * sizes.tile_q, sizes.q_block)
        last, _ = divmod(tile * sizes.tile_q + sizes.tile_q - 1, sizes.q_block)
        number = minimum(last, sizes.blocks_q - 1) - first + 1
        place = Place(batch, head, tile, first, number)
        base = cute.recast_ptr(cute.arch.get_dyn_smem(Int8, alignment=16), dtype=Uint32)
        marks = cute.make_layout((MOST_BLOCKS, WORDS), stride=(WORDS, 1))
        words = cute.make_tensor(base, marks)
        totals = cute.make_tensor(
            cute.recast_ptr(base + MOST_BLOCKS * WORDS, dtype=Int32),
            cute.make_layout((FULL, WARPS), stride=(WARPS, 1)),
        )
        numbers = Int32(0), Int32(0)
        for first_tile in cutlass.range(0, sizes.tiles_k, THREADS, unroll=1):
            self.mark(given, sizes, place, words, first_tile)
            key_tile = first_tile + thread
            kind = self.kind_of(sizes, place, words, key_tile, results)
            if cutlass.const_expr(self.cfg.makes == "kinds"):
                self.write_kind(given, sizes, place, results[0], key_tile, kind)
                cute.arch.barrier()  # before the marks of the next pass, as `listed` has
            else:
                numbers = self.listed(place, totals, key_tile, kind, numbers, results)
        if cutlass.const_expr(self.cfg.makes == "tiles"):
            if thread == 0:
                for i in cutlass.range_constexpr(2):
                    results[2 * i][place.batch, place.head, place.tile] = numbers[i]

    @cute.jit
    def mark(self, given: Given, sizes: Sizes, place: Place, words: cute.Tensor, first_tile: Int32):
        """The units of the listed blocks, in THREADS tiles of keys from the first one on."""
        thread, _, _ = cute.arch.thread_idx()
        if thread < WORDS:
            for row in cutlass.range(place.number, unroll=1):
                words[row, thread] = Uint32(0)
        cute.arch.barrier()
        # Warps share the query blocks: one block has all of them, three to sixteen have up to four each.
        shift = cutlass.select_(place.number == 1, Int32(2), Int32(0))
        shift = cutlass.select_(place.number == 2, Int32(1), shift)
        warp, warps = thread // WARP, Int32(1) << shift
        at = (warp & (warps - 1)) * WARP + thread % WARP
        partial_units = cutlass.select_(
            (sizes.hides & HIDES) != 0, Uint32(PARTIAL_UNITS), Uint32(FULL_UNITS)
        )
        for row in cutlass.range(warp >> shift, place.number, WARPS >> shift, unroll=1):
            partial, full = (
                self.list_of(given, sizes, place, (given.counts[i], given.entries[i]), row)
                for i in range(2)
            )
            fulls = cutlass.select_(given.lists == 2, full.count, Int32(0))
            # One loop over both lists, whose entries then come together.
            for n in cutlass.range(at, partial.count + fulls, warps * WARP, unroll=1):
                entry, units = Int32(0), Uint32(FULL_UNITS)
                if n < partial.count:
                    entry = Int32(given.entries[0][(*partial.at, partial.begin + n)])
                    units = Uint32(partial_units)
                else:
                    entry = Int32(given.entries[1][(*full.at, full.begin + n - partial.count)])
                if (entry >= 0) & (entry < sizes.blocks_k):
                    mark_block(words[row, None], sizes, entry, first_tile, units)
        cute.arch.barrier()

    @cute.jit
    def list_of(self, given: Given, sizes: Sizes, place: Place, lists: tuple, row: Int32):
        """Where the list of a query block is, and how many entries it has."""
        counts, entries = lists
        block = place.first + row
        batch, head = clipped(entries, 0, place.batch), clipped(entries, 1, place.head)
        of_counts = clipped(counts, 0, place.batch), clipped(counts, 1, place.head)
        in_counts, in_entries, begin = block, block, Int32(0)
        room = Int32(entries.shape[3])
        exists = (block < counts.shape[2]) & (block < entries.shape[2])
        if given.packed != 0:
            first = Int32(given.first_blocks[place.batch])
            keys = rows_of(given.keys, given.limit_k, place.batch, sizes.keys)
            each = (keys + sizes.kv_block - 1) // sizes.kv_block
            begin = first * each
            if given.begins != 0:
                begin = Int32(given.first_entries[place.batch])
            in_counts, in_entries = clipped(counts, 2, first + block), Int32(0)
            begin = clipped(entries, 3, begin + block * each)
            room = minimum(each, room - begin)
            exists = Int32(counts.shape[2]) > 0
        count = Int32(0)
        if exists:
            count = maximum(minimum(Int32(counts[(*of_counts, in_counts)]), room), 0)
        return OfRow(count, (batch, head, in_entries), begin)

    @cute.jit
    def kind_of(
        self, sizes: Sizes, place: Place, words: cute.Tensor, key_tile: Int32, results: tuple
    ) -> Int32:
        """Of a tile of keys, from the units of all query blocks, which are written. Units of no block do not count."""
        thread, _, _ = cute.arch.thread_idx()
        units = minimum(sizes.blocks_k * sizes.units - key_tile * UNITS_OF_TILE, UNITS_OF_TILE)
        full = Uint32(FULL_UNITS & 0xFFFF) & ((Uint32(1) << Uint32(2 * maximum(units, 0))) - 1)
        some, rest = Uint32(0), Uint32(0)
        for row in cutlass.range(place.number, unroll=1):
            found = (words[row, thread >> 1] >> Uint32((thread & 1) * 2 * UNITS_OF_TILE)) & 0xFFFF
            some, rest = some | found, rest | (full & ~found)
            if cutlass.const_expr(self.cfg.makes == "tiles"):
                if key_tile < sizes.tiles_k:
                    self.write_units(sizes, place, row, key_tile, found, results[4])
        is_full = (rest == 0) & (sizes.hides < ALL_PARTIAL)
        kind = cutlass.select_(is_full, Int32(FULL), Int32(PARTIAL))
        return cutlass.select_((some != 0) & (key_tile < sizes.tiles_k), kind, Int32(0))

    @cute.jit
    def write_kind(
        self, given: Given, sizes: Sizes, place: Place, kinds: cute.Tensor, key_tile: Int32, kind: Int32
    ):  # fmt: skip
        """Of a pair of tiles, which both sides of the sequence have."""
        queries = rows_of(given.queries, given.limit_q, place.batch, sizes.queries)
        keys = rows_of(given.keys, given.limit_k, place.batch, sizes.keys)
        exists = (place.tile * sizes.tile_q < queries) & (key_tile * TILE < keys)
        if key_tile < sizes.tiles_k:
            at = place.batch, place.head, place.tile, key_tile
            kinds[at] = Uint8(cutlass.select_(exists, kind, Int32(0)))

    @cute.jit
    def write_units(
        self, sizes: Sizes, place: Place, row: Int32, key_tile: Int32, found: Uint32, kinds: cute.Tensor
    ):  # fmt: skip
        """Of a query block that begins in the tile of queries. A unit that is in both lists is full."""
        block = place.first + row
        if (row > 0) | (block * sizes.q_block.divisor >= place.tile * sizes.tile_q):
            of_block = kinds[place.batch, place.head, block, None].iterator
            at = (of_block + key_tile * BYTES).align(BYTES)
            word = cute.make_tensor(cute.recast_ptr(at, dtype=Uint16), 1)
            word[0] = Uint16(found & ~((found & FULL_UNITS) >> 1))

    @cute.jit
    def listed(
        self, place: Place, totals: cute.Tensor, key_tile: Int32, kind: Int32, before: tuple, results: tuple
    ) -> tuple:  # fmt: skip
        """Write the tiles of each kind after those before them; -> how many there are now, of each."""
        thread, _, _ = cute.arch.thread_idx()
        warp = thread // WARP
        found = [Uint32(cute.arch.vote_ballot_sync(kind == k)) for k in (PARTIAL, FULL)]
        if thread % WARP == 0:
            for i in cutlass.range_constexpr(2):
                totals[i, warp] = Int32(cute.arch.popc(found[i]))
        cute.arch.barrier()
        numbers, below = [], cute.arch.lanemask_lt()
        for i in cutlass.range_constexpr(2):
            entries = results[2 * i + 1]
            at, every, tiles = before[i], before[i], Int32(entries.shape[3])
            for other in cutlass.range_constexpr(WARPS):
                of_warp = totals[i, other]
                at = at + cutlass.select_(other < warp, of_warp, Int32(0))
                every = every + of_warp
            at = at + Int32(cute.arch.popc(found[i] & below))
            if key_tile < tiles:
                # The others come last, so that every entry is a tile.
                to = cutlass.select_(kind == i + 1, at, tiles - 1 - (key_tile - at))
                entries[place.batch, place.head, place.tile, to] = key_tile
            numbers.append(every)
        return tuple(numbers)


@dataclass(frozen=True)
class OfRow:
    """The list of a query block: `count` entries from `begin` on, at a place of the tensor of entries."""

    count: Int32
    at: tuple
    begin: Int32


@cute.jit
def mark_block(row: cute.Tensor, sizes: Sizes, block: Int32, first_tile: Int32, units: Uint32):
    """Mark the units of a block of keys that are in the row, which begins with a tile of keys."""
    first = block * sizes.units - first_tile * UNITS_OF_TILE
    begin = maximum(first, 0)
    end = minimum(first + sizes.units, WORDS * UNITS_OF_WORD)
    for at in cutlass.range(begin >> WORD_BITS, (end + UNITS_OF_WORD - 1) >> WORD_BITS, unroll=1):
        low = maximum(begin - at * UNITS_OF_WORD, 0)
        high = minimum(end - at * UNITS_OF_WORD, UNITS_OF_WORD)
        marks = (units >> Uint32(2 * (UNITS_OF_WORD - (high - low)))) << Uint32(2 * low)
        cute.arch.red(row.iterator + at, marks, op="or", dtype="b32", sem="relaxed", scope="cta")
