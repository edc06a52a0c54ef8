"""Pairs of CTAs for wide heads against float64 and, bit by bit, against CTAs alone.

A block has 256 rows, of which either CTA has 128. 300 queries are a block and a part: of the last block the rows of
CTA 1 are past the end.
"""

import pytest
import torch

from cute_fa4.calls import repeat
from cute_fa4.compiler.policy import PAIR_VARIABLE
from cute_fa4.reference import allowed_error, attention_float64, max_error
from tests.attention.agreement import Schedule, attention
from tests.serving.batches import Batch, assert_agrees, packed_q, paged_kv, run

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def causal(p, j):
    return j <= p


def test_bits_are_those_of_ctas_alone_under_every_schedule(monkeypatch):
    """700 keys: six tiles, more than the ring holds; one pair claims all blocks of both heads."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda n, h: torch.randn(1, n, h, 256, generator=generator)
    q, k, v = (2 * draw(300, 2)).bfloat16(), draw(700, 1).bfloat16(), draw(700, 1).bfloat16()
    call = dict(causal=True, return_lse=True, num_splits=1)
    out, lse = attention(q, k, v, **call, schedule=Schedule("hostile"))
    exact, exact_lse = attention_float64(q, k, v, causal=True)
    allowed = allowed_error(q, k, v, causal=True)
    assert max_error(out, exact) <= allowed.out and max_error(lse, exact_lse) <= allowed.lse
    again = attention(q, k, v, **call, schedule=Schedule("random", 3))
    monkeypatch.setenv(PAIR_VARIABLE, "off")
    repeat.clear()
    alone = attention(q, k, v, **call)
    repeat.clear()
    assert all(map(torch.equal, again, (out, lse)))
    assert all(map(torch.equal, alone, (out, lse)))


# Sequences of no queries, of one, of rows in CTA 0 alone, of both CTAs, of more than a block; of no keys, of fewer keys
# than queries.
QUERIES, KEYS = [300, 0, 100, 200, 1], [350, 50, 150, 0, 130]
CASES = {
    "pages of 3 (gathered), 136 columns of V: 32 and 32 of the last unit": dict(
        page=3, depth=200, depth_v=136, options=dict(causal=True)
    ),
    "pages of 48, packed groups, window, fp16": dict(
        page=48, heads=(4, 1), dtype=torch.float16, depth=256, depth_v=192,
        options=dict(window_size=(100, 0), pack_gqa=True),
    ),
    "depth 512 in halves, a ring of five, a sink": dict(
        page=64, depth=512, depth_v=512, sink=torch.tensor([0.5, -1.0]), options=dict(causal=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_layouts_and_masks(case):
    case = {"heads": (2, 1), "dtype": torch.bfloat16, "sink": None, **case}
    sizes = {name: case[name] for name in ("heads", "dtype", "depth", "depth_v")}
    batch, options = Batch.draw(QUERIES, KEYS, **sizes), dict(case["options"])
    left = options.get("window_size", (1 << 30, 0))[0]
    if case["sink"] is not None:
        options["learnable_sink"] = case["sink"]
    out, lse = run(packed_q(batch), paged_kv(batch, case["page"]), num_splits=1, **options)
    visible = lambda p, j: (j <= p) & (j >= p - left)
    assert_agrees(batch, out, lse, visible=visible, sink=case["sink"])


@pytest.mark.sweep
@pytest.mark.parametrize("page_size", [1, 8, 16, 128, 784])
@pytest.mark.parametrize("depths", [(200, 64), (256, 256), (64, 136), (320, 320)], ids=str)
def test_every_page_size(page_size, depths):
    batch = Batch.draw(QUERIES, KEYS, depth=depths[0], depth_v=depths[1])
    kv = paged_kv(batch, page_size)
    out, lse = run(packed_q(batch), kv, num_splits=1, causal=True, mode="hostile")
    assert_agrees(batch, out, lse, visible=causal)
