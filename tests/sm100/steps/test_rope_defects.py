"""Mistakes with columns of K from a separate tensor, planted in the kernels' sources, are noticed.

The subject: two sequences whose second begins amid a tile of the first, pages of 48 rows that are no part of a tile,
two heads; 128 + 64 columns, whose shared ones are outside the ring, and 64 + 32, where they are in the slot.
"""

import pytest
from cutlass import Int32

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.blueprint.tiles import Tiles
from cute_fa4.sm100.operands import rope as operands
from cute_fa4.sm100.operands.kv_buffer import KVBuffer
from cute_fa4.sm100.steps import rope_rows
from cute_fa4.sm100.sync.pipelines import TMAProducerPipeline
from cute_fa4.sm100.wide import loads as wide_loads
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import assert_agrees, packed_q, run
from tests.serving.test_k_rope import causal, draw, stored

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

DEPTHS = {"beside the ring": (128, 64, 128), "in the slot": (64, 32, 64), "units": (128, 64, 256)}


def is_right(depths, rope_page: int, layout: str = "packed") -> bool:
    repeat.clear()
    batch = draw([140, 3], [150, 260], depths=depths)
    keys, _ = stored(batch, depths[0], layout, rope_page)
    try:
        assert_agrees(batch, *run(packed_q(batch), keys, causal=True), visible=causal)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def of_tile(change):
    """Rows of another key tile."""
    return lambda made: (
        lambda cfg, args, work, n, entries, of_k: made(cfg, args, work, change(n), entries, of_k)
    )


def shifted(made):
    """The copy goes one span further on than it should."""

    def buffer(cfg, ring_address, rope):
        found = made(cfg, ring_address, rope)
        span = cfg.tiles.k_rows_per_cta * 128
        return KVBuffer(found.config, found.ring_address - span, found.tma)

    return buffer


def of_sequence_0(made):
    def look_up(cfg, args, work, n):
        return made(cfg, args, Elsewhere(work), n)

    return look_up


class Elsewhere:
    """A work tile that says of itself that it belongs to the first sequence."""

    def __init__(self, work):
        self.tile, self.tiles = work.tile, work.tiles
        self.sequence = Renamed(work.sequence)


class Renamed:
    def __init__(self, sequence):
        self.batch, self.num_keys = Int32(0), sequence.num_keys
        self.k_first_row = sequence.k_first_row


def half_of_the_room(made):
    def keys(cfg, args, work, n):
        first, end = made(cfg, args, work, n)
        return first, end // 2

    return keys


def fewer_bytes(made):
    return property(lambda self: (*made.fget(self)[:-1], made.fget(self)[-1] // 2))


# name -> (what is changed, the attribute, the change, the depths, rows of a page)
DEFECTS = {
    "the rope of the next tile": (rope_rows, "rows_of", of_tile(lambda n: n + 1), "beside the ring", 48),
    "the rope of the next tile, gathered": (rope_rows, "rows_of", of_tile(lambda n: n + 1), "in the slot", 3),
    "pages of the first sequence": (rope_rows, "look_up", of_sequence_0, "beside the ring", 48),
    "pages of the first sequence, gathered": (rope_rows, "look_up", of_sequence_0, "in the slot", 3),
    "over the columns of the head": (operands, "rope_buffer", shifted, "in the slot", 48),
    "over the last slot of the ring": (operands, "rope_buffer", shifted, "beside the ring", 48),
    "half of the bytes are announced": (Tiles, "bytes_of_stages", fewer_bytes, "beside the ring", 48),
    "half of the bytes are announced, in the slot": (Tiles, "bytes_of_stages", fewer_bytes, "in the slot", 0),
    "half of the keys": (rope_rows, "keys_in_pages", half_of_the_room, "beside the ring", 48),
    "the place is not awaited": (
        TMAProducerPipeline, "acquire_rest", lambda made: lambda self, slot: None, "beside the ring", 48,
    ),
    "units of the head alone": (
        wide_loads, "k_span", lambda made: lambda cfg, k, rope, unit, span: made(cfg, k, rope, 0, span), "units", 16,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    owner, attribute, change, depths, rope_page = DEFECTS[name]
    changed = change(getattr(owner, attribute))
    monkeypatch.setattr(owner, attribute, changed)
    if attribute == "rope_buffer":  # imported by name
        monkeypatch.setattr(rope_rows, attribute, changed)
    assert not is_right(DEPTHS[depths], rope_page), "nothing noticed"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "depths, rope_page", [("beside the ring", 48), ("in the slot", 3), ("units", 16)]
)
def test_without_one_nothing_is(own_kernels, depths, rope_page):
    assert is_right(DEPTHS[depths], rope_page)
