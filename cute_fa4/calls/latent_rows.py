"""Rows of 656 bytes of a latent cache: FlashMLA's FP8 cache, which vLLM calls fp8_ds_mla.

    bytes     0-511                 512-527             528-655
              512 numbers e4m3      4 scales float32    64 rotary numbers bf16

Number i stands for itself times scale i // 128.
"""

from __future__ import annotations

import torch

from cute_fa4.sm100.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES
from cute_fa4.sm100.problem import COLUMNS_OF_SCALE

BYTES = (torch.float8_e4m3fn, torch.uint8, torch.int8)  # dtypes that such caches come in
LATENT = LATENT_DEPTHS[1]
SCALES = LATENT // COLUMNS_OF_SCALE
ROPE_AT = LATENT + 4 * SCALES


def has_rows(cache) -> bool:
    """Whether a row of the cache has 656 bytes: numbers of 8 bits with scales, and rotary columns of 16."""
    return (
        isinstance(cache, torch.Tensor) and cache.dim() > 0 and cache.shape[-1] == LATENT_ROW_BYTES
    )


def check_rows(cache: torch.Tensor) -> None:
    """A cache has rows of 656 bytes, of a dtype that has one byte."""
    if not has_rows(cache):
        raise ValueError(
            f"k_cache: shape {tuple(cache.shape)}; accepted: (num_pages, page_size, 1, {LATENT_ROW_BYTES})"
        )
    if cache.dtype not in BYTES:
        raise TypeError(
            f"k_cache: dtype {cache.dtype} with rows of {LATENT_ROW_BYTES}; accepted: {', '.join(map(str, BYTES))}"
        )


def rows_of(cache: torch.Tensor, q, descale_q, descale_k) -> torch.Tensor:
    """The same as e4m3, which its numbers are. Of has_rows."""
    check_rows(cache)
    if isinstance(q, torch.Tensor) and q.dtype is not torch.bfloat16:
        raise TypeError(
            f"q: dtype {q.dtype} over rows of {LATENT_ROW_BYTES} bytes, whose rotary columns are torch.bfloat16; "
            "accepted: torch.bfloat16; convert with .to(torch.bfloat16)"
        )
    for name, scale in (("descale_q", descale_q), ("descale_k", descale_k)):
        if scale is not None:
            raise TypeError(
                f"{name}: given with rows of {LATENT_ROW_BYTES} bytes, with scales of their own; accepted: None"
            )
    return cache if cache.dtype is torch.float8_e4m3fn else cache.view(torch.float8_e4m3fn)


def rows_from(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """(..., 512) and (..., 64) -> (..., 656) uint8. The largest of 128 numbers becomes the largest e4m3.

    In plain torch operations; numbers that are not finite stay so.
    """
    parts = latent.float().unflatten(-1, (SCALES, COLUMNS_OF_SCALE))
    largest = torch.finfo(torch.float8_e4m3fn).max
    scales = parts.abs().amax(-1, keepdim=True) / largest
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (parts / scales).clamp(-largest, largest).to(torch.float8_e4m3fn).flatten(-2)
    pieces = numbers, scales.squeeze(-1).contiguous(), rope.to(torch.bfloat16).contiguous()
    return torch.cat([piece.view(torch.uint8) for piece in pieces], -1)


def numbers_of(rows: torch.Tensor) -> torch.Tensor:
    """(..., 656) of bytes -> what they stand for, (..., 576) float32."""
    rows = rows.contiguous().view(torch.uint8)
    numbers, scales, rope = rows.split((LATENT, ROPE_AT - LATENT, LATENT_ROW_BYTES - ROPE_AT), -1)
    numbers = numbers.contiguous().view(torch.float8_e4m3fn).float()
    scales = scales.contiguous().view(torch.float32).repeat_interleave(COLUMNS_OF_SCALE, -1)
    return torch.cat([numbers * scales, rope.contiguous().view(torch.bfloat16).float()], -1)
