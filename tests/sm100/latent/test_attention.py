"""Decode from a latent cache: calls against attention in float64 and against its un-absorbed form, and laws.

Rows of pages that belong to no sequence are NaN, and table entries beyond a sequence are no page.
"""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import flash_mla_with_kvcache, masks
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.sm100.choose.config import FA4Config, LatentTile
from tests.serving.batches import int32
from tests.sm100.latent.latent_batches import LATENT, ROPE, agree, draw, run, stored

# heads, queries, page size, keys, options of the call, mode of the emulator: what each is for
CALLS = {
    "a tile of 16 rows, keys around two tiles": (16, 1, 64, (127, 128, 129, 0, 1), {}, "in_order"),
    "48 heads padded to 64 rows, P over the rotary columns, shared keys": (
        *(48, 1, 16, (1030, 5, 0), {"num_splits": None, "causal": True}, "hostile"),
    ),
    "24 heads padded to 32 rows, pages of 5 gathered, parts of which some are empty, fp16": (
        *(24, 1, 5, (300, 4), {"num_splits": 3, "dtype": torch.float16}, "random"),
    ),
}
FURTHER = {
    "four queries fold into a tile of 64 rows": (
        *(16, 4, 128, (260, 8, 3), {"causal": True}, "hostile"),
    ),
    "three queries of 8 heads leave rows of nobody in 32; fixed parts": (
        *(8, 3, 32, (400, 129), {"causal": True, "tokens_per_split": 256}, "in_order"),
    ),
    "5 heads, seven queries": (5, 7, 24, (200, 7), {"causal": True, "num_splits": 2}, "random"),
}


def check_call(heads, queries, page_size, keys, options, mode):
    options = {"num_splits": 1, "causal": False, "dtype": torch.bfloat16} | options
    batch = draw(queries, keys, heads=heads, dtype=options.pop("dtype"))
    out, lse = run(stored(batch, page_size), mode=mode, seed=1, **options)
    agree(batch, out, lse, options["causal"])


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check_call(*CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check_call(*FURTHER[name])


def test_absorbed_is_what_the_model_defines():
    """Sixteen heads of DeepSeek-V3's attention with random weights: keys and values of each head made from the latent,
    attention of 192 by 128 in float64, against q and out with the two projections absorbed."""
    generator = torch.Generator().manual_seed(3)
    heads, nope, depth_v, keys = 16, 128, 128, 200

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    w_uk, w_uv = normal(heads, nope, LATENT) / LATENT**0.5, normal(heads, depth_v, LATENT) / 16
    q_nope, q_rope = normal(heads, nope), normal(heads, ROPE)
    batch = draw(1, [keys], heads=heads)
    latent, k_rope = batch.k[0][:, 0].double().split([LATENT, ROPE], dim=1)

    scale = (nope + ROPE) ** -0.5
    k = torch.cat([latent @ w_uk.transpose(1, 2), k_rope.expand(heads, keys, ROPE)], dim=2)
    q = torch.cat([q_nope, q_rope], dim=1)[:, None]
    exact = (q @ k.transpose(1, 2) * scale).softmax(2) @ (latent @ w_uv.transpose(1, 2))

    absorbed = torch.cat([(q_nope[:, None] @ w_uk)[:, 0], q_rope], dim=1)
    batch.q[0] = absorbed.bfloat16()[None]
    out, _ = run(stored(batch, 64), softmax_scale=scale, num_splits=1)
    found = (out[0, 0].double()[:, None] @ w_uv.transpose(1, 2))[:, 0]
    # q, P and out are rounded to eight bits: of values of order one, sums of 512 products that do not add up alike.
    error = (found - exact[:, 0]).norm() / exact.norm()
    assert error < 2**-7


def test_work_tiles_of_one_cta_and_rows_that_rescale():
    """One CTA claims every tile of five sequences; later keys score higher by far more than 2^8. A query of NaN spoils
    its own row only."""
    batch = draw(2, [300, 0, 129, 40, 260], heads=16)
    for k in batch.k:
        k *= torch.linspace(0.1, 12.0, max(len(k), 1))[: len(k), None, None].bfloat16()
    call = stored(batch, 64)
    out, lse = run(call, claims=9, causal=True, num_splits=1)
    agree(batch, out, lse, True)
    call["q"][0, 1, 3] = float("nan")
    spoilt, _ = run(call, claims=9, causal=True, num_splits=1, mode="random", seed=2)
    assert spoilt[0, 1, 3].isnan().all()
    spoilt[0, 1, 3] = out[0, 1, 3]
    assert torch.equal(spoilt, out)


def test_where_pages_lie_changes_no_bit():
    """Pages shuffled otherwise, in a cache with other things between its rows; pages of 16 that come whole, and where
    they cannot because a page has 17 rows in memory."""
    batch = draw(1, [150, 33], heads=16)
    expected, _ = run(stored(batch, 64), num_splits=1)
    call = stored(batch, 64, seed=1)
    wide = torch.full((*call["k_cache"].shape[:-1], 640), float("nan")).bfloat16()
    wide[..., 64:] = call["k_cache"]
    assert torch.equal(run(call | {"k_cache": wide[..., 64:]}, num_splits=1)[0], expected)
    call = stored(batch, 16)
    assert torch.equal(run(call, num_splits=1)[0], expected)
    longer = torch.nn.functional.pad(call["k_cache"], (0, 0, 0, 0, 0, 1), value=float("nan"))
    assert torch.equal(run(call | {"k_cache": longer[:, :16]}, num_splits=1)[0], expected)


def test_plans_of_another_package_are_not_read():
    batch = draw(1, [70], heads=16)
    call = stored(batch, 64)
    expected = run(call)
    plan = torch.full((148, 8), -1, dtype=torch.int32), int32([0, 7])
    found = run(call, tile_scheduler_metadata=plan[0], num_splits=plan[1])
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize(
    "changed, error, text",
    [
        (dict(head_dim_v=256), ValueError, "head_dim_v: 256; accepted: 512"),
        (dict(is_fp8_kvcache=True), ValueError, "with is_fp8_kvcache=True; accepted: (num_pages, page_size, 1, 656)"),
        (dict(indices=torch.zeros(1)), TypeError, "indices: dtype torch.float32; accepted: torch.int32"),
        (dict(indices=int32([0])), ValueError, "indices: shape (1,); accepted: (1, 1, 'keys')"),
        (dict(indices=int32([[[0]]]), causal=True), ValueError, "causal: True with indices"),
        (dict(descale_k=torch.ones(1)), TypeError, "descale_k: given with q of torch.bfloat16"),
        (dict(block_table=None), TypeError, "block_table: a NoneType; accepted: a torch.Tensor"),
        (dict(q=torch.zeros(1, 1, 16, 512).bfloat16()), ValueError, "k_cache: head_dim 576 while q has 512"),
        (dict(k_cache=torch.zeros(4, 64, 3, 576).bfloat16()), ValueError, "q: 16 heads over 3 of the cache"),
        (dict(k_cache=torch.zeros(4, 64, 1, 512).bfloat16()), ValueError, "k_cache: head_dim 512 while q has 576"),
        (
            dict(k_cache=torch.zeros(4, 64, 1, 512).to(torch.float8_e4m3fn)), ValueError,
            "k_cache: head_dim 512 while q has 576",
        ),
        (dict(k_cache=torch.zeros(4, 64, 576).bfloat16()), ValueError, "k_cache: shape (4, 64, 576) has 3"),
        (
            dict(out=torch.zeros(1, 1, 16, 512).to(torch.float8_e4m3fn)), ValueError,
            "out: o_dtype='e4m3' is not supported for qkv_dtype='bf16': use 'bf16'",
        ),
        (dict(cache_seqlens=torch.ones(1)), TypeError, "cache_seqlens: dtype torch.float32; accepted: torch.int32"),
        (dict(cache_seqlens=int32([500])), ValueError, "cache_seqlens: 500 for sequence 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_refusal_names_the_callers_argument(changed, error, text):
    call = stored(draw(1, [70], heads=16), 64)
    with pytest.raises(error, match=re.escape(text)):
        flash_mla_with_kvcache(**call | changed)


@pytest.mark.parametrize("rows, arch, split", [(64, "sm_103a", True)])
def test_code_has_no_spills(rows, arch, split):
    cfg = FA4Config(
        qk_depth=576, ov_depth=512, latent=True, group=2 * rows, pack_gqa=True, kv_layout="paged", page_size=16,
        seqused_k=True, write_lse=True, mask=masks.Causal(), split_keys=split, share_keys=split,
        o_dtype="f32" if split else None, arch=arch, schedule=LatentTile(rows=rows),
    )  # fmt: skip
    ptx, cubin = compile_artifacts(cfg)
    assert not re.search(r"\.local\b", ptx)
    resources = nvdisasm.resources(cubin)
    assert resources.stack_bytes == 0 and resources.registers <= 255
    # Per key tile: five parts of the sum, 36 steps of 16 columns; four outputs, 8 steps of 16 keys.
    assert len(re.findall(r"tcgen05\.mma\.", ptx)) == 36 + 4 * 8
