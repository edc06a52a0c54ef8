"""A CTA that takes all parts of its rows' keys has the bits of parts that are CTAs of their own, merged in memory.

So the rule that chooses between the two may read lengths (calls/split_keys/split.py: fill_chip). Here it says what the
test says, and the call notes which way it went.
"""

from types import SimpleNamespace

import pytest
import torch
from cutlass import Boolean

from cute_fa4.calls import repeat
from cute_fa4.calls.split_keys import split
from cute_fa4.sm100.steps import part_sums
from cute_fa4.sm100.two_tiles.own_parts import correction
from cute_fa4.sm100.work import own_parts
from tests.invariance.stories import Kind, Piece, Story
from tests.suite import turns

E4M3, FP16 = torch.float8_e4m3fn, torch.float16
SEQLEN, PART = 400, 128  # four parts; query 255 sees two, query 256 three
SINKS = torch.tensor([0.5, -2.0, 4.0, float("-inf")])
WHOLE = Piece(0, SEQLEN)
COMPANY = (((3, 40),), ((90, 300), (1, 1)))

KINDS = {
    "head dim 128, causal": Kind(128, heads=(1, 1)),
}
MORE = {
    "head dim 64, sinks": Kind(options=dict(learnable_sink=SINKS)),
    "fp16, a group": Kind(128, heads=(2, 1), dtype=FP16),
    "a window": Kind(128, heads=(2, 1), options=dict(window_size=(200, 0))),
    "head dim 96, soft cap": Kind(96, heads=(2, 1), options=dict(softcap=5.0)),
    "head dims 192 and 128": Kind(192, 128, heads=(2, 2)),
    "head dim 8": Kind(8, heads=(2, 1)),
    "8 bits": Kind(128, heads=(2, 1), dtype=E4M3),
}
PIECES = (
    WHOLE,
    Piece(0, SEQLEN, "packed", company=COMPANY),
    Piece(130, SEQLEN, "pages", 16, company=COMPANY, lse=False),
    Piece(200, SEQLEN, "cache", company=((), ((1, 500),))),
)


@pytest.fixture
def owns(monkeypatch):
    """-> a function that says which way calls go, and returns the calls whose CTAs took all parts."""
    monkeypatch.setenv("CUTE_FA4_BATCH_INVARIANT", "on")
    taken: list = []
    told = split.OwnParts.told
    monkeypatch.setattr(split.OwnParts, "told", lambda self, q: taken.append(self) or told(self, q))

    def say(fills: bool) -> list:
        repeat.clear()
        monkeypatch.setattr(split, "fill_chip", lambda *of_call: fills)
        taken.clear()
        return taken

    yield say
    repeat.clear()


def both_ways(story: Story, piece: Piece, owns, **options) -> list:
    """Results with parts in memory, and with parts of a CTA."""
    found = []
    for fills in (False, True):
        taken = owns(fills)
        found.append(story.results(piece, tokens_per_split=PART, **options))
        assert bool(taken) == fills
    return found


def same(results: list) -> bool:
    (a, a_lse), (b, b_lse) = results
    return a.equal(b) and (a_lse is None or a_lse.equal(b_lse))


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.storage)
@pytest.mark.parametrize(
    "name", [*KINDS, *(pytest.param(name, marks=pytest.mark.sweep) for name in MORE)]
)
def test_the_bits_are_those_of_parts_in_memory(name, piece, owns):
    story = Story.draw((KINDS | MORE)[name], SEQLEN, jumps=True)
    assert same(both_ways(story, piece, owns))


# Queries up to 127 do not see the part of key 200, which is not a number.
NOT_A_NUMBER = Story.draw(KINDS["head dim 128, causal"], 256)
NOT_A_NUMBER.v[200] = float("nan")


def test_a_part_that_a_row_does_not_see_changes_nothing_in_it(owns):
    (a, a_lse), (b, b_lse) = both_ways(NOT_A_NUMBER, Piece(0, 256), owns)
    assert a[:128].isfinite().all() and a[200:].isnan().all()
    assert a.nan_to_num(7.0).equal(b.nan_to_num(7.0)) and a_lse.equal(b_lse)


def forgets_the_sum(monkeypatch):
    """Every part begins its block."""
    said = SimpleNamespace(ends_block=own_parts.ends_block, begins_block=lambda part: Boolean(True))
    monkeypatch.setattr(correction, "own_parts", said)


def cuts_elsewhere(monkeypatch):
    """Parts are a key tile longer than those in memory."""
    made = own_parts.OwnParts.of

    def longer(split):
        tiles_each, *others = split
        return made((tiles_each + 1, *others))

    monkeypatch.setattr(own_parts.OwnParts, "of", staticmethod(longer))


def takes_the_other_lse(monkeypatch):
    """The second row of a thread gets the log-sum-exp of its first."""
    made = correction.row_result

    def wrong(cfg, group, i, phases):
        row_sum, lse = made(cfg, group, i, phases)
        return row_sum, group.args.splits.lse[correction.cta(), group.row] if i else lse

    monkeypatch.setattr(correction, "row_result", wrong)


def keeps_the_weights(monkeypatch):
    """The sum of weights is not rescaled where a part has a larger one."""
    monkeypatch.setattr(
        correction,
        "part_sums",
        SimpleNamespace(**vars(part_sums) | {"added_weight": lambda state, a, b: state.total + b}),
    )


def counts_what_is_not_seen(monkeypatch):
    """The O of a part without weight counts."""
    monkeypatch.setattr(correction, "clear_uncounted", lambda *of_tile: None)


JUMPS = Story.draw(KINDS["head dim 128, causal"], SEQLEN, jumps=True)
DEFECTS = (
    (forgets_the_sum, JUMPS),
    (cuts_elsewhere, JUMPS),
    (takes_the_other_lse, JUMPS),
    (keeps_the_weights, JUMPS),
    (counts_what_is_not_seen, NOT_A_NUMBER),
)


@pytest.mark.parametrize(
    "defect, story",
    [
        pytest.param(
            *case, id=case[0].__name__, marks=() if turns.taken(n, 5) else pytest.mark.sweep
        )
        for n, case in enumerate(DEFECTS)
    ],
)
def test_a_defect_changes_bits(defect, story, owns, own_kernels, monkeypatch):
    """A fifth of the list with each commit. With a NaN bits of other rows are compared."""
    owns(False)
    piece = Piece(0, len(story.q))
    right, _ = story.results(piece, tokens_per_split=PART)
    defect(monkeypatch)
    owns(True)
    wrong, _ = story.results(piece, tokens_per_split=PART)
    assert not right.nan_to_num(7.0).equal(wrong.nan_to_num(7.0))
