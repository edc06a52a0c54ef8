"""Where the elements of a tensor lie: strides that TMA accepts, addresses, and whether two tensors share a byte."""

from __future__ import annotations

from collections.abc import Iterable

import torch

# TMA reads and writes units of 16 bytes: base addresses and the strides of every dimension but the
# last are multiples of it (PTX ISA, "Tensor-map").
TMA_BYTES = 16

# A TMA stride has 36 bits counted in units of 16 bytes.
TMA_STRIDE_LIMIT_BYTES = 1 << 40


def with_plain_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with the strides of dimensions of size 1 as a contiguous tensor would have them.

    torch may leave any value there, and no index ever uses it, but a TMA descriptor encodes it in 36
    bits.
    """
    shape, strides = tensor.shape, tensor.stride()
    if 1 not in shape:
        return tensor
    plain = [0] * len(shape)
    inner = 1
    for dim in reversed(range(len(shape))):
        plain[dim] = inner if shape[dim] == 1 else strides[dim]
        inner = max(inner, plain[dim] * shape[dim])
    return tensor if tuple(plain) == tuple(strides) else tensor.as_strided(shape, plain)


def check_memory(name: str, tensor: torch.Tensor, axes: tuple[str, ...]) -> None:
    """Refuse memory that no TMA descriptor describes. Accepted: contiguous rows at multiples of 16 bytes.

    The stride of a dimension of size 1 is never used, so it may be anything. A stride of 0 (expand)
    is accepted for q, k and v: every index then reads the same bytes.
    """
    if tensor.numel() == 0:
        return
    shape, strides, itemsize = tensor.shape, tensor.stride(), tensor.element_size()
    if strides[-1] != 1 and shape[-1] > 1:
        raise ValueError(
            f"{name}: strides {strides}, head_dim has stride {strides[-1]}; accepted: 1, the last "
            f"dimension contiguous; copy with {name}.contiguous()"
        )
    for dim, what in enumerate(axes[:-1]):
        stride_bytes = strides[dim] * itemsize
        if shape[dim] == 1:
            continue
        if stride_bytes % TMA_BYTES:
            raise ValueError(
                f"{name}: strides {strides}, {what} has stride {strides[dim]} "
                f"({stride_bytes} bytes); accepted: multiples of {TMA_BYTES // itemsize} elements "
                f"({TMA_BYTES} bytes), which TMA needs; copy with {name}.contiguous()"
            )
        if stride_bytes >= TMA_STRIDE_LIMIT_BYTES:
            raise ValueError(
                f"{name}: strides {strides}, {what} has stride {strides[dim]} "
                f"({stride_bytes} bytes); accepted: less than {TMA_STRIDE_LIMIT_BYTES} bytes, "
                f"the range of a TMA stride; copy with {name}.contiguous()"
            )
    if tensor.device.type != "meta" and tensor.data_ptr() % TMA_BYTES:
        raise ValueError(
            f"{name}: begins at address {tensor.data_ptr():#x}, {tensor.data_ptr() % TMA_BYTES} "
            f"bytes past a multiple of {TMA_BYTES}; accepted: multiples of {TMA_BYTES} bytes, "
            f"which TMA needs; copy with {name}.clone()"
        )


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may meet at one address: a stride not larger than what lies inside it."""
    extent = 1
    for stride, size in sorted(
        (s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1
    ):
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """False only if it is certain that a and b share no byte.

    Certain when their address ranges are disjoint, or when both repeat with a common period and
    occupy disjoint parts of it, as q and out do as slices of one packed (batch, seqlen, 2, heads,
    head_dim).
    """
    if a.numel() == 0 or b.numel() == 0 or "meta" in (a.device.type, b.device.type):
        return False  # tensors of a capabilities query have no address
    (a_first, a_last), (b_first, b_last) = address_range(a), address_range(b)
    if a_last <= b_first or b_last <= a_first:
        return False
    # Every stride of at least `period` is a multiple of it in both tensors; what the smaller
    # strides span must fit in the period, a's part and b's part side by side.
    strides = {
        s * t.element_size()
        for t in (a, b)
        for n, s in zip(t.shape, t.stride(), strict=True)
        if n > 1
    }
    for period in sorted(strides):
        if period == 0 or any(s % period for s in strides if s >= period):
            continue
        a_part = extent_bytes(
            a, [d for d in range(a.dim()) if a.stride(d) * a.element_size() < period]
        )
        b_part = extent_bytes(
            b, [d for d in range(b.dim()) if b.stride(d) * b.element_size() < period]
        )
        gap = (b_first - a_first) % period
        if a_part <= gap and gap + b_part <= period:
            return False
    return True


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte, and of the one past the last."""
    first = tensor.data_ptr()
    return first, first + extent_bytes(tensor)


def extent_bytes(tensor: torch.Tensor, dims: Iterable[int] | None = None) -> int:
    """Bytes from the first to past the last element, moving along `dims` only; None: along all."""
    shape, strides, extent = tensor.shape, tensor.stride(), 1
    for dim in range(tensor.dim()) if dims is None else dims:
        extent += (shape[dim] - 1) * strides[dim]
    return extent * tensor.element_size()


def largest_extent(tensors: Iterable[torch.Tensor | None]) -> int:
    """The largest extent in bytes, first element to past the last, of tensors not None; 0 for none."""
    return max((extent_bytes(tensor) for tensor in tensors if tensor is not None), default=0)
