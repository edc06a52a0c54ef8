"""What calls over caches whose blocks have scales refuse, by the argument, its value and the remedy."""

import pytest
import torch

from cute_fa4 import capabilities, configs_for_model, flash_attn_func, flash_attn_varlen_func
from tests.serving.batches import Batch, assert_agrees
from tests.serving.test_nvfp4 import E4M3, Cache, call_of


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(k_block_scale=None), TypeError, "k_block_scale: None with k of torch.uint8; accepted: scales of each 16"),
        (dict(v_block_scale=torch.ones(1, 200, 1, 8)), TypeError, "v_block_scale: dtype torch.float32; accepted"),
        (
            dict(k_block_scale=torch.ones(1, 200, 1, 4).to(E4M3)), ValueError,
            r"k_block_scale: shape \(1, 200, 1, 4\); accepted: \(1, 200, 1, 8\), one for each 16",
        ),
        (
            dict(k_block_scale=torch.ones(1, 200, 8, 2).to(E4M3).mT[:, :, :1]), ValueError,
            r"k_block_scale: strides \(3200, 16, 1, 2\); accepted: a contiguous last",
        ),
        (
            dict(k_block_scale=torch.ones(1601).to(E4M3)[1:].view(1, 200, 1, 8)), ValueError,
            "k_block_scale: begins at address .* multiples of 4 bytes",
        ),
        (dict(q=torch.ones(1, 1, 8, 128).to(E4M3)), TypeError, "k: dtype torch.uint8 while q is .*; accepted: q of"),
        (dict(q=torch.ones(1, 1, 8, 64).bfloat16()), ValueError, "k: 64 bytes a row, .* accepted: 32, two numbers"),
        (dict(k_descale=torch.ones(1, 200, 1)), ValueError, "k_descale: shape .* accepted: one number, or"),
        (
            dict(v_block_scale_layout="swizzled"), ValueError,
            "v_block_scale_layout: 'swizzled'; accepted: 'linear' or 'interleaved4'",
        ),
        (dict(v_block_scale_layout=4), ValueError, "v_block_scale_layout: 4; accepted"),
        (dict(q_descale=torch.ones(1)), TypeError, "q_descale: given with q of torch.bfloat16"),
        (dict(k_rope=torch.ones(1, 200, 64)), NotImplementedError, "k_rope: given with k of torch.uint8 .4 bits"),
        (
            dict(k=torch.ones(1, 200, 1, 128).bfloat16(), v=torch.ones(1, 200, 1, 128).bfloat16()), TypeError,
            "k_block_scale: given with k of torch.bfloat16 and q of .*; accepted: None, or k and v of torch.uint8",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refusals_name_the_argument_and_the_remedy(change, error, message):
    with pytest.raises(error, match=message):
        flash_attn_func(**call_of() | change)


def test_interleaved_scales_are_refused_where_tokens_do_not_share_lines():
    """Dense keys of no multiple of 4, packed keys, keys of 16 bits, and the same in a question."""
    odd = call_of(keys=202) | {"v_block_scale_layout": "interleaved4"}
    with pytest.raises(ValueError, match="'interleaved4' with 202 rows in a page or sequence of k"):
        flash_attn_func(**odd)
    call = call_of()
    packed = {name: x.flatten(0, 1) for name, x in call.items()}
    lengths = {
        name: torch.tensor([0, n]).int() for name, n in (("cu_seqlens_q", 1), ("cu_seqlens_k", 200))
    }
    with pytest.raises(ValueError, match="'interleaved4' with packed k; accepted: .* or 'linear'"):
        flash_attn_varlen_func(**packed, **lengths, v_block_scale_layout="interleaved4")
    k = torch.ones(1, 200, 1, 128).bfloat16()
    with pytest.raises(
        ValueError, match="'interleaved4' with k of torch.bfloat16; accepted: 'linear'"
    ):
        flash_attn_func(call["q"], k, k, v_block_scale_layout="interleaved4")
    ask = dict(head_dim=128, causal=True, return_lse=False, arch="sm_100a", dtype="bf16")
    ask["v_block_scale_layout"] = "interleaved4"
    [row] = capabilities(**ask)
    assert not row.runs and "with k of torch.bfloat16" in row.reasons[0]
    ask |= dict(kv_dtype="e2m1", cache_seqlens=True, page_table=True)
    [row] = capabilities(**ask, page_size=16)
    assert row.runs and row.families == ("mhawiden",)
    [row] = capabilities(**ask, page_size=6)
    assert not row.runs and "6 rows in a page" in row.reasons[0]


def test_a_model_with_interleaved_scales_has_their_kernels_except_for_packed_calls():
    shape = dict(head_dim=128, heads_q=8, heads_kv=1, kv_dtype="e2m1", descales="kv")
    listed = configs_for_model(**shape, v_block_scale_layout="interleaved4")
    for config in listed:
        if hasattr(config, "v_block_scale_layout"):
            is_packed = getattr(config, "kv_layout", "") == "packed"
            assert config.v_block_scale_layout == ("linear" if is_packed else "interleaved4")
    with pytest.raises(ValueError, match="v_block_scale_layout='interleaved4' of a cache without"):
        configs_for_model(**shape | dict(kv_dtype="e4m3"), v_block_scale_layout="interleaved4")


def test_torchs_dtype_of_four_bits_is_refused_with_the_view_that_is_accepted():
    call = call_of()
    call |= {name: call[name].view(torch.float4_e2m1fn_x2) for name in "kv"}
    with pytest.raises(
        TypeError, match=r"k: dtype torch.float4_e2m1fn_x2 .* \.view\(torch.uint8\)"
    ):
        flash_attn_func(**call)


def test_other_head_dims_and_gradients_are_refused():
    odd = call_of(depth=96)
    with pytest.raises(
        ValueError, match="q: head_dim 96 over k and v of 4 bits; accepted: 64 or 128 or 192 or 256"
    ):
        flash_attn_func(**odd)
    call = call_of()
    with pytest.raises(NotImplementedError, match="requires_grad is True .* with k_block_scale"):
        flash_attn_func(**call | {"q": call["q"].requires_grad_()})


@pytest.mark.filterwarnings("ignore")
def test_more_columns_of_v_than_a_narrow_k_has_are_refused_and_run_in_parts():
    """The remedy of the refusal: a call for each 128 columns."""
    wide = call_of(keys=140, depth=256)
    given = call_of(keys=140) | {name: wide[name] for name in ("v", "v_block_scale")}
    remedy = (
        "v: head_dim 256 .* q of head_dim 128; accepted: 64 or 128, .* once for each 128 columns"
    )
    with pytest.raises(ValueError, match=remedy):
        flash_attn_func(**given)
    out = torch.empty(1, 1, 8, 256).bfloat16()
    for half, of_out in enumerate(out.split(128, -1)):
        part = {"v": given["v"].split(64, -1)[half]}
        part["v_block_scale"] = given["v_block_scale"].split(8, -1)[half]
        _, lse = flash_attn_func(**given | part, out=of_out, return_lse=True)
    cache = Cache.draw([140], 1, {"k": 256, "v": 256})
    keys = Cache.draw([140], 1, {"k": 128, "v": 128})
    batch = Batch([given["q"][0]], keys.meant("k"), cache.meant("v"))
    assert_agrees(batch, out[0], lse[0])
