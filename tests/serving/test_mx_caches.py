"""MXFP8 caches under 16-bit queries: what is theirs alone.

test_nvfp4.py has the calls that NVFP4 caches share, test_block_appends.py their new rows.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import (
    capabilities,
    configs_for_model,
    flash_attn_func,
    flash_attn_with_kvcache,
    mxfp8,
)
from cute_fa4.reference import attention_float64
from cute_fa4.sm100.choose.config import FA4Config
from tests.serving.batches import int32

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def call_of(keys=200, group=8, depth=128, scale=1.0) -> dict:
    """A dense call of one sequence with one query; scale: of k and v."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1, group, depth, generator=generator).bfloat16()
    k, v = scale * torch.randn(2, 1, keys, 1, depth, generator=generator)
    (k, of_k), (v, of_v) = map(mxfp8.quantise, (k, v))
    return dict(q=q, k=k, v=v, k_block_scale=of_k, v_block_scale=of_v)


def exact(call: dict, k_descale=1.0, v_descale=1.0) -> torch.Tensor:
    k, v = (mxfp8.dequantise(call[x], call[f"{x}_block_scale"]) for x in "kv")
    return attention_float64(call["q"], k.double() * k_descale, v.double() * v_descale)[0]


@pytest.mark.parametrize("scale", [2.0**-12, 1.0, 2.0**6])
def test_results_are_those_of_the_values_at_any_magnitude(scale):
    """Scores of large k are one-hot, those of small k uniform; global scales multiply as over other caches."""
    call = call_of(scale=scale)
    factors = dict(k_descale=0.25, v_descale=3.0)
    given = {name: torch.tensor(x) for name, x in factors.items()}
    wanted = exact(call, **factors)
    assert (flash_attn_func(**call, **given) - wanted).norm() < 4e-3 * wanted.norm()


def test_a_scale_that_fp16_lacks_is_nan_or_zeros():
    """Above 2^7 a block of K makes all of out NaN, and one of V its 32 columns; below 2^-24 its numbers count as 0."""
    for byte in (135, 254, 255):
        call = call_of()
        call["v_block_scale"].view(torch.uint8)[0, 150, 0, 1] = byte
        out = flash_attn_func(**call)
        assert out[..., 32:64].isnan().all() and not out[..., :32].isnan().any()
        assert not out[..., 64:].isnan().any()
        call = call_of()
        call["k_block_scale"].view(torch.uint8)[0, 150, 0, 1] = byte
        assert flash_attn_func(**call).isnan().all()
    for byte in (0, 102):
        call, zeros = call_of(), call_of()
        call["v_block_scale"].view(torch.uint8)[0, :, 0, 1] = byte
        zeros["v"].view(torch.uint8)[..., 32:64] = 0
        assert torch.equal(flash_attn_func(**call), flash_attn_func(**zeros))


def test_rows_that_no_sequence_has_may_hold_anything():
    """NaN numbers and NaN scales after a sequence; page 3 is in no table."""
    call = call_of(keys=64)
    paged = {name: x.view(4, 16, 1, -1).clone() for name, x in call.items() if name != "q"}
    for name in ("k", "v", "k_block_scale", "v_block_scale"):
        paged[name].view(torch.uint8)[2, 9:] = 255
        paged[name].view(torch.uint8)[3] = 255
    caches = {f"{x}_cache": paged.pop(x) for x in "kv"}
    table = int32([0, 1, 2, 2]).view(1, 4)
    out = flash_attn_with_kvcache(call["q"], **caches, **paged, page_table=table, cache_seqlens=41)
    short = {name: x if name == "q" else x[:, :41] for name, x in call.items()}
    assert torch.equal(out, flash_attn_func(**short))


def test_scales_that_do_not_fill_words_may_lie_anywhere():
    """Two scales of a row of 64 columns are read one by one, from any address."""
    call = call_of(depth=64)
    apart = torch.zeros(1, 200, 1, 7, dtype=torch.uint8)
    apart[..., 1:3] = call["k_block_scale"].view(torch.uint8)
    strided = call | {"k_block_scale": apart.view(E8M0)[..., 1:3]}
    assert torch.equal(flash_attn_func(**strided), flash_attn_func(**call))
    with pytest.raises(
        ValueError, match="k_block_scale: strides .* a contiguous last dimension; copy"
    ):
        flash_attn_func(**call | {"k_block_scale": apart.view(E8M0)[..., 1:7:3]})


def test_queries_are_never_quantized():
    """q_quantize is of caches without blocks: more rows differ by P of 16 bits, and not by q of 8, which is 3e-2."""
    call = call_of()
    out = flash_attn_func(**call)
    assert torch.equal(flash_attn_func(**call, q_quantize="auto"), out)
    many = call | {"q": call["q"].expand(1, 40, 8, 128).contiguous()}
    found = flash_attn_func(**many, q_quantize="auto")[:, 39:]
    assert (found - out).norm() < 4e-3 * out.norm()


REFUSED = {
    "v without scales": (
        dict(v_block_scale=None), TypeError,
        "v_block_scale: None with v of torch.float8_e4m3fn; accepted: scales of each 32",
    ),
    "scales of NVFP4": (
        dict(k_block_scale=torch.ones(1, 200, 1, 4).to(E4M3), v_block_scale=None), TypeError,
        "k_block_scale: given with k of torch.float8_e4m3fn and q of torch.bfloat16; accepted: None, or k and v of",
    ),
    "v of another dtype": (
        dict(v_block_scale=torch.ones(1, 200, 1, 4).to(E4M3)), TypeError,
        "v_block_scale: dtype torch.float8_e4m3fn; accepted: torch.float8_e8m0fnu",
    ),
    "blocks of 16": (
        dict(k_block_scale=torch.ones(1, 200, 1, 8).to(E8M0)), ValueError,
        r"k_block_scale: shape \(1, 200, 1, 8\); accepted: \(1, 200, 1, 4\), one for each 32",
    ),
    "strides of words": (
        dict(k_block_scale=torch.ones(1, 200, 1, 6).to(E8M0)[..., :4]), ValueError,
        r"k_block_scale: strides \(1200, 6, 6, 1\); accepted: a contiguous last",
    ),
    "8-bit q": (
        dict(q=torch.ones(1, 1, 8, 128).to(E4M3)), TypeError,
        "k_block_scale: given with k of torch.float8_e4m3fn and q of torch.float8_e4m3fn; accepted: None",
    ),
    "scales of tokens": (dict(k_descale=torch.ones(1, 200, 1)), ValueError, "k_descale: shape .* one number, or"),
    "an order of V": (
        dict(v_block_scale_layout="interleaved4"), ValueError,
        "v_block_scale_layout: 'interleaved4' with k of torch.float8_e4m3fn; accepted: 'linear'",
    ),
    "RoPE columns": (
        dict(k_rope=torch.ones(1, 200, 64).bfloat16(), q=torch.ones(1, 1, 8, 192).bfloat16()), NotImplementedError,
        "k_rope: given with k_block_scale of torch.float8_e8m0fnu .MXFP8.; accepted: None",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument_and_the_remedy(name):
    change, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        flash_attn_func(**call_of() | change)


def test_head_dims_are_refused():
    with pytest.raises(ValueError, match="q: head_dim 96 over k and v of MXFP8; accepted: 64 or"):
        flash_attn_func(**call_of(depth=96))


def test_torch_compile_takes_such_a_cache():
    call = call_of()
    compiled = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**call), flash_attn_func(**call))


def test_capabilities_and_model_lists_know_the_cache():
    ask = dict(dtype="bf16", kv_dtype="mxe4m3", arch="sm_100a", causal=True, return_lse=False)
    for more in (dict(cache_seqlens=True, page_table=True), dict(seqlen_q=500)):
        [row] = capabilities(**ask, group=8, head_dim=128, **more)
        assert row.runs and row.families == ("mhawiden2q" if "seqlen_q" in more else "mhawiden",)
    wide = dict(head_dim=192, head_dim_v=128, cache_seqlens=True, seqlen_q=500)
    [row] = capabilities(**ask, group=8, **wide)
    assert row.runs and row.families == ("mhawiden2q",)
    [row] = capabilities(**ask, group=8, head_dim=96, cache_seqlens=True)
    assert not row.runs and "head_dim 96 over k_cache and v_cache of MXFP8" in row.reasons[0]
    listed = configs_for_model(
        head_dim=128, heads_q=64, heads_kv=8, kv_dtype="mxe4m3", descales="kv"
    )
    attention = [config for config in listed if isinstance(config, FA4Config)]
    assert attention and {config.kv_dtype for config in attention} == {"mxe4m3"}


@pytest.mark.parametrize("kv_layout", ["NHD", "HND"])
def test_rows_at_any_slots_have_the_bytes_of_quantise(kv_layout):
    """Seven rows of three heads in three pages of eight, one not written; the factor is not a power of two."""
    x = torch.randn(7, 3, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[2, 1, 5], x[3, 2] = float("inf"), 0.0
    slots = torch.tensor([0, 13, 6, -1, 23, 12, 1])
    inner = (8, 3) if kv_layout == "NHD" else (3, 8)
    values, scales = torch.zeros(3, *inner, 64).to(E4M3), torch.ones(3, *inner, 2).to(E8M0)
    mxfp8.write(x, values, scales, slots, 0.3, kv_layout)
    for found, expected in zip((values, scales), mxfp8.quantise(x.float() / 0.3), strict=True):
        of_rows = found.view(torch.uint8)
        of_rows = of_rows if kv_layout == "NHD" else of_rows.transpose(1, 2)
        untouched = torch.zeros_like(of_rows) if found is values else torch.full_like(of_rows, 127)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                untouched[slot // 8, slot % 8] = expected[row].view(torch.uint8)
        assert torch.equal(of_rows, untouched)


def test_write_refuses_by_name():
    x, slots = torch.ones(2, 1, 32), torch.tensor([0, 1])
    values, scales = torch.zeros(1, 4, 1, 32).to(E4M3), torch.ones(1, 4, 1, 1).to(E8M0)
    for error, why, changed in (
        (TypeError, "values: dtype torch.uint8; accepted: torch.float8_e4m3fn", dict(values=values.view(torch.uint8))),
        (TypeError, "scales: dtype .*e4m3fn; accepted: torch.float8_e8m0fnu", dict(scales=scales.view(E4M3))),
        (TypeError, "x: dtype torch.float8_e4m3fn; accepted: floating point of 16 bits", dict(x=x.to(E4M3))),
        (ValueError, r"slots: shape \(1,\) with x \(2, 1, 32\)", dict(slots=slots[:1])),
        (ValueError, "kv_layout: 'NDH'; accepted: 'NHD' or 'HND'", dict(kv_layout="NDH")),
        (ValueError, r"global_scale: shape \(2,\); accepted: one number", dict(global_scale=torch.ones(2))),
        (ValueError, r"scales: shape .*; accepted: pages of rows of \(1, 1\)", dict(scales=scales.repeat(1, 1, 1, 2))),
    ):  # fmt: skip
        with pytest.raises(error, match=why):
            mxfp8.write(**dict(x=x, values=values, scales=scales, slots=slots) | changed)
