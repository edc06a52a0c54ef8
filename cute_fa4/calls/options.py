"""Options of an attention call other than its tensors: scale, mask, score functions, sinks, packing.

causal, window_size and mask are three spellings of one thing; what is given together is seen through all of them:

    causal=True                              masks.causal()
    window_size=(left, right)                masks.window(left, right); None or -1: that side is open
    causal=True, window_size=(left, right)   masks.window(left, 0)
    mask=masks.chunked(64), causal=True      masks.both(masks.causal(), masks.chunked(64))

softcap is score_mods.soft_cap, applied before a score_mod of the user.
"""

from __future__ import annotations

import math
from numbers import Real

import torch

from cute_fa4.calls.operands.tensors import check_is_tensor, check_place, checked_scale
from cute_fa4.calls.request import Options
from cute_fa4.calls.split_keys.split import check_split
from cute_fa4.dtypes import PLAIN, PLAIN_FLOATS, names_of
from cute_fa4.masks import resolve_mask
from cute_fa4.sm100.blueprint.score_mods import ScoreMod, composed, soft_cap

SINK_DTYPES = names_of(PLAIN_FLOATS)
AUX_DTYPES = names_of(PLAIN)  # bytes of a bool: as_read


def resolve(
    q: torch.Tensor,
    *,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    mask=None,
    learnable_sink=None,
    softcap=0.0,
    pack_gqa=None,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    num_splits=1,
    tokens_per_split=None,
    latent=False,
    scales=None,
    rope=None,
    gradients=False,
) -> Options:
    """Check the options of a call whose q is (..., heads_q, head_dim). scales, rope: what checked_... returned.

    gradients: sinks may want one, which is recorded elsewhere
    """
    if pack_gqa not in (None, True, False):
        raise TypeError(f"pack_gqa: {pack_gqa!r}; accepted: None (chosen), True or False")
    check_split(num_splits, tokens_per_split)
    return Options(
        softmax_scale=checked_scale(
            softmax_scale, q.shape[-1] + (0 if rope is None else rope.depth_of_q)
        ),
        mask=resolve_mask(causal, window_size, mask),
        score_mod=composed(_cap(softcap), function_of("score_mod", score_mod)),
        mask_mod=function_of("mask_mod", mask_mod),
        aux=_aux(aux_tensors, q.device, score_mod, mask_mod),
        sink=check_sink(learnable_sink, q, gradients),
        pack_gqa=pack_gqa,
        num_splits=num_splits,
        tokens_per_split=tokens_per_split,
        latent=latent,
        scales=scales,
        rope=rope,
    )


def _cap(softcap) -> ScoreMod | None:
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, Real):
        raise TypeError(f"softcap: a {type(softcap).__name__}; accepted: a number or None")
    if not 0 <= softcap < math.inf:
        raise ValueError(f"softcap: {softcap}; accepted: 0 (off) or a finite number above it")
    return soft_cap(float(softcap)) if softcap else None


def function_of(name: str, function) -> ScoreMod | None:
    """The ScoreMod of the argument score_mod= or mask_mod= (`name`), as the function computes now."""
    try:
        mod = ScoreMod.of(function, name)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error
    if mod is not None and mod.kind not in (None, name):
        raise TypeError(
            f"{name}: {mod.name} is a {mod.kind}: it returns {'a score' if name == 'mask_mod' else 'a comparison'}; "
            f"accepted: a function that returns {'a comparison' if name == 'mask_mod' else 'a score'}"
        )
    return mod


def functions_of(score_mod, mask_mod) -> tuple[ScoreMod | None, ScoreMod | None]:
    """Both as what they compute now, so that a call is recognised by them."""
    return function_of("score_mod", score_mod), function_of("mask_mod", mask_mod)


def check_aux(options: Options, batch: int, heads: int, rows: int) -> None:
    """ValueError for aux tensors that the functions of a call cannot read."""
    for mod in (options.score_mod, options.mask_mod):
        if mod is not None and mod.check is not None:
            mod.check(options.aux, batch, heads, rows)


def check_sink(sink, q: torch.Tensor, gradients: bool = False) -> torch.Tensor | None:
    if sink is None:
        return None
    check_is_tensor("learnable_sink", sink)
    if sink.dtype not in SINK_DTYPES:
        raise TypeError(
            f"learnable_sink: dtype {sink.dtype}; accepted: {', '.join(map(str, SINK_DTYPES))}; "
            "convert with .to(torch.float32)"
        )
    if tuple(sink.shape) != (q.shape[-2],):
        raise ValueError(
            f"learnable_sink: shape {tuple(sink.shape)}; accepted: ({q.shape[-2]},), a logit for "
            "each query head"
        )
    check_place("learnable_sink", sink, q.device, gradients)
    if sink.stride(0) != 1 and sink.shape[0] > 1:
        raise ValueError(
            f"learnable_sink: stride {sink.stride(0)}; accepted: 1; copy with .contiguous()"
        )
    return sink


def _aux(tensors, device, score_mod, mask_mod) -> tuple:
    if tensors is None:
        return ()
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, (list, tuple)):
        raise TypeError(
            f"aux_tensors: a {type(tensors).__name__}; accepted: a list or tuple of tensors"
        )
    if tensors and score_mod is None and mask_mod is None:
        raise ValueError(
            "aux_tensors: given without score_mod or mask_mod, which would read them; accepted: None"
        )
    for i, tensor in enumerate(tensors):
        name = f"aux_tensors[{i}]"
        check_is_tensor(name, tensor)
        if tensor.dtype not in AUX_DTYPES:
            accepted = ", ".join(map(str, AUX_DTYPES))
            raise TypeError(f"{name}: dtype {tensor.dtype}; accepted: {accepted}")
        if tensor.dim() == 0:
            raise ValueError(f"{name}: a scalar; accepted: one dimension or more; use reshape(1)")
        check_place(name, tensor, device)
    return tuple(tensors)
