"""Neutral values of every option, by axis: they must not change a call.

An axis has a value for each neutral option, and "all" for those that can be combined: plain pytest pairs the axes'
"all", the sweep uses each value alone.
"""

from __future__ import annotations

import math

import torch

from cute_fa4 import masks, score_mods

COVERING = 1 << 20  # a window, chunk or limit beyond every length
CAP = 1e4  # cap tanh(s / cap) is s except for (s / cap)^2 / 3 of it; tanh.approx.f32 is off by 2^-11, relative
CAP_ERROR = 2.0**-11  # of a score, relative


def with_slopes(score, batch, head, q_idx, kv_idx, aux):
    """ALiBi with slopes from a tensor, which are 0."""
    from cutlass import Float32

    return score - aux[0][batch, head, 0, 0] * (aux.position - kv_idx).to(Float32)


def as_it_is(score, batch, head, q_idx, kv_idx, aux):
    return score


def every_key(batch, head, q_idx, kv_idx, aux):
    return kv_idx >= 0


def _bias(batch: int, heads: int, queries: int, keys: int) -> list:
    return [torch.zeros(batch, heads, queries, keys)]


def _composed(*mods):
    found = None
    for mod in mods:
        found = score_mods.composed(found, score_mods.ScoreMod.of(mod))
    return found


def of_scores(name: str, *sizes) -> dict:
    """sizes: sequences, heads, queries, keys."""
    biased = score_mods.additive_bias(True)
    return {
        "nothing": lambda: {},
        "soft cap": lambda: dict(softcap=CAP),
        "function": lambda: dict(score_mod=as_it_is),
        "bias": lambda: dict(score_mod=biased, aux_tensors=_bias(*sizes)),
        "slopes": lambda: dict(score_mod=with_slopes, aux_tensors=_bias(*sizes)),
        "all": lambda: dict(
            softcap=CAP, score_mod=_composed(biased, with_slopes), aux_tensors=_bias(*sizes)
        ),
    }[name]()


def of_masks(name: str, sequences: int) -> dict:
    limit = torch.full((sequences,), COVERING, dtype=torch.int32)
    return {
        "nothing": lambda: {},
        "window": lambda: dict(window_size=(COVERING, COVERING)),
        "chunk": lambda: dict(mask=masks.chunked(COVERING)),
        "function": lambda: dict(mask_mod=every_key),
        "limit": lambda: dict(key_limit=limit),
        "all": lambda: dict(
            mask=masks.both(masks.window(COVERING, COVERING), masks.chunked(COVERING)),
            mask_mod=every_key,
            key_limit=limit,
        ),
    }[name]()


def of_sinks(name: str, heads: int) -> dict:
    dtype = {"nothing": None, "f32": torch.float32, "bf16": torch.bfloat16}[name]
    return {} if dtype is None else {"learnable_sink": torch.full((heads,), -math.inf, dtype=dtype)}
