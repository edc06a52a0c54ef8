"""NVFP4: 4-bit values with an e4m3 scale per block of 16 and one float32 scale, in plain torch.

    codes, scales, factor = nvfp4.quantize(k)       k (..., head_dim), 16 bits or more
    nvfp4.write(k, codes, scales, slots, factor)    rows (tokens, heads, head_dim) into the pages of a cache, in place
    nvfp4.interleaved(scales)                       scales of V in the other layout, v_block_scale_layout="interleaved4"
    nvfp4.codes_and_scales(pages)                   views of both, of pages whose codes are followed by their scales

    codes     torch.uint8 (..., head_dim / 2)           two values a byte, the even column in the low four bits
    scales    torch.float8_e4m3fn (..., head_dim / 16)  one for each 16 columns
    factor    torch.float32 ()                          one for the tensor
    value     E2M1 number * scale of its block * factor

E2M1 numbers are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, code 8 and up. Columns and bytes are those of
torch.float4_e2m1fn_x2 and of FlashInfer's and vLLM's NVFP4 caches.

The scale of a block is its largest magnitude / 6 / factor, rounded to e4m3 to nearest even, at most 448. A value is
divided by scale * factor, rounded to nearest even, at most 6. Where the scale is 0, because a block is zeros or below
2^-10 of the factor, its codes are 0. A block with an infinity or NaN has codes 0 and scale NaN, so all of it is NaN.

four_over_six: a block whose values have a smaller squared error at its largest magnitude / 4 has that scale instead
(M. Cook et al., Four Over Six, arXiv 2512.02010). E2M1 has no number between 4 and 6, so values just below the largest
lose most at / 6. Errors are float32: the differences of number * scale * factor and the value, each rounded, squared,
rounded, and added in halves, 8 sums of columns i and i + 8, then 4, 2, 1. So the choice has the same bits everywhere.
"""

from __future__ import annotations

import torch

from cute_fa4 import cache_slots
from cute_fa4.dtypes import E2M1, E4M3
from cute_fa4.layouts import cache_scales

BLOCK = E2M1.block
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, E2M1.largest)
# The midpoint of a magnitude and the next one, and whether the midpoint itself is rounded up, to an even code.
MIDPOINTS = tuple(
    ((low + high) / 2, code % 2 == 1)
    for code, (low, high) in enumerate(zip(MAGNITUDES, MAGNITUDES[1:], strict=False))
)
SIGN = 1 << E2M1.bits - 1
LARGEST_SCALE = E4M3.largest
FOUR = 4.0  # the number that the largest of a block becomes at the other scale
SCALE_OF_SIX = 256.0  # largest scale at / 6 with four_over_six: at / 4 it is 384, an e4m3 number


def quantize(
    x: torch.Tensor, global_scale: torch.Tensor | float | None = None, four_over_six: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> (codes, scales of blocks, global scale) of the last dimension of x.

    global_scale   the factor of the tensor, positive and finite; None: the largest finite magnitude / (6 * 448), so
                   that no block scale saturates, 6 * 256 with four_over_six; 1 if x is zeros
    four_over_six  each block has the better of two scales

    >>> codes, scales, factor = quantize(torch.tensor([[3.0, -12.0] + [0.0] * 14]), 1.0)
    >>> [hex(byte) for byte in codes[0, :2].tolist()], scales.float().item(), factor.item()
    (['0xf3', '0x0'], 2.0, 1.0)
    """
    cache_slots.check_floats(x)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(
            f"x: shape {tuple(x.shape)}; accepted: a last dimension that is a multiple of {BLOCK}; pad it with zeros"
        )
    x = x.to(torch.float32)
    factor = _global_scale(x, global_scale, SCALE_OF_SIX if four_over_six else LARGEST_SCALE)
    blocks = x.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1)
    finite = largest.isfinite()
    blocks = torch.where(finite[..., None], blocks, 0.0)
    largest = torch.where(finite, largest, 0.0)
    codes, scales = _of_largest(blocks, largest, E2M1.largest, factor)
    if four_over_six:
        others, smaller = _of_largest(blocks, largest, FOUR, factor)
        error, of_others = (
            _squared_error(_values(*each, factor), blocks)
            for each in ((codes, scales), (others, smaller))
        )
        better = of_others < error
        codes = torch.where(better[..., None], others, codes)
        scales = torch.where(better, smaller.float(), scales.float()).to(E4M3.torch)
    scales = torch.where(finite, scales.float(), float("nan")).to(E4M3.torch)
    return pack(codes.flatten(-2)), scales, factor


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """The values of quantize's result, in float32.

    >>> dequantize(*quantize(torch.full((1, 16), -3.0), 1.0))[0, 0].item()
    -3.0
    """
    numbers = unpack(codes)
    expected = (*numbers.shape[:-1], numbers.shape[-1] // BLOCK)
    if numbers.shape[-1] % BLOCK or tuple(scales.shape) != expected:
        raise ValueError(
            f"scales: shape {tuple(scales.shape)}; accepted: {expected}, one for each {BLOCK // 2} bytes of codes"
        )
    return _values(numbers.unflatten(-1, (-1, BLOCK)), scales, global_scale).flatten(-2)


def write(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    slots: torch.Tensor,
    global_scale: torch.Tensor | float = 1.0,
    kv_layout: str = "NHD",
    scale_layout: str = cache_scales.LINEAR,
    four_over_six: bool = False,
) -> None:
    """Quantize rows into the pages of a cache, in place: what an append writes, for any slots.

    x       (tokens, heads, head_dim), 16 bits or more
    codes   (num_pages, page_size, heads, head_dim / 2) uint8, with kv_layout="HND" (num_pages, heads, page_size, ...)
    scales  likewise with head_dim / 16, float8_e4m3fn
    slots   (tokens,) integers: page * page_size + row of the page; below 0: the row is not written
    scale_layout   of scales: "linear", or "interleaved4" (interleaved), for page sizes of multiples of 4
    four_over_six  as quantize takes it

    >>> codes, scales = torch.zeros(3, 4, 1, 8).byte(), torch.zeros(3, 4, 1, 1).to(torch.float8_e4m3fn)
    >>> write(torch.full((1, 1, 16), -3.0), codes, scales, torch.tensor([9]))
    >>> dequantize(codes, scales)[2, 1, 0, 0].item(), codes.count_nonzero().item()
    (-3.0, 8)
    """
    cache_slots.check_layout(kv_layout)
    if scale_layout not in cache_scales.LAYOUTS:
        raise ValueError(
            f"scale_layout: {scale_layout!r}; accepted: {' or '.join(map(repr, cache_scales.LAYOUTS))}"
        )
    rows, slots = cache_slots.kept(x, slots)
    new_codes, new_scales, _ = quantize(rows, global_scale, four_over_six)
    parts = (
        cache_slots.Part("codes", codes, new_codes),
        cache_slots.Part("scales", scales, new_scales, scale_layout),
    )
    cache_slots.put(parts, slots, kv_layout)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 15, one a byte -> two a byte, the even one in the low four bits."""
    even, odd = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return even | odd << E2M1.bits


def unpack(codes: torch.Tensor) -> torch.Tensor:
    """The inverse of pack; also of torch.float4_e2m1fn_x2."""
    codes = codes.view(torch.uint8)
    return torch.stack((codes & 2 * SIGN - 1, codes >> E2M1.bits), -1).flatten(-2)


def interleaved(scales: torch.Tensor) -> torch.Tensor:
    """Linear scales (..., tokens, head_dim / 16) in the layout "interleaved4" (layouts/cache_scales.py), of V.

    Tokens are those of a page, or of a sequence without pages: for pages (num_pages, page_size, heads, head_dim / 16)
    interleaved(scales.transpose(1, 2)).transpose(1, 2). Scales of K stay linear.
    """
    tokens, blocks = scales.shape[-2:]
    cache_slots.check_mixes("scales", tokens, blocks)
    mixed = cache_scales.TOKENS
    split = scales.unflatten(-1, (mixed, -1)).unflatten(-3, (-1, mixed))
    return split.movedim(-3, -1).reshape(scales.shape)


def codes_and_scales(pages: torch.Tensor, name: str = "pages") -> tuple[torch.Tensor, torch.Tensor]:
    """-> views (codes, scales) of pages whose codes are followed by their scales, as vLLM stores K, and V.

    pages   uint8 (num_pages, page_size, heads, 9/16 head_dim), or with heads before rows. Each page is one piece of
            memory: all codes in the order of its strides, then all scales in the same order
    name    for errors

    >>> codes, scales = codes_and_scales(torch.zeros(3, 4, 2, 36, dtype=torch.uint8))
    >>> codes.shape, codes.stride(), scales.shape, scales.storage_offset()
    (torch.Size([3, 4, 2, 32]), (288, 64, 32, 1), torch.Size([3, 4, 2, 4]), 256)
    """
    of_block = BLOCK // 2 + 1
    if pages.dtype is not torch.uint8 or pages.dim() != 4 or pages.shape[-1] % of_block:
        raise ValueError(
            f"{name}: shape {tuple(pages.shape)}, dtype {pages.dtype}; accepted: torch.uint8 of four dimensions, the "
            f"last a multiple of {of_block}: {of_block - 1} bytes of codes and one of scales for each {BLOCK} columns"
        )
    first, second, of_row = pages.shape[1:]
    orders = (
        (second, 1),
        (1, first),
    )  # strides in rows: contiguous, or with the third dimension before the second
    found = [_rows_apart(pages, n, of_row) for n in (1, 2)]
    order = next(
        (x for x in orders if all(f in (None, n) for f, n in zip(found, x, strict=True))), None
    )
    if order is None or pages.stride(-1) != 1:
        raise ValueError(
            f"{name}: strides {pages.stride()} for shape {tuple(pages.shape)}; accepted: contiguous pages, rows or "
            "heads first"
        )
    views, at = [], pages.storage_offset()
    for width in (of_row // of_block * (of_block - 1), of_row // of_block):
        strides = pages.stride(0), *(n * width for n in order), 1
        views.append(pages.as_strided((*pages.shape[:3], width), strides, at))
        at += first * second * width
    return views[0], views[1].view(E4M3.torch)


def _rows_apart(pages: torch.Tensor, dim: int, of_row: int):
    """The stride of a dimension in rows; None: it has one element, whose stride says nothing."""
    return None if pages.shape[dim] == 1 else pages.stride(dim) / of_row


def _global_scale(x: torch.Tensor, given, largest_scale: float) -> torch.Tensor:
    if given is not None:
        return cache_slots.one_number(given, x.device)
    finite = torch.where(x.isfinite(), x, 0.0).abs()
    largest = finite.amax() if x.numel() else finite.sum()
    factor = largest / (E2M1.largest * largest_scale)
    return torch.where(factor > 0, factor, 1.0)


def _squared_error(values: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Sums over blocks, with the roundings and the order that the module states."""
    difference = values - blocks
    squares = difference * difference
    while squares.shape[-1] > 1:
        low, high = squares.chunk(2, -1)
        squares = low + high
    return squares[..., 0]


def _of_largest(blocks: torch.Tensor, largest: torch.Tensor, code_of: float, factor) -> tuple:
    """-> (codes, scales) where the largest magnitude of a block becomes `code_of`."""
    # Not largest / code_of: on CUDA torch multiplies by the inverse of a number, whose bits may differ.
    number = torch.full((), code_of, device=largest.device)
    scales = (largest / number / factor).clamp(max=LARGEST_SCALE).to(E4M3.torch)
    unit = (scales.float() * factor)[..., None]
    scaled = torch.where(unit > 0, blocks / torch.where(unit > 0, unit, 1.0), 0.0)
    return encode(scaled), scales


def encode(values: torch.Tensor) -> torch.Tensor:
    """Codes of the nearest E2M1 numbers, ties to even; 6 for what is larger. One code a byte."""
    size = values.abs()
    code = torch.zeros(values.shape, dtype=torch.uint8, device=values.device)
    for middle, tie_goes_up in MIDPOINTS:
        code += (size >= middle) if tie_goes_up else (size > middle)
    return code | torch.signbit(values) * torch.tensor(SIGN, dtype=torch.uint8)


def decode(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0 to 15 -> E2M1 numbers, float32."""
    table = torch.tensor([*MAGNITUDES, *(-x for x in MAGNITUDES)], device=codes.device)
    return table[codes.long()]


def _values(codes: torch.Tensor, scales: torch.Tensor, factor) -> torch.Tensor:
    return decode(codes) * scales.float()[..., None] * factor
