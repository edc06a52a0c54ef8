"""Decode from a latent cache as vLLM's and FlashInfer's callers write it: the same bits as our own call."""

import pytest
import torch

from cute_fa4.integrations import flashinfer, vllm
from tests.sm100.mla_decode.latent_batches import call_of, draw, stored

pytestmark = pytest.mark.filterwarnings("ignore")
SCALE = 192**-0.5


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
    with pytest.raises(NotImplementedError, match="indices: a Tensor: not built; accepted: None"):
        vllm.flash_mla_with_kvcache(**call, head_dim_v=512, indices=torch.zeros(1))


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
    for wrong, error, text in (
        (dict(kv_lora_rank=256), ValueError, "kv_lora_rank: 256; accepted: 512"),
        (dict(sparse_mla_top_k=2048), NotImplementedError, "sparse_mla_top_k: 2048: not built"),
        (dict(bmm1_scale=torch.ones(1)), NotImplementedError, "bmm1_scale: a tensor"),
    ):
        with pytest.raises(error, match=text):
            decode(call["q"], cache, scratch, **given | wrong)
