"""FlashInfer's decode over pages that each key-value head selects."""

import pytest
import torch

from cute_fa4 import compile_cache, mxfp8, nvfp4
from tests.docs import definition
from tests.integrations import test_nvfp4_callers
from tests.integrations.test_flashinfer import (
    DRAFTS,
    PAGE,
    STEP,
    by_context,
    by_decode,
    by_wrapper_of_decode,
    pages_of,
)
from tests.serving.batches import int32


@pytest.mark.parametrize("way", ["definition", "emulator"])
def test_each_head_selects_its_own_pages(way, monkeypatch):
    """The bits of one call for each key-value head over its own pages. A head may select none, or part of a page."""
    if way == "definition":
        monkeypatch.setattr(compile_cache, "function_for", definition.compiled)
    stored = pages_of(STEP, "HND")
    table, used = stored["page_table"], stored["seqused_k"]
    of_heads = torch.stack([table, table.clone()])
    of_heads[1, :2, :2] = table[:2, :2].flip(1)
    lengths = torch.stack([used - 3, int32([PAGE, 2 * PAGE - 3, 0])])
    found = by_decode(
        STEP, block_tables=of_heads, seq_lens=lengths, enable_block_sparse_attention=True
    )
    for head in range(2):
        alone = by_decode(STEP, block_tables=of_heads[head], seq_lens=lengths[head])
        heads = slice(2 * head, 2 * head + 2)
        assert all(torch.equal(a[:, heads], b[:, heads]) for a, b in zip(found, alone, strict=True))
        assert found[0].isfinite().all()


def of_numbers(x: torch.Tensor, of: str):
    """The values of a cache, in float64, which both kernels of a comparison read."""
    if of == "nvfp4":
        return nvfp4.dequantize(*nvfp4.quantize(x, 2.0**-9)[:2]).double()
    return mxfp8.dequantise(*mxfp8.quantise(x)).double()


def blocks_of(of: str, as_one: bool) -> dict:
    """STEP's pages in 4 bits, or in 8 with scales of blocks; of rows that no request has, scales are NaN.

    Two tensors of numbers and two of scales, or one of each: pages are 1 or 2 times the heads apart.
    """
    stored = pages_of(STEP, "HND")
    if of == "nvfp4":
        (k, of_k, _), (v, of_v, _) = (nvfp4.quantize(stored[x], 2.0**-9) for x in "kv")
        of_v = nvfp4.interleaved(of_v)
    else:
        (k, of_k), (v, of_v) = (mxfp8.quantise(stored[x]) for x in "kv")
    if as_one:
        return dict(kv_cache=torch.stack([k, v], 1), kv_cache_sf=torch.stack([of_k, of_v], 1))
    return dict(kv_cache=(k, v), kv_cache_sf=(of_k, of_v))


@pytest.mark.parametrize("as_one", [False, True], ids=["four tensors", "two tensors"])
@pytest.mark.parametrize("of", ["nvfp4", "mxfp8"])
def test_caches_whose_blocks_have_scales(of, as_one):
    """As above. The two heads have the same pages in another order, so out is also that of float64."""
    cache = blocks_of(of, as_one)
    table, used = pages_of(STEP, "HND")["page_table"], pages_of(STEP, "HND")["seqused_k"]
    of_heads = torch.stack([table, table.clone()])
    of_heads[1, 1, :8] = table[1, :8].flip(0)  # whole pages of the second request
    lengths = torch.stack([used, used - 3])
    given = cache | dict(bmm1_scale=64**-0.5, bmm2_scale=0.5)
    found = by_decode(
        STEP, block_tables=of_heads, seq_lens=lengths, enable_block_sparse_attention=True, **given
    )
    for head in range(2):
        alone = by_decode(STEP, block_tables=of_heads[head], seq_lens=lengths[head], **given)
        heads = slice(2 * head, 2 * head + 2)
        assert all(torch.equal(a[:, heads], b[:, heads]) for a, b in zip(found, alone, strict=True))
    for b, n in enumerate(used.tolist()):
        k, v = (of_numbers(getattr(STEP, x)[b], of)[:n, 0] for x in "kv")
        weights = (STEP.q[b][0, :2].double() @ k.T / 8).softmax(-1)
        exact = weights @ v * 0.5
        assert (found[0][b, :2] - exact).norm() < 4e-3 * exact.norm()


def test_mxfp8_caches_go_through_every_function_of_pages():
    """As decode, above: scales of blocks of 8-bit numbers are told from those of 4 bits by their dtype."""
    cache = blocks_of("mxfp8", False)
    k_v = dict(kv_cache=cache["kv_cache"])
    found = by_decode(STEP, **cache)
    planned = dict(kv_data_type=torch.float8_e4m3fn)
    by_run = by_wrapper_of_decode(STEP, "HND", planned=planned, **cache)
    by_prefill = by_context(STEP, "HND", **cache)
    for other in (by_run, by_prefill):
        assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))
    of_four = tuple(torch.zeros(x.shape).to(torch.float8_e4m3fn) for x in cache["kv_cache_sf"])
    with pytest.raises(TypeError, match="kv_cache_sf: dtype torch.float8_e4m3fn over a cache of .*"
                                        "; accepted: torch.float8_e8m0fnu"):  # fmt: skip
        by_decode(STEP, **k_v, kv_cache_sf=of_four)


def test_scales_in_the_pages_of_their_codes_are_refused():
    """One table has the pages of both: with vLLM's pages scales are another number of head strides apart."""
    cache = test_nvfp4_callers.Cache.of(STEP)
    codes, scales = cache.views()
    table, used = cache.where["page_table"], cache.where["seqused_k"]
    given = dict(block_tables=torch.stack([table] * 2), seq_lens=torch.stack([used] * 2))
    given |= dict(enable_block_sparse_attention=True, bmm1_scale=64**-0.5)
    for codes_too, text in ((False, "kv_cache_sf: pages of K lie 36 head strides apart, of K in"),
                            (True, "kv_cache: strides .*; accepted: a page stride that is")):  # fmt: skip
        kept = codes if codes_too else tuple(x.contiguous() for x in codes)
        with pytest.raises(ValueError, match=text):
            by_decode(STEP, kv_cache=kept, kv_cache_sf=scales, **given)


def test_what_does_not_go_with_them_is_refused_by_name():
    for batch, given, text in (
        (STEP, dict(kv_layout="NHD"), "kv_layout: 'NHD' with"),
        (DRAFTS, {}, "q_len_per_req: 3 with"),
        (STEP, dict(window_left=5), "window_left: 5 with"),
    ):
        with pytest.raises(NotImplementedError, match=f"{text} enable_block_sparse_attention"):
            by_decode(batch, enable_block_sparse_attention=True, **given)


def test_out_is_written_or_refused(monkeypatch):
    """A tensor that is no view of rows of heads would be copied, and the copy written."""
    monkeypatch.setattr(compile_cache, "function_for", definition.compiled)
    table, lengths = pages_of(STEP, "HND")["page_table"], pages_of(STEP, "HND")["seqused_k"]
    given = dict(block_tables=torch.stack([table] * 2), seq_lens=torch.stack([lengths] * 2))
    given["enable_block_sparse_attention"] = True
    expected, _ = by_decode(STEP, **given)
    wide = torch.zeros(*expected.shape[:-1], 2 * expected.shape[-1], dtype=expected.dtype)
    out = torch.zeros_like(expected)
    by_decode(STEP, out=out, **given)
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="out: shape .* with strides .*; accepted: contiguous"):
        by_decode(STEP, out=wide[..., : expected.shape[-1]], **given)
