"""Quotients of many numbers and one divisor, with the bits of divisions: one inverse, five operations for two numbers.

    p0 = x * -r       r = 1 / d, rounded                                     -x / d but for two units in the last place
    p1 = p0 - e r     e = x + p0 d, the remainder, by a fused operation      within one unit
    p2 = p1 - e r     again                                                  -x / d, rounded to nearest even

The last step is P. Markstein's theorem (IBM J. Res. Dev. 34, 1990): it rounds correctly where r does, p1 is within one
unit and the remainder is exact. A division of its own has eleven instructions, and a branch. Quotients come out with
the other sign, because then the sum that makes p0 a remainder needs no negation, and zeros keep their signs.

The remainder is exact where nothing overflows or is subnormal: for a divisor and a largest number that `fit`. Numbers
far below the largest may lose bits, which round to 0 in every block. Other blocks are divided one by one.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

LEAST, MOST = 2.0**-60, 2.0**60


def fit(divisor, largest):
    """Whether the quotients of a block are those of divisions. largest: magnitude of its numbers. NaN: not."""
    inside = (divisor >= LEAST) & (divisor <= MOST) & (largest <= MOST)
    return inside & ((largest >= LEAST) | (largest == 0.0))


@cute.jit
def negated(numbers: tuple, divisor: Float32, fits: cutlass.Boolean) -> tuple:
    """-x / divisor for each x. fits: from `fit`."""
    found = numbers
    if fits:
        found = _by_inverse(numbers, divisor)
    else:
        found = tuple(-(x / divisor) for x in numbers)
    return found


def _by_inverse(numbers: tuple, divisor) -> tuple:
    inverse = -(Float32(1.0) / divisor)
    inverses, divisors, found = (inverse, inverse), (divisor, divisor), []
    for x in zip(numbers[::2], numbers[1::2], strict=True):
        p = cute.arch.mul_packed_f32x2(x, inverses)
        for _ in range(2):
            remainder = cute.arch.fma_packed_f32x2(p, divisors, x)
            p = cute.arch.fma_packed_f32x2(remainder, inverses, p)
        found += p
    return tuple(found)
