"""Attention sinks: a score of each head that takes weight and has no value. One of -inf is none: tests/calls/test_neutral_options.py."""

from __future__ import annotations

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
