"""Comparisons that write predicates; compare_to_number.py has those that write numbers (set).

    setp.lt.s32       p,   a, b        p = a < b
    setp.lt.s32       p|q, a, b        q = not (a < b)
    setp.lt.and.s32   p|q, a, b, c     p = (a < b) and c,  q = not (a < b) and c
    setp.lt.f16x2     p|q, a, b        p = a < b of the lower halves,  q = a < b of the upper halves

Ordered comparisons (eq ne lt le gt ge) are false when an operand is NaN, the unordered ones (equ neu ltu leu
gtu geu) are true; num asks for no NaN, nan for a NaN.
PTX ISA, "Comparison and Selection Instructions".
"""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import lanes, later
from cute_fa4.emulator.machine.rounding import flush
from cute_fa4.emulator.ptx.lane_types import TYPES

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
HALVES = ("f16", "bf16")  # the second result of p|q belongs to the upper half of a pair
FLOATS = (("f32", ""), ("f32", ".ftz"), ("f64", ""), ("f16", ""), ("f16", ".ftz"), ("bf16", ""))
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
COMBINE_C = {"and": "&", "or": "|", "xor": "^"}


def integer_comparisons():
    """(name, .ftz, type, C expression of {a} and {b}, NumPy function) of every integer comparison."""
    rows = [(t, SIGNED) for t in ("s16", "s32", "s64")] + [
        (t, UNSIGNED) for t in ("u16", "u32", "u64")
    ]
    rows += [(t, {"eq": "==", "ne": "!="}) for t in ("b16", "b32", "b64")]
    for t, names in rows:
        for name, sign in names.items():
            yield name, "", t, f"({{a}} {sign} {{b}})", COMPARE[sign]


def float_comparisons():
    """(name, .ftz, type, C expression of {a} and {b}, NumPy function) of every floating-point comparison."""
    for t, ftz in FLOATS:
        read = {"f16.ftz": "in16_ftz", "f32.ftz": "in_ftz"}.get(t + ftz, "")
        a, b = f"{read}({{a}})", f"{read}({{b}})"
        for name, sign in SIGNED.items():
            ordered = f"({a} == {a} && {b} == {b} && {a} {sign} {b})"
            unordered = f"({a} != {a} || {b} != {b} || {a} {sign} {b})"
            yield name, ftz, t, ordered, _with_nan(sign, False, t, ftz)
            yield name + "u", ftz, t, unordered, _with_nan(sign, True, t, ftz)
        both, either = f"({a} == {a} && {b} == {b})", f"({a} != {a} || {b} != {b})"
        yield "num", ftz, t, both, lambda a, b: ~(np.isnan(a) | np.isnan(b))
        yield "nan", ftz, t, either, lambda a, b: np.isnan(a) | np.isnan(b)


def _with_nan(sign, when_nan, t, ftz):
    def compare(a, b):
        if ftz and t == "f32":
            a, b = flush(a), flush(b)
        elif ftz:
            a, b = (np.where(np.abs(x) < 2.0**-14, np.float32(0), x) for x in (a, b))
        return np.where(np.isnan(a) | np.isnan(b), when_nan, COMPARE[sign](a, b))

    return compare


def halves(t, word):
    """The lower and the upper half of packed pairs (uint32), decoded: f16 or bf16."""
    return tuple(TYPES[t].decode(word >> np.uint32(n) & np.uint32(0xFFFF)) for n in (0, 16))


def of_halves(t, expression):
    """C: declarations, and the expression of {a} and {b} on the lower and on the upper halves of the pairs a and b."""
    names = (("p", "a"), ("q", "b"))
    declarations = "; ".join(
        f"f32 {name}0 = f32_of_{t}((u16){word}), {name}1 = f32_of_{t}((u16)({word} >> 16))"
        for name, word in names
    )
    return declarations, *(expression.format(a=f"p{n}", b=f"q{n}") for n in (0, 1))


def _register(name, ftz, t, expression, compare):
    def setp(a, b):
        """p = a cmp b. PTX ISA, setp."""
        return compare(a, b)

    def setp_both(a, b):
        """p|q = a cmp b, not (a cmp b). PTX ISA, setp."""
        return compare(a, b), ~compare(a, b)

    whole = expression.format(a="a", b="b")
    lanes(f"setp.{name}{ftz}.{t}", types=f"pred <- {t} {t}", c=f"d = {whole}")(setp)
    if t not in HALVES:
        lanes(f"setp.{name}{ftz}.{t}", types=f"pred pred <- {t} {t}", c=f"d = {whole}; e = !d")(
            setp_both
        )
    for word, combine in COMBINE.items():
        opcode = f"setp.{name}.{word}{ftz}.{t}"
        _register_combined(opcode, t, whole, compare, combine, COMBINE_C[word])


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


def _combined(setp, combine):
    def both(a, b, c):
        """p|q = (a cmp b) op c of the lower and of the upper halves. PTX ISA, setp."""
        return tuple(combine(p, c) for p in setp(a, b))

    return both


def _register_pairs(name, ftz, t, expression, compare):
    declarations, low, high = of_halves(t, expression)
    # One word for both: GCC 12 vectorizes two separate conditions of halves wrongly (lanes 8 to 15).
    both = f"{declarations}; u32 t = (u32){low} | (u32){high} << 1"

    def setp(a, b):
        """p|q = a cmp b of the lower and of the upper halves. PTX ISA, setp of half precision."""
        return tuple(compare(x, y) for x, y in zip(halves(t, a), halves(t, b), strict=True))

    lanes(
        f"setp.{name}{ftz}.{t}x2",
        types="pred pred <- b32 b32",
        c=f"{both}; d = t & 1; e = t >> 1",
    )(setp)
    for word, combine in COMBINE.items():
        operator = COMBINE_C[word]
        lanes(
            f"setp.{name}.{word}{ftz}.{t}x2",
            types="pred pred <- b32 b32 pred",
            c=f"{both}; d = (t & 1) {operator} c; e = t >> 1 {operator} c",
        )(_combined(setp, combine))


for _row in (*integer_comparisons(), *float_comparisons()):
    _register(*_row)


@later(r"setp\..*x2")
def _pairs():
    for row in float_comparisons():
        if row[2] in HALVES:
            _register_pairs(*row)
