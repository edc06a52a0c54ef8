"""Mistakes with scales of 8-bit tensors, planted in the kernels' sources, are noticed by the bound of P's rounding.

The subject: two sequences of different lengths in pages, two key/value heads, every scale another number, and a sink.
"""

import pytest
import torch

from cute_fa4.sm100.append.kernel import AppendKernel
from cute_fa4.sm100.steps import row_math
from cute_fa4.sm100.work import scales
from tests.serving.batches import Batch, assert_agrees, packed_q, paged_kv, run

NUMBERS = torch.tensor([[0.5, 0.9], [1.4, 2.0]])  # of two sequences and two heads
BATCH = Batch.draw([9, 5], [40, 140], heads=(4, 2), dtype=torch.float8_e4m3fn)
SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])


def is_right() -> bool:
    given = dict(q_descale=NUMBERS.flip(0), k_descale=NUMBERS, v_descale=NUMBERS.flip(1))
    out, lse = run(packed_q(BATCH), paged_kv(BATCH, 16), given, causal=True, learnable_sink=SINK)
    try:
        assert_agrees(
            BATCH, out, lse, visible=lambda p, j: j <= p, sink=SINK, scales=list(given.values())
        )
    except AssertionError:
        return False
    return True


def at(batch, head):
    """_product that reads other places: functions of what it should read."""

    def product(cfg, args, work, names):
        found = None
        for name, tensor in zip(cfg.descales, args.descales, strict=True):
            if name in names:
                place = batch(work.sequence.batch), head(work.tile.kv_head)
                found = scales.times(tensor[place], found)
        return found

    return lambda made: product


def same(number):
    return number


# name -> (module, what is replaced, the replacement made from it)
DEFECTS = {
    "the scales of the other head": (scales, "_product", at(same, lambda head: 1 - head)),
    "the scales of the other sequence": (scales, "_product", at(lambda b: 1 - b, same)),
    "sequence and head are mixed up": (scales, "_product", at(lambda b: b * 0, lambda h: h * 0)),
    "scores are not multiplied": (scales, "of_scores", lambda made: lambda *given: None),
    "out is not multiplied": (scales, "of_output", lambda made: lambda *given: None),
    "out is multiplied by all scales": (
        scales, "of_output", lambda made: lambda cfg, args, work: scales._product(cfg, args, work, "qkv"),
    ),
    "the lift of P stays in the log-sum-exp": (
        row_math, "log2_of_sum", lambda made: lambda row_sum, lift: made(row_sum, 0.0),
    ),
}  # fmt: skip
QUICK = ("the scales of the other head",)


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.sweep) for n in DEFECTS]
)
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    module, attribute, change = DEFECTS[name]
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert not is_right(), "nothing noticed"


@pytest.mark.sweep
def test_without_a_mistake_the_numbers_are_right():
    assert is_right()


@pytest.mark.sweep
def test_rows_divided_by_the_other_scale_are_noticed(own_kernels, monkeypatch):
    from tests.serving import test_fp8

    made = AppendKernel.scales
    monkeypatch.setattr(AppendKernel, "scales", lambda self, *given: made(self, *given)[::-1])
    with pytest.raises(AssertionError):
        test_fp8.test_rows_of_16_bits_go_into_a_cache_of_8_and_queries_of_16_read_it()
