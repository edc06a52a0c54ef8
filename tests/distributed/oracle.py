"""The expected result of all ranks together: attention in float64 over all keys, document by document."""

from __future__ import annotations

import torch

from cute_fa4.distributed import unshard
from cute_fa4.reference import Tolerance, allowed_error, attention_float64, max_error
from tests.distributed import cases

FLOAT32_ERROR = 5e-6  # of sums over a few hundred terms of order one, in float32


def exact(q, k, v, causal=False, window_size=(None, None), cu_seqlens=None, learnable_sink=None):
    """(out, lse) of (batch, rows, heads, head_dim), or of packed rows; padding has out 0."""
    options = dict(causal=causal, window_size=window_size)
    if cu_seqlens is None:
        out, lse = attention_float64(q, k, v, **options)
    else:
        out = torch.zeros(q.shape, dtype=torch.float64)
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
    whole = cases.tensors(0, q_shape, k_shape, dtype)
    expected, expected_lse = exact(*whole, **problem)
    limit = Tolerance(FLOAT32_ERROR, FLOAT32_ERROR)
    if dtype != torch.float32:
        limit = allowed(*whole, **problem)
    assert max_error(out, expected) <= limit.out
    assert max_error(lse, expected_lse) <= limit.lse
