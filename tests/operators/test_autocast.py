"""Under torch.autocast q, k and v are taken as torch's own attention takes them."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import cute_fa4
from cute_fa4 import (
    EmulatorWarning,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from cute_fa4.calls.operands import autocast
from tests.serving.batches import int32
from tests.test_interface import qkv

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

HALVES = (torch.bfloat16, torch.float16)
Q, K, V = (x.float() for x in qkv(heads_q=1))


def in_region(dtype):
    return torch.autocast("cpu", dtype=dtype)


@pytest.mark.parametrize("region", HALVES, ids=str)
@pytest.mark.parametrize("given", [torch.float32, *HALVES, torch.float64], ids=str)
def test_the_dtype_is_the_one_in_which_torch_takes_them(region, given):
    tensors = [x.to(given) for x in (Q, K, V)]
    with in_region(region):
        theirs = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in tensors)).dtype
        cast = autocast.cast(*tensors)
        assert {x.dtype for x in cast} == {theirs}
        if theirs is torch.float64:  # which torch computes, and no kernel here
            with pytest.raises(TypeError, match="^q: dtype torch.float64 has no kernel"):
                flash_attn_func(*tensors)
            return
        out = flash_attn_func(*tensors)
    assert out.dtype is region
    assert torch.equal(out, flash_attn_func(*(x.to(region) for x in tensors)))


def test_dtypes_that_differ_become_one():
    # As after a norm in float32 and a projection in the dtype of the region.
    with in_region(torch.bfloat16):
        out = flash_attn_func(Q, K.half(), V.bfloat16())
    assert torch.equal(out, flash_attn_func(Q.bfloat16(), K.half().bfloat16(), V.bfloat16()))


def test_regions_that_are_off_or_of_another_device_change_nothing():
    for region in (
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", torch.float16, False),
    ):
        with region, pytest.raises(TypeError, match="^q: dtype torch.float32 has no kernel"):
            flash_attn_func(Q, K, V)
    with in_region(torch.bfloat16), torch.autocast("cpu", enabled=False):
        out = flash_attn_func(Q.half(), K.half(), V.half())
    assert out.dtype is torch.float16


def test_what_is_written_is_not_cast():
    out = torch.empty_like(Q)
    with in_region(torch.bfloat16):
        with pytest.raises(TypeError, match="^out: dtype torch.float32 while q is torch.bfloat16"):
            flash_attn_func(Q, K, V, out=out)
        out = out.bfloat16()
        assert flash_attn_func(Q, K, V, out=out) is out
        cache = torch.zeros(1, 16, 1, 64)
        for k, v in itertools.product((None,), repeat=2):
            with pytest.raises(TypeError, match="^k_cache: dtype torch.float32 while q is"):
                flash_attn_with_kvcache(Q, cache, cache.clone(), k, v)


def test_every_function_casts_its_rows():
    offsets, lengths = int32([0, 8]), int32([4])
    packed = [x[0] for x in (Q, K, V)]
    new = [x.bfloat16() for x in (Q, K, V)]
    caches = [torch.zeros(1, 16, 1, 64, dtype=torch.bfloat16) for _ in range(4)]
    with in_region(torch.bfloat16):
        varlen = flash_attn_varlen_func(*packed, offsets, offsets, 8, 8)
        cached = flash_attn_with_kvcache(Q, *caches[:2], K, V, cache_seqlens=lengths)
        heads_first = [x.transpose(1, 2) for x in (Q, K, V)]
        sdpa = cute_fa4.scaled_dot_product_attention(*heads_first, attn_mask=torch.zeros(8, 8))
    assert torch.equal(varlen, flash_attn_func(*new)[0])
    expected = flash_attn_with_kvcache(new[0], *caches[2:], *new[1:], cache_seqlens=lengths)
    assert torch.equal(cached, expected) and torch.equal(caches[0], caches[2])
    assert sdpa.dtype is torch.bfloat16


def test_a_compiled_function_takes_the_region_it_was_traced_in():
    def program(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flash_attn_func(q, k, v)

    torch._dynamo.reset()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(Q, K, V), program(Q, K, V))
    outside = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    with in_region(torch.float16):
        assert outside(Q, K, V).dtype is torch.float16
