"""Every way into a call whose keys are split, on inputs that hold one number: call(number) -> out."""

from functools import partial

import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from cute_fa4.mla import flash_mla_with_kvcache

BF16 = torch.bfloat16


def q_of(number: int, *shape):
    return torch.full(shape, number, dtype=BF16)


def dense(number, **options):
    k, v = torch.zeros(2, 1, 300, 1, 64, dtype=BF16)
    return flash_attn_func(q_of(number, 1, 5, 2, 64), k, v, **{"num_splits": 2, **options})


def through_an_operator(number):
    k, v = torch.zeros(2, 1, 300, 1, 64, dtype=BF16)
    q = torch.nn.Parameter(q_of(number, 1, 5, 2, 64), requires_grad=False)
    return flash_attn_func(q, k, v, num_splits=2)


def two_halves(number):
    k, v = torch.zeros(2, 1, 300, 1, 512, dtype=BF16)
    return flash_attn_func(q_of(number, 1, 5, 2, 512), k, v, num_splits=2)


def packed(number):
    k, v = torch.zeros(2, 300, 1, 64, dtype=BF16)
    cu = torch.tensor([0, 5]), torch.tensor([0, 300])
    cu_q, cu_k = (each.int() for each in cu)
    where = dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=5, max_seqlen_k=300)
    return flash_attn_varlen_func(q_of(number, 5, 2, 64), k, v, num_splits=3, **where)


def shared_keys(number):
    """36 rows of a group: beyond what merges in a cluster."""
    k, v = torch.zeros(2, 2, 1100, 1, 64, dtype=BF16)
    used = torch.tensor([1100, 40], dtype=torch.int32)
    return flash_attn_with_kvcache(
        q_of(number, 2, 9, 4, 64), k, v, cache_seqlens=used, num_splits=0
    )


def appended(number):
    k, v = torch.zeros(2, 2, 760, 1, 64, dtype=BF16)
    q, new = q_of(number, 2, 1, 2, 64), q_of(0, 2, 1, 1, 64)
    return flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=700, num_splits=3)


def latent(number):
    cache, table = torch.zeros(6, 64, 1, 576, dtype=BF16), torch.arange(6, dtype=torch.int32)[None]
    used = torch.tensor([300], dtype=torch.int32)
    return flash_mla_with_kvcache(q_of(number, 1, 1, 16, 576), cache, table, used, num_splits=2)[0]


CALLS = {
    "dense": dense,
    "tokens": partial(dense, num_splits=1, tokens_per_split=128),
    "operator": through_an_operator,
    "halves": two_halves,
    "packed": packed,
    "shared": shared_keys,
    "appended": appended,
    "latent": latent,
}
