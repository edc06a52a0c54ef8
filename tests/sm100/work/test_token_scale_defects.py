"""Mistakes with scales of keys, planted in the kernels' sources, are noticed by the bound of P's rounding.

The subject: a sequence of 900 keys, eight key tiles, twice as many as the ring of scales has entries; two key/value
heads; scales that differ from key to key, and grow over the sequence, so that the unit of O does too. In tiles of two
query tiles, of one, and with swapped operands, where a thread owns a key and there is no ring.
"""

from dataclasses import replace

import pytest
import torch
from cutlass import Float32

from cute_fa4.calls import repeat
from cute_fa4.emulator.ptx.errors import RaceError
from cute_fa4.sm100.few_rows import token_scales as of_threads
from cute_fa4.sm100.roles import token_scales as role
from cute_fa4.sm100.steps import token_scales as steps
from cute_fa4.sm100.work import scales
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import Batch, assert_agrees
from tests.serving.test_token_scales import called, draw

KEYS = 900
QUERIES = {"mha2q": 130, "mha1q": 9, "mhaswap": 3}


def is_right(monkeypatch, family: str, letters: str = "kv") -> bool:
    monkeypatch.setenv("CUTE_FA4_SWAP", "auto" if family == "mhaswap" else "off")
    repeat.clear()
    batch = Batch.draw([QUERIES[family]], [KEYS], heads=(2, 2), dtype=torch.float8_e4m3fn)
    given = draw(batch, letters)
    growing = 2.0 ** (torch.arange(KEYS) / 100)[:, None]
    given = {name: [x * growing for x in of] for name, of in given.items()}
    try:
        out, lse = called(batch, given, "packed", mode="hostile", seed=1, checks="hardware")
        assert_agrees(batch, out, lse, scales=[given.get(name, [None]) for name in "qkv"])
    except (AssertionError, RaceError):
        return False
    return True


def of_other_key(made):
    return lambda cfg, args, work, key, exists=True: made(cfg, args, work, key ^ 1, exists)


def of_other_head(made):
    def of_key(cfg, args, work, key, exists=True):
        tile = replace(work.tile, kv_head=1 - work.tile.kv_head)
        return made(cfg, args, replace(work, tile=tile), key, exists)

    return of_key


def of_next_tile(made):
    return lambda cfg, args, work, *rest: made(cfg, args, work, *rest[:-2], rest[-2] + 1, rest[-1])


def released_at_once(made):
    """The entry goes back to the scales warp before it has been read."""

    def entry_of(cfg, order, smem, events, *where):
        entry = made(cfg, order, smem, events, *where)
        events.scales_empty.arrive(entry.slot)
        return entry

    return entry_of


def nothing(made):
    return lambda *given: None


# name -> (family, [(module, what is replaced, the replacement made from it)])
DEFECTS = {
    "the scale of the neighbouring key": ("mha2q", [(scales, "of_key", of_other_key)]),
    "the scale of the neighbouring thread's key": ("mhaswap", [(scales, "of_key", of_other_key)]),
    "the scales of the other head": ("mhaswap", [(scales, "of_key", of_other_head)]),
    "the scales of the next key tile": ("mha2q", [(role, "load_tile", of_next_tile)]),
    "a thread's scale of the next key tile": ("mhaswap", [(of_threads, "read", of_next_tile)]),
    "an entry of the ring is released too early": (
        "mha2q", [(steps, "entry_of", released_at_once), (steps, "release", nothing)],
    ),
    "one of a warpgroup's own entries is released too early": (
        "mha1q", [(steps, "entry_of", released_at_once), (steps, "release", nothing)],
    ),
    "O keeps the unit of the tile before": ("mha2q", [(steps, "factor_of_o", lambda made: lambda *given: given[-1])]),
    "O of a thread's depth keeps it": ("mhaswap", [(of_threads, "growth", nothing)]),
    "the row sum has no unit": ("mha2q", [(steps, "in_unit_of_o", lambda made: lambda *given: given[-1])]),
    "both O are merged in one unit": ("mha1q", [(steps, "handed_unit", lambda made: lambda *given: Float32(1.0))]),
    "the unit is that of the latest tile": (
        "mha2q", [(steps, "unit_bits", lambda made: lambda largest, before: made(largest, before ^ before))],
    ),
    "a warp's unit is its own": (
        "mhaswap", [(of_threads, "new_unit", lambda made: lambda cfg, smem, number, of: of.unit | 0x3F800000)],
    ),
    "K is not scaled": ("mha2q", [(steps, "first_word", lambda made: lambda cfg, name: made(cfg, "v"))]),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    family, changes = DEFECTS[name]
    for module, attribute, change in changes:
        monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert not is_right(monkeypatch, family), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize("family", QUERIES)
def test_without_a_mistake_the_numbers_are_right(monkeypatch, family):
    assert is_right(monkeypatch, family)
