"""Few query rows with swapped operands: calls against attention in float64, options in pairs, and laws between calls.

A batch has queries of 0 to 3 tokens, so that a tile has unused rows; unused rows of pages, Q and packed tensors are
NaN. Groups of 7, 8 and 16 with one to three queries make tiles of 8, 16, 32 and 64 rows, no group tiles of 8. The heads
of a group of 7 are padded to 8 rows. 8-bit tensors have scales.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import compile_cache, masks
from cute_fa4.calls import repeat
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.sm100.choose import which_kernel
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.few_rows.tiles import padded_heads
from tests import pairwise
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)
from tests.serving.test_masks import MASKS
from tests.suite import turns


def heights(monkeypatch, *accepted):
    """What calls may choose from."""

    def choice_of(**fields):
        call = which_kernel.Call(**fields)
        pack = call.group > 1 and call.pack_gqa is not False
        needed = call.seqlen_q * (padded_heads(call.group) if pack else 1)
        rows = next((height for height in accepted if needed <= height), None)
        if call.may_swap and rows is not None:
            return which_kernel.choice(replace(call, rows=rows, pack_gqa=pack))
        return which_kernel.choice(replace(call, swaps=False))

    monkeypatch.setattr("cute_fa4.calls.asked.choice_of", choice_of)


@pytest.fixture(autouse=True)
def every_height(monkeypatch):
    """Calls ask for tiles of 64 rows, too; what they asked for is in the returned list."""
    asked, function_for = [], compile_cache.function_for
    heights(monkeypatch, 8, 16, 32, 64)

    def noted(config, executor):
        asked.append(config)
        return function_for(config, executor)

    monkeypatch.setattr("cute_fa4.calls.attention.function_for", noted)
    return asked


def rows_of(asked) -> set:
    """Tile heights of all earlier calls; every call used this family."""
    schedules = [config.schedule for config in asked if isinstance(config, FA4Config)]
    assert all(isinstance(schedule, SwappedTile) for schedule in schedules)
    return {schedule.rows for schedule in schedules}


OPTIONS = {
    "mask": ("full", "causal", "window causal", "window or chunked"),
    "page_size": (0, 5, 8, 128),  # no pages, rows gathered by fours, pages that come whole, a tile
    "group": (1, 7, 8, 16),
    "head_dim": (64, 80, 128),  # 64 lanes of depth, padded lanes, all lanes
    "queries": (1, 3),
    "parts": (1, 3),
    "dtype": (torch.bfloat16, torch.float16, *FP8),
    "sink": (False, True),
    "softcap": (0.0, 3.0),
    "mode": ("in_order", "hostile"),
}
# What plain pytest pairs. Pages of 8, groups of 8 and windows of the past go the ways of pages of 128, groups of 16 and
# windows or chunks; e5m2 and e4m3 differ in a field of a descriptor, of which test_fp8.py has both.
QUICK = {
    "mask": ("full", "causal", "window or chunked"),
    "page_size": (0, 5, 128),
    "group": (1, 7, 16),
    "dtype": (torch.bfloat16, torch.float16, FP8[0]),
}
# A sequence is empty, or ends just before or after one tile, or just after two.
KEYS = [*range(0, 12), *range(124, 133), *range(252, 262), 400]


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "swapped operands: options of a call",
    OPTIONS,
    kernel=tuple(set(OPTIONS) - {"mode"}),
    commits=turns.OF_CASES,
    quick=QUICK,
    seconds=0.6,
    ids=lambda value: str(value).removeprefix("torch.").replace(" ", "_"),
)
def test_options_together_agree_with_float64(
    mask, page_size, group, head_dim, queries, parts, dtype, sink, softcap, mode, every_height
):
    options, visible = MASKS[mask]
    draw = random.Random(f"{mask} {page_size} {group} {head_dim} {queries} {parts} {sink}")
    lengths = [queries, draw.randint(0, queries)]
    keys = [draw.choice(KEYS) for _ in lengths]
    batch = Batch.draw(lengths, keys, heads=(group, 1), depth=head_dim, dtype=dtype)
    sinks = torch.randn(group, generator=torch.Generator().manual_seed(1)) if sink else None
    storage = paged_kv(batch, page_size) if page_size else packed_kv(batch)
    named = dict(learnable_sink=sinks, softcap=softcap)
    scales = {}
    if dtype in FP8:
        numbers = 0.5 + torch.rand(3, 2, 1, generator=torch.Generator().manual_seed(2))
        scales = dict(zip(("q_descale", "k_descale", "v_descale"), numbers, strict=True))
    out, lse = run(
        packed_q(batch), storage, scales, num_splits=parts, mode=mode, seed=1, **named, **options
    )
    meant = {"sink": sinks, "softcap": softcap, "scales": list(scales.values()) or None}
    assert_agrees(batch, out, lse, visible=visible, **meant)
    expected = {1: (8, 8), 7: (8, 32), 8: (8, 32), 16: (16, 64)}[group]
    assert rows_of(every_height) == {expected[queries > 1]}


def causal(p, j):
    return j <= p


@pytest.mark.parametrize("parts", [1, pytest.param(7, marks=pytest.mark.sweep), 45])
def test_lengths_from_none_to_5000_in_one_batch(parts):
    """Of 5000 keys there are 40 tiles: seven parts have five or six each, of 45 some have none."""
    keys = [0, 1, 127, 128, 129, 5000]
    batch = Batch.draw([1] * 6, keys, heads=(8, 1))
    out, lse = run(packed_q(batch), paged_kv(batch, 16), causal=True, num_splits=parts)
    assert_agrees(batch, out, lse, visible=causal)


@pytest.mark.parametrize("claims, mode", [(None, "in_order"), (2, "hostile"), (0, "random")])
def test_a_cta_runs_several_work_tiles(claims, mode):
    """Ten work tiles, two of them without keys: a CTA runs all of them, three, or one."""
    batch = Batch.draw([4, 1, 3, 2, 4], [300, 0, 129, 40, 5], heads=(8, 2))
    for seed in (1, 2):
        out, lse = run(
            packed_q(batch), packed_kv(batch), causal=True, claims=claims, mode=mode, seed=seed
        )
        assert_agrees(batch, out, lse, visible=causal)


def test_dense_queries_of_unequal_lengths():
    batch = Batch.draw([3, 0, 2], [200, 50, 9], heads=(4, 2), depth=128)
    out, lse = run(dense_q(batch), dense_kv(batch), causal=True)
    assert_agrees(batch, out, lse, visible=causal)


def test_scores_that_rescale_in_every_tile_and_rows_of_nan():
    """Later keys score higher by far more than 2^8; a query of NaN spoils its own rows only."""
    batch = Batch.draw([1, 1], [500, 300], heads=(8, 1))
    for k in batch.k:
        k *= torch.linspace(0.1, 40.0, len(k))[:, None, None].bfloat16()
    out, lse = run(packed_q(batch), packed_kv(batch), causal=True)
    assert_agrees(batch, out, lse, visible=causal)
    batch.q[0][:, 3] = float("nan")
    spoilt, _ = run(packed_q(batch), packed_kv(batch), causal=True)
    assert spoilt[0, 3].isnan().all()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(spoilt[0, others], out[0, others]) and torch.equal(spoilt[1], out[1])


def test_a_row_has_the_same_bits_in_tiles_of_every_height(monkeypatch):
    """Rows are columns of the products and know nothing of each other."""
    batch = Batch.draw([1, 1], [333, 130], heads=(8, 1))
    results = []
    for height in (8, 32, 64):
        heights(monkeypatch, height)
        repeat.clear()
        results.append(run(packed_q(batch), packed_kv(batch), causal=True)[0][:2])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_what_keeps_the_family_from_being_chosen(monkeypatch, every_height):
    """A variable; more rows than it has; a fixed cut of a batch whose lengths differ, which fixes the bits."""
    q, kv = {"q": torch.zeros(1, 1, 8, 64).bfloat16()}, torch.zeros(1, 130, 1, 64).bfloat16()

    def kinds(call, **options):
        every_height.clear()
        run(call, {"k": kv, "v": kv}, **options)
        return {type(c.schedule).__name__ for c in every_height if isinstance(c, FA4Config)}

    assert kinds(q) == {"SwappedTile"}
    assert kinds(q, tokens_per_split=128) == {"SwappedTile"}
    assert kinds(q | {"seqused_q": torch.ones(1, dtype=torch.int32)}, tokens_per_split=128) == {
        "TwoTiles"
    }
    assert kinds({"q": torch.zeros(1, 9, 8, 64).bfloat16()}) == {"OneTile"}
    monkeypatch.setenv("CUTE_FA4_SWAP", "off")
    repeat.clear()
    assert kinds(q) == {"OneTile"}
    monkeypatch.setenv("CUTE_FA4_SWAP", "never")
    repeat.clear()
    with pytest.raises(ValueError, match="CUTE_FA4_SWAP='never'; accepted: auto, off"):
        kinds(q)


@pytest.mark.parametrize(
    "rows, arch, split",
    [
        (8, "sm_103a", "shared"),
        pytest.param(32, "sm_100a", "", marks=pytest.mark.sweep),
        (64, "sm_103a", "parts"),
    ],
)
def test_code_has_no_spills_and_a_maximum_is_one_instruction_a_row(rows, arch, split, tmp_path):
    cfg = FA4Config(
        qk_depth=128, group=8, pack_gqa=True, kv_layout="paged", page_size=16, seqused_k=True, write_lse=True,
        mask=masks.Causal(), split_keys=bool(split), share_keys=split == "shared", o_dtype="f32" if split else None,
        arch=arch, schedule=SwappedTile(rows=rows),
    )  # fmt: skip
    ptx, cubin = compile_artifacts(cfg)
    assert not re.search(r"\.local\b", ptx)
    resources = nvdisasm.resources(cubin)
    assert resources.stack_bytes == 0 and resources.registers <= 255
    # The code of a tile is there twice, masked and unmasked.
    assert ptx.count("redux.sync.max.f32") == 2 * rows
    # Copies whose coordinates the compiler does not know to be uniform are in a loop over the lanes.
    (tmp_path / "cubin").write_bytes(cubin)
    assert "BRA.U.ANY" not in nvdisasm.disassemble(tmp_path / "cubin")
