"""Packed sequences on their line: a kernel of one warp says who is at every number, as Python does."""

import random

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Int32
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator, masks
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.work import line, packed_order
from cute_fa4.sm100.work.packed_order import PackedOrder
from cute_fa4.sm100.work.sequence import Lengths

HEADS = 2
CFG = FA4Config(mask=masks.Full(), q_layout="packed", kv_layout="packed")
ROWS = CFG.tiles.positions_per_block
BEYOND = 3  # numbers asked for that no sequence has
PAIRS = (
    (0, 300),
    (100, 300),
    (300, 300),
    (257, 0),
    (256, 2000),
)  # (queries, keys): ties, none of either


@cute.kernel
def ask(lengths: Lengths, order: PackedOrder, total_k: Int32, asked: cute.Tensor):
    """A number, and room for one more, become (sequence, number within it)."""
    held = line.Held.none(order)
    for i in cutlass.range(0, asked.shape[0], 2):
        of, inside, held = line.find(CFG, lengths, Int32(0), total_k, order, (), asked[i], held)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            asked[i], asked[i + 1] = of.batch, inside


@cute.jit
def look_up(
    cu_q: cute.Tensor,
    cu_k: cute.Tensor,
    asked: cute.Tensor,
    total_q: Int32,
    total_k: Int32,
):
    batch = Int32(cu_q.shape[0]) - 1
    order = PackedOrder(batch, Int32(HEADS), packed_order.sequences_held(batch))
    lengths = Lengths(cu_q, cu_k, total_q=total_q)
    ask(lengths, order, total_k, asked).launch(grid=[1, 1, 1], block=[32, 1, 1])


def vector():
    return make_fake_compact_tensor(cutlass.Int32, (cute.sym_int(),), assumed_align=4)


def offsets(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.fixture(scope="module")
def find():
    """find(sequences, numbers) -> [(sequence, number within it)]; sequences: (queries, keys) of each."""
    fake = [vector() for _ in range(3)]
    kernel = emulator.compile(look_up, *fake, Int32(0), Int32(0))

    def run(sequences, numbers):
        queries, keys = zip(*sequences, strict=True)
        asked = torch.tensor(numbers, dtype=torch.int32).repeat_interleave(2)
        kernel(offsets(queries), offsets(keys), asked, sum(queries), sum(keys))
        return [tuple(pair) for pair in asked.view(-1, 2).tolist()]

    return run


def on_the_line(sequences):
    """(sequence, number within it) of every number."""
    line_order = packed_order.in_order([keys for _, keys in sequences])
    counts = {n: -(-sequences[n][0] // ROWS) * HEADS for n in line_order}
    return [(n, inside) for n in line_order for inside in range(counts[n])]


# One; a warp's fewest and most; 33: two holds, the longest last of all; 70: three.
@pytest.mark.parametrize("number", [1, 5, 32, 33, 70])
def test_the_sequences_of_the_most_keys_come_first(find, number):
    draw = random.Random(number)
    sequences = [draw.choice(PAIRS) for _ in range(number - 1)] + [(600, 5000)]
    expected = on_the_line(sequences)
    there = len(expected)
    found = find(sequences, [*range(there + BEYOND), 0])
    assert found[:there] == expected and found[-1] == expected[0]
    for sequence, inside in found[there:-1]:
        assert inside >= -(-sequences[sequence][0] // ROWS) * HEADS, "after its last block"
    held = packed_order.sequences_held(number)
    keys = [sequences[sequence][1] for sequence in dict(expected)]
    if number <= line.LANES:
        assert keys == sorted(keys, reverse=True)
    else:  # the longest, and the remainder of the last hold after it
        order = packed_order.in_order([keys for _, keys in sequences])
        assert len(order) - order.index(number - 1) == (number - 1) % held + 1 >= line.LANES // 2
