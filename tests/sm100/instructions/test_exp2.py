"""2^x on the FMA units: its error, measured in the kernel's own arithmetic, and which pairs use it."""

import numpy as np
import pytest

from cute_fa4.sm100.instructions.exp2 import POLYNOMIAL, SHIFTER, SMALLEST_EXPONENT, emulated_pairs


def emulate(x):
    """The instructions of exp2.emulated_pair in NumPy float32; fma and add.rm through float64, where they are exact."""
    f32, f64 = np.float32, np.float64
    x = np.maximum(x.astype(f32), f32(SMALLEST_EXPONENT))
    # The sum of x and 1.5 2^23 needs at most 24 + 23 + 8 bits: float64 holds it; its spacing in float32 is 1.
    rounded = np.floor(x.astype(f64) + SHIFTER).astype(f32)
    fraction = x - (rounded - f32(SHIFTER))
    p = np.full_like(x, POLYNOMIAL[3])
    for c in POLYNOMIAL[2::-1]:
        p = (p.astype(f64) * fraction.astype(f64) + f64(f32(c))).astype(f32)
    bits = p.view(np.int32) + (rounded.view(np.int32) << 23)
    return bits.view(f32)


def test_the_relative_error_is_far_below_the_rounding_of_p():
    x = np.linspace(
        -126.0, 8.0, 1_000_003
    )  # where results are normal; not a multiple of the period 1
    exact = np.exp2(x.astype(np.float32).astype(np.float64))
    error = np.abs(emulate(x) / exact - 1).max()
    assert (
        5e-5 < error < 1.0e-4
    )  # the docstring says 8.8e-5; bf16 rounds P by 3.9e-3, fp16 by 4.9e-4


def test_powers_of_two_are_exact():
    x = np.arange(-126.0, 9.0)
    np.testing.assert_array_equal(emulate(x), np.exp2(x).astype(np.float32))


def test_what_is_masked_becomes_nothing():
    assert emulate(np.array([-np.inf, -1e30, -200.0])).max() <= 2.0**-126


@pytest.mark.parametrize("pairs, per_64", [(64, 8), (64, 16), (32, 8), (96, 8)])
def test_emulated_pairs_are_spread_over_the_last_three_quarters(pairs, per_64):
    first = pairs // 4
    chosen = sorted(emulated_pairs(pairs, per_64, first))
    assert len(chosen) == per_64 * pairs // 64
    assert first <= chosen[0] and chosen[-1] < pairs
    gaps = np.diff(chosen)
    assert gaps.max() - gaps.min() <= 1
