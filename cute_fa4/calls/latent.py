"""A call over a latent cache (multi-head latent attention, absorbed), checked and compiled.

    q             (batch, seqlen_q, heads, 576)
    latent cache  (num_pages, page_size, 1, 576): columns 0 to 511 are keys and values, 512 to 575 keys alone; of eight
                  bits with a scale
                  (num_pages, page_size, 1, 512) of 16 bits: all columns are keys and values
                  (num_pages, page_size, 1, 656) of bytes: 512 numbers e4m3, a float32 scale for each 128 of them, 64
                  rotary columns bf16
                  (keys, 1, 1, 576) of bytes, with scales apart: those of 584 bytes, of which each key is a page
    page table    (batch, pages) int32; lengths (batch,) int32, both on the device

Values are a view of the cache, so the rest of calls/ treats it as any other attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from cute_fa4.calls.attention import is_float32
from cute_fa4.calls.operands.tensors import PAGED, check_is_tensor, check_rank
from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.calls.request import Choices
from cute_fa4.operands import PAGES, CallTensors, tensors_of
from cute_fa4.sm100.choose.choose_config import (
    LATENT_BYTES_IN_PAGE,
    LATENT_DEPTHS,
    LATENT_ROW_BYTES,
)
from cute_fa4.system.messages import named_as

NAMES = {"k": "k_cache", "v": "k_cache", "seqused_k": "cache_seqlens", "page_table": "block_table"}
NAMES |= {"q_descale": "descale_q", "k_descale": "descale_k", "v_descale": "descale_k"}


def values_of(cache: torch.Tensor) -> torch.Tensor:
    """The columns that are values too."""
    return cache.as_strided((*cache.shape[:-1], LATENT_DEPTHS[1]), cache.stride())


def check_latent_tensors(q, cache, page_table, lengths, out) -> None:
    """Check that they are tensors and that views of them can be made."""
    given = {"q": q, "k_cache": cache, "block_table": page_table, "cache_seqlens": lengths}
    for name, tensor in given.items():
        check_is_tensor(name, tensor)
    if out is not None:
        check_is_tensor("out", out)
    check_rank("k_cache", cache, PAGED)
    if cache.shape[-1] not in (*LATENT_DEPTHS, LATENT_ROW_BYTES):
        raise ValueError(
            f"k_cache: {cache.shape[-1]} columns of {cache.dtype}, shape {tuple(cache.shape)}; accepted: "
            f"{LATENT_DEPTHS[0]}, {LATENT_DEPTHS[1]} latent and {LATENT_DEPTHS[0] - LATENT_DEPTHS[1]} rotary ones, "
            f"or {LATENT_DEPTHS[1]}, all of them values; or rows of {LATENT_ROW_BYTES} bytes, or of "
            f"{LATENT_BYTES_IN_PAGE} in pages"
        )


def scales_of(descale_q, descale_k, cache, batch: int) -> dict:
    """Scales by the names of a call: the scale of the cache is that of keys and values.

    (batch,): one for each sequence; (num_pages, page_size): one for each row of the cache, which has one head
    """
    if descale_q is descale_k is None:
        return {}
    of_q, of_k = map(_of_sequences, (descale_q, descale_k))
    if is_by_row(descale_k, cache, batch) and of_k.dim() == 2:
        of_k = of_k.unsqueeze(-1)
    return {"q_descale": of_q, "k_descale": of_k, "v_descale": of_k}


def latent_tensors(call: Mapping[str, Any]) -> CallTensors:
    """A call over a latent cache as any other attention. call: tensors by name, those of keys as latent_cache."""
    cache = call["latent_cache"]
    return tensors_of({**call, "k": cache, "v": values_of(cache)})


def is_by_row(scale, cache, batch: int) -> bool:
    """Whether there is a scale for each row of a latent cache: its shape without the columns, or also without the head.

    ValueError for a column that may as well have a number for each sequence.
    """
    if not isinstance(scale, torch.Tensor) or scale.numel() == 1:
        return False
    by_row = scale.dim() in (2, 3) and tuple(scale.shape) == tuple(cache.shape[: scale.dim()])
    if by_row and tuple(scale.shape) == (batch, 1):
        raise ValueError(
            f"descale_k: shape {(batch, 1)} over {batch} pages of one row, of {batch} sequences; accepted: ({batch},), "
            f"one for each sequence, or ({batch}, 1, 1), one for each row of the cache"
        )
    return by_row


def _of_sequences(scale):
    if isinstance(scale, torch.Tensor) and scale.dim() == 1 and scale.numel() != 1:
        return scale[:, None]
    return scale


def of_each_key(scale, cache, batch: int):
    """A scale of each row of a latent cache, for the cache of which each key is a page."""
    if not is_by_row(scale, cache, batch):
        return scale
    pages, rows = cache.shape[:2]
    between = rows_of_page(cache) - rows
    by_page = torch.nn.functional.pad(scale.reshape(pages, rows), (0, between), value=1.0)
    return by_page.reshape(-1, 1, 1)[: pages * (rows + between) - between]


def of_each_query(scale, q):
    """A scale of each sequence for each of its queries."""
    if isinstance(scale, torch.Tensor) and scale.shape == q.shape[:1] and q.shape[1] > 1:
        return scale.repeat_interleave(q.shape[1])
    return scale


def by_page(cache, block_table) -> dict:
    """The operands of a call over pages as those of the call in which each key is a page.

    block_table: (batch, pages)
    """
    check_is_tensor("block_table", block_table)
    check_rank("block_table", block_table, PAGES)
    inside = torch.arange(cache.shape[1], dtype=block_table.dtype, device=block_table.device)
    table = block_table[:, :, None] * rows_of_page(cache) + inside
    return {"k_cache": _keys_alone(cache), "block_table": table.flatten(1)}


def by_index(q, cache, indices, out, listed=None) -> dict:
    """A call whose keys are listed, for each query, as the call in which each query is a sequence and a key a page.

    indices   (batch, seqlen_q, keys) int32: page * page_size + place in the page; any other number means no key
    listed    (batch,) or (batch, seqlen_q) int32: how many keys of each list count. They are the lengths of the
              sequences: nothing is loaded for the rest of a list, which may hold anything. None: up to the last key
    """
    given = {"q": q, "k_cache": cache, "indices": indices} | ({} if out is None else {"out": out})
    for name, tensor in given.items():
        check_is_tensor(name, tensor)
    check_rank("q", q)
    check_rank("k_cache", cache, PAGED)
    if indices.dtype != torch.int32:
        raise TypeError(
            f"indices: dtype {indices.dtype}; accepted: torch.int32; convert with .to(torch.int32)"
        )
    if indices.dim() != 3 or indices.shape[:2] != q.shape[:2]:
        raise ValueError(
            f"indices: shape {tuple(indices.shape)}; accepted: {(*q.shape[:2], 'keys')}, a row for each "
            "sequence and query of q"
        )
    if out is not None and out.shape[:2] != q.shape[:2]:
        raise ValueError(
            f"out: shape {tuple(out.shape)}; accepted: {(*q.shape[:-1], LATENT_DEPTHS[1])}"
        )
    queries = q.shape[0] * q.shape[1]
    table = _numbered(indices.reshape(queries, indices.shape[2]), cache)
    keys = _keys_alone(cache)
    if listed is None:
        lengths = _lengths_of_lists(table, keys.shape[0])
    else:
        of_queries = listed[:, None] if listed.dim() == 1 else listed
        lengths = of_queries.clamp(0, table.shape[1]).expand(q.shape[:2]).reshape(queries)
        lengths = lengths.contiguous()  # with a batch of 1 it is a view of stride 0
    return {
        "q": _alone("q", q if _is_consecutive(q) else q.contiguous()),
        "k_cache": keys,
        "block_table": table,
        "cache_seqlens": lengths,
        "out": None if out is None else _alone("out", out),
    }


def _lengths_of_lists(table, rows: int):
    """The length of each list up to its last key: the numbers after it are padding and are not gathered.

    Four small operations on the stream of the call. `rows`: of the cache, each of which is a key.
    """
    lists, width = table.shape
    if not width:
        return torch.zeros(lists, dtype=torch.int32, device=table.device)
    order = torch.arange(1, width + 1, dtype=torch.int32, device=table.device)
    return torch.where((table >= 0) & (table < rows), order, 0).amax(-1)


def _is_consecutive(tensor) -> bool:
    """Whether all queries of all sequences are at multiples of one stride."""
    batch, queries = tensor.shape[:2]
    return batch < 2 or queries < 2 or tensor.stride(0) == queries * tensor.stride(1)


def _alone(name: str, tensor):
    """View each query of q or out as its own sequence."""
    batch, queries, *rest = tensor.shape
    strides = tensor.stride()
    if not _is_consecutive(tensor):
        raise ValueError(
            f"{name}: strides {strides} with indices; accepted: consecutive sequences; copy with "
            f"{name}.contiguous()"
        )
    step = strides[1] if queries > 1 else strides[0]
    return tensor.as_strided((batch * queries, 1, *rest), (step, step, *strides[2:]))


def rows_of_page(cache) -> int:
    """Rows from one page of the cache to the next, counted in rows of memory: page_size, or more with gaps."""
    pages, rows = cache.shape[:2]
    of_page, of_row = cache.stride()[:2]
    if pages == 1 or rows == 1 or not cache.numel():
        return rows
    if of_row <= 0 or of_page % of_row or of_page < rows * of_row:
        raise ValueError(
            f"k_cache: strides {cache.stride()} with indices; accepted: pages at multiples of the stride of a row "
            "that do not overlap; copy with k_cache.contiguous()"
        )
    return of_page // of_row


def _keys_alone(cache):
    """View each row of the cache, and of the gaps between pages, as its own page."""
    pages, rows, *rest = cache.shape
    strides = cache.stride()
    number = (pages - 1) * rows_of_page(cache) + rows if pages else 0
    step = strides[1] if rows > 1 else strides[0]
    return cache.as_strided((number, 1, *rest), (step, step, *strides[2:]))


def _numbered(table, cache):
    """A table of rows of the cache -> numbers of _keys_alone; rows that do not exist become -1."""
    pages, rows = cache.shape[:2]
    between = rows_of_page(cache) - rows
    if not between:
        return table
    exists = (table >= 0) & (table < pages * rows)
    return torch.where(exists, table + table // rows * between, -1)


def prepare_latent_attention(tensors: CallTensors, asked: tuple) -> Callable:
    """As prepare_attention; refusals name the parameters of the latent call. With out of float32 nothing is rounded."""
    if is_float32(tensors.out):
        window_size, numbers, choices = asked
        if Choices(*choices).return_max:
            raise NotImplementedError(
                "out: torch.float32 with return_max_logits=True; accepted: the dtype of q: results in float32 are "
                "parts to be merged, which have no max_logits"
            )
        asked = window_size, numbers, Choices(*choices)._replace(in_float32=True)
    with names():
        return prepare_attention(tensors, asked)


def names():
    """Inside, attention calls the cache k and v; refusals have the caller's names."""
    return named_as(NAMES)
