"""Schedule: how a family of kernels runs a problem. Each family has one frozen dataclass in its folder.

    folder                    schedule
    two_tiles                 TwoTiles: two query tiles of 128 rows per CTA
    two_tiles/pair            Pair: two CTAs share the MMAs of two query tiles of 256 rows
    two_tiles/block_scaled    BlockScaled: two query tiles, q and k with block scales (MXFP8)
    two_tiles/dequantized     SlotTwoTiles: two query tiles of 16 bits, 8-bit keys dequantized in their slots
    one_tile                  OneTile: one query tile of 128 rows, even and odd key tiles side by side
    few_rows                  SwappedTile: 8 to 64 rows; keys and depth take the place of the 128 rows
    few_rows/dequantized      DequantizedTile: the same of 16 bits, 8-bit keys dequantized in the CTA
    wide                      WideTile: one query tile of 128 rows, head dims up to 512, of V 256 per launch
    wide/pair                 WidePair: two CTAs share the MMAs of a query tile of 256 rows, wide heads
    wide/dequantized          SlotWideTile: as WideTile, 8-bit keys under 16-bit queries, dequantized in their slots
    wide/dequantized_rope     RopeTile: as WideTile, 8-bit RoPE columns of K dequantized in the CTA
    latent                    LatentTile: a few-row tile over a latent cache, whose V is the first columns of K
    latent/pair               LatentPair: 128 rows over a latent cache, two CTAs share the MMAs
    latent/dequantized        LatentRows: 8 to 32 rows over a latent cache of 656 bytes per row
    latent/pair_dequantized   LatentRowsPair: 128 rows over such a cache, two CTAs each dequantize half

A schedule knows its own numbers, cuts a problem into tiles, and lays tiles out in tensor memory and shared memory;
no other code repeats one of these sizes. It is importable without the compiler.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from .barriers import BarrierTable
from .memory_maps import SmemMap, TmemMap
from .problem import Problem
from .tiles import Tiles


@runtime_checkable
class Schedule(Protocol):
    """The interface of a schedule for FA4Config and the kernels."""

    family: ClassVar[str]  # the first part of the kernels' names

    def resolved(self, problem: Problem) -> Schedule:
        """The schedule with every choice made that was left open (None), so that equal kernels have equal keys."""

    def tiles(self, problem: Problem) -> Tiles:
        """Rows and keys of a tile."""

    def tmem(self, problem: Problem) -> TmemMap:
        """Columns of tensor memory."""

    def barriers(self, problem: Problem) -> BarrierTable:
        """Every mbarrier; its number of ring slots is that of the kernel."""

    def smem(self, problem: Problem) -> SmemMap:
        """Bytes of shared memory; their sum is the launch size."""

    def contradictions(self, problem: Problem) -> list[str]:
        """Meaningless values of the schedule; while there are any, no size is defined."""

    def refusals(self, problem: Problem) -> list[str]:
        """Why this family does not run the problem: every reason with value, limit and remedy."""
