"""Batches of prompts and decode steps in one launch: work tiles with rows for one query tile run its body.

queries   300      129  128  64   5    1        256 and more rows: two query tiles; up to 128: one (single-tile work)
keys      520      300  256  129  128  0        needs two key tiles or more, else there is nothing to share
"""

import pytest
import torch

from cute_fa4.sm100.choose.choose_config import choose_config
from tests.serving.batches import (
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    run,
    split,
)

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

# Single work tiles of one to four key tiles, next to each other and between others of one to five: barriers of either
# warpgroup then have either parity when either kind of work tile begins.
QUERIES = [300, 1, 64, 129, 5, 0, 128, 260, 3, 40]
KEYS = [520, 300, 129, 300, 385, 40, 128, 257, 0, 500]


def causal(p, j):
    return j <= p


@pytest.mark.parametrize(
    "depth, store_q, store_kv, left",
    [
        (128, packed_q, packed_kv, None),
        (64, dense_q, dense_kv, 127),
        pytest.param(128, packed_q, packed_kv, 127, marks=pytest.mark.sweep),
        pytest.param(64, dense_q, dense_kv, None, marks=pytest.mark.sweep),
    ],
)
def test_prompts_and_decode_steps_of_one_launch(depth, store_q, store_kv, left):
    """Head dim 128: P over S. 64: P beside S, and one chunk of O, so that both buffers are not used in turn.

    left: of a causal window; with two query tiles the second one begins a key tile late then.
    """
    batch = Batch.draw(QUERIES, KEYS, heads=(1, 1), depth=depth)
    window = dict(causal=True, window_size=(left, None))
    out, lse = run(store_q(batch), store_kv(batch), **window)
    seen = causal if left is None else lambda p, j: (p - left <= j) & (j <= p)
    assert_agrees(batch, out, lse, visible=seen)
    again = run(store_q(batch), store_kv(batch), **window, mode="hostile")
    for found, expected in zip(split(batch, *again), split(batch, out, lse), strict=True):
        assert all(map(torch.equal, found, expected))


def test_kernels_whose_queries_differ_in_length_have_lone_tiles():
    """Where every sequence has as many queries, other kernels serve the short ones."""
    assert not choose_config(qkv_dtype="bf16", head_dim=128).schedule.lone_tiles
    for layout in (dict(q_layout="packed", kv_layout="packed"), dict(seqused_q=True)):
        config = choose_config(qkv_dtype="bf16", head_dim=128, **layout)
        assert config.schedule.lone_tiles
        assert config.name != config.with_(lone_tiles=False).name
