"""Attention beyond one GPU: sequences and caches whose keys lie on the ranks of a torch.distributed group.

    context_parallel_attention   queries and keys of one sequence on all ranks: ring, all-gather or all-to-all
    decode_attention             new queries over a cache that lies on all ranks
    merge                        results over disjoint keys -> the result over all
    shard, unshard, positions    which rows of a sequence a rank has; local_lengths: of a cache

What travels is torch.distributed's business: NCCL between GPUs, gloo between processes on CPUs.

    attention.py  the call and its checks     groups.py    the ranks agree, or all raise
    geometry.py   which keys are seen where   schedule.py  which rows travel when
    layouts.py    ring, gather, all-to-all    running.py   what a rank has so far
    decode.py     caches on several ranks
    transport.py  messages as bytes           backends.py  the kernel, or torch's attention in its place
"""

from cute_fa4.distributed.attention import context_parallel_attention
from cute_fa4.distributed.decode import decode_attention, local_lengths
from cute_fa4.distributed.errors import GroupError, RankError
from cute_fa4.distributed.merging import merge
from cute_fa4.distributed.orders import positions, shard, unshard

__all__ = [
    "GroupError",
    "RankError",
    "context_parallel_attention",
    "decode_attention",
    "local_lengths",
    "merge",
    "positions",
    "shard",
    "unshard",
]
