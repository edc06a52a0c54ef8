"""context_parallel_attention under torch.autograd: out and lse with a node whose backward pass exchanges messages, too.

The ranks agree in the forward pass on which tensors want gradients, and in the backward pass on which call it is: a
rank that goes backward through another call than the others gets an error, not their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch

from cute_fa4.calls.backward import weights_of_sinks
from cute_fa4.distributed import backward
from cute_fa4.distributed.backends import Queries
from cute_fa4.distributed.groups import Ranks, agree
from cute_fa4.distributed.layouts import LAYOUTS, Work

NAMES = ("q", "k", "v", "learnable_sink")
FUNCTION = "the backward pass of context_parallel_attention"


def wanted(q, k, v, sink) -> list[str]:
    """Names of the tensors whose gradients are to be recorded."""
    tensors = zip(NAMES, (q, k, v, sink), strict=True)
    recorded = torch.is_grad_enabled()
    return [name for name, x in tensors if recorded and x is not None and x.requires_grad]


def check(backend, q, k, v, sink) -> None:
    """NotImplementedError, by name, if a gradient is wanted that is not supported."""
    names = wanted(q, k, v, sink)
    if not names:
        return
    needed = "check_gradients", "add_gradients"
    missing = [n for n in needed if not callable(getattr(backend, n, None))]
    why = ""
    if missing:
        why = (
            f"with backend={type(backend).__name__}, which has no {missing[0]}; accepted: 'cute_fa4', 'sdpa', or an "
            f"object with {' and '.join(needed)}"
        )
    if why:
        raise NotImplementedError(
            f"{names[0]}: requires_grad is True and the backward pass is not supported {why}; or call under "
            f"torch.no_grad() or pass {names[0]}.detach()"
        )
    backend.check_gradients(q, k, v, sink)


@dataclass(frozen=True)
class Asked:
    """A call whose arguments the ranks have agreed on. number: of the calls of the group that have gradients."""

    work: Work
    layout: str
    check: str
    return_lse: bool
    number: int


def differentiable(work: Work, q, k, v, sink, of_call: dict) -> tuple:
    """(out, lse) of a call that check() has passed. of_call: layout, check and return_lse."""
    number = _numbers[work.ranks.group] = _numbers.get(work.ranks.group, 0) + 1
    if work.sink is not None:
        work = replace(work, sink=work.sink.detach())
    return _Differentiable.apply(q, k, v, sink, Asked(work, number=number, **of_call))


_numbers: WeakKeyDictionary = WeakKeyDictionary()


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, asked: Asked):
        kept: list = []
        is_scattered = asked.layout == "all_to_all"
        work = replace(asked.work, kept=kept) if is_scattered else asked.work
        out, lse = LAYOUTS[asked.layout](work, q, k, v)
        results = (None, None) if is_scattered and not ctx.needs_input_grad[3] else (out, lse)
        ctx.save_for_backward(sink, *results, *(kept if is_scattered else (q, k, v)))
        ctx.asked, ctx.heads_kv, ctx.shape = asked, k.shape[-2], (out.shape, lse.shape)
        ctx.set_materialize_grads(False)
        if not asked.return_lse:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        asked, needs = ctx.asked, ctx.needs_input_grad
        sink, out, lse, *kept = ctx.saved_tensors
        _agree(asked, [name for name, need in zip(NAMES, needs, strict=False) if need], kept[0])
        if dout is None:
            dout = kept[0].new_zeros(ctx.shape[0])
        grads: list = [None] * len(NAMES)
        if any(needs[:3]):
            if asked.layout == "all_to_all":
                if dlse is None and asked.return_lse:
                    dlse = dout.new_zeros(ctx.shape[1], dtype=torch.float32)
                grads[:3] = backward.all_to_all(asked.work, kept, dout, dlse, ctx.heads_kv)
            else:
                q, k, v = kept
                layout = backward.ring if asked.layout == "ring" else backward.all_gather
                grads[:3] = layout(asked.work, Queries(q, out, lse, dout, dlse), k, v)
        if needs[3]:
            grads[3] = _of_sink(sink, out, lse, dout, dlse)
        return *grads, None


def _agree(asked: Asked, names: list[str], like: torch.Tensor) -> None:
    ranks: Ranks = asked.work.ranks

    def checked() -> dict:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                "create_graph: True in the backward pass of context_parallel_attention, whose own derivative (double "
                "backward) is not supported; accepted: False"
            )
        return {"gradients": names}

    agree(ranks, FUNCTION, like.device, asked.check, checked, {"number of the call": asked.number})


def _of_sink(sink, out, lse, dout, dlse) -> torch.Tensor:
    """The part of this rank's rows: the sum over them of -exp(sink - lse) delta."""
    delta = (dout.float() * out.float()).sum(-1).mT
    if dlse is not None:
        delta = delta - dlse
    # An lse of -inf: a sink of -inf, of a row that sees no key.
    weights = weights_of_sinks(sink.float()[:, None], lse)
    parts = torch.where(lse == -torch.inf, 0.0, weights * delta)
    parts = parts.sum(-1)
    return -(parts if parts.dim() == 1 else parts.sum(0)).to(sink.dtype)
