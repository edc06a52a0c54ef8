"""Lists of the backward pass that begin with the longest: both owners, every layout, and no bit of a gradient changes.

Calls are those of test_lists.py: three tiles of each side, so that lists have 0 to 3 tiles, and all orders differ from
that of the grid.
"""

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import block_lists
from cute_fa4.calls.backward import Launch, Scores
from cute_fa4.calls.split_keys.split import EMULATED_SMS
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.work.lists.config import in_order
from tests.attention.listed import WAYS
from tests.sm100.backward.problems import attended, run
from tests.sm100.backward.test_lists import (
    LENGTHS,
    WIDEST,
    drawn,
    gradients_of,
    scores_of,
    sorted_always,
    tensors_of,
)

CALLS = {
    "dense": drawn((128, 128), (0.0, 0.5, 1.0)),
    "two groups": drawn((128, 128), (0.4, 0.8, 0.1, 1.0), heads_kv=2),
    "lengths": drawn((64, 64), lengths=LENGTHS),
    "packed": drawn((64, 64), lengths=LENGTHS),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_order_of_lists_changes_no_bit(name):
    call = CALLS[name]
    given = (call.q, call.k, call.v), flash_attn_func, None
    more: dict = {}
    if name in WAYS:
        tensors, more, lists = WAYS[name](call)
        given = tensors, flash_attn_varlen_func, lists
    in_grid, _ = gradients_of(call, *given, **more)
    with sorted_always():
        found, _ = gradients_of(call, *given, **more)
    assert all(a.equal(b) for a, b in zip(found, in_grid, strict=True))


def test_kernels_of_dk_and_of_dv_alone_have_one_order():
    """Head dims up to 256, which forward calls with lists do not have."""
    given, scores = tensors_of(WIDEST), scores_of(WIDEST)
    in_grid = run(*given, scores=scores, visible=WIDEST.visible())
    with sorted_always():
        found = run(*given, scores=scores, visible=WIDEST.visible())
    assert all(a.equal(b) for a, b in zip(found, in_grid, strict=True))


def orders_of(call) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(counts, order) of the owner of queries, and of that of keys."""
    *tensors, dout = tensors_of(call)
    launch = Launch.of(attended(*tensors), dout, None, Scores(1.0, **scores_of(call)))
    counts_q, _, of_queries, counts_k, _, of_keys = launch.tile_lists()
    return [(counts_q, of_queries), (counts_k, of_keys)]


@pytest.mark.parametrize("name", ("dense", "two groups"))
def test_the_longest_lists_of_each_owner_come_first(name):
    """Those of a bin in the order of their numbers: a head, and then the tiles of the next one."""
    with sorted_always():
        found = orders_of(CALLS[name])
    for counts, order in found:
        assert order.tolist() == in_order(counts.flatten().tolist())


def test_lists_that_heads_share_are_in_the_order_for_each_head():
    counts = torch.tensor([[[1, 3, 2]]], dtype=torch.int32)
    with sorted_always():
        found = block_lists.longest_first(counts, 2, 3)
    assert found.tolist() == in_order([1, 3, 2] * 6)


def test_lists_are_sorted_where_sms_have_more_than_three_each():
    """As in the forward pass: one rule of the tuning table."""
    few = torch.zeros(1, 1, 3 * EMULATED_SMS, dtype=torch.int32)
    assert tuning.choose("longest_first") == 3
    assert block_lists.longest_first(few, 1, 1).numel() == 0
    assert block_lists.longest_first(few[..., :-1], 1, 2).numel() == 2 * few.numel() - 2


def test_a_launch_without_an_order_has_that_of_the_grid():
    assert all(order.numel() == 0 for _, order in orders_of(CALLS["dense"]))
