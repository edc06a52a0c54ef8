"""Calls that list their keys as FlashMLA's callers do: caches with gaps, two caches, prefill; against float64."""

from __future__ import annotations

import inspect
import math
import re

import pytest
import torch

from cute_fa4 import emulator, flash_mla_sparse_fwd, flash_mla_with_kvcache
from cute_fa4.calls.operands.latent_rows import numbers_of
from cute_fa4.mla import write_latent_rows
from tests.sm100.latent.dequantized.row_batches import empty, in_pages, numbers_of_cache
from tests.sm100.latent.latent_batches import LATENT

pytestmark = pytest.mark.filterwarnings("ignore")
PAGES, PAGE, HEADS = 4, 16, 16
SCALE = 192**-0.5

# deepseek-ai/FlashMLA, flash_mla/flash_mla_interface.py at 9241ae3 (2026-04-29): flash_mla_sparse_fwd's parameters.
FLASH_MLA = "q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length"


def numbers(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def lists(*shape, rows: int, seed=0) -> torch.Tensor:
    """Rows in no order, -1 and a number beyond the rows among them; the last query lists none."""
    generator = torch.Generator().manual_seed(seed)
    each = [
        torch.randperm(rows, generator=generator)[: shape[-1]] for _ in range(math.prod(shape[:-1]))
    ]
    found = torch.stack(each).int().view(shape)
    found[..., 1], found[..., 2] = -1, rows
    found[-1] = -1
    return found


def with_gaps(cache: torch.Tensor, rows: int) -> torch.Tensor:
    """The same numbers, with `rows` rows of NaN after each page; bytes of 255 are NaN, too."""
    pages, page, heads, columns = cache.shape
    filler = 255 if cache.dtype == torch.uint8 else math.nan
    room = torch.full((pages, page + rows, heads, columns), filler, dtype=cache.dtype)
    room[:, :page] = cache
    return room[:, :page]


def bytes_of(cache: torch.Tensor) -> torch.Tensor:
    """The cache in rows of 656 bytes."""
    found = torch.zeros(*cache.shape[:-1], 656, dtype=torch.uint8)
    rows = cache.reshape(-1, 576).float()
    write_latent_rows(found, rows[:, :512], rows[:, 512:], torch.arange(len(rows)))
    return found


def pages_of(rows: torch.Tensor, page: int = PAGE) -> torch.Tensor:
    """Rows (number, 512) in pages of 584 bytes a row."""
    found = empty(-(-len(rows) // page), page, 584)
    in_pages(found, torch.arange(len(rows)), rows.float())
    return found


def agrees(found, q, keys: list, sink=None, in_lse=False):
    """found: (out, lse) of (queries, heads, ...); q: (queries, heads, 576); keys: of each query, float64 rows.

    in_lse: whether the log-sum-exp has the sink
    """
    out, lse = found
    for i, rows in enumerate(keys):
        if not len(rows):
            assert (out[i] == 0).all() and (lse[i] == (sink if in_lse else -math.inf)).all()
            continue
        scores = q[i].double() @ rows.T * SCALE
        exact_lse = scores.logsumexp(-1)
        exact = scores.softmax(-1) @ rows[:, :LATENT]
        if sink is not None:
            exact *= torch.sigmoid(exact_lse - sink.double())[:, None]
            exact_lse = torch.logaddexp(exact_lse, sink.double()) if in_lse else exact_lse
        # P and out are rounded to eight bits of mantissa.
        assert (out[i].double() - exact).norm() < 2**-8 * exact.norm()
        error = torch.where(lse[i] == exact_lse, 0.0, lse[i].double() - exact_lse)  # of +inf, too
        assert error.abs().max() < 1e-2


def rows_seen(listed: torch.Tensor, rows: torch.Tensor, length=None) -> torch.Tensor:
    listed = listed[:length]
    return rows[listed[(listed >= 0) & (listed < len(rows))].long()].double()


@pytest.mark.parametrize("gap", [1, 5])
@pytest.mark.parametrize("kind", ["16 bits", "rows of 656 bytes", "8 bits, a scale for each row"])
def test_pages_may_have_gaps_of_whole_rows(kind, gap):
    """As FlashMLA's own tests lay out rows of 656 bytes: a row of room after each page."""
    q, cache = numbers(2, 1, HEADS, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    options = {}
    if kind == "rows of 656 bytes":
        cache, options = bytes_of(cache), {"is_fp8_kvcache": True}
    elif kind != "16 bits":
        cache = cache.to(torch.float8_e4m3fn)
        scales = torch.rand(PAGES, PAGE, generator=torch.Generator().manual_seed(3)) + 0.5
        options = {"descale_k": scales, "q_quantize": "never"}
    listed = lists(2, 1, 24, rows=PAGES * PAGE)
    expected = flash_mla_with_kvcache(q, cache, None, None, indices=listed, **options)
    found = flash_mla_with_kvcache(q, with_gaps(cache, gap), None, None, indices=listed, **options)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert found[0][0].abs().max() > 0


def test_pages_that_are_no_whole_rows_apart_are_refused():
    q, room = numbers(1, 1, HEADS, 576), torch.zeros(PAGES, PAGE * 576 + 64).bfloat16()
    cache = room[:, : PAGE * 576].view(PAGES, PAGE, 1, 576)
    listed = lists(1, 1, 8, rows=PAGES * PAGE)
    with pytest.raises(
        ValueError, match=r"k_cache: strides \(9280, .*; accepted: pages at multiples of the stride"
    ):
        flash_mla_with_kvcache(q, cache, None, None, indices=listed)


@pytest.mark.parametrize("name", ["learnable_sink", "attn_sink", None])
@pytest.mark.parametrize("kind", ["16 bits", "584 bytes"])
def test_two_caches_are_one_softmax(kind, name):
    """A window of one cache and picked rows of another; a query may see rows of one of them alone, or of neither."""
    q = numbers(3, 1, HEADS, 576)
    caches = exact = numbers(PAGES, PAGE, 1, 576, seed=1), numbers(2, 8, 1, 576, seed=2)
    if kind == "584 bytes":
        q, rows = q[..., :LATENT], [x.view(-1, 576)[:, :LATENT] for x in caches]
        caches = pages_of(rows[0]), pages_of(rows[1], 8)
        exact = tuple(map(numbers_of_cache, caches))
    listed = lists(3, 1, 24, rows=PAGES * PAGE), lists(3, 1, 12, rows=16, seed=1)
    listed[1][0] = -1
    lengths = (
        torch.tensor([24, 7, 24], dtype=torch.int32),
        torch.tensor([12, 12, 3], dtype=torch.int32),
    )
    sink = torch.linspace(-1, 4, HEADS)
    sink[:3] = torch.tensor([math.inf, -math.inf, 80.0])
    second = caches[1] if kind == "584 bytes" else with_gaps(caches[1], 1)
    out, lse = flash_mla_with_kvcache(
        q, caches[0], None, None, softmax_scale=SCALE, indices=listed[0], topk_length=lengths[0],
        extra_k_cache=second, extra_indices_in_kvcache=listed[1], extra_topk_length=lengths[1],
        **{} if name is None else {name: sink},
    )  # fmt: skip
    seen = [
        torch.cat(
            [
                rows_seen(n[i, 0], c.view(-1, q.shape[-1]), m[i])
                for n, c, m in zip(listed, exact, lengths, strict=True)
            ]
        )
        for i in range(3)
    ]
    in_lse = name == "learnable_sink"
    agrees((out[:, 0], lse[..., 0]), q[:, 0], seen, None if name is None else sink, in_lse)


@pytest.mark.parametrize(
    "kind, heads, way",
    [
        ("16 bits", 16, "a call"),
        ("16 bits", 128, "a graph"),
        ("656 bytes", 16, "parts of keys"),
        ("656 bytes", 128, "a call"),
        ("584 bytes", 16, "a graph"),
    ],
)
def test_two_caches_are_as_accurate_as_one_with_the_same_rows(kind, heads, way):
    """Results that are rounded before the merge and after it would have 1.2 times the error."""
    q, cache = numbers(2, 1, heads, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    exact = cache.view(-1, 576).double()
    if kind == "656 bytes":
        cache = bytes_of(cache)
        exact = numbers_of(cache).view(-1, 576).double()
    elif kind == "584 bytes":
        q, cache = q[..., :LATENT], pages_of(cache.view(-1, 576)[:, :LATENT])
        exact = numbers_of_cache(cache)
    halves = cache.split(PAGES // 2)
    rows = torch.arange(PAGES * PAGE, dtype=torch.int32)
    listed = [x.expand(2, 1, -1) for x in (rows, *(rows[: PAGES * PAGE // 2],) * 2)]
    options = dict(softmax_scale=SCALE, num_splits=2 if way == "parts of keys" else 1)
    scores = q[:, 0].double() @ exact.T * SCALE
    expected = scores.softmax(-1) @ exact[:, :LATENT]

    def of_two(q, first, second):
        return flash_mla_with_kvcache(
            q, first, None, None, indices=listed[1], extra_k_cache=second, extra_indices_in_kvcache=listed[2], **options
        )  # fmt: skip

    if way == "a graph":
        of_two = torch.compile(of_two, fullgraph=True, backend="aot_eager")
    merged, lse = of_two(q, *halves)
    whole, of_whole = flash_mla_with_kvcache(q, cache, None, None, indices=listed[0], **options)
    errors = [(out[:, 0].double() - expected).norm() for out in (merged, whole)]
    assert merged.dtype is q.dtype and errors[0] < 1.02 * errors[1]
    assert (lse - of_whole).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_out_of_two_caches_is_the_callers(dtype):
    q, cache = numbers(1, 1, HEADS, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    listed = torch.arange(8, dtype=torch.int32).view(1, 1, 8)
    given = dict(indices=listed, extra_k_cache=cache, extra_indices_in_kvcache=listed + 8)
    expected, _ = flash_mla_with_kvcache(q, cache, None, None, **given)
    out = torch.empty_like(expected, dtype=dtype)
    assert flash_mla_with_kvcache(q, cache, None, None, out=out, **given)[0] is out
    assert torch.equal(out.bfloat16(), expected)


@pytest.mark.parametrize("way, num_splits", [("a call", 0), ("a call", 1), ("a graph", 3)])
def test_out_of_float32_is_not_rounded(way, num_splits):
    """Also with a sink, which counts once, and in memory of the caller."""
    q, cache = numbers(2, 1, HEADS, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    listed = torch.arange(64, dtype=torch.int32).expand(2, 1, -1)
    given = dict(indices=listed, num_splits=num_splits, learnable_sink=torch.linspace(-1, 4, HEADS))

    def written(q, cache, out, workspace):
        return flash_mla_with_kvcache(q, cache, None, None, out=out, workspace=workspace, **given)

    run = (
        written if way == "a call" else torch.compile(written, fullgraph=True, backend="aot_eager")
    )
    out, memory = torch.empty(2, 1, HEADS, LATENT), torch.empty(1 << 20)
    _, lse = run(q, cache, out, memory)
    rounded, expected = flash_mla_with_kvcache(q, cache, None, None, **given)
    assert not torch.equal(out, out.bfloat16().float())
    # Some numbers are summed in another order and rounded to the next one.
    assert (out.bfloat16() == rounded).float().mean() > 0.99
    assert torch.allclose(lse, expected, atol=1e-5)


def test_compiled_without_a_graph_break():
    """Both functions are operators in a graph, as flash_mla_with_kvcache is."""
    q, cache = numbers(2, 1, HEADS, 576), numbers(PAGES, PAGE, 1, 576, seed=1)
    listed = lists(2, 1, 8, rows=PAGES * PAGE)

    def both(q, cache, listed):
        decoded = flash_mla_with_kvcache(
            q,
            cache,
            None,
            None,
            indices=listed,
            extra_k_cache=cache,
            extra_indices_in_kvcache=listed,
        )
        prefilled = flash_mla_sparse_fwd(q[:, 0], cache.view(-1, 1, 576), listed, SCALE)
        return *decoded, prefilled[0], prefilled[2]

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    expected = both(q, cache, listed)
    for a, b in zip(compiled(q, cache, listed), expected, strict=True):
        assert torch.equal(a, b)


REFUSED = {
    "no second list": (dict(extra_k_cache=numbers(1, 1)), "extra_k_cache: given without extra_indices_in_kvcache"),
    "a length alone": (
        dict(extra_topk_length=torch.ones(1).int()), "extra_topk_length: given without extra_k_cache; accepted",
    ),
    "no first list": (
        dict(extra_k_cache=numbers(1, 1), extra_indices_in_kvcache=numbers(1), indices=None),
        "extra_k_cache: given without indices; accepted",
    ),
    "other rows": (
        dict(extra_k_cache=numbers(1, 1, 1, 64), extra_indices_in_kvcache=torch.zeros(1, 1, 1).int()),
        "extra_k_cache: 64 columns",
    ),
    "another shape": (
        dict(extra_k_cache=numbers(1, 1, 1, 576), extra_indices_in_kvcache=torch.zeros(2, 1, 1).int()),
        "extra_indices_in_kvcache: shape (2, 1, 1); accepted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_of_a_second_cache_names_its_argument(name):
    given, text = REFUSED[name]
    call = dict(
        q=numbers(1, 1, HEADS, 576), k_cache=numbers(1, 16, 1, 576), block_table=None, cache_seqlens=None,
        indices=torch.zeros(1, 1, 4).int(),
    )  # fmt: skip
    with pytest.raises(ValueError, match=re.escape(text)):
        flash_mla_with_kvcache(**call | given)


def test_the_parameters_of_sparse_prefill_are_flash_mlas():
    parameters = inspect.signature(flash_mla_sparse_fwd).parameters.values()
    assert tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == FLASH_MLA


@pytest.mark.parametrize(
    "kv_rows", ["16 bits", "512 columns", "rows of 656 bytes", "rows of 584 bytes"]
)
@pytest.mark.parametrize("heads, mode", [(16, "hostile"), (128, "random")])
def test_sparse_prefill_agrees_with_float64(heads, mode, kv_rows):
    """A CTA, and a pair: rows that are not listed are NaN."""
    rows, queries, width = 150, 3, 70
    q, kv = numbers(queries, heads, 576), numbers(rows, 1, 576, seed=1)
    listed = lists(queries, 1, width, rows=rows)
    lengths = torch.tensor([width, 5, 0], dtype=torch.int32)
    seen = torch.zeros(rows, dtype=torch.bool)
    for i, length in enumerate(lengths):
        picked = listed[i, 0, :length]
        seen[picked[(picked >= 0) & (picked < rows)].long()] = True
    exact = kv.clone()
    is_wide = kv_rows in ("16 bits", "512 columns")
    if kv_rows == "512 columns":
        q, kv = (x[..., :LATENT].contiguous() for x in (q, kv))
        exact = kv.clone()
    if is_wide:
        kv[~seen] = torch.nan
    elif kv_rows == "rows of 584 bytes":
        q, places = q[..., :LATENT], seen.nonzero().flatten()
        seen_rows, kv = kv[seen, 0, :LATENT], empty(rows // 50, 50, 584)
        in_pages(kv, places, seen_rows.float())
        exact = numbers_of_cache(kv)
    else:
        kv = bytes_of(kv[None])[0]
        exact = numbers_of(kv)
        kv[~seen] = 255
    sink = torch.linspace(-3, 3, heads)
    with emulator.use(mode=mode, seed=1):
        out, largest, lse = flash_mla_sparse_fwd(
            q, kv, listed, SCALE, 512, sink, lengths, return_max_logits=is_wide
        )
    assert out.shape == (queries, heads, 512) and lse.shape == (queries, heads)
    keys = [rows_seen(listed[i, 0], exact.view(rows, -1), lengths[i]) for i in range(queries)]
    agrees((out, lse), q, keys, sink)
    assert (largest is None) is not is_wide
    for i, of_query in enumerate(keys if is_wide else ()):
        scores = q[i].double() @ of_query.T * SCALE
        best = scores.amax(-1) if len(of_query) else torch.full((heads,), -math.inf).double()
        assert torch.allclose(largest[i].double(), best, atol=1e-4)


def test_sparse_prefill_names_its_own_parameters():
    q, kv, listed = numbers(2, HEADS, 576), numbers(8, 1, 576), torch.zeros(2, 1, 4).int()
    for given, error, text in (
        (dict(indices=listed[:1]), ValueError, "indices: shape (1, 1, 4); accepted: (2, 1, top-k)"),
        (dict(kv=kv[..., :64]), ValueError, "kv: 64 columns"),
        (dict(d_v=256), ValueError, "d_v: 256; accepted: 512"),
        (dict(sm_scale=-1.0), ValueError, "sm_scale: -1.0"),
        (dict(q=q[0]), ValueError, "q: shape"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            flash_mla_sparse_fwd(**dict(q=q, kv=kv, indices=listed, sm_scale=SCALE) | given)
