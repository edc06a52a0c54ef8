"""State of the MMA warp from key tile to key tile where warpgroups take turns in leading (hooks.py)."""

from dataclasses import dataclass, replace

import cutlass
from cutlass import Int32, select_

from ...work.kv_range import TileRange


@dataclass(frozen=True)
class Turn:
    """Which warpgroup leads, that is, has query tile 1, and parities of barriers of S and P.

    phase, phase_of_other   of the leader's next key tile and of the other's
    accumulate              whether the pending product of the other one adds to its O
    leader_accumulates      whether that of the leader does, where it has one (beside.py)

    Between work tiles the leader is the warpgroup that goes first, with either query tile.
    """

    leader: Int32
    phase: Int32
    phase_of_other: Int32
    accumulate: cutlass.Boolean
    leader_accumulates: cutlass.Boolean

    @staticmethod
    def first(phase: int) -> "Turn":
        nothing = cutlass.Boolean(False)
        return Turn(Int32(0), Int32(phase), Int32(phase), nothing, nothing)


def begun(turn: Turn, tiles: TileRange) -> Turn:
    """At the start of a work tile: where query tile 0 goes first, the other warpgroup leads."""
    return turn if tiles.late is None else changed(turn, tiles.late > 0)


def ended(turn: Turn, tiles: TileRange) -> Turn:
    """After a work tile: where query tile 1 went last, the other warpgroup goes first."""
    return changed(turn, tiles.early > 0)


def changed(turn: Turn, change: cutlass.Boolean) -> Turn:
    return Turn(
        select_(change, 1 - turn.leader, turn.leader),
        select_(change, turn.phase_of_other, turn.phase),
        select_(change, turn.phase, turn.phase_of_other),
        turn.accumulate,
        turn.leader_accumulates,
    )


def of_query_tile(turn: Turn, q_tile: int) -> tuple:
    """(the warpgroup of a query tile, its parity, that of the other one)."""
    if q_tile:
        return turn.leader, turn.phase, turn.phase_of_other
    return 1 - turn.leader, turn.phase_of_other, turn.phase


def with_own_phase(turn: Turn, q_tile: int, phase: Int32, accumulate: cutlass.Boolean) -> Turn:
    """With the parity of the warpgroup of a query tile, whose product is pending."""
    if q_tile:
        return replace(turn, phase=phase, accumulate=accumulate)
    return replace(turn, phase_of_other=phase, accumulate=accumulate)


def leader_accumulates(cfg, turn: Turn) -> cutlass.Boolean:
    """Whether the pending product of the leader adds to its O: where query tiles begin together, as for the other."""
    return turn.leader_accumulates if cfg.begins_late else turn.accumulate


def by_warpgroup(turn: Turn) -> Int32:
    """Bit i: the parity of warpgroup i."""
    return (turn.phase << turn.leader) | (turn.phase_of_other << (1 - turn.leader))


def from_warpgroups(turn: Turn, phases: Int32) -> Turn:
    """The inverse of by_warpgroup."""
    return Turn(
        turn.leader,
        (phases >> turn.leader) & 1,
        (phases >> (1 - turn.leader)) & 1,
        turn.accumulate,
        turn.leader_accumulates,
    )
