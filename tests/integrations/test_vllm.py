"""The functions that vLLM's FlashAttention backend imports: signatures, and calls as the backend makes them."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, compile_cache
from cute_fa4.integrations import vllm
from tests.docs import definition
from tests.serving.batches import Batch, assert_agrees, int32, offsets, packed, packed_kv, split

# vllm-project/vllm, vllm/vllm_flash_attn/flash_attn_interface.py at 01420e05: parameters in order, defaults.
REQUIRED = inspect.Parameter.empty
ATTENTION = dict(
    q=REQUIRED, k=REQUIRED, v=REQUIRED, max_seqlen_q=REQUIRED, cu_seqlens_q=REQUIRED, max_seqlen_k=REQUIRED,
    cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, window_size=None,
    softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None,
    return_softmax_lse=False, out=None, scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None,
    num_splits=0, output_scale=None, fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None,
    mask_mod=None, block_sparse_tensors=None, aux_tensors=None, aux_tensor_leading_dims=None, dynamic_causal=None,
)  # fmt: skip
METADATA = dict(
    batch_size=REQUIRED, max_seqlen_q=REQUIRED, max_seqlen_k=REQUIRED, num_heads_q=REQUIRED, num_heads_kv=REQUIRED,
    headdim=REQUIRED, cache_seqlens=REQUIRED, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None,
    cu_seqlens_k_new=None, cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False,
    window_size=(-1, -1), has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0,
)  # fmt: skip


@pytest.mark.parametrize(
    "function, expected",
    [(vllm.flash_attn_varlen_func, ATTENTION), (vllm.get_scheduler_metadata, METADATA)],
    ids=["attention", "metadata"],
)
def test_signatures_are_vllms(function, expected):
    parameters = inspect.signature(function).parameters.values()
    assert [(p.name, p.default) for p in parameters] == list(expected.items())
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


# A decoded token of a long sequence, a prompt, a chunk of a prompt, a slot that a captured graph has spare.
QUERIES, KEYS = [1, 37, 9, 0], [150, 37, 60, 0]


def kv_cache(batch: Batch, block_size: int, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, num_blocks, block_size, heads_kv, head_dim), in memory NHD or HND, and the block table; NaN elsewhere."""
    blocks = [-(-n // block_size) for n in batch.keys]
    _, heads, depth = batch.k[0].shape
    inner = (block_size, heads) if layout == "NHD" else (heads, block_size)
    cache = torch.full((2, sum(blocks) + 1, *inner, depth), torch.nan, dtype=batch.k[0].dtype)
    cache = cache if layout == "NHD" else cache.transpose(2, 3)
    free = torch.randperm(sum(blocks) + 1).tolist()
    table = torch.zeros((len(blocks), 12), dtype=torch.int32)
    for b, count in enumerate(blocks):
        for place in range(count):
            table[b, place] = free.pop()
            rows = slice(place * block_size, (place + 1) * block_size)
            for part, x in enumerate((batch.k[b][rows], batch.v[b][rows])):
                cache[part, table[b, place], : len(x)] = x
    return cache, table


def as_the_backend_calls(batch: Batch, cache, table, output=None, **options):
    """FlashAttentionImpl.forward: every argument by name, descales too, and only `out` is looked at."""
    query = packed(batch.q)
    output = torch.full_like(query, 7.0) if output is None else output
    tokens = sum(batch.queries)
    key_cache, value_cache = cache.unbind(0)
    ones = torch.ones(1).expand(len(batch.queries), key_cache.shape[2])
    arguments = dict(
        q=query[:tokens], k=key_cache, v=value_cache, out=output[:tokens], cu_seqlens_q=offsets(batch.queries),
        max_seqlen_q=max(batch.queries), seqused_k=int32(batch.keys), max_seqlen_k=max(batch.keys),
        softmax_scale=query.shape[-1] ** -0.5, causal=True, alibi_slopes=None, window_size=[-1, -1],
        block_table=table, softcap=0, scheduler_metadata=X.int(), fa_version=4, q_descale=None, k_descale=ones,
        v_descale=ones, num_splits=0, s_aux=None, return_softmax_lse=True,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out, lse = vllm.flash_attn_varlen_func(**arguments | options)
    assert out.data_ptr() == output.data_ptr()  # written in place
    return output, lse


# 16 keys a block is vLLM's default; 12 columns of the table hold 192 keys.
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_batch_of_decode_and_prefill(layout):
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2))
    out, lse = as_the_backend_calls(batch, *kv_cache(batch, 16, layout))
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


def test_a_cache_of_eight_bits_with_scales():
    """kv_cache_dtype="fp8": the backend views its bytes as e4m3, quantises q, and expands one scale of a layer."""
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2), dtype=torch.float8_e4m3fn)
    cache, table = kv_cache(batch, 16, "NHD")
    sizes = len(batch.queries), 2
    scales = [torch.tensor(x).expand(sizes) for x in (0.5, 1.5, 0.75)]
    named = dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True))
    out = torch.full((sum(batch.queries), 4, batch.q[0].shape[-1]), 7.0, dtype=torch.bfloat16)
    out, lse = as_the_backend_calls(batch, cache, table, output=out, **named)
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p, scales=scales)


def test_queries_of_16_bits_over_a_cache_of_eight():
    """A decode step of a backend that leaves q as it is: scales of K and V count, and the error is that of 16 bits."""
    batch = Batch.draw([1, 1], [40, 150], heads=(4, 2))
    narrow = Batch(batch.q, *([x.to(torch.float8_e4m3fn) for x in xs] for xs in (batch.k, batch.v)))
    cache, table = kv_cache(narrow, 16, "NHD")
    scales = [torch.tensor(x).expand(2, 2) for x in (1.5, 0.75)]
    named = dict(zip(("k_descale", "v_descale"), scales, strict=True))
    out, lse = as_the_backend_calls(narrow, cache, table, q_descale=torch.ones(2, 2), **named)
    assert_agrees(narrow, out, lse, visible=lambda p, j: j <= p, scales=[None, *scales])


def test_windows_sinks_and_soft_cap():
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2))
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.bfloat16)
    options = dict(window_size=[20, 0], s_aux=sink, softcap=15.0)
    out, lse = as_the_backend_calls(batch, *kv_cache(batch, 16, "NHD"), **options)
    assert_agrees(
        batch, out, lse, visible=lambda p, j: (p - 20 <= j) & (j <= p), sink=sink, softcap=15.0
    )


@pytest.mark.parametrize("window, dtype", [(None, torch.int32), (20, torch.bool)])
def test_a_batch_in_which_some_sequences_are_causal(window, dtype):
    """As the backend calls for a layer without a window, causal, and for one with it, symmetric and not causal."""
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2))
    causal = torch.tensor([1, 1, 0, 0], dtype=dtype)
    sides = [-1, -1] if window is None else [window, window]
    out, lse = as_the_backend_calls(
        batch, *kv_cache(batch, 16, "NHD"), dynamic_causal=causal, causal=window is None, window_size=sides
    )  # fmt: skip

    def visible(of_sequence):
        def shown(p, j):
            seen = (p - j).abs() <= (window or 1000)
            return seen & (j <= p) if of_sequence else seen

        return shown

    for b, (o, sums) in enumerate(split(batch, out, lse)):
        one = Batch(*([each[b]] for each in (batch.q, batch.k, batch.v)))
        assert_agrees(one, o, sums, visible=visible(bool(causal[b])))


def test_output_scale_is_stored_with_out(monkeypatch):
    """As flash_attn_varlen_diff_headdims has it, below: out of e4m3 stands for itself times the scale."""
    asked = {}
    monkeypatch.setattr(
        vllm.interface, "flash_attn_varlen_func", lambda *_, **given: asked.update(given)
    )
    q = torch.zeros(5, 4, 64, dtype=torch.bfloat16)
    kv = torch.zeros(5, 2, 64, dtype=torch.bfloat16)
    lengths = dict(
        cu_seqlens_q=offsets([5]), cu_seqlens_k=offsets([5]), max_seqlen_q=5, max_seqlen_k=5
    )
    vllm.flash_attn_varlen_func(q, kv, kv, **lengths, output_scale=torch.tensor([0.5]))
    assert asked["out"].dtype is torch.float8_e4m3fn and asked["out"].shape == q.shape
    assert asked["o_scale"].tolist() == [2.0]


def test_encoders_have_packed_keys_and_no_pages():
    batch = Batch.draw([37, 9], [37, 9], heads=(4, 2))
    storage = packed_kv(batch)
    query = packed(batch.q)
    out = torch.full_like(query, 7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        _, lse = vllm.flash_attn_varlen_func(
            query, storage["k"], storage["v"], 37, offsets(batch.queries), 37, storage["cu_seqlens_k"],
            window_size=[8, 8], out=out, return_softmax_lse=True,
        )  # fmt: skip
    assert_agrees(batch, out, lse, visible=lambda p, j: (p - 8 <= j) & (j <= p + 8))


def test_nothing_is_scheduled_ahead():
    needed = dict.fromkeys((name for name, default in METADATA.items() if default is REQUIRED), 1)
    assert vllm.get_scheduler_metadata(**needed) is None


BATCH = Batch.draw([2, 3], [20, 30])
X = torch.zeros(5, 2, 64)

REFUSED = {
    "alibi": (
        dict(alibi_slopes=X),
        NotImplementedError,
        "alibi_slopes: a Tensor of shape (5, 2, 64)",
    ),
    "q_v": (dict(q_v=X), NotImplementedError, "q_v: a Tensor of shape (5, 2, 64)"),
    "dropout": (dict(dropout_p=0.5), NotImplementedError, "dropout_p: 0.5"),
    "probabilities": (dict(return_attn_probs=True), NotImplementedError, "return_attn_probs: True"),
    "context parallelism": (dict(cp_world_size=2), NotImplementedError, "cp_world_size: 2"),
    "its lengths": (dict(cp_tot_seqused_k=X), NotImplementedError, "cp_tot_seqused_k: a Tensor"),
    "a scale": (dict(k_descale=0.5 * torch.ones(2, 1)), NotImplementedError, "k_descale: 0.5"),
    "a function": (dict(mask_mod=len), NotImplementedError, "mask_mod: "),
    "sparse blocks": (dict(block_sparse_tensors=X), NotImplementedError, "block_sparse_tensors: a"),
    "few sequences": (dict(dynamic_causal=int32([1])), ValueError, "dynamic_causal: shape (1,)"),
    "another version": (dict(fa_version=1), ValueError, "fa_version: 1; accepted: 2, 3 or 4"),
    "both lengths": (dict(cu_seqlens_k=int32([0, 20, 50])), ValueError, "both or neither"),
    "no length": (dict(seqused_k=None, block_table=None), ValueError, "both or neither"),
    "pages": (dict(block_table=X[0]), TypeError, "block_table: dtype torch.float32; accepted"),
    "sinks": (dict(s_aux=X[0, 0]), ValueError, "s_aux: shape (64,); accepted"),
    "the log-sum-exp": (
        dict(return_softmax_lse=1),
        TypeError,
        "return_softmax_lse: 1; accepted: True or False",
    ),
    "scales of out": (
        dict(output_scale=torch.ones(3)),
        ValueError,
        "output_scale: shape (3,); accepted: one number",
    ),
    "half a window": (dict(window_size=[3]), ValueError, "window_size: [3]"),
}


@pytest.mark.parametrize("arguments, error, text", REFUSED.values(), ids=REFUSED)
def test_refusal_names_argument_value_and_what_is_accepted(arguments, error, text):
    cache, table = kv_cache(BATCH, 16, "NHD")
    with pytest.raises(error) as refused:
        as_the_backend_calls(BATCH, cache, table, **arguments)
    assert text in str(refused.value) and "accepted:" in str(refused.value)


def test_prefill_of_latent_attention_concatenates_nothing(monkeypatch):
    """As MLACommonImpl.forward_mha calls its two methods: rows of a workspace, the log-sum-exp to merge chunks by."""
    monkeypatch.setattr(compile_cache, "function_for", definition.compiled)
    batch = Batch.draw([37, 9], [40, 21], heads=(2, 2), depth=192, depth_v=128)
    for k in batch.k:
        k[:, :, 128:] = k[:, :1, 128:]
    every = torch.cat(batch.k)
    workspace = torch.full((len(every), 576), torch.nan, dtype=every.dtype)
    workspace[:, 512:] = every[:, 0, 128:]
    k = vllm.concat_k_nope_k_pe(every[..., :128], workspace[:, 512:].unsqueeze(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out, lse = vllm.flash_attn_varlen_diff_headdims(
            torch.cat(batch.q), k, torch.cat(batch.v), True, 192**-0.5, cu_seqlens_q=offsets(batch.queries),
            cu_seqlens_k=offsets(batch.keys), max_seqlen_q=37, max_seqlen_k=40, causal=True,
        )  # fmt: skip
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


@pytest.mark.parametrize("brings_out", (False, True))
def test_output_scale_divides_what_is_stored(brings_out):
    """As torch's conversion of the 16-bit result divided by it, up to the rounding of that one."""
    batch = Batch.draw([9], [21], heads=(2, 2), depth=192, depth_v=128)
    scale, out = torch.tensor([0.02]), None
    if brings_out:
        out = torch.empty(9, 2, 128, dtype=torch.float8_e4m3fn)
    lengths = dict(
        cu_seqlens_q=offsets(batch.queries), cu_seqlens_k=offsets(batch.keys), max_seqlen_q=9, max_seqlen_k=21
    )  # fmt: skip
    tensors = [torch.cat(x) for x in (batch.q, batch.k, batch.v)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        found = vllm.flash_attn_varlen_diff_headdims(
            *tensors, causal=True, out=out, output_scale=scale, **lengths
        )
        wide = vllm.flash_attn_varlen_diff_headdims(*tensors, causal=True, **lengths)
    assert found.dtype == torch.float8_e4m3fn and (out is None or found is out)
    exact = (wide.double() / scale).clamp(-448, 448)
    error = (found.double() - exact).abs()
    assert (error <= exact.abs() * (2**-4 + 2**-8) + 2**-10).all()
