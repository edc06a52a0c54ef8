"""Which key tiles are walked, and which without a mask, against the definition of every mask."""

import itertools
import math

import numpy as np
import pytest

from cute_fa4 import masks
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.work import kv_range, tile_order

# Around one and two tiles of 128, one and two query blocks of 256, and both signs of seqlen_k - seqlen_q.
LENGTHS = [
    (1, 1),
    (1, 500),
    (127, 129),
    (128, 128),
    (129, 640),
    (257, 257),
    (384, 128),
    (500, 500),
    (640, 257),
]

# (mask, sizes, visible(p, k)): sizes below, at and above a tile, and one that is no multiple of anything.
CASES = [
    (masks.Full(), (), lambda p, k: True),
    (masks.Causal(), (), lambda p, k: k <= p),
    (masks.Window(), (100, 20), lambda p, k: p - 100 <= k <= p + 20),
    (masks.Window(right=False), (127,), lambda p, k: k >= p - 127),
    (masks.Window(), (300, 0), lambda p, k: p - 300 <= k <= p),
    (masks.Window(left=False), (5,), lambda p, k: k <= p + 5),
    (masks.Chunked(), (64,), lambda p, k: p // 64 == k // 64),
    (masks.Chunked(), (200,), lambda p, k: p // 200 == k // 200),
    (masks.ChunkedCausal(), (384,), lambda p, k: p // 384 == k // 384 and k <= p),
    (
        masks.Both(masks.Causal(), masks.Window()),
        (50, 50),
        lambda p, k: k <= p and p - 50 <= k <= p + 50,
    ),
    (
        masks.Either(masks.Window(), masks.Chunked()),
        (30, 0, 128),
        lambda p, k: p - 30 <= k <= p or p // 128 == k // 128,
    ),
]


def seen_keys(visible, sq, sk, limit):
    """(sq, sk) bool: the mask by definition."""
    offset = sk - sq
    return np.array([[k < limit and visible(q + offset, k) for k in range(sk)] for q in range(sq)])


@pytest.mark.parametrize(
    "mask, sizes, visible", CASES, ids=lambda v: str(v) if isinstance(v, masks.Mask) else ""
)
@pytest.mark.parametrize("cut", [0, 60], ids=["", "60 padding keys"])
def test_walked_tiles_cover_what_some_row_sees_and_whole_tiles_what_all_rows_see(
    mask, sizes, visible, cut
):
    cfg = FA4Config(mask=mask)
    for sq, sk in LENGTHS:
        limit, offset = max(sk - cut, 0), sk - sq
        keys = seen_keys(visible, sq, sk, limit)
        for first in range(0, sq, cfg.tiles.positions_per_cta):
            last = min(first + cfg.tiles.positions_per_cta, sq) - 1
            needed = set(np.nonzero(keys[first : last + 1].any(axis=0))[0] // cfg.tiles.BN)
            tiles = kv_range.tile_range(cfg, first + offset, last + offset, sk, limit, sizes)
            walked = range(tiles.first, tiles.first + tiles.count)
            assert needed <= set(walked), (sq, sk, first)
            if not isinstance(mask, masks.Both | masks.Either | masks.Chunked):
                # The bands of neighbouring rows overlap: the hull has no tile to spare.
                assert len(needed) == len(walked), (sq, sk, first)
            for tile_first in range(first, last + 1, 128):
                tile_last = min(tile_first + 127, last)
                whole = kv_range.whole_tiles(
                    cfg, tiles, 0, tile_first + offset, tile_last + offset, sk, limit, sizes
                )
                assert tiles.first <= whole.begin <= whole.end <= tiles.first + tiles.count
                everyone = keys[tile_first : tile_last + 1].all(axis=0)
                assert everyone[whole.begin * cfg.tiles.BN : whole.end * cfg.tiles.BN].all(), (
                    sq,
                    sk,
                    first,
                )
                assert (whole.end - whole.begin) * cfg.tiles.BN <= sk


def test_causal_tiles_that_all_rows_see_carry_no_mask():
    """The law above would also hold if no tile were ever whole."""
    cfg, sk = FA4Config(mask=masks.Causal()), 1024
    tiles = kv_range.tile_range(cfg, 768, 1023, sk, sk, ())
    assert (tiles.first, tiles.count) == (0, 8)
    assert kv_range.whole_tiles(cfg, tiles, 0, 768, 895, sk, sk, ()) == kv_range.WholeTiles(0, 6)
    assert kv_range.whole_tiles(cfg, tiles, 1, 896, 1023, sk, sk, ()) == kv_range.WholeTiles(0, 7)


def test_a_window_far_from_the_start_walks_few_tiles():
    cfg, n = FA4Config(mask=masks.Window()), 8192
    tiles = kv_range.tile_range(cfg, n - 256, n - 1, n, n, (127, 0))
    assert (tiles.first, tiles.count) == ((n - 256 - 127) // 128, 3)


@pytest.mark.parametrize("mask", [masks.Full(), masks.Causal(), masks.Window()], ids=repr)
@pytest.mark.parametrize("pack", [False, True])
# 8 heads (packed: 4): alone, in sections of 3, 3, 2 (2, 2), of 4, 4 (4) though 5 fit, all together.
@pytest.mark.parametrize("fitting", [1, 3, 5, 8])
def test_every_block_of_every_head_is_taken_once_and_under_a_mask_a_section_starts_with_the_last(
    mask, pack, fitting, monkeypatch
):
    # 3 blocks (packed: 5), 4 heads in groups of 2, 2 sequences: every axis has more than one, none a power of another.
    cfg, sq, heads, batch = FA4Config(mask=mask, group=2, pack_gqa=pack), 600, 4, 2
    scheduled = heads // cfg.heads_per_tile * batch
    fitting = min(fitting, scheduled)
    monkeypatch.setattr(tile_order, "fitting_heads", lambda *_: fitting)
    order = tile_order.tile_order(cfg, sq, sq, heads, batch)
    number = tile_order.grid_size(cfg, sq, heads, batch)
    ctas = [tile_order.work_tile(cfg, cta, order) for cta in range(number)]
    found = {(t.first_position, t.head, t.batch) for t in ctas}
    starts = range(0, sq, 128 if pack else 256)
    assert found == set(itertools.product(starts, range(0, heads, 2 if pack else 1), range(batch)))
    assert len(ctas) == len(found)
    assert all(t.kv_head == t.head // 2 for t in ctas)
    assert ctas[0].first_position == (0 if mask == masks.Full() else starts[-1])
    if mask != masks.Full():
        # A section begins where a shorter block is followed by a longer one.
        begins = [
            i for i in range(1, number) if ctas[i].first_position > ctas[i - 1].first_position
        ]
        widths = [(b - a) / len(starts) for a, b in itertools.pairwise([0, *begins, number])]
        assert len(widths) == math.ceil(scheduled / fitting) and sum(widths) == scheduled
        assert max(widths) <= fitting and max(widths) - min(widths) <= 1
        assert widths == sorted(widths, reverse=True)


def test_the_picture_of_the_order_is_the_order(monkeypatch):
    # The picture: five heads of three blocks, of which two fit.
    cfg = FA4Config(mask=masks.Causal())
    monkeypatch.setattr(tile_order, "fitting_heads", lambda *_: 2)
    order = tile_order.tile_order(cfg, 768, 768, heads=5, batch=1)
    ctas = [tile_order.work_tile(cfg, cta, order) for cta in range(15)]
    for name, value in (
        ("head", lambda t: t.head),
        ("block", lambda t: t.first_position // cfg.tiles.BM),
    ):
        line = f"    {name:<5}" + "".join(f"{value(t):>4}" for t in ctas)
        assert line in tile_order.__doc__, line


@pytest.mark.parametrize(
    "seqlen_k, heads, group, expected",
    [
        (1024, 16, 1, 32),  # all of them: 32 heads of 512 KiB are 16 MiB
        (32768, 16, 1, 3),  # 16 MiB a head
        (32768, 16, 8, 25),  # the same, for eight query heads together
        (1 << 20, 16, 1, 1),  # not even one fits
        (0, 16, 1, 32),  # no keys at all
    ],
)
def test_the_heads_that_fit_in_50_mib(seqlen_k, heads, group, expected):
    cfg = FA4Config(qk_depth=128, group=group)
    assert tile_order.fitting_heads(cfg, seqlen_k, 2 * heads) == expected


@pytest.mark.parametrize(
    "mask, sizes, visible", CASES, ids=lambda v: str(v) if isinstance(v, masks.Mask) else ""
)
def test_queries_that_see_a_key_are_those_whose_bands_have_it(mask, sizes, visible):
    """Positions below 0 belong to queries of which there are more than keys; ends never decrease with the key."""
    positions, last = range(-150, 450), [(-math.inf, -math.inf)] * 2
    for key in range(0, 400, 7):
        bands = [
            (-math.inf if lo is None else lo, math.inf if hi is None else hi)
            for lo, hi in mask.queries(key, sizes)
        ]
        seeing = {p for p in positions if any(lo <= p < hi for lo, hi in bands)}
        assert seeing == {p for p in positions if visible(p, key)}
        assert all(
            a <= b for a, b in zip(itertools.chain(*last), itertools.chain(*bands), strict=False)
        )
        last = bands
