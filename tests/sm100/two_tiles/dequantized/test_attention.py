"""Many 16-bit queries over 8-bit keys that are dequantized in their slots: against float64 with the bound of 16 bits.

Unused rows of pages, of Q and of packed tensors are NaN, in the cache 0x7f. 300 queries are more than a CTA has rows
for, 40 fill less than a query tile; a ring of four slots goes round within 400 keys.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import compile_cache, masks
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.sm100.blueprint.barriers import BarrierTable, reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.choose_config import config_for
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles.dequantized import barriers
from cute_fa4.sm100.two_tiles.dequantized.schedule import SlotTwoTiles
from tests import pairwise
from tests.serving.batches import FP8, Batch, assert_agrees, packed_q, run, storages
from tests.serving.test_masks import MASKS
from tests.serving.test_nvfp4 import FORMATS, Cache
from tests.suite import turns

OPTIONS = {
    "mask": ("causal", "window or chunked"),
    "storage": ("dense", "packed", 16, 5),  # 5: rows gathered by fours
    "group": (1, 4),  # heads alone, and sharing a tile
    # chunks of K and V: 2 2, 2 1, 1 2; 2 and a rest 2, and 1
    "tensors": ((FP8[0], 128, 128), (FP8[1], 80, 16), (FP8[0], 64, 128), (FP8[0], 192, 128), (FP8[1], 144, 64)),
    "dtype": (torch.bfloat16, torch.float16),
    "parts": (1, 3),
    "sink": (False, True),
}  # fmt: skip


@pytest.fixture
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
    return Batch(batch.q, *([x.to(dtype) for x in xs] for xs in (batch.k, batch.v)))


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "keys dequantized in slots: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    seconds=1.5,
    quick={"storage": (16,), "tensors": ((FP8[0], 128, 128), (FP8[0], 192, 128)), "sink": (True,)},
    also={
        "gathered rows, a chunk of K beside two of V": dict(
            mask="causal", storage=5, group=1, tensors=(FP8[0], 64, 128), dtype=torch.bfloat16, parts=1, sink=False
        )
    },
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)  # fmt: skip
def test_options_together_agree_with_float64(
    mask, storage, group, tensors, dtype, parts, sink, asked
):
    options, visible = MASKS[mask]
    of_cache, depth, depth_v = tensors
    queries = [300 // group, 1, 40]
    heads, keys = (group, 1), [400, 130, 150]
    batch = Batch.draw(queries, keys, heads=heads, depth=depth, depth_v=depth_v, dtype=dtype)
    batch = cached(batch, of_cache)
    sinks = torch.randn(group, generator=torch.Generator().manual_seed(1)) if sink else None
    numbers = 0.5 + torch.rand(2, 3, 1, generator=torch.Generator().manual_seed(2))
    scales = dict(zip(("k_descale", "v_descale"), numbers, strict=True))
    out, lse = run(
        *storages(batch, storage), scales,
        num_splits=parts, mode="hostile", seed=1, learnable_sink=sinks, q_quantize="never", **options,
    )  # fmt: skip
    assert_agrees(batch, out, lse, visible=visible, sink=sinks, scales=[None, *numbers])
    assert type(asked[0].schedule) is SlotTwoTiles


OF_BLOCKS = {
    "dtype": (torch.bfloat16, torch.float16),
    "storage": (128, 16, "dense"),
    "mask": ("causal", "window or chunked"),
    "parts": (1, 3),
    "group": (1, 8),
    "cache": tuple(FORMATS),
}


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "two query tiles of 192 columns over scales of blocks",
    OF_BLOCKS,
    kernel=tuple(OF_BLOCKS),
    commits=turns.OF_CASES,
    seconds=3.0,
    ids=lambda value: str(value).replace("torch.", ""),
)
def test_a_rest_of_k_agrees_with_float64(dtype, storage, mask, parts, group, cache, asked):
    """Six key tiles, in which a slot has K and V, and each place of the rest three K; 300 rows of a head or group."""
    options, visible = MASKS[mask]
    rows, keys = [300 // group + 1, 20], [700, 130]
    cache = Cache.draw(keys, 1, {"k": 192, "v": 128}, of=cache)
    q = Batch.draw(rows, keys, heads=(group, 1), depth=192, dtype=dtype).q
    batch = Batch(q, cache.meant("k"), cache.meant("v"))
    of_queries = packed_q(batch) if storage != "dense" else storages(Batch(q, q, q), "dense")[0]
    sink = torch.randn(group, generator=torch.Generator().manual_seed(1)) if parts > 1 else None
    out, lse = run(
        of_queries, cache.stored(q, storage, "NHD"), {},
        num_splits=parts, mode="hostile", seed=1, learnable_sink=sink, **options,
    )  # fmt: skip
    assert_agrees(batch, out, lse, visible=visible, sink=sink)
    assert {type(config.schedule) for config in asked} == {SlotTwoTiles}


def config(**choices) -> FA4Config:
    return FA4Config(**{"kv_dtype": "e4m3"} | choices, schedule=SlotTwoTiles())


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = config().barriers
    rows = tuple(row for row in table.rows if row.name in ("raw_full", "kv_full", "kv_empty"))
    assert BarrierTable(rows, table.numbers).text() in barriers.__doc__
    assert reuse_text(rows[:1]) in barriers.__doc__
    for cache in ("e2m1", "e4m3"):
        table = config(qk_depth=192, ov_depth=128, kv_dtype=cache).barriers
        added = [row for row in table.rows if row.name in ("rest_full", "rest_ready")]
        assert len(added) == 1 + (cache == "e4m3")
        for row in (*added, *(row for row in table.rows if row.name == "raw_full")):
            alone = BarrierTable((row,), table.numbers).text().splitlines()[-1].split()
            assert " ".join(alone) in " ".join(barriers.__doc__.split())
            assert f"{row.name} {row.reuse}" in " ".join(barriers.__doc__.split())
    table = config().barriers
    [read] = [row for row in table.rows if row.name == "work_read"]
    assert read.count == 256 + 128 + 32 + 64  # softmax, correction, mma, dequantize


@pytest.mark.parametrize("cache, whole", [("e2m1", True), ("e4m3", False)])
def test_a_second_rest_takes_the_place_of_o(cache, whole):
    cfg = config(qk_depth=192, ov_depth=128, kv_dtype=cache)
    assert cfg.refusals() == [] and cfg.smem.nbytes <= SMEM_CAPACITY_BYTES
    assert (cfg.barriers.kv_slots, cfg.smem.o.nbytes, cfg.smem.k_rest.nbytes) == (3, 0, 2 * 16384)
    assert (cfg.tiles.row_in_rest, cfg.tiles.rest_is_early) == (whole, not whole)
    assert cfg.tiles.raw_bytes == cfg.tiles.k_rest_bytes == 16384


@pytest.mark.parametrize("depth, slots, chunks", [(128, 4, 2), (80, 4, 2), (64, 10, 1)])
def test_a_row_of_8_bits_lies_where_the_last_chunk_of_its_key_goes(depth, slots, chunks):
    cfg = config(qk_depth=depth, page_size=16, kv_layout="paged", seqused_k=True)
    assert cfg.refusals() == [] and cfg.smem.nbytes <= SMEM_CAPACITY_BYTES
    keys, line = cfg.tiles.BN, 128
    assert cfg.barriers.kv_slots == slots and cfg.tiles.kv_slot_bytes == chunks * keys * line
    for is_v in (False, True):
        wide, raw = cfg.tiles.wide_tile(is_v), cfg.tiles.raw_tile
        first = cfg.tiles.raw_offset(is_v)
        for key in (0, 1, 9, keys - 1):
            of_raw = {(first + raw.offset(key, column)) // 16 for column in range(line)}
            last = {wide.offset(key, 64 * (chunks - 1) + column) // 16 for column in range(64)}
            assert of_raw == last


def test_single_tiles_are_refused_beside_a_rest():
    cfg = FA4Config(
        qk_depth=192, ov_depth=128, kv_dtype="e2m1", schedule=SlotTwoTiles(lone_tiles=True)
    )
    assert any(
        "lone_tiles=True" in reason and "lone_tiles=False" in reason for reason in cfg.refusals()
    )


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(kv_dtype=None), "kv_dtype=None", "schedule=TwoTiles()"),
        (dict(qk_depth=136), "qk_depth=136", "multiple of 16 up to 192"),
        (dict(qk_depth=192, ov_depth=160), "ov_depth=160", "multiple of 16 up to 128"),
        (dict(descales="KV"), "descales='KV'", "scales of each sequence and head"),
        (dict(qk_depth=192, ov_depth=128, rope_depth=64), "rope_depth=64", "OneTile()"),
    ],
    ids=str,
)
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


def test_no_register_is_spilled():
    """Two words of 8-bit values become a piece of 16 bytes: a thread holds 16 words and a line's address."""
    asked = dict(
        qkv_dtype="bf16", kv_dtype="e4m3", head_dim=128, descales="kv", family="mhawiden2q"
    )
    of_pages = dict(q_layout="packed", kv_layout="paged", page_size=16, seqused_k=True)
    cfg = config_for(**asked, **of_pages, mask=masks.Causal(), write_lse=True)
    ptx, cubin = compile_artifacts(cfg)
    assert ".local" not in ptx and nvdisasm.resources(cubin).stack_bytes == 0
    for halves in ("bf16x2", "f16x2"):  # K and V of two keys, two numbers at a time
        assert ptx.count(f"cvt.rn.{halves}.e4m3x2") == 2 * 128 // 2
