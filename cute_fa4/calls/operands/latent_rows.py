"""Rows of 656 bytes of a latent cache: FlashMLA's FP8 cache, which vLLM calls fp8_ds_mla.

    bytes     0-511                 512-527             528-655
              512 numbers e4m3      4 scales float32    64 rotary numbers bf16

Number i stands for itself times scale i // 128. A per-token scale is stored as four equal scales.
"""

from __future__ import annotations

import torch

from cute_fa4.dtypes import E4M3
from cute_fa4.sm100.blueprint.problem import COLUMNS_OF_SCALE
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES

NUMBERS = E4M3.torch
BYTES = (NUMBERS, torch.uint8, torch.int8)  # dtypes of such caches
LATENT = LATENT_DEPTHS[1]
SCALES = LATENT // COLUMNS_OF_SCALE
ROPE = LATENT_DEPTHS[0] - LATENT
ROPE_AT = LATENT + 4 * SCALES


def has_rows(cache) -> bool:
    """Whether a row of the cache has 656 bytes: numbers of 8 bits with scales, and rotary columns of 16."""
    return (
        isinstance(cache, torch.Tensor) and cache.dim() > 0 and cache.shape[-1] == LATENT_ROW_BYTES
    )


def check_rows(cache: torch.Tensor) -> None:
    """Check that a cache has rows of 656 bytes, of a one-byte dtype."""
    if not has_rows(cache):
        raise ValueError(
            f"k_cache: shape {tuple(cache.shape)}; accepted: (num_pages, page_size, 1, {LATENT_ROW_BYTES})"
        )
    if cache.dtype not in BYTES:
        raise TypeError(
            f"k_cache: dtype {cache.dtype} with rows of {LATENT_ROW_BYTES}; accepted: {', '.join(map(str, BYTES))}"
        )


def rows_of(cache: torch.Tensor, q, descale_q, descale_k) -> torch.Tensor:
    """The cache viewed as e4m3, the dtype of its numbers. Requires has_rows."""
    check_rows(cache)
    if isinstance(q, torch.Tensor) and q.dtype is not torch.bfloat16:
        raise TypeError(
            f"q: dtype {q.dtype} over rows of {LATENT_ROW_BYTES} bytes, whose rotary columns are torch.bfloat16; "
            "accepted: torch.bfloat16; convert with .to(torch.bfloat16)"
        )
    for name, scale in (("descale_q", descale_q), ("descale_k", descale_k)):
        if scale is not None:
            raise TypeError(
                f"{name}: given with rows of {LATENT_ROW_BYTES} bytes, which have their own scales; accepted: None"
            )
    return cache if cache.dtype is NUMBERS else cache.view(NUMBERS)


def rows_from(
    latent: torch.Tensor,
    rope: torch.Tensor,
    scales: torch.Tensor | None = None,
    columns_of_scale: int = COLUMNS_OF_SCALE,
) -> torch.Tensor:
    """(..., 512) and (..., 64) -> (..., 656) uint8. The largest of the numbers of a scale becomes the largest e4m3.

    scales             (..., 1) or (..., 4) of a latent part that is e4m3 already: both are stored as they are
    columns_of_scale   128, or 512: one scale for a row, stored in all four places

    Uses plain torch operations; numbers that are not finite stay so.
    """
    if scales is None:
        numbers, scales = _quantised(latent, columns_of_scale)
    else:
        numbers = latent
    scales = scales.expand(*latent.shape[:-1], SCALES)
    pieces = numbers.contiguous(), scales.contiguous(), rope.to(torch.bfloat16).contiguous()
    return torch.cat([piece.view(torch.uint8) for piece in pieces], -1)


def _quantised(latent: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers e4m3 (..., 512), and the scale of each run of columns."""
    parts = latent.float().unflatten(-1, (LATENT // columns, columns))
    largest = torch.finfo(NUMBERS).max
    scales = parts.abs().amax(-1, keepdim=True) / largest
    scales = torch.where(scales > 0, scales, 1.0)
    numbers = (parts / scales).clamp(-largest, largest).to(NUMBERS)
    return numbers.flatten(-2), scales.squeeze(-1)


def check_written(latent, rope, slots, scales, columns_of_scale) -> torch.Tensor | None:
    """The scales argument of write_latent_rows -> scales with one or four columns, or None."""
    if slots.dim() != 1:
        raise ValueError(f"slots: shape {tuple(slots.shape)}; accepted: (rows,)")
    rows = len(slots)
    for name, tensor, depth in (("latent", latent, LATENT), ("rope", rope, ROPE)):
        if tuple(tensor.shape) != (rows, depth):
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} with {rows} slots; accepted: {(rows, depth)}"
            )
    if columns_of_scale not in (COLUMNS_OF_SCALE, LATENT):
        raise ValueError(
            f"columns_of_scale: {columns_of_scale}; accepted: {COLUMNS_OF_SCALE}, or {LATENT} for one scale a row"
        )
    if scales is None:
        return None
    if latent.dtype is not NUMBERS:
        raise TypeError(
            f"latent: dtype {latent.dtype} with scales; accepted: {NUMBERS}, which scales belong to, or "
            "scales=None"
        )
    if scales.dtype is not torch.float32:
        raise TypeError(f"scales: dtype {scales.dtype}; accepted: torch.float32")
    accepted = (rows,), (rows, 1), (rows, SCALES)
    if tuple(scales.shape) not in accepted:
        raise ValueError(
            f"scales: shape {tuple(scales.shape)}; accepted: {', '.join(map(str, accepted))}"
        )
    return scales[:, None] if scales.dim() == 1 else scales


def put_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """cache[slots] = rows; rows of negative slots, which pad a batch, are not written. Nothing waits for the device.

    A skipped row is replaced by the first row that is written, or by a row of the cache if none is.
    """
    if len(slots) == 0:
        return
    slots, written = slots.long(), slots >= 0
    first = written.int().argmax(keepdim=True)
    place = slots.index_select(0, first).clamp(min=0)
    found = torch.where(written.any(), rows.index_select(0, first), cache.index_select(0, place))
    cache[torch.where(written, slots, place)] = torch.where(written[:, None], rows, found)


def numbers_of(rows: torch.Tensor) -> torch.Tensor:
    """(..., 656) of bytes -> the values that they represent, (..., 576) float32."""
    rows = rows.contiguous().view(torch.uint8)
    numbers, scales, rope = rows.split((LATENT, ROPE_AT - LATENT, LATENT_ROW_BYTES - ROPE_AT), -1)
    numbers = numbers.contiguous().view(NUMBERS).float()
    scales = scales.contiguous().view(torch.float32).repeat_interleave(COLUMNS_OF_SCALE, -1)
    return torch.cat([numbers * scales, rope.contiguous().view(torch.bfloat16).float()], -1)
