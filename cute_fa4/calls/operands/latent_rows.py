"""Rows of a latent cache with scales and RoPE columns: FlashMLA's FP8 caches.

656 bytes, DeepSeek-V3.2, which vLLM calls fp8_ds_mla:

    bytes     0-511                 512-527             528-655
              512 numbers e4m3      4 scales float32    64 rotary numbers bf16

Number i stands for itself times scale i // 128. A per-token scale is stored as four equal scales.

584 bytes, DeepSeek-V4, FlashMLA's MODEL1. Rows of a page are 576 bytes apart, and after all of them come their scales:

    bytes     0-447                 448-575               8 for each row, after the rows
              448 numbers e4m3      64 rotary numbers     7 scales e8m0, one unused
                                    bf16

Number i stands for itself times scale i // 64. Pages are a multiple of 576 bytes apart (FlashMLA pads them), so that
all rows of a cache are a multiple of 576 bytes apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4.dtypes import E4M3, E8M0
from cute_fa4.sm100.blueprint.latent_rows import COLUMNS_OF_BLOCK, COLUMNS_OF_SCALE
from cute_fa4.sm100.choose.choose_config import (
    LATENT_BYTES_IN_PAGE,
    LATENT_DEPTHS,
    LATENT_PAGE_ROW_BYTES,
    LATENT_ROW_BYTES,
)

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
    _check_beside(LATENT_ROW_BYTES, q, descale_q, descale_k)
    return cache if cache.dtype is NUMBERS else cache.view(NUMBERS)


def _check_beside(nbytes: int, q, descale_q, descale_k) -> None:
    """q has the dtype of the rotary columns of such rows, and no tensor has scales."""
    if isinstance(q, torch.Tensor) and q.dtype is not torch.bfloat16:
        raise TypeError(
            f"q: dtype {q.dtype} over rows of {nbytes} bytes, whose rotary columns are torch.bfloat16; "
            "accepted: torch.bfloat16; convert with .to(torch.bfloat16)"
        )
    for name, scale in (("descale_q", descale_q), ("descale_k", descale_k)):
        if scale is not None:
            raise TypeError(
                f"{name}: given with rows of {nbytes} bytes, which have their own scales; accepted: None"
            )


def is_in_pages(cache) -> bool:
    """Whether a row of the cache has 584 bytes, of which the scales come after the rows of a page."""
    return (
        isinstance(cache, torch.Tensor)
        and cache.dim() > 0
        and cache.shape[-1] == LATENT_BYTES_IN_PAGE
    )


def pages_of(cache: torch.Tensor, q, descale_q, descale_k) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (rows (num_pages, page_size, 1, 576) of e4m3, their scales (num_pages, page_size, 8) of bytes).

    Requires is_in_pages.
    """
    nbytes, of_row = LATENT_BYTES_IN_PAGE, LATENT_PAGE_ROW_BYTES
    if cache.dim() != 4 or cache.shape[2] != 1:
        raise ValueError(
            f"k_cache: shape {tuple(cache.shape)}; accepted: (num_pages, page_size, 1, {nbytes})"
        )
    if cache.dtype not in BYTES:
        raise TypeError(
            f"k_cache: dtype {cache.dtype} with rows of {nbytes}; accepted: {', '.join(map(str, BYTES))}"
        )
    _check_beside(nbytes, q, descale_q, descale_k)
    if isinstance(q, torch.Tensor) and q.dim() and q.shape[-1] != LATENT:
        raise ValueError(
            f"q: head_dim {q.shape[-1]}, shape {tuple(q.shape)}, over rows of {nbytes} bytes; accepted: {LATENT}, of "
            f"which the last {ROPE} are rotary columns"
        )
    pages, rows = cache.shape[:2]
    apart, between, _, in_row = cache.stride()
    if pages < 2 or not cache.numel():
        apart = -(-rows * nbytes // of_row) * of_row
    if apart % of_row or apart < rows * nbytes or (rows > 1 and between != nbytes) or in_row != 1:
        raise ValueError(
            f"k_cache: strides {cache.stride()} with rows of {nbytes} bytes; accepted: pages a multiple of {of_row} "
            f"bytes apart, each of contiguous bytes: {of_row} for each row, then their scales; allocate "
            f"(num_pages, {-(-rows * nbytes // of_row) * of_row}) bytes and view them"
        )
    of_pages = cache.view(torch.uint8).as_strided((pages, rows * nbytes), (apart, 1))
    found, scales = of_pages.split((rows * of_row, rows * (nbytes - of_row)), -1)
    found = found.view(NUMBERS).unflatten(-1, (rows, 1, of_row))
    return found, scales.unflatten(-1, (rows, nbytes - of_row))


@dataclass(frozen=True)
class Written:
    """The parts of a row of a cache: its numbers of 8 bits, and how many of them may share a scale.

    columns   accepted, the default first
    scales    of a row
    """

    numbers: int
    columns: tuple[int, ...]
    scales: int
    dtype: torch.dtype

    def rounded(self, scales: torch.Tensor) -> torch.Tensor:
        """Scales that are not smaller and can be stored; those of zeros are 1."""
        if self.dtype is not torch.float32:
            mantissa, exponent = torch.frexp(scales)
            exponent = torch.where(mantissa > 0.5, exponent, exponent - 1).clamp(min=LEAST_EXPONENT)
            scales = torch.where(scales > 0, torch.ldexp(torch.ones_like(scales), exponent), scales)
        return torch.where(scales > 0, scales, 1.0)


LEAST_EXPONENT = -126  # of a scale e8m0: the kernels read the byte below as 0
IN_ROWS = Written(LATENT, (COLUMNS_OF_SCALE, LATENT), SCALES, torch.float32)
IN_PAGES = Written(
    LATENT - ROPE, (COLUMNS_OF_BLOCK,), (LATENT - ROPE) // COLUMNS_OF_BLOCK, E8M0.torch
)


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
    numbers = latent
    if scales is None:
        numbers, scales = _quantised(latent, columns_of_scale, IN_ROWS)
    scales = scales.expand(*latent.shape[:-1], SCALES)
    return _bytes_of(numbers, scales, rope.to(torch.bfloat16))


def _bytes_of(*pieces: torch.Tensor) -> torch.Tensor:
    """Next to each other."""
    return torch.cat([piece.contiguous().view(torch.uint8) for piece in pieces], -1)


def _quantised(
    latent: torch.Tensor, columns: int, written: Written
) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers e4m3, and the scale of each run of columns."""
    parts = latent.float().unflatten(-1, (latent.shape[-1] // columns, columns))
    largest = torch.finfo(NUMBERS).max
    scales = written.rounded(parts.abs().amax(-1, keepdim=True) / largest)
    numbers = (parts / scales).clamp(-largest, largest).to(NUMBERS)
    return numbers.flatten(-2), scales.squeeze(-1).to(written.dtype)


def write(cache: torch.Tensor, latent, rope, slots, scales, columns_of_scale: int | None) -> None:
    """Check the arguments of write_latent_rows that follow the cache, and write. Requires a cache of either kind."""
    written = IN_PAGES if is_in_pages(cache) else IN_ROWS
    columns = written.columns[0] if columns_of_scale is None else columns_of_scale
    scales = _check_written(written, latent, rope, slots, scales, columns)
    if written is IN_ROWS:
        rows = rows_from(latent, rope, scales, columns)
        _put(cache.view(torch.uint8)[:, :, 0], slots, rows)
        return
    of_rows, of_scales = pages_of(cache, None, None, None)
    numbers = latent
    if scales is None:
        numbers, scales = _quantised(latent, columns, written)
    _put(of_rows[:, :, 0].view(torch.uint8), slots, _bytes_of(numbers, rope.to(torch.bfloat16)))
    _put(of_scales[..., : written.scales], slots, _bytes_of(scales))


def _check_written(written: Written, latent, rope, slots, scales, columns) -> torch.Tensor | None:
    """The scales with one column or as many as a row has, or None."""
    if slots.dim() != 1:
        raise ValueError(f"slots: shape {tuple(slots.shape)}; accepted: (rows,)")
    rows = len(slots)
    for name, tensor, depth in (("latent", latent, written.numbers), ("rope", rope, ROPE)):
        if tuple(tensor.shape) != (rows, depth):
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} with {rows} slots; accepted: {(rows, depth)}"
            )
    if columns not in written.columns:
        others = "".join(f", or {n} for one scale a row" for n in written.columns[1:])
        raise ValueError(f"columns_of_scale: {columns}; accepted: {written.columns[0]}{others}")
    if scales is None:
        return None
    if latent.dtype is not NUMBERS:
        raise TypeError(
            f"latent: dtype {latent.dtype} with scales; accepted: {NUMBERS}, which scales belong to, or "
            "scales=None"
        )
    if scales.dtype is not written.dtype:
        raise TypeError(f"scales: dtype {scales.dtype}; accepted: {written.dtype}")
    accepted: list[tuple[int, ...]] = [(rows, written.scales)]
    if written is IN_ROWS:
        accepted = [(rows,), (rows, 1), *accepted]
    if tuple(scales.shape) not in accepted:
        raise ValueError(
            f"scales: shape {tuple(scales.shape)}; accepted: {', '.join(map(str, accepted))}"
        )
    return scales[:, None] if scales.dim() == 1 else scales


def _put(pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows to the slots of (pages, rows of a page, bytes). Rows of negative slots, which pad a batch, are not
    written. Nothing waits for the device.

    A skipped row is replaced by the first row that is written, or by a row of the cache if none is.
    """
    if len(slots) == 0:
        return
    slots, written = slots.long(), slots >= 0
    first = written.int().argmax(keepdim=True)
    place = slots.index_select(0, first).clamp(min=0)
    size = pages.shape[1]
    found = torch.where(
        written.any(), rows.index_select(0, first), pages[place // size, place % size]
    )
    slots = torch.where(written, slots, place)
    pages[slots // size, slots % size] = torch.where(written[:, None], rows, found)


def numbers_of(rows: torch.Tensor) -> torch.Tensor:
    """(..., 656) of bytes -> the values that they represent, (..., 576) float32."""
    rows = rows.contiguous().view(torch.uint8)
    numbers, scales, rope = rows.split((LATENT, ROPE_AT - LATENT, LATENT_ROW_BYTES - ROPE_AT), -1)
    numbers = numbers.contiguous().view(NUMBERS).float()
    scales = scales.contiguous().view(torch.float32).repeat_interleave(COLUMNS_OF_SCALE, -1)
    return torch.cat([numbers * scales, rope.contiguous().view(torch.bfloat16).float()], -1)


def numbers_in_pages(cache: torch.Tensor) -> torch.Tensor:
    """(num_pages, page_size, 1, 584) of bytes -> the values that they represent, (num_pages, page_size, 1, 512)."""
    rows, scales = pages_of(cache, None, None, None)
    numbers, rope = rows.split((LATENT - ROPE, 2 * ROPE), -1)
    factors = scales.view(E8M0.torch).float().repeat_interleave(COLUMNS_OF_BLOCK, -1)
    numbers = numbers.float() * factors[:, :, None, : LATENT - ROPE]
    return torch.cat([numbers, rope.contiguous().view(torch.bfloat16).float()], -1)
