"""Mistakes with lists of key blocks, planted in the kernels' sources, are noticed by float64 and by the emulator.

The subjects: full and partial blocks in no order, a last key tile that is not whole, and entries that are no blocks;
packed lists.
"""

from dataclasses import replace

import pytest
import torch
from cutlass import Int32

from cute_fa4 import BlockSparseTensors, emulator
from cute_fa4.calls import repeat
from cute_fa4.calls.operands import blocks
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.work import block_lists, packed_order
from tests.attention.listed import ABSENT, FULL, PARTIAL, Listed, assert_right
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep

LARGEST = 2**31 - 1
CALL = Listed.draw((1, 256, 300), (1, 1), (128, 128), (0.0,))
CALL.kinds[0, 0] = torch.tensor([[FULL, PARTIAL, FULL], [ABSENT, FULL, PARTIAL]])


def _numbers(counts, entries) -> tuple:
    return tuple(torch.tensor(x, dtype=torch.int32)[None, None] for x in (counts, entries))


LISTS = BlockSparseTensors(
    *_numbers([1, 2], [[1, 0, 0, 0], [2, -1, 0, 0]]),
    *_numbers([2, 4], [[2, 0, 1, 1], [3, LARGEST, 1, -7]]),
    block_size=(128, 128),
)


# Sequences of two blocks of queries and of one, of different numbers of key blocks: each list has another length.
IN_LINE = Listed.draw(
    (2, 140, 300), (2, 1), (128, 128), (0.5, 0.8), lengths=[(140, 300), (100, 200)]
)


def of_lists():
    return CALL.run(LISTS), CALL.expected()


def of_packed_lists():
    return IN_LINE.run_as("packed"), IN_LINE.expected()


def of_sorted_queries():
    with tuning.using(tuning.shipped().changed(longest_first=0)):
        return of_packed_lists()


def is_right(monkeypatch, subject=of_lists) -> bool:
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    repeat.clear()
    try:
        assert_right(*subject())
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def next_turn(made):
    """The entry of the next turn is read."""
    return lambda cfg, args, work, n: made(cfg, args, work, n + 1)


def taken_as_blocks(made):
    """An entry that is no block becomes the tile after the last one, without keys: now the first tile."""
    return lambda condition, yes, no: made(condition, yes, Int32(0))


# name -> (what is replaced, the replacement made from it)
DEFECTS = {
    "an entry that is no block is taken as the first one": ("choose", taken_as_blocks),
    "the entry of the next turn": ("key_tile", next_turn),
    "the list of the next query block": (
        "of_query_block",
        lambda made: lambda cfg, counts, tile: (Int32(0), Int32(0), 1 - made(cfg, counts, tile)[2]),
    ),
    "a last key tile that is not whole is not cut": (
        "is_whole",
        lambda made: lambda cfg, work, n, tile: n < work.tiles.whole,
    ),
    "full blocks are masked": ("is_full", lambda made: lambda cfg, work, n: n < 0),
    "partial blocks are not masked": ("is_full", lambda made: lambda cfg, work, n: n >= 0),
    "counts are of the first list": (
        "_tiles_of",
        lambda made: lambda *given: made(*given) * 0 + 1,
    ),
}


# Likewise, in packed lists.
DEFECTS_IN_LINE = {
    "counts of the next list": (
        "_place_of_count",
        lambda made: lambda *given: (made(*given)[0], (made(*given)[1] + 1) % 3),
    ),
    "entries of the first sequence": (
        "_first_entry",
        lambda made: (
            lambda cfg, lists, entries, tile, of: (
                made(cfg, lists, entries, tile, of) - lists.first_entries[tile.batch]
            )
        ),
    ),
    "lists of one block more": ("_blocks_of_keys", lambda made: lambda *given: made(*given) + 1),
    "lists of the first head": (
        "_within",
        lambda made: lambda tensor, i, at: made(tensor, i, at) * i,
    ),
}


# Likewise, of packed queries whose work tiles are sorted.
DEFECTS_OF_NUMBERS = {
    "numbers of shorter sequences": lambda made: (
        lambda cfg, order, longest, number: made(
            cfg, order, longest - cfg.tiles.positions_per_block, number
        )
    ),
    "the first sequence": lambda made: lambda *given: replace(made(*given), batch=Int32(0)),
    "the first head": lambda made: lambda *given: replace(made(*given), head=Int32(0)),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_NUMBERS, OF_SOURCES))
def test_a_mistake_with_sorted_packed_queries_is_noticed(own_kernels, monkeypatch, name):
    change = DEFECTS_OF_NUMBERS[name]
    monkeypatch.setattr(packed_order, "numbered", change(packed_order.numbered))
    assert not is_right(monkeypatch, of_sorted_queries), "nothing noticed"


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_IN_LINE, OF_SOURCES))
def test_a_mistake_in_packed_lists_is_noticed(own_kernels, monkeypatch, name):
    attribute, change = DEFECTS_IN_LINE[name]
    monkeypatch.setattr(block_lists, attribute, change(getattr(block_lists, attribute)))
    assert not is_right(monkeypatch, of_packed_lists), "nothing noticed"


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    attribute, change = DEFECTS[name]
    monkeypatch.setattr(block_lists, attribute, change(getattr(block_lists, attribute)))
    assert not is_right(monkeypatch), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize("subject", (of_lists, of_packed_lists, of_sorted_queries))
def test_without_a_mistake_the_numbers_are_right(monkeypatch, subject):
    assert is_right(monkeypatch, subject)
