"""Attention beyond one GPU: sequences and caches distributed over the ranks of a torch.distributed group.

    context_parallel_attention   one sequence distributed over all ranks: ring, all-gather or all-to-all
    decode_attention             new queries over a cache distributed over all ranks
    merge                        results over disjoint keys -> the result over all
    shard, unshard, positions    the rows of a sequence on a rank; local_lengths: of a cache

torch.distributed transports all data: NCCL between GPUs, gloo between CPU processes.

    attention.py  the call and its checks     groups.py    the ranks agree, or all raise
    geometry.py   which keys are visible    schedule.py  which rows are sent when
    layouts.py    ring, gather, all-to-all    running.py   the running result of a rank
    decode.py     caches on several ranks   gradients.py  what torch.autograd sees
    backward.py   the layouts, backward
    transport.py  messages as bytes           backends.py  the kernel, or torch's attention
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
