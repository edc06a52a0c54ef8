"""Mistakes of the warps that dequantize K and V in their slots, planted in the kernel's sources, are noticed.

The subject: 300 queries in three query tiles on 400 keys, so that slots of the ring are used again with the other
parity, and a short sequence, in pages.
"""

import cutlass.cute as cute
import pytest

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.two_tiles.dequantized import dequantize
from tests.serving.batches import FP8, Batch, assert_agrees, packed_q, paged_kv, run

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
SCHEDULES = (("in_order", 0), ("hostile", 1), ("hostile", 2), ("random", 3))


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


def without_fence(made):
    return lambda kv, at: cute.arch.mbarrier_arrive(kv.full + at.index)


def fence_behind(made):
    def complete(kv, at):
        cute.arch.mbarrier_arrive(kv.full + at.index)
        cute.arch.fence_proxy("async.shared", space="cta")

    return complete


def twice(made):
    def complete(kv, at):
        made(kv, at)
        cute.arch.mbarrier_arrive(kv.full + at.index)

    return complete


def of_keys(change):
    return lambda made: lambda cfg, line, first, is_v: made(cfg, *change(line, first), is_v)


# name -> (function of `dequantize`, the change)
DEFECTS = {
    "no fence before the tensor core": ("complete", without_fence),
    "the fence comes late": ("complete", fence_behind),
    "kv_full is raised twice": ("complete", twice),
    "kv_full is not raised": ("complete", lambda made: lambda kv, at: None),
    "rows are not awaited": ("await_raw", lambda made: lambda events, at: None),
    "the parity of the other turn": (
        "await_raw", lambda made: lambda events, at: events.raw_full.wait(at.index, at.phase ^ 1),
    ),
    "half of the keys": ("dequantize_key", of_keys(lambda line, first: (line, 0))),
    "rows without their swizzle": ("line_of", lambda made: lambda address, key: address + key * 128),
    "rows of the next key": ("line_of", lambda made: lambda address, key: made(address, key ^ 1)),
    "V as K": ("dequantize_key", lambda made: lambda cfg, line, first, is_v: made(cfg, line, first, False)),
    "K as V": ("dequantize_key", lambda made: lambda cfg, line, first, is_v: made(cfg, line, first, True)),
    "another dtype of 8 bits": ("as_fp16", lambda made: lambda words, dtype: made(words, "e5m2")),
}  # fmt: skip
# The thread of the next key converts it in its place: only the thread differs.
EQUIVALENT = ("rows of the next key",)
QUICK = ("no fence before the tensor core", "rows are not awaited")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.sweep) for name in DEFECTS]
)  # fmt: skip
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    attribute, change = DEFECTS[name]
    monkeypatch.setattr(dequantize, attribute, change(getattr(dequantize, attribute)))
    right = [is_right(*schedule) for schedule in SCHEDULES]
    assert all(right) if name in EQUIVALENT else not all(right), right
