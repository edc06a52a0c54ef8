"""P of eight bits in f16: its text of PTX executed by the emulator, its error, what is exact, and what is clamped."""

import math

import numpy as np
import pytest

from cute_fa4.emulator.host import ptx_files
from cute_fa4.reference import EXP2_RELATIVE_ERROR_OF_FP8
from cute_fa4.sm100.steps.half_powers import FLOOR, FOUR_CODES, HALF_PAIR, OFFSET, UNIT
from tests.sm100.steps.inline_text import with_registers

THREADS = 128
KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry powers(.param .u64 x, .param .u64 p, .param .u64 codes)
{
.reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<8>;
ld.param.b64 %d1, [x]; ld.param.b64 %d2, [p]; ld.param.b64 %d3, [codes];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
mul.wide.u32 %d4, %r4, 8; add.s64 %d1, %d1, %d4; mul.wide.u32 %d5, %r4, 4; add.s64 %d2, %d2, %d5;
add.s64 %d3, %d3, %d5;
ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d1+4];
PAIR
st.global.b32 [%d2], %r5;
FOUR
st.global.b32 [%d3], %r6;
ret;
}
"""


@pytest.fixture(scope="module")
def powers():
    """powers(x) -> (p as the kernel has it, its e4m3 codes), of exponents x."""
    text = KERNEL.replace("PAIR", with_registers(HALF_PAIR, "%r5", "%f1", "%f2"))
    kernel = ptx_files.load(text.replace("FOUR", with_registers(FOUR_CODES, "%r6", "%r5", "%r5")))

    def run(x):
        y = np.zeros(-(-len(x) // (2 * THREADS)) * 2 * THREADS, np.float32)
        y[: len(x)] = (x + OFFSET) * UNIT
        p, codes = np.zeros(len(y), np.float16), np.zeros((len(y) // 2, 4), np.uint8)
        words = p.view(np.uint32)
        kernel.launch(
            y, words, codes.view(np.uint32).reshape(-1), grid=len(words) // THREADS, block=THREADS
        )
        assert (codes[:, :2] == codes[:, 2:]).all()
        return p[: len(x)].astype(np.float64), codes[:, :2].reshape(-1)[: len(x)]

    return run


def test_the_error_is_a_quarter_of_what_e4m3_rounds(powers):
    """As docs/numerics.md says: 1.16e-2 of two lines an octave, 5.4e-3 of x to 2^-6; in the mean a fifth of both."""
    x = np.linspace(-10.0, 8.8, 40_003)
    p, _ = powers(x)
    error = p / np.exp2(x) - 1
    assert 1.6e-2 < np.abs(error).max() < EXP2_RELATIVE_ERROR_OF_FP8 < 2**-4 / 3.6
    assert np.sqrt((error**2).mean()) < 6.1e-3
    assert np.abs(error.mean()) < 1.5e-3  # it does not move the sum
    on_the_grid = np.arange(-640, 563) / 64
    assert np.abs(powers(on_the_grid)[0] / np.exp2(on_the_grid) - 1).max() < 1.18e-2


def test_powers_of_two_are_exact_and_a_larger_exponent_has_no_smaller_power(powers):
    """So the largest P of a row loses nothing, and the order of weights is kept."""
    whole = np.arange(-9.0, 9.0)
    np.testing.assert_array_equal(powers(whole)[0], np.exp2(whole))
    p, codes = powers(np.linspace(-16.0, 8.8, 20_011))
    assert (np.diff(p) >= 0).all() and (np.diff(codes.astype(int)) >= 0).all()


def test_codes_are_those_of_rounded_powers_subnormal_ones_included(powers):
    """Within the error of the exponential: at most one code from the exact one, and mostly the same."""
    import torch

    x = np.linspace(-12.0, 8.8, 10_007)
    _, codes = powers(x)
    exact = torch.from_numpy(np.exp2(x)).float().clamp(max=448.0).to(torch.float8_e4m3fn)
    off = np.abs(codes.astype(int) - exact.view(torch.uint8).numpy())
    assert off.max() <= 1 and (off > 0).mean() < 0.05
    assert codes[x < -10.5].max() == 0 and codes.max() == 126


def test_what_is_masked_is_the_floor_whose_code_is_zero(powers):
    p, codes = powers(np.array([-math.inf, -1e30, -100.0, -OFFSET]))
    assert (p == FLOOR).all() and (codes == 0).all()


def test_a_multiple_of_the_floor_by_a_power_of_two_is_an_f16():
    """So the sum of masked columns is freed of it without a rest (sum_of_halves)."""
    for size in (1, 2, 4, 8, 16, 32):
        assert float(np.float16(size * FLOOR)) == size * FLOOR
