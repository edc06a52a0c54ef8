"""Batches of sequences of any lengths, stored as callers store them, with the answer from the definition.

A batch is drawn once as plain sequences; storage (packed, dense, paged, either page layout) is a second step, so that
two ways to store the same numbers can be compared. What belongs to no sequence is NaN, in pages, in padding and
between sequences; table entries beyond a sequence are a number that is no page.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass

import torch

from cute_fa4 import EmulatorWarning, emulator, flash_attn_varlen_func
from cute_fa4.reference import (
    EXP2_RELATIVE_ERROR,
    EXP2_RELATIVE_ERROR_OF_FP8,
    FLOAT32_NOISE,
    SUM_RELATIVE_ERROR_OF_FP8,
)

CANARY = 7.0  # value of rows of out that must not be written
NO_PAGE = 123_456_789
SPARE_ROWS = 5  # after the last sequence of a packed tensor


@dataclass(frozen=True)
class Batch:
    """queries[b], keys[b]: tensors (length, heads, depth) of sequence b."""

    q: list
    k: list
    v: list

    @staticmethod
    def draw(
        queries, keys, *, heads=(2, 1), depth=64, depth_v=None, dtype=torch.bfloat16, seed=0
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)

        def rows(n, num_heads, depth=depth):
            return torch.randn(n, num_heads, depth, generator=generator).to(dtype)

        heads_q, heads_kv = heads
        return Batch(
            [rows(n, heads_q) for n in queries],
            [rows(n, heads_kv) for n in keys],
            [rows(n, heads_kv, depth_v or depth) for n in keys],
        )

    @property
    def queries(self) -> list[int]:
        return [len(x) for x in self.q]

    @property
    def keys(self) -> list[int]:
        return [len(x) for x in self.k]


# --- storage


def int32(values) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


def offsets(lengths) -> torch.Tensor:
    return int32([0, *itertools.accumulate(lengths)])


def packed(sequences, spare=math.nan) -> torch.Tensor:
    """Packed, with SPARE_ROWS rows that belong to no sequence."""
    extra = sequences[0].new_full((SPARE_ROWS, *sequences[0].shape[1:]), spare)
    return torch.cat([*sequences, extra])


def dense(sequences, length) -> torch.Tensor:
    """(batch, length, heads, depth), NaN after each sequence."""
    out = sequences[0].new_full((len(sequences), length, *sequences[0].shape[1:]), math.nan)
    for row, x in zip(out, sequences, strict=True):
        row[: len(x)] = x
    return out


def packed_q(batch: Batch) -> dict:
    return dict(
        q=packed(batch.q), cu_seqlens_q=offsets(batch.queries), max_seqlen_q=max(batch.queries)
    )


def packed_kv(batch: Batch) -> dict:
    return dict(k=packed(batch.k), v=packed(batch.v), cu_seqlens_k=offsets(batch.keys))


def dense_q(batch: Batch) -> dict:
    return dict(q=dense(batch.q, max(batch.queries)), seqused_q=int32(batch.queries))


def dense_kv(batch: Batch) -> dict:
    return dict(
        k=dense(batch.k, max(batch.keys) + 3),
        v=dense(batch.v, max(batch.keys) + 3),
        seqused_k=int32(batch.keys),
    )


def paged_kv(batch: Batch, page_size: int, layout: str = "NHD", seed: int = 0) -> dict:
    """K and V as slices of one cache (num_pages, 2, ...) if alike, the pages of all sequences shuffled."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-n // page_size) for n in batch.keys]
    num_pages = sum(pages) + 3
    order = torch.randperm(num_pages, generator=generator).tolist()
    (_, heads, depth), depth_v = batch.k[0].shape, batch.v[0].shape[-1]
    inner = (page_size, heads) if layout == "NHD" else (heads, page_size)
    if depth == depth_v:
        caches = batch.k[0].new_full((num_pages, 2, *inner, depth), math.nan).unbind(1)
    else:
        caches = [batch.k[0].new_full((num_pages, *inner, d), math.nan) for d in (depth, depth_v)]
    # Four entries or a multiple, so that rows are aligned for loads of several entries.
    width = max(pages) // 4 * 4 + 4
    table = torch.full((len(pages), width), NO_PAGE, dtype=torch.int32)
    for b, count in enumerate(pages):
        for place in range(count):
            page = table[b, place] = order.pop()
            rows = slice(place * page_size, (place + 1) * page_size)
            for cache, x in zip(caches, (batch.k[b][rows], batch.v[b][rows]), strict=True):
                target = cache[page] if layout == "NHD" else cache[page].transpose(0, 1)
                target[: len(x)] = x
    return dict(
        k=caches[0],
        v=caches[1],
        page_table=table,
        seqused_k=int32(batch.keys),
        kv_layout=layout,
    )


# --- the definition


def storages(batch: Batch, kind, layout: str = "NHD") -> tuple[dict, dict]:
    """Queries, and keys with values: "dense" or "packed" both, or a page size: packed queries."""
    if kind == "dense":
        return dense_q(batch), dense_kv(batch)
    return packed_q(batch), packed_kv(batch) if kind == "packed" else paged_kv(batch, kind, layout)


def positions(m: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(m, 1) positions of the queries and (1, n) of the keys."""
    return torch.arange(m)[:, None] + n - m, torch.arange(n)[None]


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
HALF_ULP_OF_P = 2.0**-4  # of e4m3
LOST_BELOW = (
    2.0**-18
)  # of the largest: half of e4m3's smallest number is 2^-10, and a row has a P of at least 2^8


SUMMED_DEPTH = 128  # of V, where the product with V may add P up


def out_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.bfloat16 if q.dtype in FP8 else q.dtype


def attention(
    q,
    k,
    v,
    *,
    visible=None,
    score_mod=None,
    sink=None,
    softcap=0.0,
    scale=None,
    scales=None,
    score_error=0.0,
):
    """-> out (m, heads, depth), lse (heads, m), largest error of a correct kernel (m, heads, depth). Float64.

    visible    (m, n) or (heads, m, n) booleans; score_mod: of scaled scores (heads, m, n)
    scales     of 8-bit q, k and v: (heads_kv,) each, or of tokens (n, heads_kv), of q (m, heads), or of blocks of q and
               k (..., depth / 32) of e8m0; or None
    score_error  of each score, where a function of it is approximate: a weight is off by twice that, relative

    The bound: rounding P to the input dtype and the kernel's 2^x move each weight by at most r, relative, and so out
    by at most r sum(w |v|); the row sum moves by the error of 2^x; out is rounded once more. P of eight bits also loses
    up to LOST_BELOW of the largest weight in each small one. Where the product with V adds P up, errors of weights
    count times the distance of V's row from out, here the sum of both, and half of what may be lost may be wrong in
    the sum.
    """
    half_ulp = torch.finfo(out_dtype(q)).eps / 2
    of_p = HALF_ULP_OF_P if q.dtype in FP8 else half_ulp
    q_is_fp8 = q.dtype in FP8
    lost = LOST_BELOW if q_is_fp8 else 0.0
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    for_q, for_k, for_v = (
        torch.ones(len(k), 1, 1) if s is None else of_elements(s) for s in scales or [None] * 3
    )
    of_lost = v.abs() * unit_of(for_v)
    q = q * for_q.repeat_interleave(group if len(for_q) == len(k) else 1, 0)
    k, v, of_lost = (
        (x * f).repeat_interleave(group, 0) for x, f in ((k, for_k), (v, for_v), (of_lost, 1))
    )
    s = q @ k.transpose(1, 2) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if score_mod is not None:
        s = score_mod(s)
    if visible is not None:
        s = s.masked_fill(~visible, -math.inf)
    with_sink = s
    if sink is not None:
        column = sink.double()[:, None, None].expand(*s.shape[:2], 1)
        with_sink = torch.cat([s, column], dim=2)
    lse = with_sink.logsumexp(-1) if with_sink.shape[2] else torch.full(s.shape[:2], -math.inf)
    w = torch.exp(s - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    out = w @ v
    r = of_p + 2 * EXP2_RELATIVE_ERROR
    if q_is_fp8:
        r = (
            of_p * (1 + EXP2_RELATIVE_ERROR_OF_FP8)
            + EXP2_RELATIVE_ERROR_OF_FP8
            + SUM_RELATIVE_ERROR_OF_FP8
        )
    allowed = (
        (r + math.expm1(2 * score_error)) * (w @ v.abs()) + half_ulp * out.abs() + FLOAT32_NOISE
    )
    if lost and w.shape[-1]:
        largest = torch.exp(with_sink.amax(-1) - torch.where(lse == -math.inf, 0.0, lse))
        largest = torch.where(lse == math.inf, 1.0, largest)
        seen = (w > 0).double()
        small = lost * largest[..., None]
        allowed = allowed + small * (seen @ of_lost)
        if q_is_fp8 and v.shape[-1] == SUMMED_DEPTH:
            e = of_p * (1 + EXP2_RELATIVE_ERROR_OF_FP8) + EXP2_RELATIVE_ERROR_OF_FP8
            either = e * (w @ v.abs() + out.abs()) + small * (seen @ of_lost)
            either = either + 1.5 * small * seen.sum(-1, keepdim=True) * out.abs()
            of_codes = either / (1 - e) + half_ulp * out.abs() + FLOAT32_NOISE
            allowed = torch.maximum(allowed, of_codes)
    return out.transpose(0, 1), lse, allowed.transpose(0, 1)


def of_elements(scales: torch.Tensor) -> torch.Tensor:
    """-> (heads, rows or 1, depth or 1)."""
    if scales.dtype is torch.float8_e8m0fnu:
        return scales.float().double().transpose(0, 1).repeat_interleave(32, -1)
    return scales.double().movedim(-1, 0).view(scales.shape[-1], -1, 1)


def unit_of(scales: torch.Tensor) -> torch.Tensor:
    """What P is in units of: a scale of all keys, or the power of two above those of each."""
    if scales.shape[1] < 2:
        return scales
    return 2.0 ** scales.abs().amax(1, keepdim=True).clamp(min=2.0**-126).log2().ceil()


LSE_ERROR = EXP2_RELATIVE_ERROR + 3 * FLOAT32_NOISE
LSE_ERROR_OF_FP8 = SUM_RELATIVE_ERROR_OF_FP8 + 3 * FLOAT32_NOISE


CHECKS = ("ptx", "phase_passed_twice")


def run(*storages: dict, mode="in_order", seed=0, claims=None, checks=CHECKS, **options):
    """flash_attn_varlen_func with an out of canaries -> (out, lse)."""
    call = {name: value for storage in storages for name, value in storage.items()}
    v = call["v"] if "v" in call else options["v"]
    shape = (*call["q"].shape[:-1], v.shape[-1] * (1 + (v.dtype is torch.uint8)))  # of 4 bits
    out = call["q"].new_full(shape, CANARY, dtype=out_dtype(call["q"]))
    checked = emulator.use(mode=mode, seed=seed, claims=claims, checks=checks)
    with warnings.catch_warnings(), checked:
        warnings.simplefilter("ignore", EmulatorWarning)
        returned, lse = flash_attn_varlen_func(**call, **options, out=out, return_lse=True)
    assert returned is out
    if out.dim() == 3:
        lse[:, int(call["cu_seqlens_q"][-1]) :] = CANARY  # never written, so never compared
    return out, lse


def split(batch: Batch, out: torch.Tensor, lse: torch.Tensor):
    """[(out, lse) of each sequence]; every other row of out must still be a canary."""
    parts, untouched = [], torch.ones(out.shape[:-2], dtype=torch.bool)
    for b, (first, m) in enumerate(
        zip(offsets(batch.queries).tolist(), batch.queries, strict=False)
    ):
        if out.dim() == 3:
            at, lse_at = (slice(first, first + m),), (slice(None), slice(first, first + m))
        else:
            at, lse_at = (b, slice(0, m)), (b, slice(None), slice(0, m))
        parts.append((out[at], lse[lse_at]))
        untouched[at] = False
    assert (out[untouched] == CANARY).all(), "a row that belongs to no sequence was written"
    return parts


def assert_agrees(
    batch: Batch, out, lse, visible=None, score_mod=None, key_limit=None, scales=None, **options
):
    """visible(p, j) of positions (m, 1) and (1, n), of all heads or by head; score_mod(s, b). options: of attention.

    scales: of q, k and v, (batch, heads_kv) each, a list of those of each sequence's tokens, or None
    """
    for b, (o, got_lse) in enumerate(split(batch, out, lse)):
        m, n = batch.queries[b], batch.keys[b]
        p, j = positions(m, n)
        seen = torch.ones(m, n, dtype=torch.bool) if visible is None else visible(p, j)
        seen = seen.expand(*seen.shape[:-2], m, n)
        if key_limit is not None:
            seen = seen & (j < int(key_limit[b]))
        mod = None if score_mod is None else (lambda s, b=b: score_mod(s, b))
        exact, exact_lse, allowed = attention(
            batch.q[b],
            batch.k[b],
            batch.v[b],
            visible=seen,
            score_mod=mod,
            scales=scales and [None if s is None else s[b] for s in scales],
            **options,
        )
        none = exact_lse.isinf()
        assert (got_lse[none] == exact_lse[none]).all(), f"sequence {b}: LSE of rows without weight"
        assert (o.transpose(0, 1)[none] == 0).all(), f"sequence {b}: out of rows without weight"
        error = (got_lse.double() - exact_lse)[~none].abs()
        of_lse = LSE_ERROR_OF_FP8 if batch.q[b].dtype in FP8 else LSE_ERROR
        of_lse += options.get("score_error", 0.0)
        assert (error <= of_lse).all(), f"sequence {b}: LSE off by {error.max():.2e}"
        excess = (o.double() - exact).abs() - allowed
        assert (excess <= 0).all(), (
            f"sequence {b} (m={m}, n={n}): out off by {(o.double() - exact).abs().max():.2e}, "
            f"{int((~(excess <= 0)).sum())} of {excess.numel()} values beyond the bound"
        )
