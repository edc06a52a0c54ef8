"""WidePair: two CTAs of a cluster share every MMA of a wide head; each has a query tile of 128 rows.

    FA4Config(qk_depth=256, schedule=WidePair())    bf16

    block of 256 rows     CTA 0, which issues the MMAs          CTA 1
    query tile, M = 256   rows 0..127                           rows 128..255
    S = Q K^T             keys 0..63 of a unit of K             keys 64..127
    O += P V              columns 0..63 of a unit of V          columns 64..127
    tensor memory         S0 S1 and O of its own rows, as in WideTile

A unit is 128 columns of K or V, 16 KiB in the memory of each CTA. A CTA loads half of the bytes that it would load
alone, 64 KiB per key tile at depth 256 (loads limit WideTile), and its ring holds twice as many tiles.
"""

from dataclasses import dataclass, fields
from typing import ClassVar

from ...blueprint.problem import Problem
from ..schedule import WideTile
from ..tiles import WideTiles
from . import barriers


@dataclass(frozen=True)
class WidePair(WideTile):
    """The schedule of SM100MHAWidePair; its choices are those of WideTile."""

    family: ClassVar[str] = "mhawidepair"
    ctas: ClassVar[int] = 2  # that share an MMA
    barrier_table: ClassVar = staticmethod(barriers.table)

    @property
    def alone(self) -> WideTile:
        """The same choices, for CTAs that do not share an MMA."""
        return WideTile(**{f.name: getattr(self, f.name) for f in fields(WideTile)})

    def tiles(self, problem: Problem) -> WideTiles:
        return WideTiles.of(problem, cta_group=self.ctas)

    def refusals(self, problem: Problem) -> list[str]:
        why = super().refusals(problem)
        if problem.split_keys:
            why.append(
                "split_keys=True is not supported for pairs of CTAs, which are for many queries: use WideTile()"
            )
        return why
