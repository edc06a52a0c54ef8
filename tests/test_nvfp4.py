"""cute_fa4.nvfp4: every code and every scale against the formats' definitions, and what quantize promises of blocks."""

import pytest
import torch

from cute_fa4 import nvfp4
from cute_fa4.emulator.instructions.convert_narrow import E2M1, finite, narrow_pair_of_f32
from cute_fa4.layouts import cache_scales

CODES = torch.arange(16, dtype=torch.uint8)
SCALES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)


def definition(code: int) -> float:
    """A sign, two bits of exponent with bias 1, one of mantissa; exponent 0 is subnormal (OCP MX v1.0, 5.3.3)."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
    return -size if code & 8 else size


def test_every_code_and_every_scale_have_their_products():
    """The 16 codes as a block, with all 256 scales: float32, and fp16 too, has each product exactly."""
    assert nvfp4.decode(CODES).tolist() == [definition(code) for code in range(16)]
    assert torch.equal(nvfp4.unpack(nvfp4.pack(CODES)), CODES)
    assert nvfp4.pack(CODES)[0] == 0x10  # code 0, the even column, is in the low four bits
    codes = nvfp4.pack(CODES).expand(256, 8)
    found = nvfp4.dequantize(codes, SCALES[:, None], 0.5)
    numbers = torch.tensor([definition(code) for code in range(16)], dtype=torch.float64)
    exact = numbers * SCALES.double()[:, None]
    torch.testing.assert_close(found.double() * 2, exact, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(exact.half().double(), exact, rtol=0, atol=0, equal_nan=True)


def test_values_that_exist_are_their_own_nearest():
    """All positive finite scales, all codes in each order: quantize returns the codes and the scale."""
    scales = SCALES[1:127]
    codes = torch.stack([CODES.roll(n) for n in range(16)])
    numbers = nvfp4.decode(codes) * scales.float()[:, None, None]
    found, of_blocks, _ = nvfp4.quantize(numbers, 1.0)
    assert torch.equal(of_blocks[..., 0].float(), scales.float()[:, None].expand(126, 16))
    assert torch.equal(nvfp4.unpack(found), codes.expand(126, 16, 16))  # a negative zero, too


def test_rounding_is_that_of_the_instruction():
    """Every midpoint and its neighbours in float32, both signs, what is too large: as cvt.rn.satfinite.e2m1x2.f32."""
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 7.0, 1e30, 1e-45])
    far = [torch.nextafter(middles, torch.tensor(to)) for to in (0.0, float("inf"))]
    size = torch.cat([middles, *far, torch.linspace(0, 8, 1001)])
    values = torch.cat([size, -size])
    theirs = narrow_pair_of_f32(values.numpy(), values.numpy(), relu="", d="e2m1") & 15
    assert nvfp4.encode(values).tolist() == theirs.tolist()
    assert (finite(theirs, E2M1) == nvfp4.decode(nvfp4.encode(values)).numpy()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_are_within_half_a_step(dtype):
    """Rows of sizes 2^-12 to 2^12: an error is half the widest step, 2 of 6, of the block, and what its scale rounds.

    A scale is off by at most 1/16 of itself, or, where it is subnormal, by half of 2^-9.
    """
    sizes = 2.0 ** torch.arange(-12, 13)
    x = torch.randn(25, 4, 64, generator=torch.Generator().manual_seed(0)) * sizes[:, None, None]
    x = x.clamp(-3e4, 3e4).to(dtype)
    codes, scales, factor = nvfp4.quantize(x)
    assert codes.dtype == torch.uint8 and codes.shape == (25, 4, 32)
    assert scales.dtype == torch.float8_e4m3fn and scales.shape == (25, 4, 4)
    error = (nvfp4.dequantize(codes, scales, factor).double() - x.double()).abs()
    largest = x.double().unflatten(-1, (4, 16)).abs().amax(-1)
    bound = largest / 6 * (1 + 1 / 16) + 6 * (largest / 96).clamp(min=factor.double() * 2**-10)
    assert (error.unflatten(-1, (4, 16)).amax(-1) <= bound).all()
    better = nvfp4.dequantize(*nvfp4.quantize(x, four_over_six=True)).double() - x.double()
    assert better.square().sum() < 0.97 * error.square().sum()


def test_a_block_has_the_better_of_both_scales():
    """Blocks of normal numbers against the error of either scale in float64, except where both are nearly the same."""
    x = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    found = nvfp4.dequantize(*nvfp4.quantize(x, 0.01, four_over_six=True)).double()
    largest = x.abs().amax(-1)
    errors = []
    for code in (6.0, 4.0):
        codes, scales = nvfp4._of_largest(x, largest, code, torch.tensor(0.01))
        meant = nvfp4.dequantize(nvfp4.pack(codes), scales[:, None], 0.01).double()
        errors.append((meant - x.double()).square().sum(-1))
    best = torch.minimum(*errors)
    assert ((found - x.double()).square().sum(-1) <= best * (1 + 1e-5)).all()
    assert 0.2 < (errors[1] < errors[0]).float().mean() < 0.6


def test_blocks_of_zeros_small_large_and_without_a_number():
    """Zeros, below half of the least scale, at it, above the largest scale, infinity, NaN: and no other block."""
    x = torch.ones(7, 16)
    x[0], x[1], x[2] = 0.0, 6 * 2.0**-10, 6 * 2.0**-9  # 2^-10 is a tie, to 0
    x[3], x[4, 3], x[5, 0] = -1e6, float("inf"), float("nan")
    codes, scales, _ = nvfp4.quantize(x, 1.0)
    values = nvfp4.dequantize(codes, scales)
    assert scales[:4, 0].float().tolist() == [0, 0, 2.0**-9, 448]
    assert values[4:6].isnan().all() and not codes[4:6].any()
    assert values[:4, 0].tolist() == [0, 0, 6 * 2.0**-9, -2688]
    assert (
        values[6].tolist() == [1.03125] * 16
    )  # 1/6 is nearest to 11/64, an e4m3 number: 6 * 11/64
    assert nvfp4.quantize(torch.zeros(2, 16))[2] == 1
    _, scales, factor = nvfp4.quantize(x)  # the largest is 1e6, infinities do not count
    assert factor == torch.tensor(1e6) / (6 * 448) and scales[3].float() == 448
    none = nvfp4.quantize(x[:0])
    assert none[0].shape == (0, 8) and none[2] == 1


def test_interleaved_scales_are_where_the_other_kernels_read_them():
    """Token t, block s of S: byte (t / 4 * 4 + s / (S / 4)) * S + s % (S / 4) * 4 + t % 4, for head dims 64 to 256."""
    for tokens, blocks in ((4, 4), (16, 8), (64, 16)):
        linear = torch.arange(tokens * blocks).view(1, tokens, blocks)
        moved = nvfp4.interleaved(linear).flatten()
        group = blocks // 4
        for t in range(tokens):
            for s in range(blocks):
                at = (t // 4 * 4 + s // group) * blocks + s % group * 4 + t % 4
                assert moved[at] == t * blocks + s
                place = cache_scales.place("interleaved4", t, s, blocks)
                assert place[0] * blocks + place[1] == at


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
@pytest.mark.parametrize("depth", [64, 128, 192, 256])
def test_write_puts_interleaved_scales_where_linear_ones_are_mixed_to(kv_layout, depth):
    """Rows of several pages, some not written: the pages are those of a linear write, mixed, and codes are the same."""
    generator = torch.Generator().manual_seed(depth)
    x = torch.randn(7, 3, depth, generator=generator)
    slots = torch.tensor([0, 13, 6, -1, 23, 12, 1])

    def pages(scale_layout):
        inner = (8, 3) if kv_layout == "NHD" else (3, 8)
        codes = torch.zeros(3, *inner, depth // 2).byte()
        scales = torch.zeros(3, *inner, depth // 16).to(torch.float8_e4m3fn)
        nvfp4.write(x, codes, scales, slots, 0.5, kv_layout, scale_layout)
        return codes, scales.view(torch.uint8)

    codes, linear = pages("linear")
    again, mixed = pages("interleaved4")
    if kv_layout == "NHD":
        linear, mixed = linear.transpose(1, 2), mixed.transpose(1, 2)
    assert torch.equal(codes, again) and linear.any() and not torch.equal(linear, mixed)
    assert torch.equal(mixed, nvfp4.interleaved(linear))


def test_refusals():
    for wrong, why in (
        (
            torch.ones(2, 24),
            r"x: shape \(2, 24\); accepted: a last dimension that is a multiple of 16",
        ),
        (torch.ones(()), r"x: shape \(\)"),
    ):
        with pytest.raises(ValueError, match=why):
            nvfp4.quantize(wrong)
    for wrong in (torch.ones(16, dtype=torch.int32), torch.ones(16).to(torch.float8_e4m3fn)):
        with pytest.raises(
            TypeError, match="x: dtype .*; accepted: floating point of 16 bits or more"
        ):
            nvfp4.quantize(wrong)
    with pytest.raises(ValueError, match=r"global_scale: shape \(2,\); accepted: one number"):
        nvfp4.quantize(torch.ones(16), torch.ones(2))
    codes, scales, _ = nvfp4.quantize(torch.ones(3, 32))
    with pytest.raises(
        ValueError, match=r"scales: shape \(3, 1\); accepted: \(3, 2\), one for each 8 bytes"
    ):
        nvfp4.dequantize(codes, scales[:, :1])
    with pytest.raises(
        ValueError, match="scales: 3 tokens of 2 scales; accepted .* multiples of 4"
    ):
        nvfp4.interleaved(scales)
