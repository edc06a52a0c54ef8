"""The small problems whose emulator runs tell the model the order of events in a CTA.

A CTA's work is its number of key tiles, how many of them are masked, and, in a persistent kernel,
how many work tiles follow each other. Cycles are modelled for small numbers and continued linearly:
the steady state repeats itself.

    query rows   those of one cluster (256 or 512): one work tile
    keys         128 x tiles; a causal mask aligned bottom-right leaves the last query rows n tiles
    heads        work tiles of a persistent kernel
"""

from __future__ import annotations

from dataclasses import dataclass

KEYS_A_TILE = 128
ROWS_A_CTA = 256


# Key tiles for which a CTA is simulated. Between them cycles are interpolated, beyond the last they
# grow by the steady state's cycles a tile, which is the difference of the last two.
TILES = (1, 2, 3, 4, 6, 8, 16)
# A persistent kernel's work tiles overlap: what each adds comes from a CTA that does several.
PERSISTENT_TILES = (4, 8)
PERSISTENT_WORK_TILES = 3


@dataclass(frozen=True)
class Workload:
    """One emulated launch: the shape of q, and of k and v.

    tiles: key tiles of a work tile. work_tiles: how many work tiles the recorded cluster walks.
    """

    head_dim: int
    causal: bool
    heads_q: int
    heads_kv: int
    seqlen_q: int
    tiles: int
    work_tiles: int = 1

    @property
    def seqlen_k(self) -> int:
        return self.tiles * KEYS_A_TILE


def workloads_of(
    head_dim: int, causal: bool, group: int, *, packed: bool, pair: bool, persistent: bool
) -> list[Workload]:
    """What to emulate for a kernel.

    group       query heads a key head
    packed      the query heads of a group lie in one tile, as rows
    pair        two CTAs work on one tile of twice the rows
    persistent  a CTA walks over work tiles
    """
    rows = ROWS_A_CTA * (2 if pair else 1)

    def workload(tiles, work_tiles=1):
        queries = rows // group if packed else rows
        return Workload(
            head_dim, causal, group * work_tiles, work_tiles, queries, tiles, work_tiles
        )

    several = [workload(tiles, PERSISTENT_WORK_TILES) for tiles in PERSISTENT_TILES]
    return [workload(tiles) for tiles in TILES] + (several if persistent else [])
