"""Mistakes with scales of blocks, planted in the kernel's sources, are noticed.

The subject: 140 queries of two heads on 700 keys, six key tiles, more than the ring of scales has entries, and a second
sequence of 20 queries on 129 keys, whose work tiles the first CTA takes as well; scales differ from block to
block. Rows of 128 numbers have one word of scales; those of 192, with 128 columns of v, and of 256 with 256 have two.
"""

from dataclasses import replace

import pytest
import torch
from cutlass import Int32

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.layouts.umma_descriptors import SmemDescriptor
from cute_fa4.sm100.instructions import block_scales as instructions
from cute_fa4.sm100.two_tiles.block_scaled import products, scales
from cute_fa4.sm100.work import block_lists
from cute_fa4.sm100.work import block_scales as numbers
from tests.attention.listed import FULL, PARTIAL, Listed
from tests.attention.test_block_sparsity_8_bits import assert_right as assert_lists_right
from tests.attention.test_block_sparsity_8_bits import blocks_of
from tests.attention.test_cut_lists import cutting
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import Batch, assert_agrees
from tests.serving.test_mxfp8 import called, draw, meant

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


ONE_WORD, TWO_WORDS, TWO_HALVES = (
    (128, 128),
    (192, 128),
    (256, 256),
)  # head dims of q and k, and of v


def is_right(depths=ONE_WORD, mode: str = "hostile", seed: int = 1) -> bool:
    repeat.clear()
    depth, depth_v = depths
    batch = Batch.draw(
        [140, 20], [700, 129], heads=(2, 2), depth=depth, depth_v=depth_v, dtype=torch.float8_e4m3fn
    )
    given = draw(batch)
    try:
        out, lse = called(batch, given, "packed", mode=mode, seed=seed, claims=100)
        assert_agrees(batch, out, lse, scales=meant(given))
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def nothing(made):
    return lambda *given: None


def of_other_key(made):
    return lambda cfg, args, work, key, *more: made(cfg, args, work, key ^ 1, *more)


def of_other_head(made):
    def of_key(cfg, args, work, *key):
        tile = replace(work.tile, kv_head=1 - work.tile.kv_head)
        return made(cfg, args, replace(work, tile=tile), *key)

    return of_key


def of_other_row(made):
    def of_row(cfg, args, work, place, word):
        return made(cfg, args, work, replace(place, q_index=place.q_index ^ 1), word)

    return of_row


def of_other_word(made):
    """The second word of a row's scales is its first. made: of_key or of_row."""
    return lambda cfg, args, work, place, word, *exists: made(cfg, args, work, place, 0, *exists)


def scales_of(number):
    """The products of a query tile use other scales than its own. number: of its place."""

    def change(made):
        return lambda cfg, tmem, i: made(cfg, tmem, number(i))

    return change


def step_of(byte):
    """byte: of the scales of a step, of its number"""
    return lambda made: lambda computes, block: made(computes, byte(block))


def only(which):
    """Copies those of Q0, Q1 or K alone that `which` says."""

    def change(made):
        def copy(cfg, smem, tmem, slot, place):
            if which(place):
                made(cfg, smem, tmem, slot, place)

        return copy

    return change


def from_place(other):
    return lambda made: (
        lambda cfg, smem, slot, which, *word: made(cfg, smem, slot, other(which), *word)
    )


def wide_lines(made):
    return lambda: SmemDescriptor(0, 0, 256, made().swizzle)


def released_at_once(made):
    """The slot goes back to the scales warp before its lines have been copied."""

    def await_entry(events, slot, phase):
        made(events, slot, phase)
        events.scales_empty.commit(slot)

    return await_entry


def without_fence(made):
    return lambda events, slot: events.scales_full.arrive(slot)


# name -> [(module, attribute, the change)]
DEFECTS = {
    "the scales of the neighbouring key": [
        (numbers, "of_key", of_other_key),
    ],
    "the scales of the neighbouring query": [(numbers, "of_row", of_other_row)],
    "the scales of the other head": [(numbers, "of_key", of_other_head)],
    "the scales of the next key tile": [
        (scales, "of_keys", lambda made: lambda cfg, args, work, n, end: made(cfg, args, work, n + 1, end)),
    ],
    "the scales of query tile 0 for query tile 1": [(products, "scaled", scales_of(lambda i: 0))],
    "the scales of the neighbouring block": [(instructions, "scaled_instruction", step_of(lambda b: b ^ 1))],
    "the scales of the first block for all": [(instructions, "scaled_instruction", step_of(lambda b: 0))],
    "A and B change scales": [(products, "OF_K", lambda made: 0)],
    "the scales of Q are not copied": [(products, "copy", only(lambda which: which == 2))],
    "those of K are not": [(products, "copy", only(lambda which: which < 2))],
    "those of Q1 are copied from those of Q0": [(products, "address_of", from_place(lambda which: which & 2))],
    "lines of 16 bytes lie 32 bytes apart": [(instructions, "copy_descriptor", wide_lines)],
    "a lane stores the line of its neighbour": [
        (scales, "store_piece", lambda made: lambda at, words: made(Int32(at) ^ 16, words)),
    ],
    "words of a line in another order": [
        (scales, "store_piece", lambda made: lambda at, words: made(at, words[::-1])),
    ],
    "no fence before the tensor core reads": [(scales, "hand_over", without_fence)],
    "the mma warp does not await the entry": [(products, "await_entry", nothing)],
    "the scales warp does not await the slot": [(scales, "await_slot", nothing)],
    "an entry is released too early": [
        (products, "await_entry", released_at_once),
        (products, "release", nothing),
    ],
    "the ring is one entry ahead": [
        (products, "place_of", lambda made: lambda number: made(number + 1)),
    ],
}  # fmt: skip


def with_lists(monkeypatch) -> bool:
    """Key tiles in another order than their turns, of which two parts of a list begin with the first and the third."""
    repeat.clear()
    call = Listed.draw((1, 140, 450), (1, 1), (256, 128), (0.0,), dtype=torch.float8_e4m3fn)
    call.kinds[0, 0, 0] = torch.tensor([PARTIAL, FULL, PARTIAL, FULL])
    given, expected = blocks_of(call)
    try:
        with cutting(monkeypatch, sms=2):
            assert_lists_right(call, call.run(**given), expected)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def of_turn(turn):
    return lambda made: lambda cfg, args, work, n: made(cfg, args, work, turn(n))


DEFECTS_OF_LISTS = {
    "scales of the turn in place of its tile": [
        (block_lists, "tile_of_turn", lambda made: lambda cfg, args, work, n: n),
    ],
    "scales of the next turn": [(block_lists, "tile_of_turn", of_turn(lambda n: n + 1))],
    "scales of the first turn of a whole list": [(block_lists, "tile_of_turn", of_turn(lambda n: n % 2))],
    "the keys of a turn are those of its number": [
        (scales, "of_keys", lambda made: lambda cfg, args, work, n, end: made(cfg, args, work, n, work.tiles.count)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_LISTS, OF_SOURCES))
def test_a_mistake_with_lists_is_noticed(own_kernels, monkeypatch, name):
    for module, attribute, change in DEFECTS_OF_LISTS[name]:
        monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert not with_lists(monkeypatch), "nothing noticed"


@pytest.mark.sweep
def test_without_a_mistake_lists_are_right(monkeypatch):
    assert with_lists(monkeypatch)


# Mistakes with the second word, which rows of more than 128 numbers have.
OF_WORDS = {
    "the scales of a key's first word for its second": [(numbers, "of_key", of_other_word)],
    "those of a query's": [(numbers, "of_row", of_other_word)],
    "the second word is not copied": [(products, "words_of", lambda made: lambda depth: 1)],
    "it is copied from the first": [
        (products, "address_of", lambda made: lambda cfg, smem, slot, which, word: made(cfg, smem, slot, which)),
    ],
    "it is stored over the first": [
        (scales, "address_of", lambda made: lambda cfg, smem, slot, which, word: made(cfg, smem, slot, which)),
    ],
    "products of the second word have the scales of the first": [
        (instructions, "COLUMNS", lambda made: 0),
    ],
    "products of the second word do not add": [
        (
            instructions, "_of_word",
            lambda made: lambda operands, steps, computes, columns, accumulate: made(
                operands, steps, computes, columns, False if accumulate is True else accumulate
            ),
        ),
    ],
    "Q0 has the space of one word": [
        (products, "bytes_of", lambda made: lambda cfg: made(cfg) // 2),
    ],
}  # fmt: skip
TWO = {
    f"{name} ({depth})": (depths, changes)
    for depth, depths in (("192", TWO_WORDS), ("256", TWO_HALVES))
    for name, changes in OF_WORDS.items()
}
PLANTED = {name: (ONE_WORD, changes) for name, changes in DEFECTS.items()} | TWO


@pytest.mark.parametrize("name", quick_or_sweep(PLANTED, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    depths, changes = PLANTED[name]
    for module, attribute, change in changes:
        monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert not is_right(depths), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize("depths", [ONE_WORD, TWO_WORDS, TWO_HALVES])
@pytest.mark.parametrize("mode, seed", [("in_order", 0), ("hostile", 1), ("random", 2)])
def test_without_a_mistake_the_numbers_are_right(mode, seed, depths):
    assert is_right(depths, mode, seed)
