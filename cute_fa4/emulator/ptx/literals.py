"""Numbers in PTX: integers, floats as bits (0f3F800000), decimal floats."""

import re
import struct

from cute_fa4.emulator.ptx.syntax import Imm

_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?$")
_FLOAT_BITS = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?$")


def constant(word, opcode):
    """Imm of a literal, None if the word is not one. Decimal floats take the width of the opcode."""
    if not (word[0].isdigit() or word[0] in "+-."):
        return None
    m = _FLOAT_BITS.match(word)
    if m:
        bits, width = int(m[3], 16), 32 if m[2] in "fF" else 64
        return Imm(bits ^ (1 << width - 1) if m[1] else bits, True)
    if _INTEGER.match(word):
        digits = word.rstrip("U")
        sign = -1 if digits[0] == "-" else 1
        digits = digits.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1] in "01234567"
        return Imm(sign * int(digits, 8 if octal else 0))
    if _DECIMAL.match(word):
        wide = opcode.endswith("f64")
        return Imm(int.from_bytes(struct.pack("<d" if wide else "<f", float(word)), "little"), True)
    return None
