"""Memory for the partial results of split keys: torch allocates it for each call, or the caller gives it.

The call holds it until both of its launches are enqueued. torch then gives the memory to a later allocation on the same
stream alone, whose work runs after them. So host threads that share a stream, streams, captured graphs (each with the
pool of its capture) and the graphs of torch.compile need no extra rule, and nothing is kept between calls.

Memory that a caller gives is checked here and used by that call alone. Calls that share it must follow one another on a
stream: nothing here can see whether they do.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import lru_cache
from math import prod

import torch

from cute_fa4.calls.operands.apart import check_apart, named_aux
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.tensors import check_is_tensor

F32_BYTES = 4  # of every element, also of int32
ALIGNMENT_BYTES = 16

_given = threading.local()  # .piece: the caller's own, while its call runs


def partial_results(q: torch.Tensor, v: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """[partial O, partial log-sum-exp], float32, not initialised; shapes as SM100Kernel.__call__ has them."""
    *rows, heads, _ = q.shape
    of_o = parts * rows[0], *rows[1:], heads, columns_of(v)
    of_lse = parts, *rows[:-1], heads, rows[-1]
    return _tensors(q.device, (of_o, torch.float32), (of_lse, torch.float32))


def of_ctas(q: torch.Tensor, ctas: int, shapes: tuple) -> list[torch.Tensor]:
    """Tensors of these shapes for each CTA, likewise; see work/own_parts.py."""
    return _tensors(q.device, *(((ctas, *shape), torch.float32) for shape in shapes))


def slots(
    q: torch.Tensor, v: torch.Tensor, number: int, positions: int, heads: int, blocks: int
) -> list[torch.Tensor]:
    """[partial O, its log-sum-exp, slots of each block] of shared keys, likewise; see work/stream_k.py."""
    return _tensors(
        q.device, *_of_slots(q.dim() == 4, number, positions, heads, blocks, columns_of(v))
    )


@lru_cache(4096)
def _of_slots(dense: bool, number: int, positions: int, heads: int, blocks: int, depth: int):
    first = (number, positions) if dense else (number * positions,)
    return (
        ((*first, heads, depth), torch.float32),
        ((number, heads, positions), torch.float32),
        ((blocks, 2), torch.int32),
    )


@contextmanager
def given_workspace(workspace: torch.Tensor | None, arguments: dict):
    """Partial results of the call inside lie in `workspace`. arguments: of the call, by name."""
    if workspace is None:
        yield
        return
    check_workspace(workspace, arguments)
    flat = workspace.detach().view(-1).view(torch.uint8)
    _given.piece = flat[: flat.numel() // F32_BYTES * F32_BYTES].view(torch.float32)
    try:
        yield
    finally:
        _given.piece = None


def check_workspace(workspace, arguments: dict) -> None:
    """Raises for an invalid workspace; a valid one may still be too small."""
    check_is_tensor("workspace", workspace)
    q = arguments["q"]
    if isinstance(q, torch.Tensor) and workspace.device != q.device:
        raise ValueError(
            f"workspace: on {workspace.device} while q is on {q.device}; accepted: on the device of q"
        )
    if not workspace.is_contiguous():
        raise ValueError(
            f"workspace: strides {workspace.stride()} for shape {tuple(workspace.shape)}; accepted: contiguous"
        )
    others = arguments | named_aux(arguments["aux_tensors"])
    check_apart({"workspace": workspace}, others)
    if workspace.data_ptr() % ALIGNMENT_BYTES:
        raise ValueError(
            f"workspace: address {workspace.data_ptr():#x}; accepted: a multiple of {ALIGNMENT_BYTES} bytes, where "
            "torch allocates"
        )


def _tensors(device: torch.device, *wanted: tuple) -> list[torch.Tensor]:
    """A tensor for each (shape, dtype), not initialised: of the caller's memory where there is some."""
    piece = getattr(_given, "piece", None)
    if piece is None:
        return [_allocated(shape, dtype, device) for shape, dtype in wanted]
    sizes = [prod(shape) for shape, _ in wanted]
    if piece.numel() < sum(sizes):
        needed = sum(sizes) * F32_BYTES
        raise ValueError(
            f"workspace: {piece.numel() * F32_BYTES} bytes; accepted: at least {needed} for this call, such as "
            f"torch.empty({needed}, dtype=torch.uint8, device={str(device)!r}), or None"
        )
    cut = piece[: sum(sizes)].split(sizes)
    return [part.view(dtype).view(shape) for part, (shape, dtype) in zip(cut, wanted, strict=True)]


def _allocated(shape: tuple, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On the current stream of the device, where the launches go."""
    return torch.empty(shape, dtype=dtype, device=device)
