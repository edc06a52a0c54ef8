"""Wide heads, and RoPE columns, of 8 bits under 16-bit queries: against float64 with the bound of 16 bits.

Unused rows of pages, of Q and of packed tensors are NaN, in the cache 0x7f. 300 queries are three query tiles; a ring
of four or five slots goes round within two key tiles.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_fa4 import capabilities
from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.wide.dequantized import barriers
from cute_fa4.sm100.wide.dequantized.schedule import SlotWideTile
from tests import pairwise
from tests.serving.batches import FP8, Batch, assert_agrees, packed_q, run, storages
from tests.serving.test_k_rope import causal, draw, stored
from tests.serving.test_masks import MASKS
from tests.sm100.two_tiles.dequantized.test_attention import asked, cached
from tests.sm100.wide.dequantized_rope.test_attention import narrow
from tests.suite import turns

__all__ = ["asked"]
pytestmark = pytest.mark.filterwarnings("ignore")
E4M3, E5M2 = FP8
OPTIONS = {
    "mask": ("causal", "window or chunked"),
    "storage": ("dense", "packed", 16, 5),  # 5: rows gathered by fours
    "group": (1, 4),  # heads alone, and sharing a tile
    # units of K and V: 2 1, 2 2, 2 2; the last ones of 192 and 160 have up to 64 columns
    "tensors": ((E4M3, 208, 128), (E4M3, 256, 256), (E5M2, 192, 160)),
    "dtype": (torch.bfloat16, torch.float16),
    "parts": (1, 3),
    "sink": (False, True),
}  # fmt: skip


@pairwise.cases(
    "wide heads dequantized in slots: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    seconds=3.0,
    quick={"storage": (16,), "tensors": ((E4M3, 208, 128), (E4M3, 256, 256)), "sink": (True,)},
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)  # fmt: skip
def test_options_together_agree_with_float64(
    mask, storage, group, tensors, dtype, parts, sink, asked
):
    options, visible = MASKS[mask]
    of_cache, depth, depth_v = tensors
    queries = [300 // group, 1, 40]
    batch = Batch.draw(
        queries, [400, 130, 150], heads=(group, 1), depth=depth, depth_v=depth_v, dtype=dtype
    )
    batch = cached(batch, of_cache)
    sinks = torch.randn(group, generator=torch.Generator().manual_seed(1)) if sink else None
    numbers = 0.5 + torch.rand(2, 3, 1, generator=torch.Generator().manual_seed(2))
    scales = dict(zip(("k_descale", "v_descale"), numbers, strict=True))
    out, lse = run(
        *storages(batch, storage), scales,
        num_splits=parts, mode="hostile", seed=1, learnable_sink=sinks, q_quantize="never", **options,
    )  # fmt: skip
    assert_agrees(batch, out, lse, visible=visible, sink=sinks, scales=[None, *numbers])
    assert [type(config.schedule) for config in asked] == [SlotWideTile]  # all of V in one launch


# queries and keys of the sequences, columns of K, k_rope and V, layout of K, rows of a page of k_rope, dtype of q and
# of k_rope
ROPE = {
    "packed, pages of 48": ([300, 1], [310, 129], (128, 64, 128), "packed", 48, torch.bfloat16, E4M3),
    "of 16 bits, pages of 48": ([300, 1], [310, 129], (128, 64, 128), "packed", 48, torch.bfloat16, torch.bfloat16),
    "pages of three rows": ([33], [150], (64, 32, 64), "packed", 3, torch.bfloat16, E5M2),
    "lengths on the device": ([130, 9], [260, 40], (64, 64, 96), "dense", 0, torch.bfloat16, E4M3),
    "both in pages, V of 256": ([40, 5], [130, 33], (128, 48, 256), "paged", 64, torch.float16, torch.float16),
}  # fmt: skip
KEPT = "packed, pages of 48", "of 16 bits, pages of 48"


def with_rope(name: str, **options) -> tuple:
    """-> (batch, (out, lse)); the second sequence of the first cases ends in a tile of one key."""
    queries, keys, depths, layout, page, dtype, of_rope = ROPE[name]
    own = depths[0]
    batch = draw(queries, keys, depths=depths, dtype=dtype)
    for k in batch.k:
        k[..., :own] = k[..., :own].to(E4M3).to(dtype)
    if of_rope in FP8:
        narrow(own, of_rope, batch)
    batch = replace(batch, v=[v.to(E4M3).to(dtype) for v in batch.v])
    apart, _ = stored(batch, own, layout, page)
    given = {"k": E4M3, "v": E4M3, "k_rope": of_rope}
    apart |= {name: apart[name].to(dtype) for name, dtype in given.items()}
    return batch, run(packed_q(batch), apart, causal=True, q_quantize="never", **options)


@pytest.mark.parametrize(
    "name", [n if n in KEPT else pytest.param(n, marks=pytest.mark.sweep) for n in ROPE]
)
def test_rope_columns_agree_with_float64(name, asked):
    batch, results = with_rope(name, mode="hostile", seed=1)
    assert_agrees(batch, *results, visible=causal)
    assert [type(config.schedule) for config in asked] == [SlotWideTile]


@pytest.mark.sweep
@pytest.mark.parametrize("mode, seed", [("in_order", 0), ("hostile", 2), ("random", 3)])
def test_the_order_of_warps_does_not_matter(mode, seed):
    batch, results = with_rope("packed, pages of 48", mode=mode, seed=seed)
    assert_agrees(batch, *results, visible=causal)


def config(**choices) -> FA4Config:
    return FA4Config(**{"kv_dtype": "e4m3", "qk_depth": 256} | choices, schedule=SlotWideTile())


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = config().barriers
    assert table.text() in barriers.__doc__
    assert reuse_text(table.rows) in barriers.__doc__


@pytest.mark.parametrize(
    "choices, slots, of_k, of_v",
    [
        (dict(qk_depth=192, ov_depth=128), 5, [128, 64], [128]),
        (dict(qk_depth=256), 4, [128, 128], [128, 128]),
        (dict(qk_depth=208, ov_depth=160), 4, [128, 80], [128, 32]),
        (dict(qk_depth=176, ov_depth=96, rope_depth=48), 5, [128, 48], [96]),
        (dict(qk_depth=128, ov_depth=64, rope_depth=64), 5, [64, 64], [64]),
    ],
    ids=str,
)
def test_a_slot_has_a_unit_of_128_columns(choices, slots, of_k, of_v):
    """Its rows of 8 bits arrive in the second half; up to 64 columns of 16 bits are the first half alone."""
    cfg = config(**choices)
    tiles = cfg.tiles
    assert cfg.refusals() == [] and cfg.smem.nbytes <= SMEM_CAPACITY_BYTES
    assert (cfg.barriers.kv_slots, tiles.kv_slot_bytes) == (slots, 32 * 1024)
    assert [tiles.k_columns(unit) for unit in range(tiles.k_units)] == of_k
    assert [tiles.v_columns(unit) for unit in range(tiles.v_units)] == of_v
    assert tiles.raw_offset(is_v=True) == tiles.raw_bytes == tiles.chunk_bytes == 16 * 1024
    assert [len(tiles.chunks(columns)) for columns in (16, 64, 80, 128)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    "choices, value, remedy",
    [
        (dict(kv_dtype=None), "kv_dtype=None", "schedule=WideTile()"),
        (dict(qk_depth=136), "qk_depth=136", "multiple of 16 up to 256"),
        (dict(ov_depth=144), "ov_depth=144", "multiple of 16 up to 128 or of 32 up to 256"),
        (dict(descales="KV"), "descales='KV'", "scales of each sequence and head"),
        (dict(rope_depth=64, rope_dtype="fp16"), "rope_dtype='fp16'", "use 'bf16', 'e4m3' or 'e5m2'"),
        (dict(rope_depth=48), "after 208 in spans of 64", "up to 64 after a multiple of 64"),
        (dict(rope_depth=64, rope_dtype="e4m3", scale_dtype="f32"), "scale_dtype='f32'", "use None"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_names_the_value_and_the_remedy(choices, value, remedy):
    why = config(**choices).refusals()
    assert any(value in reason and remedy in reason for reason in why), why


@pytest.mark.parametrize("rope", [None, "bf16", "e4m3"])
def test_capabilities_name_the_family(rope):
    """For calls of any number of rows; without q_quantize, where lengths of queries differ."""
    more = (
        {}
        if rope is None
        else {"k_rope": torch.empty(1, 4096, 64).to(getattr(torch, DTYPES[rope]))}
    )
    asked = dict(dtype="bf16", kv_dtype="e4m3", head_dim=192, head_dim_v=128, causal=True)
    asked |= dict(return_lse=False, arch="sm_100a") | more
    for queries in (1, 300):
        two = rope is None and queries > 128  # query tiles
        family = "mhawiden2q" if two else "mhawidewiden"
        [row] = capabilities(**asked, seqlen_q=queries, q_quantize="never")
        assert row.families == (family,), row
        [row] = capabilities(**asked, seqlen_q=queries, seqused_q=True)
        assert row.families == (family,), row


DTYPES = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn"}
