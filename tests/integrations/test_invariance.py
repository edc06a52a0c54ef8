"""Batch invariance through the adapters: what an engine asks for is batch_invariant=True of the functions below them.

Calls are planned and launch nothing, as in tests/invariance/test_argument.py, whose fixture and law these are.
"""

import pytest
import torch

from cute_fa4.integrations import flashinfer, invariance, transformers, vllm
from tests.invariance import test_argument as calls
from tests.invariance.stories import int32, offsets
from tests.invariance.test_argument import KEYS, TABLE, planned  # noqa: F401

BF16 = torch.bfloat16
TWO = dict(
    cu_seqlens_q=offsets([1]), cu_seqlens_k=offsets([KEYS]), max_seqlen_q=1, max_seqlen_k=KEYS
)


def vllm_attention():
    given = calls.paged(1, "bf16")
    given["block_table"] = given.pop("page_table")
    vllm.flash_attn_varlen_func(**given, max_seqlen_k=KEYS)


def vllm_prefill_of_latent_attention():
    q, k, v = (calls.rows(n, 2, depth, BF16) for n, depth in ((1, 192), (KEYS, 192), (KEYS, 128)))
    vllm.flash_attn_varlen_diff_headdims(q, k, v, **TWO)


def vllm_latent():
    vllm.flash_mla_with_kvcache(**calls.latent(1, "bf16"), head_dim_v=512)


def vllm_latent_of_8_bits():
    vllm.flash_mla_with_kvcache_fp8(**calls.latent(1, "8 bits"), head_dim_v=512)


WORKSPACE = torch.zeros(16)


def flashinfer_decode():
    q, k, v = calls.tensors("bf16", 1)
    caches = calls.pages(k), calls.pages(v)
    flashinfer.trtllm_batch_decode_with_kv_cache(
        q, caches, WORKSPACE, TABLE, int32([KEYS]), KEYS, kv_layout="NHD"
    )


def flashinfer_latent():
    given = calls.latent(1, "bf16")
    flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        given["q"], given["k_cache"][:, :, 0], block_tables=TABLE, seq_lens=int32([KEYS])
    )


def flashinfer_ragged():
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, "NHD")
    wrapper.plan(offsets([1]), offsets([KEYS]), *calls.HEADS, 64, q_data_type=BF16)
    wrapper.run(*calls.tensors("bf16", 1))


OF_VLLM = (
    *(vllm_attention, vllm_prefill_of_latent_attention, vllm_latent, vllm_latent_of_8_bits),
    *(flashinfer_decode, flashinfer_latent, flashinfer_ragged),
)
CASES = [(invariance.VLLM, call) for call in OF_VLLM]
CASES += [(invariance.SGLANG, call) for call in OF_VLLM if "flashinfer" in call.__name__]


@pytest.mark.parametrize("variable, call", CASES, ids=lambda x: getattr(x, "__name__", x))
def test_the_engines_variable_is_the_argument(variable, call, planned, monkeypatch):  # noqa: F811
    invariant, default = planned("on", call), planned("auto", call)
    assert invariant[0] and invariant != default
    for word, expected in (("1", invariant), ("0", default), ("", default)):
        monkeypatch.setenv(variable, word)
        assert planned("auto", call) == expected


@pytest.mark.parametrize(
    "variable, on, wrong",
    [(invariance.VLLM, ("1", "2"), "maybe"), (invariance.SGLANG, ("true", "True", "yes"), "2")],
)
def test_words_are_those_of_the_engine(variable, on, wrong, monkeypatch):
    for word in on:
        monkeypatch.setenv(variable, word)
        assert invariance.asked_by(variable) is True
    monkeypatch.setenv(variable, wrong)
    with pytest.raises(ValueError, match=f"^{variable}='{wrong}'; accepted: 1, true"):
        invariance.asked_by(variable)


def test_transformers_functions_take_it(planned):  # noqa: F811
    """A model passes it on, or register() sets it for a name."""
    from transformers import AttentionInterface

    def registered(**options):
        transformers.register("cute_fa4_of_this_test", **options)
        return AttentionInterface()["cute_fa4_of_this_test"]

    q, k, v = (x.transpose(0, 1)[None] for x in calls.tensors("bf16", 1))
    layer = torch.nn.Module()
    calls.check_law(
        planned, lambda **options: transformers.attention(layer, q, k, v, None, **options)
    )
    calls.check_law(planned, lambda **options: registered(**options)(layer, q, k, v, None))
    with pytest.raises(TypeError, match="^batch_invariant: 1; accepted"):
        transformers.register("cute_fa4_of_this_test", batch_invariant=1)
