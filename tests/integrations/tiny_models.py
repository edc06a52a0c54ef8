"""Models of one or two layers with random weights, and how far rounding may take their logits.

Three runs of one model on the same tokens: eager attention in float32, eager in bf16, ours in bf16. The two in bf16
round the same weights and activations outside of attention. Inside, eager rounds scores, probabilities and output to
bf16, ours probabilities and output. So the largest error of ours is one of as many draws from errors that are not
larger: RATIO leaves room for the luck of the draw, a wrong key costs tens of it (test_a_wrong_mask_would_show).
"""

from __future__ import annotations

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
)

RATIO = 2.0
VOCABULARY, WINDOW = 96, 16

SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, head_dim=64,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0,
    bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
    initializer_range=0.1,  # scores of standard deviation about 1: keys differ in weight
)  # fmt: skip

CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL),
    "mistral, windows": lambda: MistralConfig(**SMALL, sliding_window=WINDOW),
    "gemma 2, soft cap, windows and none": lambda: Gemma2Config(
        **SMALL | dict(num_hidden_layers=2), sliding_window=WINDOW, query_pre_attn_scalar=64,
        attn_logit_softcapping=2.0, final_logit_softcapping=None,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gpt-oss, sinks, windows and none": lambda: GptOssConfig(
        **SMALL | dict(num_hidden_layers=2), sliding_window=WINDOW, num_local_experts=2,
        num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"],
    ),
}  # fmt: skip


# Head dims beyond 128: 192 with 128 of v (a nope and a rotary part), 256, and 512 with keys that are the values.
WIDE = {
    "deepseek v3, 192/128": lambda: DeepseekV3Config(
        **SMALL | dict(num_attention_heads=2), q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, first_k_dense_replace=1,
    ),
    "gemma 3, 256, windows and none": lambda: Gemma3TextConfig(
        **SMALL | dict(num_hidden_layers=2, head_dim=256, num_attention_heads=2, num_key_value_heads=1),
        sliding_window=WINDOW, query_pre_attn_scalar=256, layer_types=["sliding_attention", "full_attention"],
    ),
    "gemma 4, 512": lambda: transformers.Gemma4TextConfig(  # not in the oldest transformers of the range
        **SMALL | dict(head_dim=256, num_attention_heads=2), num_global_key_value_heads=1, global_head_dim=512,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, layer_types=["full_attention"],
    ),
}  # fmt: skip


# Multi-head latent attention whose head dims have a backward pass.
TRAINED = {
    "deepseek v3, 96/64": lambda: DeepseekV3Config(
        **SMALL | dict(num_attention_heads=2, head_dim=32), q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=64,
        qk_rope_head_dim=32, v_head_dim=64, first_k_dense_replace=1,
    ),
}  # fmt: skip


def build(name: str, attention: str, dtype=torch.bfloat16, **changes):
    """A model of this module; the same weights whatever the attention and dtype."""
    config = (CONFIGS | WIDE | TRAINED)[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(1)
    for weight_name, weight in model.named_parameters():
        if weight_name.endswith("sinks"):
            weight.data = torch.randn(weight.shape, generator=generator)
    return model.to(torch.bfloat16).to(dtype).eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, VOCABULARY, (batch, length), generator=generator)


def logits(name: str, attention: str, dtype=torch.bfloat16, changes=(), **inputs) -> torch.Tensor:
    with torch.no_grad():
        return build(name, attention, dtype, **dict(changes))(**inputs).logits.float()


def allowed_and_exact(name: str, counts=None, changes=(), **inputs) -> tuple[float, torch.Tensor]:
    """RATIO times the largest error of eager in bf16, where `counts` (batch, length); logits in float32."""
    exact = logits(name, "eager", torch.float32, changes, **inputs)
    error = (logits(name, "eager", changes=changes, **inputs) - exact).abs()
    return RATIO * float(error[counts_of(exact, counts)].max()), exact


def counts_of(exact, counts) -> torch.Tensor:
    return torch.ones(exact.shape[:2], dtype=torch.bool) if counts is None else counts.bool()


def assert_agrees(name: str, counts=None, eager_inputs=None, changes=(), **inputs):
    """eager_inputs: what eager is given instead, where it has no such argument."""
    allowed, exact = allowed_and_exact(name, counts, changes, **(eager_inputs or inputs))
    ours = logits(name, "cute_fa4", changes=changes, **inputs)
    error = (ours - exact).abs()[counts_of(exact, counts)]
    assert float(error.max()) <= allowed, f"off by {float(error.max()):.2e}, allowed {allowed:.2e}"
