"""Kinds of pairs of tiles -> the lists of one owner of the backward pass (backward/listed.py): a warp for each list.

    kinds       (batch, heads, lists, turns, tiles), any strides: turns are the heads of a group, or one
    list        full pairs, then partial ones, each by turn and tile

The warp counts its full pairs first, so that it knows where partial ones begin; then a ballot gives each its place.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32

from ...blueprint.listed import FULL, PARTIAL, TILE_BITS
from .config import AHEAD, THREADS, WARPS, BlockListsConfig

WARP = 32


class OrderKernel:
    """Kinds of pairs of tiles -> counts and entries of lists."""

    def __init__(self, cfg: BlockListsConfig):
        self.cfg = cfg

    @cute.jit
    def __call__(self, kinds: cute.Tensor, counts: cute.Tensor, entries: cute.Tensor, stream):
        """Launch. kinds: int8; counts: int32 (batch, heads, lists); entries: int32 (batch, heads, lists, kinds)."""
        batch, heads, lists = (Int32(kinds.shape[i]) for i in range(3))
        self.kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(kinds, counts, entries).launch(
            grid=[(batch * heads * lists + (WARPS - 1)) // WARPS, 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, kinds: cute.Tensor, counts: cute.Tensor, entries: cute.Tensor):
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        batch, heads, lists = (Int32(kinds.shape[i]) for i in range(3))
        number = block * WARPS + thread // WARP
        if number < batch * heads * lists:
            rest, own = number // lists, number % lists
            place = rest // heads, rest % heads, own
            of_list = kinds[(*place, None, None)]
            fulls = self.number_of_full(of_list)
            every = self.write(of_list, fulls, entries[(*place, None)])
            if thread % WARP == 0:
                counts[place] = every

    @cute.jit
    def held(self, of_list: cute.Tensor, first: Int32) -> cute.Tensor:
        """The kinds of this lane: every 32nd from the first one on. Of the place after the last one it is 0."""
        turns, tiles = Int32(of_list.shape[0]), Int32(of_list.shape[1])
        found = cute.make_rmem_tensor(AHEAD, Int32)
        for i in cutlass.range_constexpr(AHEAD):
            at = first + i * WARP + cute.arch.lane_idx()
            found[i] = Int32(0)
            if at < turns * tiles:
                found[i] = Int32(of_list[at // tiles, at % tiles])
        return found

    @cute.jit
    def number_of_full(self, of_list: cute.Tensor) -> Int32:
        number = Int32(of_list.shape[0]) * Int32(of_list.shape[1])
        fulls = Int32(0)
        for first in cutlass.range(0, number, WARP * AHEAD, unroll=1):
            found = self.held(of_list, first)
            for i in cutlass.range_constexpr(AHEAD):
                fulls += Int32(cute.arch.popc(cute.arch.vote_ballot_sync(found[i] == FULL)))
        return fulls

    @cute.jit
    def write(self, of_list: cute.Tensor, fulls: Int32, entries: cute.Tensor) -> Int32:
        """The entries; -> how many there are. fulls: how many of them are full."""
        number, tiles = Int32(of_list.shape[0]) * Int32(of_list.shape[1]), Int32(of_list.shape[1])
        full_at, partial_at = Int32(0), fulls
        for first in cutlass.range(0, number, WARP * AHEAD, unroll=1):
            found = self.held(of_list, first)
            for i in cutlass.range_constexpr(AHEAD):
                at = first + i * WARP + cute.arch.lane_idx()
                is_full, is_partial = found[i] == FULL, found[i] == PARTIAL
                fulls_here = Uint32(cute.arch.vote_ballot_sync(is_full))
                partials_here = Uint32(cute.arch.vote_ballot_sync(is_partial))
                if at < number:
                    below = cute.arch.lanemask_lt()
                    full_to = full_at + Int32(cute.arch.popc(fulls_here & below))
                    to = partial_at + Int32(cute.arch.popc(partials_here & below))
                    # The others come last, so that every entry is a pair.
                    to = cutlass.select_(is_partial, to, number - 1 - (at + fulls - full_to - to))
                    to = cutlass.select_(is_full, full_to, to)
                    entry = (at // tiles << (1 + TILE_BITS)) | (at % tiles << 1)
                    entries[to] = entry | cutlass.select_(is_full, Int32(1), Int32(0))
                full_at += Int32(cute.arch.popc(fulls_here))
                partial_at += Int32(cute.arch.popc(partials_here))
        return partial_at
