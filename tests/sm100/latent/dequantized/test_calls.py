"""Refusals of calls over rows of 656 and of 584 bytes, and the function that writes such rows."""

import pytest
import torch

from cute_fa4 import flash_mla_with_kvcache
from cute_fa4.calls.operands.latent_rows import numbers_of, pages_of
from cute_fa4.mla import write_latent_rows
from tests.sm100.latent.dequantized.row_batches import empty, in_pages, numbers_of_cache

ROWS = torch.zeros(4, 16, 1, 656, dtype=torch.uint8)
CALL = dict(
    q=torch.zeros(1, 1, 16, 576, dtype=torch.bfloat16),
    k_cache=ROWS,
    block_table=torch.zeros(1, 4, dtype=torch.int32),
    cache_seqlens=torch.ones(1, dtype=torch.int32),
)


# Pages of 16 rows take 9344 bytes, and begin a multiple of 576 bytes apart.
IN_PAGES = torch.zeros(4, 9792, dtype=torch.uint8)[:, : 16 * 584].view(4, 16, 1, 584)
OF_512 = dict(k_cache=IN_PAGES, q=CALL["q"][..., :512])
INTO_584 = dict(k_cache=empty(1, 2, 584), latent=torch.zeros(2, 448))
E4M3_ROWS = INTO_584["latent"].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "given, error, text",
    [
        (dict(q=CALL["q"].half()), TypeError, "q: dtype torch.float16.*accepted: torch.bfloat16"),
        (dict(k_cache=ROWS.half()), TypeError, "k_cache: dtype torch.float16 with rows of 656"),
        (dict(descale_k=torch.ones(1)), TypeError, "descale_k: given with rows of 656"),
        (dict(k_cache=ROWS[..., :580]), ValueError, "k_cache: 580 columns"),
        (
            OF_512 | dict(k_cache=ROWS[..., :584]),
            ValueError,
            "k_cache: strides .* with rows of 584 bytes; accepted: pages a",
        ),
        (
            dict(k_cache=IN_PAGES),
            ValueError,
            "q: head_dim 576.*over rows of 584 bytes; accepted: 512",
        ),
        (OF_512 | dict(q=OF_512["q"].half()), TypeError, "q: dtype torch.float16 over rows of 584"),
        (
            OF_512 | dict(k_cache=IN_PAGES.view(torch.float8_e5m2)),
            TypeError,
            "k_cache: dtype .*with rows of 584",
        ),
        (OF_512 | dict(descale_k=torch.ones(1)), TypeError, "descale_k: given with rows of 584"),
        (
            OF_512 | dict(k_cache=IN_PAGES[:, :, 0]),
            ValueError,
            "k_cache: shape .*accepted: .*1, 584",
        ),
        (OF_512 | dict(block_table=None), TypeError, "block_table: a NoneType"),
        (
            dict(k_cache=ROWS[..., :576], is_fp8_kvcache=True),
            ValueError,
            "k_cache: shape .*with is_fp8_kvcache=True; accepted: .*656",
        ),
    ],
    ids=str,
)
def test_a_refusal_names_the_argument_and_what_is_accepted(given, error, text):
    with pytest.raises(error, match=text):
        flash_mla_with_kvcache(**CALL | given)


@pytest.mark.parametrize("slots", ([-1, 0, -7, 62, -1], [-1, -1], [-5], []), ids=str)
@pytest.mark.parametrize("nbytes, numbers", [(656, 512), (584, 448)], ids=str)
def test_negative_slots_write_nothing(nbytes, numbers, slots):
    """vLLM pads a batch with -1, which as an index would be the last row."""
    cache = empty(4, 16, nbytes).fill_(7)
    before = numbers_of_cache(cache)
    latent, rope = torch.ones(len(slots), numbers), torch.ones(len(slots), 64)
    write_latent_rows(cache, latent, rope, torch.tensor(slots, dtype=torch.int64))
    found = numbers_of_cache(cache)
    changed = (found != before).any(-1).nonzero().flatten().tolist()
    assert changed == [slot for slot in slots if slot >= 0]
    assert (found[changed] == 1).all()


def test_written_rows_stand_for_the_numbers_given():
    """Rounded to three bits of mantissa, of 128 numbers whose largest is the largest e4m3; zeros stay zeros."""
    generator = torch.Generator().manual_seed(0)
    latent, rope = torch.randn(5, 512, generator=generator), torch.randn(5, 64, generator=generator)
    latent[1, 128:256] = 0
    latent[2] *= 1e-20
    cache = torch.full((4, 16, 1, 656), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn)
    slots = torch.tensor([63, 0, 17, 16, 5])
    write_latent_rows(cache, latent, rope, slots)
    written = cache.view(torch.uint8).view(64, 656)
    assert (written == 0xFF).all(-1).sum() == 64 - 5
    found = numbers_of(written[slots])
    assert torch.equal(found[:, 512:], rope.bfloat16().float())
    assert (found[1, 128:256] == 0).all()
    blocks, of_found = latent.view(5, 4, 128), found[:, :512].view(5, 4, 128)
    largest = blocks.abs().amax(-1, keepdim=True)
    # Half of the last of three bits, or of the smallest step, 2^-9 of 448 parts; and float32's own.
    bound = torch.maximum(blocks.abs() * 2**-4, largest * 2**-10 / 448) * (1 + 1e-6)
    assert ((of_found - blocks).abs() <= bound).all()
    with pytest.raises(ValueError, match="k_cache: strides .*accepted: contiguous"):
        write_latent_rows(cache[:, ::2], latent, rope, slots)


def test_rows_of_584_bytes_have_the_least_scales_that_are_powers_of_two():
    """Pages of 5 rows have a gap after them. The oracle writes a row at a time, with log2 and ceil as FlashMLA does."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(6, 512, generator=generator)
    values[1] *= 1e-3
    values[2, 64] = 448 * 2.0**20  # a scale that is the power of two itself
    slots = torch.tensor([9, 0, 4, 5, 14, 7])
    cache, expected = empty(3, 5, 584), empty(3, 5, 584)
    in_pages(expected, slots, values)
    write_latent_rows(cache, values[:, :448], values[:, 448:], slots)
    assert torch.equal(cache, expected)

    rows, scales = pages_of(cache, None, None, None)
    page, row = slots // 5, slots % 5
    given = rows[page, row, 0, :448], scales[page, row, :7].view(torch.float8_e8m0fnu)
    again = empty(3, 5, 584)
    write_latent_rows(again, given[0], values[:, 448:], slots, scales=given[1])
    assert torch.equal(again, expected)


def test_zeros_and_tiny_numbers_of_584_bytes_stay():
    """The byte 0 of a scale stands for 0: 2^-126 is the least, and then numbers are rounded to its steps."""
    latent = torch.zeros(2, 448)
    latent[1] = 2.0**-120
    cache = empty(1, 2, 584)
    write_latent_rows(cache, latent, torch.zeros(2, 64), torch.tensor([0, 1]))
    assert torch.equal(numbers_of_cache(cache)[:, :448], latent.double())


def test_one_scale_for_a_token_stands_in_all_four_places():
    """Found here it is the largest of 512 numbers; given, numbers and scale are stored bit by bit."""
    generator = torch.Generator().manual_seed(0)
    latent, rope = torch.randn(3, 512, generator=generator), torch.randn(3, 64, generator=generator)
    slots = torch.tensor([2, 40, 7])
    cache = torch.zeros(4, 16, 1, 656, dtype=torch.uint8)
    write_latent_rows(cache, latent, rope, slots, columns_of_scale=512)
    written = cache.view(64, 656)[slots]
    scales = written[:, 512:528].contiguous().view(torch.float32)
    assert torch.equal(scales, (latent.abs().amax(-1, keepdim=True) / 448).expand(3, 4))
    bound = torch.maximum(latent.abs() * 2**-4, scales[:, :1] * 2**-10) * (1 + 1e-6)
    assert ((numbers_of(written)[:, :512] - latent).abs() <= bound).all()

    numbers = written[:, :512].contiguous().view(torch.float8_e4m3fn)
    for given in (scales[:, 0], scales[:, :1], scales):
        again = torch.zeros_like(cache)
        write_latent_rows(again, numbers, rope, slots, scales=given)
        assert torch.equal(again, cache)


@pytest.mark.parametrize(
    "given, error, text",
    [
        (dict(latent=torch.zeros(2, 576)), ValueError, r"latent: shape .*accepted: \(2, 512\)"),
        (dict(rope=torch.zeros(3, 64)), ValueError, r"rope: shape .*accepted: \(2, 64\)"),
        (dict(columns_of_scale=64), ValueError, "columns_of_scale: 64; accepted: 128, or 512"),
        (dict(columns_of_scale=0), ValueError, "columns_of_scale: 0; accepted: 128, or 512"),
        (dict(scales=torch.ones(2)), TypeError, "latent: dtype torch.float32 with scales"),
        (dict(k_cache=empty(1, 2, 584)), ValueError, r"latent: shape .*accepted: \(2, 448\)"),
        (dict(INTO_584, columns_of_scale=128), ValueError, "columns_of_scale: 128; accepted: 64$"),
        (dict(INTO_584, scales=torch.ones(2, 7)), TypeError, "latent: dtype torch.float32 with scales"),
        (dict(INTO_584, latent=E4M3_ROWS, scales=torch.ones(2, 7)), TypeError, "accepted: torch.float8_e8m0fnu"),
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_cannot_be_written_are_refused(given, error, text):
    call = dict(latent=torch.zeros(2, 512), rope=torch.zeros(2, 64), slots=torch.tensor([0, 1]))
    with pytest.raises(error, match=text):
        write_latent_rows(**dict(k_cache=ROWS.clone()) | call | given)


def test_scales_that_are_no_rows_scales_are_refused():
    latent = torch.zeros(2, 512).to(torch.float8_e4m3fn)
    call = ROWS.clone(), latent, torch.zeros(2, 64), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"scales: shape \(2, 3\); accepted: \(2,\), \(2, 1\)"):
        write_latent_rows(*call, scales=torch.ones(2, 3))
    with pytest.raises(TypeError, match="scales: dtype torch.float64; accepted: torch.float32"):
        write_latent_rows(*call, scales=torch.ones(2).double())
