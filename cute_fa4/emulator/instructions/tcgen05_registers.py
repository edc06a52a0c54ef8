"""tcgen05: loads and stores between registers and tensor memory.

    tcgen05.ld    executes at issue: registers hold what tensor memory holds at that moment
    tcgen05.st    in flight until tcgen05.wait::st of the same warp

Registers are delivered at issue, as published kernels without tcgen05.wait::ld assume. PTX requires the wait: with
checks at level "ptx" the loaded rows are in ``warp.pending_rows`` until the wait.

Data movement shapes. Register r of lane t of the warp holds the word at (lane, column), both relative to
the address, for xN (PTX ISA, "tcgen05 Data Movement Shape"; the copy atoms of CuTe agree):

    shape      registers   lane                     column
    .32x32b    N           t                        r
    .16x64b    N           t/4 + 8 * (t%2)          t/2%2 + 2 * r
    .16x128b   2N          t/4 + 8 * (r%2)          t%4 + 4 * (r/2)
    .16x256b   4N          t/4 + 8 * (r/2%2)        r%2 + 2 * (t%4) + 8 * (r/4)
    .16x32bx2  N           t%16                     r, plus immHalfSplitoff for lanes t >= 16

With .pack::16b a register holds the low halves of the columns 2c (low) and 2c + 1 (high), where c is the
column of the table; .unpack::16b is the inverse.
"""

import dataclasses
from functools import lru_cache

import numpy as np

from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.instructions.instruction_table import instruction, lookup
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.machine.warp import FULL, Wait
from cute_fa4.emulator.ptx.errors import TensorMemoryError, UnknownInstruction
from cute_fa4.emulator.ptx.parser import Addr, Imm, Reg, Vec

SHAPE = r"(32x32b|16x64b|16x128b|16x256b|16x32bx2)\.x(1|2|4|8|16|32|64|128)"


@lru_cache(maxsize=256)
def register_places(shape, repeat):
    """(lane, column), int arrays [register, lane of the warp], relative to the address: the table above.

    Raises ValueError for a repetition that the shape does not have (more than 128 registers).
    """
    per_repeat = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}[shape]
    if repeat * per_repeat > 128:
        raise ValueError(
            f".{shape}.x{repeat} would need {repeat * per_repeat} registers; at most 128"
        )
    r, t = np.meshgrid(np.arange(repeat * per_repeat), np.arange(32), indexing="ij")
    return {
        "32x32b": lambda: (t, r),
        "16x64b": lambda: (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r),
        "16x128b": lambda: (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
        "16x256b": lambda: (t // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (t % 4) + 8 * (r // 4)),
        "16x32bx2": lambda: (t % 16, r),
    }[shape]()


@instruction(pattern=rf"tcgen05\.ld\.sync\.aligned\.{SHAPE}(\.pack::16b)?\.b32", aligned=True)
def ld(warp, ins, match):
    """Registers <- tensor memory, at the places of the table in the module docstring."""
    shape, repeat, packed = match.group(1), int(match.group(2)), bool(match.group(3))
    registers = _registers(ins.operands[0])
    lane, column = _warp_address(warp, ins.operands[1], shape)
    tmem = warp.cta.tmem
    rows, numbers = _rows(ins, ins.operands[0])
    values = None
    if shape == "32x32b" and not packed:
        _check_count(warp, registers, repeat)
        if warp.mask != FULL or not fast.load_tensor(
            warp.R, rows, tmem.words, tmem.written, tmem.allocated, lane, column, repeat
        ):
            values = tmem.read(lane, column, 32, repeat, "tcgen05.ld")
    else:
        lanes, columns = _places(warp, ins, shape, repeat, packed, registers)
        values = tmem.gather(lane + lanes, column + columns, "tcgen05.ld")
        if packed:
            high = tmem.gather(lane + lanes, column + columns + 1, "tcgen05.ld")
            values = values & np.uint32(0xFFFF) | high << np.uint32(16)
    if values is None:
        pass
    elif warp.mask == FULL:
        warp.R[rows] = values
    else:
        for register, value in zip(registers, values, strict=True):
            warp.write32(register, value)
    order = warp.cta.machine.ordering
    if order is not None:
        span = _column_span(shape, repeat, packed, ins)
        tensor_checks.load(order, warp, tmem, column, span, lane)
        if order.ptx:
            warp.pending_rows = warp.pending_rows | numbers


@lru_cache(maxsize=256)
def _plain_load(ins, shape, repeat):
    """The plain tcgen05.ld of a tcgen05.ld.red: (instruction, the register of the reduction)."""
    values, reduced, *rest = ins.operands
    opcode = f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32"
    return dataclasses.replace(ins, opcode=opcode, operands=(values, *rest)), reduced


@instruction(
    pattern=r"tcgen05\.ld\.red\.sync\.aligned\.(32x32b|16x32bx2)\.x(2|4|8|16|32|64|128)\.(min|max)"
    r"(?:(\.abs)?(\.NaN)?\.f32|\.([us])32)",
    aligned=True,
)
def ld_red(warp, ins, match):
    """Registers <- tensor memory, and one more <- their minimum or maximum, per lane; not on sm_100a (targets.py).

    PTX ISA, "tcgen05.ld.red": without .NaN the reduction ignores NaN unless all values are NaN; .abs reduces
    absolute values. All registers are defined after tcgen05.wait::ld.
    """
    shape, repeat, operation, absolute, nan, integer = match.groups()
    plain, reduced = _plain_load(ins, shape, repeat)
    lookup(plain.opcode).function(warp, plain)
    number = {"u": np.uint32, "s": np.int32}.get(integer, np.float32)
    values = warp.R[_rows(plain, plain.operands[0])[0]].view(number)
    if absolute:
        values = np.abs(values)
    pick = (
        {"min": np.minimum, "max": np.maximum}
        if integer or nan
        else {"min": np.fmin, "max": np.fmax}
    )
    warp.write32(reduced, np.ascontiguousarray(pick[operation].reduce(values)).view(np.uint32))
    order = warp.cta.machine.ordering
    if order is not None and order.ptx:
        warp.pending_rows = warp.pending_rows | {reduced.row}


@instruction(pattern=rf"tcgen05\.st\.sync\.aligned\.{SHAPE}(\.unpack::16b)?\.b32", aligned=True)
def st(warp, ins, match):
    """Tensor memory <- registers; complete when tcgen05.wait::st of this warp returns."""
    shape, repeat, unpacked = match.group(1), int(match.group(2)), bool(match.group(3))
    # The immediate of .16x32bx2 is between the address and the registers.
    registers = _registers(ins.operands[-1])
    lane, column = _warp_address(warp, ins.operands[0], shape)
    rows, _ = _rows(ins, ins.operands[-1])
    values = np.empty((len(rows), 32), np.uint32)
    fast.copy_rows(warp.R, rows, len(rows), values)
    tmem = warp.cta.tmem
    if warp.mask != FULL:
        warp.fault(
            f"tcgen05.st by the lanes 0x{warp.mask:08x} of a warp; all 32 lanes must execute it"
        )
    if shape == "32x32b" and not unpacked:
        _check_count(warp, registers, repeat)

        def write():
            if not fast.store_tensor(
                values, tmem.words, tmem.written, tmem.allocated, lane, column, repeat
            ):
                tmem.write(lane, column, values, "tcgen05.st")
    else:
        lanes, columns = _places(warp, ins, shape, repeat, unpacked, registers)

        def write():
            if unpacked:
                # The upper halves are undocumented: leave poison there.
                upper = np.uint32(0xFFFF0000)
                tmem.scatter(lane + lanes, column + columns, values | upper, "tcgen05.st")
                high = values >> np.uint32(16) | upper
                tmem.scatter(lane + lanes, column + columns + 1, high, "tcgen05.st")
            else:
                tmem.scatter(lane + lanes, column + columns, values, "tcgen05.st")

    order = warp.cta.machine.ordering
    if order is not None:
        span = _column_span(shape, repeat, unpacked, ins)
        checked = tensor_checks.store(order, warp, tmem, column, span, lane)
    pending = tmem.pending_stores
    pending[warp.index] = pending.get(warp.index, 0) + 1

    def complete():
        pending[warp.index] -= 1
        if order is not None:
            checked()
        write()

    label = f"tcgen05.st of {len(registers)} columns"
    queue = ("tensor memory store", warp.cta, warp.index)
    warp.cta.machine.engine.submit(complete, label, warp.issuer(), queue=queue)


@instruction("tcgen05.wait::st.sync.aligned", aligned=True)
def wait_st(warp, ins):
    """Wait until all tcgen05.st of this warp have been written."""
    pending = warp.cta.tmem.pending_stores
    if pending.get(warp.index):
        return Wait(lambda: not pending[warp.index], "tcgen05.st of this warp")
    if warp.cta.machine.ordering is not None:
        warp.cta.machine.ordering.wait_tensor(warp, "st")
    return None


@instruction("tcgen05.wait::ld.sync.aligned", aligned=True)
def wait_ld(warp, ins):
    """The registers of all tcgen05.ld of this warp are defined (they were delivered at issue)."""
    if warp.cta.machine.ordering is not None:
        warp.pending_rows = frozenset()
        warp.cta.machine.ordering.wait_tensor(warp, "ld")


@instruction("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(warp, ins):
    """Orders tcgen05 operations with thread synchronisation: changes no value; used by the checks."""
    if warp.cta.machine.ordering is not None:
        warp.cta.machine.ordering.fence_tensor(warp, before="before" in ins.opcode)


def _registers(operand):
    return operand.items if isinstance(operand, Vec) else (operand,)


def _rows(ins, operand):
    """(rows of the 32-bit registers of an operand as an int array, the same as a frozenset), computed once."""
    if ins.prepared is None:
        registers = _registers(operand)
        if not all(isinstance(r, Reg) and r.bits == 32 for r in registers):
            raise UnknownInstruction("tcgen05.ld and tcgen05.st move 32-bit registers only")
        rows = [r.row for r in registers]
        ins.prepare((np.array(rows), frozenset(rows)))
    return ins.prepared


def _warp_address(warp, operand, shape):
    """(lane, column) of the address; faults unless it lies in the 32 lanes that the warp may access.

    Hardware lets a warp access its own quarter by the lanes of the first quarter, and DeepGEMM and FlashMLA rely on
    it. Level "ptx" requires the lanes of the warp.
    """
    lane, column = split_address(_uniform_address(warp, operand))
    first = 32 * (warp.index % 4)
    inside = (0,) if shape == "32x32b" else (0, 16)
    order = warp.cta.machine.ordering
    if lane in inside and not (order is not None and order.ptx):
        return first + lane, column
    if lane - first not in inside:
        accepted = " or ".join(str(first + at) for at in inside)
        warp.fault(
            f"tensor memory lane {lane} in a .{shape} access by warp {warp.index}, which may access lanes "
            f"{first} to {first + 31}; accepted as first lane: {accepted}",
            TensorMemoryError,
        )
    return lane, column


def _uniform_address(warp, operand):
    """The one address of all executing lanes."""
    if type(operand) is Addr and type(operand.base) is Reg and operand.base.bits == 32:
        same = fast.uniform(warp.R, operand.base.row, warp.mask, operand.offset & FULL)
        if same >= 0:
            return same
    return warp.uniform(warp.address(operand))


def _places(warp, ins, shape, repeat, packed, registers):
    try:
        lanes, columns = register_places(shape, repeat)
    except ValueError as error:
        warp.fault(f"{ins.opcode}: {error}", UnknownInstruction)
    _check_count(warp, registers, len(lanes))
    if packed:
        columns = 2 * columns
    if shape == "16x32bx2":
        split = next(op for op in ins.operands[1:] if isinstance(op, Imm)).value
        columns = columns + split * (np.arange(32) >= 16)
    return lanes, columns


def _column_span(shape, repeat, halved, ins):
    """Columns from the first to the last one that an access touches."""
    span = int(register_places(shape, repeat)[1].max()) + 1
    if halved:
        span *= 2
    if shape == "16x32bx2":
        span += next(op for op in ins.operands[1:] if isinstance(op, Imm)).value
    return span


def _check_count(warp, registers, needed):
    if len(registers) != needed:
        warp.fault(f"{len(registers)} registers, but the shape moves {needed}", UnknownInstruction)
