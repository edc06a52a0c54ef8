"""Video instructions: on integers of two types, and on their pairs and quadruples with saturation.

    vadd.s32.u32.s32              d, a, b        d = a + b                    vsub, vabsdiff, vmin, vmax
    vadd.s32.u32.s32.add          d, a, b, c     d = a + b + c
    vadd4.u32.u32.u32.sat         d, a, b, c     each byte clamp(a + b)       also vavrg4; ...2: of 16 bits
    vabsdiff4.u32.u32.u32.add     d, a, b, c     d = c + the sum over the bytes
    vset4.u32.u32.lt              d, a, b, c     each byte 1 or 0

The types are those of d, a and b. Operands with byte selectors or masks (a.b0, d.b10) have no meaning here.
PTX ISA, "Scalar Video Instructions", "SIMD Video Instructions".
"""

import itertools

import numpy as np

from cute_fa4.emulator.instructions.compare import COMPARE, UNSIGNED
from cute_fa4.emulator.instructions.dot_products import SIGNS, parts
from cute_fa4.emulator.instructions.instruction_table import lanes, later, refuse

refuse(
    r"v(add|sub|absdiff|min|max)(\.[us]32){3}(\.sat)?(\.(add|min|max))?",
    "what an H200 computes is not what the PTX ISA states: sums of u32 wrap, minima of u32 are those of s32",
)
refuse(
    r"v(mad|shl|shr|set)\..*",
    "of the scalar video instructions, vadd vsub vabsdiff vmin vmax have a meaning; write it with 64-bit integers",
)

# name -> (C of x and y in 64 bits, NumPy of int64)
OPERATIONS = {
    "vadd": ("x + y", np.add),
    "vsub": ("x - y", np.subtract),
    "vabsdiff": ("(x < y ? y - x : x - y)", lambda x, y: np.abs(x - y)),
    "vmin": ("(x < y ? x : y)", np.minimum),
    "vmax": ("(x < y ? y : x)", np.maximum),
}
AVERAGE = ("(x + y + (x + y >= 0)) >> 1", lambda x, y: x + y + (x + y >= 0) >> 1)
TYPES = tuple(itertools.product(SIGNS, SIGNS, SIGNS))


def limits(bits, signed):
    """The smallest and the largest integer of so many bits."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _field(word, place, bits, t):
    """C: a part of a word as a 64-bit integer."""
    return f"(s64)({t[0]}{bits})({word} >> {bits * place})"


def _finished(bits, result, sat):
    """C that brings r into its part: clamped to the type of d, or its low bits."""
    low, high = limits(bits, result == "s32")
    return f"r = r < {low}ll ? {low}ll : r > {high}ll ? {high}ll : r; " if sat else ""


def _register_parts(name, bits, types, mode, operation):
    """One instruction on pairs or quadruples. mode: "", ".sat" or ".add"."""
    (result, of_a, of_b), (c_text, function) = types, operation
    count = 32 // bits

    def packed(a, b, c):
        """Each part separately, or their sum plus c. PTX ISA, SIMD Video Instructions."""
        r = function(parts(a, bits, of_a == "s32"), parts(b, bits, of_b == "s32"))
        if mode == ".add":
            return (r.sum(0) + c).astype(np.uint32)
        if mode == ".sat":
            r = np.clip(r, *limits(bits, result == "s32"))
        shifts = np.arange(0, 32, bits, dtype=np.int64)[:, None]
        return ((r & (1 << bits) - 1) << shifts).sum(0).astype(np.uint32)

    steps = ["s64 x, y, r", "u32 t = " + ("c" if mode == ".add" else "0")]
    for i in range(count):
        steps.append(f"x = {_field('a', i, bits, of_a)}; y = {_field('b', i, bits, of_b)}")
        steps.append(f"r = {c_text}; {_finished(bits, result, mode == '.sat')}")
        mask = (1 << bits) - 1
        steps.append("t += (u32)r" if mode == ".add" else f"t |= (u32)(r & {mask}) << {bits * i}")
    suffix = ".".join(types)
    lanes(
        f"{name}{count}.{suffix}{mode}", types="u32 <- u32 u32 u32", c="; ".join([*steps, "d = t"])
    )(packed)


def _register_set(bits, types, comparison, mode):
    """vset2 and vset4. mode: "" or ".add"."""
    (of_a, of_b), sign = types, UNSIGNED[comparison]
    count = 32 // bits
    compare = COMPARE[sign]

    def flags(a, b, c):
        """1 or 0 in each part, or their sum plus c. PTX ISA, vset2 and vset4."""
        r = compare(parts(a, bits, of_a == "s32"), parts(b, bits, of_b == "s32")).astype(np.int64)
        shifts = np.arange(0, 32, bits, dtype=np.int64)[:, None]
        return (r.sum(0) + c if mode else (r << shifts).sum(0)).astype(np.uint32)

    terms = (
        f"((u32)({_field('a', i, bits, of_a)} {sign} {_field('b', i, bits, of_b)})"
        f" << {0 if mode else bits * i})"
        for i in range(count)
    )
    text = f"d = {'c + ' * bool(mode)}{' + '.join(terms)}"
    lanes(f"vset{count}.{of_a}.{of_b}.{comparison}{mode}", types="u32 <- u32 u32 u32", c=text)(
        flags
    )


_INT = {"u32": np.uint32, "s32": np.int32}


def _register_scalar(name, types, adds):
    """One scalar instruction; adds: with a c that is added, as .add does."""
    (result, of_a, of_b), (c_text, function) = types, OPERATIONS[name]

    def plain(a, b):
        """The operation, modulo 2^32. PTX ISA, Scalar Video Instructions."""
        return function(a.astype(np.int64), b.astype(np.int64)).astype(_INT[result])

    def with_sum(a, b, c):
        """The operation, plus c. PTX ISA, Scalar Video Instructions."""
        return plain(a, b) + c

    text = f"s64 x = a, y = b, r = {c_text}; d = ({result})r" + " + c" * adds
    kinds = f"{result} <- {of_a} {of_b}" + f" {result}" * adds
    opcode = f"{name}.{'.'.join(types)}{'.add' * adds}"
    lanes(opcode, types=kinds, c=text)(with_sum if adds else plain)


@later(r"v(add|sub|absdiff|min|max|avrg|set)[24]?\..*")
def _register_all():
    for types in TYPES:
        for name, adds in itertools.product(OPERATIONS, (False, True)):
            _register_scalar(name, types, adds)
        for name, bits, mode in itertools.product(
            (*OPERATIONS, "vavrg"), (16, 8), ("", ".sat", ".add")
        ):
            _register_parts(name, bits, types, mode, OPERATIONS.get(name, AVERAGE))
    for types, comparison, bits, mode in itertools.product(
        itertools.product(SIGNS, SIGNS), ("eq", "ne", "lt", "le", "gt", "ge"), (16, 8), ("", ".add")
    ):
        _register_set(bits, types, comparison, mode)
