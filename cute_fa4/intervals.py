"""Masks of key intervals: each query lists the ends of the intervals of keys that it sees.

    mask = interval_mask(endpoints)                            as cuDNN's flex attention takes them
    lists = block_mask(mask, batch, 1, seqlen_q, seqlen_k)     key tiles without a visible key are skipped
    flash_attn_func(q, k, v, mask_mod=mask, block_sparse_tensors=lists)

A query with endpoints F0, F1, ... sees the keys [0, F0), [F1, F2), [F3, F4), ... An interval that does not begin before
its end is empty. Documents, prefixes, windows with sinks and their unions are such masks:

    query 5 of a document of the keys [4, 9), causal       0  4  6            [0, 0)  [4, 6)
    the same with the first two keys as sinks              2  4  6            [0, 2)  [4, 6)
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.system.messages import shown

__all__ = ["interval_mask"]


def interval_mask(endpoints: torch.Tensor) -> ScoreMod:
    """The mask_mod of intervals of keys. Its tensor is read at each call; the number of intervals is compiled in.

    endpoints   (heads, n, query rows) int32, n odd, keys counted within a sequence; heads: 1 for all, or query heads.
                Query rows are batch * seqlen_q, batch by batch, or total_q of packed queries

    TypeError or ValueError for other tensors, and at a call whose q has other heads or rows.
    """
    if not isinstance(endpoints, torch.Tensor) or endpoints.dtype != torch.int32:
        given = endpoints.dtype if isinstance(endpoints, torch.Tensor) else shown(endpoints)
        raise TypeError(f"endpoints: {given}; accepted: a tensor of torch.int32")
    shape = tuple(endpoints.shape)
    if len(shape) != 3 or shape[1] % 2 == 0:
        raise ValueError(
            f"endpoints: shape {shape}; accepted: (1 or query heads, an odd number, query rows)"
        )
    heads, number, rows = shape

    def visible(batch, head, q_idx, kv_idx, aux):
        def end(i):
            return endpoints[0 if heads == 1 else head, i, aux.q_row]

        found = kv_idx < end(0)
        for i in range(1, number, 2):
            found = found | ((kv_idx >= end(i)) & (kv_idx < end(i + 1)))
        return found

    def check(aux, batch, heads_q, rows_q):
        if heads not in (1, heads_q) or rows != rows_q:
            raise ValueError(
                f"mask_mod: interval_mask of endpoints {shape}, for {heads_q} query heads and {rows_q} query rows; "
                f"accepted: endpoints of (1 or {heads_q}, {number}, {rows_q})"
            )

    return replace(ScoreMod.of(visible, "mask_mod"), check=check)
