"""The same launch many times, claimed blocks, sequences without rows, and every block exactly once."""

from __future__ import annotations

import math

import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from cute_fa4.readiness.basics import NO_CLAIMS
from cute_fa4.readiness.stage import Context, Stage, error_of, kernels_with, require, same_bits
from cute_fa4.sm100.blueprint.score_mods import InKernel, ScoreMod

LAUNCHES, LAUNCHES_ON_CPU = 10_000, 3


def identical_launches(context: Context) -> dict:
    """One problem, many launches: a difference is a race."""
    launches = context.size(LAUNCHES, LAUNCHES_ON_CPU)
    length, heads = context.size((1000, 16), (200, 1))
    q, k, v = (context.random(1, length, heads, 128, seed=seed) for seed in range(3))
    first, first_lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    error = error_of(first, q, k, v, "the first launch", causal=True)
    wrong = torch.zeros((), dtype=torch.int64, device=context.device)
    for _ in range(launches - 1):
        out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
        differs = (out.view(torch.int16) != first.view(torch.int16)).any()
        wrong += differs | (lse.view(torch.int32) != first_lse.view(torch.int32)).any()
    count = int(wrong)
    require(count == 0, f"{count} of {launches} launches differ from the first one")
    return {"launches": launches, "error": error}


def claims(context: Context) -> dict:
    """More blocks than SMs: with claims, and the same bits as without."""
    batch, length, heads = context.size((8, 1500, 16), (1, 300, 2))
    q, k, v = (context.random(batch, length, heads, 128, seed=seed) for seed in range(3))

    def call():
        return flash_attn_func(q, k, v, causal=True, return_lse=True)

    with kernels_with("off"):
        expected, expected_lse = call()
    with kernels_with("on"):
        for n in range(context.size(1000, 1)):
            out, lse = call()
            require(
                same_bits(out, expected) and same_bits(lse, expected_lse),
                f"launch {n} with claims differs from the launch without",
            )
    return {"blocks": batch * heads * math.ceil(length / 256)}


def packed_with_empty_sequences(context: Context) -> dict:
    """Sequences without queries, without keys, and long sequences in the same batch."""
    q_lengths = context.size((0, 700, 1, 0, 256, 3000, 0), (0, 130, 1, 0))
    k_lengths = context.size((5, 700, 0, 0, 300, 3000, 9), (5, 130, 0, 0))
    q = context.random(sum(q_lengths), 2, 128)
    k, v = (context.random(sum(k_lengths), 1, 128, seed=seed) for seed in (1, 2))
    cu_q, cu_k = (
        context.int32(*[sum(of[:n]) for n in range(len(of) + 1)]) for of in (q_lengths, k_lengths)
    )
    worst = 0.0
    for choice in context.size(("on", "off"), ("on",)):
        with kernels_with(choice):
            out, lse = flash_attn_varlen_func(
                *(q, k, v),
                cu_seqlens_q=cu_q,
                cu_seqlens_k=cu_k,
                max_seqlen_q=max(q_lengths),
                max_seqlen_k=max(k_lengths),
                causal=True,
                return_lse=True,
            )
        begin_q = begin_k = 0
        for n, (queries, keys) in enumerate(zip(q_lengths, k_lengths, strict=True)):
            rows, cols = slice(begin_q, begin_q + queries), slice(begin_k, begin_k + keys)
            begin_q, begin_k = rows.stop, cols.stop
            what = f"claims {choice}, sequence {n} of {queries} queries and {keys} keys"
            if queries and keys:
                o1, q1, k1, v1 = (x[None] for x in (out[rows], q[rows], k[cols], v[cols]))
                error = error_of(o1, q1, k1, v1, what, causal=True)
                worst = max(worst, error)
            elif queries:
                require((out[rows] == 0).all(), f"{what}: the output must be 0")
                require((lse[:, rows] == -math.inf).all(), f"{what}: the LSE must be -inf")
    return {"error": worst, "sequences": len(q_lengths)}


def count_visits(score, batch, head, q_idx, kv_idx, aux):
    """A score function that returns the score unchanged and counts rows at the first key."""
    import cutlass.cute as cute
    from cutlass import Int32

    @cute.jit
    def count(place: cute.Pointer, key: Int32):
        if key == 0:
            cute.arch.atomic_add(place.llvm_ptr, Int32(1))

    counts = aux[0]
    count(counts.iterator + cute.crd2idx((batch, head, q_idx), counts.layout), kv_idx)
    return score


# It writes to memory, unlike traced functions.
COUNT_VISITS = ScoreMod(InKernel(count_visits), "count_visits")


def every_block_once(context: Context) -> dict:
    """Outputs start as NaN, with a counter per row: every block wrote its rows, and none ran twice."""
    batch, heads, blocks = context.size((4, 16, 8), (1, 1, 2))
    length = 256 * blocks  # whole blocks: a row past the end would count for the last one
    keys = 128
    q = context.random(batch, length, heads, 64)
    k, v = (context.random(batch, keys, heads, 64, seed=seed) for seed in (1, 2))
    for choice in ("off", "on"):
        counts = torch.zeros((batch, heads, length), dtype=torch.int32, device=context.device)
        out = torch.full_like(q, math.nan)
        with kernels_with(choice):
            flash_attn_func(q, k, v, out=out, score_mod=COUNT_VISITS, aux_tensors=[counts])
        context.synchronize()
        unwritten = int(out.isnan().any(-1).sum())
        require(
            unwritten == 0, f"claims {choice}: {unwritten} rows of the output were never written"
        )
        wrong = (counts.view(batch, heads, blocks, 256) != 1).any(-1).nonzero().tolist()
        require(
            not wrong,
            f"claims {choice}: {len(wrong)} blocks did not run exactly once; the first, as (batch, head, block): "
            f"{wrong[:4]}",
        )
        error = error_of(out, q, k, v, f"claims {choice}")
    return {"blocks": batch * heads * blocks, "error": error}


STAGES = (
    Stage(
        "identical launches",
        f"do {LAUNCHES} launches of one problem give the same bits?",
        identical_launches,
        "a race: the emulator's checks with another seed, then roles/ and sync/",
        seconds=600,
        environment=NO_CLAIMS,
    ),
    Stage(
        "claims",
        "do CTAs that claim further blocks give the bits of those that end?",
        claims,
        "work/queue.py: cluster launch control",
        seconds=300,
    ),
    Stage(
        "packed with empty sequences",
        "are packed sequences right, also without queries or keys?",
        packed_with_empty_sequences,
        "work/packed_order.py, and maps of tensors without rows",
    ),
    Stage(
        "every block once",
        "does every block run exactly once, with claims and without?",
        every_block_once,
        "work/queue.py: a claim that was lost, or granted twice",
    ),
)
