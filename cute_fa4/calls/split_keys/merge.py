"""The exact merge of partial results: what calls over disjoint keys return becomes what one call over all would have.

    L = log(sum of e^L_p)        O = sum of e^(L_p - L) O_p        with a sink: O / (1 + e^(sink - L))

by the kernel that merges split keys (sm100/combine). Parts are float32 or of the inputs' dtype, sums float32.
"""

from __future__ import annotations

import torch

from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.tensors import check_is_tensor, check_no_gradient
from cute_fa4.calls.options import SINK_DTYPES, check_sink
from cute_fa4.calls.split_keys.split import MAX_PARTIAL_ROWS, MAX_SPLITS
from cute_fa4.compiler import policy
from cute_fa4.dtypes import PLAIN_FLOATS, names_of
from cute_fa4.sm100.combine.config import MOST_COLUMNS, CombineConfig
from cute_fa4.system.devices import target_of

DTYPES = names_of(PLAIN_FLOATS)
_OUT = "(parts, batch, seqlen_q, heads, head_dim) or (parts, total_q, heads, head_dim)"
_LSE = "(parts, batch, heads, seqlen_q) or (parts, heads, total_q)"


def merged(
    outs, lses, dtype: torch.dtype | None = None, sink=None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of stacked parts; dtype: of out, None: that of the parts; sink: (heads,), not in lse."""
    check_parts(outs, lses, dtype, sink)
    dtype = outs.dtype if dtype is None else dtype
    out = torch.empty(outs.shape[1:], dtype=dtype, device=outs.device)
    lse = torch.empty(lses.shape[1:], dtype=torch.float32, device=outs.device)
    merge_into(outs, lses, out, lse, sink)
    return out, lse


def merge_into(outs, lses, out, lse, sink=None) -> None:
    """Write the merge of checked parts to out and lse, which may be the first part."""
    if out.numel() == 0:
        return
    if outs.dim() == 4:  # packed rows count as one sequence: every row of a part is valid
        outs, out, lses, lse = outs[:, None], out[None], lses[:, None], lse[None]
    target = target_of(outs.device)
    config = CombineConfig(
        DTYPES[out.dtype],
        outs.shape[-1],
        write_lse=True,
        sink=sink is not None,
        sink_dtype="f32" if sink is None else SINK_DTYPES[sink.dtype],
        partial_dtype=DTYPES[outs.dtype],
        dependent_launch=policy.dependent_launch() is None,
        arch=target.arch,
    )
    function = function_for(config, target)
    with launching_on(outs.device):
        function(_rows(outs).flatten(0, 1), _dense_last(lses), None, out, lse, None, None, 0, sink)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with strides for 16-byte accesses: contiguous columns, rows at multiples of 16 bytes."""
    multiple = 16 // tensor.element_size()
    aligned = all(stride % multiple == 0 for stride in tensor.stride()[:-1])
    if tensor.stride(-1) == 1 and aligned and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _dense_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()


def check_parts(outs, lses, dtype, sink=None) -> None:
    """Refuse arguments that are not stacks of results, by name."""
    for name, tensor in (("outs", outs), ("lses", lses)):
        check_is_tensor(name, tensor)
    check_no_gradient({"outs": outs, "lses": lses})
    if outs.dim() not in (4, 5):
        raise ValueError(f"outs: shape {tuple(outs.shape)}; accepted: {_OUT}")
    *rows, heads, depth = outs.shape
    expected = (*rows[:-1], heads, rows[-1])
    if tuple(lses.shape) != expected:
        raise ValueError(
            f"lses: shape {tuple(lses.shape)} with outs {tuple(outs.shape)}; accepted: {expected}, {_LSE}"
        )
    if not 1 <= outs.shape[0] <= MAX_SPLITS:
        raise ValueError(f"outs: {outs.shape[0]} parts; accepted: 1 to {MAX_SPLITS}")
    if depth % 4 or not 4 <= depth <= MOST_COLUMNS:
        raise ValueError(
            f"outs: head_dim {depth}; accepted: a multiple of 4 from 4 to {MOST_COLUMNS}"
        )
    names = ", ".join(map(str, DTYPES))
    for name, given in (("outs", outs.dtype), ("dtype", outs.dtype if dtype is None else dtype)):
        if given not in DTYPES:
            raise TypeError(f"{name}: {given}; accepted: {names}")
    if lses.dtype != torch.float32:
        raise TypeError(f"lses: {lses.dtype}; accepted: torch.float32, as the functions return it")
    if lses.device != outs.device:
        raise ValueError(
            f"lses: on {lses.device} while outs is on {outs.device}; accepted: one device"
        )
    if outs.shape[:-1].numel() > MAX_PARTIAL_ROWS:
        raise ValueError(
            f"outs: {outs.shape[:-1].numel()} rows of all parts and heads; accepted: at most {MAX_PARTIAL_ROWS}, "
            "because rows are 32-bit numbers; merge fewer rows at a time"
        )
    check_sink(sink, outs)
