"""Decode from a latent cache as vLLM's and FlashInfer's callers write it: the same bits as our own call."""

import inspect
import math

import pytest
import torch

from cute_fa4 import flash_mla_sparse_fwd, flash_mla_with_kvcache, mla
from cute_fa4.integrations import flashinfer, vllm
from tests.sm100.latent.latent_batches import agree, call_of, draw, stored

pytestmark = pytest.mark.filterwarnings("ignore")
SCALE = 192**-0.5

# deepseek-ai/FlashMLA, flash_mla/flash_mla_interface.py at 9241ae3 (2026-04-29): flash_mla_with_kvcache's parameters.
FLASH_MLA = (
    "q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata", "num_splits",
    "softmax_scale", "causal", "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache",
    "topk_length", "extra_topk_length",
)  # fmt: skip


@pytest.mark.parametrize(
    "function, further",
    [(flash_mla_with_kvcache, ()), (vllm.flash_mla_with_kvcache, ("out",))],
    ids=["here", "vLLM"],
)
def test_by_position_the_parameters_are_flash_mlas(function, further):
    """vLLM's backend appends `out`."""
    parameters = inspect.signature(function).parameters.values()
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_position == [*FLASH_MLA, *further]


@pytest.fixture(scope="module")
def call() -> dict:
    return stored(draw(2, [70, 9], heads=16), 64)


@pytest.fixture(scope="module")
def expected(call):
    return call_of(call, softmax_scale=SCALE, causal=True)


def test_vllm_passes_its_plan_and_a_cache_without_heads(call, expected):
    plan, _ = vllm.get_mla_metadata(call["cache_seqlens"], 32, 1, is_fp8_kvcache=False)
    found = vllm.flash_mla_with_kvcache(
        q=call["q"],
        k_cache=call["k_cache"].squeeze(-2).unsqueeze(-2),
        block_table=call["block_table"],
        cache_seqlens=call["cache_seqlens"],
        head_dim_v=512,
        tile_scheduler_metadata=plan,
        softmax_scale=SCALE,
        causal=True,
        is_fp8_kvcache=False,
    )
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(
        ValueError, match="extra_k_cache: given without extra_indices_in_kvcache; accepted"
    ):
        vllm.flash_mla_with_kvcache(**call, head_dim_v=512, extra_k_cache=torch.zeros(1))


def test_vllms_sparse_prefill_is_ours():
    q, kv = torch.randn(3, 16, 576).bfloat16(), torch.randn(40, 1, 576).bfloat16()
    listed = torch.arange(60, dtype=torch.int32).view(3, 1, 20)
    expected = flash_mla_sparse_fwd(q, kv, listed, SCALE)
    out = torch.empty_like(expected[0])
    found = vllm.flash_mla_sparse_fwd(q, kv, listed, SCALE, out=out)
    assert torch.equal(out, expected[0]) and torch.equal(found[2], expected[2])
    assert found[0].data_ptr() == out.data_ptr() and found[1] is None


def test_sinks_of_each_caller(call):
    """FlashMLA's and vLLM's log-sum-exp counts the keys alone; ours and FlashInfer's, to base 2, counts the sink."""
    batch, sink = draw(2, [70, 9], heads=16), torch.linspace(-2, 2, 16)
    found = call_of(call, learnable_sink=sink, softmax_scale=SCALE, causal=True)
    agree(batch, *found, True, sink=sink, scale=SCALE)
    out, lse = vllm.flash_mla_with_kvcache(
        **call, head_dim_v=512, softmax_scale=SCALE, causal=True, attn_sink=sink
    )
    assert torch.equal(out, found[0])
    keys_alone = (found[1].double().exp() - sink.double()[:, None].exp()).log()
    assert (lse - keys_alone).abs().max() < 1e-4
    given = dict(block_tables=call["block_table"], seq_lens=call["cache_seqlens"], bmm1_scale=SCALE)
    out, lse = flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        call["q"], call["k_cache"].squeeze(2), **given, sinks=[sink], return_lse=True
    )
    for function, name in ((vllm.flash_mla_with_kvcache, "attn_sink"), (call_of, "learnable_sink")):
        given = dict(head_dim_v=512) | {name: sink[:3]}
        with pytest.raises(ValueError, match=f"{name}: shape"):
            function(call, **given) if function is call_of else function(**call, **given)
    assert torch.equal(out, found[0])
    assert torch.equal(lse.view(2, 2, 16), found[1].transpose(1, 2) * math.log2(math.e))


def test_a_log_sum_exp_with_a_sink():
    """Where no key is seen, where the sink has no weight or all of it, and where both have half."""
    inf = torch.inf
    sink = torch.tensor([1.0, -inf, -inf, inf, inf, 2.0])
    lse = torch.tensor([-inf, 0.5, -inf, 0.5, -inf, 2.0])
    expected = torch.tensor([1.0, 0.5, -inf, inf, inf, 2 + math.log(2)])
    torch.testing.assert_close(mla.with_sink(lse.view(1, 6, 1), sink).flatten(), expected)


@pytest.mark.parametrize("dims", [3, 4])
def test_flashinfer_has_caches_of_three_and_of_four_dimensions(call, expected, dims):
    cache = call["k_cache"].squeeze(2)
    given = dict(block_tables=call["block_table"], seq_lens=call["cache_seqlens"], max_seq_len=70)
    given |= dict(qk_nope_head_dim=128, kv_lora_rank=512, qk_rope_head_dim=64, bmm1_scale=SCALE)
    decode, scratch = flashinfer.trtllm_batch_decode_with_kv_cache_mla, torch.zeros(8)
    cache = cache if dims == 3 else cache.unsqueeze(1)
    assert torch.equal(decode(call["q"], cache, scratch, **given), expected[0])
    out = torch.empty_like(expected[0])
    assert decode(call["q"], cache, scratch, **given, out=out) is out
    assert torch.equal(out, expected[0])
    twice = call["block_table"][:, None].expand(-1, 2, -1)
    neutral = dict(
        is_var_seq=False, uses_shared_paged_kv_idx=False, block_tables=twice, kv_scale_format="pow2_fp32",
        cute_dsl_impl="modular", multi_ctas_kv_counter_buffer=scratch, use_fp16_softmax=False, enable_pdl=True,
        sparse_mla_top_k_lens=None, cum_seq_lens_q=None, max_q_len=None, enable_dcp=False, cp_world=1, cp_rank=0,
    )  # fmt: skip
    lse = torch.empty(2, 2, 16)
    found = decode(call["q"], cache, scratch, **given | neutral, return_lse=True)
    assert decode(call["q"], cache, scratch, **given | neutral, lse=lse) is not lse
    to_base_2 = expected[1].transpose(1, 2) * math.log2(math.e)
    assert torch.equal(found[0], expected[0]) and torch.equal(lse, to_base_2)
    assert found[1].shape == (4, 16) and torch.equal(found[1].view_as(lse), lse)
    other = torch.stack([call["block_table"], call["block_table"].flip(0)], 1)
    for wrong, error, text in (
        (neutral | dict(block_tables=other), ValueError, "block_tables: other pages of values"),
        (
            dict(use_fp16_softmax=True),
            NotImplementedError,
            "use_fp16_softmax: True; accepted: None",
        ),
        (dict(cum_seq_lens_q=scratch), NotImplementedError, "cum_seq_lens_q: a Tensor"),
        (dict(cp_world=2), NotImplementedError, "cp_world: 2; accepted: 1"),
        (dict(kv_lora_rank=256), ValueError, "kv_lora_rank: 256; accepted: 512"),
        (dict(sparse_mla_top_k=2048), ValueError, "with sparse_mla_top_k=2048; accepted"),
        (dict(bmm2_scale=0.5), NotImplementedError, "bmm2_scale: 0.5 over a cache without"),
        (dict(bmm1_scale=torch.ones(1)), NotImplementedError, "bmm1_scale: a tensor"),
    ):
        with pytest.raises(error, match=text):
            decode(call["q"], cache, scratch, **given | wrong)


def lengths_of_launches(monkeypatch) -> list:
    """The lengths of lists with which later calls would launch; they return zeros."""
    asked = []

    def over_pages(given):
        asked.append(given["cache_seqlens"])
        q = given["q"]
        return q.new_zeros(*q.shape[:3], 512), torch.zeros(q.shape[0], q.shape[2], q.shape[1])

    monkeypatch.setattr(mla, "_over_pages", over_pages)
    return asked


def test_topk_length_cuts_each_list_where_flash_mla_has_it(call, monkeypatch):
    """By position. Entries after this length may hold anything and are not loaded."""
    asked = lengths_of_launches(monkeypatch)
    listed = torch.full((2, 2, 8), 2**30, dtype=torch.int32)
    few, nothing = torch.tensor([3, 2], dtype=torch.int32), (None,) * 3
    rest = None, None, 512, None, None, SCALE, False, False, listed, *nothing
    for function in (flash_mla_with_kvcache, vllm.flash_mla_with_kvcache):
        function(call["q"], call["k_cache"], *rest, few)
    assert [found.tolist() for found in asked] == [[3, 3, 2, 2]] * 2
    alone = call["q"][:1], call["k_cache"]  # one sequence, as vLLM's sparse backend has
    flash_mla_with_kvcache(*alone, None, None, indices=listed[:1], topk_length=few[:1])
    assert asked[2].tolist() == [3, 3] and asked[2].is_contiguous()
    with pytest.raises(ValueError, match="topk_length: given without indices"):
        flash_mla_with_kvcache(**call, topk_length=few)
    with pytest.raises(ValueError, match=r"topk_length: shape \(1,\).*accepted: \(2,\)"):
        flash_mla_with_kvcache(**call, indices=listed, topk_length=few[:1])


def test_a_list_ends_with_its_last_key(call, monkeypatch):
    """What pads a list is not gathered: -1, or a number beyond the cache; gaps before the last key are."""
    asked = lengths_of_launches(monkeypatch)
    beyond = call["k_cache"].shape[0] * call["k_cache"].shape[1]
    lists = [[0, beyond - 1, -1, -1], [-1] * 4, [-1, 2, -(2**31), beyond], [3, -1, -1, 2**31 - 1]]
    for width in (4, 0):
        listed = torch.tensor(lists, dtype=torch.int32)[:, :width].view(2, 2, width)
        flash_mla_with_kvcache(call["q"], call["k_cache"], None, None, indices=listed)
    assert [found.tolist() for found in asked] == [[2, 0, 2, 1], [0] * 4]
    assert {found.dtype for found in asked} == {torch.int32}


def test_keys_by_index_and_8_bits_reach_the_kernel_from_either_caller(call, expected, monkeypatch):
    """The same call, with the scales of FlashInfer's two products: that of the cache is in both."""
    asked = []

    def record(*given, **options):
        asked.append((given, options))
        return expected

    monkeypatch.setattr(mla, "flash_mla_with_kvcache", record)
    picked = torch.arange(2 * 2 * 128, dtype=torch.int32).view(2, 2, 128)
    few = torch.tensor([100, 128], dtype=torch.int32)
    of_cache = torch.full((1,), 2.0)
    e4m3 = call["q"].to(torch.float8_e4m3fn), call["k_cache"].squeeze(2).to(torch.float8_e4m3fn)
    flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        *e4m3, block_tables=picked, seq_lens=few, sparse_mla_top_k=128, bmm1_scale=0.5, bmm2_scale=2.0
    )  # fmt: skip
    flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        *e4m3, block_tables=picked, sparse_mla_top_k_lens=torch.tensor([1, 2, 3, 128], dtype=torch.int32),
        sparse_mla_top_k=128, bmm1_scale=torch.full((1,), 0.5), bmm2_scale=of_cache,
    )  # fmt: skip
    flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        call["q"], e4m3[1], block_tables=picked, seq_lens=few, sparse_mla_top_k=128, bmm1_scale=0.5, bmm2_scale=2.0
    )  # fmt: skip
    stored = e4m3[1].unsqueeze(2).view(torch.uint8)
    vllm.flash_mla_with_kvcache_fp8(
        e4m3[0], stored, call["block_table"], call["cache_seqlens"], 512, descale_k=torch.ones(1)
    )
    (_, second), (_, of_tensors), (_, of_16_bits), (third, last) = asked
    assert (of_16_bits["softmax_scale"], of_16_bits["descale_k"].tolist()) == (0.25, [2.0])
    assert second["indices"] is picked and torch.equal(second["topk_length"], few)
    assert "causal" not in second
    assert (second["softmax_scale"], second["descale_k"].tolist()) == (0.25, [2.0])
    assert of_tensors["topk_length"].tolist() == [[1, 2], [3, 128]]
    assert of_tensors["softmax_scale"] == 1.0 and of_tensors["descale_k"].tolist() == [2.0]
    assert of_tensors["descale_q"].tolist() == [0.25]
    assert third[1].dtype is torch.float8_e4m3fn and last["descale_k"].tolist() == [1.0]
