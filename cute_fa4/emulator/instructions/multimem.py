"""multimem: instructions whose address maps to several memories at once (machine/multicast.py).

    multimem.ld_reduce{.sem}{.scope}{.global}.op{.acc::f32}{.vec}.type  d, [a]     d = op of the values in all memories
    multimem.st{.sem}{.scope}{.global}{.vec}.type                       [a], b     to every memory
    multimem.red{.sem}{.scope}{.global}.op{.vec}.type                   [a], b     every memory = op(it, b), atomically
    multimem.cp.async.bulk.global.shared::cta.bulk_group{.cp_mask}      [a], [src], size{, byteMask}
    multimem.cp.reduce.async.bulk.global.shared::cta.bulk_group.op.type [a], [src], size

Sums of several floating-point numbers are exact in float64 and rounded once. Hardware adds in an unspecified order
and precision (at least that of the type, or f32), and may differ in the last bit. PTX ISA, "multimem.ld_reduce,
multimem.st, multimem.red", "multimem.cp.async.bulk", "multimem.cp.reduce.async.bulk".
"""

import functools

import numpy as np

from cute_fa4.emulator.instructions.bulk_operands import BULK_ALIGNMENT, bulk_size, resolve_shared
from cute_fa4.emulator.instructions.bulk_reduce import GLOBAL_OPERATIONS, combine
from cute_fa4.emulator.instructions.bulk_store import masked_runs, shared_source, submit_store
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.memory import gather, scatter
from cute_fa4.emulator.machine.rounding import BF16, F16, decode, encode
from cute_fa4.emulator.ptx.errors import IllegalAccess
from cute_fa4.emulator.ptx.parser import Vec

_ORDER = r"(?:\.(?:weak|(?:relaxed|acquire|release)\.(?:cta|cluster|gpu|sys)))?(?:\.global)?"
_VECTOR = r"(?:\.v([248]))?"
_HALVES = r"f16|f16x2|bf16|bf16x2"
# PTX ISA, the tables of types by operation.
_COMBINED = (
    rf"(?:(add)(?:\.acc::f(?:16|32))?{_VECTOR}\.(u32|s32|u64|f32|f64|{_HALVES})"
    rf"|(min|max)(?:\.acc::f(?:16|32))?{_VECTOR}\.(u32|s32|u64|s64|{_HALVES})|(and|or|xor)()\.(b32|b64))"
)
_INTEGERS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
             "xor": np.bitwise_xor}  # fmt: skip
_FLOATS = {"add": np.add, "min": np.fmin, "max": np.fmax}
_FORMATS = {"f16": F16, "bf16": BF16}


def _register_bytes(kind):
    """Bytes that a register of the type holds."""
    return 4 if kind.endswith("x2") else int("".join(c for c in kind if c.isdigit())) // 8


def reduced(operation, kind, parts):
    """Bytes of several operands (uint8 arrays), combined element by element and rounded once."""
    base = kind.removesuffix("x2")
    with np.errstate(all="ignore"):
        if base in _FORMATS:
            fmt = _FORMATS[base]
            values = [decode(part.view(np.uint16), fmt).astype(np.float64) for part in parts]
            result = encode(functools.reduce(_FLOATS[operation], values), fmt).astype(np.uint16)
        elif base[0] == "f":
            number = f"f{_register_bytes(kind)}"
            values = [part.view(number).astype(np.float64) for part in parts]
            result = functools.reduce(_FLOATS[operation], values).astype(number)
        else:
            number = f"{'i' if base[0] == 's' else 'u'}{_register_bytes(kind)}"
            result = functools.reduce(_INTEGERS[operation], [part.view(number) for part in parts])
    return np.ascontiguousarray(result).view(np.uint8)


def _places(warp, address, nbytes, what):
    """Addresses in each memory of one multimem address. Faults if it is not one, or not aligned."""
    if address % nbytes:
        warp.fault(
            f"{what} of {nbytes} bytes at multimem address 0x{address:x}: not aligned",
            IllegalAccess,
        )
    for multicast in warp.cta.machine.memory.multicasts:
        found = multicast.addresses(address, nbytes)
        if found is not None:
            return found
    warp.fault(
        f"{what} of {nbytes} bytes at 0x{address:x}, which is not in a multimem address range; accepted: those of "
        "ptx_files.multicast",
        IllegalAccess,
    )
    return None


def _lanes(warp, operand, nbytes, what):
    """[(lane, addresses in each memory)] of the executing lanes."""
    addresses = warp.address(operand)
    return [(lane, _places(warp, int(addresses[lane]), nbytes, what)) for lane in warp.lanes]


def _what(match):
    """(operation, elements of the vector, type) of an opcode."""
    groups = match.groups()
    operation, vector, kind = next(groups[i : i + 3] for i in range(0, 9, 3) if groups[i])
    return operation, int(vector or 1), kind


def _read(warp, address, nbytes):
    items = gather(warp, "global", np.array([address], np.uint64), nbytes)
    return np.ascontiguousarray(items).reshape(-1).view(np.uint8)


def _write(warp, address, data):
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint32}[len(data)]
    values = data.view(unsigned)
    scatter(
        warp,
        "global",
        np.array([address], np.uint64),
        values[None] if len(data) == 16 else values,
        len(data),
    )


def _registers(operand):
    return operand.items if isinstance(operand, Vec) else (operand,)


def _source_bytes(warp, operand, kind):
    """uint8[lane, bytes] of the registers of an operand."""
    size = _register_bytes(kind)
    read = warp.read64 if size == 8 else warp.read32
    columns = [read(r).astype(f"u{size}") for r in _registers(operand)]
    return np.ascontiguousarray(np.stack(columns, 1)).view(np.uint8)


@instruction(pattern=rf"multimem\.ld_reduce{_ORDER}\.{_COMBINED}")
def ld_reduce(warp, ins, match):
    """d, [a]: the values in all memories, combined."""
    operation, count, kind = _what(match)
    size = _register_bytes(kind)
    registers = _registers(ins.operands[0])
    out = np.zeros((32, len(registers)), f"u{size}")
    for lane, places in _lanes(warp, ins.operands[1], count * size, "multimem.ld_reduce"):
        parts = [_read(warp, place, count * size) for place in places]
        out[lane] = reduced(operation, kind, parts).view(f"u{size}")
    write = warp.write64 if size == 8 else warp.write32
    for register, values in zip(registers, out.T, strict=True):
        write(register, np.ascontiguousarray(values).astype(np.uint64 if size == 8 else np.uint32))


@instruction(pattern=rf"multimem\.st{_ORDER}{_VECTOR}\.([usb]32|[usb]64|f32|f64|{_HALVES})")
def st(warp, ins, match):
    """[a], b: the same to every memory."""
    kind = match[2]
    nbytes = int(match[1] or 1) * _register_bytes(kind)
    data = _source_bytes(warp, ins.operands[1], kind)
    for lane, places in _lanes(warp, ins.operands[0], nbytes, "multimem.st"):
        for place in places:
            _write(warp, place, data[lane])
    warp.note_progress()


@instruction(pattern=rf"multimem\.red{_ORDER}\.{_COMBINED}")
def red(warp, ins, match):
    """[a], b: every memory is combined with b, atomically."""
    operation, count, kind = _what(match)
    nbytes = count * _register_bytes(kind)
    data = _source_bytes(warp, ins.operands[1], kind)
    for lane, places in _lanes(warp, ins.operands[0], nbytes, "multimem.red"):
        for place in places:
            old = _read(warp, place, nbytes)
            _write(warp, place, reduced(operation, kind, (old, data[lane])))
    warp.note_progress()


# --- bulk copies --------------------------------------------------------------------------------------

_BULK = r"\.global\.shared::cta\.bulk_group"


def _bulk(warp, ins, label, change):
    """[a], [src], size: change(old bytes, new bytes) -> [(first, bytes to write from there on)] in every memory."""
    memory, own = warp.cta.machine.memory, warp.cta
    for lane in warp.lanes:
        address = int(warp.address(ins.operands[0])[lane])
        if address % BULK_ALIGNMENT:
            warp.fault(f"{ins.opcode} to 0x{address:x}: not aligned to 16 bytes", IllegalAccess)
        _, offset = resolve_shared(
            warp, ins.operands[1], lane, "cta", "bulk copy source", BULK_ALIGNMENT
        )
        size = bulk_size(warp, ins.operands[2], lane)
        places = [
            m.addresses(address, size) for m in memory.multicasts if m.addresses(address, size)
        ]
        if not places:
            _places(warp, address, BULK_ALIGNMENT, ins.opcode)  # faults outside of every range
            warp.fault(f"{ins.opcode} of {size} bytes leaves its multimem range", IllegalAccess)

        def write(data, checks, places=places[0], lane=lane):
            for place in places:
                for first, new in change(lane, lambda at=place: memory.read(at, len(data)), data):
                    checks.writes_global(place + first, len(new), atomic="reduce" in ins.opcode)
                    memory.write(place + first, new)

        read = shared_source(own, offset, size)
        submit_store(warp, [lane], read, write, f"multimem {label} of {size} bytes")


@instruction(pattern=rf"multimem\.cp\.async\.bulk{_BULK}(\.cp_mask)?")
def bulk_store(warp, ins, match):
    """[a], [src], size{, byteMask}: own shared memory -> every memory."""
    masks = warp.read32(ins.operands[3]) if match[1] else None

    def change(lane, old, data):
        mask = None if masks is None else int(masks[lane]) & 0xFFFF
        return [(first, data[first:end]) for first, end in masked_runs(mask, len(data))]

    _bulk(warp, ins, "bulk store", change)


@instruction(pattern=rf"multimem\.cp\.reduce\.async\.bulk{_BULK}\.{GLOBAL_OPERATIONS}")
def bulk_reduce(warp, ins, match):
    """[a], [src], size: every memory = op(it, own shared memory)."""
    operation, kind = (group for group in match.groups() if group)

    def change(lane, old, data):
        return [(0, combine(operation, kind, old(), data))]

    _bulk(warp, ins, f"bulk {operation}.{kind}", change)
