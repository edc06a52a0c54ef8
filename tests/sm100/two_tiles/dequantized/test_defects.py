"""Mistakes of the warps that dequantize K and V in their slots, planted in the kernel's sources, are noticed.

The subject: 300 queries in three query tiles on 400 keys, so that slots of the ring are used again with the other
parity, and a short sequence, in pages.
"""

import pytest

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.two_tiles.dequantized import dequantize
from tests.emulator.mutations.quick import quick_or_sweep
from tests.serving.batches import FP8, Batch, assert_agrees, packed_q, paged_kv, run
from tests.sm100.steps import raw_row_defects

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def is_right(mode: str, seed: int) -> bool:
    repeat.clear()
    batch = Batch.draw([300, 33], [400, 130], heads=(1, 1), depth=128)
    batch = Batch(batch.q, *([x.to(FP8[0]) for x in xs] for xs in (batch.k, batch.v)))
    storage = packed_q(batch), paged_kv(batch, 16)
    try:
        results = run(*storage, causal=True, q_quantize="never", mode=mode, seed=seed)
        assert_agrees(batch, *results, visible=lambda p, j: j <= p)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def of_the_other(is_v: bool):
    return lambda made: lambda cfg, line, first, _: made(cfg, line, first, is_v)


DEFECTS = raw_row_defects.of_slots(dequantize) | {
    "V as K": (dequantize, "dequantize_key", of_the_other(False)),
    "K as V": (dequantize, "dequantize_key", of_the_other(True)),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, raw_row_defects.QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    raw_row_defects.is_noticed(monkeypatch, DEFECTS[name], name, is_right)
