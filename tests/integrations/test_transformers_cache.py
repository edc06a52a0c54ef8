"""EightBitCache: a model that reads it agrees with eager attention in float32 on what the cache means.

The oracle has the same rows, rounded in the same way and multiplied out, in a cache of the model's dtype; the bound is
that of the other models: twice the error of eager attention in bf16 (tiny_models.py).
"""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from cute_fa4 import nvfp4
from cute_fa4.integrations import transformers as attention_for_transformers
from cute_fa4.integrations.transformers_cache import (
    EightBitCache,
    EightBitLayer,
    FourBitCache,
    FourBitLayer,
    quantised,
)
from tests.integrations import tiny_models as tiny

pytestmark = pytest.mark.filterwarnings("ignore")
attention_for_transformers.register()
STEPS = ((0, 70), (70, 73), (73, 74))  # a prompt, beyond the first room; several tokens, one


class MultipliedOut(EightBitLayer):
    """The same rows as tensors of the model's dtype."""

    def update(self, *states, **named):
        return tuple(
            given
            if given is states[i]
            else (given.float() * given._cute_fa4_scale.transpose(1, 2)[..., None]).to(self.dtype)
            for i, given in enumerate(super().update(*states, **named))
        )


def logits(attention: str, dtype, layer) -> torch.Tensor:
    model, ids = tiny.build("llama", attention, dtype), tiny.tokens(2, 74)
    cache = EightBitCache(model.config)
    cache.layers = [layer() for _ in cache.layers]
    with torch.no_grad():
        found = [model(input_ids=ids[:, a:b], past_key_values=cache).logits for a, b in STEPS]
    assert cache.get_seq_length() == 74
    return torch.cat(found, 1).float()


def test_a_model_decodes_from_eight_bits():
    exact = logits("eager", torch.float32, MultipliedOut)
    allowed = tiny.RATIO * float(
        (logits("eager", torch.bfloat16, MultipliedOut) - exact).abs().max()
    )
    ours = logits("cute_fa4", torch.bfloat16, EightBitLayer)
    assert float((ours - exact).abs().max()) <= allowed
    plain = tiny.logits("llama", "eager", torch.float32, input_ids=tiny.tokens(2, 74))
    assert (ours - plain).norm() <= 0.03 * plain.norm()  # what 16 bits keep and 8 do not


class MultipliedOutOfFour(FourBitLayer):
    """The same rows of 4 bits as tensors of the model's dtype."""

    def update(self, *states, **named):
        handed = super().update(*states, **named)
        return tuple(
            given if given is states[i] else meant(given).to(self.dtype)
            for i, given in enumerate(handed)
        )


def meant(rows) -> torch.Tensor:
    """(batch, heads, keys, head_dim) of 4-bit rows as a layer gets them."""
    blocks = rows._cute_fa4_blocks.transpose(1, 2)
    return nvfp4.dequantize(rows, blocks) * rows._cute_fa4_scale[:, :, None, None]


def test_a_model_decodes_from_four_bits():
    """What 4 bits lose is at most six times what 8 lose: E2M1 rounds to a fourth at most, e4m3 to a sixteenth."""
    exact = logits("eager", torch.float32, MultipliedOutOfFour)
    allowed = tiny.RATIO * float(
        (logits("eager", torch.bfloat16, MultipliedOutOfFour) - exact).abs().max()
    )
    ours = logits("cute_fa4", torch.bfloat16, FourBitLayer)
    assert float((ours - exact).abs().max()) <= allowed
    assert all(type(layer) is FourBitLayer for layer in FourBitCache(LlamaConfig()).layers)
    plain = tiny.logits("llama", "eager", torch.float32, input_ids=tiny.tokens(2, 74))
    assert 0 < (ours - plain).norm() <= 6 * 0.03 * plain.norm()


def test_factors_of_four_bits_come_with_the_first_rows():
    """Powers of two of each sequence and head; rows of 8 times the size do not saturate; sequences keep theirs."""
    states = torch.randn(2, 3, 5, 64, generator=torch.Generator().manual_seed(0))
    states *= torch.tensor([1.0, 100.0, 1e-3])[None, :, None, None]
    states[1, 2] = 0
    layer = FourBitLayer()
    layer.update(states, -states)
    later = states[:, :, :1].clamp(-states.abs().max(), states.abs().max()) * 8
    keys, values = layer.update(later, -later)
    factors = keys._cute_fa4_scale
    assert factors.shape == (2, 3) and factors[1, 2] == 1
    assert torch.equal(factors.log2(), factors.log2().round())
    all_rows = torch.cat([states, later], 2)
    for got, sign in ((keys, 1), (values, -1)):
        error = (meant(got) - sign * all_rows).abs()
        block = (
            all_rows.abs().unflatten(-1, (-1, 16)).amax(-1, keepdim=True).expand(-1, -1, -1, -1, 16)
        )
        assert (
            error <= block.flatten(-2) / 4 + 1e-30
        ).all()  # half of the gap from 4 to 6, and the scale's rounding
    layer.reorder_cache(torch.tensor([1, 1]))
    keys, _ = layer.update(later[[1, 1]], -later[[1, 1]])
    assert torch.equal(keys._cute_fa4_scale, factors[[1, 1]]) and keys.shape == (2, 3, 7, 32)
    with pytest.raises(
        ValueError, match="head_dim 24 with FourBitCache; accepted: multiples of 16"
    ):
        FourBitLayer().update(states[..., :24], states[..., :24])


def test_rows_are_found_again_by_their_scales():
    """Numbers are off by half a place at most; a row of zeros stays zeros; NaN stays."""
    x = torch.randn(3, 5, 2, 16, generator=torch.Generator().manual_seed(0)) * 1e-3
    x[0, 0], x[1, 1, 0, 3] = 0, float("nan")
    found, scale = quantised(x)
    meant = found.float() * scale[..., None]
    assert (meant[0, 0] == 0).all() and meant[1, 1, 0].isnan().all()
    error = (meant - x).abs() / x.abs().amax(-1, keepdim=True)
    assert float(error[2].max()) <= 16 / 448 + 2**-20  # half a place of the largest numbers


def test_sequences_are_picked_and_repeated_and_cut():
    """As beam search asks for it: rows and scales of each sequence stay together."""
    layer = EightBitLayer()
    states = torch.randn(2, 2, 7, 16, generator=torch.Generator().manual_seed(0))
    layer.update(states, -states)
    layer.reorder_cache(torch.tensor([1, 1, 0]))
    layer.crop(-1)
    picked = states[[1, 1, 0]]
    keys, values = layer.update(picked[:, :, 6:], -picked[:, :, 6:])
    found, scale = quantised(picked.transpose(1, 2))
    for got, sign in ((keys, 1), (values, -1)):
        assert torch.equal(got.float(), sign * found.float().transpose(1, 2))
        assert torch.equal(got._cute_fa4_scale, scale)
    layer.reset()
    assert layer.get_seq_length() == 0 and not layer.is_initialized
