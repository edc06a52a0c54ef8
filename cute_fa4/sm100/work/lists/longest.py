"""Counts of lists -> the work tiles of a launch, those with the longest lists first: a stable counting sort.

A work tile is a number: its query block within a head, then the head, then the sequence. Lengths that differ by less
than a quarter share a bin, and tiles of a bin keep the order of their numbers: CTAs that run together then mostly read
the keys of one head, and keys come from memory once for each bin.

    list lengths        3  40  5  41  3  9         of work tiles 0 to 5
    bins                3  17  5  17  3   8
    order               1   3  5   2  0  4

Packed queries: work tiles are numbered as if all sequences were as long as the longest one. Those without rows come
last, and the order ends before most of them: it has as many entries as the grid has CTAs, enough for all with rows.

A CTA sorts up to WINDOW tiles; a longer launch has several windows, one after another. Each warp has a stretch of its
window. It counts the tiles of each bin, a sum over bins and warps says where those of a warp begin, and then a ballot
for each bit of the bin gives every tile its place. No order of warps changes a place.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int8, Int32, Uint8, Uint32

from ....layouts.scalars import maximum, minimum
from ..line import sum_up_to
from .config import AHEAD, BIN_BITS, BINS, MOST, SUB_BITS, WINDOW, BlockListsConfig

WARP, WARPS = 32, 32
SORTING = WARP * WARPS  # threads
EACH = BINS * WARPS // SORTING  # numbers that a thread sums
SORTING_BYTES = 4 * (BINS * WARPS + WARPS) + WINDOW


@dataclass(frozen=True)
class Tiles:
    """Sizes of a launch: work tiles, windows, and divisors that the host makes of a number.

    blocks     divisor: work tiles of a head
    heads      divisor: heads of a sequence
    of_list    divisor: work tiles that share a list
    """

    number: Int32
    windows: Int32
    blocks: object
    heads: object
    of_list: object


@dataclass(frozen=True)
class Given:
    """The counts of a call. Padded: (batch or 1, heads or 1, query blocks), and first_blocks is not read."""

    counts: tuple
    first_blocks: cute.Tensor
    lists: Int32
    packed: Int32

    @cute.jit
    def places(self, tiles: Tiles, tile: Int32) -> tuple:
        """Where the counts of a work tile are, in both tensors: clipped, whatever the tensors hold."""
        rest, block = divmod(tile, tiles.blocks)
        batch, head = divmod(rest, tiles.heads)
        at, _ = divmod(block, tiles.of_list)
        if self.packed != 0:
            at = at + Int32(self.first_blocks[batch])
        return tuple(
            tuple(
                maximum(minimum(index, Int32(x.shape[dim]) - 1), 0)
                for dim, index in enumerate((batch, head, at))
            )
            for x in self.counts
        )

    @cute.jit
    def load(self, tiles: Tiles, at: Int32, end: Int32) -> cute.Tensor:
        """Counts of this lane's work tiles at, at + WARP, ... before `end`: (AHEAD, partial and full)."""
        found = cute.make_rmem_tensor((AHEAD, 2), Int32)
        for i in cutlass.range_constexpr(AHEAD):  # all loads first: they come together
            if at + i * WARP < end:
                tile = minimum(at + i * WARP + cute.arch.lane_idx(), end - 1)
                places = self.places(tiles, tile)
                for kind in cutlass.range_constexpr(2):
                    found[i, kind] = Int32(self.counts[kind][places[kind]])
        return found

    def length(self, found: cute.Tensor, i: int) -> Int32:
        """The length of the list of a work tile whose counts load() has found."""
        partial, full = (maximum(minimum(found[i, k], MOST), 0) for k in range(2))
        both = partial + cutlass.select_(self.lists == 2, full, Int32(0))
        return minimum(both, MOST)


@dataclass(frozen=True)
class Queries:
    """Packed queries: which work tiles have rows.

    offsets  (batch + 1,): where sequences begin; not read without rows
    rows     of a work tile; 0: queries are dense, and every work tile has some
    """

    offsets: cute.Tensor
    rows: Int32

    @cute.jit
    def load(self, tiles: Tiles, at: Int32, end: Int32) -> cute.Tensor:
        """As that of Given: rows of a work tile and of the sequence after it."""
        found = cute.make_rmem_tensor(AHEAD, Int32)
        for i in cutlass.range_constexpr(AHEAD):
            if at + i * WARP < end:
                tile = minimum(at + i * WARP + cute.arch.lane_idx(), end - 1)
                rest, block = divmod(tile, tiles.blocks)
                batch, _ = divmod(rest, tiles.heads)
                rows = Int32(self.offsets[batch + 1]) - Int32(self.offsets[batch])
                found[i] = rows - block * self.rows
        return found

    @staticmethod
    def counted(rows, length):
        """A length by which tiles without rows come last: an empty list with rows counts as one of one block."""
        return cutlass.select_(rows > 0, maximum(length, 1), Int32(0))


class LongestKernel:
    """Counts of lists -> the order of work tiles."""

    def __init__(self, cfg: BlockListsConfig):
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        counts: tuple,
        first_blocks: cute.Tensor,
        offsets: cute.Tensor,
        flags: tuple,
        sizes: tuple,
        order: cute.Tensor,
        stream,
    ):
        """Launch.

        counts        int32, of partial and of full blocks, (batch or 1, heads or 1, query blocks); packed: (1, heads
                      or 1, query blocks of all sequences). Any numbers: the kernel clips what it reads
        first_blocks  (batch + 1,) int32, where packed lists of a sequence begin; padded: not read
        offsets       (batch + 1,) int32, of packed queries
        flags         1 or 2 lists of a query block; whether lists are packed
        sizes         work tiles of a head, heads, work tiles that share a list; windows, all work tiles, and rows of
                      one (Queries). Of packed queries a window alone
        order         int32, of all work tiles, or the first ones: written
        """
        divisor = cute.fast_divmod_create_divisor_v2
        blocks, heads, of_list, windows, number, rows = sizes
        tiles = Tiles(number, windows, divisor(blocks), divisor(heads), divisor(of_list))
        self.kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        given = Given(counts, first_blocks, *flags)
        self.kernel(given, Queries(offsets, rows), tiles, order).launch(
            grid=[windows, 1, 1], block=[SORTING, 1, 1], smem=SORTING_BYTES, stream=stream
        )

    @cute.kernel
    def kernel(self, given: Given, queries: Queries, tiles: Tiles, order: cute.Tensor):
        # The attention kernel may set up; it waits for the end of this grid before it reads memory.
        cute.arch.griddepcontrol_launch_dependents()
        window, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        base = cute.recast_ptr(cute.arch.get_dyn_smem(Int8, alignment=16), dtype=Int32)
        places = cute.make_tensor(base, cute.make_layout(BINS * WARPS))
        sums = cute.make_tensor(base + BINS * WARPS, cute.make_layout(WARPS))
        bins = cute.make_tensor(
            cute.recast_ptr(base + BINS * WARPS + WARPS, dtype=Uint8), cute.make_layout(WINDOW)
        )
        # Neither product nor sum exceeds 32 bits: a window has WINDOW tiles at most.
        each, more = tiles.number // tiles.windows, tiles.number % tiles.windows
        first = window * each + minimum(window, more)
        number = each + cutlass.select_(window < more, Int32(1), Int32(0))
        for i in cutlass.range_constexpr(EACH):
            places[i * SORTING + thread] = Int32(0)
        cute.arch.barrier()
        of_warp = (number + (SORTING - 1)) // SORTING * WARP
        begin = thread // WARP * of_warp
        end = minimum(begin + of_warp, number)
        stretch = first, begin, end
        if queries.rows != 0:
            self.count((given, queries), tiles, stretch, places, bins)
        else:
            self.count((given, None), tiles, stretch, places, bins)
        cute.arch.barrier()
        self.add_up(places, sums)
        cute.arch.barrier()
        self.place(bins, places, (first, begin, end), order)

    @cute.jit
    def count(
        self, of_call: tuple, tiles: Tiles, stretch: tuple, places: cute.Tensor, bins: cute.Tensor
    ):
        """Bins of a warp's stretch, and how many tiles of it each has. The longest lists have the first bin.

        of_call: Given, and Queries or None
        """
        (given, queries), (first, begin, end) = of_call, stretch
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread // WARP, thread % WARP
        for at in cutlass.range(begin, end, WARP * AHEAD, unroll=1):
            found = given.load(tiles, first + at, first + end)
            if cutlass.const_expr(queries is not None):
                rows = queries.load(tiles, first + at, first + end)
            for i in cutlass.range_constexpr(AHEAD):
                tile = at + i * WARP + lane
                if tile < end:
                    length = given.length(found, i)
                    if cutlass.const_expr(queries is not None):
                        length = queries.counted(rows[i], length)
                    of_tile = (BINS - 1) - bin_of_length(length)
                    bins[tile] = Uint8(of_tile)
                    cute.arch.red(
                        places.iterator + (of_tile * WARPS + warp), Int32(1),
                        op="add", dtype="s32", sem="relaxed", scope="cta",
                    )  # fmt: skip

    @cute.jit
    def add_up(self, places: cute.Tensor, sums: cute.Tensor):
        """Numbers of tiles -> how many go before: all of longer bins, and those of the same bin in earlier warps."""
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread // WARP, thread % WARP
        own = cute.make_rmem_tensor(EACH, Int32)
        total = Int32(0)
        for i in cutlass.range_constexpr(EACH):
            own[i] = places[thread * EACH + i]
            total = total + own[i]
        until = sum_up_to(total)
        if lane == WARP - 1:
            sums[warp] = until
        cute.arch.barrier()
        before = cutlass.select_(lane < warp, sums[lane], Int32(0))
        before = cute.arch.warp_redux_sync(before, "add") + until - total
        for i in cutlass.range_constexpr(EACH):
            places[thread * EACH + i] = before
            before = before + own[i]

    @cute.jit
    def place(self, bins: cute.Tensor, places: cute.Tensor, stretch: tuple, order: cute.Tensor):
        """Write the tiles of a warp's stretch in the order of their bins."""
        first, begin, end = stretch
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread // WARP, thread % WARP
        for at in cutlass.range(begin, end, WARP, unroll=1):
            tile = at + lane
            of_tile = Int32(bins[minimum(tile, end - 1)])
            alike = Uint32(cute.arch.vote_ballot_sync(tile < end))
            for bit in cutlass.range_constexpr(BIN_BITS):
                has = (of_tile & (1 << bit)) != 0
                others = cutlass.select_(has, Uint32(0), Uint32(0xFFFFFFFF))
                alike = alike & (Uint32(cute.arch.vote_ballot_sync(has)) ^ others)
            if tile < end:
                slot = of_tile * WARPS + warp
                to = places[slot] + Int32(cute.arch.popc(alike & cute.arch.lanemask_lt()))
                if first + to < Int32(order.shape[0]):
                    order[first + to] = first + tile
            cute.arch.sync_warp()
            if tile < end:
                if (alike & cute.arch.lanemask_lt()) == 0:
                    slot = of_tile * WARPS + warp
                    places[slot] = places[slot] + Int32(cute.arch.popc(alike))
            cute.arch.sync_warp()


@cute.jit
def bin_of_length(length: Int32) -> Int32:
    """As bin_of of config.py."""
    octave = maximum((31 - SUB_BITS) - Int32(cute.arch.clz(Int32(length))), 0)
    return (octave << SUB_BITS) + (length >> octave)
