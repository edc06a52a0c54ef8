"""Query tiles that see different key tiles: leaving out what either does not see changes no bit.

The same mask as a union of itself has no bands, so that every key tile is computed for both query tiles and masked. In
fp16, because without bands no reference lags.
"""

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func, masks
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles.schedule import TwoTiles
from cute_fa4.sm100.work.kv_range import MOST_LEFT_OUT, TileRange, left_out, not_begun, tile_range
from tests.sm100.work.test_kv_range import CASES

FAR = 4096
# Name: queries, keys, (left, right), chunk. Key tiles of query tile 0 and 1, work tile by work tile; - is left out.
SHAPES = {
    # 0-, 01 | 12-, -23 | 34-, -45: from the second one on query tile 0 goes first
    "window": (760, 760, (127, 0), FAR),
    # 012, 012 | 012---, ---345 | 345, 345: either has three alone, and there is no key tile that both see
    "chunks": (760, 760, (FAR, FAR), 384),
    # 012-, 0123 | 1234-, -2345 | 3456-, -4567: of the keys, 200 are before the first query
    "both": (700, 900, (300, 40), FAR),
    # Chunks that see only keys 300 before the query: unused rows between, and a query tile 0 that ends before the
    # first key tile that its last row could see whole
    "gaps": (512, 724, (2000, -300), 512),
}


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize(
    "depth",
    [pytest.param(64, marks=pytest.mark.sweep, id="P beside S"), pytest.param(128, id="P over S")],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bits_are_those_of_all_key_tiles(shape, depth):
    """One kernel for all shapes; a CTA has all work tiles."""
    m, n, sides, size = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, m, 2, depth, generator=generator).half()
    k, v = torch.randn(2, 1, n, 1, depth, generator=generator).half()
    mask = masks.both(masks.window(*sides), masks.chunked(size))
    calls = ((masks.either(mask, mask), "in_order", 0), (mask, "in_order", 0), (mask, "random", 1))
    found = []
    for each, mode, seed in calls:
        with emulator.use(mode=mode, seed=seed, claims=1):
            found.append(flash_attn_func(q, k, v, mask=each, return_lse=True))
    for of_all, *others in zip(*found, strict=True):
        assert all(torch.equal(of_all, other) for other in others)


@pytest.mark.parametrize("mask, sizes, visible", [case for case in CASES if case[0].is_band])
def test_what_is_left_out_is_seen_by_no_row_and_each_keeps_a_key_tile(mask, sizes, visible):
    """By the definition, of blocks of 256 queries with keys before, after and around them."""
    cfg = FA4Config(mask=mask)
    for queries, keys in ((512, 512), (300, 900), (512, 300), (400, 130)):
        after = keys - queries
        for first in range(0, queries, 256):
            last = min(first + 256, queries) - 1
            tiles = tile_range(cfg, first + after, last + after, keys, keys, sizes)
            second, of_keys = min(first + 128, queries - 1), (keys, keys, sizes)
            early = left_out(cfg, tiles, min(first + 127, last) + after, *of_keys)
            late = not_begun(cfg, tiles, early, second + after, *of_keys)
            kept = TileRange(tiles.first, tiles.count, early, late)
            if not tiles.count:
                assert early == late == 0
                continue
            assert late + early <= tiles.count and max(late, early) < tiles.count
            for i, rows in enumerate((range(first, second), range(second, last + 1))):
                own = range(kept.begin_of(i) * 128, kept.end_of(i) * 128)
                assert len(own) == 128 * kept.count_of(i) > 0
                for q in {*rows[:1], *rows[-1:]}:
                    seen = [k for k in range(keys) if visible(q + after, k)]
                    assert not seen or (seen[0] in own and seen[-1] in own), (q, i)


def test_a_block_of_many_key_tiles_leaves_out_no_more_than_an_announcement_holds():
    """Chunks of 2^24 keys: query tile 1 begins 131,072 key tiles late."""
    cfg, size = FA4Config(mask=masks.chunked(4).mask), 1 << 24
    tiles = tile_range(cfg, size - 128, size + 127, 2 * size, 2 * size, (size,))
    assert tiles.count == 2 * size // 128
    assert not_begun(cfg, tiles, 1, size, 2 * size, 2 * size, (size,)) == MOST_LEFT_OUT


def test_masks_that_neither_begin_nor_end_leave_nothing_out():
    ends = {
        "full": masks.full(), "left": masks.window(100, None), "causal": masks.causal(), "both": masks.window(100, 0),
        "union": masks.either(masks.causal(), masks.chunked(64)),
    }  # fmt: skip
    configs = {
        name: choose_config(qkv_dtype="bf16", head_dim=64, mask=mask.mask)
        for name, mask in ends.items()
    }
    assert {name for name, cfg in configs.items() if cfg.uneven} == {"causal", "both", "left"}
    assert {name for name, cfg in configs.items() if cfg.begins_late} == {"both", "left"}


def test_scales_of_keys_are_given_back_by_both_query_tiles():
    """An entry of their ring is free when both warpgroups have read it: both take every key tile, in any order."""
    for order in ("p_over_s", "p_crossed"):
        of_keys = dict(qkv_dtype="e4m3", qk_depth=64, mask=masks.causal().mask, descales="KV")
        assert not FA4Config(**of_keys, schedule=TwoTiles(order=order)).uneven
