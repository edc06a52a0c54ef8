"""Messages between ranks, as bytes: the only use of torch.distributed for data.

Every function returns immediately with a handle to wait for. On a GPU, NCCL sends on its own stream, after the work
that was launched before and concurrent with the work launched after; waiting makes the current stream wait, not the
host. With gloo, threads send while the host computes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from cute_fa4.distributed.groups import Ranks

Wait = Callable[[], torch.Tensor]

_sent = None  # a list while bytes are counted


def exchange(ranks: Ranks, tensor: torch.Tensor, step: int, what: str) -> Wait:
    """Send a contiguous tensor to the rank `step` after this one; -> the tensor of the rank `step` before."""
    received = torch.empty_like(tensor)
    _count(tensor.nbytes)
    sending = dist.P2POp(dist.isend, _bytes(tensor), ranks.peer(step), ranks.group)
    receiving = dist.P2POp(dist.irecv, _bytes(received), ranks.peer(-step), ranks.group)
    with ranks.sending(what):
        works = dist.batch_isend_irecv([sending, receiving])
    return _waiting(ranks, what, works, received, tensor)


def all_gather(ranks: Ranks, tensor: torch.Tensor, what: str, into=None) -> Wait:
    """-> (ranks, *shape), the contiguous tensors of all ranks. into: contiguous memory for them."""
    every = tensor.new_empty((ranks.size, *tensor.shape)) if into is None else into
    _count(tensor.nbytes * (ranks.size - 1))
    with ranks.sending(what):
        work = dist.all_gather_into_tensor(
            _bytes(every), _bytes(tensor), group=ranks.group, async_op=True
        )
    return _waiting(ranks, what, [work], every, tensor)


def all_to_all(ranks: Ranks, tensor: torch.Tensor, what: str, into=None) -> Wait:
    """(ranks, ...), contiguous: piece r goes to rank r; -> (ranks, ...), piece r from rank r."""
    received = torch.empty_like(tensor) if into is None else into
    _count(tensor.nbytes // ranks.size * (ranks.size - 1))
    with ranks.sending(what):
        work = dist.all_to_all_single(
            _bytes(received), _bytes(tensor), group=ranks.group, async_op=True
        )
    return _waiting(ranks, what, [work], received, tensor)


def _waiting(ranks: Ranks, what: str, works: list, result: torch.Tensor, *kept) -> Wait:
    """kept: tensors that must live until the message is sent."""

    def wait(kept=kept) -> torch.Tensor:
        with ranks.sending(what):
            for work in works:
                if work is not None:
                    work.wait()
        return result

    return wait


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, in one dimension: not every backend supports every dtype.

    A dimension of one element may have any stride, also the last, so flatten the tensor first.
    """
    return tensor.view(-1).view(torch.uint8)


class counting:
    """Inside, `sent` sums the bytes that this rank sends to others, without those of the agreement."""

    def __enter__(self):
        global _sent
        self.before, _sent = _sent, self
        self.sent = 0
        return self

    def __exit__(self, *_):
        global _sent
        _sent = self.before


def _count(nbytes: int) -> None:
    if _sent is not None:
        _sent.sent += nbytes
