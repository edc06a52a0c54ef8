"""Mistakes in the steps that dequantize rows in their slots (steps/raw_rows.py), for every family that takes them.

A family's `dequantize` module has a `dequantize_key` whose second and third arguments are the line of the thread and
the first byte of the key's.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import cutlass.cute as cute
from cutlass import Boolean

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.steps import cache_blocks, raw_rows
from cute_fa4.tma import paged_rows
from tests.serving.batches import Batch, assert_agrees, packed_q, run
from tests.serving.test_nvfp4 import Cache


def without_fence(made):
    return lambda kv, at: cute.arch.mbarrier_arrive(kv.full + at.index)


def fence_after(made):
    def complete(kv, at):
        cute.arch.mbarrier_arrive(kv.full + at.index)
        cute.arch.fence_proxy("async.shared", space="cta")

    return complete


def twice(made):
    def complete(kv, at):
        made(kv, at)
        cute.arch.mbarrier_arrive(kv.full + at.index)

    return complete


def of_slots(dequantize: ModuleType) -> dict[str, tuple[ModuleType, str, Callable]]:
    """name -> (whose attribute, which, the change). dequantize: of the family."""
    return {
        "no fence before the tensor core": (raw_rows, "complete", without_fence),
        "the fence comes late": (raw_rows, "complete", fence_after),
        "kv_full is raised twice": (raw_rows, "complete", twice),
        "kv_full is not raised": (raw_rows, "complete", lambda made: lambda kv, at: None),
        "rows are not awaited": (raw_rows, "await_raw", lambda made: lambda events, at: None),
        "the parity of the other turn": (
            raw_rows, "await_raw", lambda made: lambda events, at: events.raw_full.wait(at.index, at.phase ^ 1),
        ),
        "half of the keys": (
            dequantize, "dequantize_key", lambda made: lambda cfg, line, first, *more: made(cfg, line, 0, *more),
        ),
        "rows without their swizzle": (
            raw_rows, "line_of", lambda made: lambda address, key: address + key * 128,
        ),
        "rows of the next key": (
            raw_rows, "line_of", lambda made: lambda address, key: made(address, key ^ 1),
        ),
        "another dtype of 8 bits": (
            raw_rows, "as_16_bits", lambda made: lambda words, stored, dtype: made(words, "e5m2", dtype),
        ),
    }  # fmt: skip


def of_blocks() -> dict[str, tuple[ModuleType, str, Callable]]:
    """The same of scales of blocks (steps/cache_blocks.py)."""
    return {
        "scales are those of the key tile before": (
            cache_blocks, "of_tile", lambda made: lambda cfg, work, key, n: made(cfg, work, key, n - (n > 0)),
        ),
        "the page of a key is that of its row in the tile before": (
            cache_blocks, "_row_of", lambda made: lambda *given: made(*given[:-1], given[-1] - (given[-1] > 0)),
        ),
        "scales are read whether or not the key exists": (
            paged_rows, "load_at_once", lambda made: lambda x, at, wanted, *dtype: made(x, at, Boolean(True), *dtype),
        ),
        "blocks of a piece are one on": (
            cache_blocks, "scaled", lambda made: lambda dtypes, words, of, column: made(dtypes, words, of, column + 16),
        ),
        "every block has the scale of the next": (
            cache_blocks, "both_halves", lambda made: lambda pair: made(pair)[::-1],
        ),
    }  # fmt: skip


def is_right_over_blocks(
    keys: int, queries: int, depths: dict, mode: str, seed: int, of: str = "nvfp4"
) -> bool:
    """A call over a cache in pages of 16, whose scales all differ, of one head. depths: of "k" and "v"."""
    repeat.clear()
    cache = Cache.draw([keys], 1, depths, of=of)
    q = Batch.draw([queries], [keys], heads=(1, 1), depth=depths["k"]).q
    batch = Batch(q, cache.meant("k"), cache.meant("v"))
    try:
        results = run(packed_q(batch), cache.stored(q, 16, "NHD"), {}, mode=mode, seed=seed)
        assert_agrees(batch, *results)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


# The thread of the next key converts it in its place: only the thread differs.
EQUIVALENT = ("rows of the next key",)
QUICK = ("no fence before the tensor core", "rows are not awaited")
SCHEDULES = (("in_order", 0), ("hostile", 1), ("hostile", 2), ("random", 3))


def is_noticed(monkeypatch, defect: tuple, name: str, is_right: Callable) -> None:
    """Plant a defect of a table as above; is_right(mode, seed) runs the subject."""
    owner, attribute, change = defect
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    right = [is_right(*schedule) for schedule in SCHEDULES]
    assert all(right) if name in EQUIVALENT else not all(right), right
