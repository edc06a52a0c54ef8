"""Scores of the indexer, and the keys with the highest ones, computed once and compared."""

from __future__ import annotations

import torch

from cute_fa4.calls.indexer import BYTES, Dense, Paged, TopK
from cute_fa4.sm100.indexer.config import DEPTH, IndexerConfig, TopKConfig

KEYS = (200, 131)  # of two sequences; without pages of the first
NUMBERS = BYTES[-1]
ALLOWED = (
    2.0**-14
)  # of the sum of absolute terms: more than float32 sums of 128 heads and columns may differ


def worst(config: IndexerConfig, device: str) -> tuple[float, float]:
    """-> (largest error of a logit that is seen, relative to the sum of its absolute terms, ALLOWED)."""
    generator = torch.Generator().manual_seed(0)
    queries = config.queries + 1 - bool(config.page_size)
    q = torch.randn(2, queries, config.heads, DEPTH, generator=generator).to(NUMBERS)
    weights = torch.randn(2, queries, config.heads, generator=generator)
    keys = torch.randn(2, max(KEYS), DEPTH, generator=generator).to(NUMBERS)
    scales = torch.rand(2, max(KEYS), generator=generator) + 0.5
    ends = torch.tensor(KEYS)[:, None] - torch.arange(queries).flip(0)
    call: Dense | Paged
    if config.page_size:
        cache, table = (x.to(device) for x in _pages(keys, scales, config.page_size))
        lengths = (ends if config.ends == "rows" else torch.tensor(KEYS)).int().to(device)
        of_rows = weights.flatten(0, 1).to(device)
        call = Paged(q.to(device), cache, of_rows, lengths, table, max(KEYS), config.clean)
    else:
        q, weights, ends = q[:1], weights[:1], ends[:1]
        k, factors, last = keys[0].to(device), scales[0].to(device), ends[0].int().to(device)
        first = torch.zeros_like(last)
        call = Dense(q[0].to(device), k, factors, weights[0].to(device), first, last, config.clean)
    call.check()
    found = call.run().cpu().view(*ends.shape, -1).double()
    products = torch.einsum("bqhd,bkd->bqhk", q.double(), keys[: len(q)].double())
    exact = torch.einsum("bqhk,bqh->bqk", products.relu(), weights.double())
    most = torch.einsum("bqhk,bqh->bqk", products.abs(), weights.abs().double())
    seen = torch.arange(max(KEYS)) < ends[..., None]
    error = (found - exact * scales[: len(q), None]).abs() / (most * scales[: len(q), None])
    return float(error[seen].max()), ALLOWED


def wrong_keys(config: TopKConfig, device: str) -> tuple[float, float]:
    """-> (how many places of the highest logits have another key than a sort, less than one is allowed)."""
    k, ends = 64, torch.tensor(KEYS, dtype=torch.int32)
    logits = torch.randn(2, max(KEYS), generator=torch.Generator().manual_seed(0))
    call = TopK(logits.to(device), torch.zeros_like(ends).to(device), ends.to(device), k)
    call.check()
    seen = torch.arange(max(KEYS)) < ends[:, None]
    exact = logits.masked_fill(~seen, -torch.inf).topk(k).indices.sort().values
    return float((call.run(config.ctas).cpu() != exact).sum()), 0.5


def _pages(keys, scales, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (cache, table); pages follow one another."""
    columns = -(-keys.shape[1] // size)
    rows = (0, columns * size - keys.shape[1])
    numbers = torch.nn.functional.pad(keys.view(torch.uint8), (0, 0, *rows))
    factors = torch.nn.functional.pad(scales, rows).view(torch.uint8)
    parts = numbers.reshape(2 * columns, -1), factors.reshape(2 * columns, -1)
    cache = torch.cat(parts, dim=1).view(2 * columns, size, 1, -1)
    return cache, torch.arange(2 * columns, dtype=torch.int32).view(2, columns)
