"""What the host knows of an order of the products: its columns of tensor memory and the barriers it adds.

order         columns                        code
p_over_s      S0 P0 | S1 P1 | O0 | O1        p_over_s.py: P_i is stored over S_i
p_beside_s    S0 | P0 | S1 | P1 | O0 | O1    p_beside_s.py: the next S_i is made while P_i is read
p_crossed     S0 P1 | S1 P0 | O0 | O1        p_crossed.py: likewise, P_i in the columns of the other S

The code is apart because it needs the compiler, and configurations are asked without it.
"""

from dataclasses import dataclass, replace

from ..memory_maps import TmemMap
from ..sync.barriers import SOFTMAX, Barrier, commit_by, one_softmax
from ..tiles import Tiles
from ..warp_roles import WarpRoles


@dataclass(frozen=True)
class POverS:
    name: str = "p_over_s"

    def tmem(self, tiles: Tiles) -> TmemMap:
        s = tuple(i * tiles.BN for i in range(tiles.num_q))
        return _with_o(tiles, s, s, tiles.num_q * tiles.BN, p_apart=False)

    def barriers(self, warps: WarpRoles) -> tuple[Barrier, ...]:
        return ()


@dataclass(frozen=True)
class PBesideS:
    name: str = "p_beside_s"

    def tmem(self, tiles: Tiles) -> TmemMap:
        width = tiles.BN + tiles.p_columns
        s = tuple(i * width for i in range(tiles.num_q))
        p = tuple(column + tiles.BN for column in s)
        return _with_o(tiles, s, p, tiles.num_q * width, p_apart=True)

    def barriers(self, warps: WarpRoles) -> tuple[Barrier, ...]:
        return (
            Barrier(
                "s_free",
                SOFTMAX,
                (one_softmax(warps),),
                "mma",
                "S has been read, the next one may be made",
                "the next S is issued after this wait",
            ),
            Barrier(
                "pv_done",
                SOFTMAX,
                (commit_by("mma"),),
                "softmax, correction",
                "O is complete up to here and P has been read",
                "the next P V waits for p_ready, which both raise after this wait",
            ),
        )


@dataclass(frozen=True)
class PCrossed(PBesideS):
    name: str = "p_crossed"

    def tmem(self, tiles: Tiles) -> TmemMap:
        s = tuple(i * tiles.BN for i in range(tiles.num_q))
        return _with_o(tiles, s, s[::-1], tiles.num_q * tiles.BN, p_apart=False)

    def barriers(self, warps: WarpRoles) -> tuple[Barrier, ...]:
        s_free, pv_done = super().barriers(warps)
        return replace(s_free, awaited_by="mma, softmax"), pv_done


def _with_o(tiles: Tiles, s: tuple, p: tuple, first: int, p_apart: bool) -> TmemMap:
    """O_0, O_1 from column `first` on, behind everything else."""
    o = tuple(first + i * tiles.padded_ov_depth for i in range(tiles.num_q))
    return TmemMap(s, p, o, o[-1] + tiles.padded_ov_depth, p_apart)


ORDERS = {order.name: order for order in (POverS(), PBesideS(), PCrossed())}


def best_order(tiles: Tiles, lone_tiles: bool | None = None) -> str:
    """P beside S where tensor memory has room for it: softmax and the tensor core then wait less for each other.

    Crossed where it has not, and P of eight bits is few enough words to be held in registers until the warpgroups have
    taken turns (docs/decisions/0019); lone query tiles are not built for it.
    """
    if PBesideS().tmem(tiles).fits:
        return "p_beside_s"
    problem = tiles.problem
    lone = problem.clips_queries if lone_tiles is None else lone_tiles
    return "p_crossed" if problem.has_fp8 and not lone else "p_over_s"
