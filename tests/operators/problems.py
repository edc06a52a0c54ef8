"""Arguments of the public functions, few and small: what is asked here is the way to the kernel, not its numbers."""

import torch

from cute_fa4 import BlockSparseTensors
from cute_fa4.sm100.blueprint.score_mods import ScoreMod

BF16 = torch.bfloat16


def int32(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def dense(seqlen_q=24, seqlen_k=24, batch=1, heads_q=4, heads_kv=2) -> dict:
    q = torch.randn(batch, seqlen_q, heads_q, 64, dtype=BF16)
    k, v = torch.randn(2, batch, seqlen_k, heads_kv, 64, dtype=BF16)
    return dict(q=q, k=k, v=v)


def ragged(lengths=(3, 5), heads_q=4, heads_kv=2) -> dict:
    """Packed queries and keys; as many keys as queries."""
    total, offsets = sum(lengths), int32(0, *lengths).cumsum(0, dtype=torch.int32)
    q = torch.randn(total, heads_q, 64, dtype=BF16)
    k, v = torch.randn(2, total, heads_kv, 64, dtype=BF16)
    where = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=max((*lengths, 0)))
    return dict(q=q, k=k, v=v, **where)


def paged() -> dict:
    """Packed queries of two sequences, 3 and 5 long, over 20 and 30 keys in pages of 16."""
    k, v = torch.randn(2, 6, 16, 2, 64, dtype=BF16)
    table = int32(3, 1, 0, 5).view(2, 2)
    where = dict(cu_seqlens_q=int32(0, 3, 8), max_seqlen_q=5, seqused_k=int32(20, 30))
    return dict(q=torch.randn(8, 4, 64, dtype=BF16), k=k, v=v, page_table=table, **where)


def decode(used=(5, 20)) -> dict:
    """A token for each of two sequences, and a cache in pages of 16 with room for 32."""
    k_cache, v_cache = torch.randn(2, 6, 16, 2, 64, dtype=BF16)
    k, v = torch.randn(2, 2, 1, 2, 64, dtype=BF16)
    where = dict(cache_seqlens=int32(*used), page_table=int32(3, 1, 0, 5).view(2, 2))
    q = torch.randn(2, 1, 4, 64, dtype=BF16)
    return dict(q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, **where)


def latent() -> dict:
    """A token of 16 heads for each of two sequences, over 20 and 30 rows of a latent cache in pages of 16."""
    return dict(
        q=torch.randn(2, 1, 16, 576, dtype=BF16),
        latent_cache=torch.randn(6, 16, 1, 576, dtype=BF16),
        page_table=int32(3, 1, 0, 5).view(2, 2),
        seqused_k=int32(20, 30),
    )


def lists(packed: bool = False) -> BlockSparseTensors:
    """For up to 128 keys of two sequences, of up to 256 queries each: all are visible."""
    count, entry = int32(1, 1)[None], int32(0, 0)[None]
    if packed:
        return BlockSparseTensors(
            count, entry, cu_total_m_blocks=int32(0, 1, 2), cu_block_idx_offsets=int32(0, 1, 2)
        )
    return BlockSparseTensors(count[..., :1, None], entry[..., :1, None, None])


def copied(arguments: dict) -> dict:
    return {n: a.clone() if isinstance(a, torch.Tensor) else a for n, a in arguments.items()}


def _staged(score, batch, head, q_idx, kv_idx):
    import cutlass.cute as cute

    return cute.math.tanh(score)


WITHOUT_DERIVATIVE = ScoreMod.of(_staged)
"""A score function that handles values of the compiler."""
