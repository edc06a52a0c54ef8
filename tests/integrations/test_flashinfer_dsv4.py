"""FlashInfer's decode of DeepSeek V4: its test ported, with its lists, reference and tolerances, and lists apart.

flashinfer-ai/flashinfer at fb28d724, tests/attention/test_trtllm_gen_sparse_mla_dsv4.py. Sizes are smaller: a page of
the window has 32 rows, of the compressed cache 8 or 2, and lists of that have 40 or 12 keys.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4.integrations import flashinfer
from cute_fa4.integrations.flashinfer.sparse_latent import WINDOW
from tests.sm100.latent.dequantized.row_batches import empty, in_pages, numbers_in_pages

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, SCALE = 512, 512**-0.55
SCRATCH = torch.zeros(16, dtype=torch.uint8)


class Pool:
    """Rows of one cache for a batch, in pages that lie in no order, and lists of them for each token.

    mean   of the numbers of its rows; keys: of each request
    """

    def __init__(self, mean: float, keys: list, page: int, generator):
        self.page, self.keys = page, keys
        counts = [-(-n // page) for n in keys]
        order = torch.randperm(sum(counts), generator=generator).tolist()
        self.tables = [torch.tensor([order.pop() for _ in range(n)]) for n in counts]
        drawn = torch.randn(sum(counts), page, WIDTH, generator=generator)
        self.rows = (drawn * 0.05 + mean).bfloat16()

    def places(self, request: int, keys: torch.Tensor) -> torch.Tensor:
        return self.tables[request][keys // self.page] * self.page + keys % self.page

    def cache(self, layout: str, dims: int = 4) -> torch.Tensor:
        if dims == 3:
            return self.rows
        return self.rows.unsqueeze(1 if layout == "HND" else 2)

    def of_584_bytes(self) -> torch.Tensor:
        """As packed rows, and their numbers in the place of these; -> the cache (num_pages, page_size, 1, 584)."""
        cache = empty(len(self.rows), self.page, 584)
        flat = self.rows.float().flatten(0, 1)
        in_pages(cache, torch.arange(len(flat)), flat)
        self.rows = numbers_in_pages(cache).view(self.rows.shape)
        return cache


class Problem:
    """queries: tokens of each request; compressed: (keys of the first request, width of the lists, page) or None."""

    def __init__(self, heads, queries, window_keys, compressed, seed=0, garbage=False):
        g = torch.Generator().manual_seed(seed)
        self.queries, self.heads = queries, heads
        self.tokens = [(b, i) for b, m in enumerate(queries) for i in range(m)]
        self.q = (torch.randn(len(self.tokens), heads, WIDTH, generator=g) * 0.05).bfloat16()
        self.sinks = torch.randn(heads, generator=g) * 0.05
        more = [32 * b for b in range(len(queries))]
        self.window = Pool(-0.2, [window_keys + n for n in more], 32, g)
        spare = int(torch.randint(0, 32, (1,), generator=g)) if garbage else -1
        self.in_window = torch.full((len(self.tokens), WINDOW), spare, dtype=torch.int32)
        self.held = []
        for t, (b, i) in enumerate(self.tokens):
            position = self.window.keys[b] - queries[b] + i
            keys = torch.arange(max(position - WINDOW + 1, 0), position + 1)
            self.in_window[t, : len(keys)] = self.window.places(b, keys).int()
            self.held.append(len(keys))
        self.compressed, self.others = None, torch.empty(len(self.tokens), 0, dtype=torch.int32)
        self.of_others = torch.zeros(len(self.tokens), dtype=torch.int32)
        if compressed:
            keys, width, page = compressed
            self.compressed = Pool(0.25, [keys + page * b for b in range(len(queries))], page, g)
            self.others = torch.full((len(self.tokens), width), -1, dtype=torch.int32)
            for t, (b, i) in enumerate(self.tokens):
                picked = torch.randperm(self.compressed.keys[b], generator=g)[:width]
                self.others[t, : len(picked)] = self.compressed.places(b, picked).int()
                self.of_others[t] = max(width - 3 * b - i, 1)

    def arguments(self, varlen: bool, layout: str = "HND", dims: int = 4) -> dict:
        compressed = self.compressed or self.window
        query, where = self.q, {}
        if varlen:
            ends = torch.tensor([0, *self.queries]).cumsum(0).int()
            where = dict(cum_seq_lens_q=ends, max_q_len=max(self.queries))
        else:
            query = query.view(len(self.queries), self.queries[0], self.heads, WIDTH)
        return where | dict(
            query=query, swa_kv_cache=self.window.cache(layout, dims), workspace_buffer=SCRATCH,
            sparse_indices=torch.cat([self.in_window, self.others], -1), kv_layout=layout,
            compressed_kv_cache=compressed.cache(layout, dims), sparse_topk_lens=WINDOW + self.of_others,
            seq_lens=torch.tensor(self.window.keys, dtype=torch.int32), bmm1_scale=SCALE, bmm2_scale=1.0,
            sinks=self.sinks, enable_pdl=False,
        )  # fmt: skip

    def reference(self) -> torch.Tensor:
        """float64: the weight of a sink takes its share of out."""
        found = []
        for t in range(len(self.tokens)):
            parts = [self.window.rows.flatten(0, 1)[self.in_window[t, : self.held[t]].long()]]
            if self.compressed:
                listed = self.others[t, : int(self.of_others[t])].long()
                parts.append(self.compressed.rows.flatten(0, 1)[listed[listed >= 0]])
            keys = torch.cat(parts).double()
            scores = torch.cat(
                [self.q[t].double() @ keys.T * SCALE, self.sinks.double()[:, None]], 1
            )
            found.append(scores.softmax(1)[:, :-1] @ keys)
        return torch.stack(found)


def close(out, exact) -> None:
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.double().flatten(0, -3), exact, rtol=2e-2, atol=8e-4)


CASES = {
    "the window alone": (Problem(64, [3, 4, 5], 150, None), dict(varlen=True)),
    "a compressed cache of pages of 8": (Problem(64, [3, 4, 5], 150, (90, 40, 8), seed=1), dict(varlen=True)),
    "of pages of 2, fewer keys than a list has": (
        Problem(8, [3, 4, 5], 150, (9, 12, 2), seed=2), dict(varlen=True, layout="NHD"),
    ),
    "as many queries of each request": (
        Problem(128, [2, 2], 150, (90, 40, 8), seed=3), dict(varlen=False, dims=3),
    ),
    # as in FlashInfer's test: query i of a request of nothing else has i + 1 keys. The rest of the window's part is a
    # row of the cache: seq_lens alone tell that it is none
    "a window that is not full": (Problem(16, [7], 7, None, seed=4, garbage=True), dict(varlen=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_list_of_both_caches(name):
    problem, form = CASES[name]
    found = flashinfer.trtllm_batch_decode_sparse_mla_dsv4(**problem.arguments(**form))
    assert found.shape == problem.arguments(**form)["query"].shape
    close(found, problem.reference())


def test_rows_of_584_bytes_with_lists_apart():
    """As FlashInfer's "sparse" has them, here also with one list of both; out is written in place."""
    problem = Problem(16, [2, 2], 150, (90, 40, 8), seed=5)
    caches = dict(
        swa_kv_cache=problem.window.of_584_bytes(), kv_layout="NHD",
        compressed_kv_cache=problem.compressed.of_584_bytes(),
    )  # fmt: skip
    given = problem.arguments(varlen=False) | caches
    expected = flashinfer.trtllm_batch_decode_sparse_mla_dsv4(**given)
    exact = problem.reference()
    assert (expected.double().flatten(0, 1) - exact).norm() < 2**-7 * exact.norm()
    apart = given | dict(
        sparse_indices=problem.in_window, sparse_topk_lens=None, seq_lens=None,
        swa_topk_lens=torch.tensor(problem.held, dtype=torch.int32), extra_sparse_indices=problem.others.view(2, 2, -1),
        extra_sparse_topk_lens=problem.of_others, backend="sparse",
    )  # fmt: skip
    out = torch.empty_like(expected)
    assert flashinfer.trtllm_batch_decode_sparse_mla_dsv4(**apart, out=out) is out
    assert torch.equal(out, expected)


SMALL = Problem(8, [1, 1], 140, (20, 12, 2), seed=6)
GIVEN = SMALL.arguments(varlen=False)


def test_float8_rows_agree_with_float64():
    """P is rounded to three bits of mantissa, as over 576 columns (tests/sm100/latent/test_8_bits.py)."""
    problem, e4m3 = Problem(8, [1, 1], 140, (20, 12, 2), seed=6), torch.float8_e4m3fn
    problem.q = problem.q.to(e4m3).bfloat16()
    for pool in (problem.window, problem.compressed):
        pool.rows = pool.rows.to(e4m3).bfloat16()
    given, exact = problem.arguments(varlen=False), problem.reference()
    eight = {x: given[x].to(e4m3) for x in ("query", "swa_kv_cache", "compressed_kv_cache")}
    out = flashinfer.trtllm_batch_decode_sparse_mla_dsv4(**given | eight)
    assert out.dtype is torch.bfloat16
    assert (out.view_as(exact).double() - exact).norm() < 0.03 * exact.norm()


NO = NotImplementedError
REFUSED = {
    "a tensor of scale": (dict(bmm1_scale=torch.ones(1)), NO, "bmm1_scale: a tensor over caches without a scale"),
    "a scale of values": (dict(bmm2_scale=2.0), NO, "bmm2_scale: 2.0 over caches without a scale"),
    "lists of pages": (dict(hca_seq_lens=torch.ones(2)), NO, "hca_seq_lens: "),
    "no numbers of keys": (dict(sparse_topk_lens=None), ValueError, "sparse_topk_lens: None with a list of both"),
    "no lengths": (dict(seq_lens=None), ValueError, "seq_lens: None with a list of both"),
    "a short list": (
        dict(sparse_indices=SMALL.others), ValueError,
        "sparse_indices: shape (2, 12) with neither swa_topk_lens nor extra_sparse_indices; accepted: (tokens, 128 and",
    ),
    "lists of other queries": (
        dict(sparse_indices=SMALL.in_window[:1]), ValueError, "sparse_indices: shape (1, 128) with 2 queries",
    ),
    "packed tokens without offsets": (dict(query=SMALL.q), ValueError, "query: shape (2, 8, 512) without cum_seq_lens"),
    "another layout": (
        dict(kv_layout="NHD"), ValueError, "compressed_kv_cache: shape (21, 1, 2, 512) with kv_layout='NHD'",
    ),
    "no compressed cache": (
        dict(compressed_kv_cache=None), TypeError, "compressed_kv_cache: a NoneType; accepted: a torch",
    ),
    "sinks of other heads": (dict(sinks=torch.zeros(3)), ValueError, "sinks: shape (3,)"),
    "lengths of other queries": (
        dict(sparse_topk_lens=torch.ones(3, dtype=torch.int32)), ValueError,
        "sparse_topk_lens: 3 numbers with 2 queries",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_callers_argument(name):
    changed, error, text = REFUSED[name]
    with pytest.raises(error) as refused:
        flashinfer.trtllm_batch_decode_sparse_mla_dsv4(**GIVEN | changed)
    assert str(refused.value).startswith(text) and "accepted" in str(refused.value)
