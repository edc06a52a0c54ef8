"""Refusals of calls over rows of 656 and of 584 bytes, and the function that writes such rows."""

import pytest
import torch

from cute_fa4 import flash_mla_with_kvcache
from cute_fa4.calls.operands.latent_rows import numbers_of
from cute_fa4.mla import write_latent_rows

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
        (dict(k_cache=ROWS.expand(4, 16, 2, 656)), ValueError, "k_cache: 2 heads"),
    ],
    ids=str,
)
def test_a_refusal_names_the_argument_and_what_is_accepted(given, error, text):
    with pytest.raises(error, match=text):
        flash_mla_with_kvcache(**CALL | given)


@pytest.mark.parametrize("slots", ([-1, 0, -7, 62, -1], [-1, -1], [-5], []), ids=str)
def test_negative_slots_write_nothing(slots):
    """vLLM pads a batch with -1, which as an index would be the last row."""
    cache = torch.arange(4 * 16 * 656).view(4, 16, 1, 656).byte()
    before = cache.clone().view(64, 656)
    latent, rope = torch.ones(len(slots), 512), torch.ones(len(slots), 64)
    write_latent_rows(cache, latent, rope, torch.tensor(slots, dtype=torch.int64))
    changed = (cache.view(64, 656) != before).any(-1).nonzero().flatten().tolist()
    assert changed == [slot for slot in slots if slot >= 0]
    for slot in changed:
        assert torch.equal(numbers_of(cache.view(64, 656)[slot]), torch.ones(576))


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
        (dict(scales=torch.ones(2)), TypeError, "latent: dtype torch.float32 with scales"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_written_are_refused(given, error, text):
    call = dict(latent=torch.zeros(2, 512), rope=torch.zeros(2, 64), slots=torch.tensor([0, 1]))
    with pytest.raises(error, match=text):
        write_latent_rows(ROWS.clone(), **call | given)


def test_scales_that_are_no_rows_scales_are_refused():
    latent = torch.zeros(2, 512).to(torch.float8_e4m3fn)
    call = ROWS.clone(), latent, torch.zeros(2, 64), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"scales: shape \(2, 3\); accepted: \(2,\), \(2, 1\)"):
        write_latent_rows(*call, scales=torch.ones(2, 3))
    with pytest.raises(TypeError, match="scales: dtype torch.float64; accepted: torch.float32"):
        write_latent_rows(*call, scales=torch.ones(2).double())
