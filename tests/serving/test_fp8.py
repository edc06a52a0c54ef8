"""8-bit q, k and v: calls against attention in float64 of what they mean, options in pairs, and what is refused.

Unused rows of pages, Q and packed tensors are NaN: 0x7f in e4m3. The bound is that of tests/serving/batches.py:
three mantissa bits of P. Lengths are 0, or end before, at and after a tile boundary.
"""

from __future__ import annotations

import random
import re

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import flash_attn_func, flash_attn_with_kvcache
from cute_fa4.calls.queries import quantised
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.reference import attention_float64, attention_with_kernel_roundings
from cute_fa4.sm100.choose.choose_config import choose_config
from tests import pairwise
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_q,
    paged_kv,
    run,
)
from tests.serving.test_masks import MASKS
from tests.suite import turns

E4M3, E5M2 = FP8
SWEEP = pytest.mark.sweep
NAMES = ("q_descale", "k_descale", "v_descale")
OPTIONS = {
    "mask": ("causal", "window or chunked"),
    "storage": ("dense", 5, 16),  # pages are gathered by fours, or come in boxes
    "group": (1, 8),  # a tile has the rows of one head, or of all
    "tensors": ((E4M3, 128, 128), (E5M2, 80, 16)),  # depths without padding; not an MMA step, least
    "scales": ("kv", "qkv"),
    "sink_and_cap": (False, True),
    "parts": (1, 3),
}
KEYS = (0, 1, 127, 128, 129, 250, 400)


def drawn_scales(letters: str, sizes: tuple, seed: int = 0) -> dict:
    """Positive numbers around 1, no powers of two."""
    generator = torch.Generator().manual_seed(seed)
    return {f"{x}_descale": 0.5 + torch.rand(sizes, generator=generator) for x in letters}


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "8-bit tensors: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    seconds=1.0,
    ids=lambda value: str(value).removeprefix("torch.").replace(" ", ""),
)
def test_options_together_agree_with_float64(
    mask, storage, group, tensors, scales, sink_and_cap, parts
):
    options, visible = MASKS[mask]
    draw = random.Random(f"{mask} {storage} {group} {tensors} {scales} {sink_and_cap} {parts}")
    lengths = [draw.randint(0, 3), 33]
    keys = [draw.choice(KEYS) for _ in lengths]
    dtype, depth, depth_v = tensors
    batch = Batch.draw(lengths, keys, heads=(group, 1), depth=depth, depth_v=depth_v, dtype=dtype)
    also = {}
    if sink_and_cap:
        sink = torch.randn(group, generator=torch.Generator().manual_seed(1))
        also = {"sink": sink, "softcap": 3.0}
    given = drawn_scales(scales, (2, 1))
    stored = dense_kv(batch) if storage == "dense" else paged_kv(batch, storage)
    queries = dense_q(batch) if storage == "dense" else packed_q(batch)
    out, lse = run(
        queries, stored, given, learnable_sink=also.get("sink"), softcap=also.get("softcap", 0.0),
        num_splits=parts, mode="hostile", seed=1, **options,
    )  # fmt: skip
    meant = [given.get(name) for name in NAMES]
    assert_agrees(batch, out, lse, visible=visible, scales=meant, **also)


def scaled(q, k, v, scale, v_scale=None):
    """Every test below that only wants numbers makes this call: one kernel."""
    v_scale = scale if v_scale is None else v_scale
    return flash_attn_func(q, k, v, q_descale=scale, k_descale=scale, v_descale=v_scale)


@pytest.mark.parametrize("spread", [0.2, 3.0], ids=["flat", "peaked"])
def test_the_error_is_that_of_rounding_p(spread):
    """In the norm, where the bound says little: that of attention with the kernel's roundings."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 2, 128, generator=generator).to(E4M3) for n in (40, 500, 500))
    scale, one = spread * 128**-0.5, torch.ones(())
    exact, _ = attention_float64(q.double(), k.double(), v.double(), softmax_scale=scale)
    out = flash_attn_func(q, k, v, softmax_scale=scale, q_descale=one, k_descale=one, v_descale=one)
    with_roundings = [
        attention_with_kernel_roundings(q, k, v, softmax_scale=scale, lag_log2=lag)[0]
        for lag in (0.0, 0.25, 0.5, 0.75)
    ]
    errors = [float((x.double() - exact).norm()) for x in (out, *with_roundings)]
    assert errors[0] <= 1.05 * max(errors[1:])


def test_one_number_is_one_for_every_head_and_a_slice_of_others_goes_without_a_copy():
    """The same bits: of a tensor of one element, of what expand makes of it, and of columns of a wider tensor."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, 4, 128, generator=generator).to(E4M3) for _ in range(3))
    one = torch.tensor(0.75)
    wide = torch.full((2, 8), 0.75)[:, ::2]
    results = [scaled(q, k, v, x) for x in (one, one.reshape(1), one.expand(2, 4), wide)]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_a_factor_of_scores_that_is_not_positive_is_nan_in_its_head_alone():
    """The row maximum is taken before the scores are multiplied: a negative factor would make it the minimum."""
    q, scale = torch.ones(1, 3, 4, 128).to(E4M3), torch.tensor([[1.0, -1.0, 0.0, float("nan")]])
    one = torch.ones(())
    out = flash_attn_func(q, q, q, q_descale=one, k_descale=scale, v_descale=one)
    assert out[:, :, 0].isfinite().all() and out[:, :, 1:].isnan().all()


def test_a_repeated_call_takes_other_scales_and_is_not_mistaken_for_one_without():
    """And out has the dtype of the tensor that is given, bf16 without one."""
    q, one = torch.ones(2, 3, 2, 128).to(E4M3), torch.ones(())
    for value in (1.0, 2.0, 3.0):
        assert (scaled(q, q, q, one, torch.full((2, 2), value)) == value).all()
    assert (flash_attn_func(q, q, q) == 1).all()
    out = torch.empty(q.shape, dtype=torch.float16)
    assert flash_attn_func(q, q, q, out=out) is out and (out == 1).all()
    assert scaled(q, q, q, one, torch.tensor(5.0)).dtype is torch.bfloat16


X = torch.zeros(2, 4, 2, 128, dtype=E4M3)
ONES = torch.ones(2, 2)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(q_descale=ONES.bfloat16()), TypeError, "q_descale: dtype torch.bfloat16; accepted: torch.float32"),
        (dict(k_descale=ONES[:1]), ValueError, r"k_descale: shape \(1, 2\); accepted: one number, or \(2, 2\)"),
        (dict(v_descale=0.5), TypeError, "v_descale: a float; accepted: a torch.Tensor"),
        (dict(v_descale=ONES.to("meta")), ValueError, "v_descale: on meta while q is on cpu"),
        (dict(q=X.bfloat16()), TypeError, "q_descale: given with q of torch.bfloat16, which gets its own scales"),
        (dict(q=X.to(E5M2)), TypeError, "k: dtype torch.float8_e4m3fn while q is torch.float8_e5m2"),
        (dict(q_descale=torch.ones(2, 3, 2)), ValueError, r"q_descale: shape \(2, 3, 2\); .* or \(2, 4, 2\), one"),
        (dict(v_descale=torch.ones(2, 2, 4)), ValueError, r"v_descale: shape \(2, 2, 4\); .* or \(2, 4, 2\), one"),
        (dict(out=X.to(E5M2)), TypeError, "out: dtype torch.float8_e5m2 while q is .*; accepted: torch.bfloat16, "),
        (dict(o_scale=ONES.bfloat16()), TypeError, "o_scale: dtype torch.bfloat16; accepted: torch.float32"),
        (dict(out=ONES.new_zeros(2, 4, 2, 128)), TypeError, "out: dtype torch.float32"),
        (dict(q=X[..., :24], k=X[..., :24]), ValueError, "q: head_dim 24; accepted: a multiple of 16 up to 256"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        flash_attn_func(**(dict(q=X, k=X, v=X, q_descale=ONES) | change))


@pytest.mark.parametrize(
    "queries, heads, keys, depth_v, parts",
    [
        pytest.param(
            140, 2, 300, 80, 1, marks=pytest.mark.sweep
        ),  # two tiles; half of a chunk of O is padding
        (40, 2, 300, 128, 1),  # a tile whose two O are merged, eight columns at a time
        (1, 8, 700, 128, 3),  # merged by a separate kernel
        pytest.param(1, 8, 300, 64, 1, marks=pytest.mark.sweep),  # stored byte by byte
        pytest.param(1, 8, 1100, 64, 0, marks=pytest.mark.sweep),  # in a cluster
    ],
)
def test_out_of_8_bits_is_what_it_means_times_its_scale(queries, heads, keys, depth_v, parts):
    """Rounded once more, with three mantissa bits; of one head beyond 448: cut, never NaN."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((queries, heads, 128), (keys, 2, 128), (keys, 2, depth_v))
    q, k, v = (torch.randn(1, *size, generator=generator).to(E4M3) for size in sizes)
    out = torch.empty(1, queries, heads, depth_v, dtype=E4M3)
    scale, o_scale = torch.tensor([[0.7, 1.3]]), torch.tensor([[60.0, 1e6]])
    found = flash_attn_func(q, k, v, out=out, v_descale=scale, o_scale=o_scale, num_splits=parts)
    assert found is out
    meant, of_sizes = (
        attention_float64(q.double(), k.double(), x * (scale * o_scale).double()[:, None, :, None])[
            0
        ]
        for x in (v.double(), v.double().abs())
    )
    first = slice(0, heads // 2)
    error = (out.double() - meant)[:, :, first].abs()
    allowed = (2**-4 + 2**-8) * of_sizes + 2**-4 * meant.abs() * (1 + 2**-4) + 2**-10
    assert (error <= allowed[:, :, first]).all()
    assert (out[:, :, heads // 2 :].float().abs() == 448).float().mean() > 0.99
    assert out.float().isfinite().all()


ONE_ROW, TWO_TILES, DEEP = (1, 8), (140, 2), (130, 2)


@pytest.mark.parametrize(
    "rows, keys, depths, dtype, kv_dtype, parts",
    [
        (TWO_TILES, 300, (64, 80), torch.bfloat16, None, 1),  # half of a chunk of O is padding
        (ONE_ROW, 700, (128, 128), torch.float16, E4M3, 3),  # keys are dequantized; merged by a separate kernel
        pytest.param(TWO_TILES, 300, (128, 128), torch.bfloat16, E4M3, 1, marks=SWEEP),  # q is quantised
        pytest.param((40, 2), 300, (128, 128), torch.bfloat16, None, 1, marks=SWEEP),  # two O are merged
        pytest.param(ONE_ROW, 300, (64, 64), torch.float16, None, 1, marks=SWEEP),  # byte by byte
        pytest.param(ONE_ROW, 1100, (64, 64), torch.bfloat16, None, 0, marks=SWEEP),  # in a cluster
        pytest.param(DEEP, 200, (192, 192), torch.bfloat16, None, 1, marks=SWEEP),  # one O, on pairs
        pytest.param(DEEP, 200, (256, 512), torch.bfloat16, None, 1, marks=SWEEP),  # in two launches
    ],
)  # fmt: skip
def test_out_of_8_bits_under_queries_of_16(rows, keys, depths, dtype, kv_dtype, parts):
    """The same rounding after P of 16 bits; of q that is quantised on the way, its error besides."""
    (queries, heads), (depth, depth_v) = rows, depths
    generator = torch.Generator().manual_seed(0)
    sizes = ((queries, heads, depth), (keys, 2, depth), (keys, 2, depth_v))
    q, k, v = (torch.randn(1, *size, generator=generator).to(dtype) for size in sizes)
    if kv_dtype is not None:
        k, v = k.to(kv_dtype), v.to(kv_dtype)
    out = torch.empty(1, queries, heads, depth_v, dtype=E4M3)
    o_scale = torch.tensor([[60.0, 1e6]])
    found = flash_attn_func(q, k, v, out=out, o_scale=o_scale, num_splits=parts)
    assert found is out
    meant, of_sizes = (
        attention_float64(q.double(), k.double(), x * o_scale.double()[:, None, :, None])[0]
        for x in (v.double(), v.double().abs())
    )
    quantises = kv_dtype is not None and queries * heads > 32
    of_p = 2**-4 + 2**-8 if quantises else 2**-8
    first = slice(0, heads // 2)
    error = (out.double() - meant)[:, :, first]
    if quantises:  # scores are off by as much as q, which the bound of each number does not know
        assert error.norm() <= 2 * of_p * of_sizes[:, :, first].norm()
    else:
        allowed = of_p * of_sizes + 2**-4 * meant.abs() * (1 + 2**-4) + 2**-10
        assert (error.abs() <= allowed[:, :, first]).all()
    assert (out[:, :, heads // 2 :].float().abs() == 448).float().mean() > 0.99
    assert out.float().isfinite().all()


def test_rows_of_out_of_8_bits_are_whole():
    q = torch.zeros(1, 3, 2, 72).bfloat16()
    with pytest.raises(
        ValueError, match="o_dtype='e4m3' with ov_depth=72: rows of 8-bit .* use a multiple of 16"
    ):
        flash_attn_func(q, q, q, out=torch.empty(1, 3, 2, 80, dtype=E4M3)[..., :72])


def assert_reads(out, q, cache, scales):
    """out is attention of what q was quantised to over a dense cache of eight bits with (batch, heads) scales.

    The bound of rounding P, summed up: a weight is off by 2^-4 of it, and less than 2^-8 more for all else.
    """
    (k, v), q8, q_scale, _ = cache, *quantised(q, cache[0], cache[1], None, None)
    k, v = (x.double() * s.double()[:, None, :, None] for x, s in zip((k, v), scales, strict=True))
    exact, of_sizes = (
        attention_float64(q8.double() * q_scale.double(), k, x, causal=True)[0]
        for x in (v, v.abs())
    )
    assert out.dtype is q.dtype
    assert (out.double() - exact).norm() <= (2**-4 + 2**-8) * of_sizes.norm()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sweep
@pytest.mark.parametrize(
    "queries, group, depths, storage, options",
    [
        ([140, 3], 1, (256, 256), 16, dict(causal=True)),  # whole pages of two spans of K, one of V
        ([40, 3], 1, (208, 160), 5, dict(causal=True)),  # half of an MMA step; gathered
        ([1, 3], 8, (256, 256), 16, dict(causal=True, num_splits=3)),  # each half is merged separately
        ([1, 1], 8, (144, 192), "dense", dict(num_splits=0)),
        ([300], 1, (256, 224), "dense", {}),
    ],
)  # fmt: skip
def test_head_dims_up_to_256_with_v_in_two_launches(queries, group, depths, storage, options):
    depth, depth_v = depths
    keys = [300, 131][: len(queries)]
    batch = Batch.draw(queries, keys, heads=(group, 1), depth=depth, depth_v=depth_v, dtype=E4M3)
    given = drawn_scales("qkv", (len(queries), 1))
    stored = dense_kv(batch) if storage == "dense" else paged_kv(batch, storage)
    out, lse = run(packed_q(batch), stored, given, mode="hostile", seed=1, **options)
    visible = MASKS["causal"][1] if "causal" in options else None
    scales = [given[name] for name in NAMES]
    assert_agrees(batch, out, lse, visible=visible, scales=scales)


@pytest.mark.sweep
def test_queries_of_16_bits_read_a_wide_cache_of_8():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 8, 256, generator=generator).bfloat16()
    cache = [torch.randn(1, 300, 2, 256, generator=generator).to(E4M3) for _ in "kv"]
    scales = [torch.tensor([[0.5, 2.0]]), torch.tensor([[1.5, 0.3]])]
    held = torch.tensor([300], dtype=torch.int32)
    named = dict(k_descale=scales[0], v_descale=scales[1], causal=True)
    assert_reads(flash_attn_with_kvcache(q, *cache, cache_seqlens=held, **named), q, cache, scales)


def test_rows_of_16_bits_go_into_a_cache_of_8_and_queries_of_16_read_it():
    """Stored bit by bit: row / scale in float32, rounded, cut to 448, which k[0] is beyond; the rest stays.

    Queries of 60 lie in one tile for each head, a single one in a tile with swapped operands.
    """
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(2, 60, 2, 128, generator=generator).bfloat16() for _ in "kv"]
    rows[0][0, 0] = 1e6
    scales = [0.01 + 0.02 * torch.rand(2, 2, generator=generator) for _ in "kv"]
    named = dict(k_descale=scales[0], v_descale=scales[1])
    table = torch.randperm(12, generator=generator)[:10].view(2, 5).int()
    caches = torch.full((2, 12, 16, 2, 128), float("nan")).to(E4M3)
    q = torch.randn(2, 60, 4, 128, generator=generator).bfloat16()
    held = torch.zeros(2, dtype=torch.int32)
    out = flash_attn_with_kvcache(
        q, *caches, *rows, cache_seqlens=held, page_table=table, causal=True, **named
    )
    stored = [x.float() / s[:, None, :, None] for x, s in zip(rows, scales, strict=True)]
    stored = [x.clamp(-448, 448).to(E4M3) for x in stored]
    for cache, expected in zip(caches, stored, strict=True):
        found = cache[table.long()].flatten(1, 2)
        assert torch.equal(found[:, :60].view(torch.uint8), expected.view(torch.uint8))
        assert found[:, 60:].isnan().all()
    assert_reads(out, q, stored, scales)
    single = q[:, -1:].half()
    last = flash_attn_with_kvcache(
        single, *caches, cache_seqlens=held + 60, page_table=table, **named
    )
    assert_reads(last, single, stored, scales)


def test_a_scale_for_each_query_and_head_is_that_of_its_row():
    """A row has the bits that it has where its scale is that of all, in packed rows of lengths that fill no tile."""
    batch = Batch.draw([3, 0, 40], [50, 9, 140], heads=(4, 2), depth=128, dtype=E4M3)
    queries, pages = packed_q(batch), paged_kv(batch, 16)
    rows, numbers = queries["q"].shape[:2], torch.tensor([0.7, 1.0, 1.9])
    scale = numbers[torch.arange(rows.numel()) % 3].view(*rows, 1)
    out, lse = run(queries, pages, causal=True, q_descale=scale)
    for number in numbers:
        other, other_lse = run(queries, pages, causal=True, q_descale=number)
        mine = (scale[..., 0] == number)[: sum(batch.queries)]
        assert torch.equal(out[: len(mine)][mine], other[: len(mine)][mine])
        assert torch.equal(lse[:, : len(mine)].T[mine], other_lse[:, : len(mine)].T[mine])


def test_scales_of_16_bit_tensors_are_refused():
    q = X.bfloat16()
    with pytest.raises(
        TypeError, match="k_descale: given with q of torch.bfloat16; accepted: None"
    ):
        flash_attn_with_kvcache(q, q, q, k_descale=ONES)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_a_graph_has_the_same_bits_also_where_it_quantises():
    """torch.compile without breaks: scales of a call; rows and queries of 16 bits for a cache of 8, in place."""
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(1, 20, 2, 128, generator=generator).bfloat16() for _ in "qkv"]
    narrow = [x.to(E4M3) for x in wide]
    scale, held = 0.5 + torch.rand(1, 2, generator=generator), torch.zeros(1, dtype=torch.int32)

    def decoded(q, caches, k, v):
        named = dict(cache_seqlens=held, causal=True, k_descale=scale, v_descale=scale)
        return flash_attn_with_kvcache(q, *caches, k, v, **named)

    caches = [torch.zeros(2, 1, 40, 2, 128).to(E4M3) for _ in range(2)]
    graph = torch.compile(decoded, backend="aot_eager", fullgraph=True)
    assert torch.equal(graph(wide[0], caches[0], *wide[1:]), decoded(wide[0], caches[1], *wide[1:]))
    assert torch.equal(caches[0].view(torch.uint8), caches[1].view(torch.uint8))
    graph = torch.compile(scaled, backend="aot_eager", fullgraph=True)
    assert torch.equal(graph(*narrow, scale), scaled(*narrow, scale))


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_the_kernels_of_both_arches_compile(dtype):
    """No thread spills: an 8-bit P is fewer words than one of 16 bits, scales are a register of a softmax thread."""
    for arch, causal in (("sm_100a", True), ("sm_103a", False)):
        cfg = choose_config(
            qkv_dtype=dtype, head_dim=128, causal=causal, descales="Qkv", arch=arch, write_lse=True
        )
        ptx, cubin = compile_artifacts(cfg)
        assert not re.search(r"\.local\b", ptx) and nvdisasm.resources(cubin).stack_bytes == 0
        assert "kind::f8f6f4" in ptx and "cvt.rn.satfinite.e4m3x2.f32" in ptx
