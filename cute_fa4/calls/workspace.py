"""Memory for the partial results of split keys: one piece for each device and stream, used again by every call on it.

Calls on one stream run one after the other, so they may share it; two streams may not. It grows to the largest call
and is never given back while the process runs, because a captured graph goes on using the addresses it was captured
with: what a capture has seen is kept, also when a larger piece takes its place. Inside of a capture nothing is
allocated: a call that needs more than there is says to run once before. On the CPU it is allocated anew each time.

A caller may give memory of its own to a call. It is checked there, and used by that call alone.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch

from cute_fa4.calls.apart import check_apart, named_aux
from cute_fa4.calls.tensors import check_is_tensor

F32_BYTES = 4
ALIGNMENT_BYTES = 16

_held: dict[tuple[int, int], torch.Tensor] = {}
_captured: list[torch.Tensor] = []
_cut: dict[
    tuple, tuple
] = {}  # what slots() made of pieces that are held: making views takes as long as a launch
_given = threading.local()  # .piece: the caller's own, while its call runs


def partial_results(q: torch.Tensor, v: torch.Tensor, parts: int) -> tuple:
    """(partial_o, partial_lse), float32, not initialised; shapes as SM100Kernel.__call__ has them."""
    *rows, heads, _ = q.shape
    o_shape = (parts * rows[0], *rows[1:], heads, v.shape[-1])
    lse_shape = (parts, *rows[:-1], heads, rows[-1])
    o_size = parts * q.shape[:-1].numel() * v.shape[-1]
    lse_size = parts * q.shape[:-1].numel()
    piece = _floats(q.device, o_size + lse_size)
    return piece[:o_size].view(o_shape), piece[o_size : o_size + lse_size].view(lse_shape)


def slots(
    q: torch.Tensor, v: torch.Tensor, number: int, positions: int, heads: int, blocks: int
) -> tuple:
    """(partial_o, partial_lse, slots of each block) of shared keys, likewise; see work/shared_order.py."""
    rows, depth = number * positions * heads, v.shape[-1]
    piece = _floats(q.device, rows * (depth + 1) + 2 * blocks)
    key = piece.data_ptr(), q.dim(), number, positions, heads, blocks, depth
    if key in _cut:
        return _cut[key]
    first = (number, positions) if q.dim() == 4 else (number * positions,)
    partial_o = piece[: rows * depth].view(*first, heads, depth)
    lse = piece[rows * depth : rows * (depth + 1)].view(number, heads, positions)
    parts = piece[rows * (depth + 1) :][: 2 * blocks].view(torch.int32).view(blocks, 2)
    found = partial_o, lse, parts
    if any(piece is held for held in _held.values()):  # which has the address as long as it is held
        _cut[key] = found
    return found


@contextmanager
def given_workspace(workspace, arguments: dict):
    """Partial results of the call inside lie in `workspace`. arguments: of the call, by name."""
    _given.piece = _checked(workspace, arguments)
    try:
        yield
    finally:
        _given.piece = None


def _checked(workspace, arguments: dict) -> torch.Tensor:
    """The caller's memory as floats, of which there may be too few."""
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
    flat = workspace.detach().view(-1).view(torch.uint8)
    return flat[: flat.numel() // F32_BYTES * F32_BYTES].view(torch.float32)


def clear() -> None:
    """Give the memory back. Graphs that were captured with it must not be replayed any more."""
    _held.clear()
    _captured.clear()
    _cut.clear()


def _floats(device: torch.device, size: int) -> torch.Tensor:
    piece = getattr(_given, "piece", None)
    if piece is not None:
        if piece.numel() < size:
            raise ValueError(
                f"workspace: {piece.numel() * F32_BYTES} bytes; accepted: at least {size * F32_BYTES} for this call, "
                f"such as torch.empty({size * F32_BYTES}, dtype=torch.uint8, device={str(device)!r}), or None"
            )
        return piece
    if device.type != "cuda":
        return torch.empty(size, dtype=torch.float32, device=device)
    key = device.index, torch.cuda.current_stream(device).cuda_stream
    held, capturing = _held.get(key), torch.cuda.is_current_stream_capturing()
    if held is None or held.numel() < size:
        if capturing:
            raise RuntimeError(
                f"workspace: split keys need {size * F32_BYTES} bytes on {device} while a graph is captured, and this "
                f"stream has {0 if held is None else held.numel() * F32_BYTES}; accepted: enough before the capture; "
                "make the same call once on this stream before capturing, or pass num_splits=1"
            )
        held = _held[key] = torch.empty(size, dtype=torch.float32, device=device)
        _cut.clear()  # of the piece that is given back
    if capturing and not any(piece is held for piece in _captured):
        _captured.append(held)
    return held
