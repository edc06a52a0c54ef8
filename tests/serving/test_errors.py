"""Refusals of the serving functions: each error names the argument, its value and what is accepted."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import pytest
import torch

from cute_fa4 import (
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    masks,
)
from tests.serving.batches import Batch, int32, packed_kv, packed_q, paged_kv

BATCH = Batch.draw([2, 3], [20, 33])
PACKED = packed_q(BATCH) | packed_kv(BATCH)
PAGED = packed_q(BATCH) | paged_kv(BATCH, 16)
PAGES = len(PAGED["k"])


def table_with(row, column, value):
    table = PAGED["page_table"].clone()
    table[row, column] = value
    return table


# Calls that differ from a good one by what is named. (call, changes, error, text)
REFUSED = {
    "offsets that decrease": (
        PACKED,
        dict(cu_seqlens_q=int32([0, 4, 3])),
        ValueError,
        "cu_seqlens_q: goes from 4 to 3 at sequence 1",
    ),
    "offsets below zero": (
        PACKED,
        dict(cu_seqlens_k=int32([-1, 4, 30])),
        ValueError,
        "cu_seqlens_k: begins with -1",
    ),
    "offsets beyond the rows": (
        PACKED,
        dict(cu_seqlens_k=int32([0, 20, 59])),
        ValueError,
        "cu_seqlens_k: ends with 59; accepted: at most 58",
    ),
    "int64 offsets": (
        PACKED,
        dict(cu_seqlens_q=torch.tensor([0, 2, 5])),
        TypeError,
        "cu_seqlens_q: dtype torch.int64",
    ),
    "offsets of rank 2": (
        PACKED,
        dict(cu_seqlens_k=int32([0, 20, 53])[None]),
        ValueError,
        "cu_seqlens_k: shape (1, 3) has 2 dimensions",
    ),
    "no offsets at all": (
        PACKED,
        dict(cu_seqlens_q=int32([])),
        ValueError,
        "cu_seqlens_q: shape (0,)",
    ),
    "offsets as a list": (PACKED, dict(cu_seqlens_q=[0, 2, 5]), TypeError, "cu_seqlens_q: a list"),
    "offsets of three sequences": (
        PACKED,
        dict(cu_seqlens_k=int32([0, 1, 2, 3])),
        ValueError,
        "cu_seqlens_k: shape (4,); accepted: the first dimension is 3",
    ),
    "offsets elsewhere": (
        PACKED,
        dict(cu_seqlens_k=int32([0, 20, 53]).to("meta")),
        ValueError,
        "cu_seqlens_k: on meta while q is on cpu",
    ),
    "offsets with gaps": (
        PACKED,
        dict(cu_seqlens_k=int32([0, 9, 20, 9, 53, 9])[::2]),
        ValueError,
        "cu_seqlens_k: strides (2,)",
    ),
    "a maximum that is too small": (
        PACKED,
        dict(max_seqlen_q=2),
        ValueError,
        "max_seqlen_q: 2 while sequence 1 has 3",
    ),
    "a maximum in a tensor": (
        PACKED,
        dict(max_seqlen_q=torch.tensor(3)),
        TypeError,
        "max_seqlen_q: a Tensor; accepted: an int or None; read it once",
    ),
    "a negative maximum": (PACKED, dict(max_seqlen_q=-3), ValueError, "max_seqlen_q: -3"),
    "used beyond a sequence": (
        PACKED,
        dict(seqused_k=int32([20, 34])),
        ValueError,
        "seqused_k: 34 for sequence 1; accepted: at most 33",
    ),
    "negative used": (
        PACKED,
        dict(seqused_q=int32([-1, 3])),
        ValueError,
        "seqused_q: -1 for sequence 0",
    ),
    "used of three sequences": (
        PACKED,
        dict(seqused_q=int32([1, 1, 1])),
        ValueError,
        "seqused_q: shape (3,); accepted: the first dimension is 2",
    ),
    "a negative limit": (
        PACKED,
        dict(key_limit=int32([5, -5])),
        ValueError,
        "key_limit: -5 for sequence 1",
    ),
    "packed q without offsets": (
        PACKED,
        dict(cu_seqlens_q=None),
        ValueError,
        "q: shape (10, 2, 64) has 3 dimensions; accepted: 4",
    ),
    "k of other heads": (
        PACKED,
        dict(k=torch.zeros(58, 2, 64).bfloat16()),
        ValueError,
        "v: heads 1 while k has 2",
    ),
    "out of another shape": (
        PACKED,
        dict(out=torch.zeros(9, 2, 64).bfloat16()),
        ValueError,
        "out: shape (9, 2, 64); accepted: (10, 2, 64)",
    ),
    "layout without pages": (
        PACKED,
        dict(kv_layout="HND"),
        ValueError,
        "kv_layout: 'HND' without page_table",
    ),
    "a count of no lengths": (
        PACKED,
        dict(seqused_k_excludes_new=True),
        ValueError,
        "seqused_k_excludes_new: True without seqused_k",
    ),
    "splits": (PACKED, dict(num_splits=-4), ValueError, "num_splits: -4"),
    "an unknown mask": (PACKED, dict(mask="causal"), TypeError, "mask: 'causal'"),
    "two names of one thing": (
        PAGED,
        dict(block_table=PAGED["page_table"]),
        TypeError,
        "page_table and block_table are two names",
    ),
    "a table of rank 1": (
        PAGED,
        dict(page_table=int32([1, 2])),
        ValueError,
        "page_table: shape (2,) has 1 dimensions; accepted: 2",
    ),
    "an int64 table": (
        PAGED,
        dict(page_table=PAGED["page_table"].long()),
        TypeError,
        "page_table: dtype torch.int64",
    ),
    "a table of one sequence": (
        PAGED,
        dict(page_table=PAGED["page_table"][:1]),
        ValueError,
        "page_table: shape (1, 4)",
    ),
    "a transposed table": (
        PAGED,
        dict(page_table=PAGED["page_table"].T.contiguous().T),
        ValueError,
        "page_table: strides",
    ),
    "a page that does not exist": (
        PAGED,
        dict(page_table=table_with(1, 2, PAGES)),
        ValueError,
        f"page_table: entry [1, 2] is {PAGES}",
    ),
    "a negative page": (
        PAGED,
        dict(page_table=table_with(0, 0, -1)),
        ValueError,
        "page_table: entry [0, 0] is -1",
    ),
    "a length beyond the table": (
        PAGED,
        dict(seqused_k=int32([20, 65])),
        ValueError,
        "seqused_k: 65 for sequence 1; accepted: at most 64",
    ),
    "new tokens beyond the table": (
        PAGED,
        dict(seqused_k=int32([20, 62]), seqused_k_excludes_new=True),
        ValueError,
        "seqused_k plus the queries: 65",
    ),
    "a maximum beyond the table": (
        PAGED,
        dict(max_seqlen_k=65),
        ValueError,
        "max_seqlen_k: 65 while page_table has 4 pages of 16",
    ),
    "a table without lengths": (
        PAGED,
        dict(seqused_k=None),
        ValueError,
        "seqused_k: None with a page table",
    ),
    "a table and offsets": (
        PAGED,
        dict(cu_seqlens_k=int32([0, 20, 53])),
        ValueError,
        "cu_seqlens_k: given with a page table",
    ),
    "pages of rank 3": (PAGED, dict(k=PAGED["k"][:, 0]), ValueError, "k: shape"),
    "an unknown layout": (
        PAGED,
        dict(kv_layout="HDN"),
        ValueError,
        "kv_layout: 'HDN'; accepted: 'NHD'",
    ),
    "rows at no common stride": (
        PAGED,
        {
            name: torch.zeros(99_999)
            .bfloat16()
            .as_strided((PAGES, 16, 1, 64), (16 * 64 + 8, 64, 64, 1))
            for name in "kv"
        },
        ValueError,
        "k: strides (1032, 64, 64, 1): from one block of 16 rows",
    ),
    "k and v at different distances": (
        PAGED,
        dict(v=torch.zeros(99_999).bfloat16().as_strided((PAGES, 16, 1, 64), (16 * 64, 64, 64, 1))),
        ValueError,
        "v: strides (1024, 64, 64, 1) put 16 rows from one block to the next while k has 32",
    ),
}


@pytest.mark.parametrize("call, changes, error, text", REFUSED.values(), ids=REFUSED.keys())
def test_refused(call, changes, error, text):
    compiles = compile_cache.statistics().compiles
    with pytest.raises(error) as refused:
        flash_attn_varlen_func(**{**call, **changes})
    assert text in str(refused.value)
    assert compile_cache.statistics().compiles == compiles


Q = torch.zeros(2, 1, 2, 64, dtype=torch.bfloat16)
CACHE = torch.zeros(2, 24, 1, 64, dtype=torch.bfloat16)
NEW = torch.zeros(2, 1, 1, 64, dtype=torch.bfloat16)
LENGTHS = int32([3, 20])
APPEND = dict(q=Q, k_cache=CACHE, v_cache=CACHE.clone(), k=NEW, v=NEW, cache_seqlens=LENGTHS)

CACHE_REFUSED = {
    "no lengths": (dict(cache_seqlens=None), ValueError, "cache_seqlens: None with new rows"),
    "k alone": (dict(v=None), ValueError, "k, v: one of them is None"),
    "lengths that leave no room": (
        dict(cache_seqlens=int32([3, 24])),
        ValueError,
        "cache_seqlens: 24 rows and 1 new ones for sequence 1",
    ),
    "negative lengths": (dict(cache_seqlens=int32([-1, 3])), ValueError, "cache_seqlens: -1 rows"),
    "lengths of another batch": (
        dict(cache_seqlens=int32([1])),
        ValueError,
        "cache_seqlens: shape (1,); accepted: (2,)",
    ),
    "int64 lengths": (
        dict(cache_seqlens=LENGTHS.long()),
        TypeError,
        "cache_seqlens: dtype torch.int64",
    ),
    "a length that is no number": (dict(cache_seqlens=1.5), TypeError, "cache_seqlens: a float"),
    "new rows of other heads": (
        dict(k=torch.zeros(2, 1, 2, 64).bfloat16(), v=torch.zeros(2, 1, 2, 64).bfloat16()),
        ValueError,
        "k: (2, 64) heads and head_dim while k_cache has (1, 64)",
    ),
    "new rows of another dtype": (
        dict(k=NEW.half(), v=NEW.half()),
        TypeError,
        "k: dtype torch.float16",
    ),
    "new rows of another batch": (
        dict(k=NEW[:1], v=NEW[:1]),
        ValueError,
        "k: 1 sequences of new rows, 2 in the cache",
    ),
    "new rows inside the cache": (
        dict(k=CACHE[:, :1]),
        ValueError,
        "k: shares memory with k_cache",
    ),
    "offsets that decrease": (
        dict(k=NEW[0], v=NEW[0], cu_seqlens_k_new=int32([0, 1, 0])),
        ValueError,
        "cu_seqlens_k_new: [0, 1, 0]",
    ),
    "offsets without rows": (
        dict(k=None, v=None, cu_seqlens_k_new=int32([0, 1, 2])),
        ValueError,
        "cu_seqlens_k_new: given without k and v",
    ),
    "a table without lengths": (
        dict(k=None, v=None, cache_seqlens=None, page_table=int32([0, 1])[:, None]),
        ValueError,
        "cache_seqlens: None with a page table",
    ),
    "a sink of another size": (
        dict(s_aux=torch.zeros(3)),
        ValueError,
        "learnable_sink: shape (3,)",
    ),
    "rotary_cos": (dict(rotary_cos=Q), NotImplementedError, "rotary_cos: not supported"),
    "rotary_sin": (dict(rotary_sin=Q), NotImplementedError, "rotary_sin: not supported"),
    "qv": (dict(qv=Q), NotImplementedError, "qv: not supported"),
}


@pytest.mark.parametrize("changes, error, text", CACHE_REFUSED.values(), ids=CACHE_REFUSED.keys())
def test_refused_before_the_cache_is_written(changes, error, text):
    call = {**APPEND, **changes}
    with pytest.raises(error) as refused:
        flash_attn_with_kvcache(**call)
    assert text in str(refused.value)
    assert (call["k_cache"] == 0).all() and (call["v_cache"] == 0).all()


@pytest.mark.parametrize("make", [masks.window, masks.chunked, masks.chunked_causal])
def test_sizes_of_masks(make):
    for size in (-2, -(2**40)):
        if make is masks.window:  # the future alone
            assert make(size).sizes == (max(size, -((1 << 30) - 1)),)
            continue
        with pytest.raises(ValueError, match=f"{size}; accepted:"):
            make(size)
    for size in (1.5, True, "4", torch.tensor(4)):
        with pytest.raises(TypeError, match="accepted:"):
            make(size)
    assert make(2**40).sizes == (
        (1 << 30) - 1,
    )  # more than any sequence has, and sums stay within 32 bits


@pytest.mark.parametrize("call", ["dense", "varlen", "cache of one length", "append"])
def test_a_batch_that_only_metadata_claims_is_refused_by_metadata(call):
    """2^31 sequences in 128 bytes: nothing of that size is allocated on the way to the refusal."""
    batch = 1 << 31
    row = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16).expand(batch, 1, 1, 64)
    run = {
        "dense": lambda: flash_attn_func(row, row, row),
        "varlen": lambda: flash_attn_varlen_func(row, row, row),
        "cache of one length": lambda: flash_attn_with_kvcache(row, row, row, cache_seqlens=1),
        "append": lambda: flash_attn_with_kvcache(row, row, row, row, row, cache_seqlens=0),
    }[call]
    with little_memory(), pytest.raises(ValueError, match=f"q: .*at most {batch - 1}"):
        run()


@contextlib.contextmanager
def little_memory():
    """No more than 2 GiB beyond what the process has: an int32 for each of 2^31 sequences takes 8."""
    limit = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
