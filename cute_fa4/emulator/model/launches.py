"""The launches of a program, recorded for the model: of each kernel its longest launch, one cluster of it.

    with recorded() as launches:
        my_function(x, y)
    launches["gemm"].trace           what the warps of cluster 0 did; .ptx, .roles, .barriers, .grid ...

Kernels are decoded anew inside, because the recorder stands between instructions and their meanings (trace.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest import mock

from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.instructions import instruction_table
from cute_fa4.emulator.machine.observer import Observer, observing
from cute_fa4.emulator.model import trace
from cute_fa4.emulator.ptx.syntax import RESERVED_SHARED_BYTES, Label, place, source_text
from cute_fa4.emulator.run.program import Program


@dataclass
class Launch:
    """One launch of a kernel.

    name      of the .entry           ptx  the text that was executed       times  launches of this kernel, all of them
    trace     of the recorded cluster
    roles     (CTA rank, warp) -> role, where it has a name
    barriers  (CTA rank, shared offset) -> name of the mbarrier
    lines     PTX line -> (its text, (file, line) of the source or None)
    """

    name: str
    ptx: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    trace: trace.Trace
    lines: dict[int, tuple[str, tuple | None]]
    roles: dict[tuple[int, int], str] = field(default_factory=dict)
    barriers: dict[tuple[int, int], str] = field(default_factory=dict)
    times: int = 1

    @property
    def events(self) -> int:
        """How many events its trace has."""
        return sum(map(len, self.trace.warps.values()))

    def source(self, line: int) -> str:
        """Where a PTX line comes from, for tables: "kernel.py:88", or "PTX line 12"."""
        _, source = self.lines.get(line, ("", None))
        return place(source) if source else f"PTX line {line}"

    def text(self, line: int) -> str:
        """The source line of a PTX line, or the PTX itself."""
        ptx, source = self.lines.get(line, ("", None))
        return source_text(source) or ptx


def anchors(instructions, labels: dict) -> frozenset[str]:
    """Kinds of trace.EXTRA that must be recorded, so that every loop of a kernel has an event.

    A loop is what lies between a branch upward and its target. A kernel without MMAs has few events: its accesses of
    shared memory are recorded, too.
    """
    kinds = [trace.kind_of(ins.opcode) for ins in instructions]
    chosen = set(trace.ALWAYS) | ({"sload", "sstore"} if "mma" not in kinds else set())
    loops = []
    for end, ins in enumerate(instructions):
        target = ins.operands[0] if ins.opcode in ("bra", "bra.uni") else None
        if isinstance(target, Label) and labels.get(target.target, end + 1) <= end:
            loops.append((labels[target.target], end))
    for begin, end in sorted(loops, key=lambda loop: loop[1] - loop[0]):
        inside = {kind for kind in kinds[begin:end] if kind}
        if any(kind not in trace.EXTRA or kind in chosen for kind in inside):
            continue
        chosen |= set(next(([kind] for kind in trace.EXTRA if kind in inside), []))
    return frozenset(chosen)


class _Launches(Observer):
    """Gives each launch its own trace, and keeps names."""

    def __init__(self, recorder: trace.Recorder, cluster: int):
        self.recorder, self.cluster = recorder, cluster
        self.found: dict[str, Launch] = {}
        self.now: Launch | None = None

    def launch(self, machine, program):
        self.recorder.extra = program.anchors
        self.recorder.number = self.cluster
        self.recorder.trace = trace.Trace(defaultdict(list), {})
        lines = {ins.line: (ins.text, ins.role_source or ins.source)
                 for ins in program.kernel.instructions}  # fmt: skip
        self.now = Launch(
            program.kernel.name,
            program.text,
            tuple(machine.grid),
            tuple(machine.block),
            (1, 1, 1),
            program.kernel.dynamic_shared_offset
            - RESERVED_SHARED_BYTES
            + machine.dynamic_shared_bytes,
            self.recorder.trace,
            lines,
        )

    def instruction(self, warp, ins):
        if self.now is not None and warp.cta.cluster.id[0] == self.cluster:
            self.now.roles.setdefault((warp.cta.rank, warp.index), warp.role)
            self.recorder.trace.warps[warp.cta.rank, warp.index]  # also warps without an event

    def arrive(self, barrier, count, issuer):
        self._named(barrier)

    def bytes(self, barrier, nbytes, issuer):
        self._named(barrier)

    def _named(self, barrier):
        if self.now is not None and barrier.cta is not None:
            self.now.barriers.setdefault((barrier.cta.rank, barrier.offset), barrier.name)

    def finished(self, program, executions):
        launch, self.now, self.recorder.trace = self.now, None, None
        if launch is None:
            return
        known = self.found.get(launch.name)
        launch.trace = launch.trace.finished()
        ranks = max((rank for rank, _ in launch.trace.warps), default=0) + 1
        launch.cluster = (ranks, 1, 1)
        launch.times += 0 if known is None else known.times
        if known is None or launch.events > known.events:
            self.found[launch.name] = launch
        else:
            known.times = launch.times


@contextmanager
def recorded(cluster: int = 0) -> Iterator[dict[str, Launch]]:
    """Context in which launches are recorded; yields kernel name -> its longest Launch, filled as they end."""
    decode, is_lanes = Program._decode, instruction_table.is_lanes
    extra: list[frozenset[str]] = [frozenset()]

    def decode_with_anchors(program):
        kernel = program.kernel
        program.anchors = extra[0] = anchors(kernel.instructions, kernel.labels)
        try:
            decode(program)
        finally:
            extra[0] = frozenset()

    def is_lanes_here(opcode):
        return trace.kind_of(opcode) not in extra[0] and is_lanes(opcode)

    with ExitStack() as stack:
        recorder = stack.enter_context(trace.installed())
        stack.enter_context(mock.patch.object(driver_api, "_programs", {}))
        stack.enter_context(mock.patch.object(Program, "_decode", decode_with_anchors))
        stack.enter_context(mock.patch.object(instruction_table, "is_lanes", is_lanes_here))
        launches = _Launches(recorder, cluster)
        stack.enter_context(observing(launches))
        try:
            yield launches.found
        finally:
            recorder.trace = None
