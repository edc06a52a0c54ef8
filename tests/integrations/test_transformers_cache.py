"""EightBitCache: a model that reads it agrees with eager attention in float32 on what the cache means.

The oracle has the same rows, rounded in the same way and multiplied out, in a cache of the model's dtype; the bound is
that of the other models: twice the error of eager attention in bf16 (tiny_models.py).
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4.integrations import transformers as attention_for_transformers
from cute_fa4.integrations.transformers_cache import EightBitCache, EightBitLayer, quantised
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
