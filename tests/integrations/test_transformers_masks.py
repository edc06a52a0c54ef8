"""Masks of transformers: which are recognised, that the pattern is the mask, and that the others have elements."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionMaskInterface, masking_utils

from cute_fa4 import masks
from cute_fa4.integrations import transformers_masks as patterns
from tests.integrations.tiny_models import CONFIGS


def mask_of(function, seqlen_q=6, seqlen_k=6, **options):
    options = {"mask_function": function, "q_length": seqlen_q, "kv_length": seqlen_k} | options
    return patterns.mask(batch_size=options.pop("batch_size", 2), **options)


def packed_causal():
    """What transformers composes for documents of 4 and 2 tokens."""
    composed = []
    AttentionMaskInterface.register(
        "recorder", lambda mask_function, **_: composed.append(mask_function)
    )
    config = CONFIGS["llama"]()
    config._attn_implementation = "recorder"
    positions = torch.tensor([[0, 1, 2, 3, 0, 1]]).expand(2, -1)
    masking_utils.create_causal_mask(
        config=config, inputs_embeds=torch.zeros(2, 6, 8), attention_mask=None, past_key_values=None,
        position_ids=positions,
    )  # fmt: skip
    return composed[0]


REAL = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=torch.bool)
CAUSAL = masking_utils.causal_mask_function
PATTERNS = {
    "causal": (CAUSAL, {}, masks.causal()),
    "all": (masking_utils.bidirectional_mask_function, {}, masks.full()),
    "window": (masking_utils.sliding_window_causal_mask_function(3), {}, masks.window(2, 0)),
    "window both ways": (
        masking_utils.sliding_window_bidirectional_mask_function(2),
        {},
        masks.window(2, 2),
    ),
    "documents": (packed_causal(), {}, masks.causal()),
    "padding": (CAUSAL, dict(attention_mask=REAL), masks.causal()),
    "padding on the right": (
        CAUSAL,
        dict(attention_mask=REAL.sort(descending=True)[0]),
        masks.causal(),
    ),
    "a cache": (CAUSAL, dict(seqlen_q=2, q_offset=4), masks.causal()),
    "a cache of fixed size": (CAUSAL, dict(seqlen_q=2, q_offset=2), masks.causal()),
    "a cache counted on the device": (
        CAUSAL,
        dict(seqlen_q=2, q_offset=torch.tensor(2)),
        masks.causal(),
    ),
    "a window's cache": (
        masking_utils.sliding_window_causal_mask_function(5),
        dict(seqlen_q=1, seqlen_k=5, q_offset=9, kv_offset=5),
        masks.window(4, 0),
    ),
}


def visible(pattern: patterns.Pattern, shape) -> torch.Tensor:
    """The definition of a pattern, key by key."""
    batch, _, seqlen_q, seqlen_k = shape
    num_keys = (
        seqlen_k
        if pattern.num_keys is None
        else torch.as_tensor(pattern.num_keys).reshape(-1, 1, 1)
    )
    i, j = torch.arange(seqlen_q)[:, None], torch.arange(seqlen_k)[None]
    p = i + num_keys - seqlen_q
    [(low, high)] = pattern.mask.mask.bands(p, num_keys, pattern.mask.sizes)
    shown = ((low <= j) & (j < high) & (j < num_keys)).expand(batch, seqlen_q, seqlen_k).clone()
    if pattern.key_limit is not None:
        shown &= j < pattern.key_limit[:, None, None]
    if pattern.shown is not None:
        columns = torch.zeros(batch, seqlen_k, dtype=torch.bool)
        columns[:, : pattern.shown.shape[1]] = pattern.shown.bool()
        shown &= columns[:, None]
    if pattern.documents is not None:
        shown &= pattern.documents[:, :, None] == pattern.documents[:, None]
    return shown[:, None]


@pytest.mark.parametrize("function, options, bounds", PATTERNS.values(), ids=PATTERNS)
def test_a_recognised_mask_is_the_one_of_transformers(function, options, bounds):
    lazy = mask_of(function, **options)
    assert isinstance(lazy, patterns.LazyMask) and lazy.pattern.mask == bounds
    assert torch.equal(visible(lazy.pattern, lazy.shape), lazy.materialise())


def test_any_operation_makes_the_mask_that_the_pattern_stands_for():
    lazy = mask_of(CAUSAL, attention_mask=REAL)
    exact = lazy.materialise()
    assert type(exact) is torch.Tensor and lazy.shape == exact.shape == (2, 1, 6, 6)
    assert lazy.dtype == torch.bool and lazy.ndim == 4
    assert torch.equal(lazy[:, :, 2:], exact[:, :, 2:])
    assert torch.equal(~lazy, ~exact)
    assert torch.equal(torch.cat([lazy, lazy], dim=3), torch.cat([exact, exact], dim=3))
    assert torch.equal(lazy.to(torch.float32), exact.float())
    moved = lazy.to("meta")
    assert isinstance(moved, patterns.LazyMask) and moved.pattern.shown.is_meta
    assert lazy.to("cpu") is lazy


UNKNOWN = {
    "a function of the model": lambda b, h, q, k: k <= q,
    "chunks": masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long)),
    "a union": masking_utils.or_masks(CAUSAL, masking_utils.bidirectional_mask_function),
    "a union inside": masking_utils.and_masks(CAUSAL, masking_utils.or_masks(CAUSAL)),
}


@pytest.mark.parametrize("function", UNKNOWN.values(), ids=UNKNOWN)
def test_other_masks_have_elements(function):
    mask = mask_of(function, attention_mask=REAL)
    expected = masking_utils.sdpa_mask(
        batch_size=2, q_length=6, kv_length=6, mask_function=function, attention_mask=REAL,
        allow_is_causal_skip=False,
    )  # fmt: skip
    assert type(mask) is torch.Tensor and torch.equal(mask, expected)
