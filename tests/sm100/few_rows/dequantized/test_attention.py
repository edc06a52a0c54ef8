"""Queries of 16 bits over caches of 8, few rows: calls against attention in float64 with the bound of 16 bits.

Unused rows of pages, Q and packed tensors are NaN, in the cache 0x7f. Rows of bf16 differ by powers of two, so that
their scales do.
"""

from __future__ import annotations

import random
import re

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import compile_cache, flash_attn_func, masks
from cute_fa4.calls import repeat
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile
from tests import pairwise
from tests.serving.batches import FP8, Batch, assert_agrees, packed_kv, packed_q, paged_kv, run
from tests.serving.test_masks import MASKS
from tests.suite import turns


@pytest.fixture(autouse=True)
def asked(monkeypatch) -> list:
    """The configurations of attention that calls asked for."""
    found, function_for = [], compile_cache.function_for

    def noted(config, executor):
        if isinstance(config, FA4Config):
            found.append(config)
        return function_for(config, executor)

    monkeypatch.setattr("cute_fa4.calls.attention.function_for", noted)
    return found


def cached(batch: Batch, dtype: torch.dtype) -> Batch:
    """The same with keys and values of 8 bits, and queries whose rows differ in size by powers of two."""
    sizes = [
        2.0 ** (torch.arange(q.shape[0] * q.shape[1]) % 5 - 2).view(*q.shape[:2], 1)
        for q in batch.q
    ]
    queries = [q * s.to(q.dtype) for q, s in zip(batch.q, sizes, strict=True)]
    return Batch(queries, *([x.to(dtype) for x in xs] for xs in (batch.k, batch.v)))


OPTIONS = {
    "mask": ("causal", "window or chunked"),
    "page_size": (5, 16),  # rows gathered by fours, boxes; packed keys: below
    "group": (1, 7, 16),  # tiles of 8, padded groups, 16
    "tensors": ((FP8[0], 128, 128), (FP8[1], 80, 16)),  # no padding; odd pieces of K, least V
    "dtype": (torch.bfloat16, torch.float16),
    "queries": (1, 2),
    "parts": (1, 3),
    "sink": (False, True),
}
KEYS = (0, 1, 127, 128, 129, 250, 400)


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "dequantized caches: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    seconds=0.8,
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)
def test_options_together_agree_with_float64(
    mask, page_size, group, tensors, dtype, queries, parts, sink, asked
):
    options, visible = MASKS[mask]
    draw = random.Random(f"{mask} {page_size} {group} {tensors} {dtype} {queries} {parts} {sink}")
    lengths = [queries, draw.randint(0, queries)]
    keys = [draw.choice(KEYS) for _ in lengths]
    of_cache, depth, depth_v = tensors
    batch = Batch.draw(lengths, keys, heads=(group, 1), depth=depth, depth_v=depth_v, dtype=dtype)
    batch = cached(batch, of_cache)
    sinks = torch.randn(group, generator=torch.Generator().manual_seed(1)) if sink else None
    numbers = 0.5 + torch.rand(2, 2, 1, generator=torch.Generator().manual_seed(2))
    scales = dict(zip(("k_descale", "v_descale"), numbers, strict=True))
    out, lse = run(
        packed_q(batch), paged_kv(batch, page_size), scales,
        num_splits=parts, mode="hostile", seed=1, learnable_sink=sinks, **options,
    )  # fmt: skip
    assert_agrees(batch, out, lse, visible=visible, sink=sinks, scales=[None, *numbers])
    [config] = asked
    assert (
        isinstance(config.schedule, DequantizedTile)
        and config.schedule.rows
        == (
            {1: {1: 8, 7: 8, 16: 16}, 2: {1: 8, 7: 32, 16: 32}, 40: {1: 32, 7: 32, 16: 32}}[
                queries
            ][group]
        )
    )


def causal(p, j):
    return j <= p


def test_a_cta_runs_several_work_tiles_some_without_keys():
    """Buffers, slots and the scales of rows turn round with odd numbers of key tiles."""
    batch = Batch.draw([4, 1, 3, 2, 4], [300, 0, 129, 40, 5], heads=(8, 2), depth=128)
    batch = cached(batch, FP8[0])
    for mode, claims in (("hostile", None), ("random", 2)):
        out, lse = run(
            packed_q(batch), packed_kv(batch), causal=True, claims=claims, mode=mode, seed=1
        )
        assert_agrees(batch, out, lse, visible=causal)


def test_parts_in_a_cluster_and_what_a_row_of_nan_spoils(asked):
    """Rows of 2^-100 and 2^13 are exact in their scales; a NaN, an infinity spoil their row alone."""
    batch = cached(Batch.draw([1], [1100], heads=(8, 1), depth=128), FP8[0])
    out, lse = run(packed_q(batch), paged_kv(batch, 16), num_splits=0)
    assert asked[-1].cluster_parts > 1
    assert_agrees(batch, out, lse)
    batch.q[0][0, 1] *= 2.0**-100
    batch.q[0][0, 2, 5] = float("nan")
    batch.q[0][0, 3, 7] = float("inf")
    batch.q[0][0, 4] = 0
    spoilt, _ = run(packed_q(batch), paged_kv(batch, 16), num_splits=0)
    assert spoilt[0, 2:4].isnan().all() and spoilt[0, [1, 4]].isfinite().all()
    assert torch.equal(spoilt[0, 1], spoilt[0, 4])  # scores of nearly nothing: the mean of V
    others = [0, 5, 6, 7]
    assert torch.equal(spoilt[0, others], out[0, others])


def test_equal_queries_of_bf16_and_fp16_have_equal_bits_and_the_variable_quantises(
    asked, monkeypatch
):
    """The scale of a row is a power of two: nothing is rounded that would not be without it."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 1, 8, 64, generator=generator).bfloat16()
    k, v = (torch.randn(2, 300, 1, 64, generator=generator).to(FP8[0]) for _ in "kv")
    (_, wide), (_, half) = (flash_attn_func(x, k, v, return_lse=True) for x in (q, q.half()))
    assert torch.equal(wide, half)
    monkeypatch.setenv("CUTE_FA4_FP8_QUERIES", "quantised")
    repeat.clear()
    _, rounded = flash_attn_func(q, k, v, return_lse=True)
    assert [c.kv_dtype for c in asked] == ["e4m3", "e4m3", None] and asked[
        -1
    ].descales.letters == "Q"
    assert not torch.equal(wide, rounded) and (wide - rounded).abs().max() < 0.05


@pytest.mark.parametrize(
    "rows, dtype, arch", [(32, "bf16", "sm_103a"), pytest.param(16, "fp16", "sm_100a", marks=pytest.mark.sweep)]
)  # fmt: skip
def test_code_has_no_spills_and_dequantizes_two_numbers_an_instruction(rows, dtype, arch):
    """Of a thread: 128 columns of K and 128 keys of V, in the code for even key tiles and in that for odd ones."""
    cfg = FA4Config(
        qkv_dtype=dtype, kv_dtype="e4m3", descales="kv", qk_depth=128, group=8, pack_gqa=True, kv_layout="paged",
        page_size=16, seqused_k=True, write_lse=True, mask=masks.Causal(), arch=arch,
        schedule=DequantizedTile(rows=rows),
    )  # fmt: skip
    ptx, cubin = compile_artifacts(cfg)
    assert not re.search(r"\.local\b", ptx) and nvdisasm.resources(cubin).stack_bytes == 0
    assert ptx.count("cvt.rn.f16x2.e4m3x2") == 2 * (128 + 128) // 2
