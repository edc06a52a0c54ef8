"""What the processes of a pool run: imported by the server that they are forked from."""

from __future__ import annotations

import os
import signal

import torch

from cute_fa4.distributed import backends, context_parallel_attention, groups, shard, transport


def tensors(seed: int, q_shape, k_shape, dtype=torch.float32) -> list[torch.Tensor]:
    """q, k and v of all ranks together; the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=generator).to(dtype) for shape in (q_shape, k_shape, k_shape)
    ]


def attend(rank: int, group, q_shape, k_shape, dtype, options: dict):
    """(out, lse) of a rank's rows, and the bytes that it sent."""
    ranks = torch.distributed.get_world_size(group)
    dim = 1 if len(q_shape) == 4 else 0
    order = options.get("order", "zigzag")
    mine = [
        shard(x, rank, ranks, order=order, dim=dim) for x in tensors(0, q_shape, k_shape, dtype)
    ]
    with transport.counting() as counter:
        out, lse = context_parallel_attention(*mine, group=group, return_lse=True, **options)
    return out, lse, counter.sent


def asked(rank: int, group, of_rank: list):
    """What a call with this rank's own arguments does: (q_shape, k_shape, dtype, options) each."""
    q_shape, k_shape, dtype, options = of_rank[rank]
    q, k, v = tensors(0, q_shape, k_shape, dtype)
    return context_parallel_attention(q, k, v, group=group, **{"backend": "sdpa", **options})


class Ending(backends.TorchAttention):
    """A backend whose rank is gone when it has to compute."""

    def attention(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)


def end(rank: int, group, who: int, arguments: tuple, computing: bool):
    """A rank ends as by SIGKILL, before the call or in it; the others make the call."""
    if rank == who and not computing:
        os.kill(os.getpid(), signal.SIGKILL)
    q_shape, k_shape, dtype, options = arguments
    backend = Ending() if rank == who else Staying()
    return asked(rank, group, [(q_shape, k_shape, dtype, {**options, "backend": backend})] * 4)


class Staying(backends.TorchAttention):
    """The same for a rank that stays."""


Staying.__name__ = Ending.__name__ = "Torch"  # the ranks compare the names of their backends


def checks_made(rank: int, group, check: str) -> int:
    """How often the ranks compared words in three calls that are alike."""
    made = []
    exchanged = groups._exchanged
    groups._exchanged = lambda *arguments: made.append(1) or exchanged(*arguments)
    try:
        for _ in range(3):
            q, k, v = tensors(0, (1, 4, 2, 64), (1, 4, 2, 64))
            context_parallel_attention(
                q, k, v, group=group, backend="sdpa", check=check, softmax_scale=0.3
            )
    finally:
        groups._exchanged = exchanged
    return len(made)
