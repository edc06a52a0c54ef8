"""Schedule: how a family of kernels runs a problem. Each family has one frozen dataclass in its folder.

    family                    schedule
    two_tiles/schedule.py         TwoTiles: two query tiles of 128 rows a CTA
    two_tiles/pair/schedule.py       Pair: two CTAs share the MMAs of two query tiles of 256 rows
    few_rows/schedule.py       SwappedTile: a tile of 8 to 64 rows, keys and depth in the place of the 128 rows
    few_rows/dequantized/schedule.py      WidenedTile: such a tile of 16 bits over keys of 8, which are widened in
    the CTA
    two_tiles/dequantized/schedule.py    SlotTwoTiles: two query tiles of 16 bits over keys of 8, which are widened
    in their slots
    latent/schedule.py    LatentTile: such a tile over a latent cache, whose V is the first columns of K
    latent/pair/schedule.py      LatentPair: 128 rows over a latent cache, by two CTAs that share the MMAs
    latent/dequantized/schedule.py     LatentRows: 8 to 32 rows over a latent cache of 656 bytes a row, widened in
    the CTA
    latent/pair_dequantized/schedule.py LatentRowsPair: 128 rows over such a cache, by two CTAs, each of which widens
    its half
    one_tile/schedule.py         OneTile: one query tile of 128 rows, even and odd key tiles side by side
    wide/pair/schedule.py   WidePair: two CTAs share the MMAs of a query tile of 256 rows, wide heads
    wide/dequantized_rope/schedule.py       RopeTile: the same with rotary columns of K of 8 bits, which are widened
    in the CTA
    wide/schedule.py       WideTile: one query tile of 128 rows, head dims up to 512, of V 256 a launch

A schedule knows its own numbers, cuts a problem into tiles, and lays tiles out in tensor memory and shared memory;
nothing else spells one of these sizes. It is importable without the compiler.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from .barriers import BarrierTable
from .memory_maps import SmemMap, TmemMap
from .problem import Problem
from .tiles import Tiles


@runtime_checkable
class Schedule(Protocol):
    """What FA4Config and the kernels ask of a schedule."""

    family: ClassVar[
        str
    ]  # folder of sm100/ with its kernel, and the first part of the kernels' names

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
        """Numbers of the schedule that mean nothing; while there are any, no size is defined."""

    def refusals(self, problem: Problem) -> list[str]:
        """Why this family does not run the problem: every reason with value, limit and remedy."""
