"""attn_implementation="cute_fa4" in models of Hugging Face transformers, against eager attention in float32."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, StaticCache, masking_utils

import cute_fa4.integrations.transformers as ours
import cute_fa4.integrations.transformers_masks as patterns
from cute_fa4 import EmulatorWarning, flash_attn_func
from tests.integrations import tiny_models as tiny
from tests.integrations.tiny_models import CONFIGS, WINDOW, assert_agrees, build, tokens
from tests.suite import turns

ours.register()

LENGTH = 40  # more than two windows of 16
MODELS = list(CONFIGS)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        yield


def padded(*real, length=LENGTH, left=True) -> torch.Tensor:
    """(batch, length): so many real tokens in each sequence."""
    mask = torch.zeros(len(real), length, dtype=torch.long)
    for row, n in zip(mask, real, strict=True):
        row[length - n if left else 0 : length if left else n] = 1
    return mask


# --- a whole forward pass


@pytest.mark.parametrize("name", turns.by_turns(MODELS))
def test_logits_of_each_model(name):
    assert_agrees(name, input_ids=tokens(1, LENGTH))


def test_padding_on_the_left_changes_nothing_for_the_others():
    mask = padded(LENGTH, 11)
    assert_agrees("mistral, windows", mask, input_ids=tokens(2, LENGTH), attention_mask=mask)


def test_padding_on_the_right_of_a_model_that_sees_both_ways():
    # A causal mask hides the padding on the right.
    mask = padded(LENGTH, 11, left=False)
    inputs = dict(input_ids=tokens(2, LENGTH), attention_mask=mask, use_cache=False)
    assert_agrees("llama", mask, changes=[("is_causal", False)], **inputs)


def test_a_wrong_mask_would_show():
    inputs = dict(input_ids=tokens(1, LENGTH))
    allowed, exact = tiny.allowed_and_exact("mistral, windows", **inputs)
    for window in (WINDOW - 1, WINDOW + 1):
        wrong = tiny.logits(
            "mistral, windows", "eager", torch.float32, [("sliding_window", window)], **inputs
        )
        assert float((wrong - exact).abs().max()) > 5 * allowed


def test_masks_of_the_caller():
    # A prefix of 10 that sees itself whole, as booleans and as floats: neither is a pattern.
    shown = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    shown[:10, :10] = True
    bias = torch.zeros(LENGTH, LENGTH, dtype=torch.bfloat16).masked_fill(~shown, -torch.inf)
    ids = tokens(1, LENGTH)
    eager = dict(input_ids=ids, attention_mask=bias[None, None])
    for mask in (shown, bias):
        assert_agrees("llama", eager_inputs=eager, input_ids=ids, attention_mask=mask[None, None])


# --- packed sequences

DOCUMENTS = [17, 1, 22]


def test_packed_documents_are_found_by_their_positions():
    positions = torch.cat([torch.arange(n) for n in DOCUMENTS])[None]
    inputs = dict(input_ids=tokens(1, LENGTH), position_ids=positions, use_cache=False)
    assert_agrees("mistral, windows", **inputs)


def test_packed_documents_by_their_offsets():
    # Positions that go on: rotary embeddings depend on differences alone, so that the offsets say everything.
    positions = torch.cat([torch.arange(n) for n in DOCUMENTS])[None]
    offsets = torch.tensor([0, *DOCUMENTS]).cumsum(0)
    longest = max(DOCUMENTS)
    inputs = dict(input_ids=tokens(1, LENGTH), use_cache=False)
    assert_agrees(
        "mistral, windows",
        eager_inputs=dict(position_ids=positions, **inputs),
        cu_seq_lens_q=offsets,
        cu_seq_lens_k=offsets,
        max_length_q=longest,
        max_length_k=longest,
        **inputs,
    )


# --- caches, generation, compilation


def assert_generates(name, prompt_mask, steps, changes=(), **options):
    """Every token is a best one of the float32 model on the whole sequence, up to rounding."""
    prompts = tokens(*prompt_mask.shape) * prompt_mask
    model = build(name, "cute_fa4", **dict(changes))
    written = model.generate(
        prompts,
        attention_mask=prompt_mask,
        max_new_tokens=steps,
        min_new_tokens=steps,
        do_sample=False,
        **options,
    )
    assert written.shape == (len(prompts), prompts.shape[1] + steps)
    mask = torch.cat([prompt_mask, torch.ones(len(prompts), steps, dtype=torch.long)], dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # as generate counts them
    allowed, exact = tiny.allowed_and_exact(
        name, mask, changes, input_ids=written, attention_mask=mask, position_ids=positions
    )
    predicted = exact[:, -steps - 1 : -1]
    chosen = predicted.gather(2, written[:, -steps:, None])
    assert (predicted.max(-1, keepdim=True).values - chosen <= 2 * allowed).all()
    assert float(predicted.std(-1).min()) > 10 * allowed  # a token at random would not pass


CACHES = {"dynamic": {}, "static": {"cache_implementation": "static", "disable_compile": True}}


# Without a mask only the device knows how many keys there are; with one, the host does.
@pytest.mark.parametrize("with_mask", [True, False])
def test_keys_of_a_static_cache_that_are_not_written_yet(with_mask):
    ids, model = tokens(1, 30), build("llama", "cute_fa4")
    allowed, exact = tiny.allowed_and_exact("llama", input_ids=ids)
    cache = StaticCache(model.config, max_cache_len=48)
    with torch.no_grad():
        for first, last in ((0, 25), (25, 29), (29, 30)):
            mask = torch.ones(1, last, dtype=torch.long) if with_mask else None
            out = model(input_ids=ids[:, first:last], attention_mask=mask, past_key_values=cache)
            assert float((out.logits.float() - exact[:, first:last]).abs().max()) <= allowed
            cache.layers[0].keys[:, :, last:] = 100.0  # would have all the weight
            cache.layers[0].values[:, :, last:] = 100.0


@pytest.mark.parametrize("name", turns.by_turns(tiny.WIDE))
def test_models_of_wide_heads_generate_the_tokens_of_eager_attention(name):
    """Two steps: a prompt of more than two windows, and a query on the cache that it left."""
    if "gemma 4" in name:
        pytest.importorskip("transformers.models.gemma4", reason="a transformers without Gemma 4")
    prompt = tokens(1, LENGTH)
    written = {
        attention: build(name, attention).generate(prompt, max_new_tokens=2, do_sample=False)
        for attention in ("eager", "cute_fa4")
    }
    assert torch.equal(written["cute_fa4"], written["eager"])


# 14 tokens and 6 more: the windows of 16 fill while generating.
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS[:3])
def test_greedy_generation_of_a_padded_batch(name, cache):
    # Gemma's layers have two kinds of cache; its soft cap, tested above, would only be more kernels to compile.
    changes = [("attn_logit_softcapping", None)] if "gemma" in name else []
    assert_generates(name, padded(14, 5, length=14), 6, changes, **CACHES[cache])


def test_a_model_is_compiled_whole():
    model, inputs = build("llama", "cute_fa4"), dict(input_ids=tokens(1, LENGTH), use_cache=False)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(**inputs).logits
        assert torch.equal(compiled, model(**inputs).logits)


def test_generation_from_prompts_longer_than_the_window():
    assert_generates("mistral, windows", padded(37, 20, length=37), 3)


# --- refusals


class Layer(torch.nn.Module):
    is_causal = True


X = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)

REFUSED = {
    "dropout": (dict(dropout=0.1), NotImplementedError, "call model.eval()"),
    "a paged cache": (dict(cache=object()), NotImplementedError, "cache: not supported"),
    "a position bias": (dict(position_bias=X), NotImplementedError, "position_bias: not supported"),
    "a mask of two dimensions": (
        dict(attention_mask=torch.ones(1, 8)),
        ValueError,
        "attention_mask: shape (1, 8)",
    ),
    "float32": (dict(query=X.float()), TypeError, "dtype"),
}


@pytest.mark.parametrize("arguments, error, text", REFUSED.values(), ids=REFUSED)
def test_refusal_names_argument_value_and_what_is_accepted(arguments, error, text):
    call = dict(query=X, key=X, value=X, attention_mask=None) | arguments
    with pytest.raises(error) as refused:
        ours.attention(Layer(), **call)
    assert text in str(refused.value)


def test_a_layer_without_a_mask_goes_by_its_own_causality():
    q, k, v = torch.randn(1, 4, 20, 64).bfloat16(), *torch.randn(2, 1, 2, 20, 64).bfloat16()
    rows_first = [x.transpose(1, 2) for x in (q, k, v)]
    for is_causal, expected in ((None, True), (False, False)):
        out, nothing = ours.attention(Layer(), q, k, v, None, is_causal=is_causal)
        assert nothing is None
        assert torch.equal(out, flash_attn_func(*rows_first, causal=expected))


def test_it_is_registered_under_any_name():
    ours.register("another_name")
    assert AttentionInterface()["another_name"] is ours.attention
    assert AttentionMaskInterface()["another_name"] is patterns.mask


def test_an_older_transformers_is_named(monkeypatch):
    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda cache_position: None)
    with pytest.raises(ImportError, match=r"transformers .*: 5.4 or newer is needed; pip install"):
        ours.register()
