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
from cute_fa4.calls.skipping import checked_factor
from cute_fa4.calls.split_keys.split import check_split
from cute_fa4.compiler import policy
from cute_fa4.dtypes import PLAIN, PLAIN_FLOATS, names_of
from cute_fa4.masks import BoundMask, full, resolve_mask
from cute_fa4.sm100.blueprint.captured import called, joined
from cute_fa4.sm100.blueprint.score_mods import ScoreMod, composed, soft_cap
from cute_fa4.sm100.traced.trace import Traced

BLOCKS = "block_sparse_tensors"
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
    batch_invariant=None,
    latent=False,
    return_max=False,
    scales=None,
    rope=None,
    blocks=None,
    skip_softmax_threshold_scale_factor=None,
    gradients=False,
) -> Options:
    """Check the options of a call whose q is (..., heads_q, head_dim). scales, rope, blocks: what checked_... returned.

    gradients: sinks and aux tensors may want one, which is recorded elsewhere
    """
    if pack_gqa not in (None, True, False):
        raise TypeError(f"pack_gqa: {pack_gqa!r}; accepted: None (chosen), True or False")
    check_split(num_splits, tokens_per_split)
    policy.check_batch_invariant(batch_invariant)
    bound = resolve_mask(causal, window_size, mask)
    functions = {"score_mod": score_mod, "mask_mod": mask_mod}
    mods, aux_tensors = functions_of(q, functions, aux_tensors)
    skip_factor = checked_factor(skip_softmax_threshold_scale_factor, batch_invariant)
    if blocks is not None:
        _check_beside_blocks(bound)
        _check_not_split(BLOCKS, num_splits, tokens_per_split)
        num_splits = 1
    if skip_factor is not None and tokens_per_split is None:
        num_splits = num_splits or 1  # parts skip less: only where they are asked for
    if return_max:
        check_whole_keys(num_splits, tokens_per_split)
        num_splits = 1
    return Options(
        softmax_scale=checked_scale(
            softmax_scale, q.shape[-1] + (0 if rope is None else rope.depth_of_q)
        ),
        mask=bound,
        score_mod=composed(_cap(softcap), mods.get("score_mod")),
        mask_mod=mods.get("mask_mod"),
        aux=checked_aux(aux_tensors, q.device, len(mods) > 0, gradients),
        sink=check_sink(learnable_sink, q, gradients),
        pack_gqa=pack_gqa,
        num_splits=num_splits,
        tokens_per_split=tokens_per_split,
        batch_invariant=batch_invariant,
        latent=latent,
        return_max=return_max,
        scales=scales,
        rope=rope,
        blocks=blocks,
        skip_factor=skip_factor,
    )


def _check_beside_blocks(mask: BoundMask) -> None:
    """Refuse options that do not go with lists of key blocks."""
    if mask != full():
        raise NotImplementedError(
            f"causal, window_size, mask: {mask} with {BLOCKS}; accepted: none of them: list the key blocks "
            "that are visible, and hide keys of partial blocks by mask_mod"
        )


def check_whole_keys(num_splits, tokens_per_split) -> None:
    """Refuse parts of keys for calls that return the largest scores: parts are merged by their log-sum-exp only."""
    _check_not_split("return_max_logits=True", num_splits, tokens_per_split)


def _check_not_split(beside: str, num_splits, tokens_per_split) -> None:
    """Refuse split keys beside an argument of a call."""
    for name, value in {"num_splits": num_splits, "tokens_per_split": tokens_per_split}.items():
        if value not in (None, 0, 1):
            raise NotImplementedError(
                f"{name}: {value} with {beside}; accepted: None: its keys are not split"
            )


def _cap(softcap) -> ScoreMod | None:
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, Real):
        raise TypeError(f"softcap: a {type(softcap).__name__}; accepted: a number or None")
    if not 0 <= float(softcap) < math.inf:
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


def functions_of(q, given: dict, aux_tensors) -> tuple[dict, object]:
    """-> those of score_mod and mask_mod that are given, as what they compute now, and aux_tensors.

    Tensors that the functions capture follow the aux_tensors; those of another dtype or device are refused by name.
    """
    read = ((name, function_of(name, given[name])) for name in ("score_mod", "mask_mod"))
    mods = {name: mod for name, mod in read if mod is not None}
    if all(mod.captured == () for mod in mods.values()):
        return mods, aux_tensors
    _check_list(aux_tensors)
    for name, mod in mods.items():
        for i, (tensor, _) in enumerate(mod.captured):
            if tensor.dtype not in AUX_DTYPES:
                accepted = ", ".join(map(str, AUX_DTYPES))
                raise TypeError(
                    f"{name}: {called(mod, i)}: dtype {tensor.dtype}; accepted: {accepted}"
                )
            if isinstance(q, torch.Tensor):
                check_place(f"{name}: {called(mod, i)}", tensor, q.device, gradients=True)
        of_caller = mod.captured and isinstance(mod.function, Traced)
        has_rows = isinstance(q, torch.Tensor) and q.dim() > 2
        if has_rows and of_caller and mod.check is not None:
            of_sequences = None  # offsets may be on the device
            rows = math.prod(q.shape[:-2])
            mod.check(tuple(aux_tensors or ()), of_sequences, q.shape[-2], rows)
    return joined(mods, tuple(aux_tensors or ()))


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


def _check_list(aux_tensors) -> None:
    if aux_tensors is not None and not isinstance(aux_tensors, (list, tuple)):
        raise TypeError(
            f"aux_tensors: a {type(aux_tensors).__name__}; accepted: a list or tuple of tensors"
        )


def checked_aux(tensors, device, has_functions: bool, gradients: bool) -> tuple:
    if tensors is None:
        return ()
    _check_list(tensors)
    if tensors and not has_functions:
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
        check_place(name, tensor, device, gradients)
    return tuple(tensors)
