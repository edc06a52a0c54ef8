"""Each rule of the contract, broken: some piece then differs from the whole (docs/invariance.md names the rules).

A defect leaves the variable on and changes one decision back to that before the contract.
"""

from types import SimpleNamespace

import pytest
import torch

from cute_fa4.calls import queries, repeat
from cute_fa4.calls.split_keys import split
from cute_fa4.compiler import policy
from tests.invariance.stories import Kind, Piece, Story
from tests.suite import turns

SEQLEN = 300
WHOLE = Piece(0, SEQLEN)
ROW = Piece(299, 300)  # alone: the last query sees all keys
LONGER = ((), ((150, 200),))  # a neighbour for which CTAs have two query tiles
FEW = Piece(290, 300, "packed", company=LONGER)  # rows for one of them


def chooses(monkeypatch, name):
    """What of_schedules() says of one option is left open."""
    said = policy.of_schedules
    monkeypatch.setattr(policy, "of_schedules", lambda *asked: said(*asked) | {name: None})


def by_length(monkeypatch):
    """The longest sequence chooses the kernel."""
    said = policy.of_kernels
    monkeypatch.setattr(policy, "of_kernels", lambda *asked: said(*asked) | {"invariant": False})


def by_other_rows(monkeypatch):
    """Exponentials refer to a lagged maximum; a row that jumps makes its work tile run again."""
    chooses(monkeypatch, "maximum")


def by_rows_of_a_tile(monkeypatch):
    """Both softmax warpgroups share a query tile that is alone."""
    chooses(monkeypatch, "lone_tiles")


def by_what_is_returned(monkeypatch):
    """P V sums P unless an LSE is returned."""
    chooses(monkeypatch, "row_sum")


def by_number_of_parts(monkeypatch):
    """The call says how many parts there are."""
    monkeypatch.setattr(split, "policy", SimpleNamespace(batch_invariant=lambda *asked: False))


def by_number_of_queries(monkeypatch):
    """q is quantized for an 8-bit cache where a call has many rows."""
    said = SimpleNamespace(**vars(policy) | {"batch_invariant": lambda *asked: False})
    monkeypatch.setattr(queries, "policy", said)


JUMPS = Story.draw(Kind(128, heads=(1, 1)), SEQLEN, jumps=True)
LONG = Story.draw(Kind(heads=(1, 1)), 512)
PLAIN = Story.draw(Kind(heads=(1, 1)), SEQLEN)
CACHE = Story.draw(Kind(128, heads=(1, 1), kv_dtype=torch.float8_e4m3fn), SEQLEN)

EIGHT_BITS = Story.draw(Kind(128, heads=(1, 1), dtype=torch.float8_e4m3fn), SEQLEN)

# defect, story, two ways to compute the rows of the second, options of both
DEFECTS = (
    (by_length, PLAIN, WHOLE, ROW, {}),
    (by_other_rows, JUMPS, WHOLE, Piece(298, 300, "packed", company=LONGER), {}),
    (by_rows_of_a_tile, PLAIN, WHOLE, FEW, {}),
    # 150 rows: up to 128 of them have one query tile, where P V sums P for no call.
    (by_what_is_returned, EIGHT_BITS, WHOLE, Piece(150, SEQLEN, lse=False), {}),
    # Queries 256 to 511 see four key tiles together, query 300 three: three parts end elsewhere.
    (by_number_of_parts, LONG, Piece(256, 512), Piece(300, 301), dict(num_splits=3)),
    (by_number_of_queries, CACHE, Piece(200, 300), Piece(299, 300, "cache"), dict(q_quantize=None)),
)


@pytest.fixture(autouse=True)
def invariant(monkeypatch):
    monkeypatch.setenv("CUTE_FA4_BATCH_INVARIANT", "on")
    repeat.clear()
    yield
    repeat.clear()


def same_bits(story: Story, first: Piece, second: Piece, options: dict) -> bool:
    """Whether the rows of the second piece, which the first has, too, have the same bits in both."""
    a, b = (story.results(piece, **options)[0] for piece in (first, second))
    return a[second.first - first.first : second.last - first.first].equal(b)


@pytest.mark.parametrize(
    "defect, case",
    [
        pytest.param(
            *(defect, case),
            id=defect.__name__,
            marks=turns.mark(
                "defects", turns.taken(number, turns.OF_CASES), commits=turns.OF_CASES
            ),
        )
        for number, (defect, *case) in enumerate(DEFECTS)
    ],
)
def test_a_broken_rule_changes_bits(defect, case, monkeypatch):
    """A third of the list with each commit."""
    assert same_bits(*case)
    repeat.clear()
    defect(monkeypatch)
    assert not same_bits(*case)
