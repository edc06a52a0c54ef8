"""Values of more than 256 columns, in two launches: what must hold whatever a call asks besides.

The columns of v are independent: out of the whole equals the concatenated outputs of the halves, bit for bit.
"""

import pytest
import torch

from cute_fa4 import capabilities, flash_attn_func, flash_attn_with_kvcache
from cute_fa4.calls import repeat
from cute_fa4.calls.split_keys.halves import HalvesPlan
from cute_fa4.reference import allowed_error, attention_float64, max_error
from tests.serving.batches import Batch, assert_agrees, int32, packed_q, paged_kv, run

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def causal(p, j):
    return j <= p


@pytest.mark.parametrize("splits", [0, 3])
def test_decode_from_pages_with_packed_heads_and_splits(splits):
    """700 keys: six key tiles for three parts; 0: stream-K split, which needs a separate workspace for each half."""
    batch = Batch.draw([1, 3], [700, 131], heads=(8, 2), depth=512, depth_v=320)
    sink = torch.linspace(-1, 2, 8)
    storage = packed_q(batch), paged_kv(batch, 16)
    found = run(*storage, causal=True, num_splits=splits, learnable_sink=sink)
    assert_agrees(batch, *found, visible=causal, sink=sink)


def tensors(queries=2, keys=40):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, queries, 4, 64, generator=generator).bfloat16()
    k = torch.randn(1, keys, 2, 64, generator=generator).bfloat16()
    v = torch.randn(1, keys, 2, 512, generator=generator).bfloat16()
    return q, k, v


def test_the_halves_are_calls_of_their_own_bit_for_bit():
    q, k, v = tensors()
    out, lse = flash_attn_func(q, k, v, return_lse=True)
    for first in (0, 256):
        columns = slice(first, first + 256)
        half, its_lse = flash_attn_func(q, k, v[..., columns].contiguous(), return_lse=True)
        assert torch.equal(out[..., columns], half) and torch.equal(lse, its_lse)


def test_out_may_be_part_of_a_wider_tensor_and_a_call_is_kept():
    """A repeated call launches what the first one found; a result's other columns stay as they are."""
    q, k, v = tensors()
    expected, _ = flash_attn_func(q, k, v, return_lse=True)
    wide = torch.full((1, 2, 4, 600), 7.0).bfloat16()
    out = wide[..., 40:552]
    for _ in range(2):
        assert flash_attn_func(q, k, v, out=out, return_lse=True)[0] is out
        assert isinstance(repeat._table.latest[0], HalvesPlan)
    assert torch.equal(out, expected)
    assert wide[..., :40].eq(7).all() and wide[..., 552:].eq(7).all()
    with pytest.raises(ValueError, match="^out: .* v"):  # of a kept call, too
        flash_attn_func(q, k, v, out=v.view(1, 20, 4, 512)[:, :2], return_lse=True)


def test_new_rows_are_appended_once():
    q, k, v = tensors(1, 9)
    k_cache, v_cache = (torch.full((1, 20, *x.shape[2:]), torch.nan).bfloat16() for x in (k, v))
    k_cache[:, :8], v_cache[:, :8] = k[:, :8], v[:, :8]
    out = flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 8:], v[:, 8:], cache_seqlens=int32([8]), causal=True
    )
    assert torch.equal(k_cache[:, :9], k) and torch.equal(v_cache[:, :9], v)
    assert v_cache[:, 9:].isnan().all()
    assert max_error(out, attention_float64(q, k, v)[0]) <= allowed_error(q, k, v).out


def test_no_keys_give_zeros_and_no_weight():
    q, k, v = tensors(keys=2)
    out, lse = flash_attn_func(q, k[:, :0], v[:, :0], return_lse=True)
    assert out.shape == (1, 2, 4, 512) and out.eq(0).all() and lse.eq(-torch.inf).all()


def test_capabilities_say_so():
    rows = capabilities(dtype="bf16", head_dim=512, arch="sm_100a")
    assert all(row.runs and row.families == ("mhawide", "mhawidepair") for row in rows)
    assert not any(row.runs for row in capabilities(dtype="e4m3", head_dim=512))
