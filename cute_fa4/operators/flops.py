"""Floating-point operations of the operators, as torch.utils.flop_counter.FlopCounterMode counts them.

    2 heads_q m n (head_dim + head_dim_v)       for a sequence of m queries and n keys, summed over the sequences

The convention is that of torch's own attention: two operations for each multiplication and addition of q k^T and p v,
none for the softmax, and masks, windows, key_limit and score functions leave out nothing. So a model has the same count
whichever attention it calls. m and n are the lengths that cu_seqlens, seqused, cache_seqlens and appended rows say;
reading them waits for the device, as it does in torch's formulas. Tensors without data have no lengths to read: every
sequence then counts as one of max_seqlen, or of all rows or pages.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cute_fa4.calls.latent import values_of
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.operands import LENGTHS_OF_QUERIES

COUNTER = "torch.utils.flop_counter"


def register(operators: dict[str, torch._ops.OpOverload]) -> None:
    """Have FlopCounterModes that are made from now on count these operators."""
    if COUNTER in sys.modules:
        _register(sys.modules[COUNTER], operators)
    else:
        sys.meta_path.insert(0, _AfterImport(operators))


def _register(counter, operators: dict[str, torch._ops.OpOverload]) -> None:
    for operator in operators.values():
        counter.register_flop_formula(operator.overloadpacket, get_raw=True)(_formula(operator))


class _AfterImport:
    """A finder that finds nothing itself: it has torch's module register the formulas after its import."""

    def __init__(self, operators: dict[str, torch._ops.OpOverload]):
        self.operators = operators

    def find_spec(self, name, path=None, target=None):
        if name != COUNTER:
            return None
        with contextlib.suppress(ValueError):  # another thread has removed it
            sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_register(module):
            execute(module)
            _register(module, self.operators)

        spec.loader.exec_module = execute_and_register
        return spec


def _formula(operator) -> Callable[..., int]:
    arguments = operator._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}

    def flops(*args, out_val=None, **kwargs) -> int:
        return count(**{**defaults, **dict(zip(names, args, strict=False)), **kwargs})

    return flops


def count(*, q, k=None, v=None, **call) -> int:
    """Operations of a call of an operator, whose arguments have these names."""
    cache, values = call.get("k_cache", k), call.get("v_cache", v)
    if "latent_cache" in call:
        cache, values = call["latent_cache"], values_of(call["latent_cache"])
    queries = _queries(q, call)
    keys = _keys(cache, len(queries), call)
    if "k_cache" in call:
        new = _lengths(call["cu_seqlens_k_new"], None, k.shape[0])
        keys = _sum(keys, new or [k.shape[1]] * len(queries))
    elif call.get("seqused_k_excludes_new"):
        keys = _sum(keys, queries)
    scores = q.shape[-2] * sum(m * n for m, n in zip(queries, keys, strict=True))
    return 2 * scores * (q.shape[-1] + columns_of(values))


def _queries(q, call: dict) -> list[int]:
    """Queries of each sequence."""
    offsets, used = map(call.get, LENGTHS_OF_QUERIES)
    packed = _lengths(offsets, call.get("max_seqlen_q"), q.shape[0])
    rows = [q.shape[1]] * q.shape[0] if packed is None else packed
    return _used(used, rows)


def _keys(k, batch: int, call: dict) -> list[int]:
    """Keys of each sequence, those that are appended left out."""
    table = call.get("page_table")
    used = call.get("cache_seqlens", call.get("seqused_k"))
    leftpad = call.get("cache_leftpad")
    if leftpad is not None and used is not None and _has_data(leftpad) and _has_data(used):
        used = (used - leftpad).clamp(min=0)
    if table is not None:
        page_size = k.shape[1] if call.get("kv_layout", "NHD") == "NHD" else k.shape[2]
        return _used(used, [table.shape[1] * page_size] * batch)
    packed = _lengths(call.get("cu_seqlens_k"), call.get("max_seqlen_k"), k.shape[0])
    return _used(used, [k.shape[1]] * batch if packed is None else packed)


def _lengths(offsets, longest, rows: int) -> list[int] | None:
    """Lengths from (batch + 1,) offsets; without data every sequence is the longest, or has all rows."""
    if offsets is None:
        return None
    if _has_data(offsets):
        return offsets.diff().tolist()
    return [rows if longest is None else longest] * (offsets.shape[0] - 1)


def _used(counts, rows: list[int]) -> list[int]:
    return counts.tolist() if counts is not None and _has_data(counts) else rows


def _has_data(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _sum(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]
