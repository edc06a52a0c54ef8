"""Sinks over a latent cache, through each of the four families: calls against attention in float64.

Sinks far below the scores, among them and far above, of heads that share a tile; sequences without keys, whose
log-sum-exp is the sink. Two queries of 12 heads leave unused rows in tiles; a stream-K split counts a sink once.
"""

import pytest
import torch

from tests.serving.batches import int32
from tests.sm100.latent.dequantized.row_batches import Call, check
from tests.sm100.latent.latent_batches import agree, draw, run, stored

# heads: a tile of CTAs alone, and one of pairs
HEADS = {"mla_decode": 12, "mla_pair": 80}
ROWS = {"mla_widen": 12, "mla_widenpair": 24}
SCHEDULES = ("in_order", "hostile")


def sinks(heads: int) -> torch.Tensor:
    found = torch.linspace(-30.0, 12.0, heads)
    found[-4:-1] = torch.tensor([torch.inf, -torch.inf, 80.0])
    return found


@pytest.mark.parametrize("family", HEADS)
def test_rows_of_one_dtype(family):
    heads = HEADS[family]
    batch, sink = draw(2, [133, 0, 5], heads=heads), sinks(heads)
    for mode in SCHEDULES:
        out, lse = run(stored(batch, 64), mode=mode, seed=1, num_splits=1, learnable_sink=sink)
        agree(batch, out, lse, False, sink=sink)


@pytest.mark.parametrize("family", ROWS)
def test_rows_of_656_bytes(family):
    heads = ROWS[family]
    options = dict(num_splits=1, causal=True, learnable_sink=sinks(heads))
    for mode in SCHEDULES:
        check(Call(heads, 2, 64, (133, 0, 5), mode, options=options))


@pytest.mark.parametrize("heads", [pytest.param(12, marks=pytest.mark.sweep), 80])
def test_parts_of_the_keys_count_a_sink_once(heads):
    """Which the merge of the parts does: what they are of the keys alone has no sink."""
    batch, sink = draw(1, [400, 5], heads=heads), sinks(heads).bfloat16()
    call = stored(batch, 64)
    out, lse = run(call, mode="hostile", num_splits=None, learnable_sink=sink)
    agree(batch, out, lse, False, sink=sink)
    same, of_keys = run(call, num_splits=None, attn_sink=sink)
    _, expected = run(call, num_splits=None)
    assert torch.equal(same, out) and torch.equal(of_keys, expected)


def test_refusals_name_the_sink():
    call = stored(draw(1, [70], heads=16), 64)
    for given, text in (
        (torch.ones(15), r"learnable_sink: shape \(15,\)"),
        (int32([1] * 16), "dtype torch.int32"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            run(call, learnable_sink=given)
