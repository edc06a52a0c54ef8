"""Mistakes with scales of 8-bit tensors, planted in the kernels' sources, are noticed by the bound of P's rounding.

The subject: two sequences of different lengths in pages, two key/value heads, every scale another number, a sink; in
tiles of 128 rows, and in tiles of 32 rows with swapped operands, there also with a scale for each query and head.
"""

import itertools

import pytest
import torch
from cutlass import Float32

from cute_fa4.calls import repeat
from cute_fa4.sm100.append.kernel import AppendKernel
from cute_fa4.sm100.few_rows import columns, softmax
from cute_fa4.sm100.steps import row_math
from cute_fa4.sm100.work import scales
from tests.emulator.mutations.quick import OF_SOURCES, mark, quick_or_sweep
from tests.serving.batches import SPARE_ROWS, Batch, assert_agrees, packed_q, paged_kv, run
from tests.suite import turns

NUMBERS = torch.tensor([[0.5, 0.9], [1.4, 2.0]])  # of two sequences and two heads
BATCH = Batch.draw([9, 5], [40, 140], heads=(4, 2), dtype=torch.float8_e4m3fn)
SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])


TILES = {"rows of 128": "off", "swapped": "auto"}


def powers(queries: int, first: int) -> torch.Tensor:
    """Scales of two, for the rows of a sequence from this first row: the rows of a tile have different ones."""
    return 2.0 ** ((torch.arange(queries)[:, None] + first + torch.arange(4)) % 3)


POWERS = [powers(n, first) for n, first in zip(BATCH.queries, (0, BATCH.queries[0]), strict=True)]
# What BATCH means with these: e4m3 holds it exactly.
MEANT = Batch(
    [(q.float() * p[..., None]).to(q.dtype) for q, p in zip(BATCH.q, POWERS, strict=True)],
    BATCH.k,
    BATCH.v,
)


def of_rows(numbers) -> torch.Tensor:
    """The scale of each query and head of packed_q(BATCH): of its sequence and key/value head, times its power."""
    scales = [p * n.repeat_interleave(2) for p, n in zip(POWERS, numbers, strict=True)]
    return torch.cat([*scales, torch.ones(SPARE_ROWS, 4)])[..., None]


def is_right(monkeypatch, tiles: str = "swapped", by_row: bool = False) -> bool:
    monkeypatch.setenv("CUTE_FA4_SWAP", TILES[tiles])
    repeat.clear()
    given = dict(q_descale=NUMBERS.flip(0), k_descale=NUMBERS, v_descale=NUMBERS.flip(1))
    meant = list(given.values())
    if by_row:
        given["q_descale"] = of_rows(given["q_descale"])
    out, lse = run(packed_q(BATCH), paged_kv(BATCH, 16), given, causal=True, learnable_sink=SINK)
    batch = MEANT if by_row else BATCH
    try:
        assert_agrees(batch, out, lse, visible=lambda p, j: j <= p, sink=SINK, scales=meant)
    except AssertionError:
        return False
    return True


def at(batch, head):
    """_product that reads other places: functions of what it should read."""

    def product(cfg, args, work, names):
        found = None
        for (name, kind), tensor in zip(cfg.descales.given, args.descales, strict=True):
            if kind == "head" and name in names:
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
EVERY = itertools.product(DEFECTS, TILES)


@pytest.mark.parametrize(
    "name, tiles",
    [
        pytest.param(*case, marks=mark(turns.taken(number, OF_SOURCES), OF_SOURCES))
        for number, case in enumerate(EVERY)
    ],
)
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name, tiles):
    module, attribute, change = DEFECTS[name]
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    assert not is_right(monkeypatch, tiles), "nothing noticed"


# name -> (module, what is replaced, the replacement made from it), of scales of each query and head
DEFECTS_OF_ROWS = {
    "the scale of the next row": (softmax, "own_row", lambda made: lambda *given: shifted(made(*given))),
    "the scale of the row of another lane": (columns, "read", lambda made: next_row_of_scales(made)),
    "the scales of rows are left out": (softmax.OwnScales, "publish", lambda made: without_scales),
}  # fmt: skip


def shifted(row):
    return type(row)(row.q_index + 1, row.head)


def next_row_of_scales(made):
    def read(smem, place, kind, first, number):
        values = made(smem, place, kind, first, number)
        return values[1:] + values[:1] if kind == columns.SCALE else values

    return read


def without_scales(self, cfg, args, smem, events, work, place, before):
    one = [Float32(1.0)] * cfg.tiles.rows_per_lane
    columns.publish(smem, place, columns.SCALE, one)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_ROWS, OF_SOURCES))
def test_a_mistake_with_scales_of_rows_is_noticed(own_kernels, monkeypatch, name):
    module, attribute, change = DEFECTS_OF_ROWS[name]
    monkeypatch.setattr(module, attribute, change(getattr(module, attribute)))
    if attribute == "read":  # softmax has it by name
        monkeypatch.setattr(softmax, attribute, getattr(columns, attribute))
    assert not is_right(monkeypatch, by_row=True), "nothing noticed"


@pytest.mark.sweep
def test_without_a_mistake_the_numbers_are_right(monkeypatch):
    assert is_right(monkeypatch) and is_right(monkeypatch, "rows of 128")
    assert is_right(monkeypatch, by_row=True)


@pytest.mark.sweep
def test_rows_divided_by_the_other_scale_are_noticed(own_kernels, monkeypatch):
    from tests.serving import test_fp8

    made = AppendKernel.scales
    monkeypatch.setattr(AppendKernel, "scales", lambda self, *given: made(self, *given)[::-1])
    with pytest.raises(AssertionError):
        test_fp8.test_rows_of_16_bits_go_into_a_cache_of_8_and_queries_of_16_read_it()
