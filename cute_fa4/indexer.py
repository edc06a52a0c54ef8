"""The lightning indexer of DeepSeek-V3.2: scores of keys, and the keys with the highest ones, for sparse attention.

    logits[i, j] = k_scale[j] * sum over heads h of weights[i, h] * max(0, q[i, h] . k[j])

A few small heads score every key; attention (flash_mla_sparse_fwd, flash_mla_with_kvcache with `indices`) then reads
the keys of topk_indices alone. The first two functions have the names and parameters of DeepGEMM's.
"""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

import cute_fa4.operators  # noqa: F401  registers them before the first call
from cute_fa4.calls.indexer import Dense, Paged, TopK
from cute_fa4.calls.operands.foreign import check_switch
from cute_fa4.calls.operands.lengths import check_index_tensor
from cute_fa4.calls.operands.tensors import check_is_tensor
from cute_fa4.calls.operands.tracing import is_traced, refuse_untraceable
from cute_fa4.calls.prepare import check_length
from cute_fa4.system.messages import shown

__all__ = ["cache_indices", "fp8_mqa_logits", "fp8_paged_mqa_logits", "topk_indices"]


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> torch.Tensor:
    """Logits of every query and key of a prefill: (queries, keys) float32.

    q         (queries, heads, 128) float8_e4m3fn; its scales are factors of weights. Heads: multiples of 8 up to 128
    kv        (k, k_scale): (keys, 128) float8_e4m3fn, and its scales, (keys,) float32
    weights   (queries, heads) float32
    cu_seq_len_k_start, cu_seq_len_k_end   (queries,) int32: query i sees keys start[i] <= j < end[i]; ends beyond the
              last key count as it
    clean_logits   keys that a query does not see get -inf; False: their logits are not written, and may be anything
    max_seqlen_k   0. DeepGEMM's rows that begin at the first key of their query are not available

    A logit has the same bits whatever the other queries and keys of the call are. A NaN in a key that a query sees, in
    the query or in its weights gives NaN.

    Raises TypeError and ValueError for other dtypes, shapes and strides.
    """
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        raise TypeError(f"kv: {shown(kv)}; accepted: (k, k_scale), the keys and their scales")
    if max_seqlen_k:
        raise NotImplementedError(
            f"max_seqlen_k: {shown(max_seqlen_k)}; accepted: 0, a column for every key: shift rows by "
            "cu_seq_len_k_start afterwards"
        )
    clean = check_switch("clean_logits", clean_logits)
    given = Dense(q, *kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean)
    return _result(given, "mqa_logits")


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta=None,
    max_context_len: int | None = None,
    clean_logits: bool = False,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of a decode step over a paged cache of keys: (batch * next_n, max_context_len) float32.

    q                (batch, next_n, heads, 128) float8_e4m3fn, as in fp8_mqa_logits
    kv_cache   (num_blocks, block_size, 1, 132), uint8, int8 or float8_e4m3fn: a block has the 128 bytes of each
                     of its keys, and then the float32 scale of each. block_size: 8, 16, 32, 64, or a multiple of 128
    weights          (batch * next_n, heads) float32
    context_lens     (batch,) int32: keys of each sequence, including those of this call's queries: query i of next_n
                     sees context_lens - next_n + 1 + i keys. Or (batch, next_n): the keys that each query sees
    block_table      (batch, blocks) int32: the blocks of each sequence; entries past its keys are not read. Keys of
                     entries that are no block get -inf
    schedule_meta    accepted and not read: the work of a CTA follows from context_lens
    max_context_len  columns of the result; None: as many keys as block_table holds
    clean_logits     as in fp8_mqa_logits; False: topk_indices needs `ends`
    indices          None. DeepGEMM's queries of one sequence in several rows of the batch are not available

    Rows past the keys of a sequence may hold anything. Raises the errors of fp8_mqa_logits.
    """
    if indices is not None:
        raise NotImplementedError(
            f"indices: {shown(indices)}; accepted: None: give each row of q a row of context_lens and block_table"
        )
    if max_context_len is None:
        for name, tensor in (("kv_cache", kv_cache), ("block_table", block_table)):
            check_is_tensor(name, tensor)
        max_context_len = kv_cache.shape[1] * block_table.shape[-1]
    check_length("max_context_len", max_context_len)
    given = q, kv_cache, weights, context_lens, block_table, max_context_len
    call = Paged(*given, check_switch("clean_logits", clean_logits))
    return _result(call, "paged_mqa_logits")


def _result(call: Dense | Paged | TopK, name: str) -> torch.Tensor:
    """Through the operator of this name where something traces the call."""
    if is_dynamo_compiling() or is_traced(call[0]):
        given = call._asdict()
        refuse_untraceable(name, given)
        numbers = {number: given.pop(number) for number in call.numbers}
        return getattr(torch.ops.cute_fa4, name)(*given.values(), **numbers)
    call.check()
    return call.run()


def topk_indices(
    logits: torch.Tensor,
    k: int,
    starts: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
) -> torch.Tensor:
    """The k keys of each row with the highest logits: (rows, k) int32, in the order of the keys, then -1.

    logits   (rows, keys) float32
    k        keys of a row; rows that see fewer get -1 for the rest
    starts, ends   (rows,) int32: a row sees keys starts[i] <= j < ends[i]; None: all. A logit of -inf is not seen

    The result is exact and the same in every run: of equal logits the smaller index wins, NaN counts as the highest,
    and -0 equals 0. A row is read five times, by one CTA, or by a cluster where rows are few and long.
    """
    if check_length("k", k) is None:
        raise TypeError("k: None; accepted: a number of keys")
    return _result(TopK(logits, starts, ends, k), "topk_indices")


def cache_indices(
    indices: torch.Tensor, block_table: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Keys of sequences -> rows of a cache, block * block_size + row of the block; -1 stays.

    indices      (batch, ..., k) int32, as topk_indices returns them for the rows of a sequence
    block_table  (batch, blocks) int32
    """
    check_is_tensor("indices", indices)
    check_index_tensor("block_table", block_table, 2, indices.device)
    if indices.dim() < 2 or indices.shape[0] != block_table.shape[0]:
        raise ValueError(
            f"indices: shape {tuple(indices.shape)} with block_table {tuple(block_table.shape)}; accepted: "
            f"({block_table.shape[0]}, ..., k), the keys of each sequence; use unflatten(0, (batch, next_n))"
        )
    of_sequence = indices.flatten(1).long()
    block = block_table.gather(1, of_sequence.clamp(min=0) // block_size)
    rows = block * block_size + of_sequence.clamp(min=0).int() % block_size
    return torch.where(of_sequence < 0, -1, rows).view(indices.shape)
