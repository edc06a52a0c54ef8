"""The host's view of an order of the products: its columns of tensor memory and the barriers it adds.

order         columns                        code
p_over_s      S0 P0 | S1 P1 | O0 | O1        p_over_s.py: P_i is stored over S_i
p_beside_s    S0 | P0 | S1 | P1 | O0 | O1    p_beside_s.py: the next S_i is made while P_i is read
p_crossed     S0 P1 | S1 P0 | O0 | O1        p_crossed.py: likewise, P_i of 8 bits in the columns of the other S
p_crossed_summed                             the same with row sums L_i, which P V makes: S0 and S1 overlap
              P1 S0 S1 P0 | O0 L0 | O1 L1    (docs/decisions/0019)

The kernel code is in other files because it needs the compiler, and the host reads configurations without it.
"""

from dataclasses import dataclass, replace

from ..blueprint import tuning
from ..blueprint.bands import mask_fact
from ..blueprint.barriers import SOFTMAX, Barrier, commit_by, one_softmax
from ..blueprint.memory_maps import TmemMap
from ..blueprint.problem import Problem
from ..blueprint.tiles import Tiles
from ..blueprint.warp_roles import WarpRoles

SUM_COLUMNS = 16  # of ones: the step of N for an MMA of 128 rows (PTX ISA, "matrix shape")
SPAN_COLUMNS = 128  # of eight bits in a span of 128 bytes


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


@dataclass(frozen=True)
class PCrossedSummed(PCrossed):
    name: str = "p_crossed_summed"

    def tmem(self, tiles: Tiles) -> TmemMap:
        s = meeting_s(tiles)
        p = (tiles.BN, 0)  # columns that only S1 has, and that only S0 has
        return with_sums(tiles, s, p, s[1] + tiles.BN)

    def barriers(self, warps: WarpRoles) -> tuple[Barrier, ...]:
        return (*super().barriers(warps), s_apart(warps))


def meeting_s(tiles: Tiles) -> tuple[int, int]:
    """Columns of the two S, which overlap by as many columns as the sums need."""
    return 0, tiles.BN - tiles.num_q * SUM_COLUMNS


def with_sums(tiles: Tiles, s: tuple, p: tuple, first: int) -> TmemMap:
    """Each O, from column `first` on, followed by its row sum."""
    width = tiles.padded_ov_depth + SUM_COLUMNS
    o = tuple(first + i * width for i in range(tiles.num_q))
    sums = tuple(column + tiles.padded_ov_depth for column in o)
    return TmemMap(s, p, o, o[-1] + width, p_apart=False, sums=sums, s_meet=True)


def s_apart(warps: WarpRoles) -> Barrier:
    """The barrier of an order whose S0 and S1 have columns in common."""
    return Barrier(
        "s_apart",
        SOFTMAX,
        (one_softmax(warps),),
        "mma",
        "the columns of S that the other S has, too, have been read",
        "as s_free",
    )


def may_add_up(problem: Problem) -> bool:
    """Whether the product with V can also sum P, as a product with ones after V's last column.

    That column is the last of a span of shared memory, so the next span may lie elsewhere. A log-sum-exp needs the sum
    of P before rounding to eight bits, and token scales multiply P, but not its sum.
    """
    of_p = not (problem.write_lse or problem.token_scales or problem.skip_softmax)
    return problem.is_quantized and of_p and problem.qk_depth <= problem.ov_depth == SPAN_COLUMNS


def _with_o(tiles: Tiles, s: tuple, p: tuple, first: int, p_apart: bool) -> TmemMap:
    """O_0, O_1 from column `first` on, after everything else."""
    o = tuple(first + i * tiles.padded_ov_depth for i in range(tiles.num_q))
    return TmemMap(s, p, o, o[-1] + tiles.padded_ov_depth, p_apart)


ORDERS = {order.name: order for order in (POverS(), PBesideS(), PCrossed(), PCrossedSummed())}


def best_order(family: str, tiles: Tiles, lone_tiles: bool | None = None) -> str:
    """The first order of the tuning table's preference that the problem allows, without one that also sums P.

    P beside S needs room in tensor memory. Crossed needs P of eight bits, which takes few enough registers to be held
    until the warpgroups have taken turns (docs/decisions/0019), and does not support single-tile work tiles.
    """
    problem = tiles.problem
    single = problem.clips_queries if lone_tiles is None else lone_tiles
    allowed = {
        "p_over_s": True,
        "p_beside_s": PBesideS().tmem(tiles).fits,
        "p_crossed": problem.is_quantized and not (single or problem.skip_softmax),
    }
    return next(order for order in preference(family, problem) if allowed.get(order))


def preference(family: str, problem: Problem) -> list[str]:
    """All orders, the preferred one first."""
    facts = {"arch": problem.arch, "head_dim": problem.qk_depth, "mask": mask_fact(problem.mask)}
    return tuning.choose("order", family=family, eight_bits=problem.is_quantized, **facts)
