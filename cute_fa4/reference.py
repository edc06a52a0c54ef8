"""Attention in float64 and attention with the kernel's rounding: the two oracles of the tests.

    attention_float64                the definition, without rounding
    attention_with_kernel_roundings  the same sums with the unavoidable roundings of the kernel
    allowed_error                    the error that a correct kernel may have

The same for gradients: gradients_float64, gradients_with_kernel_roundings, allowed_gradient_errors.

Shapes: q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, Dv), out (B, Sq, Hq, Dv), lse
(B, Hq, Sq). Query head h reads key/value head h // (Hq / Hkv). The causal mask is aligned to the
bottom right, so the last query sees every key: query i sees keys j <= i + Sk - Sq.

    Sq = 2, Sk = 4       Sq = 4, Sk = 2
        k0 k1 k2 k3          k0 k1
    q0   x  x  x  .      q0   .  .      no key: out 0, lse -inf
    q1   x  x  x  x      q1   .  .
                         q2   x  .
                         q3   x  x
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cute_fa4.dtypes import DTYPES, row_of_torch

# Scores held at once by one step of the reference: 2^24 float64 numbers are 128 MiB, and about half a GiB together
# with mask and exponentials.
SCORES_PER_CHUNK = 1 << 24


def attention_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its definition in float64, a chunk of query rows at a time.

    Returns (out, lse), both float64; lse is the natural logarithm of the sum of exponentials.
    Rows that see no key have out 0 and lse -inf. window_size (left, right): query i sees keys from i + Sk - Sq -
    left to i + Sk - Sq + right; a side that is None is open.
    """

    def chunk(s: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.logsumexp(s, dim=-1)
        p = torch.exp(s - finite_or_zero(lse)[..., None])
        return p @ v, lse

    return _by_query_chunks(q, k, v, softmax_scale, causal, window_size, torch.float64, chunk)


def attention_with_kernel_roundings(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    lag_log2: float = 0.0,
    round_output: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with float32 sums and P in the input dtype; round_output also rounds O.

    As in the kernel, P is rounded before it is normalized: P = round(2^(c s - m)), c = scale log2 e. The row sum
    adds the unrounded exponentials in float32, and O is divided by it at the end. m is the row maximum of c s minus
    lag_log2, because the kernel may use an older maximum than the final one. This multiplies P by a common factor.
    If the factor is not a power of two, different bits are rounded away.

    For 8-bit q, k and v, P is e4m3, scaled by 2^LIFT_OF_P_LOG2, and out is bf16.

    Returns (out, lse): out in q.dtype (float32 with round_output=False), lse float32.
    """
    p_dtype, lift, out_dtype = q.dtype, 0.0, q.dtype
    row = row_of_torch(q.dtype)
    if row.is_quantized:
        p_dtype, lift, out_dtype = DTYPES[row.p].torch, LIFT_OF_P_LOG2, DTYPES[row.out].torch

    def chunk(s: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row_max = finite_or_zero(s.amax(dim=-1, keepdim=True))
        lag = lag_log2 + lift
        p = torch.exp2((s - row_max) * math.log2(math.e) + lag)
        row_sum = p.sum(dim=-1, keepdim=True)
        o = (p.to(p_dtype).to(torch.float32) @ v) / torch.where(row_sum == 0, 1.0, row_sum)
        return o, (row_max - lag * math.log(2) + torch.log(row_sum)).squeeze(-1)

    out, lse = _by_query_chunks(q, k, v, softmax_scale, causal, window_size, torch.float32, chunk)
    return (out.to(out_dtype) if round_output else out), lse


@dataclass(frozen=True)
class Tolerance:
    """The largest absolute error that `out` and `lse` of a correct kernel may have."""

    out: float
    lse: float


# Largest relative error of the kernel's 2^x over both ways of computing it: a polynomial of degree 3 on the
# fraction (8.8e-5, tests/sm100/instructions/test_exp2.py) and ex2.approx (2^-22, PTX ISA "ex2"). The logarithm of
# the row sum changes by at most that much.
EXP2_RELATIVE_ERROR = 8.8e-5

# The same for 8-bit P, part of which is computed in f16 (tests/sm100/steps/test_half_powers.py), and for its row
# sum, a tree of five additions in f16.
EXP2_RELATIVE_ERROR_OF_FP8 = 1.7e-2
SUM_RELATIVE_ERROR_OF_FP8 = EXP2_RELATIVE_ERROR_OF_FP8 + 5 * 2.0**-11

# 8-bit P is scaled by 2^8; the largest e4m3 number is 448.
LIFT_OF_P_LOG2 = 8.0

# Below this, an error is float32 noise: sums of order 1 over a few hundred terms.
FLOAT32_NOISE = 1e-5

# Lags of the row maximum modulo 1: a factor of two does not change rounding.
LAGS_LOG2 = (0.0, 0.25, 0.5, 0.75)

# With fewer rows than this, the largest measured error is not a reliable bound: the few weights of a row may happen
# to be exact in bf16.
FEW_ROWS = 32


def allowed_error(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
) -> Tolerance:
    """The error a correct kernel may show on these inputs: twice that of rounding P alone.

    The error of rounding P is measured, not estimated: attention_with_kernel_roundings without the rounding of the
    output, against float64, over LAGS_LOG2. The output must be rounded to q.dtype in any case, so the error of
    rounding the exact output is added once. A larger error is a bug, not noise.

    With fewer than FEW_ROWS rows in total, the analytical bound is used if it is larger: if every weight w of a row
    is off by a relative r, out is off by at most r sum(w |v|) <= r sqrt(sum(w v^2)).

    The LSE is a sum of unrounded exponentials, so its error is that of 2^x (EXP2_RELATIVE_ERROR)
    plus float32 roundings of numbers as large as the largest |lse|.
    """
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    exact, exact_lse = attention_float64(q, k, v, **options)
    of_p = 0.0
    for lag in LAGS_LOG2:
        rounded, _ = attention_with_kernel_roundings(
            q, k, v, **options, lag_log2=lag, round_output=False
        )
        of_p = max(of_p, 2 * max_error(rounded, exact))
    if exact_lse.numel() < FEW_ROWS and exact.numel():
        mean_square, _ = attention_float64(q, k, v.double() ** 2, **options)
        half_ulp = torch.finfo(q.dtype).eps / 2
        of_p = max(of_p, (half_ulp + EXP2_RELATIVE_ERROR) * float(mean_square.max().sqrt()))
    of_output = max_error(exact.to(q.dtype), exact)
    largest_lse = float(finite_or_zero(exact_lse).abs().max()) if exact_lse.numel() else 0.0
    return Tolerance(
        out=of_p + of_output + FLOAT32_NOISE,
        lse=EXP2_RELATIVE_ERROR + FLOAT32_NOISE + 4 * 2.0**-24 * largest_lse,
    )


def max_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest |a - b|; equal infinities differ by 0; a NaN on either side gives infinity."""
    if a.numel() == 0:
        return 0.0
    a, b = a.to(torch.float64), b.to(torch.float64)
    difference = torch.where(a == b, 0.0, (a - b).abs())
    return float(torch.where(difference.isnan(), math.inf, difference).max())


def finite_or_zero(x: torch.Tensor) -> torch.Tensor:
    """x with -inf replaced by 0, so that exp(-inf - x) is 0 and not NaN in rows without keys."""
    return torch.where(torch.isneginf(x), 0.0, x)


def _by_query_chunks(q, k, v, softmax_scale, causal, window_size, dtype, chunk):
    """Run chunk(scores (Hq, rows, Sk), v (Hq, Sk, Dv)) -> (out, lse) for all query rows."""
    batch, seqlen_q, num_q_heads, head_dim = q.shape
    _, seqlen_k, num_kv_heads, head_dim_v = v.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros(batch, seqlen_q, num_q_heads, head_dim_v, dtype=dtype, device=q.device)
    lse = torch.full((batch, num_q_heads, seqlen_q), -math.inf, dtype=dtype, device=q.device)
    if seqlen_k == 0:
        return out, lse
    rows = max(1, SCORES_PER_CHUNK // (num_q_heads * seqlen_k))
    group = num_q_heads // num_kv_heads
    keys = torch.arange(seqlen_k, device=q.device)
    left, right = window_size
    if causal:
        right = 0 if right is None else min(right, 0)
    for b in range(batch):
        kb, vb = (x[b].to(dtype).transpose(0, 1).repeat_interleave(group, dim=0) for x in (k, v))
        for first in range(0, seqlen_q, rows):
            last = min(first + rows, seqlen_q)
            s = q[b, first:last].to(dtype).transpose(0, 1) @ kb.transpose(1, 2) * scale
            positions = torch.arange(first, last, device=q.device)[:, None] + seqlen_k - seqlen_q
            if right is not None:
                s = s.masked_fill(keys > positions + right, -math.inf)
            if left is not None:
                s = s.masked_fill(keys < positions - left, -math.inf)
            o, lse[b, :, first:last] = chunk(s, vb)
            out[b, first:last] = o.transpose(0, 1)
    return out, lse


# --- gradients


def attention_of_functions_float64(q, k, v, *, sink=None, **options) -> tuple:
    """(out, lse) as attention_float64, of all rows at once and with what may change scores.

    sink       (heads_q,), a score of every row whose value is zero
    score_mod  scores (B, Hq, Sq, Sk) -> scores, after the scale
    visible    (B, Hq, Sq, Sk) bool, or what broadcasts to it, in addition to the mask
    """
    s, _ = _scores(q, k, torch.float64, **options)
    every = s
    if sink is not None:
        column = sink.double()[:, None, None].expand(*s.shape[:-1], 1)
        every = torch.cat([s, column], dim=-1)
    lse = torch.logsumexp(every, dim=-1)
    p = torch.exp(s - torch.where(torch.isneginf(lse), 0.0, lse)[..., None])
    group = q.shape[2] // k.shape[2]
    return (p @ _heads_first(v, torch.float64, group)).transpose(1, 2), lse


def gradients_float64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, dlse=None, **options
) -> tuple[torch.Tensor, ...]:
    """(dq, dk, dv) in float64 by their definition, and of sinks where there are any.

    dout: as out; dlse: as lse, or None; options: as attention_float64 and attention_of_functions_float64.

    P = exp(S - lse), dP = dout v^T, dS = P (dP - rowsum(P dP) + dlse) f', dq = scale dS k, dk = scale
    dS^T q, dv = P^T dout, dsink = -sum exp(sink - lse) (rowsum(P dP) - dlse); f' is the derivative of
    score_mod; a row that sees no key has P = 0.
    """
    return _gradients(q, k, v, dout, dlse, None, options)


def gradients_with_kernel_roundings(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, dlse=None, **options
) -> tuple[torch.Tensor, ...]:
    """The same sums in float32, with P, dS and out rounded to the input dtype. Results are not rounded."""
    return _gradients(q, k, v, dout, dlse, q.dtype, options)


def allowed_gradient_errors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, dlse=None, **options
) -> tuple[float, ...]:
    """The largest errors of a correct kernel's gradients: twice those of its unavoidable roundings.

    They are measured as in allowed_error: gradients_with_kernel_roundings against float64, plus once the error of
    rounding the exact gradient. The factor of two covers sums in a different order, which change how P and dS
    round.
    """
    exact = gradients_float64(q, k, v, dout, dlse, **options)
    rounded = gradients_with_kernel_roundings(q, k, v, dout, dlse, **options)
    return _allowed_of(rounded, exact, q.dtype)


def gradients_by_heads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, **options
) -> tuple[tuple[torch.Tensor, ...], tuple[float, ...]]:
    """(gradients_float64, allowed_gradient_errors) of a long call: the scores of one head and sequence at a time.

    options: as attention_float64
    """
    group = q.shape[2] // k.shape[2]
    found = []
    for function, dtype in (
        (gradients_float64, torch.float64),
        (gradients_with_kernel_roundings, torch.float32),
    ):
        sums = tuple(torch.zeros_like(x, dtype=dtype) for x in (q, k, v))
        for b in range(q.shape[0]):
            for head in range(q.shape[2]):
                own, shared = (slice(n, n + 1) for n in (head, head // group))
                of = (b, slice(None), own), *[(b, slice(None), shared)] * 2
                parts = (x[at][None] for x, at in zip((q, k, v), of, strict=True))
                one = function(*parts, dout[b : b + 1, :, own], **options)
                for total, at, part in zip(sums, of, one, strict=True):
                    total[at] += part[0]
        found.append(sums)
    exact, rounded = found
    return exact, _allowed_of(rounded, exact, q.dtype)


def _allowed_of(rounded: tuple, exact: tuple, dtype: torch.dtype) -> tuple[float, ...]:
    return tuple(
        2 * max_error(a, b) + max_error(b.to(dtype), b) + FLOAT32_NOISE
        for a, b in zip(rounded, exact, strict=True)
    )


def _heads_first(x, dtype, group: int = 1):
    """(B, rows, heads, depth) -> (B, heads, rows, depth), each head as often as it has query heads."""
    return x.to(dtype).transpose(1, 2).repeat_interleave(group, dim=1)


def _scores(
    q,
    k,
    dtype,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    score_mod=None,
    visible=None,
) -> tuple:
    """-> (scores (B, Hq, Sq, Sk) with -inf for what is hidden, derivative of score_mod, which is 1 without one)."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    qh, kh = _heads_first(q, dtype), _heads_first(k, dtype, q.shape[2] // k.shape[2])
    s, slope = qh @ kh.transpose(2, 3) * scale, 1.0
    if score_mod is not None:
        with torch.enable_grad():
            before = s.detach().requires_grad_()
            after = score_mod(before)
            (slope,) = torch.autograd.grad(after.sum(), before)
        s = after.detach()
    left, right = window_size
    if causal:
        right = 0 if right is None else min(right, 0)
    keys, queries = (torch.arange(x.shape[1], device=q.device) for x in (k, q))
    ahead = keys - queries[:, None] - k.shape[1] + q.shape[1]
    hidden = torch.zeros(ahead.shape, dtype=torch.bool, device=q.device)
    hidden |= False if left is None else ahead < -left
    hidden |= False if right is None else ahead > right
    if visible is not None:
        hidden = hidden | ~visible
    return s.masked_fill(hidden, -math.inf), slope


def _gradients(q, k, v, dout, dlse, rounded, options) -> tuple:
    """rounded: the dtype of P, dS and out, with float32 sums; None: float64 throughout."""
    dtype = torch.float64 if rounded is None else torch.float32
    out, lse = attention_of_functions_float64(q, k, v, **options)
    sink = options.get("sink")
    scale = options.get("softmax_scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[2] // k.shape[2]

    def round_off(x):
        return x if rounded is None else x.to(rounded).to(dtype)

    qh, doh, oh = (_heads_first(x, dtype) for x in (q, dout, round_off(out)))
    kh, vh = (_heads_first(x, dtype, group) for x in (k, v))
    s, slope = _scores(q, k, dtype, **{n: x for n, x in options.items() if n != "sink"})
    of_rows = torch.where(torch.isneginf(lse), math.inf, lse)[..., None].to(dtype)
    p = torch.exp(s - of_rows)
    delta = (doh * oh).sum(-1, keepdim=True)
    if dlse is not None:
        delta = delta - dlse.to(dtype)[..., None]
    ds = round_off(p * (doh @ vh.transpose(2, 3) - delta) * slope)

    def of_keys(x):
        """(batch, heads_q, keys, depth) -> (batch, keys, heads_kv, depth), summed over groups."""
        return x.unflatten(1, (-1, group)).sum(2).transpose(1, 2)

    dk = of_keys(ds.transpose(2, 3) @ qh) * scale
    dv = of_keys(round_off(p).transpose(2, 3) @ doh)
    found = (ds @ kh * scale).transpose(1, 2), dk, dv
    if sink is None:
        return found
    of_heads = sink.to(dtype)[:, None, None]
    weight = torch.where(torch.isposinf(of_heads), 1.0, torch.exp(of_heads - of_rows))
    return *found, -(weight * delta).sum((0, 2, 3))
