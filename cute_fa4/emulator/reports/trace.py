"""Records a run: what each role did and waited for, in the emulator's order.

    with trace.record() as recorded:
        attention(q, k, v, out)
    recorded.chrome("trace.json")           opens in https://ui.perfetto.dev
    print(recorded.text())                  columns are roles, time goes down
    recorded.svg("pipeline.svg")
    recorded.html("pipeline.html")          the same in a browser: zoom, arrows of mbarriers, lines

There are two axes, neither of which is a duration:

    step   position in the order of execution of this run
    slot   the earliest position that synchronization allows: after the role's previous mark, and after
           everything that it waited for. Slots are (nearly) independent of the schedule; two marks in
           one slot could have been executed concurrently

Copies and MMAs are marks of separate rows, "copies" and "tensor core", one slot each. Consecutive marks with one
name (the K steps of an MMA, the loads of a row) are one mark with a count.
"""

from dataclasses import dataclass, field

from cute_fa4.emulator.machine.observer import Observer, recording
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.ptx.syntax import Addr, Reg, place

COPIES, TENSOR_CORE = "copies", "tensor core"
WRITE = " (write)"  # the second half of a store, which follows its read, independent of the thread


@dataclass(eq=False)
class Mark:
    """One event in one row.

    row     (CTA index, warp number or name of the engine)       role   name of the row
    kind    "wait" for an mbarrier, "sync": another wait, "read" and "write" of tensor memory, "copy", "product"
    name    its name, from the kernel's labels
    first, last    steps        slot, end   slots (end > slot for waits)
    raises  names of the mbarriers that it raised                 count  consecutive repetitions
    """

    row: tuple
    role: str
    kind: str
    name: str
    first: int
    last: int
    slot: int
    end: int
    raises: list = field(default_factory=list)
    count: int = 1
    line: str = ""
    source: tuple | None = None  # (Python file, line)
    cause: tuple | None = None  # (row, step) of the mark that ended a wait


@dataclass(eq=False)
class _Row:
    key: tuple
    role: str
    slot: int = 0  # of its last mark
    mark: Mark | None = None
    waiting: Mark | None = None
    arrived: tuple | None = None  # the thread barrier at which it arrived last
    meeting: tuple | None = None  # the thread barrier that it must wait for


@dataclass(eq=False)
class Recording:
    """The marks of one or several launches, in order of their first step."""

    marks: list = field(default_factory=list)
    rows: dict = field(default_factory=dict)  # key -> role, in order of appearance
    kernels: list = field(default_factory=list)

    def chrome(self, path):
        """Write Chrome trace events (JSON): one process per CTA, one thread per warp; times are steps."""
        from cute_fa4.emulator.reports import trace_output

        trace_output.write_chrome(self, path)

    def text(self, cta=None, width=24):
        """A timeline: columns are roles, a line is a slot. cta: index; None: the first one."""
        from cute_fa4.emulator.reports import trace_output

        return trace_output.text(self, cta, width)

    def svg(self, path=None, cta=None):
        """The same as a picture; returns the SVG text, and writes it if a path is given."""
        from cute_fa4.emulator.reports import trace_output

        picture = trace_output.svg(self, cta)
        if path is not None:
            with open(path, "w") as file:
                file.write(picture)
        return picture

    def html(self, path=None):
        """A page for the browser; returns its text, and writes it if a path is given."""
        from cute_fa4.emulator.reports import trace_page

        text = trace_page.page(self)
        if path is not None:
            with open(path, "w") as file:
                file.write(text)
        return text


def record():
    """Context in which launches are recorded; yields the Recording."""
    return recording(Recorder())


class Recorder(Observer):
    """Observer that fills a Recording."""

    def __init__(self):
        self.recording = Recording()
        self.step = 0

    def launch(self, machine, program):
        self._rows = {}
        self._phases = {}  # (id of MBarrier, phase) -> slot in which it completed
        self._raised = {}  # the same -> (row, step)
        self._arrived = {}  # id of MBarrier -> slot of its arrivals so far in the open phase
        self._meeting = {}  # (CTA, barrier number, generation) -> slot of the arrivals at a thread barrier
        self._operations = {}  # id of Operation -> its Mark
        self._queues = {}  # queue -> slot of its last operation
        self._kept = []  # keeps everything alive whose id is a key
        self.recording.kernels.append(program.kernel.name)
        # Launches follow each other on both axes.
        self._base = max((mark.end for mark in self.recording.marks), default=0)

    # -- warps -------------------------------------------------------------------------------------------

    def instruction(self, warp, ins):
        self.step += 1
        row = self._row((warp.cta.id, warp.index), warp.role or f"warp {warp.index}")
        self._meet(row)  # the last arriver does not wait
        opcode = ins.opcode
        if opcode.startswith("mbarrier.") and "_wait" in opcode:
            barrier, parity = _barrier_of(warp, ins)
            if barrier is not None and (barrier.phase - 1) & 1 == parity & 1:
                self._join(row, barrier)
        elif opcode.startswith(("tcgen05.ld", "tcgen05.st")):
            operand = ins.operands[1 if opcode.startswith("tcgen05.ld") else 0]
            kind = "read" if opcode.startswith("tcgen05.ld") else "write"
            self._mark(row, kind, f"{kind} {_tensor_name(warp, operand)}", ins)
        elif opcode.startswith(("bar.", "barrier.")) and ".warp" not in opcode:
            if ".wait" not in opcode:
                row.arrived = key = _thread_barrier(warp, ins)
                self._meeting[key] = max(self._meeting.get(key, 0), row.slot)
            if ".arrive" not in opcode:
                row.meeting = row.arrived

    def wait(self, warp, wait):
        self.step += 1
        row = self._row((warp.cta.id, warp.index), warp.role or f"warp {warp.index}")
        kind, what = "sync", _short(wait.ins.opcode)
        if wait.barrier is not None:
            kind, what = "wait", wait.barrier.name
        row.waiting = Mark(
            row.key, row.role, kind, what, self.step, self.step, row.slot, row.slot,
            line=_line(wait.ins), source=_source(wait.ins),
        )  # fmt: skip
        self.recording.marks.append(row.waiting)

    def resume(self, warp, wait):
        self.step += 1
        row = self._row((warp.cta.id, warp.index), warp.role or f"warp {warp.index}")
        if wait.barrier is not None:
            self._join(row, wait.barrier)
        else:
            self._meet(row)
        mark, row.waiting = row.waiting, None
        if mark is not None:
            mark.last, mark.end = self.step, row.slot
            if wait.barrier is not None:
                mark.cause = self._raised.get((id(wait.barrier), wait.barrier.phase - 1))

    # -- operations in flight ------------------------------------------------------------------------------

    def submit(self, operation):
        self.step += 1
        issuer = operation.issuer
        warp, ins = issuer.warp, issuer.ins
        row = self._row((warp.cta.id, warp.index), warp.role or f"warp {warp.index}")
        opcode = ins.opcode
        if opcode.startswith("tcgen05.mma"):
            engine, kind, name = TENSOR_CORE, "product", _product_name(warp, ins)
        elif opcode.startswith(("cp.async", "cp.reduce")):
            engine, kind, name = COPIES, "copy", _copy_name(warp, ins, operation)
        else:
            engine = None
        mark = None
        if engine is not None:
            target = self._row((warp.cta.id, engine), engine)
            mark = self._mark(target, kind, name, ins, row.slot)
            if engine == COPIES and not name.endswith(WRITE):
                # The thread continues immediately, and its next copy is in its next slot.
                row.slot = mark.slot
        elif opcode.startswith("tcgen05.commit"):
            mark = self._row((warp.cta.id, TENSOR_CORE), TENSOR_CORE).mark
        self._operations[id(operation)] = (mark, row.slot)
        self._kept.append(operation)

    def complete(self, operation):
        self.step += 1
        mark, _ = self._operations.get(id(operation), (None, 0))
        self._completing = operation
        if mark is not None:
            mark.last = max(mark.last, self.step)

    _completing = None

    # -- mbarriers ---------------------------------------------------------------------------------------------

    def arrive(self, barrier, count, issuer):
        mark, slot = self._cause(issuer)
        self._arrived[id(barrier)] = max(self._arrived.get(id(barrier), 0), slot)
        if mark is not None and barrier.name not in mark.raises:
            mark.raises.append(barrier.name)
        self._kept.append(barrier)

    def phase(self, barrier, issuer):
        mark, slot = self._cause(issuer)
        slot = max(slot, self._arrived.pop(id(barrier), 0))
        key = (id(barrier), barrier.phase - 1)
        self._phases[key] = slot
        if mark is not None:
            self._raised[key] = (mark.row, self.step)
            if barrier.name not in mark.raises:
                mark.raises.append(barrier.name)

    def _cause(self, issuer):
        """(Mark, slot) of the arriver: an operation that completes, or the thread itself."""
        if issuer is None:
            return None, 0
        operation = self._completing
        if operation is not None and operation.issuer is issuer:
            mark, slot = self._operations.get(id(operation), (None, 0))
            return mark, slot if mark is None else mark.end
        warp = issuer.warp
        row = self._row((warp.cta.id, warp.index), warp.role or f"warp {warp.index}")
        return row.mark, row.slot

    # -- rows --------------------------------------------------------------------------------------------------

    def _row(self, key, role):
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(key, role, self._base)
            self.recording.rows.setdefault(key, role)
        return row

    def _meet(self, row):
        """The row comes after all arrivals at its thread barrier."""
        if row.meeting is not None:
            row.slot = max(row.slot, self._meeting[row.meeting])
            row.meeting = None

    def _join(self, row, barrier):
        """The row comes after the phase that it has seen complete."""
        row.slot = max(row.slot, self._phases.get((id(barrier), barrier.phase - 1), 0))

    def _mark(self, row, kind, name, ins, after=None):
        """A mark in the slot after the row's last one, or one more repetition of it."""
        earliest = max(row.slot, 0 if after is None else after)
        last = row.mark
        if last is not None and last.kind == kind and last.name == name and not last.raises:
            if last.end >= earliest:
                last.count += 1
                last.last = self.step
                return last
        mark = Mark(
            row.key, row.role, kind, name, self.step, self.step, earliest + 1, earliest + 1,
            line=_line(ins), source=_source(ins),
        )  # fmt: skip
        row.slot, row.mark = mark.slot, mark
        self.recording.marks.append(mark)
        return mark


# --- names ----------------------------------------------------------------------------------------------


def _line(ins):
    """The Python line; without one the PTX line, which moves with every change of the kernel."""
    source = _source(ins)
    return place(source) if source else f"PTX line {ins.line}"


def _source(ins):
    return ins.role_source or ins.source


def _short(opcode):
    return ".".join(opcode.split(".")[:2])


def _barrier_of(warp, ins):
    """(MBarrier, parity) that a wait is for, or (None, 0) if it is not the simple case."""
    if ".parity" not in ins.opcode:
        return None, 0
    address = int(warp.address(ins.operands[1])[warp.lane0])
    try:
        cta, offset = warp.cta.cluster.resolve(address & 0xFFFFFFFF)
    except RuntimeError:
        return None, 0
    parity = int(warp.read32(ins.operands[2])[warp.lane0])
    return cta.shared.mbarriers.get(offset), parity


def _thread_barrier(warp, ins):
    """(CTA or cluster, number, generation) of the barrier at which the warp arrives."""
    if ".cluster" in ins.opcode:
        return (warp.cta.cluster.id, "cluster", warp.cta.cluster.barrier.generation)
    number = int(warp.read32(ins.operands[0])[warp.lane0]) if ins.operands else 0
    barrier = warp.cta.named_barriers.get(number)
    return (warp.cta.id, number, 0 if barrier is None else barrier.generation)


def _tensor_name(warp, operand, columns=True):
    address = int(warp.address(operand)[warp.lane0])
    column = split_address(address)[1]
    name = warp.cta.labels.tmem_name(column)
    return name.split("[:")[0] if name else f"column {column}"


def _shared_name(warp, offset):
    name = warp.cta.labels.shared_name(offset - warp.cta.shared.dynamic_base)
    return name.split("+")[0] if name else f"shared 0x{offset:x}"


def _product_name(warp, ins):
    """ "S0 = Q0 kv[1]": D, A and B of an MMA by their labels."""
    d, a, b = ins.operands[:3]
    lane = warp.lane0

    def from_descriptor(operand):
        descriptor = int(warp.read64(operand)[lane])
        return _shared_name(warp, (descriptor & 0x3FFF) << 4)

    a_name = _tensor_name(warp, a) if isinstance(a, Addr) else from_descriptor(a)
    return f"{_tensor_name(warp, d)} = {a_name} {from_descriptor(b)}"


def _copy_name(warp, ins, operation):
    """The shared-memory end of a copy: "load kv[1]", "store Q0"."""
    shared_first = ".shared" in ins.opcode.split(".global")[0]
    step = WRITE if operation.label.endswith(": write") else ""
    if operation.label.endswith(": read") or step:
        return f"store{step}"
    operand = ins.operands[0 if shared_first else 1]
    if not isinstance(operand, (Addr, Reg)):
        return operation.label
    address = int(warp.address(operand)[warp.lane0]) & 0xFFFFFF
    return (
        f"load {_shared_name(warp, address)}"
        if shared_first
        else f"store {_shared_name(warp, address)}"
    )
