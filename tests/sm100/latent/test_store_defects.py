"""Mistakes in how four lanes exchange columns before they store (sm100/few_rows/four_lanes.py), over latent caches.

The subjects: a query over 150 keys, with fewer heads than the 64, 16 or, over rows of 656 bytes, 32 rows of a tile.
"""

from __future__ import annotations

import pytest

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.few_rows import store
from cute_fa4.sm100.few_rows.four_lanes import FourLanes
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent.dequantized.row_batches import Call, check
from tests.sm100.latent.latent_batches import agree, draw, run, stored
from tests.sm100.steps.raw_row_defects import is_noticed

HEADS = {"64 rows": 40, "16 rows": 6}
ROWS = "rows of 656 bytes"


def is_right(kind: str, mode: str, seed: int) -> bool:
    """Whether a call agrees with float64."""
    repeat.clear()
    try:
        if kind == ROWS:
            check(Call(20, 1, 64, (150,), mode, options={"num_splits": 1}))
        else:
            batch = draw(1, [150], heads=HEADS[kind])
            out, lse = run(stored(batch, 64), mode=mode, seed=seed, num_splits=1)
            agree(batch, out, lse, False)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


DEFECTS = {
    "lanes take the words of each other's neighbor": (
        FourLanes, "_from", lambda made: lambda self, lanes, word: made(self, 3 - lanes, word),
    ),
    "rows of a four are exchanged": (
        FourLanes, "row_of", lambda made: lambda self, values, dtype: made(self, values[::-1], dtype),
    ),
    "a lane stores the columns of the four before": (
        store, "address_of", lambda made: lambda o, at: made(o, (*at[:-1], (at[-1] - 4) % 512)),
    ),
    "rows that do not exist are stored": (
        store, "store_if", lambda made: lambda exists, address, words: made(exists | True, address, words),
    ),
}  # fmt: skip
CASES = {f"{name}, {kind}": (name, kind) for name in DEFECTS for kind in (*HEADS, ROWS)}
QUICK = ("rows of a four are exchanged, 16 rows",)


@pytest.mark.parametrize("case", quick_or_sweep(CASES, QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, case):
    name, kind = CASES[case]
    is_noticed(monkeypatch, DEFECTS[name], name, lambda *schedule: is_right(kind, *schedule))


@pytest.mark.parametrize("kind", [*HEADS, ROWS])
def test_calls_agree_with_float64(kind):
    assert is_right(kind, "hostile", 1)
