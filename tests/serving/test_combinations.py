"""Everything at once: page size x mask x group x sink x soft cap x lengths, drawn by hypothesis."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.batches import Batch, assert_agrees, packed_kv, packed_q, paged_kv, run
from tests.serving.test_masks import MASKS

# Every new combination of the compile-time choices is a compile of some seconds, so the examples are few and the
# same in every run; lengths, heads and layouts of pages are drawn anew for each at no such price.
EXAMPLES = 8

length = st.one_of(st.integers(0, 20), st.integers(120, 140), st.integers(250, 300))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_combination_agrees_with_float64(data):
    draw = data.draw
    page_size = draw(st.sampled_from([0, 8, 32, 128]), "page size")
    name = draw(st.sampled_from(sorted(MASKS)), "mask")
    group = draw(st.sampled_from([1, 3, 8]), "group")
    with_sink, softcap = draw(st.booleans(), "sink"), draw(st.sampled_from([0.0, 3.0]), "soft cap")
    options, visible = MASKS[name]
    for seed in range(2):
        lengths = draw(st.lists(st.tuples(length, length), min_size=1, max_size=3), "lengths")
        queries, keys = zip(*lengths, strict=True)
        batch = Batch.draw(queries, keys, heads=(group, 1), depth=128, seed=seed)
        sink = (
            torch.randn(group, generator=torch.Generator().manual_seed(seed)) if with_sink else None
        )
        layout = draw(st.sampled_from(["NHD", "HND"]), "layout")
        storage = paged_kv(batch, page_size, layout, seed) if page_size else packed_kv(batch)
        out, lse = run(packed_q(batch), storage, learnable_sink=sink, softcap=softcap, **options)
        assert_agrees(batch, out, lse, visible=visible, sink=sink, softcap=softcap)
