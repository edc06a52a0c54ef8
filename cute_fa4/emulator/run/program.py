"""A kernel decoded for execution: steps of a warp, addressed by step number.

    PTX                                   steps
    mov.u32 %r1, %tid.x;                  0  CALL  handler, instruction
    shl.b32 ...;  add.s32 ...;            1  RUN   compiled C, 2 instructions in one call
    @%p1 bra $L_2;                        2  BRANCH predicate 1 -> step 4
    st.shared.b32 [...], %r5;             3  CALL
    $L_2: ret;                            4  EXIT

A RUN ends before every label and every instruction that is not register arithmetic. Step numbers grow
with the PTX text, so that "smallest step first" is "smallest program counter first".
"""

from collections import Counter

import numpy as np

from cute_fa4.emulator.checks import registers
from cute_fa4.emulator.instructions import instruction_table, lanes, targets
from cute_fa4.emulator.machine.memory import Allocation
from cute_fa4.emulator.ptx import operand_sizes
from cute_fa4.emulator.ptx.errors import EmulatorError, UnknownInstruction
from cute_fa4.emulator.ptx.parser import Label, Pair, Reg, Special, Symbol, Vec

RUN, BRANCH, CALL, EXIT, TABLE = range(5)


class Program:
    """The steps of one kernel.

    steps    tuples whose first item is the kind:
             (RUN, lanes.Run, instructions)   (BRANCH, predicate or -1, negated, target step)
             (CALL, function, instruction, predicate or -1, negated, aligned)
             (EXIT, predicate or -1, negated)   (TABLE, instruction, target steps)
    members  the instructions of every step
    text     the PTX of the module         target   its .target, "sm_100a"
    """

    def __init__(self, kernel, module=None):
        self.kernel = kernel
        self.variables = {} if module is None else module.variables
        self.text, self.target = ("", "") if module is None else (module.text, module.target)
        self.steps = []
        self.members = []
        targets.check(kernel.instructions, self.target)
        self._decode()
        self._rows_read = [None] * len(self.steps)
        self.found = ()  # KernelLabels that its source gives, the first before the others
        self.pending_after = {}  # see checks/registers.py

    def place_variables(self, machine, allocations):
        """Give .global and .const variables of the module memory; the registered allocations are appended to a list."""
        for variable in (*self.variables.values(), *self.kernel.variables.values()):
            if variable.space in ("global", "const") and variable.nbytes:
                data = np.zeros(variable.nbytes + variable.align, np.uint8)
                start = -data.ctypes.data % variable.align
                data = data[start : start + variable.nbytes]
                if variable.data is not None:
                    data[:] = np.frombuffer(variable.data, np.uint8)
                name = f"the variable {variable.name}"
                allocations.append(Allocation(data.ctypes.data, variable.nbytes, name, keep=data))
                machine.memory.add(allocations[-1])
                machine.symbols[variable.name] = data.ctypes.data

    def rows_read(self, step):
        """frozenset of the register rows that a step reads."""
        rows = self._rows_read[step]
        if rows is None:
            rows = self._rows_read[step] = registers.rows_read(self.members[step])
        return rows

    def opcode_counts(self, executions):
        """Counter of executed opcodes from the number of executions of every step."""
        counts = Counter()
        for times, members in zip(executions, self.members, strict=True):
            if times:
                for ins in members:
                    counts[ins.opcode] += times
        return counts

    def _decode(self):
        kernel = self.kernel
        jumped_to = set(kernel.labels.values())
        step_of = {}  # instruction index -> step number
        run, fixups = [], []
        for index, ins in enumerate(kernel.instructions):
            if index in jumped_to and run:
                self._close_run(run)
            lane = self._lane(ins)
            if lane:
                if not run:
                    step_of[index] = len(self.steps)
                run.extend(operand_sizes.expanded(ins, self._scratch))
                continue
            if run:
                self._close_run(run)
            step_of[index] = len(self.steps)
            self.members.append((ins,))
            guard, negated = ins.guard or (-1, False)
            name = ins.opcode
            if name in ("bra", "bra.uni"):
                fixups.append(len(self.steps))
                self.steps.append((BRANCH, guard, negated, self._label(ins, ins.operands[0])))
            elif name in ("ret", "exit", "ret.uni"):
                self.steps.append((EXIT, guard, negated))
            elif name in ("brx.idx", "brx.idx.uni"):
                fixups.append(len(self.steps))
                self.steps.append((TABLE, ins, self._table(ins)))
            else:
                entry = self._entry(ins)
                self.steps.append((CALL, entry.function, ins, guard, negated, entry.aligned))
        if run:
            self._close_run(run)
        # A label may follow the last instruction: reaching the end is an exit.
        end = len(self.steps)
        self.steps.append((EXIT, -1, False))
        self.members.append(())

        def resolve(label):
            index = kernel.labels[label]
            return end if index == len(kernel.instructions) else step_of[index]

        for at in fixups:
            step = self.steps[at]
            if step[0] == BRANCH:
                self.steps[at] = (*step[:3], resolve(step[3]))
            else:
                self.steps[at] = (TABLE, step[1], [resolve(label) for label in step[2]])

    def _scratch(self):
        """A scratch 32-bit register for an instruction that expands to two; a different one on each call."""
        row = self.kernel.rows
        self.kernel.rows += 1
        return Reg(row, 32)

    def _close_run(self, run):
        members = tuple(run)
        self.steps.append((RUN, lanes.compile_run(list(members)), len(members)))
        self.members.append(members)
        run.clear()

    def _lane(self, ins):
        """Can compiled C execute it? C cannot access special registers and addresses of variables."""
        if not instruction_table.is_lanes(ins.opcode):
            return False
        return not any(_has_address(operand) for operand in ins.operands)

    def _entry(self, ins):
        if ins.opcode.startswith("mov.") and any(_has_address(o) for o in ins.operands):
            return instruction_table.Entry(ins.opcode, _move_address)
        return instruction_table.lookup(ins.opcode, ins)

    def _label(self, ins, operand):
        if not isinstance(operand, Label):
            raise UnknownInstruction(
                f"branch target {operand!r} is not a label\n  PTX line {ins.line}: {ins.text}"
            )
        return operand.target

    def _table(self, ins):
        labels = self.kernel.tables.get(self._label(ins, ins.operands[1]))
        if labels is None:
            raise UnknownInstruction(
                f"no .branchtargets for this jump\n  PTX line {ins.line}: {ins.text}"
            )
        return labels


def _has_address(operand):
    if isinstance(operand, (Special, Symbol)):
        return True
    if isinstance(operand, Vec):
        return any(_has_address(o) for o in operand.items)
    return isinstance(operand, Pair) and (
        _has_address(operand.first) or _has_address(operand.second)
    )


def _move_address(warp, ins):
    """mov of a special register or of the address of a variable."""
    target, source = ins.operands
    warp.write64(target, warp.read64(source))


def table_targets(warp, ins, targets, mask):
    """Split lanes at a brx.idx: yields (step, lane mask). Raises EmulatorError for an index outside the list."""
    index = warp.read32(ins.operands[0])
    left = mask
    while left:
        lane = (left & -left).bit_length() - 1
        value = int(index[lane])
        if value >= len(targets):
            raise EmulatorError(f"brx.idx with index {value}: the list has {len(targets)} targets")
        same = 0
        for other in range(lane, 32):
            if left >> other & 1 and int(index[other]) == value:
                same |= 1 << other
        yield targets[value], same
        left &= ~same
