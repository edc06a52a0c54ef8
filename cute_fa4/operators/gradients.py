"""torch.ops.cute_fa4.flash_attn_backward, and how the attention operators use it: which results have a derivative.

    flash_attn, flash_attn_varlen    q, k, v, k_rope, learnable_sink or aux_tensors wants a gradient: out and lse have a
                                     node whose backward is the operators below
    flash_attn_backward              (dq, dk, dv, dsink); in_float32: dq, dk and dv before they are rounded
    flash_attn_backward_out          the same, written to tensors of the caller or added to them; returns dsink
    flash_attn_backward_aux          gradients of aux_tensors[i] for i in wanted

The operators of the backward pass have no derivative: create_graph=True is refused.

Arguments without a derivative are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch.compiler import disable, is_dynamo_compiling

from cute_fa4.calls import backward
from cute_fa4.calls.aux_gradients import gradients_of_aux
from cute_fa4.calls.backward import TENSORS, Attended, Scores
from cute_fa4.calls.block_lists import Lists
from cute_fa4.calls.operands.apart import named_aux
from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.calls.operands.tracing import is_derived, is_transformed
from cute_fa4.operands import BLOCKS, NAMES
from cute_fa4.operators import batching, sharding
from cute_fa4.operators.registration import after_autograd, arguments_of, defined
from cute_fa4.operators.spelling import function_of, mask_of
from cute_fa4.sm100.backward.config import MOST_DEPTH

_ARGUMENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, *, Tensor? dlse=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? key_limit=None, float softmax_scale, "
    "str mask='Full()', SymInt[] mask_sizes=[], Tensor? learnable_sink=None, str score_mod='', str mask_mod='', "
    f"Tensor[]? aux_tensors=None, {', '.join(f'Tensor? {name}=None' for name in NAMES[BLOCKS])}, int[] block_size=[]"
)
_SCHEMA = (
    f"flash_attn_backward({_ARGUMENTS}, bool in_float32=False) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)",
    f"flash_attn_backward_out({_ARGUMENTS}, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, bool accumulate=False) -> "
    "Tensor dsink",
    f"flash_attn_backward_aux({_ARGUMENTS}, int[] wanted) -> Tensor[] daux",
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_QKV = ("q", "k", "v")
_WRITTEN = ("dq", "dk", "dv")
WITH_GRADIENT = (*_QKV, "learnable_sink")
_REST = ("softmax_scale", "mask", "mask_sizes", "score_mod", "mask_mod", "block_size")
_ACCEPTED = backward.ACCEPTED | {*_QKV, *_REST, "return_lse", "kv_layout", "v_block_scale_layout"}
_TENSORS = (*WITH_GRADIENT, *(name for name in TENSORS if name not in WITH_GRADIENT))
_OF_TRANSFORMS = (
    "of an operator inside of a transform of torch.func, such as grad, vjp and vmap of them; accepted: "
    "cute_fa4.flash_attn_func and flash_attn_varlen_func, which call it"
)
_OFF: tuple = (None, "", False, [])


def wanted(call: dict) -> str | None:
    """Which of WITH_GRADIENT wants a gradient, where one is recorded."""
    if not torch.is_grad_enabled():
        return None
    return next((name for name, x in with_gradient(call).items() if x.requires_grad), None)


def with_gradient(call: dict) -> dict[str, torch.Tensor]:
    """The tensors of a call that may have a gradient, by their names in messages."""
    given = {n: call[n] for n in (*WITH_GRADIENT, "k_rope") if call.get(n) is not None}
    return given | named_aux(call.get("aux_tensors"))


def joined(call: dict) -> dict:
    """The same call with the columns of k_rope in k, where both are dense or packed tensors of one dtype.

    Its results have the same bits; the gradient of k_rope is the sum over the heads of k.
    """
    k, k_rope = call["k"], call.get("k_rope")
    others = ("k_rope_page_table", "k_rope_descale", "q_rope", "page_table")
    if k_rope is None or any(call.get(name) is not None for name in others):
        return call
    if k_rope.dim() == k.dim() - 1:
        k_rope = k_rope.unsqueeze(-2)
    if k_rope.dtype != k.dtype or k_rope.shape[:-1] != (*k.shape[:-2], 1):
        return call
    columns = k_rope.expand(*k.shape[:-1], -1)
    return call | {"k": torch.cat((k, columns), dim=-1), "k_rope": None}


def check(call: dict) -> None:
    """Raise NotImplementedError if a call, by the names of its operator, wants an unsupported gradient."""
    name = wanted(call)
    if name is None:
        return
    accepted = with_gradient(call)
    check_no_gradient(
        {n: x for n, x in call.items() if n not in accepted and isinstance(x, torch.Tensor)}
    )
    why = _OF_TRANSFORMS if is_transformed() else _reason(call)
    if why is not None:
        raise NotImplementedError(
            f"{name}: requires_grad is True and the backward pass is not supported {why}; accepted: requires_grad "
            f"False; call under torch.no_grad() or pass {name}.detach()"
        )


def _reason(call: dict) -> str | None:
    """Why a call has no derivative."""
    for name, value in call.items():
        off = not isinstance(value, torch.Tensor) and value in _OFF
        if name not in _ACCEPTED and not off:
            return f"with {name}"
    q, v = call["q"], call["v"]
    if any(call[name].dtype not in backward.DTYPES for name in _QKV):
        return f"of {q.dtype} and {v.dtype}; accepted dtypes: bfloat16, float16"
    too_deep = _too_deep(call)
    if too_deep is not None:
        return too_deep
    mod = function_of("score_mod", call["score_mod"])
    if mod is not None and mod.without_slope:
        return (
            f"with score_mod {mod.without_slope}, which handles values of the compiler (cutlass); accepted functions: "
            "of operators and functions of torch, or score_mods.ScoreMod.of(function, backward=...)"
        )
    return None


def _too_deep(call: dict) -> str | None:
    """Why there is no derivative for the head dims of a call."""
    for name in ("q", "v"):
        depth = call[name].shape[-1]
        if depth > MOST_DEPTH:
            return (
                f"for head_dim {depth} of {name}; accepted head dims of {name}: up to {MOST_DEPTH}"
            )
    return None


class _Differentiable(torch.autograd.Function):
    """(out, lse) of a call that has a derivative.

    forward(attend, call, *tensors): attend(tensors) -> (out, lse); call: the arguments that are no tensors, by name;
    tensors: as _tensors_of returns them. torch.func takes it, too: all that backward does are operators.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(attend, call, *tensors):
        return attend(tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)
        if not ctx.call["return_lse"]:
            ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, dout, dlse):
        *tensors, out, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(out)
        options = {name: x for name, x in ctx.call.items() if name != "return_lse"}
        given = dout, dlse, out, lse, *tensors
        needed = ctx.needs_input_grad[2:]
        grads = [None] * len(tensors)
        if any(needed[: len(WITH_GRADIENT)]):
            found = _once(flash_attn_backward, options, given)
            count = len(found) - (tensors[_TENSORS.index("learnable_sink")] is None)
            grads[:count] = found[:count]
        wanted = [i for i, needs in enumerate(needed[len(_TENSORS) :]) if needs]
        if wanted:
            found = _once(flash_attn_backward_aux, options | {"wanted": wanted}, given)
            for i, gradient in zip(wanted, found, strict=True):
                grads[len(_TENSORS) + i] = gradient
        return None, None, *grads


def _once(operator, options: dict, given: tuple) -> tuple:
    """Gradients by an operator of the backward pass. given: dout, dlse, out, lse, and what _tensors_of returns."""

    def run(dout, dlse, out, lse, *tensors):
        named = _named(tensors)
        qkv = (named.pop(name) for name in _QKV)
        return tuple(operator(dout, *qkv, out, lse, dlse=dlse, **named, **options))

    # torch.func records every backward pass; elsewhere the operator itself refuses to be recorded.
    return _Once.apply(run, *given) if is_derived() else run(*given)


class _Once(torch.autograd.Function):
    """run(*tensors), which torch.func may record, but not differentiate."""

    generate_vmap_rule = True

    @staticmethod
    def forward(run, *tensors):
        return run(*tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept for a second derivative."""

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError(
            "flash_attn_func, flash_attn_varlen_func: a derivative of their derivative, which is not supported; "
            "accepted: one torch.func.grad, vjp or jacrev around a call, and no torch.func.hessian"
        )


def _tensors_of(call: dict) -> list:
    """The tensors of a call with a derivative: q, k, v, a sink, all that have none, aux tensors."""
    return [call.get(name) for name in _TENSORS] + list(call["aux_tensors"] or ())


def _named(tensors) -> dict:
    """The inverse, by name."""
    named = dict(zip(_TENSORS, tensors, strict=False))
    return named | {"aux_tensors": list(tensors[len(_TENSORS) :]) or None}


def differentiable(operator, call: dict) -> tuple:
    """(out, lse) with a derivative, of a call that check() has passed. operator: operator(**call) -> (out, lse)."""
    others = {name: call[name] for name in (*_REST, "return_lse")}
    if others["softmax_scale"] is None:
        others["softmax_scale"] = call["q"].shape[-1] ** -0.5
    for name in _QKV[:2]:
        if call.get(f"cu_seqlens_{name}") is not None:
            longest = call[f"max_seqlen_{name}"]
            others[f"max_seqlen_{name}"] = call[name].shape[0] if longest is None else longest

    def attend(tensors):
        given = {name: x for name, x in _named(tensors).items() if name in call}
        return operator(**(call | given | {"return_lse": True}))

    out, lse = _Differentiable.apply(attend, others, *_tensors_of(call))
    return out, lse if call["return_lse"] else lse.new_empty(0)


def through_transforms(operator, call: dict) -> tuple:
    """operator(**call), and where torch.func takes derivatives, one that it sees."""
    if not is_dynamo_compiling() and is_derived():
        complete = joined(arguments_of(operator.default)((), call))
        if _reason(complete) is None:
            return _derived()(operator, complete)
    return operator(**call)


@cache
def _derived() -> Callable:
    """differentiable() for torch.func: after a break of a graph, a compiler would look into the frames of its levels.

    Made at the first use: torch's compiler takes a second to import.
    """
    return disable(differentiable, reason="torch.func records the call")


# --- the operators


def _run(dout, q, k, v, out, lse, *, dlse=None, in_float32=False, **options):
    attended, scores = _call(q, k, v, out, lse, options)
    sums = backward.float32_zeros(attended) if in_float32 else None
    *grads, dsink = backward.gradients(attended, dout, dlse, scores, sums)
    return *grads, _no_sink(lse) if dsink is None else dsink


def _run_out(dout, q, k, v, out, lse, *, dlse=None, **options):
    attended, scores = _call(q, k, v, out, lse, options)
    written, accumulate = tuple(options[x] for x in _WRITTEN), options.get("accumulate", False)
    read = dict(zip(("dout", *_QKV, "out", "lse"), (dout, q, k, v, out, lse), strict=True))
    read |= {"dlse": dlse, **{x: options.get(x) for x in TENSORS}}
    read |= named_aux(options.get("aux_tensors"))
    backward.check_written(attended, written, accumulate, read)
    if not accumulate:
        for x in written:
            x.zero_()
    dsink = backward.gradients(attended, dout, dlse, scores, written).dsink
    return _no_sink(lse) if dsink is None else dsink


def _run_aux(dout, q, k, v, out, lse, *, wanted, dlse=None, **options):
    attended, scores = _call(q, k, v, out, lse, options)
    return gradients_of_aux(attended, dout, dlse, scores, tuple(wanted))


def _call(q, k, v, out, lse, options):
    """The forward pass that an operator is told about: Attended, Scores. options: its keyword arguments."""
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
        Lists.of_operator(given),
    )
    lengths = (
        *(given["cu_seqlens_q"], given["cu_seqlens_k"]),
        *(given["max_seqlen_q"] or 0, given["max_seqlen_k"] or 0),
        *(given["seqused_q"], given["seqused_k"], given["key_limit"]),
    )
    return Attended(*tensors, *lengths), scores


def _no_sink(lse: torch.Tensor) -> torch.Tensor:
    return lse.new_empty(0)


def _fake(dout, q, k, v, out, lse, *, learnable_sink=None, in_float32=False, **options):
    made = {"memory_format": torch.contiguous_format}
    made |= {"dtype": torch.float32} if in_float32 else {}
    grads = (torch.empty_like(x, **made) for x in (q, k, v))
    return *grads, _no_sink(lse) if learnable_sink is None else torch.empty_like(learnable_sink)


def _fake_out(dout, q, k, v, out, lse, *, learnable_sink=None, **options):
    return _no_sink(lse) if learnable_sink is None else torch.empty_like(learnable_sink)


def _fake_aux(dout, q, k, v, out, lse, *, wanted, aux_tensors, **options):
    tensors = (aux_tensors[i] for i in wanted)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]


def _unrecorded(name: str):
    """The rule of an operator under autograd: the derivative of the derivative is not supported."""

    def below_autograd(keyset, *given, **options):
        tensors = dict(zip(("dout", *_QKV), given, strict=False))
        tensors |= {x: options.get(x) for x in ("dlse", "learnable_sink", *_WRITTEN)}
        tensors |= named_aux(options.get("aux_tensors"))
        for called, tensor in tensors.items():
            if torch.is_grad_enabled() and tensor is not None and tensor.requires_grad:
                raise NotImplementedError(
                    f"{called}: requires_grad is True in the backward pass, and its own derivative (double backward) "
                    "is not supported; accepted: torch.autograd.grad and Tensor.backward with create_graph=False"
                )
        operator = getattr(torch.ops.cute_fa4, name).default
        return after_autograd(operator, keyset, given, options)

    return below_autograd


_RUN: tuple[Callable, ...] = _run, _run_out, _run_aux
_FAKES: tuple[Callable, ...] = _fake, _fake_out, _fake_aux
_libraries = [
    defined(schema, _TAGS, run, fake, below_autograd=_unrecorded(schema.partition("(")[0]))
    for schema, run, fake in zip(_SCHEMA, _RUN, _FAKES, strict=True)
]


def _loop_over_examples(library, name: str) -> None:
    """The rule under torch.vmap."""
    operator = getattr(torch.ops.cute_fa4, name).default
    named = arguments_of(operator)
    library.impl(
        name,
        lambda *args, **options: batching.rule(operator, named(args, options), []),
        "FuncTorchBatched",
    )


for _library, _schema in zip(_libraries, _SCHEMA, strict=True):
    _name = _schema.partition("(")[0]
    sharding.add_rule(getattr(torch.ops.cute_fa4, _name).default, sharding.cuts_of_gradients)
    if "!" not in _schema:  # an example of a batch is no tensor that can be written
        _loop_over_examples(_library, _name)
flash_attn_backward = torch.ops.cute_fa4.flash_attn_backward.default
flash_attn_backward_aux = torch.ops.cute_fa4.flash_attn_backward_aux.default
