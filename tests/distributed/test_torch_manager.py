"""torch's context_parallel with our scaled_dot_product_attention: what one process returns.

The manager cuts and balances the rows; what attends is the kernel, on the emulator. 24 rows on two ranks are
four chunks of 6.
"""

import pytest
import torch

from cute_fa4.distributed import unshard
from cute_fa4.reference import (
    allowed_error,
    allowed_gradient_errors,
    attention_float64,
    gradients_float64,
    max_error,
)
from tests.distributed import cases
from tests.distributed.pool import Failed

SHAPE = (1, 2, 24, 64)


@pytest.mark.parametrize(
    "causal, method, way",
    [
        (True, "allgather", "functional"),
        (True, "alltoall", "functional"),
        (False, "alltoall", "functional"),
        (True, "allgather", "compiled"),
    ],
)
def test_the_function_that_the_manager_wraps_attends_to_all_ranks(pool, causal, method, way):
    """Compiled, too: the rows lie in another order than the DTensors say, so no rule of operators may see them."""
    results = pool.run(cases.under_the_manager, (SHAPE, causal, method, way), 2)
    q, k, v = (x.transpose(1, 2) for x in cases.tensors(0, SHAPE, SHAPE, torch.bfloat16))
    exact, _ = attention_float64(q, k, v, causal=causal)
    for out in results:
        assert not isinstance(out, Failed), out.trace
    out = unshard(results, order="zigzag" if causal else "contiguous", dim=2).transpose(1, 2)
    assert max_error(out, exact) <= allowed_error(q, k, v, causal=causal).out


@pytest.mark.parametrize(
    "causal, method, way",
    [
        (True, "allgather", "training"),
        (True, "alltoall", "training, compiled"),
    ],
)
def test_models_train_under_the_manager(pool, causal, method, way):
    """The manager's layouts are all_gather and ring, whose gradients test_gradients has in every form."""
    results = pool.run(cases.under_the_manager, (SHAPE, causal, method, way), 2)
    for result in results:
        assert not isinstance(result, Failed), result.trace
    order = "zigzag" if causal else "contiguous"
    found = (unshard(parts, order=order, dim=2) for parts in zip(*results, strict=True))
    whole = cases.tensors(0, SHAPE, SHAPE, torch.bfloat16)
    dout, _ = cases.gradients_of_results(SHAPE, torch.bfloat16, False)
    rows_first = [x.transpose(1, 2) for x in (*whole, dout)]
    exact = gradients_float64(*rows_first, causal=causal)
    allowed = allowed_gradient_errors(*rows_first, causal=causal)
    for got, expected, limit in zip(found, exact, allowed, strict=True):
        assert max_error(got.transpose(1, 2), expected) <= limit


def test_a_whole_graph_around_the_manager_is_refused_and_says_why(pool):
    results = pool.run(
        cases.under_the_manager, (SHAPE, True, "allgather", "fullgraph, compiled"), 2
    )
    for result in results:
        assert result.kind == "Unsupported", result
        assert "rows of other ranks arrive in messages" in result.text
        assert "accepted: torch.compile with fullgraph=False" in result.text


@pytest.mark.parametrize("way", ["direct", "direct, compiled"])
def test_a_call_beside_the_manager_is_refused_and_not_wrong(pool, way):
    """It would see a rank's own rows alone."""
    results = pool.run(cases.under_the_manager, (SHAPE, True, "allgather", way), 2)
    for result in results:
        assert result.kind == "RuntimeError", result
        assert "with the rows of this rank alone; accepted" in result.text
