"""Calls of shapes.py with what neutral.py adds, and the same numbers in float64.

Three sequences: as many keys as two tiles hold, of which the second has 22; no keys; no queries. Dense tensors know no
lengths, and have the first alone, three times.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache

import torch

from cute_fa4 import EmulatorWarning, emulator, flash_attn_varlen_func
from tests.calls import neutral
from tests.calls.shapes import GROUP, ROPE, Shape
from tests.serving.batches import (
    CANARY,
    CHECKS,
    FP8,
    Batch,
    dense_kv,
    dense_q,
    out_dtype,
    packed_kv,
    packed_q,
    paged_kv,
)

KEYS = 150
TORCH = {"bf16": torch.bfloat16, "e4m3": FP8[0]}
PAGE = 16


@lru_cache
def batch_of(shape: Shape, whole: bool = False) -> Batch:
    """k_rope has the last columns of k, v those that are left. whole: q and k are -1, 0 and 1, and scores exact."""
    rope = ROPE if shape.rope_dtype else 0
    batch = Batch.draw(
        [shape.queries, shape.queries, 0],
        [KEYS, 0, KEYS],
        heads=(GROUP, 1),
        depth=shape.head_dim,
        depth_v=shape.head_dim - rope,
    )
    if whole:
        batch = replace(
            batch, q=[x.sign() * (x.abs() > 0.5) for x in batch.q], k=[x.sign() for x in batch.k]
        )
    batch = Batch(*([x.to(TORCH[shape.dtype]) for x in xs] for xs in (batch.q, batch.k, batch.v)))
    if shape.kv_dtype:
        k, v = ([x.to(TORCH[shape.kv_dtype]) for x in xs] for xs in (batch.k, batch.v))
        batch = replace(batch, k=k, v=v)
    for k in batch.k:
        if rope:
            k[..., -rope:] = k[..., -rope:].to(TORCH[shape.rope_dtype]).to(k.dtype)
    return batch


def alone(batch: Batch) -> Batch:
    """The first sequence as often as there are sequences: dense tensors have no lengths."""
    return Batch(*([xs[0]] * len(xs) for xs in (batch.q, batch.k, batch.v)))


def stored(shape: Shape, batch: Batch, keys: str) -> dict:
    """Tensors of a call whose keys are dense, packed, padded (lengths apart) or in pages that lie in no order."""
    found = {
        "dense": lambda: dict(zip("qkv", map(torch.stack, (batch.q, batch.k, batch.v)), strict=True)),
        "padded": lambda: dense_q(batch) | dense_kv(batch),
        "packed": lambda: packed_q(batch) | packed_kv(batch),
        "pages": lambda: packed_q(batch) | paged_kv(batch, PAGE),
    }[keys]()  # fmt: skip
    if shape.rope_dtype:
        k = found["k"]
        found |= {"k": k[..., :-ROPE], "k_rope": k[..., 0, -ROPE:].to(TORCH[shape.rope_dtype])}
        if keys == "pages":
            found["k_rope_page_table"] = found["page_table"]
    if shape.blocks:
        for name in "qk":
            x = found[name]
            ones = torch.full((*x.shape[:-1], x.shape[-1] // 32), 127, dtype=torch.uint8)
            found[f"{name}_descale"] = ones.view(torch.float8_e8m0fnu)
    return found


SCALES = ("q_descale", "k_descale", "v_descale", "o_scale")


def scales_of(shape: Shape, name: str) -> dict:
    """Scales of 1, of everything or of heads."""
    one = {"one": torch.ones(1), "heads": torch.ones(3, 1)}.get(name)
    names = SCALES[shape.blocks * 2 + bool(shape.kv_dtype) : 3]
    return {} if one is None else dict.fromkeys(names, one)


def called(
    shape: Shape, *, sink, scores, mask, keys, splits, lse, scales, whole=False, **options
) -> tuple:
    """-> (batch, out, lse or None)."""
    batch = batch_of(shape, whole)
    if keys == "dense":
        batch = alone(batch)
    sequences = len(batch.q)
    given = stored(shape, batch, keys) | scales_of(shape, scales) | options
    given |= {"q_quantize": "never"} if shape.stays else {}
    given |= neutral.of_scores(scores, sequences, GROUP, shape.queries, KEYS)
    given |= neutral.of_masks(mask, sequences) | neutral.of_sinks(sink, GROUP)
    v, q = given["v"], given["q"]
    out = q.new_full((*q.shape[:-1], v.shape[-1]), CANARY, dtype=out_dtype(q))
    with warnings.catch_warnings(), emulator.use(checks=CHECKS):
        warnings.simplefilter("ignore", EmulatorWarning)
        found = flash_attn_varlen_func(**given, num_splits=splits, return_lse=lse, out=out)
    if not lse:
        return batch, found, None
    out, of_rows = found
    if out.dim() == 3:
        of_rows[:, int(given["cu_seqlens_q"][-1]) :] = CANARY
    return batch, out, of_rows
