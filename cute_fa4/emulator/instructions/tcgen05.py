"""tcgen05: tensor memory allocation, loads and stores of registers, and the tensor core.

    tcgen05.ld    executes at issue: registers hold what tensor memory holds at that moment
    tcgen05.st    in flight until tcgen05.wait::st of the same warp
    tcgen05.mma   in flight, in order, in the queue ("tensor", cta) of the issuing CTA
    tcgen05.commit  after the MMAs in the same queue, then arrives on mbarriers

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

from cute_fa4.emulator.checks import memory as memory_checks
from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.checks.clocks import HAPPENED
from cute_fa4.emulator.instructions.instruction_table import instruction, lookup
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.machine.matrix_descriptors import decode_instruction
from cute_fa4.emulator.machine.shifted import ShiftedMultiply
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.machine.warp import FULL, Wait
from cute_fa4.emulator.machine.weight_stationary import WeightStationaryMultiply
from cute_fa4.emulator.ptx.errors import (
    EmulatorError,
    IllegalAccess,
    TensorMemoryError,
    UnknownInstruction,
)
from cute_fa4.emulator.ptx.parser import Addr, Imm, Reg, Vec

GROUP = r"\.cta_group::([12])"
SHAPE = r"(32x32b|16x64b|16x128b|16x256b|16x32bx2)\.x(1|2|4|8|16|32|64|128)"


# --- allocation ------------------------------------------------------------------------------------


@instruction(pattern=rf"tcgen05\.alloc{GROUP}\.sync\.aligned(\.shared::cta)?\.b32", aligned=True)
def alloc(warp, ins, match):
    """[shared address] <- address of a new block of columns; waits until columns are free.

    With .cta_group::2 one warp of each CTA of the pair executes it, and both wait for each other.
    """
    group, tmem = int(match.group(1)), warp.cta.tmem
    columns = warp.uniform(warp.read32(ins.operands[1]))
    if warp.index not in tmem.half_done:
        tmem.use_cta_group(group)
        tmem.check_allocation(columns)
        if tmem.find(columns) is None:
            return Wait(
                lambda: tmem.find(columns) is not None, f"{columns} free tensor memory columns"
            )
        if group == 2:
            _check_peer_is_there(warp)
        tmem.half_done[warp.index] = tmem.allocate(columns, warp.issuer()), tmem.allocations
        tmem.allocations += 1
        warp.note_progress()
    start, number = tmem.half_done[warp.index]
    if group == 2:
        peer = pair_of(warp)[warp.cta.rank & 1 ^ 1].tmem
        if peer.allocations <= number:
            return Wait(
                lambda: peer.allocations > number, "tcgen05.alloc in the other CTA of the pair"
            )
        if peer.blocks.get(start) not in (columns, None):
            raise TensorMemoryError(
                f"tcgen05.alloc with .cta_group::2: {columns} columns from column {start} here, "
                f"{peer.blocks[start]} in the other CTA of the pair; both must ask for the same"
            )
    del tmem.half_done[warp.index]
    cta, offset = _shared_address(warp, ins.operands[0], bool(match.group(2)))
    if cta is not warp.cta:
        warp.fault(
            "tcgen05.alloc writes the address to shared memory of its own CTA", IllegalAccess
        )
    cta.shared.write(offset, np.array([start], np.uint32).view(np.uint8))
    if cta.machine.ordering is not None:
        memory_checks.shared_span(
            cta.machine.ordering, warp, cta.shared, offset, 4, "tcgen05.alloc"
        )
        tmem.allocated_by = warp.order.actor, warp.order.last
    return None


def _check_peer_is_there(warp):
    """An allocation for a pair must come after the launch of the other CTA (PTX ISA, "tcgen05.alloc").

    The CTAs of a cluster do not start at the same instant (NVIDIA/cutlass#3316). Level "ptx" checks this.
    """
    order, cluster = warp.cta.machine.ordering, warp.cta.cluster
    if order is None or not order.ptx or cluster.barrier.generation:
        return
    peer, happened = pair_of(warp)[warp.cta.rank & 1 ^ 1], warp.order.clock[HAPPENED]
    if not any(happened[other.order.actor] for other in peer.warps):
        raise TensorMemoryError(
            "tcgen05.alloc with .cta_group::2, but nothing says that the other CTA of the pair has been launched: "
            "barrier.cluster.arrive and wait before it"
        )


@instruction(pattern=rf"tcgen05\.dealloc{GROUP}\.sync\.aligned\.b32", aligned=True)
def dealloc(warp, ins, match):
    """Free the block at an address; both operands must match its tcgen05.alloc."""
    tmem, group = warp.cta.tmem, int(match.group(1))
    tmem.use_cta_group(group)
    address, columns = (warp.uniform(warp.read32(op)) for op in ins.operands)
    if group == 2:
        _check_peer_has_allocated(warp)
    tmem.deallocate(address, columns)
    if tmem.shadow is not None:
        column = split_address(address)[1]
        tensor_checks.deallocate(warp.cta.machine.ordering, warp, tmem, column, columns)
    warp.note_progress()


def _check_peer_has_allocated(warp):
    """A pair may free only after the tcgen05.alloc of both CTAs has completed.

    A B300 ends the launch otherwise (NVIDIA/cutlass#3435).
    """
    peer = pair_of(warp)[warp.cta.rank & 1 ^ 1].tmem
    known = not peer.half_done
    if known and peer.allocated_by is not None:
        actor, number = peer.allocated_by
        known = number <= warp.order.clock[HAPPENED, actor]
    if not known:
        raise TensorMemoryError(
            "tcgen05.dealloc with .cta_group::2, but nothing says that the tcgen05.alloc of the other CTA of the pair "
            "has completed: barrier.cluster.arrive and wait between them"
        )


@instruction(pattern=rf"tcgen05\.relinquish_alloc_permit{GROUP}\.sync\.aligned", aligned=True)
def relinquish_alloc_permit(warp, ins, match):
    """The CTA allocates no more."""
    warp.cta.tmem.use_cta_group(int(match.group(1)))
    warp.cta.tmem.relinquish()


# --- registers <-> tensor memory -----------------------------------------------------------------------


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
    """Registers <- tensor memory, and one more <- their minimum or maximum, per lane (sm_103a).

    PTX ISA, "tcgen05.ld.red": without .NaN the reduction ignores NaN unless all values are NaN; .abs reduces
    absolute values. All registers are defined after tcgen05.wait::ld.
    """
    shape, repeat, operation, absolute, nan, integer = match.groups()
    if not _target_has_reductions(warp):
        warp.fault(f"{ins.opcode} is of sm_103a; the kernel was compiled for another target")
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


def _target_has_reductions(warp):
    target = warp.cta.machine.target
    return not target or target.startswith("sm_103")


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


# --- tensor core -----------------------------------------------------------------------------------------


# .collector says which operand to keep in a buffer for the next MMA: speed, not meaning.
@instruction(
    pattern=rf"tcgen05\.mma{GROUP}\.kind::(f16|tf32|f8f6f4|i8)"
    r"(?:(\.ashift)(?:\.collector::a::(?:lastuse|discard))?|(?:\.collector::a::(?:fill|use|lastuse|discard))?)"
)
def mma(warp, ins, match):
    """[d], a, b, idesc{, {disable-output-lane}}, enable-input-d{, scale-input-d}: see tensor_core.py, shifted.py."""
    group, kind = int(match.group(1)), match.group(2)
    refuse_several_threads(warp)
    cta = warp.cta
    cta.tmem.use_cta_group(group)
    lane = warp.lane0
    d, a, b, idesc, *rest = ins.operands
    disabled = rest.pop(0) if isinstance(rest[0], Vec) else None
    a_in_tensor_memory = isinstance(a, Addr)
    multiply = (ShiftedMultiply if match.group(3) else MatrixMultiply)(
        decode_instruction(int(warp.read32(idesc)[lane]), kind, group),
        pair_of(warp) if group == 2 else (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if a_in_tensor_memory else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        a_in_tensor_memory,
        bool(warp.read_pred(rest[0]) >> lane & 1),
        scale_log2(rest[1:], kind),
        enabled_lanes(warp, disabled, group, lane),
    )
    submit_product(warp, multiply)


@instruction(
    pattern=r"tcgen05\.mma\.ws\.cta_group::1\.kind::(f16|tf32|f8f6f4|i8)"
    r"(?:\.collector::b[0-3]::(?:fill|use|lastuse|discard))?"
)
def mma_ws(warp, ins, match):
    """[d], a, b, idesc, enable-input-d{, zero-column-mask-desc}: see weight_stationary.py."""
    refuse_several_threads(warp)
    cta, lane = warp.cta, warp.lane0
    cta.tmem.use_cta_group(1)
    d, a, b, idesc, enable, *mask = ins.operands
    in_tensor_memory = isinstance(a, Addr)
    multiply = WeightStationaryMultiply(
        decode_instruction(int(warp.read32(idesc)[lane]), match[1], 1, True),
        (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if in_tensor_memory else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        in_tensor_memory,
        bool(warp.read_pred(enable) >> lane & 1),
        mask=int(warp.read64(mask[0])[lane]) if mask else 0,
    )
    submit_product(warp, multiply)


def refuse_several_threads(warp):
    """Each thread that issues an MMA multiplies once more."""
    if warp.mask & warp.mask - 1:
        warp.fault(
            f"tcgen05.mma by {len(warp.lanes)} threads would multiply as often; elect one thread"
        )


def submit_product(warp, multiply):
    """Check an MMA and queue it for the CTA's tensor core, with the ordering checks at execution."""
    multiply.check()
    action, order = multiply.execute, warp.cta.machine.ordering
    if order is not None:
        checked = tensor_checks.multiply(order, warp, multiply)

        def action():
            checked()
            multiply.execute()

    label = str(multiply.descriptor)
    warp.cta.machine.engine.submit(action, label, warp.issuer(), queue=("tensor", warp.cta))


def scale_log2(operands, kind):
    if not operands:
        return 0
    value = operands[0].value if isinstance(operands[0], Imm) else None
    if kind not in ("f16", "tf32") or value is None or not 0 <= value <= 15:
        raise EmulatorError(
            f"scale-input-d {operands[0]} with kind::{kind}; accepted: constants 0 to 15 with f16 and tf32"
        )
    return value


def enabled_lanes(warp, disabled, group, lane):
    """bool[128] from the disable-output-lane vector, one bit a lane; None when nothing is disabled."""
    if disabled is None:
        return None
    words = np.array([warp.read32(word)[lane] for word in disabled.items], np.uint32)
    if len(words) != 4 * group:
        raise EmulatorError(f"disable-output-lane of {len(words)} registers; accepted: {4 * group}")
    if not words.any():
        return None
    if group == 2:
        raise EmulatorError(
            "disable-output-lane with disabled lanes and .cta_group::2 has no meaning in the emulator; "
            "accepted: zeros"
        )
    return ~np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)


@instruction(
    pattern=rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(\.shared::cluster)?"
    r"(\.multicast::cluster)?\.b64"
)
def commit(warp, ins, match):
    """Arrive on an mbarrier once all earlier MMAs of this CTA have completed.

    PTX guarantees this for the MMAs of the executing thread. The emulator's queue per CTA also waits for those of
    its other threads. With .multicast::cluster: on the same offset in every CTA of the mask.
    """
    warp.cta.tmem.use_cta_group(int(match.group(1)))
    issuer, engine = warp.issuer(), warp.cta.machine.engine
    masks = warp.read32(ins.operands[1]) if match.group(3) else None
    order = warp.cta.machine.ordering
    checked = None if order is None else tensor_checks.committed(order, warp)
    for lane in warp.lanes:
        cta, offset = _shared_address(warp, ins.operands[0], bool(match.group(2)), lane)
        if offset % 8:
            warp.fault(
                f"mbarrier at shared offset 0x{offset:x}: not aligned to 8 bytes", IllegalAccess
            )
        targets = (cta,) if masks is None else _ctas(warp, int(masks[lane]) & 0xFFFF)

        def arrive(targets=targets, offset=offset):
            for target in targets:
                if target.finished:
                    raise IllegalAccess(f"tcgen05.commit on CTA {target.id}, which has ended")
                barrier = target.mbarrier(offset)
                if checked is not None:
                    checked(barrier)
                barrier.arrive(1, issuer)

        engine.submit(arrive, "tcgen05.commit", issuer, queue=("tensor", warp.cta))


def _ctas(warp, mask):
    """The CTAs of the cluster whose ranks are in a 16-bit mask."""
    ctas = warp.cta.cluster.ctas
    if not mask or mask >> len(ctas):
        warp.fault(
            f"multicast to the CTA mask 0x{mask:04x} in a cluster of {len(ctas)}; accepted: a non-empty "
            f"subset of 0x{(1 << len(ctas)) - 1:04x}",
            IllegalAccess,
        )
    return tuple(cta for rank, cta in enumerate(ctas) if mask >> rank & 1)


def pair_of(warp):
    """(even, odd) CTA of the pair of this CTA: ranks that differ in their lowest bit."""
    ctas, even = warp.cta.cluster.ctas, warp.cta.rank & ~1
    if even + 1 >= len(ctas):
        warp.fault(
            f".cta_group::2 in a cluster of {len(ctas)} CTAs; launch clusters of an even size"
        )
    return ctas[even], ctas[even + 1]


def _shared_address(warp, operand, is_shared, lane=None):
    """(CTA, offset) of a shared address, or of a generic one when the opcode names no state space."""
    lane = warp.lane0 if lane is None else lane
    address = int(warp.address(operand)[lane])
    if is_shared:
        return warp.cta.cluster.resolve(address)
    space, *place = warp.cta.machine.resolve_generic(address)
    if space != "shared":
        warp.fault(
            f"generic address 0x{address:x} lies in {space} memory, not in shared", IllegalAccess
        )
    return tuple(place)
