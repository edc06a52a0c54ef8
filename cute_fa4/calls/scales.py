"""Scales of 8-bit tensors: what the numbers that are stored stand for.

    q_descale, k_descale, v_descale    q, k, v mean what is stored times these
    o_scale                            out stores what it means times this

Each is a float32 tensor with one number for all, or one for each sequence and key/value head, (batch, heads_kv), of any
strides, also 0. That of q may have one for each query and head, as q with a head_dim of 1. The values are read on the
device alone. q_descale * k_descale must be positive, because the kernel takes the row maximum before it multiplies:
where it is not, out is NaN.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.tensors import FP8, check_is_tensor, check_place

NAMES = ("q_descale", "k_descale", "v_descale", "o_scale")  # as a call passes them on
LETTERS = "qkvo"  # of Problem.descales, in this order


def checked_scales(given: tuple | None, q: torch.Tensor, k: torch.Tensor, batch: int) -> tuple:
    """Refuse what is no scale; what is returned has None for the others. given: those of NAMES, or None for none."""
    given = given or (None,) * len(NAMES)
    by_head = batch, k.shape[-2]
    for name, scale in zip(NAMES, given, strict=True):
        if scale is not None:
            by_row = (*q.shape[:-1], 1)
            _check(name, scale, q, k, (by_head, by_row) if name == "q_descale" else (by_head,))
    return given


def check_no_scale(q: torch.Tensor, k: torch.Tensor, q_descale) -> None:
    """q of 16 bits over k of 8 has none."""
    if q_descale is not None:
        raise TypeError(
            f"q_descale: given with q of {q.dtype}, which gets scales of its own; accepted: None, or q of {k.dtype}"
        )


def _check(name: str, scale, q: torch.Tensor, k: torch.Tensor, sizes: tuple) -> None:
    check_is_tensor(name, scale)
    if name == "q_descale" and q.dtype not in FP8 and k.dtype in FP8:
        check_no_scale(q, k, scale)
    if k.dtype not in FP8:
        raise TypeError(
            f"{name}: given with q of {q.dtype}; accepted: None, scales belong to {' and '.join(map(str, FP8))}; "
            "multiply softmax_scale, or the tensor"
        )
    if scale.dtype != torch.float32:
        raise TypeError(
            f"{name}: dtype {scale.dtype}; accepted: torch.float32; convert with .to(torch.float32)"
        )
    if scale.numel() != 1 and tuple(scale.shape) not in sizes:
        more = f", or {sizes[1]}, one for each query and head" if len(sizes) > 1 else ""
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}; accepted: one number, or {sizes[0]}, one for each sequence and "
            f"key/value head{more}"
        )
    check_place(name, scale, q.device)


def letters_of(scales: tuple | None) -> str:
    """Which scales are given, as Problem.descales names them.

    >>> letters_of((None, torch.ones(1), torch.ones(1), None)), letters_of(None)
    ('kv', '')
    """
    if scales is None:
        return ""
    pairs = zip(LETTERS, scales, strict=True)
    return "".join(x.upper() if _is_by_row(s) else x for x, s in pairs if s is not None)


def _is_by_row(scale: torch.Tensor) -> bool:
    return scale.dim() > 2 and scale.numel() != 1


class ScaleViews:
    """Scales as the kernel takes them, (batch, heads_kv); decided by the shapes of `scales`."""

    def __init__(self, scales: tuple | None, batch: int, heads_kv: int):
        sizes = (batch, heads_kv)
        self.layouts = [
            None
            if scale is None or tuple(scale.shape) == sizes or _is_by_row(scale)
            else (sizes, (0, 0))
            for scale in scales or ()
        ]

    def of(self, scales: tuple | None) -> tuple | None:
        """Those that there are; None: there are none."""
        if scales is None:
            return None
        found = tuple(
            scale if layout is None else scale.as_strided(*layout)
            for scale, layout in zip(scales, self.layouts, strict=True)
            if scale is not None
        )
        return found or None
