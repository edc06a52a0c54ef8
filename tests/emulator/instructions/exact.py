"""Rounding by exact fractions: an oracle that shares no arithmetic with the emulator.

    exact_round(x, F32, ".rm")      bits of the Fraction x rounded to a format
    value(bits, F32)                the Fraction that bits stand for, or "nan", "inf", "-inf"

A format is (mantissa bits, smallest normal exponent, code of the largest finite value, total bits).
"""

from fractions import Fraction

F32 = (23, -126, 0x7F7FFFFF, 32)
F64 = (52, -1022, 0x7FEFFFFFFFFFFFFF, 64)
F16 = (10, -14, 0x7BFF, 16)
BF16 = (7, -126, 0x7F7F, 16)
E4M3 = (3, -6, 0x7E, 8)
E5M2 = (2, -14, 0x7B, 8)


def value(bits, fmt):
    """The Fraction that the code ``bits`` stands for; "nan", "inf" or "-inf" for the others."""
    mantissa_bits, min_exponent, largest, width = fmt
    sign = -1 if bits >> (width - 1) else 1
    magnitude = int(bits) & ((1 << (width - 1)) - 1)
    if magnitude > largest:
        infinity = fmt is not E4M3 and magnitude == largest + 1
        return ("inf" if sign > 0 else "-inf") if infinity else "nan"
    fraction, biased = magnitude & ((1 << mantissa_bits) - 1), magnitude >> mantissa_bits
    if biased:
        fraction |= 1 << mantissa_bits
    return (
        sign
        * Fraction(fraction)
        * Fraction(2) ** (max(biased, 1) - 1 + min_exponent - mantissa_bits)
    )


def exact_round(x, fmt, rounding=".rn", zero_sign=0, satfinite=False):
    """Code of the Fraction x rounded to fmt by .rn .rz .rm .rp .rna; x == 0 takes the sign bit zero_sign."""
    mantissa_bits, min_exponent, largest, width = fmt
    sign = zero_sign if x == 0 else int(x < 0)
    size = abs(x)
    exponent = min_exponent
    if size:
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent
        exponent = max(exponent, min_exponent)
    units = size / Fraction(2) ** (exponent - mantissa_bits)
    whole, rest = divmod(units, 1)
    outward = {
        ".rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        ".rna": rest >= Fraction(1, 2),
        ".rz": False,
        ".rm": rest > 0 and sign == 1,
        ".rp": rest > 0 and sign == 0,
    }[rounding]
    whole += outward
    code = int(whole) + ((exponent - min_exponent) << mantissa_bits)
    if code > largest:
        to_infinity = rounding in (".rn", ".rna") or rounding == (".rp", ".rm")[sign]
        code = largest + 1 if to_infinity and not satfinite else largest
    return code | sign << (width - 1)
