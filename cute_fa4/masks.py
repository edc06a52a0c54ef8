"""Masks with their sizes, as the `mask=` of the attention functions takes them.

    window(64, 0)                             the query's own key and the 64 before it
    chunked(128)                              blocks of 128 that see only themselves
    chunked_causal(8192)                      the same without the future
    both(causal(), chunked(128))              seen through both
    either(window(64, 0), chunked(512))       seen through one or the other

A query stands at position i + num_keys - num_queries, key j at position j: the last query sees the last key. The
kind of a mask is compiled in, its sizes are not: one compile serves every window. sm100/masks.py has the bands that
follow, and which tiles of keys they leave out.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from cute_fa4.sm100 import masks as kinds

__all__ = [
    "BoundMask",
    "both",
    "causal",
    "chunked",
    "chunked_causal",
    "either",
    "full",
    "window",
]

# No sequence is longer than 2^30, so a larger size hides nothing either, and sums with positions stay within 32 bits.
LARGEST_SIZE = (1 << 30) - 1


@dataclass(frozen=True)
class BoundMask:
    """A kind of mask (sm100/masks.py), and as many sizes as it has."""

    mask: kinds.Mask
    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        if len(self.sizes) != self.mask.num_sizes:
            raise ValueError(
                f"sizes: {self.sizes} for {self.mask}; accepted: {self.mask.num_sizes} of them"
            )


def full() -> BoundMask:
    """Every key."""
    return BoundMask(kinds.Full())


def causal() -> BoundMask:
    """Keys up to the query's position."""
    return BoundMask(kinds.Causal())


def window(left: int | None = None, right: int | None = None) -> BoundMask:
    """Keys from position - left to position + right, both included; None or -1: that side is open.

    >>> window(128, 0).sizes, window(128).sizes, window(None, 0) == causal()
    ((128, 0), (128,), True)
    """
    left, right = _side("left", left), _side("right", right)
    if left is None and right is None:
        return full()
    if left is None and right == 0:
        return causal()
    sizes = tuple(size for size in (left, right) if size is not None)
    return BoundMask(kinds.Window(left is not None, right is not None), sizes)


def chunked(size: int) -> BoundMask:
    """Keys of the query's own block of `size` positions."""
    return BoundMask(kinds.Chunked(), (_chunk(size),))


def chunked_causal(size: int) -> BoundMask:
    """Keys of the query's own block of `size` positions, up to its own."""
    return BoundMask(kinds.ChunkedCausal(), (_chunk(size),))


def both(a: BoundMask, b: BoundMask) -> BoundMask:
    """Keys that a and b show.

    >>> both(causal(), full()) == causal()
    True
    """
    if a.mask == kinds.Full():
        return b
    if b.mask == kinds.Full():
        return a
    return BoundMask(kinds.Both(a.mask, b.mask), a.sizes + b.sizes)


def either(a: BoundMask, b: BoundMask) -> BoundMask:
    """Keys that a or b shows."""
    return BoundMask(kinds.Either(a.mask, b.mask), a.sizes + b.sizes)


def _side(name: str, size) -> int | None:
    if size is None:
        return None
    size = _integer(name, size, "None, -1 or a number from 0 on")
    if size < -1:
        raise ValueError(f"{name}: {size}; accepted: None, -1 (both: open) or a number from 0 on")
    return None if size == -1 else min(size, LARGEST_SIZE)


def _chunk(size) -> int:
    size = _integer("size", size, "a number of positions from 1 on")
    if size < 1:
        raise ValueError(f"size: {size}; accepted: a number of positions from 1 on")
    return min(size, LARGEST_SIZE)


def _integer(name: str, size, accepted: str) -> int:
    if isinstance(size, int) and not isinstance(size, bool):
        return size  # as it is: under torch.compile it may be a symbol
    if isinstance(size, bool) or hasattr(size, "device") or not hasattr(size, "__index__"):
        raise TypeError(f"{name}: a {type(size).__name__}; accepted: {accepted}")
    return index(size)


def resolve_mask(causal, window_size, mask) -> BoundMask:
    """One mask of the three spellings."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal: {causal!r} is a {type(causal).__name__}; accepted: True or False")
    left, right = _pair(window_size)
    try:
        asked = window(left, right)
    except (TypeError, ValueError) as error:
        raise type(error)(f"window_size: {window_size!r}: {error}") from None
    if causal:
        asked = window(left, 0)
    if mask is None:
        return asked
    if not isinstance(mask, BoundMask):
        raise TypeError(
            f"mask: {mask!r}; accepted: None or a mask of cute_fa4.masks, such as masks.chunked(64)"
        )
    return both(asked, mask)


def _pair(window_size) -> tuple:
    if window_size is None:
        return None, None
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size: {window_size!r}; accepted: a pair (left, right) of numbers from 0 on, "
            "or of None or -1, which leave a side open"
        ) from None
    return left, right
