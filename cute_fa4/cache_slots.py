"""Rows of quantized caches at any slots of their pages, in plain torch: what nvfp4 and mxfp8 share.

slot    page * page_size + row of the page; below 0: the row is not written
pages   (num_pages, page_size, heads, bytes of a row), with kv_layout="HND" (num_pages, heads, page_size, ...)
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from cute_fa4.dtypes import row_of_torch
from cute_fa4.layouts import cache_scales

KV_LAYOUTS = ("NHD", "HND")


class Part(NamedTuple):
    """A tensor of a cache, and what comes into it.

    name    for errors
    pages   of bytes, or of numbers of a byte
    new     (tokens, heads, bytes of a row), likewise
    layout  of its bytes (layouts/cache_scales.py)
    """

    name: str
    pages: torch.Tensor
    new: torch.Tensor
    layout: str = cache_scales.LINEAR


def kept(x: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (rows of x (tokens, heads, head_dim) that are written, their slots)."""
    if x.dim() != 3 or tuple(slots.shape) != tuple(x.shape[:1]):
        raise ValueError(
            f"slots: shape {tuple(slots.shape)} with x {tuple(x.shape)}; accepted: (tokens,) and (tokens, heads, "
            "head_dim)"
        )
    written = slots >= 0
    return x[written], slots[written].long()


def check_floats(x: torch.Tensor) -> None:
    """What can be quantized."""
    if not x.is_floating_point() or row_of_torch(x.dtype).is_quantized:
        raise TypeError(f"x: dtype {x.dtype}; accepted: floating point of 16 bits or more")


def one_number(global_scale: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    """float32, without dimensions."""
    factor = torch.as_tensor(global_scale, dtype=torch.float32, device=device)
    if factor.numel() != 1:
        raise ValueError(f"global_scale: shape {tuple(factor.shape)}; accepted: one number")
    return factor.reshape(())


def check_layout(kv_layout: str) -> None:
    if kv_layout not in KV_LAYOUTS:
        raise ValueError(f"kv_layout: {kv_layout!r}; accepted: 'NHD' or 'HND'")


def put(parts: tuple[Part, ...], slots: torch.Tensor, kv_layout: str) -> None:
    """Store rows in place. slots: of kept."""
    for part in parts:
        rows, new = part.pages.view(torch.uint8), part.new.view(torch.uint8)
        rows = rows.transpose(1, 2) if kv_layout == "HND" else rows
        if rows.dim() != 4 or rows.shape[2:] != new.shape[1:]:
            raise ValueError(
                f"{part.name}: shape {tuple(part.pages.shape)} for rows {tuple(new.shape)}; accepted: pages of rows "
                f"of {tuple(new.shape[1:])}"
            )
        number = new.shape[-1]
        if part.layout != cache_scales.LINEAR:
            check_mixes(part.name, rows.shape[1], number)
        page, token = (slots // rows.shape[1])[:, None], (slots % rows.shape[1])[:, None]
        block = torch.arange(number, device=slots.device)
        row, at = torch.broadcast_tensors(*cache_scales.place(part.layout, token, block, number))
        rows[page, row, :, at] = new.transpose(1, 2)


def check_mixes(name: str, tokens: int, blocks: int) -> None:
    """Whether rows have the sizes that the interleaved layout mixes."""
    mixed = cache_scales.TOKENS
    if tokens % mixed or blocks % mixed:
        raise ValueError(
            f"{name}: {tokens} tokens of {blocks} scales; accepted for the layout {cache_scales.INTERLEAVED4!r}: "
            f"multiples of {mixed} tokens of a page or sequence, and of {mixed} scales of a row"
        )
