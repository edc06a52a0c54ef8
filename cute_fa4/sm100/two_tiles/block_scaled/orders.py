"""Columns of tensor memory: S, P and O, and four columns for each 128 numbers of the scales of Q0, Q1 and K.

The order of the products is p_crossed of two_tiles/. O has 128 columns at every head dim of eight bits, so that S0
and S1 have 32 in common, as in p_crossed_summed (two_tiles/p_crossed.py).

    0        96    128              224              352              480 484 488 492
    | S0           |                | O0             | O1             | q0| q1| k |
    | P1     | S1                   |
                   | P0

Few columns suffice, at most 504 of 512, because one copy brings the scales of 128 rows and 128 numbers, and the next
copy of K's scales may overwrite them after the product that reads them: both go through one pipe
(instructions/block_scales.py).
"""

from dataclasses import dataclass, replace

from cute_fa4.layouts.block_scales import COLUMNS, words_of

from ...blueprint.memory_maps import TmemMap
from ...blueprint.tiles import Tiles
from ...blueprint.warp_roles import WarpRoles
from ..orders import PCrossed, s_apart

OF_K = 2  # place of K's scales, after those of Q0 and Q1
SHARED_COLUMNS = 32  # of S0 and S1: a batch of scores that softmax reads first


@dataclass(frozen=True)
class CrossedMeeting(PCrossed):
    """The two S share columns."""

    def tmem(self, tiles: Tiles) -> TmemMap:
        s = (0, tiles.BN - SHARED_COLUMNS)
        p = (tiles.BN, 0)  # columns that only S1 has, and that only S0 has
        o = tuple(s[1] + tiles.BN + i * tiles.padded_ov_depth for i in range(tiles.num_q))
        used = o[-1] + tiles.padded_ov_depth
        return _with_scales(TmemMap(s, p, o, used, p_apart=False, s_meet=True), tiles)

    def barriers(self, warps: WarpRoles) -> tuple:
        return (*super().barriers(warps), s_apart(warps))


def _with_scales(tmem: TmemMap, tiles: Tiles) -> TmemMap:
    """Place the scales after everything else."""
    columns = COLUMNS * words_of(tiles.problem.qk_depth)
    places = tuple(tmem.used + i * columns for i in range(OF_K + 1))
    return replace(tmem, scales=places, used=places[-1] + columns)
