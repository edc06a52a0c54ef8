"""The loop in which a warp spends its time, and where its turns begin on the warp's path.

Chosen is the innermost loop that waits for others (an mbarrier, a bar.sync) and runs at least LEAST_TURNS times; where
none waits, the innermost with so many turns that takes the most time.
"""

from __future__ import annotations

from dataclasses import dataclass

from cute_fa4.emulator.model.align import Path
from cute_fa4.emulator.model.program import Function

LEAST_TURNS = 3
_WAITS = {"wait", "bar", "cluster_bar", "wgwait"}


@dataclass(frozen=True)
class Turns:
    """A loop on a path. starts: numbers of the steps with which its turns begin; line: PTX line of its first event."""

    header: int
    starts: tuple[int, ...]
    line: int | None
    waits: bool

    @property
    def steady(self) -> tuple[int, int, int]:
        """(first step, step after the last, turns) without the first quarter of the turns, which fill the pipeline."""
        first = len(self.starts) // 4
        return self.starts[first], self.starts[-1], len(self.starts) - 1 - first


def main_loop(function: Function, path: Path, times: list[float]) -> Turns | None:
    """The loop that counts; None where no loop has enough turns. times: cycle of each step."""
    blocks = {block.instructions[0].address: block.index for block in function.blocks}
    entered = [blocks.get(step.instruction.address) for step in path]
    starts: dict[int, list[int]] = {}
    for number, block in enumerate(entered):
        if block is not None:
            starts.setdefault(block, []).append(number)
    candidates = []
    for loop in function.loops:
        turns = starts.get(loop.header, [])
        if loop.retries or len(turns) < LEAST_TURNS:
            continue
        inside = [step for step in path[turns[0] : turns[-1]] if step.event is not None]
        kinds = {step.event.kind for step in inside if step.event}
        line = inside[0].event.line if inside and inside[0].event else None
        found = Turns(loop.header, tuple(turns), line, bool(kinds & _WAITS))
        candidates.append((loop, found))
    waiting = [item for item in candidates if item[1].waits]
    chosen = waiting or candidates
    inner = [
        (loop, turns)
        for loop, turns in chosen
        if not any(other.blocks < loop.blocks for other, _ in chosen)
    ]
    return max(
        (turns for _, turns in inner),
        key=lambda turns: times[turns.starts[-1]] - times[turns.starts[0]],
        default=None,
    )
