"""Operations and bytes are those of the mask and the tensors, counted one by one; pages hold the same keys."""

import pytest
import torch

from cute_fa4.bench.problems import Problem, make_inputs
from cute_fa4.reference import attention_float64

# Equal lengths; a cached prefix; more queries than keys; one query; each under every kind of mask, with windows
# narrower and wider than the keys.
LENGTHS = [(7, 7), (3, 7), (7, 3), (1, 9)]
MASKS = [{}, {"causal": True}, {"window": 0}, {"window": 2}, {"window": 20}]


def shown(problem: Problem) -> torch.Tensor:
    """Which key a query sees, (seqlen_q, seqlen_k): v with a one for each key makes the reference say it."""
    q = torch.zeros(1, problem.seqlen_q, 1, 8)
    k = torch.zeros(1, problem.seqlen_k, 1, 8)
    v = torch.eye(problem.seqlen_k)[None, :, None]
    out, _ = attention_float64(q, k, v, causal=problem.causal, window_size=problem.window_size)
    return out[0, :, 0] > 0


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_operations_are_four_a_head_dim_and_pair_that_the_mask_shows(lengths, mask):
    problem = Problem(3, *lengths, 8, 2, 64, **mask)
    pairs = int(shown(problem).sum())
    assert problem.visible_pairs == pairs
    # Two products, a multiplication and an addition each; grouped query heads all count.
    assert problem.flops == 2 * 2 * 64 * pairs * 8 * 3


def test_causal_squares_are_half_of_the_full_ones_but_for_the_diagonal():
    full, causal = (Problem(1, 1024, 1024, 1, 1, 128, causal=causal) for causal in (False, True))
    assert full.flops == 4 * 1024**2 * 128
    assert causal.flops / (full.flops / 2) == 1 + 1 / 1024


@pytest.mark.parametrize("page_size", [0, 8, 16])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_bytes_are_those_of_the_tensors(page_size, dtype):
    problem = Problem(2, 1, 37, 8, 2, 64, page_size=page_size, dtype=dtype)
    inputs = make_inputs(problem, "cpu")
    tensors = [inputs.q, inputs.q, inputs.k, inputs.v]  # out is like q
    tensors += [inputs.page_table] if page_size else []
    assert problem.bytes == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_keys_that_no_query_sees_are_not_counted(lengths, mask):
    problem = Problem(1, *lengths, 1, 1, 64, **mask)
    keys = int(shown(problem).any(dim=0).sum())
    assert problem.bytes == 2 * 64 * (2 * problem.seqlen_q + 2 * keys)


def test_pages_hold_the_same_keys_in_an_order_of_their_own():
    # 37 keys: the last page of 8 is filled in part.
    problem = Problem(3, 1, 37, 4, 2, 64, page_size=8)
    inputs = make_inputs(problem, "cpu")
    assert sorted(inputs.page_table.flatten().tolist()) == list(range(3 * 5))
    assert inputs.page_table.flatten().tolist() != list(range(3 * 5))
    assert inputs.lengths.tolist() == [37] * 3
    for rows, pages in ((inputs.k, inputs.k_pages), (inputs.v, inputs.v_pages)):
        gathered = pages[inputs.page_table.long()].flatten(1, 2)
        assert torch.equal(gathered[:, :37], rows)


def test_inputs_are_normal_numbers_that_are_the_same_every_time():
    problem = Problem(2, 200, 200, 4, 2, 64)
    first, second = make_inputs(problem, "cpu"), make_inputs(problem, "cpu")
    for name in ("q", "k", "v"):
        tensor = getattr(first, name)
        assert torch.equal(tensor, getattr(second, name))
        # 51,200 numbers and more: mean and variance are off by a hundredth at most.
        assert abs(tensor.float().mean()) < 0.02 and abs(tensor.float().std() - 1) < 0.02
    assert not torch.equal(first.k, first.v)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads_q: 6 with heads_kv 4; accepted: a multiple"):
        Problem(1, 1, 1, 6, 4, 64)
