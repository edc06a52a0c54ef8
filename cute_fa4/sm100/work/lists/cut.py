"""Counts of lists -> the work tiles of a launch, the longest lists first and cut into parts (work/list_parts.py).

A list that is more than half longer than an equal share of all lists is cut into even parts of at most a share. Then
the parts and the other work tiles are sorted as in longest.py, by the bins of their lengths. One CTA:

    count     the length of each work tile, and the sum of all: the share
    cut       parts of each work tile, how many of each bin a warp has, and its slots
    add_up    where those of a warp begin
    place     entries of the order, and for each list that is cut its parts, for the merge kernel

Sizes of the results are upper bounds, whatever the counts are: n shares make fewer than n further work tiles (most_cut
and most_slots of config.py). Entries that are left over have work tile -1.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int8, Int32, Uint8, Uint32

from ....layouts.scalars import maximum, minimum, quotient
from ..line import sum_up_to
from .config import AHEAD, BIN_BITS, BINS, MOST_CUT_TILES
from .longest import SORTING, WARP, WARPS, Given, LongestKernel, Tiles, bin_of_length

CUT_BYTES = 4 * (BINS * WARPS + 3 * WARPS + 2 * MOST_CUT_TILES) + MOST_CUT_TILES
CUT = 1 << 16  # in a sum of slots: a list that is cut


class Shared:
    """Shared memory: Int32 tensors, and the bins.

    places    (BINS * WARPS,)  parts of a bin and a warp, then where those begin
    sums      (WARPS,)         of add_up
    lengths   (WARPS,)         sums of lengths of a warp's stretch
    slots     (WARPS,)         slots of a warp's stretch, plus CUT for each list that is cut
    length, parts, bins  (MOST_CUT_TILES,)  of each work tile
    """

    def __init__(self, base: cute.Pointer):
        words, bytes_ = cute.recast_ptr(base, dtype=Int32), 0
        for name, number in (
            ("places", BINS * WARPS),
            ("sums", WARPS),
            ("lengths", WARPS),
            ("slots", WARPS),
            ("length", MOST_CUT_TILES),
            ("parts", MOST_CUT_TILES),
        ):
            setattr(self, name, cute.make_tensor(words + bytes_ // 4, cute.make_layout(number)))
            bytes_ += 4 * number
        bins = cute.recast_ptr(words + bytes_ // 4, dtype=Uint8)
        self.bins = cute.make_tensor(bins, cute.make_layout(MOST_CUT_TILES))


class CutKernel(LongestKernel):
    """Counts of lists -> the order of work tiles and of parts, and the parts of each list that is cut."""

    @cute.jit
    def __call__(
        self,
        counts: tuple,
        first_blocks: cute.Tensor,
        flags: tuple,
        sizes: tuple,
        order: cute.Tensor,
        cut: cute.Tensor,
        stream,
    ):
        """Launch.

        counts, first_blocks, flags  as LongestKernel has them
        sizes   work tiles of a head, heads, work tiles that share a list; all work tiles, up to MOST_CUT_TILES; shares,
                and the least key blocks of a share
        order   int32 (work tiles + shares, 4): written, as work/list_parts.py has it
        cut     int32 (most_cut(shares), 3): written, work tile, slot of part 0 and parts of each list that is cut; then
                0 parts
        """
        divisor = cute.fast_divmod_create_divisor_v2
        blocks, heads, of_list, number, shares, least = sizes
        tiles = Tiles(number, Int32(1), divisor(blocks), divisor(heads), divisor(of_list))
        self.cut_kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.cut_kernel(
            Given(counts, first_blocks, *flags), tiles, (shares, least), order, cut
        ).launch(grid=[1, 1, 1], block=[SORTING, 1, 1], smem=CUT_BYTES, stream=stream)

    @cute.kernel
    def cut_kernel(
        self, given: Given, tiles: Tiles, shares: tuple, order: cute.Tensor, cut: cute.Tensor
    ):
        cute.arch.griddepcontrol_launch_dependents()  # as in longest.py
        thread, _, _ = cute.arch.thread_idx()
        shared = Shared(cute.arch.get_dyn_smem(Int8, alignment=16))
        for i in cutlass.range_constexpr(BINS * WARPS // SORTING):
            shared.places[i * SORTING + thread] = Int32(0)
        of_warp = (tiles.number + (SORTING - 1)) // SORTING * WARP
        begin = minimum(thread // WARP * of_warp, tiles.number)
        stretch = begin, minimum(begin + of_warp, tiles.number)
        self.measure(given, tiles, stretch, shared.length, shared.lengths)
        cute.arch.barrier()
        number, least = shares
        total = cute.arch.warp_redux_sync(shared.lengths[cute.arch.lane_idx()], "add")
        share = maximum(quotient(total + number - 1, number), least)
        self.cut(
            share, stretch, (shared.length, shared.parts, shared.bins), shared.places, shared.slots
        )
        cute.arch.barrier()
        self.add_up(shared.places, shared.sums)
        cute.arch.barrier()
        self.place_parts(
            stretch, (shared.parts, shared.bins), shared.places, shared.slots, order, cut
        )
        slots = cute.arch.warp_redux_sync(shared.slots[cute.arch.lane_idx()], "add")
        lists, slots = slots // CUT, slots % CUT
        for i in cutlass.range(tiles.number + slots - lists + thread, order.shape[0], SORTING):
            order[i, 0] = Int32(-1)
        for i in cutlass.range(lists + thread, cut.shape[0], SORTING):
            cut[i, 2] = Int32(0)

    @cute.jit
    def measure(
        self, given: Given, tiles: Tiles, stretch: tuple, length: cute.Tensor, lengths: cute.Tensor
    ):
        """Lengths of a warp's stretch, and their sum."""
        begin, end = stretch
        lane = cute.arch.lane_idx()
        thread, _, _ = cute.arch.thread_idx()
        total = Int32(0)
        for at in cutlass.range(begin, end, WARP * AHEAD, unroll=1):
            found = given.load(tiles, at, end)
            for i in cutlass.range_constexpr(AHEAD):
                tile = at + i * WARP + lane
                if tile < end:
                    of_tile = given.length(found, i)
                    length[tile] = of_tile
                    total = total + of_tile
        lengths[thread // WARP] = cute.arch.warp_redux_sync(total, "add")

    @cute.jit
    def cut(
        self,
        share: Int32,
        stretch: tuple,
        of_tiles: tuple,
        places: cute.Tensor,
        slots: cute.Tensor,
    ):
        """Parts and bins of a warp's stretch, how many of each bin, and slots."""
        length, parts, bins = of_tiles
        begin, end = stretch
        thread, _, _ = cute.arch.thread_idx()
        warp = thread // WARP
        taken = Int32(0)
        for tile in cutlass.range(begin + cute.arch.lane_idx(), end, WARP, unroll=1):
            keys, number = length[tile], Int32(1)
            if 2 * keys > 3 * share:
                number = quotient(keys + share - 1, share)
                taken = taken + number + CUT
            of_part = quotient(keys + number - 1, number)
            of_tile = (BINS - 1) - bin_of_length(of_part)
            parts[tile], bins[tile] = number, Uint8(of_tile)
            cute.arch.red(
                places.iterator + (of_tile * WARPS + warp), number,
                op="add", dtype="s32", sem="relaxed", scope="cta",
            )  # fmt: skip
        slots[warp] = cute.arch.warp_redux_sync(taken, "add")

    @cute.jit
    def place_parts(
        self,
        stretch: tuple,
        of_tiles: tuple,
        places: cute.Tensor,
        slots: cute.Tensor,
        order: cute.Tensor,
        cut: cute.Tensor,
    ):
        """Write the parts of a warp's stretch in the order of their bins, and those of lists that are cut."""
        parts, bins = of_tiles
        begin, end = stretch
        thread, _, _ = cute.arch.thread_idx()
        warp, lane = thread // WARP, cute.arch.lane_idx()
        earlier = cutlass.select_(lane < warp, slots[lane], Int32(0))
        taken = cute.arch.warp_redux_sync(earlier, "add")
        for at in cutlass.range(begin, end, WARP, unroll=1):
            tile = at + lane
            number, of_tile = Int32(0), Int32(bins[minimum(tile, end - 1)])
            if tile < end:
                number = parts[tile]
            own = cutlass.select_(number > 1, number + CUT, Int32(0))
            until = sum_up_to(own)
            mine = taken + until - own
            taken = taken + cute.arch.warp_redux_sync(own, "add")
            alike = Uint32(cute.arch.vote_ballot_sync(tile < end))
            for bit in cutlass.range_constexpr(BIN_BITS):
                has = (of_tile & (1 << bit)) != 0
                others = cutlass.select_(has, Uint32(0), Uint32(0xFFFFFFFF))
                alike = alike & (Uint32(cute.arch.vote_ballot_sync(has)) ^ others)
            before = Int32(cute.arch.popc(alike & cute.arch.lanemask_lt()))
            if cute.arch.vote_any_sync(
                number > 1
            ):  # then lanes count for as many parts as they have
                before = Int32(0)
                for other in cutlass.range(WARP, unroll=4):
                    of_other = cute.arch.shuffle_sync(number, other)
                    counts = ((alike >> Uint32(other)) & Uint32(1)) != 0
                    before = before + cutlass.select_(counts & (other < lane), of_other, Int32(0))
            slot = of_tile * WARPS + warp
            to = places[slot] + before
            cute.arch.sync_warp()
            if tile < end:
                cute.arch.red(
                    places.iterator + slot,
                    number,
                    op="add",
                    dtype="s32",
                    sem="relaxed",
                    scope="cta",
                )
            cute.arch.sync_warp()
            first = mine % CUT
            for part in cutlass.range(number, unroll=1):
                order[to + part, 0] = tile
                order[to + part, 1] = part
                order[to + part, 2] = number
                order[to + part, 3] = first
            if number > 1:
                of_list = mine // CUT
                cut[of_list, 0] = tile
                cut[of_list, 1] = first
                cut[of_list, 2] = number
