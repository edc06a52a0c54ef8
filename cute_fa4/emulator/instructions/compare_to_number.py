"""Comparisons that write numbers (PTX ISA, set; and set of half precision).

    set.lt.u32.s32        d, a, b        d = 0xffffffff if a < b else 0
    set.lt.f32.s32        d, a, b        d = 1.0 if a < b else 0.0
    set.lt.and.u32.s32    d, a, b, c     the same of (a < b) and c
    set.lt.f16x2.f16x2    d, a, b        each half of its own; .u32 and .s32: 0xffff in a half

The comparisons are those of compare.py.
"""

import itertools

import numpy as np

from cute_fa4.emulator.instructions.compare import (
    COMBINE,
    COMBINE_C,
    HALVES,
    float_comparisons,
    halves,
    integer_comparisons,
    of_halves,
)
from cute_fa4.emulator.instructions.instruction_table import lanes, later

# Type of the result -> (that of its register, what true is).
TRUE = {
    "u32": ("u32", 0xFFFFFFFF),
    "s32": ("u32", 0xFFFFFFFF),
    "f32": ("u32", 0x3F800000),
    "u16": ("u16", 0xFFFF),
    "s16": ("u16", 0xFFFF),
    "f16": ("u16", 0x3C00),
    "bf16": ("u16", 0x3F80),
}


def results_of(t, ftz):
    """The types that set may write for operands of a type (what ptxas 13.0 accepts)."""
    if t == "bf16":
        return "u32", "s32", "u16", "s16", "bf16"
    wide = ("u32", "s32", "f16") if ftz else ("u32", "s32", "f16", "bf16")
    return (*wide, "u16", "s16") if t == "f16" else (*wide, "f32")


def _register(name, ftz, t, expression, compare):
    whole = expression.format(a="a", b="b")
    for result, word in itertools.product(results_of(t, ftz), ("", *COMBINE)):
        kind, true = TRUE[result]
        number = np.dtype(kind.replace("u", "uint")).type(true)
        condition = f"{whole} {COMBINE_C[word]} c" if word else whole
        lanes(
            f"set.{name}{word and '.' + word}{ftz}.{result}.{t}",
            types=f"{kind} <- {t} {t}" + " pred" * bool(word),
            c=f"d = {condition} ? {true:#x}u : 0",
        )(_number(compare, COMBINE.get(word), number))


def _number(compare, combine, true):
    def plain(a, b):
        """A number that says whether a cmp b. PTX ISA, set."""
        return np.where(compare(a, b), true, type(true)(0))

    def combined(a, b, c):
        """A number that says whether (a cmp b) op c. PTX ISA, set."""
        return np.where(combine(compare(a, b), c), true, type(true)(0))

    return combined if combine else plain


def _register_pairs(name, ftz, t, expression, compare):
    declarations, *both = of_halves(t, expression)
    for result, word in itertools.product((f"{t}x2", "u32", "s32"), ("", *COMBINE)):
        true = TRUE[t][1] if result == f"{t}x2" else 0xFFFF
        low, high = (f"{each} {COMBINE_C[word]} c" if word else each for each in both)
        lanes(
            f"set.{name}{word and '.' + word}{ftz}.{result}.{t}x2",
            types="b32 <- b32 b32" + " pred" * bool(word),
            c=f"{declarations}; d = ({low} ? {true:#x}u : 0) | ({high} ? {true << 16:#x}u : 0)",
        )(_pair(t, _number(compare, COMBINE.get(word), np.uint32(true))))


def _pair(t, number):
    def plain(a, b):
        """The numbers of both halves. PTX ISA, set of half precision."""
        low, high = (number(x, y) for x, y in zip(halves(t, a), halves(t, b), strict=True))
        return high << np.uint32(16) | low

    def combined(a, b, c):
        """The numbers of both halves, combined with a predicate. PTX ISA, set of half precision."""
        low, high = (number(x, y, c) for x, y in zip(halves(t, a), halves(t, b), strict=True))
        return high << np.uint32(16) | low

    return combined if number.__name__ == "combined" else plain


@later(r"set\..*")
def _register_all():
    for row in (*integer_comparisons(), *float_comparisons()):
        _register(*row)
        if row[2] in HALVES:
            _register_pairs(*row)
