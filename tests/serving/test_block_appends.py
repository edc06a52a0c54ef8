"""New rows of 16 bits in caches whose blocks have scales (NVFP4, MXFP8): what the append writes, and nothing else.

The bytes are those of cute_fa4.nvfp4.quantize and cute_fa4.mxfp8.quantise. Rows have every kind of block: normal
numbers in sizes from 2^-24 to 2^13, which saturate scales of 4 bits and round them to subnormal ones and to zero;
numbers halfway between two of the format; zeros of both signs, subnormal numbers, infinities, NaN.
test_nvfp4_append.py has what is NVFP4's alone.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import capabilities, compile_cache, configs_for_model, flash_attn_with_kvcache
from cute_fa4.calls import repeat
from cute_fa4.calls.append import prepare_append
from cute_fa4.commands import trials
from cute_fa4.dtypes import DTYPES
from cute_fa4.sm100.append.config import AppendConfig
from tests import pairwise
from tests.serving import test_overlaps
from tests.serving.block_appends import (
    HEADS,
    WRITTEN,
    Cache,
    appended,
    call_of,
    in_one_tensor,
    mixed,
    rows,
    same_bytes,
    written,
)
from tests.serving.test_append import CAPACITY, NEW, quiet
from tests.suite import turns

launches = test_overlaps.launches  # a fixture
SAME = [4] * len(NEW)
NAMES = ("e2m1", "mxe4m3")  # rows of cute_fa4/dtypes.py
of_formats = pytest.mark.parametrize("name", NAMES)

OPTIONS = {
    "name": NAMES,
    "storage": ((16, "NHD"), (48, "HND"), (5, "NHD"), (0, "NHD")),
    "depths": ((128, 128), (64, 128), (128, 64), (64, 64), (256, 256), (192, 128)),
    "dtype": (torch.bfloat16, torch.float16),
    "packed": (True, False),
    "factors": ("none", "one number", "of heads"),
    "v_layout": ("linear", "interleaved4"),
    "four_over_six": (False, True),
}


def has_whole_lines(name, storage, v_layout, four_over_six, **others) -> bool:
    """Four rows of a page, or of a sequence without pages, share lines of interleaved scales, which NVFP4 alone has."""
    if name != "e2m1":
        return v_layout == "linear" and not four_over_six
    return v_layout == "linear" or storage[0] % 4 == 0


@pairwise.cases(
    "new rows in caches whose blocks have scales",
    OPTIONS,
    valid=has_whole_lines,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)
def test_bytes_are_those_of_quantize_and_nothing_else_is_written(
    name, storage, depths, dtype, packed, factors, v_layout, four_over_six
):
    lengths = NEW if packed else SAME
    new = [
        [rows(name, n, depth, dtype, seed=10 * i + b) for b, n in enumerate(lengths)]
        for i, depth in enumerate(depths)
    ]
    generator = torch.Generator().manual_seed(1)
    numbers = torch.exp2(torch.rand(2, len(lengths), HEADS, generator=generator) * 8 - 7)
    given = dict(zip(("k_descale", "v_descale"), numbers, strict=True))
    if factors == "none":
        numbers, given = torch.ones_like(numbers), {}
    elif factors == "one number":
        given = {name: x[0, 0].clone() for name, x in given.items()}
        numbers = numbers[:, :1, :1].expand_as(numbers)
    cache, wanted = (Cache(name, storage, len(lengths), depths) for _ in range(2))
    cache.v_layout = wanted.v_layout = v_layout
    cache.four_over_six = wanted.four_over_six = four_over_six
    wanted.write(new, numbers)
    assert wanted.saturates
    appended(cache, new, packed, given)
    for got, want in zip(cache.bytes(), wanted.bytes(), strict=True):
        assert torch.equal(got, want)


@of_formats
@pytest.mark.parametrize("factor", [0.3, 7.0])
def test_every_magnitude_of_bf16_is_divided_as_by_a_division(name, factor, monkeypatch):
    """All 32,640 finite ones in order, in 170 rows of 192 numbers; V in another order, with signs.

    Quotients come of an inverse and remainders where sizes allow; blocks of the largest and smallest are divided.
    """
    number, depth = 170, 64
    monkeypatch.setattr("tests.serving.block_appends.CAPACITY", 176)
    monkeypatch.setattr("tests.serving.block_appends.BEFORE", [3])
    magnitudes = torch.arange(number * HEADS * depth, dtype=torch.int16).view(torch.bfloat16)
    mixed_up = torch.randperm(len(magnitudes), generator=torch.Generator().manual_seed(1))
    signs = torch.where(mixed_up % 3 == 0, -1.0, 1.0).bfloat16()
    new = [[x.view(number, HEADS, depth)] for x in (magnitudes, magnitudes[mixed_up] * signs)]
    cache, wanted = (Cache(name, (16, "NHD"), 1, (depth, depth)) for _ in range(2))
    numbers = torch.full((2, 1, HEADS), factor)
    wanted.write(new, numbers)
    appended(cache, new, False, dict(zip(("k_descale", "v_descale"), numbers, strict=True)))
    for got, want in zip(cache.bytes(), wanted.bytes(), strict=True):
        assert torch.equal(got, want)


@of_formats
def test_picked_sequences_and_rows_that_fit_nowhere(name, monkeypatch):
    """As on a GPU, whose lengths the host cannot see: a sequence that does not exist, rows beyond the cache."""
    monkeypatch.setattr(
        "cute_fa4.calls.operands.new_rows._check_append_contents", lambda *arguments: None
    )
    new = [[rows(name, 4, 64, torch.bfloat16, seed=i + b) for b in range(5)] for i in (0, 10)]
    cache, wanted = (Cache(name, (16, "NHD"), 5, (64, 64)) for _ in range(2))
    monkeypatch.setattr("tests.serving.block_appends.BEFORE", [5, 0, CAPACITY - 1, -2, 3])
    picked = [4, 7, 2, 0, 1]
    one = torch.ones(5, HEADS)
    kept = [[x[0], x[1][:0], x[2][:1], x[3][:0], x[4]] for x in new]
    wanted.slots = wanted.slots[[p % 5 for p in picked]]
    wanted.write(kept, [one, one])
    appended(cache, new, False, {}, torch.tensor(picked, dtype=torch.int32))
    for got, want in zip(cache.bytes(), wanted.bytes(), strict=True):
        assert torch.equal(got, want)


BETTER, MIXED = dict(four_over_six=True), dict(v_block_scale_layout="interleaved4")
of_choices = pytest.mark.parametrize(
    "name, choice",
    [("e2m1", dict()), ("e2m1", BETTER), ("e2m1", MIXED), ("mxe4m3", dict())],
    ids=lambda x: x if isinstance(x, str) else "-".join(x) or "linear",
)


def called(name: str, choice: dict, layout="NHD") -> tuple[dict, dict]:
    """-> (a call with these options, the call after plain torch has written its rows)."""
    call = call_of(name, layout=layout) | choice
    expected = written(call, name)
    if "v_block_scale_layout" in choice:
        for each in (call, expected):
            each["v_block_scale"] = mixed(each)
    return call, expected


@of_choices
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_attention_reads_what_the_call_appends(name, choice, layout):
    call, expected = called(name, choice, layout)
    out = quiet(flash_attn_with_kvcache, **call)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)


@of_formats
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_numbers_and_scales_of_a_page_lie_side_by_side_in_one_tensor(name, layout):
    call = call_of(name, layout=layout)
    expected = written(call, name)
    call = in_one_tensor(call)
    out = quiet(flash_attn_with_kvcache, **call)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)


@of_choices
def test_torch_compile_knows_that_numbers_and_scales_are_written(name, choice):
    call, expected = called(name, choice)

    def step(**call):
        before = call["k_block_scale"].view(torch.uint8).sum()
        out = flash_attn_with_kvcache(**call)
        return out, before, call["k_block_scale"].view(torch.uint8).sum()

    before = call["k_block_scale"].view(torch.uint8).sum()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    out, first, last = quiet(compiled, **call)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))
    assert first == before and last == expected["k_block_scale"].view(torch.uint8).sum()
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)


@of_formats
def test_refusals_name_the_argument_and_the_remedy(name):
    """Rows that are quantized already bring no scales; scales of tokens are of caches without blocks."""
    call, row = call_of(name), DTYPES[name]
    stored, scales = call["k_cache"].dtype, call["k_block_scale"]
    done = torch.zeros(2, 2, 1, call["k_cache"].shape[-1]).to(stored)
    for change, error, message in (
        (
            dict(k=done, v=done), TypeError,
            rf"k: dtype {stored} with k_cache of {stored} \(.*\); accepted: torch.bfloat16 or torch.float16",
        ),
        (dict(k=call["k"][..., :32]), ValueError, r"k: \(1, 32\) heads .* k_cache has \(1, 64\)"),
        (dict(k_descale=torch.ones(4, 16, 1)), ValueError, "k_descale: shape .* accepted: one number, or"),
        (dict(four_over_six="yes"), TypeError, "four_over_six: 'yes'; accepted"),
        (
            dict(k_block_scale=scales[:1, :1, :1].expand(4, 16, 1, 64 // row.block)), ValueError,
            "k_block_scale: .* several elements at one address",
        ),
        (
            dict(v_block_scale=scales), ValueError,
            "v_block_scale: shares memory with k_block_scale",
        ),
        (
            dict(k_block_scale=call["k_cache"].view(-1)[: scales.numel()].view(scales.dtype).view_as(scales)),
            ValueError, "k_block_scale: shares memory with k_cache",
        ),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            flash_attn_with_kvcache(**call | change)


@of_formats
@pytest.mark.parametrize("placed", [dict, in_one_tensor], ids=["apart", "in one tensor"])
def test_a_repeated_call_keeps_its_plan_and_is_still_refused(name, placed, launches, monkeypatch):
    prepared = []

    def counted(*arguments):
        prepared.append(arguments)
        return prepare_append(*arguments)

    monkeypatch.setattr("cute_fa4.calls.append.prepare_append", counted)
    repeat.clear()
    call = placed(call_of(name))
    for _ in range(3):
        flash_attn_with_kvcache(**call)
    assert len(prepared) == 1 and len(launches) == 6
    with pytest.raises(ValueError, match="v_block_scale: shares memory with k_block_scale"):
        flash_attn_with_kvcache(**call | dict(v_block_scale=call["k_block_scale"]))
    scales = call["k_block_scale"]
    upon = call["v_cache"][..., : scales.shape[-1]].view(scales.dtype)
    with pytest.raises(ValueError, match="shares memory with"):
        flash_attn_with_kvcache(**call | dict(k_block_scale=upon))
    assert len(launches) == 6


@of_formats
def test_capabilities_and_model_lists_know_the_append(name):
    stored = {"e2m1": "of 4 bits", "mxe4m3": "of MXFP8"}[name]
    ask = dict(
        dtype="fp16", kv_dtype=name, group=8, cache_seqlens=True, k=True, v=True, page_table=True,
        causal=True, return_lse=False, arch="sm_100a",
    )  # fmt: skip
    [row] = capabilities(**ask, head_dim=128)
    assert row.runs and row.families == ("mhawiden",)
    [row] = capabilities(**ask, head_dim=256)
    assert row.runs and row.families == ("mhawidewiden",)
    [row] = capabilities(**ask, head_dim=320)
    assert not row.runs and f"head_dim 320 over k_cache and v_cache {stored}" in row.reasons[0]
    listed = configs_for_model(
        head_dim=128, heads_q=64, heads_kv=8, dtype="fp16", kv_dtype=name, descales="kv"
    )
    appends = [config for config in listed if isinstance(config, AppendConfig)]
    assert {(x.dtype, x.new_dtype, x.descales.letters) for x in appends} == {(name, "fp16", "kv")}
    assert {(x.v_block_scale_layout, x.four_over_six) for x in appends} == {("linear", False)}
    shape = dict(head_dim=128, heads_q=64, heads_kv=8, calls=("kvcache",), descales="kv")
    better = dict(**shape, kv_dtype=name, four_over_six=True)
    if name == "e2m1":
        listed = [x for x in configs_for_model(**better) if isinstance(x, AppendConfig)]
        assert {x.four_over_six for x in listed} == {True}
    else:
        with pytest.raises(ValueError, match=f"four_over_six=True with dtype='{name}': use False"):
            configs_for_model(**better)


CHECKED = [
    ("e2m1", dict()),
    ("e2m1", dict(descales="kv", v_block_scale_layout="interleaved4", four_over_six=True)),
    ("mxe4m3", dict(descales="kv")),
]


@pytest.mark.parametrize("name, fields", CHECKED, ids=["e2m1", "e2m1 better", "mxe4m3"])
@pytest.mark.parametrize("page_size", [0, 16])
def test_check_tries_the_kernel(name, fields, page_size):
    config = AppendConfig(name, 128, 64, page_size=page_size, new_dtype="bf16", **fields)
    compile_cache.function_for(config, "emulator")
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.good and not verdict.not_tried, str(verdict)


@of_formats
def test_contradictions_name_what_a_cache_with_scales_of_blocks_takes(name):
    for fields, message in (
        (dict(), f"new_dtype={name!r} with dtype={name!r}: use 'bf16' or 'fp16'"),
        (dict(new_dtype="bf16", descales="KV"), "of 'kv' for a cache with scales of blocks"),
        (dict(new_dtype="bf16", arch="sm_90a"), f"arch='sm_90a' with dtype={name!r}: use 'sm_100a'"),
        (
            dict(new_dtype="bf16", v_block_scale_layout="swizzled"),
            "v_block_scale_layout='swizzled': use 'linear' or 'interleaved4'",
        ),
    ):  # fmt: skip
        [reason] = AppendConfig(name, 128, 128, **fields).contradictions()
        assert message in reason
    for other in ("bf16", "mxe4m3"):
        [reason] = AppendConfig(
            other, 64, 64, new_dtype="bf16", v_block_scale_layout="interleaved4"
        ).contradictions()
        assert "v_block_scale_layout='interleaved4' of a cache without 4-bit numbers" in reason
