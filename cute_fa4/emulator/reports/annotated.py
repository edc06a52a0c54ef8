"""The PTX of a run, annotated with the roles and execution counts of each instruction, mbarriers, source lines.

    with annotated.record() as runs:
        attention(q, k, v, out)
    print(runs.text())

    // two_tiles/kernel.py:88   pipes.kv.wait(slot)                                  a new source line
        mbarrier.try_wait.parity.shared.b64 P1, [%r9], %r4;                      // mma x 12  kv.full[0] kv.full[1]
        add.s32 %r5, %r4, 1;                                                     // mma x 12
        trap;                                                                    // never

The text is valid PTX: the annotations are comments, and use(transform=...) accepts an edited copy.
"""

from collections import Counter
from dataclasses import dataclass, field

from cute_fa4.emulator.machine.observer import Observer, recording
from cute_fa4.emulator.ptx.syntax import place, source_text
from cute_fa4.emulator.run.program import Program

_COLUMN = 90  # where comments begin, after most instructions
_MOST_NAMES = 6


@dataclass(eq=False)
class Kernel:
    """One kernel: the program, executions of its steps by role, and names of mbarriers by PTX line."""

    program: Program
    executions: dict = field(default_factory=dict)
    barriers: dict = field(default_factory=dict)
    launches: int = 0

    def text(self) -> str:
        """The annotated PTX of the module that the kernel was decoded from."""
        lines = self.program.text.split("\n")
        first: dict[int, tuple] = {}  # PTX line -> (step, instruction) that begins on it
        for step, members in enumerate(self.program.members):
            for ins in members:
                first.setdefault(ins.line, (step, ins))
        out, shown = [], None
        for number, line in enumerate(lines, start=1):
            found = first.get(number)
            if found is None:
                out.append(line)
                continue
            step, ins = found
            source = ins.role_source or ins.source
            if source is not None and source != shown:
                out.append(f"// {place(source)}   {source_text(source)}".rstrip())
                shown = source
            notes = [self._roles(step), *self._names(ins.line)]
            out.append(
                f"{line.rstrip().expandtabs(4).ljust(_COLUMN)} // {'  '.join(notes)}".rstrip()
            )
        return "\n".join(out)

    def _roles(self, step):
        counts = [(role, counts[step]) for role, counts in self.executions.items() if counts[step]]
        return ", ".join(f"{role} x {times}" for role, times in counts) or "never"

    def _names(self, line):
        names = list(self.barriers.get(line, ()))
        return names[:_MOST_NAMES] + ["..."] * (len(names) > _MOST_NAMES)


@dataclass(eq=False)
class Recording:
    """The kernels of all launches, in order of their first launch."""

    kernels: list = field(default_factory=list)

    def text(self) -> str:
        """Their annotated PTX, concatenated."""
        parts = []
        for kernel in self.kernels:
            name = kernel.program.kernel.name
            head = f"// {name}, {kernel.launches} launches: who executed a line, and how often"
            parts.append(f"{head}\n{kernel.text()}")
        return "\n".join(parts)

    def write(self, path):
        """Write text() to a file."""
        with open(path, "w") as file:
            file.write(self.text())


class _Recorder(Observer):
    def __init__(self):
        self.recording = Recording()
        self._kernels = {}

    def launch(self, machine, program):
        kernel = self._kernels.get(program)
        if kernel is None:
            kernel = self._kernels[program] = Kernel(program)
            self.recording.kernels.append(kernel)
        self._current = kernel
        kernel.launches += 1

    def tested(self, barrier, issuer):
        self._name(barrier, issuer)

    def arrive(self, barrier, count, issuer):
        self._name(barrier, issuer)

    def bytes(self, barrier, nbytes, issuer):
        self._name(barrier, issuer)

    def _name(self, barrier, issuer):
        if issuer is not None:
            self._current.barriers.setdefault(issuer.ins.line, {})[barrier.name] = True

    def roles(self, program, executions):
        counts = self._kernels[program].executions
        for role, times in executions.items():
            counts.setdefault(role, Counter()).update({i: n for i, n in enumerate(times) if n})


def record():
    """Context in which launches are recorded; yields the Recording, which grows with every launch."""
    return recording(_Recorder())
