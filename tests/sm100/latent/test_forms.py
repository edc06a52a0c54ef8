"""Latent caches of other forms, as FlashMLA's tests have them: 512 columns (MODEL1), and several heads.

Rows beyond a sequence are NaN, and table entries beyond it are no page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import capabilities, configs_for_model, emulator, flash_mla_sparse_fwd
from tests.sm100.latent.latent_batches import LATENT, call_of

SCALE, NO_PAGE = 0.05, 2**31 - 1


@dataclass
class Cache:
    """keys: rows of each sequence, (keys, heads, columns)."""

    cache: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    keys: list[torch.Tensor]


def cache_of(lengths, page: int, heads: int, columns: int, dtype=torch.bfloat16) -> Cache:
    generator = torch.Generator().manual_seed(len(lengths))
    pages = [-(-n // page) for n in lengths]
    order = iter(torch.randperm(sum(pages) + 2, generator=generator).tolist())
    cache = torch.full((sum(pages) + 2, page, heads, columns), torch.nan, dtype=dtype)
    table = torch.full((len(lengths), max(pages) + 1), NO_PAGE, dtype=torch.int32)
    keys = [torch.randn(n, heads, columns, generator=generator).to(dtype) for n in lengths]
    for b, rows in enumerate(keys):
        for i, some in enumerate(rows.split(page)):
            table[b, i] = next(order)
            cache[table[b, i], : len(some)] = some
    return Cache(cache, table, torch.tensor(lengths, dtype=torch.int32), keys)


def queries_of(batch: int, queries: int, heads: int, columns: int, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(batch, queries, heads, columns, generator=generator).to(dtype)


def exact(q, keys, sees=None) -> tuple[torch.Tensor, torch.Tensor]:
    """One query, (heads, columns), over (keys, latent heads, columns) -> out and lse in float64."""
    rows = keys.double().repeat_interleave(q.shape[0] // keys.shape[1], dim=1)
    scores = torch.einsum("hd,khd->hk", q.double(), rows) * SCALE
    if sees is not None:
        scores = scores[:, sees]
        rows = rows[sees]
    out = torch.einsum("hk,khd->hd", scores.softmax(-1), rows[..., :LATENT])
    return out, scores.logsumexp(-1)


def agrees(out, lse, expected) -> None:
    """P is rounded to 16 bits, and so is out."""
    of_out, of_lse = expected
    assert (out.double() - of_out).abs().max() < 2**-6 * max(1.0, float(of_out.abs().max()))
    of_lse = of_lse.nan_to_num(neginf=-1e9)
    assert torch.allclose(lse.double().nan_to_num(neginf=-1e9), of_lse, atol=1e-4)


# columns, query heads, latent heads, queries, page size, keys, options
DENSE = {
    "512 columns, a tile of 16 rows": (512, 9, 1, 1, 64, (140, 20), {}),
    "512 columns, 64 rows, whole pages": (512, 63, 1, 1, 16, (300, 129), {"num_splits": 1}),
    "512 columns, a pair, two queries": (512, 128, 1, 2, 64, (140, 300), {"causal": True}),
    "512 columns, a pair, gathered rows": (512, 126, 1, 1, 5, (140, 3), {}),
    "three latent heads, two queries": (576, 9, 3, 2, 64, (140, 20), {"causal": True}),
    "eight latent heads": (576, 64, 8, 1, 64, (140, 0), {}),
    "two latent heads of 512 columns, fp16": (512, 126, 2, 1, 64, (140, 20), {"dtype": torch.float16}),
}  # fmt: skip


@pytest.mark.parametrize("name", DENSE)
def test_a_decode_step_agrees_with_float64(name):
    columns, heads, latent_heads, queries, page, lengths, options = DENSE[name]
    options = dict(options)
    dtype = options.pop("dtype", torch.bfloat16)
    cache = cache_of(lengths, page, latent_heads, columns, dtype)
    q = queries_of(len(lengths), queries, heads, columns, dtype)
    call = dict(q=q, k_cache=cache.cache, block_table=cache.table, cache_seqlens=cache.lengths)
    out, lse = call_of(call, softmax_scale=SCALE, **options)
    assert out.shape == (*q.shape[:3], LATENT) and out.dtype == dtype
    for b, keys in enumerate(cache.keys):
        for i in range(queries):
            end = len(keys) - (queries - 1 - i) * options.get("causal", False)
            agrees(out[b, i], lse[b, :, i], exact(q[b, i], keys, slice(0, max(end, 0))))


# dtypes of q and of the cache: as stored, float8, and a q that is quantized before the call
DTYPES_OF_BOTH = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "e4m3": (torch.float8_e4m3fn,) * 2,
    "e5m2": (torch.float8_e5m2,) * 2,
    "q quantized": (torch.bfloat16, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("dtypes", DTYPES_OF_BOTH)
@pytest.mark.parametrize("heads", [16, 64, 128])
def test_512_columns_have_the_bits_of_576_of_which_the_last_are_zeros(heads, dtypes):
    """Products with zeros change no sum. Tiles of 16 and of 64 rows, whose P has another place, and pairs."""
    of_q, of_cache = DTYPES_OF_BOTH[dtypes]
    cache = cache_of((140, 20), 64, 1, 512)
    q, found = queries_of(2, 1, heads, 512), []
    for more in (0, 64):
        padded = [
            torch.nn.functional.pad(x, (0, more)).to(dtype)
            for x, dtype in ((q, of_q), (cache.cache, of_cache))
        ]
        call = dict(q=padded[0], k_cache=padded[1])
        call |= dict(block_table=cache.table, cache_seqlens=cache.lengths)
        found.append(call_of(call, softmax_scale=SCALE))
    for of_512, of_576 in zip(*found, strict=True):
        assert torch.equal(of_512, of_576)


def test_a_head_of_a_cache_has_the_bits_of_a_cache_of_its_own():
    cache = cache_of((140, 20), 64, 2, 576)
    q = queries_of(2, 1, 32, 576)
    call = dict(block_table=cache.table, cache_seqlens=cache.lengths)
    out, lse = call_of(dict(q=q, k_cache=cache.cache) | call)
    for head in range(2):
        own = slice(16 * head, 16 * head + 16)
        alone = dict(
            q=q[:, :, own].contiguous(), k_cache=cache.cache[:, :, head, None].contiguous()
        )
        of_out, of_lse = call_of(alone | call)
        assert torch.equal(out[:, :, own], of_out) and torch.equal(lse[:, own], of_lse)


@pytest.mark.parametrize("columns, heads, latent_heads", [(576, 6, 3), (512, 128, 1), (512, 16, 2)])
def test_listed_keys_agree_with_float64(columns, heads, latent_heads):
    """All latent heads have the same lists; the sink takes weight and is not part of the lse."""
    cache = cache_of((150,), 10, latent_heads, columns)
    q, width = queries_of(1, 2, heads, columns), 70
    picked = torch.stack([torch.randperm(150)[:width] for _ in range(2)])
    listed = (cache.table[0, picked // 10] * 10 + picked % 10).int()[None]
    listed[0, 1, 5:] = -1
    sink = torch.linspace(-2, 2, heads)
    call = dict(q=q, k_cache=cache.cache, block_table=None, cache_seqlens=None, indices=listed)
    out, lse = call_of(call, softmax_scale=SCALE, attn_sink=sink)
    for i, number in enumerate((width, 5)):
        of_out, of_lse = exact(q[0, i], cache.keys[0], picked[i, :number])
        share = 1 / (1 + torch.exp(sink.double() - of_lse))
        agrees(out[0, i], lse[0, :, i], (of_out * share[:, None], of_lse))


def test_each_latent_head_has_lists_of_its_own_in_prefill():
    generator = torch.Generator().manual_seed(0)
    rows, queries, heads, latent_heads, width = 90, 2, 6, 3, 40
    kv = torch.randn(rows, latent_heads, 576, generator=generator).bfloat16()
    q = queries_of(1, queries, heads, 576)[0]
    picked = torch.stack([torch.randperm(rows, generator=generator)[:width] for _ in range(6)])
    listed = picked.view(queries, latent_heads, width).int()
    given = torch.zeros(queries, heads, LATENT).bfloat16()
    with emulator.use(seed=1):
        out, largest, lse = flash_mla_sparse_fwd(
            q, kv, listed, SCALE, return_max_logits=True, out=given
        )
    assert out is given and largest.shape == lse.shape == (queries, heads)
    for i in range(queries):
        for h in range(latent_heads):
            own = slice(2 * h, 2 * h + 2)
            expected = exact(q[i, own], kv[:, h : h + 1], listed[i, h].long())
            agrees(out[i, own], lse[i, own], expected)


def test_what_several_heads_do_not_have():
    cache = cache_of((20,), 64, 3, 576)
    q = queries_of(1, 1, 9, 576)
    call = dict(q=q, k_cache=cache.cache, block_table=cache.table, cache_seqlens=cache.lengths)
    for changed, text in (
        (dict(q=q[:, :, :8]), "q: 8 heads over 3 of the cache; accepted: a multiple of 3"),
        (dict(attn_sink=torch.zeros(12)), "attn_sink: shape (12,); accepted: (9,)"),
        (
            dict(extra_k_cache=cache.cache[:, :, :1], extra_indices_in_kvcache=cache.table[None]),
            "extra_k_cache: 1 heads, k_cache has 3",
        ),
        (
            dict(k_cache=torch.zeros(1, 64, 3, 584).byte()),
            "accepted: (num_pages, page_size, 1, 584)",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            call_of(call | changed)


def test_capabilities_and_model_lists_know_512_columns():
    ask = dict(latent=True, head_dim=512, group=128)
    assert all(row.runs for row in capabilities(**ask))
    of_8_bits = ask | dict(dtype="bf16", kv_dtype="e4m3", arch="sm_100a")
    assert {row.runs for row in capabilities(**of_8_bits)} == {True}
    assert {row.runs for row in capabilities(**of_8_bits, q_quantize="never")} == {False}
    listed = dict(head_dim=512, heads_q=16, heads_kv=1, calls=("latent",), page_sizes=(64,))
    for arch in ("sm_100a", "sm_103a"):
        found = configs_for_model(**listed, dtype="bf16", kv_dtype="e4m3", arch=arch)
        found = [config for config in found if hasattr(config, "refusals")]
        assert found and not any(config.refusals() for config in found)


def test_float8_rows_of_512_columns_are_not_dequantized():
    """The refusal says what to do: a q that is quantized runs, and so does the same call without the argument."""
    cache = cache_of((20,), 64, 1, 512)
    call = dict(
        q=queries_of(1, 1, 16, 512), k_cache=cache.cache.to(torch.float8_e4m3fn),
        block_table=cache.table, cache_seqlens=cache.lengths,
    )  # fmt: skip
    with pytest.raises(ValueError, match="over 512 columns of .*accepted: 'auto'"):
        call_of(call, q_quantize="never")
    assert torch.isfinite(call_of(call, q_quantize="auto")[0]).all()
