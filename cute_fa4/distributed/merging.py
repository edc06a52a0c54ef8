"""merge: combines attention over disjoint keys exactly into attention over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from cute_fa4.calls.operands.tensors import check_is_tensor
from cute_fa4.operators import routes


def merge(
    outs: torch.Tensor | Sequence[torch.Tensor],
    lses: torch.Tensor | Sequence[torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
    empty_lse: float = -math.inf,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) over the keys of all parts, from each part's out and log-sum-exp.

    outs   (parts, batch, seqlen_q, heads, head_dim) or (parts, total_q, heads, head_dim), or a list of parts; float32,
           bf16 or fp16
    lses   (parts, batch, heads, seqlen_q) or (parts, heads, total_q), or a list; float32, natural logarithm
    dtype  dtype of the result; None: that of outs. Sums are float32
    empty_lse  lse of parts without keys: -inf, as in this package, or math.inf, as vLLM, SGLang and
           FlashMLA write it. math.inf accepts both

        L = log(sum of e^L_p)        O = sum of e^(L_p - L) O_p

    A part without keys is not read. If no part has keys, out is 0 and lse -inf for either empty_lse. Without
    empty_lse=math.inf, a part whose lse is +inf, because of a sink, has all the weight. Pass a sink to only one of the
    calls, so that it is counted once. Parts are added in order, so the same parts give the same bits.

    Runs one kernel (sm100/combine): CUDA tensors on the current stream, CPU tensors on the emulator. Raises the
    errors of flash_attn_func.
    """
    outs, lses = stacked("outs", outs), stacked("lses", lses)
    if _has_other_sign(empty_lse):
        lses = lses.masked_fill(lses == math.inf, -math.inf)
    return routes.merged(outs, lses, dtype)


def _has_other_sign(empty_lse) -> bool:
    """Whether parts without keys have lse +inf."""
    if type(empty_lse) is not float or not math.isinf(empty_lse):
        raise ValueError(f"empty_lse: {empty_lse!r}; accepted: -math.inf or math.inf")
    return empty_lse > 0


def stacked(name: str, parts) -> torch.Tensor:
    """Parts as one tensor, with the part as first dimension."""
    if isinstance(parts, torch.Tensor):
        return parts
    if not isinstance(parts, (list, tuple)) or not parts:
        raise TypeError(
            f"{name}: {'no parts' if parts in ([], ()) else f'a {type(parts).__name__}'}; accepted: a tensor with the "
            "parts first, or a list of at least one"
        )
    for number, part in enumerate(parts):
        check_is_tensor(f"{name}[{number}]", part)
    seen = [(part.shape, part.dtype, part.device) for part in parts]
    for number, one in enumerate(seen):
        if one != seen[0]:
            raise ValueError(
                f"{name}[{number}]: {_said(one)} while {name}[0] is {_said(seen[0])}; accepted: all alike"
            )
    return torch.stack(tuple(parts))


def _said(one: tuple) -> str:
    shape, dtype, device = one
    return f"{tuple(shape)} {dtype} on {device}"
