"""Checks of the tensors that locate sequences: offsets, lengths and page tables.

Always       that they are int32 tensors on q's device, contiguous, of the right shape, and agree on the batch
On the CPU   also their contents: offsets that decrease, lengths beyond the rows, pages that do not exist
On CUDA      their contents are not read, that would stop the stream. The kernel clips them: wrong contents give wrong
             results, never an access outside a tensor. Page numbers beyond the pool read zeros.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.operands.tensors import MAX_SEQLEN, check_is_tensor
from cute_fa4.calls.request import Where
from cute_fa4.operands import LENGTHS, NAMES, OF_BATCH, OFFSETS, OPERANDS, CallTensors


def check_lengths(q: torch.Tensor, k: torch.Tensor, where: Where) -> None:
    """Every index tensor of a call, by metadata; q and k are (total or batch and seqlen, heads, head_dim) or pages."""
    check_index_tensors(q, where)
    batch = where.batch(q)
    if batch < 0:
        raise ValueError(
            "cu_seqlens_q: shape (0,); accepted: (batch + 1,), the begin of each sequence and the end of the last"
        )
    for (axis,), size in ((OF_BATCH, batch), (OFFSETS, batch + 1)):
        for name, tensor in where.tensors.named(LENGTHS).items():
            if OPERANDS[name].axes == (axis,):
                _check_size(name, tensor, size, axis)
    if where.tensors.cache_batch_idx is None:
        _check_size("page_table", where.tensors.page_table, batch, "batch")
    if where.kv_layout == "dense" and k.shape[0] != batch and where.tensors.cache_batch_idx is None:
        raise ValueError(f"k: batch {k.shape[0]} while q has {batch} sequences; accepted: equal")
    if where.tensors.page_table is not None:
        capacity = k.shape[1] * where.tensors.page_table.shape[1]
        if capacity > MAX_SEQLEN:
            raise ValueError(
                f"page_table: {where.tensors.page_table.shape[1]} pages of {k.shape[1]} keys hold {capacity} "
                f"keys a sequence; accepted: at most {MAX_SEQLEN}; pass fewer columns"
            )


def check_index_tensors(q: torch.Tensor, where: Where) -> None:
    """Check index tensors, those of one dimension first."""
    for name in sorted(NAMES[LENGTHS], key=lambda name: len(OPERANDS[name].axes)):
        rank = len(OPERANDS[name].axes)
        check_index_tensor(name, getattr(where.tensors, name), rank, q.device)


def check_offsets(tensors: CallTensors) -> None:
    """Those of queries, which say how many sequences there are."""
    check_index_tensor("cu_seqlens_q", tensors.cu_seqlens_q, 1, tensors.q.device)


def longest_of(offsets: torch.Tensor | None) -> int | None:
    """Rows of the longest packed sequence, where the host can see offsets; None: it cannot."""
    if offsets is None or offsets.device.type != "cpu" or offsets.shape[0] <= 1:
        return None
    return max(0, int(offsets.diff().max()))


def check_index_tensor(
    name: str, tensor: torch.Tensor | None, rank: int, device, axes: tuple[str, ...] = ()
) -> None:
    if tensor is None:
        return
    check_is_tensor(name, tensor)
    if tensor.dim() != rank:
        said = "(batch, pages)" if rank == 2 else "(batch + 1,)" if "cu_" in name else "(batch,)"
        said = f"({', '.join(axes)})" if axes else said
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)} has {tensor.dim()} dimensions; accepted: {rank}, {said}"
        )
    if tensor.dtype != torch.int32:
        raise TypeError(
            f"{name}: dtype {tensor.dtype}; accepted: torch.int32; convert with .to(torch.int32)"
        )
    if tensor.device != device:
        raise ValueError(
            f"{name}: on {tensor.device} while q is on {device}; accepted: all on one device; "
            f"move it with .to({str(device)!r})"
        )
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name}: strides {tensor.stride()}; accepted: the last dimension contiguous; "
            "copy with .contiguous()"
        )


def _check_size(name: str, tensor: torch.Tensor | None, size: int, what: str) -> None:
    if tensor is not None and tensor.shape[0] != size:
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)}; accepted: the first dimension is {size}, {what}"
        )


# --- contents of the tensors, where the host can see them


def check_contents(q: torch.Tensor, k: torch.Tensor, where: Where, latent: bool = False) -> None:
    """CPU tensors only. Raises ValueError with the first sequence that is wrong.

    latent: where a page of the cache is a key, any entry that is none hides it.

    A value common to all sequences is one number, whatever the batch: metadata can claim billions of them.
    """
    batch = where.batch(q)

    def all_have(length: int) -> torch.Tensor:
        return torch.tensor(length).expand(batch)

    queries = _lengths("cu_seqlens_q", where.tensors.cu_seqlens_q, q.shape[0])
    if queries is None:
        queries = all_have(q.shape[1])
    elif batch and int(queries.max()) > where.max_seqlen_q:
        raise ValueError(
            f"max_seqlen_q: {where.max_seqlen_q} while sequence {int(queries.argmax())} has "
            f"{int(queries.max())} queries; accepted: at least as many, or None"
        )
    _check_between(
        "seqused_q", where.tensors.seqused_q, queries, "the queries that cu_seqlens_q or q has"
    )
    if where.tensors.seqused_q is not None:
        queries = where.tensors.seqused_q
    keys = _lengths("cu_seqlens_k", where.tensors.cu_seqlens_k, k.shape[0])
    if where.tensors.page_table is not None:
        keys = all_have(where.tensors.page_table.shape[1] * k.shape[1])
    elif keys is None:
        keys = all_have(k.shape[1])
    used = where.tensors.seqused_k
    if used is not None:
        _check_between("seqused_k", used, keys, "the keys that k or the page table holds")
        if where.excludes_new:
            used = used + queries
            _check_between(
                "seqused_k plus the queries", used, keys, "the keys that the cache holds"
            )
    _check_between("key_limit", where.tensors.key_limit, None, "")
    table = where.tensors.page_table
    check_cache_rows(where.tensors.cache_batch_idx, k.shape[0] if table is None else table.shape[0])
    _check_between(
        "cache_leftpad", where.tensors.cache_leftpad, used, "the rows that seqused_k counts"
    )
    picks = latent and k.shape[1] == 1
    if table is not None and used is not None and not picks:
        check_pages(
            rows_of(table, where.tensors.cache_batch_idx),
            used,
            k.shape[1],
            k.shape[0],
            where.tensors.cache_leftpad,
        )


def keys_of(q: torch.Tensor, k: torch.Tensor, where: Where) -> torch.Tensor:
    """Keys of each sequence, (batch,), of lengths that check_contents has seen."""
    if where.tensors.seqused_k is not None:
        return where.tensors.seqused_k + (queries_of(q, where) if where.excludes_new else 0)
    if where.tensors.cu_seqlens_k is not None:
        return where.tensors.cu_seqlens_k.diff()
    return torch.full((where.batch(q),), k.shape[1])


def queries_of(q: torch.Tensor, where: Where) -> torch.Tensor:
    """Queries of each sequence, (batch,), likewise."""
    if where.tensors.seqused_q is not None:
        return where.tensors.seqused_q
    if where.tensors.cu_seqlens_q is not None:
        return where.tensors.cu_seqlens_q.diff()
    return torch.full((where.batch(q),), q.shape[1])


def _lengths(name: str, offsets: torch.Tensor | None, rows: int) -> torch.Tensor | None:
    """Lengths from offsets; ValueError where they decrease or leave [0, rows]."""
    if offsets is None or offsets.shape[0] == 0:
        return None
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0:
        raise ValueError(f"{name}: begins with {first}; accepted: 0 or more")
    lengths = offsets.long().diff()
    if lengths.numel() and int(lengths.min()) < 0:
        b = int(lengths.argmin())
        raise ValueError(
            f"{name}: goes from {int(offsets[b])} to {int(offsets[b + 1])} at sequence {b}; "
            "accepted: offsets that do not decrease"
        )
    if last > rows:
        raise ValueError(f"{name}: ends with {last}; accepted: at most {rows}, the number of rows")
    return lengths


def _check_between(name: str, values: torch.Tensor | None, limits, what: str) -> None:
    if values is None or values.numel() == 0:
        return
    if int(values.min()) < 0:
        b = int(values.argmin())
        raise ValueError(f"{name}: {int(values[b])} for sequence {b}; accepted: 0 or more")
    if limits is not None and bool((values > limits).any()):
        b = int((values > limits).nonzero()[0])
        raise ValueError(
            f"{name}: {int(values[b])} for sequence {b}; accepted: at most {int(limits[b])}, {what}"
        )


def check_cache_rows(cache_batch_idx: torch.Tensor | None, sequences: int) -> None:
    """Check that each index is a sequence of the cache."""
    if cache_batch_idx is None or cache_batch_idx.numel() == 0:
        return
    wrong = (cache_batch_idx < 0) | (cache_batch_idx >= sequences)
    if bool(wrong.any()):
        b = int(wrong.nonzero()[0])
        raise ValueError(
            f"cache_batch_idx: {int(cache_batch_idx[b])} for sequence {b}; accepted: 0 to {sequences - 1}, the "
            "sequences of the cache, or rows of its page table"
        )


def rows_of(table: torch.Tensor, cache_batch_idx: torch.Tensor | None) -> torch.Tensor:
    """The page table by sequences of the batch."""
    return table if cache_batch_idx is None else table[cache_batch_idx.long()]


def check_pages(
    table: torch.Tensor,
    keys: torch.Tensor,
    page_size: int,
    num_pages: int,
    leftpad: torch.Tensor | None = None,
    name: str = "page_table",
    of: str = "k and v",
) -> None:
    """The entries of the pages that hold rows `leftpad` to `keys` (batch,) are pages; others may be anything."""
    columns = torch.arange(table.shape[1])
    live = columns[None] * page_size < keys[:, None]
    if leftpad is not None:
        live &= (columns[None] + 1) * page_size > leftpad[:, None]
    wrong = live & ((table < 0) | (table >= num_pages))
    if bool(wrong.any()):
        b, column = wrong.nonzero()[0].tolist()
        accepted = f"0 to {num_pages - 1}, the pages of {of}"
        if num_pages == 0:
            accepted = f"a sequence of 0 keys: {of}, {page_size} keys a page, have no page"
        raise ValueError(
            f"{name}: entry [{b}, {column}] is {int(table[b, column])}, which holds keys of a "
            f"sequence of {int(keys[b])}; accepted: {accepted}"
        )
