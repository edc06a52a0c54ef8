"""Registers wider than the type of a cvt: the implied truncations and extensions, as explicit conversions.

    cvt.s64.s32  %rd1, %rd2;      cvt.u32.u64 tmp, %rd2;   cvt.s64.s32 %rd1, tmp;     only the low part is read
    cvt.s32.f32  %rd1, %f1;       cvt.s32.f32 tmp, %f1;    cvt.s64.s32 %rd1, tmp;     extended according to the type

ptxas accepts both. PTX ISA, "Operand Size Exceeding Instruction-Type Size": a source is truncated to the type's
size. A result is sign-extended if its type is signed, and zero-extended otherwise. lanes.py itself reads the low
part of a 32-bit register.
"""

import dataclasses
import re

from cute_fa4.emulator.ptx.syntax import Reg

_CVT = re.compile(r"cvt(?:\.pack)?\..*?\.?(\w+)\.(\w+)$")
_BITS = re.compile(r"\w*?(8|16|32|64)(x2|x4)?$")


def _width(kind):
    """Bits of the register that a type needs, or 0 for a type whose name does not end in a size."""
    found = _BITS.fullmatch(kind)
    if found is None or found[2]:
        return 0
    return int(found[1])


def expanded(ins, scratch):
    """The expansion of an instruction: itself, or a cvt with its truncated source or extended result.

    scratch()  returns an unused 32-bit register
    """
    found = _CVT.fullmatch(ins.opcode)
    if found is None or len(ins.operands) != 2:
        return (ins,)
    target, source = ins.operands
    steps = [ins]
    if _is_wide(source) and 0 < _width(found[2]) <= 32:
        tmp = scratch()
        chop = dataclasses.replace(ins, opcode="cvt.u32.u64", operands=(tmp, source))
        steps = [chop, dataclasses.replace(ins, operands=(target, tmp))]
    kind, bits = found[1], _width(found[1])
    signed = kind[0] if kind[0] == "s" else "u"
    narrow = 0 < bits <= 16
    # A narrow signed result also needs its extension in a 32-bit register; lanes.py extends with zeros.
    if bits and isinstance(target, Reg) and target.bits > max(bits, 16 if signed == "s" else 32):
        tmp = dataclasses.replace(scratch(), bits=16) if narrow else scratch()
        result = dataclasses.replace(steps[-1], operands=(tmp, steps[-1].operands[1]))
        from_type = f"{signed}{16 if narrow else 32}"
        opcode = f"cvt.{signed}{target.bits}.{from_type}"
        steps[-1:] = [result, dataclasses.replace(ins, opcode=opcode, operands=(target, tmp))]
    return tuple(steps)


def _is_wide(operand):
    return isinstance(operand, Reg) and operand.bits == 64
