"""attn_implementation="cute_fa4" for Hugging Face transformers.

    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="cute_fa4", dtype=torch.bfloat16)
    register("cute_fa4_invariant", batch_invariant=True)    under a second name: the same bits in every batch

transformers calls two functions: transformers_masks.mask once or twice per forward pass, and attention in every
layer, with queries, keys, values and the result of mask.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from cute_fa4 import masks
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.tensors import checked_scale
from cute_fa4.compiler import policy
from cute_fa4.integrations.sdpa import options_of_mask, padded_depths
from cute_fa4.integrations.transformers_masks import LazyMask, Pattern, mask
from cute_fa4.interface import flash_attn_varlen_func

# Arguments of some models that change the result of attention.
# Attributes of keys and values of the caches of transformers_cache.py: scales of 8-bit rows, or of 4-bit sequences;
# scales of blocks of 4-bit rows.
SCALE, BLOCKS = "_cute_fa4_scale", "_cute_fa4_blocks"
UNSUPPORTED = ("position_bias", "cache", "block_table", "indices", "block_indices", "sinks")


def register(name: str = "cute_fa4", *, batch_invariant: bool | None = None) -> None:
    """Register attn_implementation=name with transformers; ImportError if transformers is missing or too old.

    batch_invariant  of every call, as in flash_attn_func
    """
    policy.check_batch_invariant(batch_invariant)
    needed = "5.4 or newer is needed; pip install 'cute-fa4[transformers]'"
    try:
        import transformers
        from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    except ImportError as error:
        raise ImportError(f"transformers: {needed}") from error
    if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise ImportError(f"transformers {transformers.__version__}: {needed}")
    function = attention
    if batch_invariant is not None:
        function = functools.partial(attention, batch_invariant=batch_invariant)
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    batch_invariant: bool | None = None,
    **others,
) -> tuple[torch.Tensor, None]:
    """The attention function of a layer: (batch, heads, seqlen, head_dim) -> (batch, seqlen, heads, head_dim), None.

    attention_mask  the result of mask, or the caller's mask (batch or 1, heads or 1, seqlen_q, seqlen_k); it overrides
                    the rest. None: is_causal, else module.is_causal, and sliding_window
    softcap         None: off
    s_aux           (heads_q,): sinks
    num_splits=0 chooses key splits from metadata, so decode of few sequences runs on all SMs.
    cu_seq_lens_q, cu_seq_lens_k   (sequences + 1,): offsets of sequences packed in a batch of 1
    batch_invariant  as in flash_attn_func: register() sets it, or a model's forward passes it on
    """
    for name in UNSUPPORTED:
        if others.get(name) is not None:
            raise NotImplementedError(
                f"{name}: not supported for attn_implementation='cute_fa4'; accepted: None"
            )
    if dropout:
        raise NotImplementedError(
            f"dropout: {dropout}: not supported; accepted: 0.0; call model.eval()"
        )
    of_blocks, scales = hasattr(key, BLOCKS), scales_of(key, value)
    depth_v = columns_of(value) if of_blocks else value.shape[-1]
    scale = checked_scale(scaling, query.shape[-1])
    if not of_blocks:
        query, key, value = padded_depths(query, key, value)
    options: dict[str, Any] = {
        "softmax_scale": scale,
        "softcap": softcap,
        "learnable_sink": s_aux,
        "num_splits": 0,
    }
    options |= scales | {"batch_invariant": batch_invariant}
    pattern = _pattern_of(module, attention_mask, is_causal, sliding_window)
    packed = cu_seq_lens_q is not None and cu_seq_lens_k is not None and query.shape[0] == 1
    if packed and pattern is not None and pattern.is_only_bounds:
        given = {"cu_seqlens_q": cu_seq_lens_q, "cu_seqlens_k": cu_seq_lens_k}
        options |= {name: x.to(torch.int32) for name, x in given.items() if x is not None}
        options["mask"] = pattern.mask
        options["max_seqlen_q"] = max_length_q if isinstance(max_length_q, int) else None
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return _out(flash_attn_varlen_func(q, k, v, **options))[None, ..., :depth_v], None
    if pattern is None and attention_mask is not None:
        options |= options_of_mask(attention_mask[..., : key.shape[2]], query, key.shape[2])
    elif pattern is not None:
        options |= pattern.options()
        if isinstance(pattern.num_keys, int):
            key, value = key[:, :, : pattern.num_keys], value[:, :, : pattern.num_keys]
            by_row = {name: scale for name, scale in scales.items() if scale.dim() > 2}
            options |= {name: scale[:, : pattern.num_keys] for name, scale in by_row.items()}
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return _out(flash_attn_varlen_func(q, k, v, **options))[..., :depth_v], None


def _out(result: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The result of a call without return_lse."""
    assert isinstance(result, torch.Tensor)
    return result


def scales_of(key: torch.Tensor, value: torch.Tensor) -> dict:
    """Scales of keys and values from an 8-bit or a 4-bit cache; {} for others."""
    found = {}
    for side, x in (("k", key), ("v", value)):
        for name, attribute in ((f"{side}_descale", SCALE), (f"{side}_block_scale", BLOCKS)):
            if hasattr(x, attribute):
                found[name] = getattr(x, attribute)
    return found


def _pattern_of(module, attention_mask, is_causal, sliding_window) -> Pattern | None:
    """None: attention_mask is a tensor with elements."""
    if isinstance(attention_mask, LazyMask):
        return attention_mask.pattern
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        side = None if sliding_window is None else sliding_window - 1
        return Pattern(masks.window(side, 0 if causal else side))
    if attention_mask.dim() != 4:
        raise ValueError(
            f"attention_mask: shape {tuple(attention_mask.shape)}; accepted: (batch, 1, seqlen_q, seqlen_k), or None; "
            "pass a mask of (batch, length) to the model, for which cute_fa4 makes the other"
        )
    return None
