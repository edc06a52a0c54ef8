"""Masks with their sizes, for the `mask=` of the attention functions, and the kinds of masks.

    window(64, 0)                             the query's own key and the 64 before it
    chunked(128)                              blocks of 128 that see only themselves
    chunked_causal(8192)                      the same without the future
    both(causal(), chunked(128))              visible in both
    either(window(64, 0), chunked(512))       visible in at least one

A query has position i + num_keys - num_queries, key j has position j: the last query sees the last key. The kind of
a mask is compiled in, its sizes are run-time values, so one compile serves every window. An FA4Config, the compile
key, contains only the kind:

    flash_attn_func(q, k, v, mask=masks.window(64, 0))    FA4Config(mask=masks.Window())
    masks.window(64, 0)                                   BoundMask(mask=Window(left=True, right=True), sizes=(64, 0))

sm100/blueprint/bands.py defines the kinds: the bands of visible keys, and the tiles that are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from cute_fa4.sm100.blueprint.bands import (
    KINDS,
    Both,
    Causal,
    Chunked,
    ChunkedCausal,
    Either,
    Full,
    Mask,
    Window,
)
from cute_fa4.system.messages import shown

_KINDS = [Both, Causal, Chunked, ChunkedCausal, Either, Full, Mask, Window]
__all__ = [
    "BoundMask",
    "both",
    "causal",
    "chunked",
    "chunked_causal",
    "either",
    "full",
    "window",
    "KINDS",
    *(kind.__name__ for kind in _KINDS),
]

# No sequence is longer than 2^30, so larger sizes have no effect, and sums with positions fit in 32 bits.
LARGEST_SIZE = (1 << 30) - 1


@dataclass(frozen=True)
class BoundMask:
    """A kind of mask (sm100/blueprint/bands.py), and its sizes."""

    mask: Mask
    sizes: tuple[int, ...] = ()

    def __post_init__(self):
        if not isinstance(self.mask, Mask):
            raise TypeError(
                f"mask: {shown(self.mask)}; accepted: a kind of mask, such as masks.Causal()"
            )
        if len(self.sizes) != self.mask.num_sizes:
            raise ValueError(
                f"sizes: {self.sizes} for {self.mask}; accepted: {self.mask.num_sizes} of them"
            )


def full() -> BoundMask:
    """Every key."""
    return BoundMask(Full())


def causal() -> BoundMask:
    """Keys up to the query's position."""
    return BoundMask(Causal())


def window(left: int | None = None, right: int | None = None) -> BoundMask:
    """Keys from position - left to position + right, inclusive; a side of None or -1 is open.

    A side below -1 excludes the query's own key: window(None, -3) shows keys up to position - 3, window(-3, None)
    those from position + 3 on. -1 means open, so a window cannot exclude only the query's own key.

    >>> window(128, 0).sizes, window(128).sizes, window(None, 0) == causal()
    ((128, 0), (128,), True)
    >>> window(128, -3).sizes
    (128, -3)
    """
    left, right = _side("left", left), _side("right", right)
    if left is None and right is None:
        return full()
    if left is not None and right is not None and left + right < 0:
        raise ValueError(
            f"left, right: {left}, {right} show no key: the first is after the last; accepted: a sum of 0 or more"
        )
    if left is None and right == 0:
        return causal()
    sizes = tuple(size for size in (left, right) if size is not None)
    return BoundMask(Window(left is not None, right is not None), sizes)


def chunked(size: int) -> BoundMask:
    """Keys of the query's own block of `size` positions."""
    return BoundMask(Chunked(), (_chunk(size),))


def chunked_causal(size: int) -> BoundMask:
    """Keys of the query's own block of `size` positions, up to its own."""
    return BoundMask(ChunkedCausal(), (_chunk(size),))


def both(a: BoundMask, b: BoundMask) -> BoundMask:
    """Keys visible in a and in b.

    >>> both(causal(), full()) == causal()
    True
    """
    _check_masks("masks.both", a, b)
    if a.mask == Full():
        return b
    if b.mask == Full():
        return a
    return BoundMask(Both(a.mask, b.mask), a.sizes + b.sizes)


def either(a: BoundMask, b: BoundMask) -> BoundMask:
    """Keys visible in a or in b."""
    _check_masks("masks.either", a, b)
    return BoundMask(Either(a.mask, b.mask), a.sizes + b.sizes)


def _check_masks(function: str, a, b) -> None:
    for name, mask in (("a", a), ("b", b)):
        if not isinstance(mask, BoundMask):
            raise TypeError(f"{function}: {name}: {_refused(mask)}")


def _refused(mask, or_none: str = "") -> str:
    """A message that names the value, what is accepted, and the argument for what was probably meant."""
    accepted = "a mask of cute_fa4.masks, such as masks.causal() or masks.chunked(64)"
    text = f"{shown(mask)}; accepted: {or_none}{accepted}"
    if isinstance(mask, Mask):
        return f"{text}; this is a kind, as an FA4Config has it: a call takes the lower-case one, with its sizes"
    if hasattr(mask, "data_ptr"):
        return (
            f"{text}; a mask in a tensor goes to cute_fa4.scaled_dot_product_attention(attn_mask=), or to "
            "score_mod=score_mods.additive_bias() with aux_tensors=[it]"
        )
    if callable(mask):
        return f"{text}; a function of indices is mask_mod="
    return text


def _side(name: str, size) -> int | None:
    if size is None:
        return None
    size = _integer(name, size, "None, -1 or a number")
    return None if size == -1 else min(max(size, -LARGEST_SIZE), LARGEST_SIZE)


def _chunk(size) -> int:
    size = _integer("size", size, "a number of positions, at least 1")
    if size < 1:
        raise ValueError(f"size: {size}; accepted: a number of positions, at least 1")
    return min(size, LARGEST_SIZE)


def _integer(name: str, size, accepted: str) -> int:
    if isinstance(size, int) and not isinstance(size, bool):
        return size  # unchanged: under torch.compile it may be a symbol
    if isinstance(size, bool) or hasattr(size, "data_ptr") or not hasattr(size, "__index__"):
        raise TypeError(f"{name}: a {type(size).__name__}; accepted: {accepted}")
    return index(size)


def resolve_mask(causal, window_size, mask) -> BoundMask:
    """The mask that causal, window_size and mask describe together."""
    if not isinstance(causal, bool):
        raise TypeError(
            f"causal: {shown(causal)} is a {type(causal).__name__}; accepted: True or False"
        )
    left, right = _pair(window_size)
    try:
        asked = window(left, _causal_side(right) if causal else right)
    except (TypeError, ValueError) as error:
        raise type(error)(f"window_size: {shown(window_size)}: {error}") from None
    if mask is None:
        return asked
    if not isinstance(mask, BoundMask):
        raise TypeError(f"mask: {_refused(mask, 'None or ')}")
    return both(asked, mask)


def _causal_side(right) -> int:
    """The right side of a window that causal=True cuts at the query's own key."""
    right = _side("right", right)
    return 0 if right is None else min(right, 0)


def _pair(window_size) -> tuple:
    if window_size is None:
        return None, None
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size: {shown(window_size)}; accepted: a pair (left, right) of numbers, or of None or -1, which "
            "leave a side open"
        ) from None
    return left, right
