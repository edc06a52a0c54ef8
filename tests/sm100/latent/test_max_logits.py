"""Law: max_logits of a row are the largest of its scores, times the scale, whatever its softmax subtracts.

rows of 16 bits, of 656 and 584 bytes, of 576 float8 columns: over each family of latent kernels, by lists and by pages
a running maximum that lags, sinks above all scores, rows without keys: no part of it
out and lse: the bits of a call without max_logits
"""

from __future__ import annotations

import math
import re

import pytest
import torch

from cute_fa4 import capabilities, emulator, flash_mla_sparse_fwd
from cute_fa4.calls.operands.latent_rows import numbers_of
from tests.sm100.latent.dequantized.row_batches import numbers_of_cache
from tests.sm100.latent.latent_batches import LATENT, call_of
from tests.sm100.latent.test_sparse import bytes_of, lists, numbers, pages_of, rows_seen

pytestmark = pytest.mark.filterwarnings("ignore")
PAGES, PAGE = 10, 16
SCALE = 192**-0.5


def stored(rows: str, queries: int, heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> (q, cache, the float64 rows that it stands for)."""
    q, cache = numbers(queries, 1, heads, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    if rows == "512 columns":
        q, cache = (x[..., :LATENT].contiguous() for x in (q, cache))
    elif rows == "584 bytes":
        q, cache = q[..., :LATENT], pages_of(cache.view(-1, 576)[:, :LATENT])
        return q, cache, numbers_of_cache(cache)
    elif rows == "656 bytes":
        cache = bytes_of(cache)
        return q, cache, numbers_of(cache).view(-1, 576).bfloat16().double()  # as it is dequantized
    elif rows.startswith("float8"):
        cache = cache.to(torch.float8_e4m3fn)
    return q, cache, cache.view(-1, q.shape[-1]).double()


def bound(rows: str) -> float:
    """Of a score of about 40: float32 sums of exact products, or of q that was rounded to e4m3."""
    return 1.0 if rows == "float8 auto" else 2e-5


def options_of(rows: str) -> dict:
    return {"q_quantize": rows.split()[1]} if rows.startswith("float8") else {}


@pytest.mark.parametrize(
    "rows, heads, mode, sink",
    [
        ("16 bits", 16, "hostile", "attn_sink"),
        ("16 bits", 48, "in_order", "learnable_sink"),
        ("16 bits", 128, "random", "attn_sink"),
        ("512 columns", 16, "in_order", None),
        ("512 columns", 128, "in_order", None),
        ("656 bytes", 16, "in_order", None),
        ("656 bytes", 128, "random", "learnable_sink"),
        ("584 bytes", 16, "random", "attn_sink"),
        ("584 bytes", 128, "in_order", None),
        ("float8 never", 16, "in_order", None),
        ("float8 never", 128, "in_order", None),
        ("float8 auto", 16, "in_order", None),
        ("float8 auto", 128, "in_order", "attn_sink"),
    ],
)
def test_the_largest_score_of_listed_keys(rows, heads, mode, sink):
    """Tiles of 16 to 128 rows; -1 and numbers that are no row among the keys; a list is cut by its length."""
    q, cache, exact = stored(rows, 2, heads)
    listed = lists(2, 1, 140, rows=PAGES * PAGE)
    lengths = torch.tensor([140, 140], dtype=torch.int32)
    options = options_of(rows) | dict(indices=listed, topk_length=lengths, softmax_scale=SCALE)
    if sink is not None:  # above all scores in half of the heads
        options[sink] = torch.linspace(-100, 100, heads)
    call = dict(q=q, k_cache=cache, block_table=None, cache_seqlens=None)
    with emulator.use(mode=mode, seed=1):
        out, lse, largest = call_of(call, **options, return_max_logits=True)
        expected = call_of(call, **options, num_splits=1)
    assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1])
    assert largest.shape == lse.shape and largest.dtype is torch.float32
    for i in range(2):
        keys = rows_seen(listed[i, 0], exact, lengths[i])
        if not len(keys):
            assert (largest[i] == -math.inf).all()
            continue
        scores = q[i, 0].double() @ keys.T * SCALE
        assert (largest[i, :, 0].double() - scores.amax(-1)).abs().max() < bound(rows)


@pytest.mark.parametrize("rows, heads", [("16 bits", 128), ("656 bytes", 16), ("584 bytes", 16)])
def test_the_largest_score_of_keys_in_pages(rows, heads):
    """Two queries of a sequence under the causal mask: the last one sees a key more."""
    q, cache, exact = stored(rows, 2, heads)
    q = q.transpose(0, 1).contiguous()
    table = torch.randperm(PAGES, generator=torch.Generator().manual_seed(2)).int()[None]
    call = dict(q=q, k_cache=cache, block_table=table, cache_seqlens=torch.tensor([150]).int())
    options = dict(softmax_scale=SCALE, causal=True, return_max_logits=True)
    _, _, largest = call_of(call, **options)
    keys = exact.view(PAGES, PAGE, -1)[table[0].long()].flatten(0, 1)
    for i in range(2):
        scores = q[0, i].double() @ keys[: 149 + i].T * SCALE
        assert (largest[0, :, i].double() - scores.amax(-1)).abs().max() < 2e-5


@pytest.mark.parametrize("heads", [16, 128])
def test_a_running_maximum_that_lags_is_not_the_largest_score(heads):
    """Scores grow by less than 2^8 and fall in the last tile: softmax keeps the maximum of the first one."""
    keys = 3 * 128
    q, kv = torch.zeros(1, heads, 576).bfloat16(), torch.zeros(keys, 1, 576).bfloat16()
    q[..., 0] = 1
    kv[:, 0, 0] = torch.tensor([1.0, 3.0, 2.0]).repeat_interleave(128)
    kv[200] *= 1.5
    listed = torch.arange(keys, dtype=torch.int32).view(1, 1, -1)
    _, largest, _ = flash_mla_sparse_fwd(q, kv, listed, 1.0, return_max_logits=True)
    assert (largest == 4.5).all()
    _, negative, _ = flash_mla_sparse_fwd(-q, kv, listed, 1.0, return_max_logits=True)
    assert (negative == -1.0).all()


@pytest.mark.parametrize("heads", [16, 128])
def test_a_nan_that_a_query_sees_is_in_its_max_logits(heads):
    q, kv = numbers(2, heads, 576), numbers(160, 1, 576, seed=1)
    kv[140] = torch.nan
    listed = torch.arange(160, dtype=torch.int32).expand(2, 1, -1).contiguous()
    listed[1, 0, 140] = -1
    _, largest, _ = flash_mla_sparse_fwd(q, kv, listed, SCALE, return_max_logits=True)
    assert largest[0].isnan().all() and largest[1].isfinite().all()


@pytest.mark.parametrize("width, rows", [(0, 8), (8, 0)])
def test_without_keys_every_max_logit_is_minus_infinity(width, rows):
    q, kv = numbers(2, 16, 576), numbers(rows, 1, 576)
    listed = torch.zeros(2, 1, width).int()
    sink = torch.ones(16)
    for name in ("attn_sink", "learnable_sink"):
        out, largest, lse = flash_mla_sparse_fwd(
            q, kv, listed, SCALE, **{name: sink}, return_max_logits=True
        )
        assert (largest == -math.inf).all() and (out == 0).all()
        assert (lse == (-math.inf if name == "attn_sink" else 1.0)).all()


def test_several_latent_heads_and_a_graph():
    q, kv = numbers(2, 6, 576), numbers(90, 3, 576, seed=1)
    listed = lists(2, 3, 40, rows=90)

    def prefilled(q, kv, listed):
        return flash_mla_sparse_fwd(q, kv, listed, SCALE, return_max_logits=True)

    found = prefilled(q, kv, listed)
    compiled = torch.compile(prefilled, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(q, kv, listed), found))
    for h in range(3):
        own = slice(2 * h, 2 * h + 2)
        rows = rows_seen(listed[0, h], kv[:, h])
        scores = q[0, own].double() @ rows.T * SCALE
        assert torch.allclose(found[1][0, own].double(), scores.amax(-1), atol=2e-5)
        assert (found[1][1, own] == -math.inf).all()


REFUSED = {
    "parts": (dict(num_splits=4), "num_splits: 4 with return_max_logits=True; accepted: None"),
    "fixed parts": (dict(tokens_per_split=128), "tokens_per_split: 128 with return_max_logits=True"),
    "float32": (dict(out=torch.empty(1, 1, 16, 512)), "out: torch.float32 with return_max_logits=True"),
    "two caches": (
        dict(extra_k_cache=numbers(1, 1, 1, 576), extra_indices_in_kvcache=torch.zeros(1, 1, 1).int()),
        "return_max_logits: True with extra_k_cache",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_its_argument_and_the_remedy(name):
    given, text = REFUSED[name]
    call = dict(q=numbers(1, 1, 16, 576), k_cache=numbers(1, 16, 1, 576), block_table=None)
    call |= dict(cache_seqlens=None, indices=torch.zeros(1, 1, 4).int(), return_max_logits=True)
    with pytest.raises(NotImplementedError, match=re.escape(text)):
        call_of(call, **given)


def test_capabilities_know_max_logits():
    asked = dict(latent=True, group=128, dtype="bf16", return_max_logits=True)
    assert all(row.runs for row in capabilities(**asked, num_splits=0))
    assert all(row.runs for row in capabilities(**asked, is_fp8_kvcache=True, head_dim=512))
    parts = capabilities(**asked, num_splits=4)
    assert parts and not any(row.runs for row in parts)
    assert "num_splits: 4 with return_max_logits=True" in parts[0].reasons[0]
