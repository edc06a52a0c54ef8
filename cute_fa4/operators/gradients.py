"""torch.ops.cute_fa4.flash_attn_backward, and how the attention operators use it: what has a derivative, and what none.

    flash_attn, flash_attn_varlen    q, k or v wants a gradient: out and lse have a node whose backward is the operator
    flash_attn_backward              has no derivative of its own: create_graph=True is refused

A call is differentiable where only q, k, v, lengths of packed sequences, the scale and a mask that is one window are
given, and options that change no result. Everything else is refused by name, as all gradients were.
"""

from __future__ import annotations

import torch

from cute_fa4.calls import backward
from cute_fa4.calls.backward import Attended, Scores
from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.masks import Causal, Full, Window
from cute_fa4.operators.spelling import kind_of
from cute_fa4.sm100.backward.config import MOST_DEPTH

_SCHEMA = (
    "flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, *, Tensor? dlse=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "float softmax_scale, SymInt? left=None, SymInt? right=None) -> (Tensor dq, Tensor dk, Tensor dv)"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_QKV = ("q", "k", "v")
# What a differentiable call may have: it changes no result, or is part of the derivative.
_ACCEPTED = frozenset(
    (*_QKV, "softmax_scale", "mask", "mask_sizes", "num_splits", "tokens_per_split", "pack_gqa")
    + ("return_lse", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "kv_layout")
)
_OFF = (None, "", False)


def wanted(call: dict) -> str | None:
    """Which of q, k and v wants a gradient, where one is recorded."""
    if not torch.is_grad_enabled():
        return None
    return next((name for name in _QKV if name in call and call[name].requires_grad), None)


def check(call: dict) -> None:
    """NotImplementedError for a call, by the names of its operator, that wants a gradient which is not built."""
    name = wanted(call)
    if name is None:
        return
    given = {n: x for n, x in call.items() if n not in _QKV and isinstance(x, torch.Tensor)}
    check_no_gradient(given)
    why = _reason(call)
    if why is not None:
        raise NotImplementedError(
            f"{name}: requires_grad is True and the backward pass is not built {why}; accepted: requires_grad False; "
            f"call under torch.no_grad() or pass {name}.detach()"
        )


def _reason(call: dict) -> str | None:
    """Why a call has no derivative."""
    for name, value in call.items():
        off = not isinstance(value, torch.Tensor) and value in _OFF
        if name not in _ACCEPTED and not off:
            return f"with {name}"
    if (call.get("cu_seqlens_q") is None) != (call.get("cu_seqlens_k") is None):
        return "where only one of cu_seqlens_q and cu_seqlens_k is given"
    q, v = call["q"], call["v"]
    if any(hasattr(call[name], "device_mesh") for name in _QKV):
        return "for DTensors"
    if any(call[name].dtype not in backward.DTYPES for name in _QKV):
        return f"of {q.dtype} and {v.dtype}; accepted dtypes: bfloat16, float16"
    for name in ("q", "v"):
        depth = call[name].shape[-1]
        if depth > MOST_DEPTH:
            return f"for head_dim {depth} of {name}; accepted head dims: up to {MOST_DEPTH}"
    if type(kind_of(call["mask"])) not in (Full, Causal, Window):
        return f"with the mask {call['mask']}; accepted masks: full, causal, window"
    return None


def _window(call: dict) -> dict:
    """left and right of a mask that check() has passed."""
    kind, sizes = kind_of(call["mask"]), list(call["mask_sizes"])
    if type(kind) is Full:
        return dict(left=None, right=None)
    if type(kind) is Causal:
        return dict(left=None, right=0)
    left = sizes.pop(0) if kind.left else None
    return dict(left=left, right=sizes.pop(0) if kind.right else None)


class _Differentiable(torch.autograd.Function):
    """out, and lse where it was asked for, of a call that check() has passed."""

    @staticmethod
    def forward(ctx, q, k, v, attend, call):
        out, lse = attend()
        offsets = call.get("cu_seqlens_q"), call.get("cu_seqlens_k")
        ctx.save_for_backward(q, k, v, out, lse, *offsets)
        ctx.call = _window(call) | dict(softmax_scale=call["softmax_scale"])
        if offsets[0] is not None:
            for name, rows in (("max_seqlen_q", q), ("max_seqlen_k", k)):
                ctx.call[name] = rows.shape[0] if call[name] is None else call[name]
        if ctx.call["softmax_scale"] is None:
            ctx.call["softmax_scale"] = q.shape[-1] ** -0.5
        ctx.set_materialize_grads(False)
        if not call["return_lse"]:
            lse = lse.new_empty(0)
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, out, lse, *offsets = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        named = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), offsets, strict=True))
        grads = flash_attn_backward(dout, q, k, v, out, lse, dlse=dlse, **named, **ctx.call)
        return *grads, None, None


def differentiable(attend, call: dict) -> tuple:
    """(out, lse) with a derivative, of a call that check() has passed. attend: attend() -> (out, lse)."""
    return _Differentiable.apply(call["q"], call["k"], call["v"], attend, call)


# --- the operator


def _run(
    dout,
    q,
    k,
    v,
    out,
    lse,
    *,
    dlse=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    softmax_scale,
    left=None,
    right=None,
):
    for name, rows, longest in (
        ("max_seqlen_q", cu_seqlens_q, max_seqlen_q),
        ("max_seqlen_k", cu_seqlens_k, max_seqlen_k),
    ):
        if rows is not None and longest is None:
            raise ValueError(
                f"{name}: None with offsets; accepted: at least the longest sequence, or the number of rows"
            )
    offsets = cu_seqlens_q, cu_seqlens_k, max_seqlen_q or 0, max_seqlen_k or 0
    tensors = (x.detach().as_subclass(torch.Tensor) for x in (q, k, v, out, lse))
    scores = Scores(softmax_scale, left, right)
    return backward.gradients(Attended(*tensors, *offsets), dout, dlse, scores)


def _fake(dout, q, k, v, out, lse, **options):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _below_autograd(keyset, dout, q, k, v, out, lse, **options):
    """No derivative of the derivative is built."""
    tensors = dict(dout=dout, q=q, k=k, v=v, dlse=options.get("dlse"))
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires_grad is True in the backward pass, and its own derivative (double backward) is not "
                "built; accepted: torch.autograd.grad and Tensor.backward with create_graph=False"
            )
    with torch._C._AutoDispatchBelowAutograd():
        after = keyset & torch._C._after_autograd_keyset
        return flash_attn_backward.redispatch(after, dout, q, k, v, out, lse, **options)


def _define() -> torch.library.Library:
    library = torch.library.Library("cute_fa4", "FRAGMENT")
    try:
        library.define(_SCHEMA, tags=_TAGS)
        library.impl("flash_attn_backward", _run, "CPU")
        library.impl("flash_attn_backward", _run, "CUDA")
        library.impl("flash_attn_backward", _below_autograd, "Autograd", with_keyset=True)
        torch.library.register_fake("cute_fa4::flash_attn_backward", _fake, lib=library)
        return library
    except BaseException:
        library._destroy()  # Ctrl-C: the next import could not define it again
        raise


_library = _define()
flash_attn_backward = torch.ops.cute_fa4.flash_attn_backward.default
