"""Defects planted into what lies around the kernel: each must fail the comparison that the other tests make."""

import pytest
import torch

from tests.distributed import cases, oracle, test_decode

SHAPE = (1, 72, 6, 64)
WINDOW = {"causal": True, "window_size": (30, None), "order": "contiguous"}
RING, GATHER, HEADS = (
    {"layout": name, "backend": "sdpa"} for name in ("ring", "all_gather", "all_to_all")
)

SHOWN_BY = {
    "a hop too few": RING,
    "a window one shorter on other ranks": {**RING, **WINDOW},
    "parts added": RING,
    "rows in the order of ranks": {**GATHER, "causal": True},
    "heads of another rank": HEADS,
}
OF_GRADIENTS = {
    "gradients of hops forgotten": RING,
    "gradients in the order of ranks": {**GATHER, "causal": True},
    "heads of another rank": HEADS,
    "a hop too few": RING,
}


@pytest.mark.parametrize("name", SHOWN_BY)
def test_a_planted_defect_is_noticed(pool, name):
    arguments = SHAPE, SHAPE, torch.float32, SHOWN_BY[name]
    oracle.check(pool.run(cases.attend, arguments, 3), *arguments)
    with pytest.raises(AssertionError):
        oracle.check(pool.run(cases.with_defect, (name, cases.attend, *arguments), 3), *arguments)


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_planted_defect_of_gradients_is_noticed(pool, name):
    arguments = SHAPE, SHAPE, torch.float32, OF_GRADIENTS[name], False
    oracle.check_gradients(pool.run(cases.differentiate, arguments, 3), *arguments)
    planted = name, cases.differentiate, *arguments
    with pytest.raises(AssertionError):
        oracle.check_gradients(pool.run(cases.with_defect, planted, 3), *arguments)


def test_a_planted_defect_of_decode_is_noticed(pool):
    form, options = test_decode.problem(3, "page", "three", None, "split", False, None)
    arguments = test_decode.LENGTHS, form, torch.float32, {**options, "backend": "sdpa"}
    test_decode.check(pool.run(cases.decode, arguments, 3), 3, *arguments[1:])
    planted = ("one rank's part forgotten", cases.decode, *arguments)
    with pytest.raises(AssertionError):
        test_decode.check(pool.run(cases.with_defect, planted, 3), 3, *arguments[1:])


def test_every_defect_is_looked_for():
    assert set(cases.DEFECTS) == {*SHOWN_BY, *OF_GRADIENTS, "one rank's part forgotten"}
