"""What codes of 0 lost: the text of PTX executed by the emulator, for exponents all over the range."""

import math

import numpy as np
import pytest
import torch

from cute_fa4.emulator.host import ptx_files
from cute_fa4.sm100.steps import lost_weights
from cute_fa4.sm100.steps.half_powers import OFFSET, UNIT
from cute_fa4.sm100.steps.lost_weights import MOST, RATIO, SMALLEST, sampled_columns
from tests.sm100.steps.inline_text import with_registers

THREADS = 128
KERNEL = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry lost(.param .u64 x, .param .u64 factor, .param .u64 words, .param .u64 sums)
{
.reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %d<8>;
ld.param.b64 %d1, [x]; ld.param.b64 %d2, [factor]; ld.param.b64 %d3, [words]; ld.param.b64 %d4, [sums];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
mul.wide.u32 %d5, %r4, 8; add.s64 %d1, %d1, %d5; mul.wide.u32 %d6, %r4, 4; add.s64 %d2, %d2, %d6;
add.s64 %d3, %d3, %d6; add.s64 %d4, %d4, %d6;
ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d1+4]; ld.global.f32 %f3, [%d2]; ld.global.b32 %r5, [%d3];
RESCALE
ADD
BOTH
st.global.b32 [%d3], %r7;
st.global.f32 [%d4], %f4;
ret;
}
"""


@pytest.fixture(scope="module")
def tile():
    """tile(x, before, factor) -> (lost of each column after a tile with exponents x, sums of neighbours)."""
    texts = {
        "RESCALE": with_registers(lost_weights.RESCALE_LOST, "%r6", "%r5", "%f3"),
        "ADD": with_registers(lost_weights.ADD_LOST, "%r7", "%f1", "%f2", "%r6"),
        "BOTH": with_registers(lost_weights.BOTH_LOST, "%f4", "%r7"),
    }
    source = KERNEL
    for name, text in texts.items():
        source = source.replace(name, text)
    kernel = ptx_files.load(source)

    def run(x, before=0.0, factor=1.0):
        size = -(-len(x) // (2 * THREADS)) * 2 * THREADS
        y = np.zeros(size, np.float32)
        y[: len(x)] = (x + OFFSET) * UNIT
        lost, sums = np.full(size, before, np.float16), np.zeros(size // 2, np.float32)
        factors = np.full(size // 2, factor, np.float32)
        words = lost.view(np.uint32)
        kernel.launch(y, factors, words, sums, grid=size // 2 // THREADS, block=THREADS)
        both = lost.astype(np.float32)
        np.testing.assert_array_equal(sums, both[::2] + both[1::2])
        return lost[: len(x)].astype(np.float64)

    return run


def test_what_is_counted_is_lost(tile):
    """Nothing where the code is not 0, or a column is masked; all of it, to i's 6 percent, from 2^-13 up to a quarter
    of the smallest number; nothing below 2^-14, where i ends; never more than MOST."""
    x = np.linspace(-15.5, 8.8, 20_007)
    p, found = np.exp2(x), RATIO * tile(x)
    assert (found >= 0).all() and 0.9 * MOST < found.max() <= MOST
    assert (found[p >= 0.53 * SMALLEST] == 0).all()
    whole = (x > -13) & (p <= 0.23 * SMALLEST)
    np.testing.assert_allclose(found[whole], p[whole], rtol=0.08)
    assert (found <= 1.08 * p).all() and (found[x < -14.1] == 0).all()
    assert (tile(np.array([-math.inf, -1e30, -100.0, -OFFSET])) == 0).all()


def test_codes_and_what_they_lost_add_up_to_the_weights(tile):
    """With as many columns in each octave, which is neither the tail of a row nor its top, to 1/12 of what is lost."""
    x = np.linspace(-15.5, math.log2(7.5 * SMALLEST), 20_007)  # to where codes change
    p = np.exp2(x)
    codes = torch.from_numpy(p).float().to(torch.float8_e4m3fn).double().numpy()
    missing = (p - codes).sum()
    per_e_fold = SMALLEST * len(x) / ((x[-1] - x[0]) * math.log(2))
    assert 0.34 < missing / per_e_fold < 0.37
    assert abs(RATIO * tile(x).sum() / missing - 1) < 1 / 12


def test_the_tiles_before_are_rescaled(tile):
    nothing = np.zeros(256)  # P of 1
    assert (tile(nothing, before=0.125, factor=0.25) == 0.03125).all()
    assert (tile(nothing, before=0.125, factor=0.0) == 0).all()


def test_columns_are_spread_and_computed_in_f16_anyway():
    assert sampled_columns(128, 4, frozenset(range(8, 32))) == (56, 104)
    assert sampled_columns(128, 2, frozenset()) == (32, 96)
