"""vLLM's own tests of the indexer, ported: its inputs, its references, its bounds, at sizes that an emulator runs.

vllm-project/vllm: tests/kernels/attention/test_deepgemm_attention.py (at 00a817ad), tests/kernels/test_top_k_per_row.py
(at 01b3e82b):

    logits    the caller quantizes q and k; the reference multiplies them unquantized in float32: 1 - cosine < 1e-3
    top-k     torch.topk of each row: the same set, or equal logits where sets differ
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import indexer
from tests.sm100.indexer.problems import E4M3, emulated, int32

HEADS, DEPTH, PAGE = 32, 128, 64


def normal(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, and one scale for each row."""
    scale = rows.float().abs().amax(-1).clamp(min=1e-4) / 448
    return (rows * (1 / scale[..., None])).to(E4M3), scale


def reference(q, k, weights, seen) -> torch.Tensor:
    """(queries, keys) in float32, -inf where a query does not see a key."""
    scores = torch.einsum("mhd,nd->hmn", q.float(), k.float()).relu()
    logits = (scores * weights.t()[..., None]).sum(0)
    return logits.masked_fill(~seen, -torch.inf)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Of the keys that are seen."""
    seen = expected != -torch.inf
    a, b = (x.masked_fill(~seen, 0.0).double() for x in (found, expected))
    assert 1 - 2 * (a * b).sum() / (a * a + b * b).sum() < 1e-3


@pytest.mark.parametrize("ranks", [1, 4])
def test_logits_of_a_prefill(ranks):
    """Causal, or the two chunks of a rank of context parallelism; the first query of a chunk may see no key."""
    queries, keys = 16, 64
    q, k = normal(queries, HEADS, DEPTH).bfloat16(), normal(keys, DEPTH, seed=1).bfloat16()
    weights = normal(queries, HEADS, seed=2)
    start, end = torch.zeros(queries).int(), torch.arange(queries).int() + keys - queries
    if ranks > 1:
        rank, chunk = ranks // 3, queries // 2
        inside = torch.arange(chunk)
        end = torch.cat([rank * chunk + inside, (2 * ranks - 1 - rank) * chunk + inside]).int()
    found = emulated(indexer.fp8_mqa_logits, q.to(E4M3), quantized(k), weights, start, end)
    seen = torch.arange(keys) < end[:, None]
    assert torch.equal(found == -torch.inf, ~seen)
    assert_close(found, reference(q, k, weights, seen))


@pytest.mark.parametrize("batch, queries", [(4, 1), (2, 2)])
def test_logits_over_pages(batch, queries):
    width, lengths = 256, [70, 129, 100, 64][:batch]
    q = normal(batch, queries, HEADS, DEPTH).bfloat16()
    rows = normal(12, PAGE, DEPTH, seed=1).bfloat16()
    weights = normal(batch * queries, HEADS, seed=2)
    numbers, scales = quantized(rows)
    cache = torch.cat([x.contiguous().view(torch.uint8).flatten(1) for x in (numbers, scales)], 1)
    table = torch.zeros(batch, width, dtype=torch.int32)  # as many entries as keys, as there
    pool = iter(torch.randperm(12, generator=torch.Generator().manual_seed(3)).tolist())
    for b, length in enumerate(lengths):
        for i in range(-(-length // PAGE)):
            table[b, i] = next(pool)
    given = q.to(E4M3), cache.view(12, PAGE, 1, DEPTH + 4), weights, int32(*lengths), table
    found = emulated(indexer.fp8_paged_mqa_logits, *given, None, width)
    expected = torch.full((batch * queries, width), -torch.inf)
    for b, length in enumerate(lengths):
        own = slice(b * queries, (b + 1) * queries)
        k = rows[table[b, : -(-length // PAGE)].long()].flatten(0, 1)
        seen = torch.arange(len(k)) <= torch.arange(length - queries, length)[:, None]
        expected[own, : len(k)] = reference(q[b], k, weights[own], seen)
    assert found.shape == expected.shape
    assert_close(found, expected)


def logits_of(kind: str, rows: int, columns: int) -> torch.Tensor:
    """Random, or floats that differ in their last ten bits alone: every byte but the last ones ties."""
    if kind == "random":
        return normal(rows, columns, seed=42)
    bits = torch.randint(0, 1 << 10, (rows, columns), generator=torch.Generator().manual_seed(42))
    return (0x3F900000 | bits).int().view(torch.float32)


def assert_best(found: torch.Tensor, logits: torch.Tensor, ends: torch.Tensor, k: int) -> None:
    for row, own, end in zip(logits, found.tolist(), ends.tolist(), strict=True):
        count = min(k, end)
        expected = row[:end].topk(count)
        assert own[count:] == [-1] * (k - count) and len(set(own[:count])) == count
        assert torch.equal(row[own[:count]].sort(descending=True).values, expected.values)
        assert all(0 <= i < end for i in own[:count])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rows", [1, 33])
def test_top_k_of_a_prefill(rows, clean):
    """Row i sees i + 1 keys."""
    logits, ends = logits_of("random", rows, rows), torch.arange(1, rows + 1).int()
    if clean:
        logits.masked_fill_(torch.arange(rows) >= ends[:, None], -torch.inf)
    found = emulated(indexer.topk_indices, logits, 20, torch.zeros(rows).int(), ends)
    assert_best(found, logits, ends, 20)


@pytest.mark.parametrize("kind", ["random", "10LSBits"])
@pytest.mark.parametrize("batch, queries", [(1, 8), (2, 1)])
def test_top_k_of_a_decode_step(batch, queries, kind):
    lengths = torch.tensor([700, 2100][-batch:])
    after = torch.arange(batch * queries) % queries
    ends = (lengths.repeat_interleave(queries) - queries + after + 1).int()
    logits = logits_of(kind, batch * queries, 2100)
    found = emulated(indexer.topk_indices, logits, 512, ends=ends)
    assert_best(found, logits, ends, 512)
