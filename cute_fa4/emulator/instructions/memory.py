"""Loads and stores in every state space.

    ld.shared.v4.b32 {a, b, c, d}, [x];    one gather of 16 bytes per lane, then one write per register
    ld.b32 d, [generic]                    lanes grouped by the window of their address

The emulator executes one instruction at a time, so every access is atomic and in program order. Memory order
qualifiers and fences change no value; only the ordering checks use them. Scopes are accepted.
PTX ISA, "Data Movement and Conversion Instructions: ld, ld.global.nc, st".
"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.checks import memory as checks
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine import polls
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.machine.warp import FULL, LOCAL_BASE, PARAM_BASE, SHARED_BASE
from cute_fa4.emulator.ptx.errors import IllegalAccess
from cute_fa4.emulator.ptx.parser import Addr, Reg, Sink, Symbol, Vec

QUALIFIERS = (
    r"(?:\.(?:weak|volatile|relaxed|acquire|release|acq_rel|mmio|cta|cluster|gpu|sys|nc|ca|cg|cs|cv|lu|wb|wt|unified"
    r"|L1::\w+|L2::\w+))*"
)
_SPACES = r"(?:\.(global|shared(?:::cta|::cluster)?|param(?:::entry)?|const|local))?"
_TYPES = r"\.([busf])(8|16|32|64|128)"
SIZED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class _Access:
    """A decoded ld or st: state space ("" generic), number of elements, bytes of one, sign extension, strength.

    A .b128 counts as two elements of 8 bytes: the halves of its register.
    """

    space: str
    count: int
    size: int
    signed: bool
    strong: bool


_STRONG = {"volatile", "relaxed", "acquire", "mmio"}


@functools.cache
def _decode(opcode):
    m = re.fullmatch(
        rf"(?:ld|st|ldu){QUALIFIERS}{_SPACES}{QUALIFIERS}(?:\.v([248]))?{QUALIFIERS}{_TYPES}",
        opcode,
    )
    count, size = (2, 8) if m[4] == "128" else (int(m[2] or 1), int(m[4]) // 8)
    strong = not _STRONG.isdisjoint(opcode.split("."))
    return _Access((m[1] or "").split("::")[0], count, size, m[3] == "s", strong)


_LD_ST = rf"{QUALIFIERS}{_SPACES}{QUALIFIERS}(?:\.v([248]))?{QUALIFIERS}{_TYPES}"


@instruction(pattern="ldu?" + _LD_ST)
def load(warp, ins, match):
    """d = [a]: registers wider than the type are zero- or sign-extended."""
    access = _decode(ins.opcode)
    if access.space == "shared" and _load_shared(warp, ins, access):
        return None
    if access.space == "param" and _load_parameter(warp, ins, access):
        return None
    target, source = ins.operands[0], ins.operands[1]
    targets = target.items if isinstance(target, Vec) else (target,)
    if len(targets) < access.count:
        targets = target.halves()
    lanes = warp.lanes
    addresses = warp.address(source)[lanes]
    looks = access.strong and access.space in ("global", "") and int(addresses.max()) < LOCAL_BASE
    if looks:
        wait = polls.look(warp, ins, addresses)
        if wait is not None:
            return wait
    values = gather(warp, access.space, addresses, access.count * access.size)
    if looks and access.size * access.count <= 8:
        polls.saw(warp, ins, values[0], access.size * access.count)
    parts = np.ascontiguousarray(values).view(SIZED[access.size]).reshape(len(lanes), access.count)
    if access.signed and access.size < 8:
        parts = parts.view(f"i{access.size}").astype(np.int64).view(np.uint64)
    for i, register in enumerate(targets):
        if isinstance(register, Sink):
            continue
        column = parts[:, i]
        if len(lanes) < 32:
            full = np.zeros(32, column.dtype)
            full[lanes] = column
            column = full
        if isinstance(register, Reg) and register.bits == 64:
            warp.write64(register, column)
        else:
            warp.write32(register, column.astype(np.uint32))
    return None


@instruction(pattern="st" + _LD_ST)
def store(warp, ins, match):
    """[a] = b: the low bytes of wider registers."""
    access = _decode(ins.opcode)
    if access.space == "shared" and _store_shared(warp, ins, access):
        return
    target, source = ins.operands[0], ins.operands[1]
    sources = source.items if isinstance(source, Vec) else (source,)
    if len(sources) < access.count:
        sources = source.halves()
    lanes = warp.lanes
    dtype = SIZED[access.size]
    values = np.empty((len(lanes), access.count), dtype)
    for i, operand in enumerate(sources):
        wide = access.size == 8 or isinstance(operand, Reg) and operand.bits == 64
        whole = warp.read64(operand) if wide else warp.read32(operand)
        values[:, i] = whole[lanes] if len(lanes) < 32 else whole
    scatter(warp, access.space, warp.address(target)[lanes], values, access.count * access.size)
    warp.note_progress()


def _load_parameter(warp, ins, access):
    """Load from a parameter by its name, which is the same for all lanes; False, without an effect, for a register."""
    target, source = ins.operands
    base = source.base if isinstance(source, Addr) else source
    if not (isinstance(base, Symbol) and base.space == "param"):
        return False
    targets = target.items if isinstance(target, Vec) else (target,)
    if len(targets) < access.count:
        return False
    size = access.size
    start = base.offset + (source.offset if isinstance(source, Addr) else 0)
    data = warp.cta.machine.params.read(start, access.count * size, warp.issuer()).tobytes()
    for i, register in enumerate(targets):
        value = int.from_bytes(data[i * size : (i + 1) * size], "little", signed=access.signed)
        if isinstance(register, Reg) and register.bits == 64:
            warp.write64(register, np.uint64(value & 0xFFFFFFFFFFFFFFFF))
        else:
            warp.write32(register, np.uint32(value & FULL))
    return True


# --- the usual case of shared memory: a 32-bit address, registers, the own CTA -----------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """A load or store for fast_paths.c; row: of the address, codes: of the registers."""

    row: int
    offset: int
    codes: np.ndarray


_KINDS = {32: 0, 64: 1, 16: 2}


def _plan(ins, access, address, registers):
    """_Plan of an instruction, or False if Python must execute it; made once."""
    registers = registers.items if isinstance(registers, Vec) else (registers,)
    loads = address is ins.operands[1]
    if not (
        len(registers) == access.count
        and isinstance(address, Addr)
        and isinstance(address.base, Reg)
        and address.base.bits == 32
        and all(_moves(register, access.size, loads) for register in registers)
    ):
        return ins.prepare(False)
    codes = [-1 if isinstance(r, Sink) else r.row * 4 + _KINDS[r.bits] for r in registers]
    return ins.prepare(_Plan(address.base.row, address.offset & FULL, np.array(codes)))


def _moves(operand, size, loads):
    if isinstance(operand, Sink):
        return loads
    return (
        isinstance(operand, Reg)
        and operand.bits in _KINDS
        and (loads or operand.bits < 64 or size == 8)
    )


_offsets = np.zeros(32, np.int64)


def _load_shared(warp, ins, access):
    """Load from the own CTA's shared memory in C; False, without an effect, in unusual cases."""
    plan = ins.prepared
    if plan is None:
        plan = _plan(ins, access, ins.operands[1], ins.operands[0])
    if not plan:
        return False
    cta, mask, nbytes = warp.cta, warp.mask, access.count * access.size
    shared = cta.shared
    count = fast.shared_offsets(
        warp.R,
        plan.row,
        plan.offset,
        mask,
        cta.rank,
        shared.size,
        nbytes,
        shared.written,
        1,
        _offsets,
    )
    if count < 0:
        return False
    if shared.shadow is not None:
        checks.shared_items(cta.machine.ordering, warp, shared, _offsets[:count], nbytes)
    fast.load_registers(
        warp.R, mask, shared.bytes, _offsets, plan.codes, access.count, access.size, access.signed
    )
    return True


def _store_shared(warp, ins, access):
    """Store to the own CTA's shared memory in C, likewise."""
    plan = ins.prepared
    if plan is None:
        plan = _plan(ins, access, ins.operands[0], ins.operands[1])
    if not plan:
        return False
    cta, mask, nbytes = warp.cta, warp.mask, access.count * access.size
    shared = cta.shared
    count = fast.shared_offsets(
        warp.R,
        plan.row,
        plan.offset,
        mask,
        cta.rank,
        shared.size,
        nbytes,
        shared._owned,
        0,
        _offsets,
    )
    if count < 0:
        return False
    if shared.shadow is not None:

        def values():
            """The stored values, for the check of equal writes."""
            stored = np.zeros((count, nbytes), np.uint8)
            rows = np.arange(count) * nbytes
            fast.store_registers(
                warp.R,
                mask,
                stored,
                np.zeros_like(stored),
                rows,
                plan.codes,
                access.count,
                access.size,
            )
            return _items(stored, nbytes)

        checks.shared_items(cta.machine.ordering, warp, shared, _offsets[:count], nbytes, values)
    fast.store_registers(
        warp.R, mask, shared.bytes, shared.written, _offsets, plan.codes, access.count, access.size
    )
    warp.note_progress()
    return True


def gather(warp, space, addresses, nbytes):
    """One item of nbytes per address in a state space ("" generic).

    Returns uint8 .. uint64; items wider than 8 bytes have a trailing axis of uint32.
    """
    issuer = warp.issuer()
    if space == "global" or space == "const":
        values = warp.cta.machine.memory.gather(addresses, nbytes, issuer)
        order = warp.cta.machine.ordering
        if order is not None:
            checks.global_items(order, warp, addresses, nbytes)
        return values
    if space == "shared":

        def read(shared, at, _):
            values = shared.gather(at, nbytes, issuer)
            if shared.shadow is not None:
                order = warp.cta.machine.ordering
                checks.shared_items(order, warp, shared, at, nbytes)
            return values

        return _per_cta(warp, addresses, read, nbytes)
    if space == "param":
        offsets = np.where(
            addresses >= np.uint64(PARAM_BASE), addresses - np.uint64(PARAM_BASE), addresses
        )
        return warp.cta.machine.params.gather(offsets.astype(np.int64), nbytes, issuer)
    if space == "local":
        return _local(warp, addresses, nbytes, None)
    return _generic(warp, addresses, nbytes, None)


def scatter(warp, space, addresses, values, nbytes):
    """Write one item of nbytes per address in a state space ("" generic)."""
    issuer = warp.issuer()
    if space == "global":
        order = warp.cta.machine.ordering
        check = None
        if order is not None:
            check = functools.partial(checks.global_items, order, warp, addresses, nbytes, values)
        warp.cta.machine.memory.scatter(addresses, values, nbytes, issuer, check)
    elif space == "shared":

        def write(shared, at, chosen):
            order = warp.cta.machine.ordering
            items = _items(values, nbytes)[chosen]
            check = None
            if shared.shadow is not None:
                check = functools.partial(
                    checks.shared_items, order, warp, shared, at, nbytes, items
                )
            shared.scatter(at, items, nbytes, issuer, check)

        _per_cta(warp, addresses, write)
    elif space == "local":
        _local(warp, addresses, nbytes, values)
    elif space == "":
        _generic(warp, addresses, nbytes, values)
    else:
        warp.fault(f"{warp.ins.opcode} writes to {space} memory, which is read-only", IllegalAccess)


def _items(values, nbytes):
    """Values as one item per row: (n,) for up to 8 bytes, (n, k) words of 8 bytes above."""
    raw = np.ascontiguousarray(values)
    if nbytes <= 8:
        return raw.view(SIZED[nbytes]).reshape(-1)
    return raw.view(np.uint64).reshape(-1, nbytes // 8)


def _per_cta(warp, addresses, access, nbytes=0):
    """Call access(shared memory, offsets, indices of addresses) for every CTA that the addresses name."""
    resolve = warp.cta.cluster.resolve
    offsets = addresses.astype(np.int64)
    low, high = int(offsets.min()), int(offsets.max())
    if low >> 24 == high >> 24:
        cta, _ = resolve(low)
        if low >> 24:
            offsets &= 0xFFFFFF
        return access(cta.shared, offsets, slice(None))
    ranks = offsets >> 24
    offsets &= 0xFFFFFF
    out = None
    for rank in sorted(set(ranks.tolist())):
        chosen = np.nonzero(ranks == rank)[0]
        cta, _ = resolve(int(addresses[chosen[0]]))
        part = access(cta.shared, offsets[chosen], chosen)
        if part is not None:
            out = np.empty((len(addresses), *part.shape[1:]), part.dtype) if out is None else out
            out[chosen] = part
    return out


def _generic(warp, addresses, nbytes, values):
    """Load (values None) or store with generic addresses: every lane in the window of its address."""
    windows = np.zeros(len(addresses), np.int64)
    for number, base in enumerate((LOCAL_BASE, PARAM_BASE, SHARED_BASE), start=1):
        windows[addresses >= np.uint64(base)] = number
    out = None
    for number, (space, base) in enumerate(
        (("global", 0), ("local", LOCAL_BASE), ("param", PARAM_BASE), ("shared", SHARED_BASE))
    ):
        chosen = np.nonzero(windows == number)[0]
        if not len(chosen):
            continue
        part_addresses = addresses[chosen] - np.uint64(base)
        if base and (part_addresses > np.uint64(FULL)).any():
            warp.fault(
                f"generic address 0x{int(addresses[chosen[0]]):x} lies in no memory", IllegalAccess
            )
        if space == "local":
            # Local variables keep their window: the reading lane selects the bytes.
            part = _local(
                warp, addresses[chosen], nbytes, None if values is None else values[chosen], chosen
            )
        elif values is None:
            part = gather(warp, space, part_addresses, nbytes)
        else:
            scatter(warp, space, part_addresses, values[chosen], nbytes)
            part = None
        if part is not None:
            out = np.zeros((len(addresses), *part.shape[1:]), part.dtype) if out is None else out
            out[chosen] = part
    return out


def _local(warp, addresses, nbytes, values, chosen=None):
    """Local memory: the same addresses in every lane, with separate bytes."""
    memory = warp.local_memory()
    lanes = np.asarray(warp.lanes)
    if chosen is not None:
        lanes = lanes[chosen]
    base = np.uint64(LOCAL_BASE)
    offsets = np.where(addresses >= base, addresses - base, addresses).astype(np.int64)
    if len(offsets) and (offsets.min() < 0 or offsets.max() + nbytes > memory.shape[1]):
        warp.fault(
            f"access of {nbytes} bytes at local offset {int(offsets.max())}; the kernel declares "
            f"{memory.shape[1]} bytes",
            IllegalAccess,
        )
    index = (lanes[:, None], offsets[:, None] + np.arange(nbytes))
    if values is None:
        raw = memory[index]
        return raw.view(SIZED[nbytes])[:, 0] if nbytes <= 8 else raw.view(np.uint32)
    memory[index] = np.ascontiguousarray(values).view(np.uint8).reshape(len(lanes), nbytes)
    return None
