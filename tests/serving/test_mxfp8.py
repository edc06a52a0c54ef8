"""Scales of blocks of 32 of 8-bit q and k (MXFP8): calls against attention in float64 of what they mean.

Unused rows are NaN, and so are their scales (255). Scales differ from block to block by powers of two, so that the
scale of a neighbouring block, row or head shows. Lengths are 0, or end before, at and after a tile of 128 keys.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cute_fa4 import capabilities, flash_attn_func, flash_attn_with_kvcache, mxfp8
from cute_fa4.reference import attention_float64
from cute_fa4.sm100.choose.config import FA4Config, Pair
from tests import pairwise
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    dense,
    packed,
    paged_kv,
    run,
    storages,
)
from tests.serving.test_masks import MASKS

E4M3, E5M2 = FP8
E8M0 = torch.float8_e8m0fnu
ONE, NONE = 127, 255  # bytes of e8m0


def draw(batch: Batch, seed: int = 0) -> dict:
    """name -> scales (length, heads, depth / 32) of each sequence: 2^-6 to 2^1."""
    generator = torch.Generator().manual_seed(seed)

    def of(x):
        sizes = (*x.shape[:2], x.shape[-1] // 32)
        return torch.randint(ONE - 6, ONE + 2, sizes, generator=generator).byte()

    return {name: [of(x) for x in getattr(batch, name)] for name in "qk"}


def as_stored(name: str, scales: list, storage, layout: str, batch: Batch) -> torch.Tensor:
    """Bytes of sequences' blocks -> as their tensor is stored, NONE elsewhere."""
    numbers = [x.float() for x in scales]  # storage fills with NaN
    if name == "q":
        length = max(batch.queries)
        stored = dense(numbers, length) if storage == "dense" else packed(numbers)
    elif storage == "dense":
        stored = dense(numbers, max(batch.keys) + 3)
    elif storage == "packed":
        stored = packed(numbers)
    else:
        stored = paged_kv(Batch(batch.q, numbers, numbers), storage, layout)["k"]
    return stored.nan_to_num(NONE).byte().view(E8M0)


def called(batch: Batch, given: dict, storage, layout="NHD", **options) -> tuple:
    """The call with these scales -> (out, lse)."""
    names = {f"{x}_descale": as_stored(x, s, storage, layout, batch) for x, s in given.items()}
    return run(*storages(batch, storage, layout), names, **options)


def meant(given: dict) -> list:
    return [*([x.view(E8M0) for x in given[name]] for name in "qk"), None]


OPTIONS = {
    "storage": ("dense", "packed", (5, "NHD"), (16, "HND")),  # pages are gathered, or come in boxes
    "queries": ((200, 140), (20, 300), (1, 1)),
    "mask": ("full", "causal", "window or chunked"),
    "group": (1, 4),
    "tensors": (
        (E4M3, 128, 128),
        (E5M2, 96, 16),
        (E4M3, 64, 64),
        (E4M3, 32, 256),
        (E4M3, 192, 128),
        (E5M2, 256, 64),
    ),
    "parts": (1, 2),
}
# Of these plain pytest runs one: the last block of a row of three, and gathered pages.
QUICK = dict(tensors=(E5M2, 96, 16), storage=(5, "NHD"), mask="causal")
CASES = pairwise.of_pairs(OPTIONS, QUICK)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(tuple(OPTIONS), CASES)
def test_options_together_agree_with_float64(storage, queries, mask, group, tensors, parts):
    options, visible = MASKS[mask]
    storage, layout = storage if isinstance(storage, tuple) else (storage, "NHD")
    dtype, depth, depth_v = tensors
    batch = Batch.draw(
        queries, [280, 129], heads=(2 * group, 2), depth=depth, depth_v=depth_v, dtype=dtype
    )
    given = draw(batch)
    out, lse = called(
        batch, given, storage, layout, num_splits=parts, mode="hostile", seed=1, **options
    )
    assert_agrees(batch, out, lse, visible=visible, scales=meant(given))


def small(dtype=E4M3, queries=40, depth=64) -> dict:
    """A call of two heads on 40 keys."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(1, n, 2, depth, generator=generator) for n in (queries, 40, 40)]
    (q, q_scale), (k, k_scale) = (mxfp8.quantise(x, dtype) for x in rows[:2])
    return dict(q=q, k=k, v=rows[2].to(dtype), q_descale=q_scale, k_descale=k_scale)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_a_block_that_is_no_number_takes_its_row_and_its_key():
    """255 means NaN: of a query its row alone, of a key the rows that see it."""
    call = small(depth=96)
    call["q_descale"].view(torch.uint8)[0, 7, 0, 2] = NONE
    call["k_descale"].view(torch.uint8)[0, 30, 1, 0] = NONE
    out = flash_attn_func(**call, causal=True)
    lost = out.isnan().any(-1)[0]
    expected = torch.zeros(40, 2, dtype=torch.bool)
    expected[7, 0] = expected[30:, 1] = True
    assert torch.equal(lost, expected)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_calls_with_scales_of_one_shape_and_two_dtypes_are_two():
    """Block and token scales with head_dim / 32 = 1."""
    call = small(depth=32)
    plain = call | {
        name: torch.ones(call[name].shape) for name in ("q_descale", "k_descale")
    }  # of tokens, of the same shape: head_dim / 32 is 1
    out = flash_attn_func(**call, causal=True)
    assert out.isfinite().all() and not torch.equal(out, flash_attn_func(**plain, causal=True))
    assert torch.equal(out, flash_attn_func(**call, causal=True))


def test_every_way_to_give_them_wrongly_is_refused_by_name():
    call = small()
    q_scale, k_scale = call["q_descale"], call["k_descale"]
    wide = call["q"].bfloat16()
    for changes, error, words in (
        (dict(k_descale=None), TypeError, "k_descale: no scales of blocks while q_descale has"),
        (dict(q_descale=torch.ones(1)), TypeError, "q_descale: no scales of blocks while k_descale"),
        (dict(v_descale=k_scale), TypeError, "v_descale: dtype torch.float8_e8m0fnu; accepted: torch.float32"),
        (dict(k_descale=k_scale[..., :1]), ValueError, r"k_descale: shape \(1, 40, 2, 1\); accepted: \(1, 40, 2, 2\)"),
        (dict(q=wide, q_descale=None), TypeError, "q_descale: no scales of blocks .*mxfp8.quantise"),
        (
            dict(q=call["q"][..., :48], k=call["k"][..., :48]), ValueError,
            "q_descale: scales of blocks with a head dim of 48 of q and k; accepted: a multiple of 32",
        ),
        (dict(v_descale=torch.ones(1, 40, 2)), ValueError, "of V are not supported beside scales of blocks"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            flash_attn_func(**call | changes)
    new = torch.zeros(1, 1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(
        TypeError, match="k: dtype torch.bfloat16 with k_descale of blocks; accepted"
    ):
        flash_attn_with_kvcache(
            call["q"], call["k"], call["v"], new, new, cache_seqlens=torch.tensor([30], dtype=torch.int32),
            q_descale=q_scale, k_descale=k_scale,
        )  # fmt: skip
    (why,) = FA4Config(qkv_dtype="e4m3", descales="x").refusals()
    assert "use both x (Q) and y (K), or neither" in why
    (why, *_) = FA4Config(qkv_dtype="e4m3", descales="xy", schedule=Pair()).refusals()
    assert "are for schedule=BlockScaled()" in why


def test_capabilities_know_them():
    """By metadata, for one query as for many; an 8-bit tensor needs a scale."""
    sizes = dict(q_descale=(2, 300, 8, 2), k_descale=(2, 300, 2, 2))
    asked = dict(head_dim=64, heads_kv=2, group=4, batch=2, seqlen_q=300, seqlen_k=300)
    asked |= dict(return_lse=False, causal=True, arch="sm_100a", dtype="e4m3")
    given = {name: torch.empty(size, dtype=E8M0, device="meta") for name, size in sizes.items()}
    (row,) = capabilities(**asked, **given)
    assert row.runs and row.families == ("mhamx",)
    given["q_descale"] = given["q_descale"][:, :1]
    (row,) = capabilities(**asked | {"seqlen_q": 1}, **given)
    assert row.runs and row.families == ("mhamx",)
    (row,) = capabilities(**asked | {"head_dim": 48, "seqlen_q": 1}, **given)
    assert not row.runs and "multiple of 32" in row.reasons[0]


@pytest.mark.parametrize("dtype", FP8)
def test_quantise_is_that_of_the_specification(dtype):
    """The scale by its formula, element by element; every block of every exponent of float32, zeros, NaN."""
    exponents = torch.arange(-149, 128).float()
    x = torch.exp2(exponents.double())[:, None] * torch.linspace(0.1, 1.0, 32, dtype=torch.float64)
    x = x.float()
    values, scales = mxfp8.quantise(x, dtype)
    largest, emax = torch.finfo(dtype).max, {E4M3: 8, E5M2: 15}[dtype]
    expected = (exponents - emax).clamp(min=-127)
    assert torch.equal(scales.view(torch.uint8)[:, 0].int() - 127, expected.int())
    meant = (x.double() / torch.exp2(expected.double())[:, None]).clamp(-largest, largest)
    assert torch.equal(values.view(torch.uint8), meant.float().to(dtype).view(torch.uint8))
    odd = torch.zeros(3, 32)
    odd[1, 3], odd[2, 4] = torch.nan, torch.inf
    values, scales = mxfp8.quantise(odd, dtype)
    assert scales.view(torch.uint8).flatten().tolist() == [ONE, NONE, NONE]
    assert (values[0].float() == 0).all() and mxfp8.dequantise(values, scales)[1:].isnan().all()
    for wrong, error in ((torch.zeros(2, 33), ValueError), (torch.zeros(2, 32).int(), TypeError)):
        with pytest.raises(error, match="x: .*accepted"):
            mxfp8.quantise(wrong, dtype)


def error_of_rounding(columns: bool, by: str) -> float:
    """Errors against float64 in the norm match the table of docs/numerics.md."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 200, 1, 128, generator=generator) for _ in "qkv")
    if columns:
        for first, power in ((0, 9), (64, -9)):
            q[..., first : first + 4] *= 2.0**power
            k[..., first : first + 4] *= 2.0**-power

    def rounded(x):
        if by == "block":
            return mxfp8.dequantise(*mxfp8.quantise(x)).double()
        scale = x.abs().amax() if by == "head" else x.abs().amax(-1, keepdim=True)
        scale = scale / 448
        return (x / scale).to(E4M3).double() * scale.double()

    exact, rough = (
        attention_float64(*x, v.double())[0]
        for x in ((q.double(), k.double()), (rounded(q), rounded(k)))
    )
    return float((rough - exact).norm() / exact.norm())


def test_the_table_of_errors_is_what_rounding_costs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "numerics_eight_bits.md").read_text()
    table = page.split("<!-- mxfp8")[1].split("<!-- /mxfp8")[0]
    rows = [line.split("|")[2:5] for line in table.splitlines() if line.startswith("|")][2:]
    for columns, row in zip((False, True), rows, strict=True):
        for by, said in zip(("head", "token", "block"), row, strict=True):
            assert error_of_rounding(columns, by) == pytest.approx(float(said), rel=0.02)


@pytest.mark.parametrize("depth, remedy", [(48, "pad q and k"), (208, "pad q and k")])
def test_head_dims_without_scales_of_blocks_are_refused_in_the_words_of_the_call(depth, remedy):
    q = torch.zeros(1, 5, 1, depth).to(E4M3)
    scales = torch.full((1, 5, 1, depth // 32), ONE, dtype=torch.uint8).view(E8M0)
    accepted = f"head dim of {depth} of q and k; accepted: a multiple of 32 up to 256; .*{remedy}"
    with pytest.raises(ValueError, match=f"^q_descale: scales of blocks with a {accepted}"):
        flash_attn_func(q, q, q[..., :32], q_descale=scales, k_descale=scales)
