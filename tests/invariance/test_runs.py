"""How many parts of its rows' keys a CTA takes, one after the other, changes no bit (sm100/work/runs.py).

So the rule may read lengths and the number of SMs (calls/split_keys/split.py: parts_of_run). Here the test says which.
"""

from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.calls.split_keys import split
from cute_fa4.compiler import functions
from cute_fa4.sm100.steps import loads
from cute_fa4.sm100.two_tiles import one_query_tile
from cute_fa4.sm100.work import runs
from cute_fa4.sm100.work.kv_range import TileRange
from cute_fa4.sm100.work.runs import Runs
from cute_fa4.sm100.work.split import Splits
from tests.invariance import stories
from tests.invariance.stories import Kind, Piece, Story

E4M3 = torch.float8_e4m3fn
SEQLEN, PART = 900, 128  # eight parts, the last of which has four keys
SINKS = torch.tensor([0.5, -2.0])
KINDS = {"head dim 128": Kind(128, heads=(2, 1))}
MORE = {
    "a window hides the first parts": Kind(128, heads=(2, 1), options=dict(window_size=(300, 0))),
    "a window, sinks": Kind(heads=(2, 1), options=dict(window_size=(40, 0), learnable_sink=SINKS)),
    "8 bits": Kind(128, heads=(2, 1), dtype=E4M3),
}
BESIDE = (((3, 90), (2, 1000), (1, 0)), ((1, 513),))  # shorter, longer, and without keys
PIECES = (
    Piece(880, SEQLEN, "packed", company=BESIDE),
    Piece(899, SEQLEN, "pages", 16, company=((), ((1, 1000),)), lse=False),
    Piece(898, SEQLEN, "cache", company=((), ((1, 300),))),
    Piece(890, SEQLEN),
    Piece(899, SEQLEN, "paged cache", company=((), ((1, 1000),))),
)


PLAIN = (
    ("head dim 128", "packed"),
    ("head dim 128", "pages"),
    ("a window hides the first parts", "pages"),
)


def work_tiles(splits: Splits, tiles: TileRange, sink: bool):
    """[(word, key tiles of its part)] for each CTA of a block."""
    for cta in range(splits.ctas_of_block()):
        _, begin = splits.runs.block_and_part(cta)
        word, found = splits.runs.first_of(begin, tiles, sink), []
        found.append(word)
        while runs.is_followed(word):
            word = splits.runs.next_of(word, tiles)
            found.append(word)
        yield [(each, splits.tiles_of(tiles, runs.number_of(each))) for each in found]


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("number, each, run", [*product((1, 3, 8), (1, 4), (1, 2, 3, 9))])
def test_a_run_takes_its_keys_once_and_writes_each_part_once(number, each, run, sink):
    """Q is loaded with the first work tile that has keys, and kept to the last one."""
    splits = Splits(number, number, each, 0, Runs(number, run, each, run, -(-number // run), each))
    for first, end in product(range(number * each + 1), repeat=2):
        tiles, written, taken = TileRange(first, max(end - first, 0)), [], []
        for of_cta in work_tiles(splits, tiles, sink):
            with_keys = [(word, found) for word, found in of_cta if found.count]
            for word, _ in of_cta:
                written += range(*runs.parts_of(word))
            for turn, (word, found) in enumerate(with_keys):
                taken += range(found.first, found.first + found.count)
                assert runs.begins_q(word) == (turn == 0)
                assert runs.ends_q(word) == (turn == len(with_keys) - 1)
            if not sink and with_keys:
                assert len(of_cta) == len(with_keys)
        assert written == [*range(number)] and taken == [*range(first, end)]


@pytest.fixture
def run_of(monkeypatch):
    """-> a function that says how many parts a CTA takes, and returns the splits of the calls since."""
    monkeypatch.setenv("CUTE_FA4_BATCH_INVARIANT", "on")
    asked: list = []

    def say(parts: int) -> list:
        repeat.clear()
        asked.clear()
        monkeypatch.setattr(
            split, "parts_of_run", lambda of_call, *_: asked.append(of_call) or parts
        )
        return asked

    yield say
    repeat.clear()


def results(story: Story, piece: Piece, run_of, parts: int):
    asked = run_of(parts)
    found = story.results(piece, tokens_per_split=PART)
    assert asked and asked[0].tiles_each * 128 == PART
    return found


def same(first, others) -> bool:
    return all(first[0].equal(out) and (lse is None or first[1].equal(lse)) for out, lse in others)


@pytest.mark.parametrize(
    "name, piece",
    [
        pytest.param(
            *(name, piece),
            id=f"{name}-{piece.storage}",
            marks=() if (name, piece.storage) in PLAIN else pytest.mark.sweep,
        )
        for name in KINDS | MORE
        for piece in PIECES
    ],
)
def test_the_bits_do_not_depend_on_the_run(name, piece, run_of):
    story = Story.draw((KINDS | MORE)[name], SEQLEN, jumps=True)
    one, *others = (results(story, piece, run_of, parts) for parts in (1, 3, 9))
    assert same(one, others)


@pytest.mark.parametrize("mode", ["hostile", pytest.param("random", marks=pytest.mark.sweep)])
def test_the_bits_do_not_depend_on_the_order_of_warps(mode, run_of, monkeypatch):
    """As late as possible, and at random: nothing waits forever, and nothing is read too early."""
    in_order = results(JUMPS, PIECES[1], run_of, 3)
    in_mode = SimpleNamespace(use=partial(emulator.use, mode=mode))
    monkeypatch.setattr(stories, "emulator", in_mode)
    assert same(in_order, [results(JUMPS, PIECES[1], run_of, 3)])


JUMPS = Story.draw(KINDS["head dim 128"], SEQLEN, jumps=True)


def pages_of_this_part(monkeypatch):
    """A further part has the pages of the first one."""
    monkeypatch.setattr(
        one_query_tile.VLater, "look_up_following", lambda self, cfg, args, following, found: found
    )


def stores_over_the_part_before(monkeypatch):
    """Partial results of a further part go where those of the one before are."""
    right = runs.number_of
    results = one_query_tile.store_rows.results
    wrong = SimpleNamespace(**vars(runs) | {"number_of": lambda part: right(part) & ~1})
    monkeypatch.setattr(results, "runs", wrong)


def guesses_the_next_tile(monkeypatch):
    """A CTA takes the pages of the key tile after its first one."""
    right = loads.guessed_turn

    def wrong(cfg, args, block):
        number, turn = right(cfg, args, block)
        return number, turn + 1

    def unchecked(cfg, args, work, entries, turn):
        return entries

    monkeypatch.setattr(loads, "guessed_turn", wrong)
    monkeypatch.setattr(loads, "look_up_guessed", unchecked)


@pytest.mark.parametrize(
    "defect",
    [
        stores_over_the_part_before,
        pytest.param(pages_of_this_part, marks=pytest.mark.sweep),
        pytest.param(guesses_the_next_tile, marks=pytest.mark.sweep),
    ],
)
def test_a_defect_changes_bits(defect, run_of, own_kernels, monkeypatch):
    piece, story = PIECES[1], JUMPS
    if defect is guesses_the_next_tile:  # of a dense q; jumps would leave no weight to early keys
        piece, story = PIECES[-1], Story.draw(KINDS["head dim 128"], SEQLEN)
    with monkeypatch.context() as patched:
        defect(patched)
        wrong, _ = results(story, piece, run_of, 3)
    functions.clear()
    right, _ = results(story, piece, run_of, 3)
    assert not right.equal(wrong)
