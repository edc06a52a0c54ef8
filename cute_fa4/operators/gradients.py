"""torch.ops.cute_fa4.flash_attn_backward, and how the attention operators use it: which results have a derivative.

    flash_attn, flash_attn_varlen    q, k, v or learnable_sink wants a gradient: out and lse have a node whose
                                     backward is the operator
    flash_attn_backward              has no derivative: create_graph=True is refused

Arguments without a derivative are refused by name.
"""

from __future__ import annotations

import torch

from cute_fa4.calls import backward
from cute_fa4.calls.backward import TENSORS, Attended, Scores
from cute_fa4.calls.operands.apart import named_aux
from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.calls.operands.tracing import is_transformed
from cute_fa4.operators.registration import defined
from cute_fa4.operators.spelling import function_of, mask_of
from cute_fa4.sm100.backward.config import MOST_DEPTH

_SCHEMA = (
    "flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, *, Tensor? dlse=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? key_limit=None, float softmax_scale, "
    "str mask='Full()', SymInt[] mask_sizes=[], Tensor? learnable_sink=None, str score_mod='', str mask_mod='', "
    "Tensor[]? aux_tensors=None) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_QKV = ("q", "k", "v")
WITH_GRADIENT = (*_QKV, "learnable_sink")
_REST = ("softmax_scale", "mask", "mask_sizes", "score_mod", "mask_mod")
_ACCEPTED = backward.ACCEPTED | {*_QKV, *_REST, "return_lse", "kv_layout"}
_OFF = (None, "", False)


def wanted(call: dict) -> str | None:
    """Which of WITH_GRADIENT wants a gradient, where one is recorded."""
    if not torch.is_grad_enabled():
        return None
    given = (name for name in WITH_GRADIENT if call.get(name) is not None)
    return next((name for name in given if call[name].requires_grad), None)


def check(call: dict) -> None:
    """Raise NotImplementedError if a call, by the names of its operator, wants an unsupported gradient."""
    name = wanted(call)
    if name is None:
        return
    given = call | named_aux(call.get("aux_tensors"))
    given = {
        n: x for n, x in given.items() if n not in WITH_GRADIENT and isinstance(x, torch.Tensor)
    }
    check_no_gradient(given)
    why = _reason(call)
    if why is not None:
        raise NotImplementedError(
            f"{name}: requires_grad is True and the backward pass is not built {why}; accepted: requires_grad False; "
            f"call under torch.no_grad() or pass {name}.detach()"
        )


def _reason(call: dict) -> str | None:
    """Why a call has no derivative."""
    if is_transformed():
        return (
            "inside of a transform of torch.func, such as grad, vjp and vmap of them; accepted for derivatives: "
            "torch.autograd.grad and Tensor.backward"
        )
    for name, value in call.items():
        off = not isinstance(value, torch.Tensor) and value in _OFF
        if name not in _ACCEPTED and not off:
            return f"with {name}"
    q, v = call["q"], call["v"]
    if any(hasattr(call[name], "device_mesh") for name in _QKV):
        return "for DTensors"
    if any(call[name].dtype not in backward.DTYPES for name in _QKV):
        return f"of {q.dtype} and {v.dtype}; accepted dtypes: bfloat16, float16"
    for name in ("q", "v"):
        depth = call[name].shape[-1]
        if depth > MOST_DEPTH:
            return f"for head_dim {depth} of {name}; accepted head dims: up to {MOST_DEPTH}"
    mod = function_of("score_mod", call["score_mod"])
    if mod is not None and mod.without_slope:
        return (
            f"with score_mod {mod.without_slope}, which handles values of the compiler (cutlass); accepted functions: "
            "of operators and functions of torch"
        )
    return None


class _Differentiable(torch.autograd.Function):
    """out, and lse where it was asked for, of a call that check() has passed."""

    @staticmethod
    def forward(ctx, q, k, v, sink, attend, call):
        out, lse = attend()
        tensors = (call.get(name) for name in TENSORS)
        ctx.save_for_backward(q, k, v, out, lse, *tensors, *(call["aux_tensors"] or ()))
        ctx.call = {name: call[name] for name in _REST}
        for name, rows in (("q", q), ("k", k)):
            if call.get(f"cu_seqlens_{name}") is not None:
                longest = call[f"max_seqlen_{name}"]
                ctx.call[f"max_seqlen_{name}"] = rows.shape[0] if longest is None else longest
        if ctx.call["softmax_scale"] is None:
            ctx.call["softmax_scale"] = q.shape[-1] ** -0.5
        ctx.set_materialize_grads(False)
        if not call["return_lse"]:
            lse = lse.new_empty(0)
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, out, lse, *rest = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        named = dict(zip(TENSORS, rest, strict=False))
        named["aux_tensors"] = rest[len(TENSORS) :] or None
        *grads, dsink = flash_attn_backward(dout, q, k, v, out, lse, dlse=dlse, **named, **ctx.call)
        return *grads, None if named["learnable_sink"] is None else dsink, None, None


def differentiable(attend, call: dict) -> tuple:
    """(out, lse) with a derivative, of a call that check() has passed. attend: attend() -> (out, lse)."""
    of_call = (call.get(name) for name in WITH_GRADIENT)
    return _Differentiable.apply(*of_call, attend, call)


# --- the operator


def _run(dout, q, k, v, out, lse, *, dlse=None, **options):
    given = dict.fromkeys((*TENSORS, "aux_tensors", "max_seqlen_q", "max_seqlen_k")) | options
    for name in ("q", "k"):
        if given[f"cu_seqlens_{name}"] is not None and given[f"max_seqlen_{name}"] is None:
            raise ValueError(
                f"max_seqlen_{name}: None with offsets; accepted: at least the longest sequence, or the number of rows"
            )
    tensors = (x.detach().as_subclass(torch.Tensor) for x in (q, k, v, out, lse))
    scores = Scores(
        given["softmax_scale"],
        mask_of(given.get("mask", "Full()"), tuple(given.get("mask_sizes", ()))),
        given["learnable_sink"],
        function_of("score_mod", given.get("score_mod", "")),
        function_of("mask_mod", given.get("mask_mod", "")),
        tuple(given["aux_tensors"] or ()),
    )
    attended = Attended(
        *tensors,
        *(given["cu_seqlens_q"], given["cu_seqlens_k"]),
        *(given["max_seqlen_q"] or 0, given["max_seqlen_k"] or 0),
        *(given["seqused_q"], given["seqused_k"], given["key_limit"]),
    )
    *grads, dsink = backward.gradients(attended, dout, dlse, scores)
    return *grads, _no_sink(lse) if dsink is None else dsink


def _no_sink(lse: torch.Tensor) -> torch.Tensor:
    return lse.new_empty(0)


def _fake(dout, q, k, v, out, lse, *, learnable_sink=None, **options):
    grads = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return *grads, _no_sink(lse) if learnable_sink is None else torch.empty_like(learnable_sink)


def _below_autograd(keyset, dout, q, k, v, out, lse, **options):
    """The derivative of the derivative is not supported."""
    tensors = dict(dout=dout, q=q, k=k, v=v)
    tensors |= {name: options.get(name) for name in ("dlse", "learnable_sink")}
    for name, tensor in tensors.items():
        if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires_grad is True in the backward pass, and its own derivative (double backward) is not "
                "built; accepted: torch.autograd.grad and Tensor.backward with create_graph=False"
            )
    with torch._C._AutoDispatchBelowAutograd():
        after = keyset & torch._C._after_autograd_keyset
        return flash_attn_backward.redispatch(after, dout, q, k, v, out, lse, **options)


_library = defined(_SCHEMA, _TAGS, _run, _below_autograd, _fake)
flash_attn_backward = torch.ops.cute_fa4.flash_attn_backward.default
