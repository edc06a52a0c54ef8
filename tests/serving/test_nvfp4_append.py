"""New rows of 16 bits in caches of 4 bits (NVFP4): the append writes cute_fa4.nvfp4's bytes, and no others.

Rows have every kind of block: of normal numbers in sizes from 2^-24 to 2^13, which saturate scales and round them to
subnormal ones and to zero, numbers halfway between two codes, zeros of both signs, subnormal numbers, infinities, NaN.
"""

from __future__ import annotations

import math

import pytest
import torch

from cute_fa4 import (
    capabilities,
    compile_cache,
    configs_for_model,
    flash_attn_with_kvcache,
    nvfp4,
)
from cute_fa4.calls import repeat
from cute_fa4.calls.append import prepare_append
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.calls.prepare import pages_rows_first
from cute_fa4.commands import trials
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.append.config import AppendConfig
from tests import pairwise
from tests.serving import test_overlaps
from tests.serving.batches import int32, offsets
from tests.serving.test_append import BEFORE, CAPACITY, NEW, quiet
from tests.suite import turns

launches = test_overlaps.launches  # a fixture
HEADS, SAME = 3, [4] * len(NEW)
E4M3 = torch.float8_e4m3fn
UNUSED = 0x55  # of codes, and a number as a scale


def rows(number: int, depth: int, dtype, seed: int) -> torch.Tensor:
    """(number, HEADS, depth): every block is of another kind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, HEADS, depth // 16, 16, generator=generator)
    sizes = torch.randint(-24, 14, x.shape[:-1], generator=generator)
    x = (x * 2.0 ** sizes[..., None]).to(dtype)
    blocks = x.view(-1, 16)
    middles = torch.tensor([*(m for m, _ in nvfp4.MIDPOINTS), 6.0]).repeat(2)
    tiny = torch.finfo(dtype).smallest_normal
    kinds = (
        middles * torch.tensor([1.0, -1.0]).repeat(8) / 4,
        torch.tensor([0.0, -0.0] * 8),
        torch.arange(16) * tiny / 64,
        torch.tensor([math.inf] + [1.0] * 15),
        torch.tensor([1.0] * 15 + [-math.inf]),
        torch.tensor([math.nan] + [1.0] * 7 + [-2.0] * 8),
        torch.tensor([6 * 2.0**-10, -(2.0**-12)] + [2.0**-24] * 14),  # its scale is a tie, to 0
        torch.full((16,), torch.finfo(dtype).max),
        torch.tensor([-100.0] + [1.0] * 15),
    )
    for i, kind in enumerate(kinds):
        for n in range(2 * i + seed % 2, len(blocks), 2 * len(kinds)):
            blocks[n] = kind.roll(n // (2 * len(kinds))).to(dtype)
    return x.flatten(-2)


class Cache:
    """Codes and scales of unused bytes, in pages or dense, and the slots of sequences."""

    def __init__(self, storage, batch: int, depths: tuple):
        size, layout = storage
        generator = torch.Generator().manual_seed(size)
        self.layout, self.rows = layout, size or CAPACITY
        columns = -(-CAPACITY // size) if size else 1
        order = torch.randperm(batch * columns + 2 * (size > 0), generator=generator)
        self.table = order[: batch * columns].view(batch, columns).int() if size else None
        pages = self.table if size else torch.arange(batch)[:, None]
        within = torch.arange(self.rows)
        self.slots = (pages.long()[:, :, None] * self.rows + within).flatten(1)
        inner = (self.rows, HEADS) if layout == "NHD" else (HEADS, self.rows)
        of = lambda n: torch.full((len(order), *inner, n), UNUSED, dtype=torch.uint8)
        self.v_layout, self.four_over_six = "linear", False
        self.codes = [of(depth // 2) for depth in depths]
        self.scales = [of(depth // 16).view(E4M3) for depth in depths]

    def bytes(self) -> list:
        return [x.view(torch.uint8).clone() for x in (*self.codes, *self.scales)]

    def write(self, new: list, numbers: list) -> None:
        """By plain torch. new: for k and v the rows of each sequence; numbers: their global scales (batch, heads)."""
        layouts = "linear", self.v_layout
        for codes, scales, sequences, factors, of_scales in zip(
            self.codes, self.scales, new, numbers, layouts, strict=True
        ):
            for b, x in enumerate(sequences):
                slots = self.slots[b, BEFORE[b] : BEFORE[b] + len(x)]
                for head in range(HEADS):
                    at = slice(head, head + 1)
                    where = [
                        t[:, :, at] if self.layout == "NHD" else t[:, at] for t in (codes, scales)
                    ]
                    given = factors[b, head], self.layout, of_scales, self.four_over_six
                    nvfp4.write(x[:, at], *where, slots, *given)


def appended(cache: Cache, new: list, packed: bool, given: dict, picked=None) -> None:
    """By the kernel. new: for k and v the rows of each sequence."""
    lengths = [len(x) for x in new[0]]
    k, v = (torch.cat(x) if packed else torch.stack(x) for x in new)
    tensors = CallTensors(
        q=torch.zeros(len(lengths), 1, HEADS, k.shape[-1], dtype=k.dtype),
        k=cache.codes[0], v=cache.codes[1], seqused_k=int32(BEFORE), page_table=cache.table,
        new_k=k, new_v=v, cu_seqlens_k_new=offsets(lengths) if packed else None,
        k_block_scale=cache.scales[0], v_block_scale=cache.scales[1], cache_batch_idx=picked, **given,
    )  # fmt: skip
    views = pages_rows_first(*cache.codes, cache.layout, ("k_cache", "v_cache"))
    seen = tensors._replace(k=views[0], v=views[1])
    scales = checked_scales(seen, len(lengths), cache.layout == "HND", cache.v_layout)
    append = prepare_append(seen, len(lengths), tensors, scales, cache.four_over_six)
    quiet(append, tensors)


OPTIONS = {
    "storage": ((16, "NHD"), (48, "HND"), (5, "NHD"), (0, "NHD")),
    "depths": ((128, 128), (64, 128), (128, 64), (64, 64), (256, 256), (192, 128)),
    "dtype": (torch.bfloat16, torch.float16),
    "packed": (True, False),
    "factors": ("none", "one number", "of heads"),
    "v_layout": ("linear", "interleaved4"),
    "four_over_six": (False, True),
}


def has_whole_lines(storage, v_layout, **others) -> bool:
    """Four rows of a page, or of a sequence without pages, share lines of interleaved scales."""
    return v_layout == "linear" or storage[0] % 4 == 0


@pairwise.cases(
    "new rows in caches of 4 bits",
    OPTIONS,
    valid=has_whole_lines,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)
def test_bytes_are_those_of_quantize_and_nothing_else_is_written(
    storage, depths, dtype, packed, factors, v_layout, four_over_six
):
    lengths = NEW if packed else SAME
    new = [
        [rows(n, depth, dtype, seed=10 * i + b) for b, n in enumerate(lengths)]
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
    cache, wanted = (Cache(storage, len(lengths), depths) for _ in range(2))
    cache.v_layout = wanted.v_layout = v_layout
    cache.four_over_six = wanted.four_over_six = four_over_six
    wanted.write(new, numbers)
    assert any((scales.float() == 448).any() for scales in wanted.scales)  # some saturate
    appended(cache, new, packed, given)
    for got, want in zip(cache.bytes(), wanted.bytes(), strict=True):
        assert torch.equal(got, want)


def test_picked_sequences_and_rows_that_fit_nowhere(monkeypatch):
    """As on a GPU, whose lengths the host cannot see: a sequence that does not exist, rows beyond the cache."""
    monkeypatch.setattr(
        "cute_fa4.calls.operands.new_rows._check_append_contents", lambda *arguments: None
    )
    new = [[rows(4, 64, torch.bfloat16, seed=i + b) for b in range(5)] for i in (0, 10)]
    cache, wanted = (Cache((16, "NHD"), 5, (64, 64)) for _ in range(2))
    monkeypatch.setitem(globals(), "BEFORE", [5, 0, CAPACITY - 1, -2, 3])
    picked = [4, 7, 2, 0, 1]
    one = torch.ones(5, HEADS)
    kept = [[x[0], x[1][:0], x[2][:1], x[3][:0], x[4]] for x in new]
    wanted.slots = wanted.slots[[p % 5 for p in picked]]
    wanted.write(kept, [one, one])
    appended(cache, new, False, {}, int32(picked))
    for got, want in zip(cache.bytes(), wanted.bytes(), strict=True):
        assert torch.equal(got, want)


def call_of(depth=64, layout="NHD", dtype=torch.bfloat16) -> dict:
    """A call that appends two rows to each of two sequences of 20 and 7 keys, in pages of 16."""
    generator = torch.Generator().manual_seed(0)
    inner = (16, 1) if layout == "NHD" else (1, 16)
    k, v = torch.randn(2, 4, *inner, depth, generator=generator).to(dtype)
    (k4, k_scale, _), (v4, v_scale, _) = (nvfp4.quantize(x, 0.5) for x in (k, v))
    new = torch.randn(3, 2, 2, 1, depth, generator=generator).to(dtype)
    return dict(
        q=new[0].expand(-1, -1, 8, -1).contiguous(), k_cache=k4, v_cache=v4, k=new[1], v=new[2],
        k_block_scale=k_scale, v_block_scale=v_scale, k_descale=torch.tensor(0.5), v_descale=torch.tensor(0.5),
        page_table=int32([[2, 0], [1, 3]]), cache_seqlens=int32([20, 7]), kv_layout=layout, causal=True,
    )  # fmt: skip


WRITTEN = ("k_cache", "v_cache", "k_block_scale", "v_block_scale")


def written(call: dict) -> dict:
    """The arguments of call_of after nvfp4.write, without new rows."""
    call = {name: x.clone() if name in WRITTEN else x for name, x in call.items()}
    slots = torch.tensor([0 * 16 + 4, 0 * 16 + 5, 1 * 16 + 7, 1 * 16 + 8])
    for name in "kv":
        x = call.pop(name).flatten(0, 1)
        into = call[f"{name}_cache"], call[f"{name}_block_scale"]
        given = (
            call[f"{name}_descale"],
            call["kv_layout"],
            "linear",
            call.get("four_over_six", False),
        )
        nvfp4.write(x, *into, slots, *given)
    return call | {"cache_seqlens": call["cache_seqlens"] + 2}


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("v_layout", ["linear", "interleaved4"])
def test_attention_reads_what_the_call_appends(layout, v_layout):
    """The numbers are those of linear scales, wherever the scales of V lie."""
    call = call_of(layout=layout)
    expected = written(call)
    if v_layout == "interleaved4":
        call |= {"v_block_scale": mixed(call), "v_block_scale_layout": v_layout}
    out = quiet(flash_attn_with_kvcache, **call)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))
    if v_layout == "interleaved4":
        expected["v_block_scale"] = mixed(expected)
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)


def mixed(call: dict) -> torch.Tensor:
    """v_block_scale of a call with pages, interleaved."""
    scales = call["v_block_scale"]
    if call["kv_layout"] == "HND":
        return nvfp4.interleaved(scales)
    return nvfp4.interleaved(scales.transpose(1, 2)).transpose(1, 2)


def in_one_tensor(call: dict) -> dict:
    """The same caches, whose pages have codes and scales of k, then those of v: slices of one tensor of bytes."""
    parts = [
        call[name].view(torch.uint8)
        for name in ("k_cache", "k_block_scale", "v_cache", "v_block_scale")
    ]
    whole = torch.cat([x.flatten(1) for x in parts], 1)
    slices = whole.split([x[0].numel() for x in parts], 1)
    k, of_k, v, of_v = (x.view(part.shape) for x, part in zip(slices, parts, strict=True))
    return call | dict(
        k_cache=k, v_cache=v, k_block_scale=of_k.view(E4M3), v_block_scale=of_v.view(E4M3)
    )


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_codes_and_scales_of_a_page_lie_side_by_side_in_one_tensor(layout):
    call = call_of(layout=layout)
    expected = written(call)
    call = in_one_tensor(call)
    out = quiet(flash_attn_with_kvcache, **call)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)


def test_the_better_of_two_scales_is_chosen_for_the_rows_of_a_call():
    """four_over_six of the call reaches the kernel: other bytes, those of nvfp4.write, and a smaller error."""
    call = call_of() | {"four_over_six": True}
    expected, plain = written(call), written(call | {"four_over_six": False})
    out = quiet(flash_attn_with_kvcache, **call)
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)
    assert not all(same_bytes(call[name], plain[name]) for name in WRITTEN)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))  # without new rows, too


@pytest.mark.parametrize("v_layout", ["linear", "interleaved4"])
def test_torch_compile_knows_that_codes_and_scales_are_written(v_layout):
    call = call_of() | {"four_over_six": v_layout == "linear"}
    expected = written(call)
    if v_layout == "interleaved4":
        for each in (call, expected):
            each |= {"v_block_scale": mixed(each), "v_block_scale_layout": v_layout}

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


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            dict(k=torch.zeros(2, 2, 1, 32).byte(), v=torch.zeros(2, 2, 1, 32).byte()), TypeError,
            r"k: dtype torch.uint8 with k_cache of torch.uint8 \(4 bits\); accepted: torch.bfloat16 or torch.float16",
        ),
        (dict(k=torch.zeros(2, 2, 1, 32).bfloat16()), ValueError, r"k: \(1, 32\) heads .* k_cache has \(1, 64\)"),
        (dict(k_block_scale=None), TypeError, "k_block_scale: None with k_cache of torch.uint8"),
        (dict(k_descale=torch.ones(4, 16, 1)), ValueError, "k_descale: shape .* accepted: one number, or"),
        (dict(four_over_six="yes"), TypeError, "four_over_six: 'yes'; accepted"),
        (
            dict(k_block_scale=torch.ones(1, 1, 1, 4).to(E4M3).expand(4, 16, 1, 4)), ValueError,
            "k_block_scale: .* several elements at one address",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refusals_name_the_argument_and_the_remedy(change, error, message):
    with pytest.raises(error, match=message):
        flash_attn_with_kvcache(**call_of() | change)


def test_a_choice_of_scales_is_refused_for_caches_without_any():
    q, (k, v) = torch.ones(1, 1, 8, 64).bfloat16(), torch.ones(2, 1, 20, 1, 64).bfloat16()
    with pytest.raises(ValueError, match="four_over_six: True with k_cache of torch.bfloat16"):
        flash_attn_with_kvcache(
            q, k, v, q[:, :, :1], q[:, :, :1], cache_seqlens=3, four_over_six=True
        )
    [row] = capabilities(
        dtype="bf16", head_dim=64, causal=True, return_lse=False, arch="sm_100a", k=True, v=True,
        cache_seqlens=True, four_over_six=True,
    )  # fmt: skip
    assert not row.runs and row.reasons[0].startswith("four_over_six: True with k_cache")


def test_scales_that_lie_upon_other_tensors_are_refused_by_name():
    call = call_of()
    with pytest.raises(ValueError, match="v_block_scale: shares memory with k_block_scale"):
        flash_attn_with_kvcache(**call | dict(v_block_scale=call["k_block_scale"]))
    upon = call["k_cache"].view(-1)[: call["k_block_scale"].numel()]
    with pytest.raises(ValueError, match="k_block_scale: shares memory with k_cache"):
        flash_attn_with_kvcache(
            **call | dict(k_block_scale=upon.view(E4M3).view_as(call["k_block_scale"]))
        )


@pytest.mark.parametrize("placed", [dict, in_one_tensor], ids=["apart", "in one tensor"])
def test_a_repeated_call_keeps_its_plan_and_is_still_refused(placed, launches, monkeypatch):
    prepared = []

    def counted(*arguments):
        prepared.append(arguments)
        return prepare_append(*arguments)

    monkeypatch.setattr("cute_fa4.calls.append.prepare_append", counted)
    repeat.clear()
    call = placed(call_of())
    for _ in range(3):
        flash_attn_with_kvcache(**call)
    assert len(prepared) == 1 and len(launches) == 6
    with pytest.raises(ValueError, match="v_block_scale: shares memory with k_block_scale"):
        flash_attn_with_kvcache(**call | dict(v_block_scale=call["k_block_scale"]))
    upon = call["v_cache"][..., :4].view(E4M3)  # 4: of 64 columns
    with pytest.raises(ValueError, match="shares memory with"):
        flash_attn_with_kvcache(**call | dict(k_block_scale=upon))
    assert len(launches) == 6


def test_capabilities_and_model_lists_know_the_append():
    ask = dict(
        dtype="fp16", kv_dtype="e2m1", group=8, cache_seqlens=True, k=True, v=True, page_table=True,
        causal=True, return_lse=False, arch="sm_100a",
    )  # fmt: skip
    [row] = capabilities(**ask, head_dim=128)
    assert row.runs and row.families == ("mhawiden",)
    [row] = capabilities(**ask, head_dim=256)
    assert row.runs and row.families == ("mhawidewiden",)
    [row] = capabilities(**ask, head_dim=320)
    assert not row.runs and "head_dim 320 over k_cache and v_cache of 4 bits" in row.reasons[0]
    listed = configs_for_model(
        head_dim=128, heads_q=64, heads_kv=8, dtype="fp16", kv_dtype="e2m1", descales="kv"
    )
    appends = [config for config in listed if isinstance(config, AppendConfig)]
    assert {(x.dtype, x.new_dtype, x.descales.letters) for x in appends} == {("e2m1", "fp16", "kv")}
    assert {(x.v_block_scale_layout, x.four_over_six) for x in appends} == {("linear", False)}
    shape = dict(head_dim=128, heads_q=64, heads_kv=8, calls=("kvcache",), descales="kv")
    better = configs_for_model(**shape, kv_dtype="e2m1", four_over_six=True)
    assert {x.four_over_six for x in better if isinstance(x, AppendConfig)} == {True}
    with pytest.raises(
        ValueError, match="four_over_six=True with dtype='e4m3': use False, or 'e2m1'"
    ):
        configs_for_model(**shape, kv_dtype="e4m3", four_over_six=True)


@pytest.mark.parametrize("letters, layout", [("", "linear"), ("kv", "interleaved4")])
@pytest.mark.parametrize("page_size", [0, 16])
def test_check_tries_the_kernel(letters, layout, page_size):
    config = AppendConfig(
        "e2m1", 128, 64, page_size=page_size, new_dtype="bf16", descales=letters,
        v_block_scale_layout=layout, four_over_six=bool(letters),
    )  # fmt: skip
    compile_cache.function_for(config, "emulator")
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.good and not verdict.not_tried, str(verdict)


def test_contradictions_name_what_a_cache_of_4_bits_takes():
    for fields, message in (
        (dict(), "new_dtype='e2m1' with dtype='e2m1': use 'bf16' or 'fp16'"),
        (dict(new_dtype="bf16", descales="KV"), "of 'kv' for a cache of 4"),
        (dict(new_dtype="bf16", arch="sm_90a"), "arch='sm_90a' with dtype='e2m1': use 'sm_100a'"),
        (
            dict(new_dtype="bf16", v_block_scale_layout="swizzled"),
            "v_block_scale_layout='swizzled': use 'linear' or 'interleaved4'",
        ),
    ):
        [reason] = AppendConfig("e2m1", 128, 128, **fields).contradictions()
        assert message in reason
    [reason] = AppendConfig("bf16", 64, 64, v_block_scale_layout="interleaved4").contradictions()
    assert "v_block_scale_layout='interleaved4' of a cache without 4-bit numbers" in reason


def test_write_refuses_shapes_by_name():
    codes, scales = torch.zeros(3, 4, 2, 32).byte(), torch.zeros(3, 4, 2, 4).to(E4M3)
    x, slots = torch.zeros(5, 2, 64), torch.arange(5)
    for change, message in (
        (dict(kv_layout="NDH"), "kv_layout: 'NDH'"),
        (dict(scale_layout="mixed"), "scale_layout: 'mixed'; accepted: 'linear' or 'interleaved4'"),
        (
            dict(
                codes=codes[:, :2],
                scales=scales[:, :2],
                slots=slots.new_full((5,), 1),
                scale_layout="interleaved4",
            ),
            "scales: 2 tokens of 4 scales; accepted for the layout 'interleaved4': multiples of 4",
        ),
        (dict(slots=slots[:3]), r"slots: shape \(3,\) with x \(5, 2, 64\)"),
        (dict(codes=codes[..., :16]), r"codes: shape .* accepted: pages of rows of \(2, 32\)"),
        (dict(scales=scales[..., :2]), r"scales: shape .* accepted: pages of rows of \(2, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            nvfp4.write(**dict(x=x, codes=codes, scales=scales, slots=slots) | change)
