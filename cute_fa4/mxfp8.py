"""MXFP8: 8-bit values with a power-of-two scale per block of 32, in plain torch.

    q8, q_descale = mxfp8.quantise(q)       q8 torch.float8_e4m3fn of q's shape
    k8, k_descale = mxfp8.quantise(k)       k_descale torch.float8_e8m0fnu, (..., head_dim / 32)
    flash_attn_func(q8, k8, v8, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    flash_attn_func(q, k8, v8, k_block_scale=k_scale, v_block_scale=v_scale)    of a cache, under q of 16 bits
    mxfp8.write(k, values, scales, slots, factor)    rows (tokens, heads, head_dim) into the pages of a cache, in place

The scale of a block is 2^(floor(log2 of its largest value) - exponent of the dtype's largest value: 8 for e4m3, 15
for e5m2). Values are rounded to nearest even and saturate at the dtype's largest value (OCP Microscaling Formats
Specification 1.0, section 6.3). A block of zeros has scale 1. A block with an infinity or NaN has scale NaN; its
numbers are rounded as with scale 1, and NaN is the byte 0x7F. flash_attn_with_kvcache(k=, v=) writes the same bytes.
"""

from __future__ import annotations

import torch

from cute_fa4 import cache_slots
from cute_fa4.dtypes import DTYPES, E4M3, E8M0, QUANTIZED
from cute_fa4.layouts.block_scales import BLOCK, NOT_A_NUMBER, ONE

NAN_BYTE = 0x7F  # of e4m3 and e5m2, as instructions round to it
LARGEST_EXPONENT = {DTYPES[name].torch: DTYPES[name].largest_log2 for name in QUANTIZED}


def quantise(x: torch.Tensor, dtype: torch.dtype = E4M3.torch) -> tuple:
    """-> (x in `dtype`, scales of blocks of its last dimension).

    >>> values, scales = quantise(torch.full((1, 32), 3.0))
    >>> values[0, 0].item(), scales.float().item()
    (384.0, 0.0078125)
    """
    if dtype not in LARGEST_EXPONENT:
        raise TypeError(f"dtype: {dtype}; accepted: {', '.join(map(str, LARGEST_EXPONENT))}")
    cache_slots.check_floats(x)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(
            f"x: shape {tuple(x.shape)}; accepted: a last dimension that is a multiple of {BLOCK}; pad it with zeros"
        )
    blocks = x.to(torch.float32).unflatten(-1, (-1, BLOCK))
    size = blocks.abs().amax(-1)
    _, exponent = torch.frexp(size)  # size = m * 2^exponent, m from a half to 1
    exponent = (exponent - 1 - LARGEST_EXPONENT[dtype]).clamp(-ONE, ONE)
    exponent = torch.where(size == 0, 0, exponent)
    finite = size.isfinite()
    code = torch.where(finite, exponent + ONE, NOT_A_NUMBER).to(torch.uint8)
    largest = torch.finfo(dtype).max
    # In two steps: 2^127 divided by 2^-126 or less is beyond float32.
    half = torch.where(finite, exponent, 0) // 2
    rest = torch.where(finite, exponent, 0) - half
    scaled = torch.ldexp(torch.ldexp(blocks, -half[..., None]), -rest[..., None])
    values = scaled.clamp(-largest, largest).to(dtype).view(torch.uint8)
    values = torch.where(scaled.isnan(), NAN_BYTE, values).view(dtype)  # torch's sign differs
    return values.flatten(-2), code.view(E8M0.torch)


def write(
    x: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    slots: torch.Tensor,
    global_scale: torch.Tensor | float = 1.0,
    kv_layout: str = "NHD",
) -> None:
    """Quantize rows into the pages of a cache, in place: what an append writes, for any slots.

    x             (tokens, heads, head_dim), 16 bits or more
    values        (num_pages, page_size, heads, head_dim) float8_e4m3fn, with kv_layout="HND" (num_pages, heads,
                  page_size, ...)
    scales        likewise with head_dim / 32, float8_e8m0fnu
    slots         (tokens,) integers: page * page_size + row of the page; below 0: the row is not written
    global_scale  rows are divided by it in float32: one number, k_descale or v_descale of a call

    >>> values, scales = torch.zeros(3, 4, 1, 32).to(E4M3.torch), torch.ones(3, 4, 1, 1).to(E8M0.torch)
    >>> write(torch.full((1, 1, 32), 6.0), values, scales, torch.tensor([9]), 2.0)
    >>> dequantise(values, scales)[2, 1, 0, 0].item(), values.float().count_nonzero().item()
    (3.0, 32)
    """
    cache_slots.check_layout(kv_layout)
    for name, tensor, dtype in (("values", values, E4M3.torch), ("scales", scales, E8M0.torch)):
        if tensor.dtype is not dtype:
            raise TypeError(f"{name}: dtype {tensor.dtype}; accepted: {dtype}")
    factor = cache_slots.one_number(global_scale, x.device)
    rows, slots = cache_slots.kept(x, slots)
    cache_slots.check_floats(x)
    new_values, new_scales = quantise(rows.float() / factor)
    parts = (
        cache_slots.Part("values", values, new_values),
        cache_slots.Part("scales", scales, new_scales),
    )
    cache_slots.put(parts, slots, kv_layout)


def dequantise(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """values times the scales of their blocks, in float32.

    >>> dequantise(*quantise(torch.full((1, 32), 3.0)))[0, 0].item()
    3.0
    """
    if values.shape[-1] != BLOCK * scales.shape[-1] or values.shape[:-1] != scales.shape[:-1]:
        expected = (*values.shape[:-1], values.shape[-1] // BLOCK)
        raise ValueError(f"scales: shape {tuple(scales.shape)}; accepted: {expected}")
    blocks = values.float().unflatten(-1, (-1, BLOCK))
    return (blocks * scales.float()[..., None]).flatten(-2)
