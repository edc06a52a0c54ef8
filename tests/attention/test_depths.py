"""Every multiple of 8 up to 256 and of 16 up to 512 as the depth of Q and K and, independently, as that of V and O.

What depends on a depth: chunks of 64 that TMA fills with zeros beyond it, steps of 16 of Q K^T (a half one at 8, 24),
columns of P V (16 at a time, so that 8, 24, ... compute eight too many, which the store drops), chunks of the store,
pages that come with all chunks in one copy, which order of the products has room in tensor memory. Beyond 128 a slot of
the ring has no room for all of K: the rest is stored separately, in a ring of three slots. Beyond 192, or 128 of V,
K and V come in units of 64 columns, and there is one O (sm100/mhawide). Beyond 256 columns of V
there are two launches, one for either half (calls/split_keys/halves.py).
"""

import itertools
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import EmulatorWarning, capabilities, flash_attn_func, flash_attn_with_kvcache
from cute_fa4.calls import repeat
from cute_fa4.reference import allowed_error, attention_float64, max_error
from cute_fa4.sm100.choose.choose_config import ALL_DEPTHS, DEPTHS, QK_DEPTHS
from tests.pairwise import sweep_only
from tests.serving.batches import Batch, assert_agrees, int32, packed_q, paged_kv, run
from tests.suite import turns

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

# (depth of Q and K, depth of V and O): why
PAIRS = {
    (8, 8): "the least: half a step of the MMA, half of the columns that P V computes",
    (40, 24): "half steps in one chunk each",
    (64, 128): "V has more chunks than K, and decides how wide a slot of the ring is",
    (128, 64): "K has more chunks than V; P lies beside S though K is as wide as it gets",
    (104, 56): "two chunks and one, neither of them full",
    (48, 120): "one chunk and two; the last store drops eight columns",
    (16, 112): "one step of Q K^T",
    (120, 128): "two chunks each, one of them full",
    (192, 128): "K has a rest; one chunk of O is on its way at a time",
    (136, 64): "the rest is half a step; P lies beside S",
    (256, 256): "four units of K and of V; S and O are all of tensor memory",
    (512, 512): "a ring of five units; two launches",
    (72, 200): "two units of K and four of V, the last ones half a step and 16 columns",
}


def causal(p, j):
    return j <= p


# Four that hold others' reasons once more are left to the sweep, which has every pair, and the one that always runs in
# tests/serving/test_k_rope.py, with the remainder of K from a separate tensor.
ELSEWHERE = {(40, 24), (128, 64), (48, 120), (16, 112), (192, 128)}
ALWAYS = [pair for pair in PAIRS if pair not in ELSEWHERE]


@pytest.mark.parametrize("depth, depth_v", turns.by_turns(ALWAYS))
def test_depths_of_q_and_k_and_of_v_are_independent(depth, depth_v):
    """300 rows are two query tiles and a part; causal, packed, both dtypes by turns."""
    dtype = (torch.bfloat16, torch.float16)[list(PAIRS).index((depth, depth_v)) % 2]
    batch = Batch.draw([300, 1], [300, 131], depth=depth, depth_v=depth_v, dtype=dtype)
    assert_agrees(batch, *run(packed_q(batch), paged_kv(batch, 16), causal=True), visible=causal)


# Decode: V's depth is the lanes of an MMA with 64 or 128 of them, and what is beyond must not be stored. Parts in
# float32 are stored in chunks of 32 columns.
@pytest.mark.parametrize("depth, depth_v", turns.by_turns([(40, 104), (184, 24), (256, 248)]))
@pytest.mark.parametrize("swap", ["auto", "off"])
def test_decode_with_splits_and_packed_heads(depth, depth_v, swap, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_SWAP", swap)
    repeat.clear()
    batch = Batch.draw([1, 3], [700, 131], heads=(8, 2), depth=depth, depth_v=depth_v)
    found = run(packed_q(batch), paged_kv(batch, 64), causal=True, num_splits=3)
    assert_agrees(batch, *found, visible=causal)


def test_rows_are_appended_to_caches_of_different_widths():
    q, k = torch.randn(2, 1, 4, 48).bfloat16(), torch.randn(2, 9, 2, 48).bfloat16()
    v = torch.randn(2, 9, 2, 96).bfloat16()
    k_cache, v_cache = (torch.full((2, 20, *x.shape[2:]), torch.nan).bfloat16() for x in (k, v))
    k_cache[:, :8], v_cache[:, :8] = k[:, :8], v[:, :8]
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 8:], v[:, 8:], cache_seqlens=int32([8, 8]), causal=True
    )
    assert torch.equal(k_cache[:, :9], k) and torch.equal(v_cache[:, :9], v)
    assert max_error(out, attention_float64(q, k, v)[0]) <= allowed_error(q, k, v).out


@pytest.mark.parametrize("depths", [(4, 64), (64, 12), (264, 128), (128, 312), (528, 512)], ids=str)
def test_other_depths_are_refused_by_name(depths):
    q, k = torch.zeros(1, 4, 2, depths[0]).bfloat16(), torch.zeros(1, 4, 1, depths[0]).bfloat16()
    v = torch.zeros(1, 4, 1, depths[1]).bfloat16()
    name, wrong = ("q", depths[0]) if depths[0] not in ALL_DEPTHS else ("v", depths[1])
    with pytest.raises(
        ValueError, match=f"^{name}: head_dim {wrong}; accepted: a multiple of 8 up"
    ):
        flash_attn_func(q, k, v)
    [row] = capabilities(
        dtype="bf16", head_dim=depths[0], head_dim_v=depths[1], causal=True, return_lse=False,
        arch="sm_100a",
    )  # fmt: skip
    assert not row.runs and any(str(wrong) in reason for reason in row.reasons)


@dataclass(frozen=True)
class Both:
    depth: int
    depth_v: int

    def __str__(self):
        return f"{self.depth}-{self.depth_v}"


# Every second multiple of 16 of the wide depths with its neighbor; the others are part of every pair.
WIDE = [d for d in ALL_DEPTHS if d % (32 if d <= 256 else 64) == 0 or d == ALL_DEPTHS[0]]
EVERY_PAIR = {*itertools.product(QK_DEPTHS, DEPTHS), *itertools.product(WIDE, WIDE)}


@sweep_only("depths", seconds=4)
@pytest.mark.parametrize("both", [Both(*d) for d in sorted(EVERY_PAIR)], ids=str)
def test_every_pair_of_depths(both):
    batch = Batch.draw([130, 5], [130, 260], depth=both.depth, depth_v=both.depth_v)
    assert_agrees(batch, *run(packed_q(batch), paged_kv(batch, 64), causal=True), visible=causal)
