"""Page tables of each key-value head (sparse decode): heads become requests of one head, over the same memory.

    block_tables (heads_kv, batch, pages), seq_lens (heads_kv, batch)    request b, head h -> request b * heads_kv + h
    page p of head h begins p * page stride + h * head stride            page p * ratio + h of a view with one head

ratio is the page stride over the head stride: one for keys, values and the scales of their blocks, because they have
one table. Nothing of the cache is copied. Pages are (heads_kv, page_size, depth): with heads inside of rows, such pages
would begin between rows, where the kernels load none.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.operands.tensors import check_is_tensor, check_rank


def folded(query, caches: tuple, scales: tuple, table, lengths) -> tuple:
    """-> (query, (k, v), their scales, table, lengths) of requests of one key-value head each.

    scales: of the blocks of k and v, or (). ValueError by the callers' names.
    """
    for name, tensor in (("block_tables", table), ("seq_lens", lengths)):
        check_is_tensor(name, tensor)
    heads, (tokens, heads_q, _) = caches[0].shape[1], query.shape
    if heads_q % heads:
        raise ValueError(f"query: {heads_q} heads over {heads} of keys; accepted: a multiple")
    for name, tensor, rank in (("block_tables", table, 3), ("seq_lens", lengths, 2)):
        if tensor.dim() != rank or tuple(tensor.shape[:2]) != (heads, tokens):
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} with enable_block_sparse_attention; accepted: "
                f"({heads}, {tokens}{', pages' * (rank == 3)}), key-value heads and tokens of query"
            )
    named = [("kv_cache", x) for x in caches] + [("kv_cache_sf", x) for x in scales]
    views, ratios = zip(*(_of_one_head(name, x, heads) for name, x in named), strict=True)
    ratio = ratios[0]
    for (name, _), other, of in zip(named, ratios, ("K", "V") * 2, strict=False):
        if other != ratio:
            raise ValueError(
                f"{name}: pages of {of} lie {other} head strides apart, of K in kv_cache {ratio}; accepted: as many in "
                "all, as where keys, values and their scales are tensors of their own"
            )
    head = torch.arange(heads, dtype=table.dtype, device=table.device)
    places = table.transpose(0, 1) * ratio + head[None, :, None]
    where = places.flatten(0, 1), lengths.t().flatten()
    return by_heads(query, heads), views[:2], views[2:], *where


def by_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(tokens, heads of q, ...) -> (tokens * heads, heads of a group, ...)."""
    return x.unflatten(1, (heads, -1)).flatten(0, 1)


def out_by_heads(out, heads: int):
    """The same of `out`, as a view: a copy would be written in its place."""
    if out is None:
        return None
    check_is_tensor("out", out)
    check_rank("out", out, ("tokens", "heads", "head_dim"))
    if not out.is_contiguous() or out.shape[1] % heads:
        raise ValueError(
            f"out: shape {tuple(out.shape)} with strides {out.stride()} and enable_block_sparse_attention; accepted: "
            f"contiguous, a multiple of {heads} heads"
        )
    return by_heads(out, heads)


def of_tokens(x, heads: int):
    """The inverse."""
    return x.unflatten(0, (-1, heads)).flatten(1, 2)


def _of_one_head(name: str, cache, heads: int) -> tuple[torch.Tensor, int]:
    """-> (pages of one head, page stride over head stride)."""
    if cache.dim() != 4 or cache.shape[1] != heads:
        raise ValueError(
            f"{name}: shape {tuple(cache.shape)} with enable_block_sparse_attention; accepted: pages of {heads} heads, "
            "as keys have"
        )
    if heads == 1:
        return cache, 1
    apart = cache.stride(1)
    ratio, rest = divmod(cache.stride(0), apart)
    if rest or ratio < heads:
        raise ValueError(
            f"{name}: strides {cache.stride()} with enable_block_sparse_attention; accepted: a page stride that is "
            "a multiple of the head stride, and spans all heads"
        )
    sizes, strides = list(cache.shape), list(cache.stride())
    sizes[0], sizes[1], strides[0] = (len(cache) - 1) * ratio + heads, 1, apart
    return cache.as_strided(sizes, strides, cache.storage_offset()), ratio
