"""Queries of 16 bits over keys and values of 8: quantised before the call, each query and head with a scale of its own.

    q_descale[row] = max |q[row]| / largest e4m3 or e5m2,    q8[row] = round(q[row] / q_descale[row])

A row's largest number keeps all bits that the dtype has, whatever the other rows hold, and the softmax thread that owns
the row multiplies its scores by its scale. q is left with three mantissa bits (e5m2: two), as keys and values are. It
is torch's arithmetic on the tensors of the call, on its stream, without synchronising.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.tensors import check_no_gradient

WIDE = (torch.bfloat16, torch.float16)


def quantised(q: torch.Tensor, k: torch.Tensor, v, q_descale, out) -> tuple:
    """-> (q in the dtype of k, scale of each query and head, out). TypeError for a scale, which q does not have yet.

    Called where q is of WIDE and k of FP8.
    """
    check_no_gradient({"q": q})
    if q_descale is not None:
        raise TypeError(
            f"q_descale: given with q of {q.dtype}, which gets scales of its own; accepted: None, or q of {k.dtype}"
        )
    if out is None and q.dtype is torch.float16 and isinstance(v, torch.Tensor):
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    largest = torch.finfo(k.dtype).max
    wide = q.float()
    scale = wide.abs().amax(-1, keepdim=True) / largest
    scale = torch.where(scale > 0, scale, 1.0)  # a row of zeros, and NaN: q / 1 has it too
    return (wide / scale).clamp(-largest, largest).to(k.dtype), scale, out
