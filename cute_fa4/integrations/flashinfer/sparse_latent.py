"""FlashInfer's decode of DeepSeek V4, trtllm_batch_decode_sparse_mla_dsv4, with its parameters.

A query sees keys of two pools: a window, and a compressed cache of the keys before it. Both are lists of rows, which
FlashInfer's backends take in two forms:

    one list     sparse_indices: 128 rows of the window, then those of the compressed cache; sparse_topk_lens of both
    two lists    sparse_indices with swa_topk_lens, extra_sparse_indices with extra_sparse_topk_lens

The first is that of "trtllm-gen" over 16-bit rows of 512 columns. There seq_lens says how many of the 128 are keys: a
query at position p has min(p + 1, 128). The second is that of "sparse" over rows of 584 bytes. Either goes here with
either kind of rows.
"""

from __future__ import annotations

import torch

from cute_fa4 import mla
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.tensors import check_is_tensor
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.flashinfer.latent import LATENT
from cute_fa4.integrations.flashinfer.words import as_int32, check_layout
from cute_fa4.integrations.invariance import SGLANG, VLLM, asked_by
from cute_fa4.system.messages import shown

WINDOW = 128  # rows of the window in a list of both
NAMES = {
    "q": "query", "k_cache": "swa_kv_cache", "indices": "sparse_indices", "topk_length": "sparse_topk_lens",
    "extra_k_cache": "compressed_kv_cache", "learnable_sink": "sinks", "softmax_scale": "bmm1_scale",
}  # fmt: skip
OF_ONE_LIST = NAMES | {
    "extra_indices_in_kvcache": "sparse_indices",
    "extra_topk_length": "sparse_topk_lens",
}
OF_TWO_LISTS = NAMES | {
    "topk_length": "swa_topk_lens", "extra_indices_in_kvcache": "extra_sparse_indices",
    "extra_topk_length": "extra_sparse_topk_lens",
}  # fmt: skip


def trtllm_batch_decode_sparse_mla_dsv4(
    query,
    swa_kv_cache,
    workspace_buffer=None,
    sparse_indices=None,
    compressed_kv_cache=None,
    sparse_topk_lens=None,
    seq_lens=None,
    out=None,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    sinks=None,
    kv_layout="HND",
    cum_seq_lens_q=None,
    max_q_len=None,
    enable_pdl=None,
    swa_topk_lens=None,
    extra_sparse_indices=None,
    extra_sparse_topk_lens=None,
    backend="auto",
    hca_swa_indices=None,
    hca_compressed_block_tables=None,
    hca_seq_lens=None,
    hca_is_causal=True,
    hca_use_persistent=False,
    hca_sparse_indices_format=None,
):
    """cute_fa4.flash_mla_with_kvcache over a window and a compressed cache, with FlashInfer's interface.

    query            (batch, queries of a request, heads, 512); with cum_seq_lens_q, (batch + 1,) int32, packed tokens
                     (tokens, heads, 512), as many of each request as it says. bf16, fp16 or float8; over rows of 584
                     bytes bf16
    swa_kv_cache, compressed_kv_cache   (num_pages, 1, page_size, 512) of query's dtype, or (num_pages, page_size, 512);
                     kv_layout="NHD": (num_pages, page_size, 1, 512). With 584 in the place of 512: uint8, DeepSeek V4's
                     rows. Any page sizes, of each cache its own
    sparse_indices   (tokens, keys) int32, page * page_size + row of the page, -1: none. Without extra_sparse_indices
                     and swa_topk_lens: 128 rows of the window, then rows of the compressed cache. Otherwise of the
                     window alone, any number
    sparse_topk_lens (tokens,) int32: the length of a list of both, 128 and the rows of the compressed cache
    seq_lens         (batch,) int32 keys of each request, those of its queries included: of the first of them the
                     window has fewer than 128 rows. Needed with sparse_topk_lens
    swa_topk_lens, extra_sparse_indices, extra_sparse_topk_lens   (tokens,), (tokens, keys), (tokens,) int32: the lists
                     apart. Lengths None: all
    bmm1_scale       scale of q k^T, a number; bmm2_scale: 1.0
    sinks            (heads,), float32, bf16 or fp16
    out              as query, bf16 or fp16

    Accepted without effect: workspace_buffer, max_q_len, enable_pdl, backend, hca_use_persistent.

    Returns out, as query. NotImplementedError for scales that are tensors and for the lists of pages of "cute-dsl"
    (hca_...); otherwise the errors of cute_fa4.flash_mla_with_kvcache.
    """
    check_neutral(
        enable_pdl=enable_pdl, hca_swa_indices=hca_swa_indices, hca_seq_lens=hca_seq_lens, hca_is_causal=hca_is_causal,
        hca_compressed_block_tables=hca_compressed_block_tables, hca_use_persistent=hca_use_persistent,
        hca_sparse_indices_format=hca_sparse_indices_format, backend=backend,
    )  # fmt: skip
    check_layout(kv_layout)
    _check_scales(bmm1_scale, bmm2_scale)
    rows = _by_tokens("query", query, cum_seq_lens_q)
    listed = _list_of("sparse_indices", sparse_indices, len(rows))
    apart = extra_sparse_indices, swa_topk_lens, extra_sparse_topk_lens
    if all(x is None for x in apart):
        lengths = sparse_topk_lens, seq_lens, cum_seq_lens_q
        first, second = _of_one_list(listed, *lengths, query)
        names = OF_ONE_LIST
    else:
        first = listed, swa_topk_lens
        second = extra_sparse_indices, extra_sparse_topk_lens
        if extra_sparse_indices is not None:
            second = _list_of("extra_sparse_indices", extra_sparse_indices, len(rows)), second[1]
        names = OF_TWO_LISTS
    given = _of_lists(names, first, second, len(rows))
    if given.get("extra_indices_in_kvcache") is not None:
        given["extra_k_cache"] = _rows_of("compressed_kv_cache", compressed_kv_cache, kv_layout)
    cache = _rows_of("swa_kv_cache", swa_kv_cache, kv_layout)
    into = None if out is None else _by_tokens("out", out, cum_seq_lens_q)
    found, _ = asked(
        mla.flash_mla_with_kvcache, names, rows, cache, None, None, LATENT, softmax_scale=bmm1_scale,
        learnable_sink=sinks, out=into, batch_invariant=asked_by(VLLM, SGLANG), **given,
    )  # fmt: skip
    return found.view(query.shape) if out is None else out


def _check_scales(of_scores, of_values) -> None:
    """Numbers: caches of 16 bits and rows of 584 bytes have no scale of a whole tensor."""
    for name, value in (("bmm1_scale", of_scores), ("bmm2_scale", of_values)):
        if isinstance(value, torch.Tensor):
            raise NotImplementedError(
                f"{name}: a tensor over caches without a scale for all of them; accepted: a number"
            )
    if of_values != 1.0:
        raise NotImplementedError(
            f"bmm2_scale: {shown(of_values)} over caches without a scale for all of them; accepted: 1.0"
        )


def _by_tokens(name: str, x, offsets) -> torch.Tensor:
    """(tokens, 1, heads, columns): each query has its own list."""
    check_is_tensor(name, x)
    rank = 4 if offsets is None else 3
    if x.dim() != rank:
        shape = "(batch, queries, heads, 512)" if rank == 4 else "(tokens, heads, 512)"
        said = "without" if rank == 4 else "with"
        raise ValueError(f"{name}: shape {tuple(x.shape)} {said} cum_seq_lens_q; accepted: {shape}")
    if rank == 3:
        return x.unsqueeze(1)
    if x.stride(0) != x.stride(1) * x.shape[1] and len(x) > 1:
        raise ValueError(
            f"{name}: strides {x.stride()} for shape {tuple(x.shape)}; accepted: queries that are one stride apart, as "
            "in a contiguous tensor"
        )
    return x.flatten(0, 1).unsqueeze(1)


def _rows_of(name: str, cache, layout: str) -> torch.Tensor:
    """(num_pages, page_size, 1, columns)."""
    check_is_tensor(name, cache)
    found = cache
    if cache.dim() == 3 and layout == "HND":
        found = cache.unsqueeze(2)
    elif cache.dim() == 4:
        found = cache.transpose(1, 2) if layout == "HND" else cache
    if found.dim() != 4 or found.shape[2] != 1:
        accepted = {
            "HND": "(num_pages, 1, page_size, columns) or (num_pages, page_size, columns)",
            "NHD": "(num_pages, page_size, 1, columns)",
        }[layout]
        raise ValueError(
            f"{name}: shape {tuple(cache.shape)} with kv_layout={layout!r}; accepted: {accepted}"
        )
    return found


def _list_of(name: str, listed, tokens: int) -> torch.Tensor:
    """(tokens, keys) int32; three dimensions (batch, queries, keys) are flattened."""
    listed = as_int32(name, listed)
    listed = listed.flatten(0, 1) if listed.dim() == 3 else listed
    if listed.dim() != 2 or len(listed) != tokens:
        raise ValueError(
            f"{name}: shape {tuple(listed.shape)} with {tokens} queries; accepted: ({tokens}, keys)"
        )
    return listed


def _of_one_list(listed, lengths, used, offsets, query) -> tuple:
    """-> (rows of the window, how many), (rows of the compressed cache, how many)."""
    if listed.shape[1] < WINDOW:
        raise ValueError(
            f"sparse_indices: shape {tuple(listed.shape)} with neither swa_topk_lens nor extra_sparse_indices; "
            f"accepted: (tokens, {WINDOW} and more): {WINDOW} rows of the window come first"
        )
    if lengths is None or used is None:
        name = "sparse_topk_lens" if lengths is None else "seq_lens"
        raise ValueError(
            f"{name}: None with a list of both caches; accepted: int32 numbers of keys; or lists apart, "
            "extra_sparse_indices and swa_topk_lens"
        )
    lengths, used = as_int32("sparse_topk_lens", lengths).flatten(), as_int32("seq_lens", used)
    batch = len(query) if offsets is None else offsets.shape[0] - 1
    if tuple(used.shape) != (batch,):
        raise ValueError(f"seq_lens: shape {tuple(used.shape)}; accepted: ({batch},)")
    held = (_positions(used, offsets, query) + 1).clamp(0, WINDOW).int()
    window, others = listed[:, :WINDOW], listed[:, WINDOW:]
    if not others.shape[1]:
        return (window, held), (None, None)
    return (window, held), (others, (lengths - WINDOW).clamp(min=0))


def _positions(used, offsets, query) -> torch.Tensor:
    """(tokens,): of each query, among the keys of its request, of which it sees those up to its own."""
    if offsets is None:
        queries = query.shape[1]
        own = torch.arange(queries, device=used.device)
        return (used[:, None] - queries + own).flatten()
    tokens = torch.arange(len(query), device=used.device)
    request = torch.searchsorted(offsets[1:], tokens, right=True).clamp(max=len(used) - 1)
    return used[request] - offsets[request + 1] + tokens


def _of_lists(names: dict, first: tuple, second: tuple, tokens: int) -> dict:
    """Arguments of flash_mla_with_kvcache: both lists, and their lengths."""
    (listed, held), (others, of_others) = first, second
    given = {
        "indices": listed, "topk_length": held, "extra_indices_in_kvcache": others, "extra_topk_length": of_others,
    }  # fmt: skip
    for name, found in given.items():
        if found is None:
            continue
        if name.endswith("topk_length"):
            found = as_int32(names[name], found).flatten()
            if len(found) != tokens:
                raise ValueError(
                    f"{names[name]}: {len(found)} numbers with {tokens} queries; accepted: ({tokens},)"
                )
            given[name] = found
        else:
            given[name] = found.unsqueeze(1)
    return given
