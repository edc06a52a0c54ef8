"""Attention of one sequence of a trial by its definition, with features that the oracles of reference.py lack.

These are bands of every mask, sinks and score functions. `problem` is a Problem of trials.py.
"""

from __future__ import annotations

import math

import torch

from cute_fa4.commands import trial_scales
from cute_fa4.sm100.blueprint.packaged import alibi_slope


def exact(problem, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """out (queries, heads, depth) and log-sum-exp (heads, queries) of a sequence, by their definition."""
    config, m, n = problem.config, problem.queries[b], problem.keys[b]
    rows, group = dict(q=problem.q, k=problem.k, v=problem.v), problem.heads // problem.heads_kv
    q, k, v = (trial_scales.multiplied(rows[x], problem.scales, x, b, group) for x in "qkv")
    k, v = (x.repeat_interleave(config.group, dim=1) for x in (k, v))
    scores = torch.einsum("mhd,nhd->hmn", q, k) * config.qk_depth**-0.5
    positions = torch.arange(m)[:, None] + n - m
    for name, argument in problem.functions():
        scores = _scored(problem, scores, name, argument, b, positions)
    shown = n if not config.padded_keys else problem.limit[b]
    seen = torch.tensor(
        [
            [sees(config.mask, p + n - m, n, problem.sizes, key) for key in range(n)]
            for p in range(m)
        ]
    )
    scores = scores.masked_fill(~(seen & (torch.arange(n) < shown)), -math.inf)
    if config.sink:
        sink = problem.sink.double()[:, None, None].expand(-1, m, 1)
        scores = torch.cat([scores, sink], dim=2)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    lse = scores.logsumexp(dim=2)
    weights = torch.exp(scores - torch.nan_to_num(lse, neginf=0.0)[..., None])
    return torch.einsum("hmn,nhd->mhd", weights, v), lse


def _scored(problem, scores, name: str, argument, b: int, positions) -> torch.Tensor:
    heads, m, n = scores.shape
    distance = positions - torch.arange(n)
    if name == "soft_cap":
        return argument * torch.tanh(scores / argument)
    if name == "alibi":
        slopes = torch.tensor([alibi_slope(head, argument) for head in range(heads)]).double()
        return scores - slopes[:, None, None] * distance.abs()
    aux = problem.aux[0].double()
    if name == "additive_bias":
        return scores + aux[b][..., :m, :n]
    first = (
        problem.rows[b].start if problem.config.q_layout == "packed" else b * max(problem.queries)
    )
    near = (distance >= 0) & (distance < argument)
    at = distance.clamp(0, argument - 1).expand(heads, m, n)
    return scores + torch.where(near, aux[first : first + m].transpose(0, 1).gather(2, at), 0.0)


def sees(mask, position: int, n: int, sizes: tuple, key: int) -> bool:
    return any(lo <= key < hi for lo, hi in mask.bands(position, n, sizes))
