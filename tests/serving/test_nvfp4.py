"""Caches whose blocks have scales (NVFP4, MXFP8): calls against attention in float64 of the values that they mean.

Codes are any bytes that are numbers, scales of NVFP4 any e4m3 numbers from 2^-9, a subnormal one, to 2^-1, of MXFP8
powers from 2^-14 to 2^-8, so that the scale of a neighbouring block, row or head shows. Scales of unused rows are NaN.
Lengths are 0, or end before, at and after a tile of 128 keys.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import (
    capabilities,
    compile_cache,
    configs_for_model,
    flash_attn_func,
    flash_attn_with_kvcache,
    mxfp8,
    nvfp4,
)
from cute_fa4.dtypes import DTYPES
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile
from cute_fa4.sm100.two_tiles.dequantized.schedule import SlotTwoTiles
from cute_fa4.sm100.wide.dequantized.schedule import SlotWideTile
from tests import pairwise
from tests.serving.batches import (
    Batch,
    assert_agrees,
    packed_q,
    run,
    storages,
)
from tests.serving.test_masks import MASKS
from tests.suite import turns

E4M3 = torch.float8_e4m3fn
NONE = 0x7F  # the byte of NaN: of e4m3


@dataclass(frozen=True)
class Format:
    """Bytes of a cache.

    in_byte, block   numbers that share a byte, and a scale
    scales           bytes of the least and of the largest scale that is drawn, and of NaN
    dtypes           of codes and of scales
    unused           byte of codes in rows that belong to no sequence
    """

    in_byte: int
    block: int
    scales: tuple[int, int, int]
    dtypes: tuple
    unused: int

    def values(self, codes, scales) -> torch.Tensor:
        codes, scales = codes.view(self.dtypes[0]), scales.view(self.dtypes[1])
        dequantize = nvfp4.dequantize if self.in_byte == 2 else mxfp8.dequantise
        return dequantize(codes, scales)

    def drawn(self, size: tuple, generator) -> torch.Tensor:
        codes = torch.randint(0, 256, size, generator=generator).byte()
        return codes if self.in_byte == 2 else torch.where(codes & NONE == NONE, 0x15, codes)


FORMATS = {
    "nvfp4": Format(2, 16, (0x01, 0x30, NONE), (torch.uint8, E4M3), 0x55),  # 2^-9 to 2^-1
    "mxfp8": Format(1, 32, (113, 119, 255), (E4M3, torch.float8_e8m0fnu), NONE),
}


@dataclass(frozen=True)
class Cache:
    """Sequences of codes (length, heads, depth / in_byte) and of bytes of scales (length, heads, depth / block)."""

    codes: dict
    scales: dict
    of: Format = FORMATS["nvfp4"]

    @staticmethod
    def draw(keys, heads: int, depths: dict, seed: int = 0, of: str = "nvfp4") -> Cache:
        generator, form = torch.Generator().manual_seed(seed), FORMATS[of]
        low, high, _ = form.scales

        def codes(depth):
            return [form.drawn((n, heads, depth // form.in_byte), generator) for n in keys]

        def scales(depth):
            sizes = [(n, heads, depth // form.block) for n in keys]
            return [
                torch.randint(low, high + 1, size, generator=generator).byte() for size in sizes
            ]

        return Cache(
            {name: codes(depth) for name, depth in depths.items()},
            {name: scales(depth) for name, depth in depths.items()},
            form,
        )

    def meant(self, name: str) -> list:
        """Values, without the global scales."""
        pairs = zip(self.codes[name], self.scales[name], strict=True)
        return [self.of.values(*each) for each in pairs]

    def stored(self, q: list, storage, layout: str) -> dict:
        """Arguments of a call; storage fills unused rows with NaN, here of float32."""
        found = {}
        for names, parts, unused, dtype in (
            ("kv", self.codes, self.of.unused, self.of.dtypes[0]),
            (
                ("k_block_scale", "v_block_scale"),
                self.scales,
                self.of.scales[-1],
                self.of.dtypes[1],
            ),
        ):
            floats = Batch(q, *([x.float() for x in parts[name]] for name in "kv"))
            _, given = storages(floats, storage, layout)
            for name, of in zip(names, "kv", strict=True):
                found[name] = given.pop(of).nan_to_num(unused).byte().view(dtype)
            found |= given
        return found


@pytest.fixture
def asked(monkeypatch) -> list:
    """The configurations of attention that calls asked for."""
    found, function_for = [], compile_cache.function_for

    def noted(config, executor):
        if isinstance(config, FA4Config):
            found.append(config)
        return function_for(config, executor)

    monkeypatch.setattr("cute_fa4.calls.attention.function_for", noted)
    return found


OPTIONS = {
    "cache": tuple(FORMATS),
    "mask": ("causal", "window or chunked"),
    "storage": ((16, "NHD"), (48, "HND"), (5, "NHD"), "dense", "packed"),  # boxes, gathered rows
    "group": (1, 7, 16),  # tiles of 8, padded groups, 16
    "tensors": (
        *((torch.bfloat16, 128, 128), (torch.float16, 64, 128), (torch.bfloat16, 128, 64)),
        *(
            (torch.bfloat16, 256, 256),
            (torch.float16, 192, 128),
            (torch.bfloat16, 192, 192),
        ),  # units
    ),
    "queries": (1, 2, 40),  # 40: more than a tile of few rows has
    "parts": (1, 3),  # with a sink
}
KEYS = (0, 1, 127, 128, 129, 250, 400)


@pytest.mark.filterwarnings("ignore")
@pairwise.cases(
    "caches with scales of blocks: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    seconds=1.0,
    ids=lambda value: str(value).replace("torch.", "").replace(" ", ""),
)
def test_options_together_agree_with_float64(
    cache, mask, storage, group, tensors, queries, parts, asked
):
    options, visible = MASKS[mask]
    draw = random.Random(f"{cache} {mask} {storage} {group} {tensors} {queries} {parts}")
    lengths = [queries, draw.randint(0, queries)]
    keys = [draw.choice(KEYS) for _ in lengths]
    keys[0] = keys[0] or 1  # a tensor without rows is never read
    dtype, depth, depth_v = tensors
    cache = Cache.draw(keys, 2, {"k": depth, "v": depth_v}, of=cache)
    q = Batch.draw(lengths, keys, heads=(2 * group, 2), depth=depth, dtype=dtype).q
    batch = Batch(q, cache.meant("k"), cache.meant("v"))
    sinks = None
    if parts > 1:
        sinks = torch.randn(2 * group, generator=torch.Generator().manual_seed(1))
    numbers = 0.5 + torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(2))
    scales = dict(zip(("k_descale", "v_descale"), numbers, strict=True))
    kind, layout = storage if isinstance(storage, tuple) else (storage, "NHD")
    of_queries, _ = (
        storages(Batch(q, q, q), "dense") if kind == "dense" else (packed_q(batch), None)
    )
    out, lse = run(
        of_queries, cache.stored(q, kind, layout), scales,
        num_splits=parts, mode="hostile", seed=1, learnable_sink=sinks, **options,
    )  # fmt: skip
    assert_agrees(batch, out, lse, visible=visible, sink=sinks, scales=[None, *numbers])
    rows = max(lengths) * (
        group if group in (1, 16) or queries < 5 else 1
    )  # 7 heads share tiles of few rows
    assert {type(config.schedule) for config in asked} == {schedule_of(depth, depth_v, rows)}


def schedule_of(depth: int, depth_v: int, rows: int) -> type:
    if depth > 128:
        two = depth <= 192 and depth_v <= 128 and rows > 128
        return SlotTwoTiles if two else SlotWideTile
    return DequantizedTile if rows <= 32 else SlotTwoTiles


SAME_NUMBERS = {
    "pages": dict(storage=(16, "NHD")),
    "pages, heads first": dict(storage=(48, "HND"), options=dict(causal=True), depths=(64, 128)),
    "gathered rows": dict(storage=(12, "NHD"), depths=(128, 64)),
    "dense": dict(storage="dense", keys=(297, 120)),  # and three unused rows
    "wide heads": dict(storage=(16, "NHD"), depths=(192, 256)),
    "parts": dict(storage=(16, "NHD"), options=dict(num_splits=3)),
    "clusters": dict(storage=(16, "NHD"), keys=(520,), options=dict(num_splits=0)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", SAME_NUMBERS, ids=lambda name: name.replace(", ", "-"))
def test_interleaved_scales_of_v_give_the_bits_of_linear_ones(case, asked):
    """v_block_scale_layout says where a scale lies, nothing else; every scale differs from its neighbours'."""
    of = dict(keys=(250, 129), options={}, depths=(128, 128)) | SAME_NUMBERS[case]
    depth, depth_v = of["depths"]
    cache = Cache.draw(of["keys"], 2, {"k": depth, "v": depth_v})
    queries = [2] * len(of["keys"])
    q = Batch.draw(queries, of["keys"], heads=(8, 2), depth=depth).q
    batch = Batch(q, q, q)
    kind, layout = of["storage"] if isinstance(of["storage"], tuple) else (of["storage"], "NHD")
    of_queries = storages(batch, "dense")[0] if kind == "dense" else packed_q(batch)
    stored = cache.stored(q, kind, layout)
    rows_first = (
        stored["v_block_scale"].transpose(1, 2) if layout == "NHD" else stored["v_block_scale"]
    )
    mixed = nvfp4.interleaved(rows_first)
    mixed = mixed.transpose(1, 2) if layout == "NHD" else mixed
    linear = run(of_queries, stored, {}, mode="hostile", seed=1, **of["options"])
    stored |= {"v_block_scale": mixed, "v_block_scale_layout": "interleaved4"}
    found = run(of_queries, stored, {}, mode="hostile", seed=1, **of["options"])
    for got, want in zip(found, linear, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    layouts = [config.v_block_scale_layout for config in asked]
    assert layouts == ["linear", "interleaved4"] and all(
        "interleaved4" in c.name for c in asked[1:]
    )


@pytest.mark.filterwarnings("ignore")
def test_interleaved_scales_of_left_padded_keys():
    """A key's lines are those of its row in the cache, which begins before the sequence."""
    cache = Cache.draw([150, 90], 1, {"k": 64, "v": 64})
    q = Batch.draw([1, 1], [150, 90], heads=(8, 1), depth=64).q
    stored = cache.stored(q, 16, "NHD")
    given = dict(
        q=torch.stack(q), k_cache=stored["k"], v_cache=stored["v"], k_block_scale=stored["k_block_scale"],
        page_table=stored["page_table"], cache_seqlens=stored["seqused_k"],
        cache_leftpad=torch.tensor([3, 6], dtype=torch.int32),
    )  # fmt: skip
    scales = stored["v_block_scale"]
    linear = flash_attn_with_kvcache(**given, v_block_scale=scales)
    mixed = nvfp4.interleaved(scales.transpose(1, 2)).transpose(1, 2)
    found = flash_attn_with_kvcache(
        **given, v_block_scale=mixed, v_block_scale_layout="interleaved4"
    )
    assert torch.equal(found, linear) and not linear.isnan().any()


def call_of(keys=200, group=8, depth=128, seed=0) -> dict:
    """A dense call of one sequence with one query."""
    cache = Cache.draw([keys], 1, {"k": depth, "v": depth}, seed)
    q = torch.randn(1, 1, group, depth, generator=torch.Generator().manual_seed(seed)).bfloat16()
    scales = {f"{x}_block_scale": cache.scales[x][0][None].view(E4M3) for x in "kv"}
    return dict(q=q, k=cache.codes["k"][0][None], v=cache.codes["v"][0][None], **scales)


@pytest.mark.filterwarnings("ignore")
def test_a_cta_runs_several_work_tiles_some_without_keys_and_shares_a_cluster(asked):
    """Scales are read one key tile ahead: also over the end of a work tile, and in every second tile of a cluster."""
    for keys, queries, more in (
        ([300, 0, 129, 40], [2, 1, 1, 2], dict(claims=2, mode="random")),
        ([520], [1], dict(num_splits=0, mode="hostile")),
    ):
        cache = Cache.draw(keys, 1, {"k": 128, "v": 128})
        q = Batch.draw(queries, keys, heads=(8, 1), depth=128).q
        batch = Batch(q, cache.meant("k"), cache.meant("v"))
        out, lse = run(packed_q(batch), cache.stored(q, 16, "NHD"), seed=1, **more)
        assert_agrees(batch, out, lse)
    assert [config.cluster_parts > 1 for config in asked] == [False, True]


@pytest.mark.filterwarnings("ignore")
def test_a_scale_without_a_number_spoils_its_key_or_its_columns(asked):
    """A NaN scale of K makes all of out NaN, one of V its 16 columns; negative scales count as they are."""
    call = call_of()
    call["v_block_scale"].view(torch.uint8)[0, 150, 0, 3] = NONE
    out = flash_attn_func(**call)
    assert out[..., 48:64].isnan().all() and not out[..., :48].isnan().any()
    call = call_of()
    call["k_block_scale"].view(torch.uint8)[0, 150, 0, 3] = NONE
    assert flash_attn_func(**call).isnan().all()
    call = call_of()
    call["v_block_scale"].view(torch.uint8).bitwise_xor_(0x80)
    torch.testing.assert_close(
        flash_attn_func(**call), -flash_attn_func(**call_of()), rtol=0, atol=0
    )


def test_torch_compile_takes_such_a_cache_and_still_appends_to_others():
    """The names of torch's dtypes are looked up once: Dynamo cannot enter the lock of a first look-up."""

    def attend(q, k, v, of_k, of_v):
        return flash_attn_func(q, k, v, k_block_scale=of_k, v_block_scale=of_v)

    def append(q, k_cache, v_cache, lengths):
        return flash_attn_with_kvcache(q, k_cache, v_cache, q, q, cache_seqlens=lengths)

    call = call_of(keys=20, group=1, depth=64)
    caches = torch.randn(2, 1, 20, 1, 64).bfloat16().unbind(0)
    lengths = torch.tensor([5], dtype=torch.int32)
    for function, arguments in (
        (attend, tuple(call.values())),
        (append, (call["q"], caches[0].clone(), caches[1].clone(), lengths)),
    ):
        for row in DTYPES.values():
            vars(row).pop("torch", None)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        found = compiled(*arguments)
        assert torch.equal(found, function(*arguments))


def test_capabilities_and_model_lists_know_the_cache():
    ask = dict(
        dtype="bf16", kv_dtype="e2m1", arch="sm_100a", causal=True, return_lse=False, group=8
    )
    for more in (dict(cache_seqlens=True, page_table=True), dict(seqlen_q=500)):
        [row] = capabilities(**ask, head_dim=128, **more)
        assert row.runs and row.families == ("mhawiden2q" if "seqlen_q" in more else "mhawiden",)
    for queries in (1, 500):
        wide = dict(head_dim=192, head_dim_v=128, cache_seqlens=True, seqlen_q=queries)
        [row] = capabilities(**ask, **wide)
        assert row.runs and row.families == ("mhawiden2q" if queries > 1 else "mhawidewiden",)
    [row] = capabilities(**ask, head_dim=96, cache_seqlens=True)
    assert not row.runs and "head_dim 96 over k_cache and v_cache of 4 bits" in row.reasons[0]
    listed = configs_for_model(head_dim=128, heads_q=64, heads_kv=8, kv_dtype="e2m1", descales="kv")
    attention = [config for config in listed if isinstance(config, FA4Config)]
    assert attention and {config.kv_dtype for config in attention} == {"e2m1"}
