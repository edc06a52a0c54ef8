"""Mistakes of the warps that dequantize RoPE columns, planted in the kernel's sources, are noticed.

The subject is that of the attention test: 300 queries in three query tiles on 310 keys, so that slots of the ring are
used again with the other parity, and a short sequence, in pages, with a scale for each key.
"""

import cutlass.cute as cute
import pytest
from cutlass import Float32, Int32

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.steps.store import PIECE_BYTES
from cute_fa4.sm100.wide.dequantized_rope import dequantize, kernel
from cute_fa4.sm100.wide.dequantized_rope.kernel import Dequantized
from cute_fa4.sm100.work import scales
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import assert_agrees
from tests.sm100.wide.dequantized_rope.test_attention import causal, found

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def is_right(mode: str, seed: int) -> bool:
    repeat.clear()
    try:
        batch, results = found("packed, pages of 48, scales", mode=mode, seed=seed)
        assert_agrees(batch, *results, visible=causal)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def without_fence(made):
    return lambda threads: cute.arch.barrier(
        barrier_id=dequantize.DEQUANTIZED, number_of_threads=threads
    )


def without_the_other_warp(made):
    return lambda threads: cute.arch.fence_proxy("async.shared", space="cta")


def piece_by_piece(made):
    """Loads a piece of eight bits when others have been stored over it."""

    def dequantize_key(cfg, address, key, *scale):
        load = dequantize.load_piece
        first = []

        def late(at):
            first.append(at)
            return load(first[0])

        dequantize.load_piece = late
        try:
            made(cfg, address, key, *scale)
        finally:
            dequantize.load_piece = load

    return dequantize_key


def announced_at_the_slot(made):
    return lambda self, cfg, events, kv, at, unit: kv.get_v(at)


def of_scales(change):
    """The value of another key tile, or of another thread."""
    return lambda made: lambda cfg, args, work, *given: made(cfg, args, work, *change(*given))


# name -> (whose attribute, which, the change)
DEFECTS = {
    "no fence before the tensor core": (dequantize, "complete", without_fence),
    "one warp does not wait for the other": (dequantize, "complete", without_the_other_warp),
    "the columns are not awaited": (dequantize, "await_raw", lambda made: lambda *given: None),
    "the parity stays": (dequantize, "turned", lambda made: lambda phases, at: phases),
    "the parity of another slot": (
        dequantize, "turned", lambda made: lambda phases, at: phases ^ (Int32(2) << at.index),
    ),
    "the next unit": (
        dequantize, "further", lambda made: lambda at, number, slots: made(at, number - 1, slots),
    ),
    "pieces are those of the first": (dequantize, "dequantize_key", piece_by_piece),
    "keys of another row": (
        dequantize, "dequantize_key", lambda made: lambda cfg, address, key, scale: made(cfg, address, key ^ 64, scale),
    ),
    "every key by its neighbour": (
        dequantize, "dequantize_key", lambda made: lambda cfg, address, key, scale: made(cfg, address, key | 1, scale),
    ),
    "half of the keys": (
        dequantize, "dequantize_key", lambda made: lambda cfg, address, key, scale: made(cfg, address, key & 63, scale),
    ),
    "numbers of fp16": (dequantize.row_math, "pack", lambda made: lambda values, dtype: made(values, "fp16")),
    "another dtype of 8 bits": (
        dequantize, "as_fp16", lambda made: lambda words, dtype: made(words, "e5m2"),
    ),
    "no scale": (
        dequantize, "dequantize_key",
        lambda made: lambda cfg, address, key, scale: made(cfg, address, key, Float32(1.0)),
    ),
    "scales of the tile before": (dequantize, "scales_of", of_scales(lambda n, end, thread: (n - 1, end, thread))),
    "scales of the next key": (dequantize, "scales_of", of_scales(lambda n, end, thread: (n, end, thread + 1))),
    "scales of every tile are those of the first": (
        dequantize, "scales_of", of_scales(lambda n, end, thread: (Int32(0), end, thread)),
    ),
    "no scales in the last tile": (dequantize, "scales_of", of_scales(lambda n, end, thread: (n, end - 1, thread))),
    "scales of pages in order": (
        scales, "_entry_of_table", lambda made: lambda table, row, page, exists: page,
    ),
    "scales of the first sequence": (
        scales, "_entry_of_table", lambda made: lambda table, row, page, exists: made(table, Int32(0), page, exists),
    ),
    "announced at the slot": (Dequantized, "announced", announced_at_the_slot),
    "half of the bytes": (
        Dequantized, "announced",
        lambda made: lambda self, cfg, events, kv, at, unit: kv.get_v(at)
        if unit < cfg.tiles.k_units - 1
        else events.rope_raw.arrive_and_expect(at.index, cfg.tiles.kv_slot_bytes // 2),
    ),
}  # fmt: skip
# The same keys, each by another thread, which has the scale of its own: noticed by the scale.
EQUIVALENT = ()
SCHEDULES = (("in_order", 0), ("hostile", 1), ("hostile", 2), ("random", 3))


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    owner, attribute, change = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    right = [is_right(*schedule) for schedule in SCHEDULES[: 4 if name in EQUIVALENT else None]]
    assert all(right) if name in EQUIVALENT else not all(right), right


def test_the_list_names_what_there_is():
    assert len(DEFECTS) == 21 and set(EQUIVALENT) <= set(DEFECTS)
    assert kernel.KERNEL.__name__ == "SM100MHARope" and PIECE_BYTES == 16
