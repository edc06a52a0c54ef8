"""Attention sinks: a score of each head that takes weight and has no value (one of -inf: test_neutral_options.py)."""

from __future__ import annotations

import math

import pytest
import torch

from tests.serving.batches import Batch, assert_agrees, packed_kv, packed_q, run

# Two query tiles with more queries than keys (the first rows see none), a tail, one query.
QUERIES, KEYS = [200, 9, 1], [150, 140, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_each_dtype(dtype):
    # Far below the scores, among them, far above: no weight, some, nearly all.
    sink = torch.tensor([-20.0, 0.3, 2.7, 12.0]).to(dtype)
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2))
    out, lse = run(packed_q(batch), packed_kv(batch), causal=True, learnable_sink=sink)
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p, sink=sink)
    # Rows without keys: the sink is all there is.
    assert torch.equal(lse[:, 209], sink.float())
    assert (out[209] == 0).all()


def test_a_sink_is_in_natural_units_whatever_the_softmax_scale():
    sink = torch.tensor([0.5, 1.0, -1.0, 2.0])
    batch = Batch.draw([3], [20], heads=(4, 2))
    for scale in (0.02, 1.5):
        out, lse = run(
            packed_q(batch), packed_kv(batch), causal=True, learnable_sink=sink, softmax_scale=scale
        )
        assert_agrees(batch, out, lse, visible=lambda p, j: j <= p, sink=sink, scale=scale)


@pytest.mark.parametrize("queries", [1, 150])  # a tile of few rows, two tiles
@pytest.mark.parametrize(
    "dtype, smallest", [(torch.bfloat16, 2.0**-126), (torch.float16, 2.0**-25)], ids=str
)
def test_weights_beside_a_large_sink_down_to_the_smallest_that_p_holds(queries, dtype, smallest):
    """Scores are 0, sinks n log 2: weights are 2^-n / (keys 2^-n + 1), and what P loses is below `smallest` of it.

    The running maximum of a row may exceed its largest score by its number of keys: 2^1 here.
    """
    powers = torch.tensor([0.0, 10, 23, 24, 60, 119, 125, 128])
    batch = Batch.draw([queries], [2], heads=(8, 4), dtype=dtype)
    batch.q[0].zero_()
    batch.v[0].fill_(2.0**15)
    sink = powers * math.log(2)
    # Under causal a row sees keys up to its own: of more queries than keys the last two see some.
    out, lse = run(packed_q(batch), packed_kv(batch), causal=True, learnable_sink=sink)
    for row, seen in ((queries - 1, 2), (queries - 2, 1))[: min(queries, 2)]:
        weights = 2.0 ** -powers.double() / (seen * 2.0 ** -powers.double() + 1)
        exact = seen * weights * 2.0**15
        relative = (
            2 * torch.finfo(dtype).eps * exact
        )  # of P and of out; the sink is rounded to float32
        lost = 2 * seen * smallest * 2.0**15
        error = (out[row].double() - exact[:, None]).abs()
        assert (error <= (relative + lost)[:, None]).all(), error.amax(1)
        assert (lse[:, row] - sink - torch.log1p(seen * 2.0**-powers)).abs().max() < 1e-4
        kept = powers < -math.log2(smallest)  # and not those that are smaller still
        assert (out[row][kept] > 0).all()
