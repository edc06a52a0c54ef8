"""A CTA with one query tile gives a row the bits that it has in a CTA with two (two_tiles/one_query_tile.py).

So the rule that chooses between the two may read lengths: calls of up to 128 rows get it. Here the test says which.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import attention, repeat
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.two_tiles import one_query_tile
from tests.invariance import stories
from tests.invariance.stories import Kind, Piece, Story, offsets

E4M3, FP16 = torch.float8_e4m3fn, torch.float16
SEQLEN, PART = 400, 256  # two parts, the second of which has two key tiles
SINKS = torch.tensor([0.5, -2.0])
KINDS = {
    "head dim 128": Kind(128, heads=(2, 1)),
}
MORE = {
    "fp16, head dim 64, a group": Kind(heads=(2, 1), dtype=FP16),
    "a window, sinks": Kind(128, heads=(2, 1), options=dict(window_size=(150, 0), learnable_sink=SINKS)),
    "head dim 96, soft cap": Kind(96, heads=(2, 1), options=dict(softcap=5.0)),
    "head dims 192 and 128": Kind(192, 128, heads=(2, 2)),
    "8 bits": Kind(128, heads=(2, 1), dtype=E4M3),
    "8 bits, head dim 64": Kind(heads=(2, 1), dtype=E4M3),
    "8 bits, head dims 192 and 128": Kind(192, 128, heads=(2, 2), dtype=E4M3),
}  # fmt: skip
ROWS = Piece(360, SEQLEN, "packed", company=(((3, 40), (30, 400), (1, 0)), ((1, 128),)))
PIECES = (
    ROWS,  # a CTA does several work tiles: of one to four key tiles, and of none
    Piece(399, SEQLEN, "pages", 16, company=((), ((1, 300),)), lse=False),
    Piece(340, SEQLEN, "pages", 7, company=(((3, 90),), ())),  # gathered rows
    Piece(345, SEQLEN),
)
PLAIN = ((PIECES[0], None), (PIECES[1], PART))  # what plain pytest runs


@pytest.fixture
def tiles(monkeypatch):
    """-> a function that says whether CTAs have one query tile."""
    monkeypatch.setenv("CUTE_FA4_BATCH_INVARIANT", "on")
    chosen = attention.kernel_of

    def say(one: bool) -> None:
        repeat.clear()
        monkeypatch.setattr(
            attention, "kernel_of", lambda *call: chosen(*call)._replace(one_query_tile=one)
        )

    yield say
    repeat.clear()


def both_ways(tiles, call) -> list:
    """Results of a call with two query tiles, and with one."""
    found = []
    for one in (False, True):
        tiles(one)
        found.append(call())
    return found


def same(results: list) -> bool:
    (a, a_lse), (b, b_lse) = results
    return a.equal(b) and (a_lse is None or a_lse.equal(b_lse))


CASES = [
    pytest.param(
        *(name, piece, parts),
        id=f"{name}-{piece.storage}{piece.page_size}-{parts}",
        marks=() if name in KINDS and (piece, parts) in PLAIN else pytest.mark.sweep,
    )
    for name in KINDS | MORE
    for piece in PIECES
    for parts in (None, PART)
]


@pytest.mark.parametrize("name, piece, parts", CASES)
def test_the_bits_are_those_of_two_query_tiles(name, piece, parts, tiles):
    story = Story.draw((KINDS | MORE)[name], SEQLEN, jumps=True)
    assert same(both_ways(tiles, lambda: story.results(piece, tokens_per_split=parts)))


@pytest.mark.parametrize("mode", ["hostile", pytest.param("random", marks=pytest.mark.sweep)])
def test_the_bits_do_not_depend_on_the_order_of_warps(mode, tiles, monkeypatch):
    """As late as possible, and at random: nothing waits forever, and nothing is read too early."""
    story = Story.draw(KINDS["head dim 128"], SEQLEN, jumps=True)
    tiles(True)
    in_order = story.results(ROWS)
    in_mode = SimpleNamespace(use=partial(emulator.use, mode=mode))
    monkeypatch.setattr(stories, "emulator", in_mode)
    assert same([in_order, story.results(ROWS)])


def numbers(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(len(shape) + shape[0])
    return torch.randn(shape, generator=generator).to(dtype)


def with_scales_of_keys():
    """8 bits, where each key of K and V has a scale."""
    q, k, v = (numbers(1, n, 2, 128, dtype=E4M3) for n in (70, 300, 300))
    of_keys = numbers(1, 300, 2).abs().float() + 0.1
    scales = dict(q_descale=torch.ones(1), k_descale=of_keys, v_descale=of_keys * 3)
    return flash_attn_func(q, k, v, causal=True, return_lse=True, **scales)


def with_rope_columns():
    """The last 64 columns of K in a tensor that all heads share."""
    q, k, v = (numbers(1, n, 2, d) for n, d in ((70, 192), (300, 128), (300, 128)))
    rope = numbers(1, 300, 64)
    return flash_attn_func(q, k, v, k_rope=rope, causal=True, return_lse=True)


def without_keys():
    """Sequences without keys, first and last, and rows that a window hides all keys from."""
    q, k = numbers(9, 1, 128), numbers(300, 1, 128)
    lengths = offsets((2, 3, 4)), offsets((0, 300, 0)), 4, 300
    return flash_attn_varlen_func(q, k, k, *lengths, causal=True, return_lse=True)


@pytest.mark.parametrize(
    "call",
    [
        without_keys,
        pytest.param(with_scales_of_keys, marks=pytest.mark.sweep),
        pytest.param(with_rope_columns, marks=pytest.mark.sweep),
    ],
)
def test_the_bits_of_other_calls(call, tiles):
    assert same(both_ways(tiles, call))


def test_calls_of_up_to_128_rows_have_one_query_tile():
    """Of batch-invariant calls alone; rows are those of a tile, with the heads of a group that share it."""

    def one(queries, group=8, **more):
        asked = dict(group=group, seqlen_q=queries, invariant=True) | more
        return which_kernel(Call("bf16", 128, 128, **asked)).one_query_tile

    assert [one(queries) for queries in (1, 16, 17)] == [True, True, False]
    assert [one(queries, group=7) for queries in (1, 128, 129)] == [True, True, False]
    assert not one(1, invariant=False, fixed=True) and not one(1, q_block=256)


JUMPS = Story.draw(KINDS["head dim 128"], SEQLEN, jumps=True)


def exponentials_of_every_quarter(monkeypatch):
    """The FMA units compute exponentials of the first quarter, too."""
    monkeypatch.setitem(one_query_tile.LATER, "p_over_s", one_query_tile.VLater())


def v_of_this_tile(monkeypatch):
    """V of the tile before has the pages 0."""
    right = one_query_tile.VLater.further_arguments

    def wrong(self, started):
        (started,) = right(self, started)
        return (one_query_tile.Started(started.before * 0, started.k),)

    monkeypatch.setattr(one_query_tile.VLater, "further_arguments", wrong)


@pytest.mark.sweep
@pytest.mark.parametrize("defect", [exponentials_of_every_quarter, v_of_this_tile])
def test_a_defect_changes_bits(defect, tiles, own_kernels, monkeypatch):
    piece = Piece(380, SEQLEN, "pages", 16)
    tiles(False)
    right, _ = JUMPS.results(piece)
    defect(monkeypatch)
    tiles(True)
    wrong, _ = JUMPS.results(piece)
    assert not right.equal(wrong)
