"""torch.vmap over an operator: one more batch dimension, or one call per example where folding would differ.

folded      dense attention without functions of the batch: (examples, batch, ...) -> (examples * batch, ...)
a loop      packed and paged batches, whose offsets and pages are one example's; sinks, aux tensors, lists of key blocks
            and functions of the user, who are told a sequence of one example. Each example writes to its own caches
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch._functorch.pyfunctorch import (
    VmapInterpreter,
    retrieve_current_functorch_interpreter,
)

from cute_fa4.operands import NAMES, SCALES
from cute_fa4.operators.schemas import names_of
from cute_fa4.sm100.blueprint.score_mods import THEN

_unwrap = torch._C._functorch._unwrap_batched
_wrap = torch._C._functorch._add_batch_dim
_THIS_VMAP = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)

# Tensors of dense calls whose first dimension is the batch.
_FOLDED = ("q", "k", "v", "out", "key_limit", "k_rope", "q_rope")

# Functions that see only scores, positions and heads; contents of aux tensors depend on the sequence.
SAME_FOR_ALL_SEQUENCES = ("soft_cap(", "alibi(")


def rule(operator: Callable, call: dict, written: list[str]):
    """The operator on examples; call: its arguments by name; written: the names of those it writes to.

    All examples may have one workspace: no later call reads its contents.
    """
    interpreter = cast(VmapInterpreter, retrieve_current_functorch_interpreter())
    level, examples = interpreter.level(), interpreter.batch_size()
    with torch._C._ExcludeDispatchKeyGuard(
        _THIS_VMAP
    ):  # inside, torch sees the level outside this vmap
        plain, batched = _unwrapped(call, level)
        for name in written:
            if name not in batched and name != "workspace" and plain[name] is not None:
                raise ValueError(
                    f"{name}: written, but one for all {examples} examples of vmap; accepted: one for each, by in_dims"
                )
        if _folds(plain, batched):
            results = _folded(operator, plain, batched, examples)
        else:
            results = _one_by_one(operator, plain, batched, examples)
    if isinstance(results, torch.Tensor):
        return _wrap(results, 0, level)
    return tuple(_wrap(result, 0, level) for result in results)


def _unwrapped(call: dict, level: int) -> tuple[dict, set]:
    """Arguments without vmap's wrapper, examples first, and the names of those that have examples."""
    plain, batched = {}, set()
    for name, value in call.items():
        if isinstance(value, torch.Tensor):
            value, dim = _unwrap(value, level)
            if dim is not None:
                value = value.movedim(dim, 0)
                batched.add(name)
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            pairs = [_unwrap(tensor, level) for tensor in value]
            if any(dim is not None for _, dim in pairs):
                batched.add(name)
                sizes = {tensor.shape[dim] for tensor, dim in pairs if dim is not None}
                (examples,) = sizes
                value = [
                    tensor.expand(examples, *tensor.shape)
                    if dim is None
                    else tensor.movedim(dim, 0)
                    for tensor, dim in pairs
                ]
            else:
                value = [tensor for tensor, _ in pairs]
        plain[name] = value
    return plain, batched


def _folds(call: dict, batched: set) -> bool:
    dense = set(names_of("dense")) >= set(call) - {*names_of("all"), "out", "workspace"}
    parts = [part for name in ("score_mod", "mask_mod") for part in call[name].split(THEN) if part]
    scales = any(call.get(name) is not None for name in (*NAMES[SCALES], "k_rope_descale"))
    return (
        dense
        and not scales
        and batched <= set(_FOLDED)
        and not call["aux_tensors"]
        and call["mask_block_cnt"] is None
        and all(part.startswith(SAME_FOR_ALL_SEQUENCES) for part in parts)
        and ("out" not in call or _is_foldable(call["out"]))
    )


def _is_foldable(out: torch.Tensor) -> bool:
    """Whether examples and batch are one dimension of the memory that is written to."""
    return out.shape[1] == 1 or out.stride(0) == out.stride(1) * out.shape[1]


def _folded(operator, call: dict, batched: set, examples: int):
    folded = dict(call)
    for name in _FOLDED:
        tensor = call.get(name)
        if tensor is None:
            continue
        if name not in batched:
            tensor = tensor.expand(examples, *tensor.shape)
        folded[name] = tensor.flatten(0, 1)
    results = operator(**folded)

    def unfolded(result):
        if result.dim() == 1:  # no log-sum-exp was asked for
            return result.new_empty((examples, 0))
        return result.unflatten(0, (examples, -1))

    if isinstance(results, torch.Tensor):
        return unfolded(results)
    return tuple(unfolded(result) for result in results)


def _one_by_one(operator, call: dict, batched: set, examples: int):
    def of(value, i: int):
        return [v[i] for v in value] if isinstance(value, list) else value[i]

    results = [
        operator(**{n: of(value, i) if n in batched else value for n, value in call.items()})
        for i in range(examples)
    ]
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results)
    return tuple(torch.stack(each) for each in zip(*results, strict=True))
