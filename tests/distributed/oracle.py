"""The expected result of all ranks together: attention in float64 over all keys, document by document."""

from __future__ import annotations

import torch

from cute_fa4.distributed import unshard
from cute_fa4.reference import (
    Tolerance,
    allowed_error,
    allowed_gradient_errors,
    attention_float64,
    gradients_float64,
    max_error,
)
from tests.distributed import cases

FLOAT32_ERROR_OF_GRADIENTS = 2e-5  # the same, of terms that are sums over a head dim themselves
FLOAT32_ERROR_OF_SINKS = 1e-4  # sums over all rows
FLOAT32_ERROR = 5e-6  # of sums over a few hundred terms of order one, in float32


def exact(q, k, v, causal=False, window_size=(None, None), cu_seqlens=None, learnable_sink=None):
    """(out, lse) of (batch, rows, heads, head_dim), or of packed rows; padding has out 0."""
    options = dict(causal=causal, window_size=window_size)
    if cu_seqlens is None:
        out, lse = attention_float64(q, k, v, **options)
    else:
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
        lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float64)
        for begin, end in zip(cu_seqlens, cu_seqlens[1:], strict=False):
            rows = (x[None, begin:end] for x in (q, k, v))
            of_document, its_lse = attention_float64(*rows, **options)
            out[begin:end], lse[:, begin:end] = of_document[0], its_lse[0]
    if learnable_sink is not None:
        with_sink = torch.logaddexp(lse, learnable_sink.double()[:, None].expand(lse.shape))
        out = out * torch.exp(lse - with_sink).movedim(-1, -2)[..., None]
        lse = with_sink
    return out, lse


def allowed(q, k, v, causal=False, window_size=(None, None), cu_seqlens=None, learnable_sink=None):
    """The error that the kernel may have; of documents, the largest. A sink makes results smaller."""
    options = dict(causal=causal, window_size=window_size)
    if cu_seqlens is None:
        return allowed_error(q, k, v, **options)
    pairs = zip(cu_seqlens, cu_seqlens[1:], strict=False)
    found = [
        allowed_error(*(x[None, a:b] for x in (q, k, v)), **options) for a, b in pairs if a < b
    ]
    return Tolerance(max(t.out for t in found), max(t.lse for t in found))


def check(results: list, q_shape, k_shape, dtype, options: dict) -> None:
    """Results of cases.attend on all ranks are those of one process with all rows."""
    for result in results:
        assert not hasattr(result, "trace"), result.trace
    order, dim = options.get("order", "zigzag"), len(q_shape) - 3
    out = unshard([r[0] for r in results], order=order, dim=dim)
    lse = unshard([r[1] for r in results], order=order, dim=dim + 1)
    problem = {
        name: options[name]
        for name in ("causal", "window_size", "cu_seqlens", "learnable_sink")
        if name in options
    }
    whole = cases.tensors(0, q_shape, k_shape, dtype, options.get("head_dim_v"))
    expected, expected_lse = exact(*whole, **problem)
    limit = Tolerance(FLOAT32_ERROR, FLOAT32_ERROR)
    if dtype != torch.float32:
        limit = allowed(*whole, **problem)
    assert max_error(out, expected) <= limit.out
    assert max_error(lse, expected_lse) <= limit.lse


def exact_gradients(whole: tuple, cu_seqlens=None, learnable_sink=None, **options) -> list:
    """(dq, dk, dv[, dsink]) in float64, of all ranks together. whole: q, k, v, dout and dlse, as cases has them."""
    if learnable_sink is not None:
        options["sink"] = learnable_sink
    dlse = whole[4]
    if cu_seqlens is None:
        dlse = None if dlse is None else dlse.mT
        return list(gradients_float64(*whole[:4], dlse, **options))
    found = [torch.zeros(x.shape, dtype=torch.float64) for x in whole[:3]]
    if learnable_sink is not None:
        # The log-sum-exp of padding is the sink.
        found.append(torch.zeros(whole[0].shape[1], dtype=torch.float64))
        found[3] += 0.0 if dlse is None else dlse[cu_seqlens[-1] :].double().sum(0)
    for begin, end in documents_of(cu_seqlens):
        rows = [None if x is None else x[None, begin:end] for x in whole]
        dlse = None if rows[4] is None else rows[4].mT
        parts = gradients_float64(*rows[:4], dlse, **options)
        for total, part in zip(found[:3], parts, strict=False):
            total[begin:end] = part[0]
        if learnable_sink is not None:
            found[3] += parts[3]
    return found


def allowed_gradients(whole: tuple, cu_seqlens=None, learnable_sink=None, **options) -> list:
    """The errors that the kernel's gradients may have; of documents, the largest, and of sinks their sum."""
    if learnable_sink is not None:
        options["sink"] = learnable_sink
    found = []
    for begin, end in documents_of(cu_seqlens or [0, whole[0].shape[1]]):
        rows = (
            whole
            if cu_seqlens is None
            else [None if x is None else x[None, begin:end] for x in whole]
        )
        dlse = None if rows[4] is None else rows[4].mT
        found.append(allowed_gradient_errors(*rows[:4], dlse, **options))
    parts = list(zip(*found, strict=True))
    return [max(part) for part in parts[:3]] + [sum(part) for part in parts[3:]]


def documents_of(cu_seqlens) -> list:
    pairs = zip(cu_seqlens, cu_seqlens[1:], strict=False)
    return [(begin, end) for begin, end in pairs if begin < end]


def check_gradients(results: list, q_shape, k_shape, dtype, options: dict, with_lse: bool) -> None:
    """Results of cases.differentiate on all ranks are those of one process with all rows, sinks after a sum."""
    for result in results:
        assert not hasattr(result, "trace"), result.trace
    cut = dict(order=options.get("order", "zigzag"), dim=len(q_shape) - 3)
    found = [unshard([r[i] for r in results], **cut) for i in range(3)]
    if results[0][3] is not None:
        found.append(sum(r[3].double() for r in results))
    problem = {
        name: options[name]
        for name in ("causal", "window_size", "cu_seqlens", "learnable_sink")
        if name in options
    }
    whole = (
        *cases.tensors(0, q_shape, k_shape, dtype, options.get("head_dim_v")),
        *cases.gradients_of_results(q_shape, dtype, with_lse, options.get("head_dim_v")),
    )
    exact = exact_gradients(whole, **problem)
    limits = [FLOAT32_ERROR_OF_GRADIENTS] * 3 + [FLOAT32_ERROR_OF_SINKS]
    if dtype != torch.float32:
        limits = allowed_gradients(whole, **problem)
    for got, expected, limit in zip(found, exact, limits, strict=False):
        assert got.dtype in (dtype, torch.float64)
        assert max_error(got, expected) <= limit
