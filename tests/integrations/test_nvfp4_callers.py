"""NVFP4 caches as FlashInfer's and vLLM's callers have them, against attention in float64 of the values that they mean.

A cache is filled as vLLM fills it: pages of bytes in which the scales of K follow its codes, then those of V in the
order of TensorRT-LLM's kernels. Views of it are what FlashInfer's functions take. Unused rows hold 0x7f, as a
scale NaN.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import nvfp4
from cute_fa4.integrations import flashinfer, vllm
from cute_fa4.integrations.flashinfer.words import V_SCALES
from tests.integrations.test_flashinfer import PAGE, SCRATCH, agree, pages_of, quiet, tokens
from tests.serving.batches import Batch, assert_agrees, offsets, packed

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
FACTORS = {"k": 2**-9, "v": 3 * 2**-10}  # global scales
# A decoded token of a long request, a prompt, a slot without tokens; a step of decode.
MIXED = Batch.draw([1, 21, 0], [150, 21, 0], heads=(4, 2))
STEP = Batch.draw([1, 1], [40, 150], heads=(4, 2), seed=1)


@dataclass(frozen=True)
class Cache:
    """pages: (num_pages, 2, page, heads, 9/16 depth) of bytes, or heads before rows; where: the rest of pages_of."""

    pages: torch.Tensor
    where: dict
    layout: str

    @staticmethod
    def of(batch: Batch, layout: str = "HND", kv_cache_dtype: str = "nvfp4") -> Cache:
        """Filled by vLLM's writer, whose caches have rows before heads, with either order in memory."""
        stored = pages_of(batch, layout)
        pages, heads, depth = len(stored["k"]), batch.k[0].shape[1], batch.k[0].shape[2]
        inner = (PAGE, heads) if layout == "NHD" else (heads, PAGE)
        cache = torch.full((pages, 2, *inner, depth * 9 // 16), 0x7F, dtype=torch.uint8)
        by_rows = cache if layout == "NHD" else cache.transpose(2, 3)
        slots = [
            int(stored["page_table"][b, j // PAGE]) * PAGE + j % PAGE
            for b, n in enumerate(batch.keys)
            for j in range(n)
        ]
        padding = [-1, -1]
        k, v = (torch.cat([*x, x[0][: len(padding) + 3]]) for x in (batch.k, batch.v))
        vllm.reshape_and_cache_flash(
            k, v, *by_rows.unbind(1), torch.tensor([*slots, *padding]), kv_cache_dtype,
            *(torch.tensor([FACTORS[name]]) for name in "kv"),
        )  # fmt: skip
        return Cache(
            cache, {name: stored[name] for name in ("page_table", "seqused_k", "listed")}, layout
        )

    def views(self, backend: str = "trtllm-gen") -> tuple[tuple, tuple]:
        """kv_cache, kv_cache_sf; with linear scales of V for "fa2"."""
        codes, (of_k, of_v) = vllm.nvfp4_kv_cache_split_views(self.pages)
        if V_SCALES[backend] == "linear":
            by_tokens = of_v if self.layout == "HND" else of_v.transpose(1, 2)
            lines = by_tokens.view(torch.uint8).unflatten(-2, (-1, 4)).unflatten(-1, (-1, 4))
            linear = lines.movedim(-1, -3).flatten(-2).flatten(-3, -2).view(E4M3)
            of_v = (linear if self.layout == "HND" else linear.transpose(1, 2)).contiguous()
        return codes, (of_k, of_v)


def meant(batch: Batch, four_over_six: bool = False) -> Batch:
    k, v = (
        [
            nvfp4.dequantize(*nvfp4.quantize(x, FACTORS[name], four_over_six))
            for x in getattr(batch, name)
        ]
        for name in "kv"
    )
    return Batch(batch.q, k, v)


SCALES = dict(bmm1_scale=64**-0.5 * FACTORS["k"], bmm2_scale=FACTORS["v"])


def by_context(batch, cache: Cache, **options):
    codes, scales = cache.views()
    given = dict(
        query=tokens(batch), kv_cache=codes, workspace_buffer=SCRATCH, block_tables=cache.where["page_table"],
        seq_lens=cache.where["seqused_k"], max_q_len=max(batch.queries), max_kv_len=max(batch.keys),
        batch_size=len(batch.queries), cum_seq_lens_q=offsets(batch.queries), cum_seq_lens_kv=offsets(batch.keys),
        kv_layout=cache.layout, return_lse=True, kv_cache_sf=scales, **SCALES,
    )  # fmt: skip
    return quiet(flashinfer.trtllm_batch_context_with_kv_cache, **given | options)


def by_decode(batch, cache: Cache, backend: str = "auto", views=None, **options):
    codes, scales = views or cache.views("trtllm-gen" if backend == "auto" else backend)
    given = dict(
        kv_layout=cache.layout, return_lse=True, kv_cache_sf=scales, backend=backend, **SCALES
    )
    return quiet(
        flashinfer.trtllm_batch_decode_with_kv_cache, tokens(batch), codes, SCRATCH, cache.where["page_table"],
        cache.where["seqused_k"], max(batch.keys), **given | options,
    )  # fmt: skip


def by_wrapper(
    batch, cache: Cache, backend: str = "auto", prefill: bool = False, views=None, **options
):
    codes, scales = views or cache.views("fa2" if backend == "auto" else backend)
    if prefill:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            SCRATCH, cache.layout, backend=backend
        )
        queries, planned = [offsets(batch.queries)], dict(causal=True)
    else:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            SCRATCH, cache.layout, backend=backend
        )
        queries, planned = [], {}
    wrapper.plan(
        *queries, *cache.where["listed"], 4, 2, 64, PAGE, q_data_type=BF16, kv_data_type=torch.uint8, **planned
    )  # fmt: skip
    factors = dict(k_scale=FACTORS["k"], v_scale=FACTORS["v"])
    given = dict(return_lse=True, kv_cache_sf=scales, **factors)
    return quiet(wrapper.run, tokens(batch), codes, **given | options)


def by_ragged(batch, cache: Cache, **options):
    """Packed codes and linear scales, as nvfp4.quantize makes them."""
    k, v = (nvfp4.quantize(packed(getattr(batch, x), 0.0), FACTORS[x]) for x in "kv")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(SCRATCH)
    depth, depth_v = (getattr(batch, name)[0].shape[-1] for name in "kv")
    planned = dict(head_dim_vo=depth_v, causal=True, q_data_type=BF16, kv_data_type=torch.uint8)
    wrapper.plan(offsets(batch.queries), offsets(batch.keys), 4, 2, depth, **planned)
    factors = dict(k_scale=FACTORS["k"], v_scale=FACTORS["v"])
    given = dict(return_lse=True, kv_cache_sf=(k[1], v[1]), **factors)
    return quiet(wrapper.run, tokens(batch), k[0], v[0], **given | options)


WAYS = {
    "context": (by_context, MIXED, {}),
    "decode": (by_decode, STEP, {}),
    "decode of fa2": (by_decode, STEP, dict(backend="fa2")),
    "decode wrapper": (by_wrapper, STEP, {}),
    "decode wrapper of trtllm-gen": (by_wrapper, STEP, dict(backend="trtllm-gen")),
    "prefill wrapper": (by_wrapper, MIXED, dict(prefill=True)),
    "prefill wrapper of trtllm-gen": (by_wrapper, MIXED, dict(prefill=True, backend="trtllm-gen")),
    "ragged wrapper": (by_ragged, MIXED, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_flashinfers_calls_agree_with_float64(way):
    call, batch, options = WAYS[way]
    layout = "NHD" if "wrapper" in way else "HND"
    agree(meant(batch), call(batch, Cache.of(batch, layout), **options))


@pytest.mark.parametrize("depth", [128, 256])
def test_calls_of_other_head_dims_agree_with_float64(depth):
    """A decode of FlashInfer's, and a mixed batch of vLLM's, whose softmax scale is that of the head dim."""
    step = Batch.draw([1, 1], [40, 150], heads=(4, 2), seed=1, depth=depth)
    scale = depth**-0.5 * FACTORS["k"]
    agree(meant(step), by_decode(step, Cache.of(step), bmm1_scale=scale))
    mixed = Batch.draw([1, 21], [150, 21], heads=(4, 2), depth=depth)
    out, lse = by_vllm(mixed, Cache.of(mixed, "NHD"))
    assert_agrees(meant(mixed), out, lse, visible=lambda p, j: j <= p)


def test_a_ragged_call_of_192_and_128_agrees_with_float64():
    """DeepSeek's head dims, which no cache of k and v together can have: a tile of 128 rows, and two of 300."""
    for queries in (21, 300):
        batch = Batch.draw([queries], [queries], heads=(4, 2), depth=192, depth_v=128)
        agree(meant(batch), by_ragged(batch, None))


def test_scales_may_be_one_tensor_and_factors_may_be_on_the_device():
    """A tensor of both sides has the bits of a pair, and so have tensors of one number that are powers of two."""
    cache = Cache.of(STEP)
    out, lse = by_decode(STEP, cache)
    codes, scales = cache.views()
    factors = dict(
        bmm1_scale=torch.tensor(64**-0.5 * FACTORS["k"]), bmm2_scale=torch.tensor(FACTORS["v"])
    )
    for changed in (dict(kv_cache_sf=torch.stack(scales, 1)), factors):
        found = by_decode(STEP, cache, **changed)
        assert torch.equal(found[0], out) and torch.equal(found[1], lse)


def test_a_mix_up_of_the_two_orders_is_seen():
    """Planted: scales in the order of the other backend give other numbers, so the tests above tell them apart."""
    cache = Cache.of(STEP)
    found = by_decode(STEP, cache, kv_cache_sf=cache.views("fa2")[1])
    with pytest.raises(AssertionError):
        agree(meant(STEP), found)


# --- SGLang, whose trtllm_mha backend calls FlashInfer's functions (python/sglang/srt/layers/attention)


@pytest.mark.parametrize("way", ["decode", "extend"])
def test_calls_over_sglangs_pools(way):
    """Slots of tokens, (slots, heads, columns), seen as pages with heads before rows; kv_layout is not passed."""
    batch = STEP if way == "decode" else MIXED
    stored = pages_of(batch)
    slots = torch.cat(
        [
            stored["page_table"][b, torch.arange(n) // PAGE] * PAGE + torch.arange(n) % PAGE
            for b, n in enumerate(batch.keys)
        ]
    )
    codes, scales = [], []
    for name, order in (("k", "linear"), ("v", "interleaved4")):
        pools = [
            torch.full((len(stored["k"]) * PAGE, 2, width), 0x7F, dtype=torch.uint8)
            for width in (32, 4)
        ]
        rows = [x.view(-1, PAGE, *x.shape[1:]) for x in (pools[0], pools[1].view(E4M3))]
        nvfp4.write(
            torch.cat(getattr(batch, name)), *rows, slots, FACTORS[name], scale_layout=order
        )
        for found, pages in zip((codes, scales), rows, strict=True):
            found.append(pages.permute(0, 2, 1, 3))
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    given = dict(
        query=tokens(batch), kv_cache=tuple(codes), workspace_buffer=SCRATCH, block_tables=stored["page_table"],
        seq_lens=stored["seqused_k"], window_left=-1, sinks=sinks, skip_softmax_threshold_scale_factor=None,
        out_dtype=BF16, kv_cache_sf=tuple(scales), return_lse=True, **SCALES,
    )  # fmt: skip
    if way == "decode":
        found = quiet(
            flashinfer.trtllm_batch_decode_with_kv_cache, max_seq_len=max(batch.keys), **given
        )
    else:
        found = quiet(
            flashinfer.trtllm_batch_context_with_kv_cache, max_q_len=max(batch.queries), max_kv_len=max(batch.keys),
            batch_size=len(batch.queries), cum_seq_lens_q=offsets(batch.queries), cum_seq_lens_kv=offsets(batch.keys),
            **given,
        )  # fmt: skip
    agree(meant(batch), found, sink=sinks)


# --- vLLM


def by_vllm(batch, cache: Cache, **options):
    """A call as in vllm/v1/attention/backends/flash_attn.py, over kv_cache[:, 0] and kv_cache[:, 1]."""
    by_rows = cache.pages if cache.layout == "NHD" else cache.pages.transpose(2, 3)
    k, v = by_rows.unbind(1)
    sizes = len(batch.queries), 2
    scales = {f"{x}_descale": torch.tensor(FACTORS[x]).expand(sizes) for x in "kv"}
    given = dict(
        q=tokens(batch), k=k, v=v, out=torch.empty_like(tokens(batch)), cu_seqlens_q=offsets(batch.queries),
        max_seqlen_q=max(batch.queries), seqused_k=cache.where["seqused_k"], max_seqlen_k=max(batch.keys), causal=True,
        window_size=[-1, -1], block_table=cache.where["page_table"], return_softmax_lse=True, **scales,
    )  # fmt: skip
    return quiet(vllm.flash_attn_varlen_func, **given | options)


@pytest.mark.parametrize("kv_cache_dtype", ["nvfp4", "nvfp4_4over6"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_batch_over_vllms_pages(layout, kv_cache_dtype):
    out, lse = by_vllm(MIXED, Cache.of(MIXED, layout, kv_cache_dtype))
    rows = torch.full((len(packed(MIXED.q)), *out.shape[1:]), 7.0, dtype=out.dtype)
    rows[: len(out)] = out
    expected = meant(MIXED, four_over_six="4over6" in kv_cache_dtype)
    assert_agrees(expected, rows, lse, visible=lambda p, j: j <= p)


def test_the_writer_has_vllms_parameters():
    """csrc/cache_kernels.cu of vLLM, reshape_and_cache_flash, by position."""
    assert [*inspect.signature(vllm.reshape_and_cache_flash).parameters] == [
        *(
            "key",
            "value",
            "key_cache",
            "value_cache",
            "slot_mapping",
            "kv_cache_dtype",
            "k_scale",
            "v_scale",
        )
    ]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_byte_of_a_page_lies_where_vllm_computes_it(layout):
    """The offsets of reshape_and_cache_nvfp4_kernel, for one token of the second page and one number of its row."""
    heads, depth, rows, token, head, block = 3, 64, 8, 6, 2, 1
    sizes = (rows, heads) if layout == "NHD" else (heads, rows)
    pages = torch.zeros(2, 2, *sizes, depth * 9 // 16, dtype=torch.uint8)
    by_rows = pages if layout == "NHD" else pages.transpose(2, 3)
    x = torch.zeros(1, heads, depth)
    x[0, head, 16 * block] = 6.0 * 2**-3
    ones = torch.ones(1), torch.ones(1)
    vllm.reshape_and_cache_flash(
        x, x, *by_rows.unbind(1), torch.tensor([rows + token]), "nvfp4", *ones
    )
    of_page = heads * rows
    place = token * heads + head if layout == "NHD" else head * rows + token
    scale_bytes = depth // 16
    group = scale_bytes // 4
    mixed = token // 4 * 4 + block // group, block % group * 4 + token % 4
    of_v = (mixed[0] * heads + head if layout == "NHD" else head * rows + mixed[0]) * scale_bytes
    expected = torch.zeros(2, of_page * depth * 9 // 16, dtype=torch.uint8)
    expected[:, place * depth // 2 + 8 * block] = 0x07  # the number 6, in the low four bits
    expected[0, of_page * depth // 2 + place * scale_bytes + block] = 0x20  # 2^-3 as e4m3
    expected[1, of_page * depth // 2 + of_v + mixed[1]] = 0x20
    assert torch.equal(pages[1].flatten(1), expected) and not pages[0].any()


# --- refusals

NO = NotImplementedError
CACHE = Cache.of(STEP)
KEPT = tuple(pages_of(STEP, "HND")[name] for name in "kv"), CACHE.views()[1]  # codes of 16 bits
REFUSED = {
    "no scales": (by_decode, dict(kv_cache_sf=None), TypeError, "kv_cache_sf: None with keys of torch.uint8"),
    "scales of others": (
        by_decode, dict(views=KEPT), TypeError, "kv_cache_sf: given with keys of torch.bfloat16",
    ),
    "three scales": (by_decode, dict(kv_cache_sf=(1, 2, 3)), ValueError, "kv_cache_sf: 3 tensors; accepted: two"),
    "no tensors": (by_decode, dict(kv_cache_sf=(1, 2)), TypeError, "kv_cache_sf: an int; accepted: a torch.Tensor"),
    "bytes": (
        by_decode, dict(kv_cache_sf=tuple(x.view(torch.uint8) for x in CACHE.views()[1])), TypeError,
        "kv_cache_sf: dtype torch.uint8; accepted: torch.float8_e4m3fn",
    ),
    "scales of other rows": (
        by_decode, dict(kv_cache_sf=tuple(x[:, :, 1:] for x in CACHE.views()[1])), ValueError, "kv_cache_sf: shape ",
    ),
    "another backend": (
        by_decode, dict(backend="xqa", views=CACHE.views()), NO, "backend: 'xqa' with kv_cache_sf; accepted: 'trtllm",
    ),
    "a wrapper's backend": (
        by_wrapper, dict(backend="fa3", views=CACHE.views()), NO, "backend: 'fa3' with kv_cache_sf; accepted: 'trtllm",
    ),
    "vLLM's keys without pages": (
        by_vllm, dict(block_table=None), NO, "block_table: None with k and v of torch.uint8",
    ),
    "vLLM's pages of codes alone": (
        by_vllm, dict(k=CACHE.views()[0][0]), ValueError, "k: shape ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_callers_argument(name):
    call, changed, error, text = REFUSED[name]
    with pytest.raises(error) as refused:
        call(STEP, CACHE, **changed)
    assert str(refused.value).startswith(text) and "accepted" in str(refused.value)


@pytest.mark.parametrize(
    "changed, error, text",
    [
        (dict(kv_cache_dtype="fp8"), NO, "kv_cache_dtype: 'fp8'; accepted: 'nvfp4' or 'nvfp4_4over6'"),
        (dict(key_cache=torch.zeros(2, 8, 1, 30, dtype=torch.uint8)), ValueError, "key_cache: shape (2, 8, 1, 30)"),
        (dict(value_cache=torch.zeros(2, 8, 1, 72, dtype=torch.uint8)[..., ::2]), ValueError, "value_cache: strides"),
        (dict(value_cache=torch.zeros(2, 6, 1, 36, dtype=torch.uint8)), ValueError, "scales: 6 tokens of 4 scales"),
    ],
    ids=["dtype", "columns", "strides", "rows of a page"],
)  # fmt: skip
def test_the_writers_refusals(changed, error, text):
    pages = torch.zeros(2, 2, 8, 1, 36, dtype=torch.uint8)
    x = torch.zeros(1, 1, 64)
    given = dict(
        key=x,
        value=x,
        key_cache=pages[:, 0],
        value_cache=pages[:, 1],
        slot_mapping=torch.tensor([3]),
    )
    one = torch.ones(1)
    with pytest.raises(error) as refused:
        vllm.reshape_and_cache_flash(
            **given | dict(kv_cache_dtype="nvfp4", k_scale=one, v_scale=one) | changed
        )
    assert str(refused.value).startswith(text) and "accepted" in str(refused.value)
