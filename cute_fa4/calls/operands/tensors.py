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
from numbers import Real

import torch
from torch.compiler import is_dynamo_compiling

from cute_fa4.dtypes import BF16, DTYPES, E4M3, OPERANDS, QUANTIZED, UNQUANTIZED, names_of, torch_of
from cute_fa4.sm100.blueprint.problem import LARGEST_SCALE, SMALLEST_SCALE
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES, depths_of, in_words

DTYPE_NAMES = names_of(OPERANDS)
WIDE = tuple(torch_of(UNQUANTIZED).values())
FP8 = tuple(torch_of(QUANTIZED).values())
OUT_OF = {dtype: DTYPES[DTYPES[name].out].torch for dtype, name in DTYPE_NAMES.items()}  # by q's
QUANTIZED_OUT = E4M3.torch  # of out, with o_scale

# TMA reads and writes units of 16 bytes: base addresses and the strides of every dimension but the
# last are multiples of it (PTX ISA, "Tensor-map").
TMA_BYTES = 16

# A TMA stride has 36 bits counted in units of 16 bytes.
TMA_STRIDE_LIMIT_BYTES = 1 << 40

# Row and key indices are 32-bit in the kernel, and so are their sums and differences: two lengths
# of at most 2^30 cannot overflow either, with room for a tile.
MAX_SEQLEN = 1 << 30

# The x dimension of a launch grid (CUDA C++ Programming Guide, "Compute Capabilities"); the grid
# has one CTA for BM query rows of each head of each sequence, all in x.
MAX_CTAS = (1 << 31) - 1


# A row of a tile in shared memory is made of spans of so many elements of 16 bits; k_rope has the last of them.
ROPE_SPAN, ROPE_SPAN_OF_FP8 = 64, 128  # and of 8 bits, of which k has up to one
ROPE_STEP_OF_FP8 = 16  # of 8 bits in 16 bytes, of which the columns of k are a multiple

SPAN_OF_FP8_IN_WORDS = f"a multiple of {ROPE_STEP_OF_FP8} up to {ROPE_SPAN_OF_FP8}"

# The axes of q, k, v and out, as messages name them.
DENSE = ("batch", "seqlen", "heads", "head_dim")
PACKED = ("total", "heads", "head_dim")
PADDING = {
    "q": "of q and k together; pad both with zeros to the next of them and pass softmax_scale",
    "v": "of v and out; pad v with zeros to the next of them and drop these columns of out",
}
PAGED = ("num_pages", "page_size", "heads", "head_dim")


def check(
    q,
    k,
    v,
    out,
    q_axes=DENSE,
    kv_axes=DENSE,
    one_batch: bool = True,
    latent: bool = False,
    in_rope: tuple[int, int] = (0, 0),
) -> None:
    """Check q, k, v and out against each other and against what the kernel reads.

    one_batch: dense k and v have the sequences of dense q, none else. latent: v is the first columns of k.
    in_rope: columns that k lacks, because they are in k_rope, and that q lacks, because they are in q_rope.
    """
    check_tensors(q, k, v, out)
    axes = {"q": q_axes, "k": kv_axes, "v": kv_axes, "out": q_axes}
    tensors = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    for name, tensor in tensors.items():
        check_rank(name, tensor, axes[name])
    check_shapes(q, k, v, q_axes, kv_axes, one_batch, latent, in_rope)
    for name, tensor in tensors.items():
        check_memory(name, tensor, axes[name])
    if out is not None:
        check_out(out, q, k, v)


def check_tensors(q, k, v, out, gradients: bool = False) -> None:
    """Check for tensors of one device and one dtype that has a kernel, and (unless gradients) require no gradient."""
    tensors = {"q": q, "k": k, "v": v} | ({} if out is None else {"out": out})
    for name, tensor in tensors.items():
        check_is_tensor(name, tensor)
    check_one_device(tensors)
    check_one_dtype(tensors)
    if not gradients or out is not None:
        check_no_gradient(tensors)


# --- are they tensors that belong together


def check_is_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        kind = type(value).__name__
        make = {"list": "tensor", "tuple": "tensor", "ndarray": "from_numpy"}.get(kind)
        remedy = f"; make one with torch.{make}({name})" if make else ""
        if name in ("cu_seqlens_q", "page_table") and isinstance(value, int):
            remedy = "; by position comes what docs/coming_from.md says"
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
            f"{name}: has the negative bit, its memory holds the numbers with the other sign; accepted: a tensor "
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


def check_one_dtype(tensors: dict[str, torch.Tensor]) -> None:
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
            if tensor.dtype not in outputs:
                raise TypeError(
                    f"out: dtype {tensor.dtype} while q is {dtype}; accepted: {', '.join(map(str, outputs))}"
                )
        elif name in "kv" and dtype in WIDE and tensors["k"].dtype in FP8:
            if tensor.dtype != tensors["k"].dtype:
                raise TypeError(
                    f"{name}: dtype {tensor.dtype} while k is {tensors['k'].dtype}; accepted: k and v alike; "
                    f"convert with {name}.to({tensors['k'].dtype})"
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
                f"{name}: requires_grad is True and the backward pass is not built; accepted: False; "
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
    q_axes=DENSE,
    kv_axes=DENSE,
    one_batch: bool = True,
    latent: bool = False,
    in_rope: tuple[int, int] = (0, 0),
) -> None:
    num_q_heads, head_dim = q.shape[-2:]
    num_kv_heads = k.shape[-2]
    if q_axes == kv_axes == DENSE and one_batch:
        _same_size("k", k, "batch", 0, "q", q)
        _same_size("v", v, "batch", 0, "q", q)
    if any(in_rope):
        _check_rope_depths(k.dtype, head_dim, k.shape[-1], *in_rope)
    elif not (latent and are_rows(k)):
        _same_size("k", k, "head_dim", -1, "q", q)
    for dim, axis in enumerate(kv_axes[:-1]):
        _same_size("v", v, axis, dim, "k", k)
    if latent:
        _check_latent(q, k, v)
    else:
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


def _check_rope_depths(dtype, of_q: int, of_k: int, in_rope: int, of_q_apart: int) -> None:
    if not of_k or not in_rope:
        raise ValueError(
            f"k_rope: {in_rope} columns behind {of_k} of k; accepted: some of either; without k_rope, all in k"
        )
    if of_q_apart:
        _check_depths_beside(of_q, of_k, in_rope)
        return
    if of_k + in_rope != of_q:
        raise ValueError(
            f"k_rope: {in_rope} columns behind {of_k} of k while q has {of_q}; accepted: {of_q} together: q has the "
            "columns of k, then those of k_rope"
        )
    if dtype in FP8:
        if not _fits_a_span(of_k) or in_rope > ROPE_SPAN_OF_FP8:
            raise ValueError(
                f"k_rope: {in_rope} columns behind {of_k} of k, of 8 bits; accepted: up to {ROPE_SPAN_OF_FP8} behind "
                f"{SPAN_OF_FP8_IN_WORDS}; pad k with zeros, and q between them, or concatenate k and k_rope"
            )
        return
    if of_k % ROPE_SPAN or in_rope > ROPE_SPAN:
        raise ValueError(
            f"k_rope: {in_rope} columns behind {of_k} of k; accepted: up to {ROPE_SPAN} behind a multiple of "
            f"{ROPE_SPAN}; concatenate k and k_rope"
        )


def _check_depths_beside(of_q: int, of_k: int, in_rope: int) -> None:
    """Check q and k of 8 bits whose other columns have 16 bits, in q_rope and k_rope."""
    if of_q != of_k:
        raise ValueError(
            f"q: {of_q} columns while k has {of_k}, with q_rope; accepted: {of_k}: the others of q are in q_rope, as "
            "those of k in k_rope"
        )
    if not _fits_a_span(of_k) or in_rope > ROPE_SPAN:
        raise ValueError(
            f"k_rope: {in_rope} columns of 16 bits behind {of_k} of 8 of k; accepted: up to {ROPE_SPAN} behind "
            f"{SPAN_OF_FP8_IN_WORDS}; pad k with zeros, and q likewise, or convert all to one dtype and concatenate"
        )


def _fits_a_span(columns: int) -> bool:
    """Whether k of 8 bits may have so many columns before those of k_rope."""
    return columns % ROPE_STEP_OF_FP8 == 0 and columns <= ROPE_SPAN_OF_FP8


def are_rows(k) -> bool:
    """Whether a row of a latent cache includes its scales and rotary columns."""
    return k.dtype is E4M3.torch and k.shape[-1] == LATENT_ROW_BYTES


def _check_latent(q, k, v) -> None:
    depths = q.shape[-1], v.shape[-1]
    if depths != LATENT_DEPTHS:
        raise ValueError(
            f"q: head_dim {depths[0]} with head_dim_v {depths[1]}; accepted: {LATENT_DEPTHS[0]} with "
            f"{LATENT_DEPTHS[1]}: a row of the cache is {LATENT_DEPTHS[1]} latent columns, then "
            f"{LATENT_DEPTHS[0] - LATENT_DEPTHS[1]} rotary ones"
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


# --- memory


def check_memory(name: str, tensor: torch.Tensor, axes: tuple[str, ...] = DENSE) -> None:
    """Refuse memory that no TMA descriptor describes. Accepted: contiguous rows at multiples of 16 bytes.

    The stride of a dimension of size 1 is never used, so it may be anything. A stride of 0 (expand)
    is accepted for q, k and v: every index then reads the same bytes.
    """
    if tensor.numel() == 0:
        return
    shape, strides, itemsize = tensor.shape, tensor.stride(), tensor.element_size()
    if strides[-1] != 1 and shape[-1] > 1:
        raise ValueError(
            f"{name}: strides {strides}, head_dim has stride {strides[-1]}; accepted: 1, the last "
            f"dimension contiguous; copy with {name}.contiguous()"
        )
    for dim, what in enumerate(axes[:-1]):
        stride_bytes = strides[dim] * itemsize
        if shape[dim] == 1:
            continue
        if stride_bytes % TMA_BYTES:
            raise ValueError(
                f"{name}: strides {strides}, {what} has stride {strides[dim]} "
                f"({stride_bytes} bytes); accepted: multiples of {TMA_BYTES // itemsize} elements "
                f"({TMA_BYTES} bytes), which TMA needs; copy with {name}.contiguous()"
            )
        if stride_bytes >= TMA_STRIDE_LIMIT_BYTES:
            raise ValueError(
                f"{name}: strides {strides}, {what} has stride {strides[dim]} "
                f"({stride_bytes} bytes); accepted: less than {TMA_STRIDE_LIMIT_BYTES} bytes, "
                f"the range of a TMA stride; copy with {name}.contiguous()"
            )
    if tensor.device.type != "meta" and tensor.data_ptr() % TMA_BYTES:
        raise ValueError(
            f"{name}: begins at address {tensor.data_ptr():#x}, {tensor.data_ptr() % TMA_BYTES} "
            f"bytes past a multiple of {TMA_BYTES}; accepted: multiples of {TMA_BYTES} bytes, "
            f"which TMA needs; copy with {name}.clone()"
        )


def check_out(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    expected = (*q.shape[:-1], v.shape[-1])
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


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may meet at one address: a stride not larger than what lies inside it."""
    extent = 1
    for stride, size in sorted(
        (s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1
    ):
        if stride < extent:
            return True
        extent = stride * (size - 1) + extent
    return False


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """False only if it is certain that a and b share no byte.

    Certain when their address ranges are disjoint, or when both repeat with a common period and
    occupy disjoint parts of it, as q and out do as slices of one packed (batch, seqlen, 2, heads,
    head_dim).
    """
    if a.numel() == 0 or b.numel() == 0 or "meta" in (a.device.type, b.device.type):
        return False  # tensors of a capabilities query have no address
    (a_first, a_last), (b_first, b_last) = address_range(a), address_range(b)
    if a_last <= b_first or b_last <= a_first:
        return False
    # Every stride of at least `period` is a multiple of it in both tensors; what the smaller
    # strides span must fit in the period, a's part and b's part side by side.
    strides = {
        s * t.element_size()
        for t in (a, b)
        for n, s in zip(t.shape, t.stride(), strict=True)
        if n > 1
    }
    for period in sorted(strides):
        if period == 0 or any(s % period for s in strides if s >= period):
            continue
        a_part = extent_bytes(
            a, [d for d in range(a.dim()) if a.stride(d) * a.element_size() < period]
        )
        b_part = extent_bytes(
            b, [d for d in range(b.dim()) if b.stride(d) * b.element_size() < period]
        )
        gap = (b_first - a_first) % period
        if a_part <= gap and gap + b_part <= period:
            return False
    return True


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first byte, and of the one past the last."""
    first = tensor.data_ptr()
    return first, first + extent_bytes(tensor)


def extent_bytes(tensor: torch.Tensor, dims=None) -> int:
    """Bytes from the first to past the last element, moving along `dims` only; None: along all."""
    shape, strides, extent = tensor.shape, tensor.stride(), 1
    for dim in range(tensor.dim()) if dims is None else dims:
        extent += (shape[dim] - 1) * strides[dim]
    return extent * tensor.element_size()


def largest_extent(tensors: tuple) -> int:
    """The largest extent in bytes, first element to past the last, of tensors not None; 0 for none."""
    return max((extent_bytes(tensor) for tensor in tensors if tensor is not None), default=0)


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


def unbuilt_parameters(*, block_sparse_tensors=None) -> list[str]:
    """One text for each parameter that asks for an unsupported feature; empty: none does."""
    if block_sparse_tensors is not None:
        return ["block_sparse_tensors: block sparsity is not built; accepted: None"]
    return []
