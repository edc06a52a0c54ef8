"""What the MMA warp keeps from key tile to key tile where warpgroups take turns in leading (hooks.py)."""

from dataclasses import dataclass

import cutlass
from cutlass import Int32, select_

from ...work.kv_range import TileRange


@dataclass(frozen=True)
class Turn:
    """Which warpgroup leads, whose query tile is 1, and parities of barriers of S and P.

    phase, phase_of_other   of the leader's next key tile and of the other's
    accumulate              whether the pending product adds to its O
    """

    leader: Int32
    phase: Int32
    phase_of_other: Int32
    accumulate: cutlass.Boolean

    @staticmethod
    def first(phase: int) -> "Turn":
        return Turn(Int32(0), Int32(phase), Int32(phase), cutlass.Boolean(False))


def changed(turn: Turn, tiles: TileRange) -> Turn:
    """Behind a work tile that left out key tiles the other one leads."""
    change = tiles.early > 0
    return Turn(
        select_(change, 1 - turn.leader, turn.leader),
        select_(change, turn.phase_of_other, turn.phase),
        select_(change, turn.phase, turn.phase_of_other),
        turn.accumulate,
    )


def by_warpgroup(turn: Turn) -> Int32:
    """Bit i: the parity of warpgroup i."""
    return (turn.phase << turn.leader) | (turn.phase_of_other << (1 - turn.leader))


def from_warpgroups(turn: Turn, phases: Int32) -> Turn:
    """The other way round."""
    return Turn(
        turn.leader,
        (phases >> turn.leader) & 1,
        (phases >> (1 - turn.leader)) & 1,
        turn.accumulate,
    )
