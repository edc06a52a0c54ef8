"""Atomics in global and shared memory: lanes one after another, lowest first.

    atom.global.add.u32 d, [a], b            atom.global.add.noftz.v4.f16x2 {d, ...}, [a], {b, ...}
    red.add.f64 [a], b                       red.global.v2.f32.add [a], {b, ...}       (the words in another order)
    atom.cas.b16 d, [a], b, c                atom.exch.b128 d, [a], b

A vector and a packed pair are atomic per element. Sums of f16 and bf16 are rounded once, to nearest even.
PTX ISA, "Parallel Synchronization and Communication Instructions: atom", "red".
"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.memory import QUALIFIERS, SIZED, gather, scatter
from cute_fa4.emulator.machine import polls
from cute_fa4.emulator.machine.rounding import (
    BF16,
    F16,
    Format,
    decode,
    encode,
    maximum,
    minimum,
    odd_sum,
)
from cute_fa4.emulator.machine.warp import LOCAL_BASE
from cute_fa4.emulator.ptx.parser import Vec

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_TYPE = r"(?:[busf](?:32|64)|b?f16(?:x2)?)"
_ATOMIC = (
    rf"{QUALIFIERS}(?:\.(?:global|shared(?:::cta|::cluster)?))?{QUALIFIERS}(?:"
    rf"\.(?:{'|'.join(_OPERATIONS)}){QUALIFIERS}(?:\.noftz)?{QUALIFIERS}(?:\.v[248])?\.{_TYPE}"
    rf"|\.v[248]\.{_TYPE}\.(?:add|min|max)(?:\.noftz)?{QUALIFIERS}"
    rf"|\.cas{QUALIFIERS}\.b16|\.(?:exch|cas){QUALIFIERS}\.b128)"
)


@dataclass(frozen=True, slots=True)
class _Atomic:
    """A decoded opcode. number: NumPy type of an element; half: its format if it is f16 or bf16; pairs: two of
    them in a register."""

    space: str
    operation: str
    number: np.dtype
    half: Format | None = None
    pairs: bool = False


@functools.cache
def _decode(opcode):
    words = opcode.split(".")[1:]
    space = next((w.split("::")[0] for w in words if w == "global" or w.startswith("shared")), "")
    operation = next(word for word in words if word in _OPERATIONS)
    kind = next(word for word in words if re.fullmatch(rf"{_TYPE}|b16|b128", word))
    if "f16" in kind:
        half = BF16 if kind.startswith("b") else F16
        return _Atomic(space, operation, np.dtype(np.uint16), half, kind.endswith("x2"))
    size = int(kind[1:]) // 8
    letter = {"f": "f", "s": "i", "b": "V" if size == 16 else "u"}.get(kind[0], "u")
    return _Atomic(space, operation, np.dtype(f"{letter}{size}"))


def applied(operation, old, b, c):
    """The new value of one atomic operation on NumPy scalars of the right type."""
    if operation == "add":
        return old + b
    if operation in ("min", "max"):
        return (np.fmin if operation == "min" else np.fmax)(old, b)
    if operation == "exch":
        return b
    if operation == "cas":
        return c if old == b else old
    if operation == "inc":
        return type(old)(0) if old >= b else old + type(old)(1)
    if operation == "dec":
        return b if old == 0 or old > b else old - type(old)(1)
    return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation](old, b)


def applied_to_half(operation, fmt, old, b):
    """The new bits of an element of f16 or bf16."""
    x, y = (decode(np.array([bits]), fmt) for bits in (old, b))
    if operation == "add":
        return encode(odd_sum(x, y), fmt)[0]
    return encode((minimum if operation == "min" else maximum)(x, y), fmt)[0]


def _elements(warp, operand, atomic):
    """[elements, 32]: the elements of an operand, in all lanes."""
    registers = operand.items if isinstance(operand, Vec) else (operand,)
    number = atomic.number
    if number.itemsize == 16:
        words = np.stack([warp.read64(half) for half in operand.halves()], axis=1)
        return np.ascontiguousarray(words).view(number).reshape(1, 32)
    read = warp.read64 if number.itemsize == 8 else warp.read32
    words = np.stack([read(register) for register in registers])
    if atomic.pairs:
        words = np.stack([words, words >> np.uint32(16)], axis=1).reshape(-1, 32)
    return words.astype(f"u{number.itemsize}").view(number)


def _write_elements(warp, target, atomic, values):
    """Write [elements, 32] to the registers of an operand."""
    number = atomic.number
    if number.itemsize == 16:
        for half, word in zip(
            target.halves(), values.view(np.uint64).reshape(32, 2).T, strict=True
        ):
            warp.write64(half, np.ascontiguousarray(word))
        return
    words = values.view(SIZED[number.itemsize])
    if atomic.pairs:
        wide = words.astype(np.uint32)
        words = wide[0::2] | wide[1::2] << np.uint32(16)
    write = warp.write64 if number.itemsize == 8 else warp.write32
    registers = target.items if isinstance(target, Vec) else (target,)
    for register, column in zip(registers, words, strict=True):
        write(register, column)


def _atomic(warp, ins, address, operands, target=None):
    atomic = _decode(ins.opcode)
    space, number, size = atomic.space, atomic.number, atomic.number.itemsize
    given = [_elements(warp, operand, atomic) for operand in operands]
    addresses = warp.address(address)
    looked_at = addresses[warp.lanes]
    looks = space in ("global", "") and int(looked_at.max()) < LOCAL_BASE and size <= 8
    if looks and ins in warp.polls:  # it changed nothing
        wait = polls.look(warp, ins, looked_at)
        if wait is not None:
            return wait
    changed = False
    results = np.zeros(given[0].shape, number)
    with np.errstate(over="ignore", invalid="ignore"):
        for lane in warp.lanes:  # one lane after another, lowest first
            for i in range(len(results)):
                at = addresses[lane : lane + 1] + np.uint64(i * size)
                raw = np.ascontiguousarray(gather(warp, space, at, size))
                old = raw.view(number).reshape(-1)[0]
                b, c = given[0][i, lane], given[1][i, lane] if len(given) > 1 else None
                if atomic.half:
                    value = applied_to_half(atomic.operation, atomic.half, old, b)
                else:
                    value = applied(atomic.operation, old, b, c)
                new = np.array([value], number)
                changed |= new.tobytes() != old.tobytes()
                scatter(warp, space, at, new.view(SIZED.get(size, np.uint64)), size)
                results[i, lane] = old
    if changed:
        warp.note_progress()
        warp.polls.pop(ins, None)
    elif looks:
        if ins not in warp.polls:
            polls.look(warp, ins, looked_at)
        first = results.view(SIZED[size])[0, warp.lanes[0]]
        polls.saw(warp, ins, first, size)
    if target is not None:
        _write_elements(warp, target, atomic, results)
    return None


@instruction(pattern="atom" + _ATOMIC)
def atom(warp, ins, _match):
    """d = [a]; [a] = op([a], b[, c]): lanes one after another."""
    count = 2 if _decode(ins.opcode).operation == "cas" else 1
    return _atomic(warp, ins, ins.operands[1], ins.operands[2 : 2 + count], ins.operands[0])


@instruction(pattern="red" + _ATOMIC)
def red(warp, ins, _match):
    """[a] = op([a], b): an atom without result."""
    return _atomic(warp, ins, ins.operands[0], ins.operands[1:2])
