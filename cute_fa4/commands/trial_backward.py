"""The kernels of a backward pass, called once and compared with gradients in float64."""

from __future__ import annotations

from typing import Any

import torch

from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.commands.trial_pages import DTYPES
from cute_fa4.masks import BoundMask
from cute_fa4.reference import (
    allowed_gradient_errors,
    attention_of_functions_float64,
    gradients_float64,
    max_error,
)
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import tuning

ROWS = 140  # two tiles, of which one is ragged
PADDING = 3  # rows after a sequence, where lengths say so
SIZE = 50  # of masks: within a tile


def worst(config: BackwardConfig, device: str) -> tuple[float, float]:
    """-> (error, allowed) of the gradient that is the furthest from float64. Masks only: no functions of scores."""
    generator, dtype = torch.Generator().manual_seed(0), DTYPES[config.dtype]
    bound = BoundMask(config.mask, (SIZE,) * config.mask.num_sizes)
    q, k, v, dout = (
        torch.randn(1, ROWS, heads, depth, generator=generator).to(dtype)
        for heads, depth in (
            (2, config.depth),
            (1, config.depth),
            (1, config.depth_v),
            (2, config.depth_v),
        )
    )
    bands = [bound.mask.bands(p, ROWS, bound.sizes) for p in range(ROWS)]
    seen = [[any(lo <= j < hi for lo, hi in row) for j in range(ROWS)] for row in bands]
    options = dict(visible=torch.tensor(seen))
    dlse = torch.randn(1, 2, ROWS, generator=generator) if config.dlse else None
    out, lse = attention_of_functions_float64(q, k, v, **options)
    tensors = [q, k, v, out.to(dtype), lse.float(), dout, dlse]
    lengths: list[Any] = []
    if config.packed:
        rows = ROWS + PADDING * config.used
        tensors = [_packed(x, rows) for x in tensors]
        offsets = [torch.tensor([0, rows], dtype=torch.int32, device=device)] * 2
        used = [torch.tensor([ROWS], dtype=torch.int32, device=device)] * (3 * config.used)
        lengths = [*offsets, rows, rows, *used]
    moved: list[Any] = [None if x is None else x.to(device) for x in tensors]
    *of, dout_there, dlse_there = moved
    scores = Scores(config.depth**-0.5, bound)
    table = tuning.active().changed(backward_pairs=config.pairs, backward_joint=config.joint)
    with tuning.using(table):
        found = gradients(Attended(*of, *lengths), dout_there, dlse_there, scores)[:3]
    exact = gradients_float64(q, k, v, dout, dlse, **options)
    allowed = allowed_gradient_errors(q, k, v, dout, dlse, **options)
    errors = [
        (max_error(a.cpu().reshape(-1, *b.shape[2:])[:ROWS], b[0]), most)
        for a, b, most in zip(found, exact, allowed, strict=True)
    ]
    return max(errors, key=lambda pair: pair[0] / pair[1])


def _packed(x, rows: int):
    """A sequence as a packed tensor of so many rows; log-sum-exps are (heads, rows)."""
    if x is None:
        return None
    whole = x.new_full((x.shape[1], rows) if x.dim() == 3 else (rows, *x.shape[2:]), torch.nan)
    (whole[:, :ROWS] if x.dim() == 3 else whole[:ROWS]).copy_(x[0])
    return whole
