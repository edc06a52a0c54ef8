"""FlashInfer's functions and wrappers: their signatures, and calls as their users make them, against float64."""

from __future__ import annotations

import inspect
import math
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, compile_cache
from cute_fa4.integrations import flashinfer
from tests.docs import definition
from tests.integrations.flashinfer_signatures import REQUIRED, SIGNATURES
from tests.serving.batches import (
    Batch,
    assert_agrees,
    int32,
    offsets,
    packed,
    packed_kv,
    paged_kv,
)

BF16 = torch.bfloat16
SCRATCH = torch.zeros(16, dtype=torch.uint8)
PAGE = 16


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_flashinfers(name):
    """Further parameters are by keyword alone, and what is required there may have a default here."""
    function = flashinfer
    for part in name.split("."):
        function = getattr(function, part)
    kinds = inspect.Parameter
    found = {
        n: p
        for n, p in inspect.signature(function).parameters.items()
        if n != "self" and p.kind is not kinds.VAR_POSITIONAL
    }
    expected = SIGNATURES[name]
    assert [n for n in found if n in expected] == [*expected]
    for n, p in found.items():
        if n not in expected:
            assert p.kind is kinds.KEYWORD_ONLY, n
        else:
            assert p.default == expected[n] or expected[n] is REQUIRED, n


# A decoded token of a long request, a prompt, a chunk of a prompt, a slot without tokens, as in test_vllm.py.
MIXED = Batch.draw([1, 37, 9, 0], [150, 37, 60, 0], heads=(4, 2))
STEP = Batch.draw([1, 1, 1], [40, 150, 16], heads=(4, 2), seed=1)
DRAFTS = Batch.draw([3, 3], [40, 150], heads=(4, 2), seed=2)


def pages_of(batch: Batch, layout: str = "NHD") -> dict:
    """Pages, their table and lengths, and the same as lists."""
    stored = paged_kv(batch, PAGE, layout)
    counts = [-(-n // PAGE) for n in batch.keys]
    lists = [stored["page_table"][b, :count] for b, count in enumerate(counts)]
    last = [
        n - (count - 1) * PAGE if count else 0 for n, count in zip(batch.keys, counts, strict=True)
    ]
    listed = offsets(counts), torch.cat(lists), int32(last)
    return stored | {"listed": listed}


def tokens(batch: Batch) -> torch.Tensor:
    return packed(batch.q)[: sum(batch.queries)]


def agree(batch: Batch, found, **options) -> None:
    """(out, lse to base 2, (tokens, heads)) of packed tokens; causal."""
    out, lse = found
    assert lse.shape == out.shape[:-1] and lse.dtype is torch.float32
    visible = options.pop("visible", lambda p, j: j <= p)
    assert_agrees(batch, out, lse.T * math.log(2), visible=visible, **options)


def quiet(function, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return function(*given, **options)


# --- the ways to ask for the same


def by_context(batch: Batch, layout: str = "HND", **options):
    stored = pages_of(batch, layout)
    given = dict(
        query=tokens(batch), kv_cache=(stored["k"], stored["v"]), workspace_buffer=SCRATCH,
        block_tables=stored["page_table"], seq_lens=stored["seqused_k"], max_q_len=max(batch.queries),
        max_kv_len=max(batch.keys), bmm1_scale=64**-0.5, bmm2_scale=1.0, batch_size=len(batch.queries),
        cum_seq_lens_q=offsets(batch.queries), cum_seq_lens_kv=offsets(batch.keys), kv_layout=layout, return_lse=True,
    )  # fmt: skip
    return quiet(flashinfer.trtllm_batch_context_with_kv_cache, **given | options)


def by_decode(batch: Batch, layout: str = "HND", **options):
    """One cache of five dimensions; as many tokens of each request, or offsets."""
    stored = pages_of(batch, layout)
    k, v = stored["k"], stored["v"]
    cache = k.as_strided(
        (len(k), 2, *k.shape[1:]), (k.stride(0), v.storage_offset(), *k.stride()[1:])
    )
    (queries,) = set(batch.queries)
    where = dict(block_tables=stored["page_table"], seq_lens=stored["seqused_k"])
    cache = options.pop("kv_cache", cache)
    return quiet(
        flashinfer.trtllm_batch_decode_with_kv_cache, tokens(batch), cache, SCRATCH, max_seq_len=max(batch.keys),
        **where | dict(bmm1_scale=64**-0.5, return_lse=True, q_len_per_req=queries, kv_layout=layout) | options,
    )  # fmt: skip


def by_wrapper_of_decode(
    batch: Batch, layout: str = "HND", graph: bool = False, planned=None, **options
):
    stored = pages_of(batch, layout)
    (queries,) = set(batch.queries)
    buffers = [
        torch.zeros(n, dtype=torch.int32) for n in (len(batch.keys) + 1, 40, len(batch.keys))
    ]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(SCRATCH, layout, graph, True, *buffers)
    wrapper.plan(
        *stored["listed"], 4, 2, 64, PAGE, q_data_type=batch.q[0].dtype, q_len_per_req=queries, **planned or {}
    )  # fmt: skip
    cache = options.pop("kv_cache", (stored["k"], stored["v"]))
    return quiet(wrapper.run, tokens(batch), cache, **dict(return_lse=True) | options)


def by_wrapper_of_prefill(batch: Batch, layout: str = "NHD", planned=None, **options):
    stored = pages_of(batch, layout)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(SCRATCH, layout)
    planned = dict(causal=True, q_data_type="bfloat16") | (planned or {})
    wrapper.plan(offsets(batch.queries), *stored["listed"], 4, 2, 64, PAGE, **planned)
    return quiet(
        wrapper.run, tokens(batch), (stored["k"], stored["v"]), **dict(return_lse=True) | options
    )


def by_wrapper_of_ragged(batch: Batch, planned=None, **options):
    stored = packed_kv(batch)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(SCRATCH)
    wrapper.plan(
        offsets(batch.queries), stored["cu_seqlens_k"], 4, 2, 64, q_data_type=BF16, **{"causal": True} | (planned or {})
    )  # fmt: skip
    return quiet(
        wrapper.run, tokens(batch), stored["k"], stored["v"], **dict(return_lse=True) | options
    )


WAYS = {
    "context": (by_context, MIXED),
    "decode": (by_decode, STEP),
    "decode wrapper": (by_wrapper_of_decode, STEP),
    "prefill wrapper": (by_wrapper_of_prefill, MIXED),
    "ragged wrapper": (by_wrapper_of_ragged, MIXED),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_agrees_with_float64(way):
    """On the emulator: a prefill kernel of pages, one of packed keys, and a decode step."""
    call, batch = WAYS[way]
    agree(batch, call(batch))


@pytest.fixture
def by_definition(monkeypatch):
    """Attention by its definition in the place of the kernel: what is asked is how arguments are passed on."""
    monkeypatch.setattr(compile_cache, "function_for", definition.compiled)


PAGED = [way for way in WAYS if way != "ragged wrapper"]


@pytest.mark.parametrize("way", PAGED)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_either_layout_of_pages(way, layout, by_definition):
    call, batch = WAYS[way]
    agree(batch, call(batch, layout))


@pytest.mark.parametrize("way", WAYS)
def test_results_are_written_where_the_caller_says(way, by_definition):
    call, batch = WAYS[way]
    out, lse = torch.full_like(tokens(batch), 7.0), torch.full((sum(batch.queries), 4), 7.0)
    returned = call(batch, out=out, lse=lse, return_lse=False)
    assert returned is out
    agree(batch, (out, lse))
    found = call(batch, return_lse=False)
    assert torch.equal(found, out)


@pytest.mark.parametrize("way", PAGED)
def test_sinks_and_windows(way, by_definition):
    """A sink is a part of the log-sum-exp; a list of one tensor is that tensor."""
    call, batch = WAYS[way]
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    sinks = [sink] if "wrapper" not in way else sink
    found = call(batch, sinks=sinks, window_left=20)
    agree(batch, found, sink=sink, visible=lambda p, j: (p - 20 <= j) & (j <= p))


@pytest.mark.parametrize("way", [way for way in WAYS if "wrapper" in way])
def test_what_plan_keeps_reaches_every_run(way, by_definition):
    call, batch = WAYS[way]
    found = call(batch, planned=dict(window_left=20, logits_soft_cap=15.0, sm_scale=0.2))
    agree(batch, found, softcap=15.0, scale=0.2, visible=lambda p, j: (p - 20 <= j) & (j <= p))


def test_drafts_are_causal_and_may_come_with_offsets(by_definition):
    agree(DRAFTS, by_decode(DRAFTS))
    agree(DRAFTS, by_wrapper_of_decode(DRAFTS))
    for queries in (None, 1):
        told = dict(q_len_per_req=queries, max_q_len=3, cum_seq_lens_q=offsets(DRAFTS.queries))
        agree(DRAFTS, by_decode(DRAFTS, **told))


def test_a_context_that_is_not_causal(by_definition):
    found = by_context(MIXED, causal=False)
    agree(MIXED, found, visible=lambda p, j: (p > -1) & (j > -1) | (p <= -1))


def test_plan_compiles_nothing_and_a_graph_keeps_its_addresses(monkeypatch):
    """Two plans of one wrapper write to the same table; a wider batch than the buffers is refused."""
    monkeypatch.setattr(compile_cache, "function_for", None)  # not used
    buffers = [torch.zeros(n, dtype=torch.int32) for n in (4, 40, 3)]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(SCRATCH, "NHD", True, False, *buffers)
    options = 4, 2, 64, PAGE
    wrapper.plan(*pages_of(STEP)["listed"], *options, q_data_type=BF16)
    table, lengths = wrapper._plan.table, wrapper._plan.lengths
    assert table.shape == (3, 40) and lengths.tolist() == STEP.keys
    other = Batch.draw([1, 1, 1], [400, 16, 0], heads=(4, 2))
    listed = pages_of(other)["listed"]
    wrapper.plan(*listed, *options, q_data_type=BF16)
    assert wrapper._plan.table is table and wrapper._plan.lengths is lengths
    assert lengths.tolist() == other.keys and torch.equal(table[0, :25], listed[1][:25])
    with pytest.raises(
        ValueError, match="indices: 60 pages; accepted with use_cuda_graph=True: at most 40"
    ):
        wrapper.plan(int32([0, 60]), torch.zeros(60, dtype=torch.int32), int32([1]), *options)
    with pytest.raises(ValueError, match=r"block_tables: shape \(2, 40\) with use_cuda_graph=True"):
        wrapper.plan(*pages_of(DRAFTS)["listed"], *options)


def test_forward_has_options_of_its_own(by_definition):
    stored = packed_kv(MIXED)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(SCRATCH)
    wrapper.begin_forward(
        offsets(MIXED.queries), stored["cu_seqlens_k"], 4, 2, 64, q_data_type=BF16
    )
    given = tokens(MIXED), stored["k"], stored["v"]
    found = quiet(wrapper.forward_return_lse, *given, causal=True, window_left=20, sm_scale=0.2)
    wrapper.end_forward()
    agree(MIXED, found, scale=0.2, visible=lambda p, j: (p - 20 <= j) & (j <= p))


# --- scales of 8 bits


@pytest.mark.parametrize("on_device", [False, True], ids=["numbers", "tensors"])
def test_the_scales_of_both_products(on_device):
    """e4m3 as vLLM's backend has it: scores times 0.1, values times 0.75; a tensor on the device says the same."""
    batch = Batch.draw([1, 37, 9, 0], [150, 37, 60, 0], heads=(4, 2), dtype=torch.float8_e4m3fn)
    scale, of_v = (torch.tensor([x]) if on_device else x for x in (0.1, 0.75))
    found = by_context(batch, "NHD", bmm1_scale=scale, bmm2_scale=of_v, out_dtype=BF16)
    scales = [None, None, torch.full((4, 2), 0.75)]
    agree(batch, found, scale=0.1, scales=scales)


def test_pages_of_one_pool_need_one_table():
    """Pages of K at even numbers of a pool and of V at odd ones, as callers of two tables have them."""
    stored = pages_of(STEP, "NHD")
    pool = torch.stack([stored["k"], stored["v"]], 1).flatten(0, 1)
    options = dict(kv_layout="NHD", cum_seq_lens_q=offsets(STEP.queries))
    views = dict(kv_cache=(pool[0::2], pool[1::2]))
    found = [by_context(STEP, "NHD", **options, **given) for given in ({}, views)]
    assert torch.equal(found[0][0], found[1][0])


# --- refusals

NO = NotImplementedError
REFUSED = {
    "FP4": (by_decode, STEP, dict(kv_cache_sf=(1, 1)), TypeError, "kv_cache_sf: given with keys of torch.bfloat16"),
    "FP4 out": (by_context, MIXED, dict(out_dtype="nvfp4"), NO, "out_dtype: 'nvfp4'; accepted"),
    "sparse pages": (by_decode, STEP, dict(enable_block_sparse_attention=True), ValueError, "block_tables: shape (3,"),
    "two tables": (
        by_context, MIXED, dict(uses_shared_paged_kv_idx=False), NO,
        "uses_shared_paged_kv_idx: False; accepted: True; use one table for K and V: views of a pool",
    ),
    "skipping": (
        by_decode, STEP, dict(skip_softmax_threshold_scale_factor=-1.0), ValueError,
        "skip_softmax_threshold_scale_factor: -1.0; accepted: a finite number",
    ),
    "a scale of 16 bits": (by_decode, STEP, dict(bmm2_scale=0.5), NO, "bmm2_scale: 0.5 with"),
    "a tensor of 16 bits": (by_decode, STEP, dict(bmm1_scale=torch.ones(1)), NO, "bmm1_scale: a tensor over"),
    "uneven tokens": (by_decode, STEP, dict(q_len_per_req=2), ValueError, "query: 3 tokens with q_len_per_req=2"),
    "no tokens": (by_decode, STEP, dict(q_len_per_req=None), ValueError, "cum_seq_lens_q: None with"),
    "another layout": (by_decode, STEP, dict(kv_layout="HDN"), ValueError, "kv_layout: 'HDN'; accepted: 'NHD', 'HND'"),
    "offsets of others": (by_context, MIXED, dict(cum_seq_lens_q=int32([0, 1])), ValueError, "cum_seq_lens_q: "),
    "out of another dtype": (
        by_wrapper_of_ragged, MIXED, dict(out=torch.zeros(47, 4, 64)), TypeError, "out: dtype torch.float32; accepted",
    ),
    "other tokens than planned": (by_wrapper_of_decode, STEP, dict(q_len_per_req=2), ValueError, "q_len_per_req: 2; "),
    "sinks of others": (by_decode, STEP, dict(sinks=torch.zeros(3)), ValueError, "sinks: shape (3,)"),
    "sinks of a run": (by_wrapper_of_decode, STEP, dict(sinks=torch.zeros(3)), ValueError, "sinks: shape (3,)"),
    "lengths": (by_context, MIXED, dict(seq_lens=int32([1])), ValueError, "seq_lens: "),
    "a scale": (by_decode, STEP, dict(bmm1_scale=0.0), ValueError, "bmm1_scale: 0.0"),
    "a small lse": (
        by_decode, STEP, dict(lse=torch.zeros(3)), ValueError, "lse: shape (3,), dtype torch.float32; accepted: (3, 4)",
    ),
    "no tensors": (by_context, MIXED, dict(kv_cache=(1, 2)), TypeError, "kv_cache: an int; accepted: a torch.Tensor"),
    "a window": (by_decode, STEP, dict(window_left="3"), TypeError, "window_left: '3'; accepted: an int"),
    "a window of a run": (by_wrapper_of_decode, STEP, dict(window_left=1.5), TypeError, "window_left: 1.5; accepted"),
    "a scale of out": (by_decode, STEP, dict(o_scale=torch.ones(1)), NO, "o_scale: a Tensor"),
    "values of others": (by_wrapper_of_ragged, MIXED, dict(planned=dict(head_dim_vo=9)), ValueError, "head_dim_vo: 64"),
    "pages of others": (by_wrapper_of_prefill, MIXED, dict(planned=dict(head_dim_vo=9)), ValueError, "head_dim_vo: 64"),
    "a causal that is None": (by_context, MIXED, dict(causal=None), TypeError, "causal: None; accepted: True or False"),
    "a causal plan": (by_wrapper_of_prefill, MIXED, dict(planned=dict(causal=1)), TypeError, "causal: 1; accepted"),
    "a batch": (by_context, MIXED, dict(batch_size="2"), TypeError, "batch_size: '2'; accepted: an int"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_callers_argument(name, by_definition):
    call, batch, changed, error, text = REFUSED[name]
    with pytest.raises(error) as refused:
        call(batch, **changed)
    assert str(refused.value).startswith(text) and "accepted" in str(refused.value)


def test_a_run_fits_its_plan(by_definition):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(SCRATCH)
    stored = pages_of(STEP)
    run = tokens(STEP), (stored["k"], stored["v"])
    with pytest.raises(RuntimeError, match="called before plan; accepted: plan"):
        wrapper.run(*run)
    for heads, depth, dtype, text in (
        ((8, 2), 64, BF16, r"num_qo_heads, num_kv_heads: \(4, 2\) in run; accepted: \(8, 2\)"),
        ((4, 2), 128, BF16, r"head_dim: \(64, 64\) in run; accepted: \(128, 128\)"),
        ((4, 2), 64, None, "q_data_type, kv_data_type: .*bfloat16.* in run; accepted: .*float16"),
    ):
        wrapper.plan(*stored["listed"], *heads, depth, PAGE, q_data_type=dtype)
        with pytest.raises(ValueError, match=text):
            wrapper.run(*run)
    with pytest.raises(NotImplementedError, match="run: 1 further arguments by position"):
        wrapper.run(*run, torch.ones(1))
