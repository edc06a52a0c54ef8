"""Memory accesses that a warp executed on the emulator, and that its path through the machine code lacks.

Events lead a walk (align.py). Of two ways through a branch without an event the walk takes the shorter one, so a load
under `if the key exists:` would cost nothing. The recorder counts every access, event or not (Trace.executed), and the
path must have as many of the same kind:

    counted      loads and stores of global, shared and tensor memory, atomics, cp.async, ldmatrix
    more is well a path has each instruction that its guard turns off, and both halves of an access that ptxas splits
    few are well ptxas reads once what a block reads twice, and moves what a loop does not change out of it

FEW says how many may be missing of a warp. Arithmetic in a branch has no such count: of a branch with an access all
instructions are on the path, of another one the shorter way is taken, as for slow paths (denormals).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cute_fa4.emulator.model.align import Path, token
from cute_fa4.emulator.model.trace import Trace

KINDS = {
    "gload": "loads of global memory",
    "gstore": "stores to global memory",
    "sload": "loads of shared memory",
    "sstore": "stores to shared memory",
    "atomic": "atomic operations",
    "async_copy": "cp.async",
    "matrices": "ldmatrix",
    "ld": "loads of tensor memory",
    "st": "stores to tensor memory",
}
FEW = 7
"""Below the turns of every loop over key tiles in its longest trace, which are eight. ptxas leaves out one or two
accesses of a work tile, as the second of two reads of an address, and a trace has up to three work tiles with keys."""


@dataclass(frozen=True)
class Lack:
    """Accesses of a kind that the path of a warp lacks. lines: PTX lines of the kind, those executed most first."""

    warp: tuple[int, int]
    kind: str
    executed: int
    on_path: int
    lines: tuple[int, ...]

    @property
    def missing(self) -> int:
        return self.executed - self.on_path

    def text(self, ptx: str) -> str:
        """In words, with the PTX of the line that was executed most."""
        line = self.lines[0]
        return (
            f"warp {self.warp}: {self.executed} {KINDS[self.kind]} were executed, {self.on_path} are on its path; "
            f"PTX line {line}: {ptx.splitlines()[line - 1].strip()}"
        )


def lacks(
    traces: Sequence[Trace], found: Sequence[dict[tuple[int, int], Path]], few: int = FEW
) -> list[Lack]:
    """Accesses that the paths of traces lack, of each kind the warp with the most: more than `few`."""
    worst: dict[str, Lack] = {}
    for trace, paths in zip(traces, found, strict=True):
        for warp, path in paths.items():
            on_path = Counter(token(step.instruction) for step in path)
            for kind, lines in _executed(trace, warp).items():
                lack = Lack(
                    warp,
                    kind,
                    lines.total(),
                    on_path[kind],
                    tuple(line for line, _ in lines.most_common()),
                )
                if lack.missing > (worst[kind].missing if kind in worst else few):
                    worst[kind] = lack
    return [worst[kind] for kind in KINDS if kind in worst]


def _executed(trace: Trace, warp: tuple[int, int]) -> dict[str, Counter]:
    """Kind -> PTX line -> how often the warp executed it."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for (kind, line), times in trace.executed.get(warp, {}).items():
        if kind in KINDS:
            counts[kind][line] += times
    for event in trace.warps.get(warp, ()):
        if event.kind in ("ld", "st"):
            counts[event.kind][event.line] += 1
    return counts
