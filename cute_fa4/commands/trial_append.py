"""Calls the append kernel once and compares the cache with the expected one."""

from __future__ import annotations

import torch

from cute_fa4.calls.append import prepare_append
from cute_fa4.commands.trial_pages import DTYPES, page_table, pages
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.append.config import AppendConfig

QUERIES = (5, 3)  # new rows of the two sequences
PAGE = 8  # rows of a page: sequences have two or three


def wrong_elements(config: AppendConfig, device: str) -> tuple[float, float]:
    """Rows are copied, so every bit must be right: the error is the number of wrong elements, and 0 is allowed."""
    generator, (long, short), heads = torch.Generator().manual_seed(0), QUERIES, 2
    dtype, held = DTYPES[config.dtype], (12, 7)
    new = (long, short) if config.packed else (long, long)
    total = [h + n for h, n in zip(held, new, strict=True)]
    depths = {"k": config.depth, "v": config.depth_v}
    rows = {
        x: [torch.randn(n, heads, depth, generator=generator).to(dtype) for n in total]
        for x, depth in depths.items()
    }
    before = {x: [r.clone() for r in rows[x]] for x in rows}
    for x in before:
        for b, sequence in enumerate(before[x]):
            sequence[held[b] :] = 0
    table = page_table(total, PAGE) if config.paged else None
    order = [1, 0] if config.cache_batch_idx else [0, 1]

    def cache(sequences):
        if table is not None:
            return torch.nan_to_num(pages(sequences, table, PAGE))
        dense = torch.zeros(2, max(total) + 1, heads, sequences[0].shape[2], dtype=dtype)
        for b, sequence in enumerate(sequences):
            dense[order[b], : len(sequence)] = sequence
        return dense

    def new_rows(x):
        parts = [sequence[held[b] :] for b, sequence in enumerate(rows[x])]
        return (torch.cat(parts) if config.packed else torch.stack(parts)).to(device)

    caches = [cache(before[x]).to(device) for x in rows]
    lengths = torch.tensor(held, dtype=torch.int32, device=device)
    offsets = None
    if config.packed:
        offsets = torch.tensor([0, long, long + short], dtype=torch.int32, device=device)
    given = None if table is None else table[order].to(device)
    picked = None
    if config.cache_batch_idx:
        picked = torch.tensor(order, dtype=torch.int32, device=device)
    new_k, new_v = map(new_rows, rows)
    k_cache, v_cache = caches
    tensors = CallTensors(
        k=k_cache,
        v=v_cache,
        seqused_k=lengths,
        page_table=given,
        cache_batch_idx=picked,
        new_k=new_k,
        new_v=new_v,
        cu_seqlens_k_new=offsets,
    )
    append = prepare_append(tensors, 2)
    assert append is not None  # there are rows
    append(tensors)
    wrong = sum(
        (got.cpu() != cache(rows[x])).sum().item() for got, x in zip(caches, rows, strict=True)
    )
    return float(wrong), 0.5
