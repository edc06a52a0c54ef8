"""Skip-softmax: skip_softmax_threshold_scale_factor= and skipped_tiles= of a call (sm100/steps/skipped.py), checked."""

from __future__ import annotations

import math
from numbers import Real

import torch

from cute_fa4.calls.operands.tensors import check_is_tensor, check_place
from cute_fa4.calls.request import Options
from cute_fa4.compiler import policy
from cute_fa4.system.messages import shown

FACTOR, COUNTS = "skip_softmax_threshold_scale_factor", "skipped_tiles"
_OFF = f"; accepted: {FACTOR}=None there"


def checked_factor(factor, batch_invariant) -> float | None:
    """The scale factor of the threshold as a float. batch_invariant: that of the call."""
    if factor is None:
        return None
    if isinstance(factor, bool) or not isinstance(factor, Real):
        raise TypeError(f"{FACTOR}: {shown(factor)}; accepted: a number above 0, or None (off)")
    if not 0 < float(factor) < math.inf:
        raise ValueError(
            f"{FACTOR}: {factor}; accepted: a finite number above 0, which is divided by the keys of a sequence, or "
            "None (off)"
        )
    if policy.batch_invariant(batch_invariant):
        raise NotImplementedError(
            f"{FACTOR}: {factor} with batch_invariant: which keys a row skips depends on the rows beside it{_OFF}"
        )
    return float(factor)


def check_counts(counts, q: torch.Tensor, factor) -> None:
    """The two numbers that a call adds to: tiles that were skipped, and all."""
    if counts is None:
        return
    check_is_tensor(COUNTS, counts)
    if factor is None:
        raise ValueError(f"{COUNTS}: given without {FACTOR}; accepted: both, or None")
    if counts.dtype is not torch.int32 or tuple(counts.shape) != (2,) or counts.stride(0) != 1:
        raise ValueError(
            f"{COUNTS}: dtype {counts.dtype}, shape {tuple(counts.shape)}, stride {counts.stride()}; accepted: a "
            "contiguous int32 tensor of shape (2,)"
        )
    check_place(COUNTS, counts, q.device)


def check_tensors_of(q, k, v, options: Options) -> None:
    """NotImplementedError for tensors whose kernels skip no tile."""
    if options.skip_factor is None:
        return
    why = None
    if q.dtype != k.dtype:
        why = f"with q of {q.dtype} and k of {k.dtype}"
    elif options.scales is not None and (
        options.scales.said.of_keys or options.scales.said.of_blocks
    ):
        why = "with scales of tokens or of blocks"
    elif options.rope is not None:
        why = "with k_rope"
    elif q.shape[-1] > 192 or v.shape[-1] > 128:
        why = f"with head dims {q.shape[-1]} and {v.shape[-1]}, beyond 192 and 128"
    if why is not None:
        raise NotImplementedError(f"{FACTOR}: {options.skip_factor} {why}{_OFF}")
