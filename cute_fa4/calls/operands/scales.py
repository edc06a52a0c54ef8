"""Scales of 8-bit tensors: factors between stored numbers and the values that they represent.

    q_descale, k_descale, v_descale    values of q, k, v are the stored numbers times these
    o_scale                            out stores its values times this

Each is a float32 tensor of any strides, also 0; its shape tells what each number belongs to:

    one number                      the whole tensor
    (batch, heads_kv)               each sequence and key/value head
    as its tensor without head_dim  q, k, v: each token and head: (batch, seqlen_k, heads_kv), packed (total_k,
                                    heads_kv), paged (num_pages, page_size, heads_kv) or, where kv_layout is "HND",
                                    (num_pages, heads_kv, page_size); a head_dim of 1 may follow
    as its tensor with head_dim/32  q and k, both: each 32 numbers of a row, a power of two (MXFP8). Its dtype is
                                    torch.float8_e8m0fnu; cute_fa4.mxfp8 makes both from a tensor

Caches under 16-bit q whose blocks have scales have two kinds of them: k_block_scale and v_block_scale, and k_descale
and v_descale of the first two forms.

    NVFP4   k and v torch.uint8, two numbers a byte; torch.float8_e4m3fn, as k and v with head_dim/16, one for each 16
            numbers of a row; cute_fa4.nvfp4
    MXFP8   k and v torch.float8_e4m3fn; torch.float8_e8m0fnu, as k and v with head_dim/32; cute_fa4.mxfp8

A packed tensor with as many tokens as sequences makes the second and the third form ambiguous: different numbers are
then refused without a head_dim of 1, which selects the third. Only the device reads the values. softmax_scale *
q_descale * k_descale must be within 2^-64 to 2^16 where neither is of tokens of k; with scales of tokens of k,
softmax_scale * q_descale. Where it is not, out and LSE are NaN: the kernel takes the row maximum before it multiplies.
Scales of tokens of v beyond 2^126 make out NaN.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from cute_fa4.calls.operands.four_bits import (
    BYTES,
    check_depths,
    columns_of,
    has_mx_blocks,
    name_of_keys,
)
from cute_fa4.calls.operands.scale_views import (
    BLOCKS,
    OF_CACHE_BLOCKS,
    WORD,
    GivenScales,
    ScaleViews,
    are_of_blocks,
    is_by_row,
)
from cute_fa4.calls.operands.tensors import FP8, are_in_pages, check_is_tensor, check_place
from cute_fa4.dtypes import DTYPES, MXE4M3
from cute_fa4.layouts.block_scales import BLOCK
from cute_fa4.layouts.cache_scales import LAYOUTS, LINEAR, TOKENS
from cute_fa4.operands import SCALES, CallTensors
from cute_fa4.scales import BLOCK as BLOCK_OF_ROW
from cute_fa4.scales import HEAD, ROW, Scales
from cute_fa4.sm100.blueprint.cache_blocks import SCALES_OF_WORD
from cute_fa4.sm100.blueprint.reach import QK_DEPTHS_OF_FP8

OF_BLOCKS = ("q_descale", "k_descale")  # tensors that may have block scales
MOST_OF_BLOCKS = QK_DEPTHS_OF_FP8[-1]  # of q and k with block scales


def checked_scales(
    tensors: CallTensors, batch: int, heads_first: bool = False, v_layout: object = LINEAR
) -> GivenScales | None:
    """Refuse invalid scales; None: there are none.

    tensors      with a k that has the rows of a page first
    heads_first  the caller has the rows after the heads
    v_layout     v_block_scale_layout of the call
    """
    q, k = tensors.q, tensors.k
    v_layout = _checked_layout(tensors, v_layout)
    of_blocks = k.dtype is BYTES or _is_mx_cache(tensors)
    if of_blocks:
        _check_cache_blocks(tensors, heads_first)
    if not tensors.has(SCALES):
        return None
    by_head = batch, k.shape[-2]
    of_keys = tuple(k.shape[:-1])
    if heads_first:
        of_keys = (of_keys[0], of_keys[2], of_keys[1])
    rows = {"q_descale": tuple(q.shape[:-1])}
    if not of_blocks:
        rows |= {"k_descale": of_keys, "v_descale": of_keys}
    given = {name: x for name, x in tensors.named(SCALES).items() if x is not None}
    for name, scale in given.items():
        of_rows = rows.get(name)
        if name in OF_CACHE_BLOCKS:
            if not (of_blocks or are_in_pages(q, k)):
                _check_has_cache_blocks(name, q, k)
        elif are_of_blocks(scale):
            _check_blocks(name, scale, q, k, of_rows)
        else:
            _check(name, scale, q, k, by_head, of_rows)
    _check_both_have_blocks(tensors)
    views = ScaleViews.like(given, by_head, rows, heads_first, v_layout)
    return GivenScales(given, said_by(given, by_head), views, v_layout)


def of_made_up_keys(scales: GivenScales | None) -> GivenScales | None:
    """The same where k and v are placeholders: one number instead of the scales of their tokens."""
    tokens = () if scales is None else scales.said.of_keys
    if scales is None or not tokens:
        return scales
    names = [f"{tensor}_descale" for tensor in tokens]
    ones = {name: scales.tensors[name].new_ones(()) for name in names}
    said = replace(scales.said, **dict.fromkeys(tokens, HEAD))
    return replace(
        scales,
        tensors=scales.tensors | ones,
        said=said,
        views=scales.views.with_one_number_for(names),
    )


def check_no_scale(q: torch.Tensor, k: torch.Tensor, q_descale) -> None:
    """q of 16 bits over k of 8 has none."""
    if q_descale is not None:
        other = f", or q of {k.dtype}" if k.dtype in FP8 else ""
        raise TypeError(
            f"q_descale: given with q of {q.dtype}, which gets its own scales; accepted: None{other}"
        )


def _check(name: str, scale, q: torch.Tensor, k: torch.Tensor, by_head: tuple, of_rows) -> None:
    check_is_tensor(name, scale)
    if name == "q_descale" and q.dtype not in FP8 and k.dtype in (*FP8, BYTES):
        check_no_scale(q, k, scale)
    if k.dtype not in (*FP8, BYTES) and name != "o_scale":
        raise TypeError(
            f"{name}: given with q of {q.dtype}; accepted: None, scales belong to {' and '.join(map(str, FP8))}; "
            "multiply softmax_scale, or the tensor"
        )
    if scale.dtype != torch.float32:
        raise TypeError(
            f"{name}: dtype {scale.dtype}; accepted: torch.float32; convert with .to(torch.float32)"
        )
    sizes = (by_head,) if of_rows is None else (by_head, of_rows, (*of_rows, 1))
    if scale.numel() != 1 and tuple(scale.shape) not in sizes:
        more = f", or {of_rows}, one for each token and head" if len(sizes) > 1 else ""
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}; accepted: one number, or {by_head}, one for each sequence and "
            f"key/value head{more}"
        )
    expanded = not any(s for s, n in zip(scale.stride(), scale.shape, strict=True) if n > 1)
    if by_head == of_rows == tuple(scale.shape) and scale.numel() != 1 and not expanded:
        raise ValueError(
            f"{name}: shape {by_head} of a packed tensor with as many tokens as sequences, so that the numbers may "
            f"belong to either; accepted: {(*of_rows, 1)}, one for each token and head, or one number; give those of "
            "sequences to each of their tokens"
        )
    check_place(name, scale, q.device)


def _check_blocks(name: str, scale, q: torch.Tensor, k: torch.Tensor, of_rows) -> None:
    check_is_tensor(name, scale)
    if name not in OF_BLOCKS:
        raise TypeError(
            f"{name}: dtype {scale.dtype}; accepted: torch.float32, one number or one for each sequence and key/value "
            "head; blocks of q and k alone have scales"
        )
    if q.dtype not in FP8 or k.dtype is not q.dtype:
        raise TypeError(
            f"{name}: scales of blocks, {BLOCKS}, with q of {q.dtype} and k of {k.dtype}; accepted: q and k of "
            f"{' or '.join(map(str, FP8))}, both the same; cute_fa4.mxfp8.quantise makes them"
        )
    depth = q.shape[-1]
    if depth % BLOCK or depth > MOST_OF_BLOCKS:
        remedy = (
            "pad q and k with zeros" if depth < MOST_OF_BLOCKS else "give scales of tokens instead"
        )
        raise ValueError(
            f"{name}: scales of blocks with a head dim of {depth} of q and k; accepted: a multiple of {BLOCK} up to "
            f"{MOST_OF_BLOCKS}; {remedy}"
        )
    if tuple(scale.shape) != (*of_rows, depth // BLOCK):
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}; accepted: {(*of_rows, depth // BLOCK)}, one for each {BLOCK} numbers "
            "of a row"
        )
    check_place(name, scale, q.device)


def _is_mx_cache(tensors: CallTensors) -> bool:
    """Whether q of 16 bits is over an MXFP8 cache; rows of a latent cache may have such scales, too."""
    q, k = tensors.q, tensors.k
    wide = q.dtype not in FP8 and not are_in_pages(q, k)
    return wide and has_mx_blocks(k, tensors.k_block_scale)


def _check_has_cache_blocks(name: str, q: torch.Tensor, k: torch.Tensor) -> None:
    raise TypeError(
        f"{name}: given with k of {k.dtype} and q of {q.dtype}; accepted: None, or k and v of {BYTES}, two numbers "
        f"of 4 bits a byte (cute_fa4.nvfp4), or of {MXE4M3.torch} with scales of {BLOCKS} (cute_fa4.mxfp8), under q of "
        "16 bits"
    )


def _checked_layout(tensors: CallTensors, v_layout) -> str:
    """v_block_scale_layout of a call. Errors in it change no shape: they are all refused here."""
    if not isinstance(v_layout, str) or v_layout not in LAYOUTS:
        raise ValueError(
            f"v_block_scale_layout: {v_layout!r}; accepted: {' or '.join(map(repr, LAYOUTS))}"
        )
    if v_layout == LINEAR:
        return v_layout
    if tensors.k.dtype is not BYTES:
        raise ValueError(
            f"v_block_scale_layout: {v_layout!r} with k of {tensors.k.dtype}; accepted: {LINEAR!r}, or k and v of "
            f"{BYTES}, two numbers of 4 bits a byte (cute_fa4.nvfp4)"
        )
    rows = tensors.k.shape[-3] if tensors.kv_layout != "packed" else None
    if rows is None or rows % TOKENS:
        found = "packed k" if rows is None else f"{rows} rows in a page or sequence of k"
        raise ValueError(
            f"v_block_scale_layout: {v_layout!r} with {found}; accepted: k and v in pages, or dense, of a multiple of "
            f"{TOKENS} rows, which share lines of scales; or {LINEAR!r}"
        )
    return v_layout


def _check_cache_blocks(tensors: CallTensors, heads_first: bool) -> None:
    """A cache whose blocks have scales: where they fill words of four, these are at multiples of four bytes."""
    row = DTYPES[name_of_keys(tensors.k, tensors.k_block_scale)]
    if row.cache_scales is None:
        return
    accepted = row.cache_scales.torch
    by = "nvfp4.quantize" if row.in_byte > 1 else "mxfp8.quantise"
    if row.in_byte == 1:
        if tensors.k_rope is not None:
            raise NotImplementedError(
                f"k_rope: given with k_block_scale of {BLOCKS} (MXFP8); accepted: None: k has all columns"
            )
        check_depths(tensors.q.shape[-1], tensors.v.shape[-1], "of MXFP8")
    for name, of in OF_CACHE_BLOCKS.items():
        scale, keys = getattr(tensors, name), getattr(tensors, of)
        if scale is None:
            raise TypeError(
                f"{name}: None with {of} of {keys.dtype}; accepted: scales of each {row.block} numbers, "
                f"{accepted}, as {of} with head_dim / {row.block}; cute_fa4.{by} makes both"
            )
        check_is_tensor(name, scale)
        if scale.dtype is not accepted:
            raise TypeError(
                f"{name}: dtype {scale.dtype}; accepted: {accepted}; bytes of that format take .view({accepted})"
            )
        sizes = [*keys.shape[:-1], columns_of(keys) // row.block]
        if heads_first:
            sizes[1:3] = sizes[2:0:-1]
        if list(scale.shape) != sizes:
            raise ValueError(
                f"{name}: shape {tuple(scale.shape)}; accepted: {tuple(sizes)}, one for each {row.block} numbers of a "
                f"row of {of}"
            )
        check_place(name, scale, tensors.q.device)
        in_words = sizes[-1] % SCALES_OF_WORD == 0  # else read one by one
        strides = [s for s, n in zip(scale.stride(), scale.shape, strict=True) if n > 1]
        apart = in_words and any(s % WORD.itemsize for s in strides[:-1])
        if scale.numel() and (scale.stride(-1) != 1 or apart):
            others = f", the others multiples of {WORD.itemsize}" if in_words else ""
            raise ValueError(
                f"{name}: strides {scale.stride()}; accepted: a contiguous last dimension{others}; copy with "
                f"{name}.contiguous()"
            )
        if in_words and scale.device.type != "meta" and scale.data_ptr() % WORD.itemsize:
            raise ValueError(
                f"{name}: begins at address {scale.data_ptr():#x}; accepted: multiples of {WORD.itemsize} bytes; copy "
                f"with {name}.clone()"
            )


def _check_both_have_blocks(tensors: CallTensors) -> None:
    """Block scales must be given for both operands of a product."""
    has = [are_of_blocks(getattr(tensors, name)) for name in OF_BLOCKS]
    if has[0] != has[1]:
        name, other = OF_BLOCKS if has[0] else reversed(OF_BLOCKS)
        raise TypeError(
            f"{other}: no scales of blocks while {name} has them; accepted: both of {BLOCKS}, or neither; "
            "cute_fa4.mxfp8.quantise makes them from tensors of 16 bits or more"
        )


def said_by(given: dict[str, torch.Tensor], by_head: tuple) -> Scales:
    """The Scales of a call, by the dtypes and shapes of its tensors. by_head: (batch, heads_kv)

    >>> said_by({"k_descale": torch.ones(1), "v_descale": torch.ones(1)}, (2, 2)), said_by({}, (2, 2))
    ('kv', '')
    >>> of_tokens = {"q_descale": torch.ones(2, 3, 4, 1), "k_descale": torch.ones(2, 9, 2)}
    >>> said_by(of_tokens | {"v_descale": torch.ones(2, 2)}, (2, 2))
    'QKv'
    """
    named = {name: scale for name, scale in given.items() if name not in OF_CACHE_BLOCKS}
    return Scales(**{name[0]: _kind_of(scale, by_head) for name, scale in named.items()})


def _kind_of(scale: torch.Tensor, by_head: tuple) -> str:
    if are_of_blocks(scale):
        return BLOCK_OF_ROW
    return ROW if is_by_row(scale, by_head) else HEAD
