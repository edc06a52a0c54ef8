"""Everything a call can get wrong, refused before anything is compiled or launched.

Each check reads metadata only (no element, no synchronisation), and each message names the
argument, the value, what is accepted and the remedy. The order is: are they tensors, do they belong
together, what shape, what memory, which options; so the first complaint is the most basic one.

TypeError            not a tensor, or a dtype without a kernel
ValueError           a device, shape, stride, alignment or number outside what is accepted
NotImplementedError  a parameter whose feature is not supported yet
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch.compiler import is_dynamo_compiling

from cute_fa4.calls.operands.four_bits import BYTES, PADDING, PAIRS, check_columns, columns_of
from cute_fa4.calls.operands.memory import check_memory, may_overlap, overlaps_itself
from cute_fa4.calls.operands.rope_depths import check_rope_depths
from cute_fa4.dtypes import (
    BF16,
    DTYPES,
    E4M3,
    OPERANDS,
    QUANTIZED,
    UNQUANTIZED,
    names_of,
    torch_of,
)
from cute_fa4.sm100.blueprint.problem import LARGEST_SCALE, SMALLEST_SCALE
from cute_fa4.sm100.choose.choose_config import (
    LATENT_DEPTHS,
    LATENT_PAGE_ROW_BYTES,
    LATENT_ROW_BYTES,
    depths_of,
    in_words,
)

DTYPE_NAMES = names_of(OPERANDS)
WIDE = tuple(torch_of(UNQUANTIZED).values())
FP8 = tuple(torch_of(QUANTIZED).values())
OUT_OF = {dtype: DTYPES[DTYPES[name].out].torch for dtype, name in DTYPE_NAMES.items()}  # by q's
QUANTIZED_OUT = E4M3.torch  # of out, with o_scale

# Row and key indices are 32-bit in the kernel, and so are their sums and differences: two lengths
# of at most 2^30 cannot overflow either, with room for a tile.
MAX_SEQLEN = 1 << 30

# The x dimension of a launch grid (CUDA C++ Programming Guide, "Compute Capabilities"); the grid
# has one CTA for BM query rows of each head of each sequence, all in x.
MAX_CTAS = (1 << 31) - 1


# The axes of q, k, v and out, as messages name them.
DENSE = ("batch", "seqlen", "heads", "head_dim")
PACKED = ("total", "heads", "head_dim")
PAGED = ("num_pages", "page_size", "heads", "head_dim")
AXES = {"dense": DENSE, "packed": PACKED, "paged": PAGED}


@dataclass(frozen=True)
class Columns:
    """How q, k and v share columns, and which columns lie in further tensors.

    latent   v is the first columns of k
    in_rope  columns that k lacks, because they are in k_rope, and that q lacks, because they are in q_rope
    """

    latent: bool = False
    in_rope: tuple[int, int] = (0, 0)


def check(
    q,
    k,
    v,
    out,
    q_axes: tuple[str, ...] = DENSE,
    kv_axes: tuple[str, ...] = DENSE,
    one_batch: bool = True,
    columns: Columns = Columns(),
) -> None:
    """Check q, k, v and out against each other and against what the kernel reads.

    one_batch: dense k and v have the sequences of dense q, none else
    """
    check_tensors(q, k, v, out, latent=columns.latent)
    axes = {"q": q_axes, "k": kv_axes, "v": kv_axes, "out": q_axes}
    tensors = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    for name, tensor in tensors.items():
        check_rank(name, tensor, axes[name])
    check_shapes(q, k, v, q_axes, kv_axes, one_batch, columns.latent, columns.in_rope)
    for name, tensor in tensors.items():
        check_memory(name, tensor, axes[name])
    if out is not None:
        check_out(out, q, k, v)


def check_tensors(q, k, v, out, gradients: bool = False, latent: bool = False) -> None:
    """Check for tensors of one device and one dtype that has a kernel, and (unless gradients) require no gradient.

    latent: out of float32 takes a result that is not rounded
    """
    tensors = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    for name, tensor in tensors.items():
        check_is_tensor(name, tensor)
    check_one_device(tensors)
    check_one_dtype(tensors, latent)
    if not gradients or out is not None:
        check_no_gradient(tensors)


# --- are they tensors that belong together


def check_is_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        make = {"list": "tensor", "tuple": "tensor", "ndarray": "from_numpy"}.get(kind)
        remedy = f"; make one with torch.{make}({name})" if make else ""
        if name in ("cu_seqlens_q", "page_table") and isinstance(value, int):
            remedy = "; docs/coming_from.md has the order of the parameters"
        article = "an" if kind[0] in "aeiou" else "a"
        raise TypeError(f"{name}: {article} {kind}; accepted: a torch.Tensor{remedy}")
    if value.is_nested:
        raise TypeError(
            f"{name}: a nested tensor; accepted: a torch.Tensor with the rows of all sequences; pass {name}.values() "
            "of a torch.jagged one to flash_attn_varlen_func, with cu_seqlens_q=q.offsets().to(torch.int32)"
        )
    if value.layout is not torch.strided:
        raise TypeError(
            f"{name}: layout {value.layout}; accepted: torch.strided; "
            f"convert with {name}.to_dense()"
        )
    # A graph calls an operator, for which torch writes the numbers out.
    if not is_dynamo_compiling():
        _check_holds_its_numbers(name, value)


def _check_holds_its_numbers(name: str, tensor: torch.Tensor) -> None:
    """Memory must hold the actual numbers (no lazy views), because a kernel reads it directly."""
    if tensor.is_neg():
        raise ValueError(
            f"{name}: has the negative bit: its memory holds the negated numbers; accepted: a tensor "
            f"without it; call {name}.resolve_neg()"
        )
    if tensor.is_conj():
        raise ValueError(
            f"{name}: has the conjugate bit; accepted: a tensor without it; call {name}.resolve_conj()"
        )
    if tensor._is_zerotensor():
        raise ValueError(
            f"{name}: a tensor of zeros without memory; accepted: one with memory; call {name}.clone()"
        )


def check_one_device(tensors: dict[str, torch.Tensor]) -> None:
    device = tensors["q"].device
    for name, tensor in tensors.items():
        if tensor.device != device:
            raise ValueError(
                f"{name}: on {tensor.device} while q is on {device}; accepted: all on one device; "
                f"move it with {name}.to({str(device)!r})"
            )


def check_one_dtype(tensors: dict[str, torch.Tensor], latent: bool = False) -> None:
    dtype = tensors["q"].dtype
    if dtype not in DTYPE_NAMES:
        *most, last = map(str, DTYPE_NAMES)
        raise TypeError(
            f"q: dtype {dtype} has no kernel; accepted: {', '.join(most)} and {last}; "
            "convert q, k and v with .to(torch.bfloat16)"
        )
    for name, tensor in tensors.items():
        if name == "out":
            outputs = (*(WIDE if dtype in FP8 else (dtype,)), QUANTIZED_OUT)
            outputs += (torch.float32,) * latent
            if tensor.dtype not in outputs:
                raise TypeError(
                    f"out: dtype {tensor.dtype} while q is {dtype}; accepted: {', '.join(map(str, outputs))}"
                )
        elif name in "kv" and dtype in WIDE and tensors["k"].dtype in (*FP8, BYTES):
            if tensor.dtype != tensors["k"].dtype:
                raise TypeError(
                    f"{name}: dtype {tensor.dtype} while k is {tensors['k'].dtype}; accepted: k and v alike; "
                    f"convert with {name}.to({tensors['k'].dtype})"
                )
        elif tensor.dtype in (BYTES, PAIRS):
            raise TypeError(
                f"{name}: dtype {tensor.dtype} while q is {dtype}; accepted: q of {' or '.join(map(str, WIDE))} and "
                f"k and v of 4 bits as {BYTES}, with k_block_scale and v_block_scale; view them with .view({BYTES})"
            )
        elif tensor.dtype != dtype:
            raise TypeError(
                f"{name}: dtype {tensor.dtype} while q is {dtype}; accepted: one dtype for all; "
                f"convert with {name}.to({dtype})"
            )


def check_place(name: str, tensor: torch.Tensor, device, gradients: bool = False) -> None:
    """A tensor other than q, k and v is on their device, and (unless gradients) requires no gradient."""
    if tensor.device != device:
        raise ValueError(
            f"{name}: on {tensor.device} while q is on {device}; accepted: all on one device; "
            f"move it with .to({str(device)!r})"
        )
    if not gradients:
        check_no_gradient({name: tensor})


def check_no_gradient(tensors: dict[str, torch.Tensor]) -> None:
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires_grad is True and the backward pass is not supported; accepted: False; "
                f"call under torch.no_grad() or pass {name}.detach()"
            )


# --- shapes


def check_rank(name: str, tensor: torch.Tensor, axes: tuple[str, ...] = DENSE) -> None:
    if tensor.dim() != len(axes):
        more = "; add missing ones with unsqueeze" if tensor.dim() < len(axes) else ""
        raise ValueError(
            f"{name}: shape {tuple(tensor.shape)} has {tensor.dim()} dimensions; accepted: "
            f"{len(axes)}, ({', '.join(axes)}){more}"
        )


def check_shapes(
    q,
    k,
    v,
    q_axes: tuple[str, ...] = DENSE,
    kv_axes: tuple[str, ...] = DENSE,
    one_batch: bool = True,
    latent: bool = False,
    in_rope: tuple[int, int] = (0, 0),
) -> None:
    num_q_heads, head_dim = q.shape[-2:]
    num_kv_heads = k.shape[-2]
    if q_axes == kv_axes == DENSE and one_batch:
        _same_size("k", k, "batch", 0, "q", q)
        _same_size("v", v, "batch", 0, "q", q)
    if any(in_rope) and k.dtype is BYTES:
        raise NotImplementedError(
            f"k_rope: given with k of {BYTES} (4 bits); accepted: None: k has all columns"
        )
    if any(in_rope):
        check_rope_depths(k.dtype, head_dim, k.shape[-1], *in_rope)
    elif k.dtype is BYTES:
        check_columns(q, k, v)
    elif not (latent and (are_rows(k) or are_in_pages(q, k))):
        _same_size("k", k, "head_dim", -1, "q", q)
    for dim, axis in enumerate(kv_axes[:-1]):
        _same_size("v", v, axis, dim, "k", k)
    if latent:
        _check_latent(q, k, v)
    elif k.dtype is not BYTES:
        # Ranks of torch.distributed may run other dtypes, by SDPA.
        _check_depths(DTYPE_NAMES.get(k.dtype, BF16.name), head_dim, v.shape[-1])
    if num_kv_heads == 0 or num_q_heads == 0 or num_q_heads % num_kv_heads:
        raise ValueError(
            f"q: {num_q_heads} heads over {num_kv_heads} heads of k and v; accepted: a positive "
            "multiple of a positive number: every key/value head serves equally many query heads"
        )
    for name, tensor, axes in (("q", q, q_axes), ("k", k, kv_axes)):
        for axis, size in zip(axes[:-2], tensor.shape[:-2], strict=True):
            if axis in ("seqlen", "total") and size > MAX_SEQLEN:
                raise ValueError(
                    f"{name}: {axis} {size}; accepted: at most {MAX_SEQLEN}, so that index sums "
                    "stay within 32 bits; split the call along it"
                )


def _check_depths(dtype: str, *depths: int) -> None:
    for name, depth, accepted in zip(("q", "v"), depths, depths_of(dtype), strict=True):
        if depth not in accepted:
            raise ValueError(
                f"{name}: head_dim {depth}; accepted: {in_words(accepted)}, {PADDING[name]}"
            )


def are_rows(k) -> bool:
    """Whether a row of a latent cache includes its scales and rotary columns."""
    return k.dtype is E4M3.torch and k.shape[-1] == LATENT_ROW_BYTES


def are_in_pages(q, k) -> bool:
    """Whether the scales of a latent cache come after the rows of a page, and q has as many columns as values."""
    sizes = q.shape[-1], k.shape[-1]
    return k.dtype is E4M3.torch and sizes == (LATENT_DEPTHS[1], LATENT_PAGE_ROW_BYTES)


def _check_latent(q, k, v) -> None:
    depths = q.shape[-1], v.shape[-1]
    of_values = depths == LATENT_DEPTHS[1:] * 2
    if not (are_in_pages(q, k) or of_values or depths == LATENT_DEPTHS):
        raise ValueError(
            f"q: head_dim {depths[0]} with head_dim_v {depths[1]}; accepted: {LATENT_DEPTHS[0]} with "
            f"{LATENT_DEPTHS[1]}: a row of the cache is {LATENT_DEPTHS[1]} latent columns, then "
            f"{LATENT_DEPTHS[0] - LATENT_DEPTHS[1]} rotary ones; or {LATENT_DEPTHS[1]}, all of them values"
        )
    if k.shape[-2] != 1:
        raise ValueError(
            f"k: {k.shape[-2]} heads, shape {tuple(k.shape)}; accepted: 1, which all query heads share"
        )


def _same_size(name, tensor, what, dim, other_name, other) -> None:
    size, expected = tensor.shape[dim], other.shape[dim]
    if size != expected:
        raise ValueError(
            f"{name}: {what} {size} while {other_name} has {expected}; accepted: equal; the "
            f"shapes are {name} {tuple(tensor.shape)} and {other_name} {tuple(other.shape)}"
        )


# --- out


def check_out(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    expected = (*q.shape[:-1], columns_of(v))
    if tuple(out.shape) != expected:
        raise ValueError(
            f"out: shape {tuple(out.shape)}; accepted: {expected}, that of q with the head_dim of v"
        )
    if out.numel() == 0:
        return
    if overlaps_itself(out):
        raise ValueError(
            f"out: strides {out.stride()} for shape {tuple(out.shape)} put several elements at one "
            "address; accepted: every element in its own place; allocate it with torch.empty"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if may_overlap(out, tensor):
            raise ValueError(
                f"out: shares memory with {name}, which other blocks still read while out is "
                "written; accepted: memory of its own; allocate it with torch.empty_like(q)"
            )


# --- numbers and options


def checked_scale(softmax_scale: object, head_dim: int) -> float:
    """softmax_scale as a float; head_dim**-0.5 for None.

    Not positive is refused: the kernel takes the row maximum before it multiplies by the scale,
    which is the maximum of the products for positive scales only.
    """
    if softmax_scale is None:
        return head_dim**-0.5
    if isinstance(softmax_scale, bool) or not isinstance(softmax_scale, Real):
        remedy = "; read it with .item()" if isinstance(softmax_scale, torch.Tensor) else ""
        raise TypeError(
            f"softmax_scale: a {type(softmax_scale).__name__}; accepted: a Python number or None"
            + remedy
        )
    scale = float(softmax_scale)
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE or math.isnan(scale):
        raise ValueError(
            f"softmax_scale: {scale}; accepted: {SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.0f}; for a negative scale "
            "negate q, for others multiply q by a power of two"
        )
    return scale
