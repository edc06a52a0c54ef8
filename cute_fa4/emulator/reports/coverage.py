"""The lines of a kernel's PTX that a set of runs executed, and those that it did not.

    with coverage.collect() as covered:
        attention(q, k, v, out)
        attention(q2, k2, v2, out2)
    print(covered.report())

Executed means reached by at least one thread; an instruction whose guard was always false counts. A kernel edited
by emulator.use(transform=...) is a separate kernel.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np

from cute_fa4.emulator.machine.observer import Observer, observing
from cute_fa4.emulator.ptx.syntax import place

_TRIVIAL = ("ret", "exit", "bra", "bra.uni")


@dataclass(frozen=True)
class Line:
    """An instruction of a kernel: PTX line (from 1), the text, and (Python file, line) or None."""

    ptx_line: int
    text: str
    source: tuple | None

    @property
    def trivial(self):
        """Is it a branch or return? Its targets are counted separately."""
        return self.text.rstrip(";").split()[-2:][0] in _TRIVIAL or self.text in _TRIVIAL

    def __str__(self):
        where = place(self.source) if self.source else ""
        return f"PTX line {self.ptx_line:>6}  {where:<32}  {self.text[:90]}"


@dataclass(eq=False)
class KernelCoverage:
    """Execution counts of every instruction of one kernel, by warps, summed over all runs."""

    name: str
    program: object
    executions: np.ndarray
    launches: int = 0

    @property
    def instructions(self):
        """[(Line, executions)] in the order of the PTX."""
        found = []
        for members, times in zip(self.program.members, self.executions, strict=True):
            for ins in members:
                line = Line(ins.line, " ".join(ins.text.split()), ins.role_source or ins.source)
                found.append((line, int(times)))
        return found

    @property
    def missed(self):
        """Lines that were never executed, without branches and returns."""
        return [line for line, times in self.instructions if not times and not line.trivial]

    @property
    def fraction(self):
        """Executed instructions of all, 0 to 1."""
        found = self.instructions
        return sum(times > 0 for _, times in found) / max(len(found), 1)

    def missed_ranges(self):
        """[(first Line, last Line, number of instructions)] of adjacent missed instructions.

        Ranges that consist only of branches are omitted.
        """
        ranges = [[]]
        for line, times in self.instructions:
            if not times:
                ranges[-1].append(line)
            elif ranges[-1]:
                ranges.append([])
        return [
            (lines[0], lines[-1], len(lines))
            for lines in ranges
            if not all(line.trivial for line in lines)
        ]


@dataclass(eq=False)
class Coverage:
    """Coverage by kernel: a dict from (name, digest of the instructions) to KernelCoverage."""

    kernels: dict = field(default_factory=dict)

    def by_name(self, part=""):
        """KernelCoverage objects whose name contains ``part``."""
        return [kernel for kernel in self.kernels.values() if part in kernel.name]

    def report(self, limit=20):
        """Text: one line per kernel, then its missed ranges, at most ``limit`` each."""
        lines = []
        for kernel in self.kernels.values():
            total = len(kernel.instructions)
            lines.append(
                f"{kernel.name}: {kernel.fraction:.1%} of {total} instructions in {kernel.launches} launches"
            )
            ranges = kernel.missed_ranges()
            for first, last, number in ranges[:limit]:
                more = f"  ... to line {last.ptx_line}, {number} instructions" if number > 1 else ""
                lines.append(f"  {first}{more}")
            if len(ranges) > limit:
                lines.append(f"  and {len(ranges) - limit} more ranges")
        return "\n".join(lines) or "no kernel was launched"

    __str__ = report


class _Collector(Observer):
    def __init__(self):
        self.coverage = Coverage()

    def finished(self, program, executions):
        key = (program.kernel.name, _digest(program))
        kernel = self.coverage.kernels.get(key)
        if kernel is None:
            zeros = np.zeros(len(executions), np.int64)
            kernel = self.coverage.kernels[key] = KernelCoverage(
                program.kernel.name, program, zeros
            )
        kernel.executions += np.array(executions, np.int64)
        kernel.launches += 1


_digests: dict = {}


def _digest(program):
    known = _digests.get(id(program))
    if known is None or known[0] is not program:
        text = "\n".join(ins.text for members in program.members for ins in members)
        known = _digests[id(program)] = (program, hashlib.sha256(text.encode()).hexdigest())
    return known[1]


class collect:
    """Context in which launches are counted; yields the Coverage, which grows with every launch."""

    def __init__(self):
        self._collector = _Collector()
        self._context = observing(self._collector)

    def __enter__(self):
        self._context.__enter__()
        return self._collector.coverage

    def __exit__(self, *error):
        return self._context.__exit__(*error)
