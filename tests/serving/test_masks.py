"""Every mask against its definition, key by key, and the tiles it costs against a count by brute force."""

from __future__ import annotations

import itertools

import pytest
import torch

from cute_fa4 import emulator, masks
from tests.serving.batches import Batch, assert_agrees, int32, packed_kv, packed_q, run
from tests.suite import turns

BN = 128  # keys of a tile at every depth that has a kernel
BM = 256  # query rows of a CTA


def chunk(p, j, size):
    return torch.div(p, size, rounding_mode="floor") == torch.div(j, size, rounding_mode="floor")


# name: (options of the call, what position p sees of key j). Sizes that are no multiples of a tile, of each other or
# of a warp, except where a size equal to the tile is the special case.
MASKS = {
    "full": ({}, lambda p, j: p == p),
    "causal": (dict(causal=True), lambda p, j: j <= p),
    "window causal": (
        dict(causal=True, window_size=(70, -1)),
        lambda p, j: (p - 70 <= j) & (j <= p),
    ),
    "window": (dict(window_size=(70, 33)), lambda p, j: (p - 70 <= j) & (j <= p + 33)),
    "window of one key": (dict(window_size=(0, 0)), lambda p, j: j == p),
    "window to the right": (dict(window_size=(None, 33)), lambda p, j: j <= p + 33),
    "window to the left": (dict(window_size=(70, None)), lambda p, j: p - 70 <= j),
    "the past alone": (dict(window_size=(150, -10)), lambda p, j: (p - 150 <= j) & (j <= p - 10)),
    "the past alone, causal": (dict(causal=True, window_size=(None, -3)), lambda p, j: j <= p - 3),
    "the future alone": (dict(window_size=(-20, None)), lambda p, j: p + 20 <= j),
    "chunked": (dict(mask=masks.chunked(100)), lambda p, j: chunk(p, j, 100)),
    "chunks of a tile": (dict(mask=masks.chunked(128)), lambda p, j: chunk(p, j, 128)),
    "chunked causal": (
        dict(mask=masks.chunked_causal(100)),
        lambda p, j: chunk(p, j, 100) & (j <= p),
    ),
    "chunked and causal": (
        dict(mask=masks.chunked(100), causal=True),
        lambda p, j: chunk(p, j, 100) & (j <= p),
    ),
    "window and chunked": (
        dict(mask=masks.both(masks.window(50, 20), masks.chunked(100))),
        lambda p, j: (p - 50 <= j) & (j <= p + 20) & chunk(p, j, 100),
    ),
    "window or chunked": (
        dict(mask=masks.either(masks.window(150, 0), masks.chunked_causal(64))),
        lambda p, j: ((p - 150 <= j) & (j <= p)) | (chunk(p, j, 64) & (j <= p)),
    ),
    "causal, and window or chunked": (
        dict(causal=True, mask=masks.either(masks.window(5, 60), masks.chunked(100))),
        lambda p, j: (j <= p) & (((p - 5 <= j) & (j <= p + 60)) | chunk(p, j, 100)),
    ),
}


@pytest.mark.parametrize("name", turns.by_turns(MASKS))
def test_each_mask_shows_the_keys_of_its_definition(name):
    # More queries than keys (positions below 0), as many, fewer; one query; a second CTA and several key tiles.
    options, visible = MASKS[name]
    batch = Batch.draw([40, 130, 5, 1, 300], [20, 130, 290, 200, 420], heads=(1, 1), seed=1)
    out, lse = run(packed_q(batch), packed_kv(batch), pack_gqa=False, **options)
    assert_agrees(batch, out, lse, visible=visible)


@pytest.mark.parametrize("name", ["full", "causal", "window", "window or chunked"])
def test_padding_hides_keys_and_moves_no_position(name):
    # The limit before the first key, mid-tile, at a tile's edge, and beyond the last key.
    options, visible = MASKS[name]
    batch = Batch.draw([40, 40, 130, 20], [140, 140, 290, 60], heads=(1, 1), seed=2)
    limit = int32([0, 77, 256, 1000])
    out, lse = run(packed_q(batch), packed_kv(batch), pack_gqa=False, key_limit=limit, **options)
    assert_agrees(batch, out, lse, visible=visible, key_limit=limit)


# --- tiles


def opcodes(prefix: str) -> int:
    counts = emulator.last_run().opcodes
    return sum(count for opcode, count in counts.items() if opcode.startswith(prefix))


def tile_range(visible, rows: range, m: int, n: int) -> range:
    """Key tiles from the first to the last that any of these query rows sees a key of."""
    p, j = torch.tensor(rows)[:, None] + n - m, torch.arange(n)[None]
    seen = visible(p, j).expand(len(rows), n).any(dim=0).nonzero()
    if not len(seen):
        return range(0)
    return range(int(seen.min()) // BN, int(seen.max()) // BN + 1)


def is_whole(visible, rows: range, tile: int, m: int, n: int) -> bool:
    """Whether every one of these rows sees every key of the tile."""
    if (tile + 1) * BN > n:
        return False
    p = torch.tensor(rows)[:, None] + n - m
    return bool(visible(p, torch.arange(tile * BN, (tile + 1) * BN)[None]).all())


def computed_tiles(visible, m, n) -> list[list[int]]:
    """Key tiles of each of the two query tiles of a CTA: of those that it walks, those from the first to the last that
    the query tile sees (two_tiles/uneven). m: (its rows, of how many).
    """
    rows, number = m
    walked, found = tile_range(visible, rows, number, n), []
    for first in (rows.start, rows.start + 128):
        # A query tile beyond the last row does what the last row alone would.
        own = range(
            min(first, number - 1), max(min(first + 128, number), min(first, number - 1) + 1)
        )
        found.append([t for t in walked if t in tile_range(visible, own, number, n)])
    return found


TILED = [
    "full",
    "causal",
    "window causal",
    "window",
    "the past alone",
    "the future alone",
    "chunked",
    "chunked causal",
    "window and chunked",
]


@pytest.mark.parametrize("name", turns.by_turns(TILED, among=MASKS))
def test_tiles_without_a_visible_key_are_neither_loaded_nor_computed(name):
    # Two CTAs of queries over nine tiles of keys: wide enough for tiles that are skipped on both sides.
    options, visible = MASKS[name]
    # 500 rows: both query tiles of both CTAs have some.
    m, n, depth = 500, 1100, 64
    batch = Batch.draw([m], [n], heads=(1, 1), depth=depth)
    assert_agrees(
        batch, *run(packed_q(batch), packed_kv(batch), pack_gqa=False, **options), visible=visible
    )
    ctas = [range(first, min(first + BM, m)) for first in range(0, m, BM)]
    tiles = sum(len(tile_range(visible, rows, m, n)) for rows in ctas)
    # A tile is depth / 16 + BN / 16 MMAs for each query tile that computes it, and one copy of K and one of V; a CTA
    # has two copies of Q besides.
    products = sum(len(own) for rows in ctas for own in computed_tiles(visible, (rows, m), n))
    assert opcodes("tcgen05.mma") == products * (depth // 16 + BN // 16)
    loads = sum(
        count
        for opcode, count in emulator.last_run().opcodes.items()
        if opcode.startswith("cp.async.bulk.tensor") and ".shared::cta.global" in opcode
    )
    assert loads == 2 * tiles + 2 * len(ctas)


# Wide enough that tiles lie between the bounds.
WIDE = {
    "full": MASKS["full"],
    "causal": MASKS["causal"],
    "window causal": (
        dict(causal=True, window_size=(600, -1)),
        lambda p, j: (p - 600 <= j) & (j <= p),
    ),
    "window": (dict(window_size=(600, 170)), lambda p, j: (p - 600 <= j) & (j <= p + 170)),
    "chunked": (dict(mask=masks.chunked(600)), lambda p, j: chunk(p, j, 600)),
    "chunked causal": (
        dict(mask=masks.chunked_causal(600)),
        lambda p, j: chunk(p, j, 600) & (j <= p),
    ),
}


@pytest.mark.parametrize("name", turns.by_turns(WIDE))
def test_tiles_that_are_seen_whole_carry_no_mask_code(name):
    # A masked tile is told by the shifts of its visibility words: 4 warps x 4 words x one for each bound of the mask.
    # Head dim 80, because up to 64 warps leave out some of a masked tile (tests/sm100/two_tiles/test_seen_by_warp.py).
    # What other shifts a launch has depends on its number of tiles, and by a few (12 were seen, and one a warp and
    # masked tile) on which of the loops the softmax warps enter. If whole tiles had mask code as well, equal numbers
    # of tiles would have equal numbers of shifts, and what is left here would differ by all of the masked tiles'.
    # The sizes give equal numbers of tiles with different numbers of masked ones: keys that end in a tile and on its
    # edge, the second query tile with a few rows and filled.
    options, visible = WIDE[name]
    bounds = 1 if name in ("full", "causal") else 2
    seen = []
    for m, n in ((140, 1100), (140, 1152), (256, 1100), (256, 1152), (200, 1060), (200, 1140)):
        batch = Batch.draw([m], [n], heads=(1, 1), depth=80)
        run(packed_q(batch), packed_kv(batch), pack_gqa=False, **options)
        walked, computed, masked = tile_range(visible, range(m), m, n), [], 0
        for first in (0, 128):
            # A query tile beyond the last row does what the last row alone would.
            rows = range(min(first, m - 1), max(min(first + 128, m), min(first, m - 1) + 1))
            # Tiles before the first and after the last that a query tile sees are skipped for it (two_tiles/uneven).
            own = [t for t in walked if t in tile_range(visible, rows, m, n)]
            computed.append(len(own))
            masked += sum(not is_whole(visible, rows, tile, m, n) for tile in own)
        seen.append((computed, masked, opcodes("shl.b32") - 4 * 4 * bounds * masked))
    pairs = [(a, b) for a, b in itertools.combinations(seen, 2) if a[0] == b[0]]
    assert any(a[1] != b[1] for a, b in pairs), f"the sizes compare nothing: {seen}"
    for a, b in pairs:
        of_masks = 4 * 4 * bounds * abs(a[1] - b[1])
        assert abs(a[2] - b[2]) < max(of_masks, 16), seen
