"""FROST in the cycle model: its order of work tiles."""

import pytest

from benchmarks.cycle_model import schedules
from benchmarks.cycle_model.kernels import FROST, Variant
from benchmarks.cycle_model.problems import Problem

MIB = 1 << 20


def decoded(linear, heads_q, batch, q_tiles, heads_per_kv, head_bytes, l2_bytes):
    """(row of tiles, head of a sequence) of a CTA: what FROST's decode of its number is, for sections of key heads."""
    groups = heads_q // heads_per_kv * batch
    active = min(max(l2_bytes // head_bytes, 1), groups)
    blocks = -(-groups // active)
    active = -(-groups // blocks)
    block, within = divmod(linear, active * q_tiles * heads_per_kv)
    here = min(active, groups - block * active)
    rank, head = divmod(within, here * heads_per_kv)
    return q_tiles - 1 - rank, block * active * heads_per_kv + head


@pytest.mark.parametrize("batch, heads, kv_heads", [(2, 64, 8), (3, 4, 4), (1, 8, 1)])
@pytest.mark.parametrize("seqlen", [1000, 8192, 65536])
def test_frost_goes_through_sections_of_key_heads_longest_first(batch, heads, kv_heads, seqlen):
    problem = Problem(batch, heads, kv_heads, seqlen, 128, causal=True)
    order = schedules.work_tiles(Variant.of(FROST, problem), problem)
    tiles = -(-seqlen // 512)
    places = [
        decoded(cta, heads, batch, tiles, heads // kv_heads, seqlen * 512, 60 * MIB)
        for cta in range(len(order))
    ]
    assert sorted(places) == [(row, head) for row in range(tiles) for head in range(heads * batch)]
    assert order == [problem.key_tiles(0, 512 * row, 512) for row, _ in places]


def test_frost_without_a_mask_goes_head_by_head():
    problem = Problem(2, 4, 2, 1024, 128, causal=False)
    assert schedules.work_tiles(Variant.of(FROST, problem), problem) == [8] * (2 * 4 * 2)
