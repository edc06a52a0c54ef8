"""Mistakes of the warps that dequantize K and V in their slots, planted in the kernel's sources, are noticed.

The subject: 300 queries in three query tiles on 400 keys, so that slots of the ring are used again with the other
parity, and a short sequence, in pages.
"""

from dataclasses import replace
from functools import partial

import cutlass.cute as cute
import pytest

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.steps import pieces
from cute_fa4.sm100.sync.pipelines import (
    ConsumerBesideRests,
    KVConsumerPipeline,
    SlotBesideRests,
)
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
    return lambda made: lambda cfg, line, first, of: made(cfg, line, first, replace(of, is_v=is_v))


DEFECTS = raw_row_defects.of_slots(dequantize) | {
    "V as K": (dequantize, "dequantize_key", of_the_other(False)),
    "K as V": (dequantize, "dequantize_key", of_the_other(True)),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, raw_row_defects.QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    raw_row_defects.is_noticed(monkeypatch, DEFECTS[name], name, is_right)


def is_right_of_4_bits(mode: str, seed: int) -> bool:
    """Four key tiles, and 40 queries, which tiles of few rows do not take."""
    return raw_row_defects.is_right_over_blocks(400, 40, {"k": 128, "v": 128}, mode, seed)


def of_the_other_key(made):
    """A thread takes the scales of its keys in the other order."""

    def of(scales, is_v):
        found = made(scales, is_v)
        return replace(found, words=found.words[::-1])

    return of


def of_k_alone(made):
    """V is multiplied by the scales of K."""
    return lambda scales, is_v: replace(made(scales, is_v), words=made(scales, False).words)


DEFECTS_OF_4_BITS = raw_row_defects.of_blocks() | {
    "the scales of the thread's other key": (dequantize, "tensor_of", of_the_other_key),
    "V has the scales of K": (dequantize, "tensor_of", of_k_alone),
    "scales of the first key tile for all": (
        dequantize,
        "read",
        lambda made: lambda *given: given[-1],
    ),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_4_BITS, ("V has the scales of K",)))
def test_a_mistake_with_scales_of_blocks_is_noticed(own_kernels, monkeypatch, name):
    raw_row_defects.is_noticed(monkeypatch, DEFECTS_OF_4_BITS[name], name, is_right_of_4_bits)


def test_the_subject_of_4_bits_is_right():
    assert is_right_of_4_bits("hostile", 1)


def is_right_of_rests(of: str, mode: str, seed: int) -> bool:
    """Six key tiles of K of 192 columns: three turns of each place of its rest. of: NVFP4 or MXFP8."""
    return raw_row_defects.is_right_over_blocks(700, 300, {"k": 192, "v": 128}, mode, seed, of)


def of_rest_phase(made):
    return property(lambda slot: made.fget(slot) ^ 1)


def without_rest(made):
    """The MMA warp waits for the slot alone."""
    return lambda kv, at, stage: made(kv, at, 0) if stage == 0 else at.slot.index


DEFECTS_OF_RESTS = {
    "one place for all rests": ("nvfp4", SlotBesideRests, "rest", lambda made: property(lambda slot: 0)),
    "the parity of the other turn": ("nvfp4", SlotBesideRests, "rest_phase", of_rest_phase),
    "the slot of K is not awaited": (
        "nvfp4", KVConsumerPipeline, "wait_empty", lambda made: lambda kv, at: None,
    ),
    "the chunk over the row comes first": (
        "nvfp4", dequantize, "chunks_in_slot",
        lambda made: lambda cfg, line, *more: [(2 - n, *at) for n, *at in made(cfg, line, *more)],
    ),
    "raw rows on the barriers of slots": (
        "nvfp4", SlotBesideRests, "raw", lambda made: property(lambda slot: (slot.index, slot.phase)),
    ),
    "the rest is multiplied before it is ready": ("mxfp8", ConsumerBesideRests, "wait_k", without_rest),
    "the rest is handed over without a fence": (
        "mxfp8", dequantize, "hand_over", lambda made: cute.arch.mbarrier_arrive,
    ),
    "the rest has the scales of the first columns": (
        "mxfp8", dequantize, "factors_of_rest", lambda made: lambda cfg, factors: factors,
    ),
}  # fmt: skip
QUICK_OF_RESTS = ("the slot of K is not awaited", "the rest is multiplied before it is ready")


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_RESTS, QUICK_OF_RESTS))
def test_a_mistake_with_a_rest_is_noticed(own_kernels, monkeypatch, name):
    of, *defect = DEFECTS_OF_RESTS[name]
    raw_row_defects.is_noticed(monkeypatch, tuple(defect), name, partial(is_right_of_rests, of))


@pytest.mark.parametrize("subject", (is_right, is_right_of_4_bits), ids=("e4m3", "nvfp4"))
def test_toolkits_before_cuda_13_2_convert_over_float32(own_kernels, monkeypatch, subject):
    """Their PTX converts 8 and 4 bits to fp16 alone; K of a bf16 call goes on from there."""
    made, halves = pieces._as_halves, set()

    def noted(words, stored, to):
        halves.add(to)
        return made(words, stored, to)

    monkeypatch.setattr(pieces, "TO_BF16", False)
    monkeypatch.setattr(pieces, "_as_halves", noted)
    assert subject("hostile", 0)
    assert halves == {"f16x2"}
