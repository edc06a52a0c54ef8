"""The order of warps and completions changes nothing: a result that depends on it is a race.

hostile lets every copy, MMA and remote arrival complete as late as it can; random draws the next
warp or completion from a seed. The kernel has no atomics and no order of its own to choose, so
results are compared bit by bit.
"""

import pytest
import torch

from tests.attention.agreement import IN_ORDER, Schedule, attention
from tests.cases import Case

SCHEDULES = [Schedule("hostile"), Schedule("random", 1), Schedule("random", 2)]

CASES = [
    Case("one tile: every barrier in its first phase", seqlen_q=40, seqlen_k=40, head_dim=64),
    Case("rescales in every tile", seqlen_q=256, seqlen_k=384, values="rising_maximum"),
    Case(
        "more key tiles than slots of the ring, the diagonal in the last two",
        seqlen_q=256,
        seqlen_k=900,
        causal=True,
    ),
    Case(
        "a CTA without keys, one with one tile, clipped rows: every exit",
        heads_q=2,
        seqlen_q=600,
        seqlen_k=100,
        head_dim=80,
        causal=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_do_not_depend_on_the_schedule(case):
    tensors = case.tensors()

    def run(schedule):
        return attention(*tensors, **case.options, return_lse=True, schedule=schedule)

    expected = run(IN_ORDER)
    for schedule in SCHEDULES:
        out, lse = run(schedule)
        assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1]), schedule
