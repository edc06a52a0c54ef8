"""f64 products, sums of products, quotients and roots with .rz, .rm and .rp; .rn is in floating_point.py.

The generated C sets the processor's rounding mode around one operation. The NumPy meaning compares the nearest f64
with the exact value, a fraction, and takes its neighbour where the direction asks for it.
PTX ISA, "Floating-Point Instructions": mul, fma, mad, div, rcp, sqrt.
"""

from fractions import Fraction

import numpy as np

from cute_fa4.emulator.instructions.floating_point import fma_f64
from cute_fa4.emulator.instructions.instruction_table import lanes
from cute_fa4.emulator.machine.rounding import canonical, direction, in_direction

ROUNDING = [".rz", ".rm", ".rp"]


def _against(nearest, excess):
    """int per lane: the sign of exact - nearest, which excess(lane, nearest as a Fraction) returns for finite ones."""
    signs = []
    for lane, number in enumerate(nearest.tolist()):
        if np.isinf(number):
            signs.append(-1 if number > 0 else 1)
        else:
            signs.append(excess(lane, Fraction(number)))
    return np.array(signs)


def rounded(nearest, rounding, operands, excess):
    """The results in a direction, given the nearest f64 numbers.

    excess(*operands of a lane as Fractions, nearest) has the sign of exact - nearest. Infinite and NaN operands give
    the same in all directions.
    """
    exact = np.all([np.isfinite(x) for x in operands], axis=0) & ~np.isnan(nearest)
    lanes_of = [x.tolist() for x in operands]

    def of_lane(lane, number):
        values = [Fraction(x[lane]) for x in lanes_of]
        difference = excess(*values, number)
        return (difference > 0) - (difference < 0)

    signs = np.zeros(nearest.shape, int)
    chosen = np.flatnonzero(exact)
    signs[chosen] = _against(nearest[chosen], lambda i, number: of_lane(chosen[i], number))
    return canonical(in_direction(nearest, signs < 0, signs > 0, rounding))


@lanes("mul{r}.f64", r=ROUNDING, types="f64 <- f64 f64", c="d = out64(mul64{r}(a, b))")
def mul(a, b, *, r):
    """a * b. PTX ISA, mul."""
    return rounded(a * b, r, (a, b), lambda x, y, n: x * y - n)


@lanes(
    "fma{r}.f64",
    "mad{r}.f64",
    r=ROUNDING,
    types="f64 <- f64 f64 f64",
    c="d = out64(fma64{r}(a, b, c))",
)
def fma(a, b, c, *, r):
    """a * b + c, rounded once; an exact zero of unlike signs is -0 under .rm. PTX ISA, fma."""
    result = rounded(fma_f64(a, b, c), r, (a, b, c), lambda x, y, z, n: x * y + z - n)
    if direction(r) != "m":
        return result
    product_is_negative = np.signbit(a) ^ np.signbit(b)
    cancelled = np.array(
        [
            np.isfinite([x, y, z]).all() and Fraction(x) * Fraction(y) + Fraction(z) == 0
            for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        ]
    )
    minus = product_is_negative | np.signbit(c)
    return np.where(cancelled, np.where(minus, -0.0, 0.0), result)


@lanes("div{r}.f64", r=ROUNDING, types="f64 <- f64 f64", c="d = out64(div64{r}(a, b))")
def div(a, b, *, r):
    """a / b. PTX ISA, div."""
    divided = np.where(b == 0, np.nan, b)  # a / 0 is exact
    return rounded(a / b, r, (a, divided), lambda x, y, n: x / y - n)


@lanes("rcp{r}.f64", r=ROUNDING, types="f64 <- f64", c="d = out64(div64{r}(1.0, a))")
def rcp(a, *, r):
    """1 / a. PTX ISA, rcp."""
    return div(np.ones_like(a), a, r=r)


@lanes("sqrt{r}.f64", r=ROUNDING, types="f64 <- f64", c="d = out64(sqrt64{r}(a))")
def sqrt(a, *, r):
    """Square root. PTX ISA, sqrt."""
    return rounded(np.sqrt(a), r, (a,), lambda x, n: x - n * n)
