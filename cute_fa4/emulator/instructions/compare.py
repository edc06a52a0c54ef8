"""Comparisons: setp writes predicates, set writes numbers.

    setp.lt.s32       p,   a, b        p = a < b
    setp.lt.s32       p|q, a, b        q = not (a < b)
    setp.lt.and.s32   p|q, a, b, c     p = (a < b) and c,  q = not (a < b) and c
    set.lt.u32.s32    d,   a, b        d = 0xffffffff if a < b else 0     (.f32 result: 1.0 or 0.0)

Ordered comparisons (eq ne lt le gt ge) are false when an operand is NaN, the unordered ones (equ neu ltu leu
gtu geu) are true; num asks for no NaN, nan for a NaN.
PTX ISA, "Comparison and Selection Instructions".
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import flush

SIGNED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNSIGNED = SIGNED | {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
COMPARE = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
HALVES = ("f16", "bf16")  # PTX has no p|q for them
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
COMBINE_C = {"and": "&", "or": "|", "xor": "^"}


def integer_comparisons():
    """(suffix, type, C expression, NumPy function) of every integer comparison."""
    rows = [(t, SIGNED) for t in ("s16", "s32", "s64")] + [
        (t, UNSIGNED) for t in ("u16", "u32", "u64")
    ]
    rows += [(t, {"eq": "==", "ne": "!="}) for t in ("b16", "b32", "b64")]
    for t, names in rows:
        for name, sign in names.items():
            yield name, f".{t}", t, f"(a {sign} b)", COMPARE[sign]


def float_comparisons():
    """(suffix, type, C expression, NumPy function) of every floating-point comparison."""
    for t, ftz in (
        ("f32", ""),
        ("f32", ".ftz"),
        ("f64", ""),
        ("f16", ""),
        ("f16", ".ftz"),
        ("bf16", ""),
    ):
        read = {"f16.ftz": "in16_ftz", "f32.ftz": "in_ftz"}.get(t + ftz, "")
        a, b = f"{read}(a)", f"{read}(b)"
        for name, sign in SIGNED.items():
            ordered = f"({a} == {a} && {b} == {b} && {a} {sign} {b})"
            unordered = f"({a} != {a} || {b} != {b} || {a} {sign} {b})"
            yield name, f"{ftz}.{t}", t, ordered, _with_nan(sign, False, t, ftz)
            yield name + "u", f"{ftz}.{t}", t, unordered, _with_nan(sign, True, t, ftz)
        yield (
            "num",
            f"{ftz}.{t}",
            t,
            f"({a} == {a} && {b} == {b})",
            lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        )
        yield (
            "nan",
            f"{ftz}.{t}",
            t,
            f"({a} != {a} || {b} != {b})",
            lambda a, b: np.isnan(a) | np.isnan(b),
        )


def _with_nan(sign, when_nan, t, ftz):
    def compare(a, b):
        if ftz and t == "f32":
            a, b = flush(a), flush(b)
        elif ftz:
            a, b = (np.where(np.abs(x) < 2.0**-14, np.float32(0), x) for x in (a, b))
        return np.where(np.isnan(a) | np.isnan(b), when_nan, COMPARE[sign](a, b))

    return compare


def _register(name, suffix, t, expression, compare):
    def setp(a, b):
        """p = a cmp b. PTX ISA, setp."""
        return compare(a, b)

    def setp_both(a, b):
        """p|q = a cmp b, not (a cmp b). PTX ISA, setp."""
        return compare(a, b), ~compare(a, b)

    lanes(f"setp.{name}{suffix}", types=f"pred <- {t} {t}", c=f"d = {expression}")(setp)
    if t not in HALVES:
        lanes(f"setp.{name}{suffix}", types=f"pred pred <- {t} {t}", c=f"d = {expression}; e = !d")(
            setp_both
        )
    for word, combine in COMBINE.items():
        _register_combined(
            f"setp.{name}.{word}{suffix}", t, expression, compare, combine, COMBINE_C[word]
        )


def _register_combined(opcode, t, expression, compare, combine, operator):
    def setp(a, b, c):
        """p = (a cmp b) op c. PTX ISA, setp."""
        return combine(compare(a, b), c)

    def setp_both(a, b, c):
        """p|q = (a cmp b) op c, not (a cmp b) op c. PTX ISA, setp."""
        return combine(compare(a, b), c), combine(~compare(a, b), c)

    lanes(opcode, types=f"pred <- {t} {t} pred", c=f"d = {expression} {operator} c")(setp)
    if t not in HALVES:
        lanes(
            opcode,
            types=f"pred pred <- {t} {t} pred",
            c=f"int t = {expression}; d = t {operator} c; e = !t {operator} c",
        )(setp_both)


def _register_set(name, suffix, t, expression, compare):
    def set_integer(a, b):
        """All ones where a cmp b, else 0. PTX ISA, set."""
        return np.where(compare(a, b), np.uint32(0xFFFFFFFF), np.uint32(0))

    def set_float(a, b):
        """1.0 where a cmp b, else 0.0. PTX ISA, set."""
        return compare(a, b).astype(np.float32)

    ftz, t_suffix = (
        (".ftz", suffix.removeprefix(".ftz")) if suffix.startswith(".ftz") else ("", suffix)
    )
    for result in ("u32", "s32"):
        lanes(
            f"set.{name}{ftz}.{result}{t_suffix}",
            types=f"u32 <- {t} {t}",
            c=f"d = {expression} ? -1 : 0",
        )(set_integer)
    lanes(
        f"set.{name}{ftz}.f32{t_suffix}",
        types=f"f32 <- {t} {t}",
        c=f"d = {expression} ? 1.0f : 0.0f",
    )(set_float)


for _row in (*integer_comparisons(), *float_comparisons()):
    _register(*_row)
    if _row[2] in ("u32", "s32", "b32", "f32"):
        _register_set(*_row)
