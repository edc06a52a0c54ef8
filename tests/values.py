"""Distributions of q, k, v: what drives the online softmax into each of its paths.

A maker takes the shapes of q and of k, v and a generator, and returns float32 tensors. The kernel
keeps an old row maximum while the new one is less than 8 log2 units above it, so the interesting
questions are when the maximum comes, how far it jumps, and how far below it the rest lies.
"""

from __future__ import annotations

import torch

Shape = tuple[int, int, int, int]

MAKERS = {}


def maker(function):
    MAKERS[function.__name__] = function
    return function


def describe(name: str) -> str:
    return MAKERS[name].__doc__.splitlines()[0].rstrip(".")


@maker
def normal(q: Shape, kv: Shape, generator) -> tuple[torch.Tensor, ...]:
    """Standard normal: scores of standard deviation 1 with the default scale."""
    return tuple(torch.randn(shape, generator=generator) for shape in (q, kv, kv))


@maker
def equal_keys(q, kv, generator):
    """Every key the same: all weights equal, out is the mean of v."""
    q, k, v = normal(q, kv, generator)
    return q, k[:, :1].expand_as(k).contiguous(), v


@maker
def zero_queries(q, kv, generator):
    """Every score 0: the row maximum is 0 and LSE the logarithm of the number of keys."""
    q, k, v = normal(q, kv, generator)
    return torch.zeros_like(q), k, v


@maker
def one_hot(q, kv, generator):
    """One key takes all weight: out is a row of v; the key differs from row to row."""
    q, k, v = normal(q, kv, generator)
    columns = torch.arange(q.shape[1]) % k.shape[1]
    return 8 * k[:, columns].repeat_interleave(q.shape[2] // k.shape[2], dim=2), k, v


@maker
def large_scores(q, kv, generator):
    """Scores of standard deviation 16: most exponentials are 0, and the maximum jumps by tens."""
    q, k, v = normal(q, kv, generator)
    return 4 * q, 4 * k, v


@maker
def rising_maximum(q, kv, generator):
    """Scores grow with the key's index, 16 a tile of 128: every tile rescales."""
    return _with_slope(q, kv, generator, per_key=16 / 128)


@maker
def creeping_maximum(q, kv, generator):
    """Scores grow by 4 log2 units a tile: the old maximum is kept once and then given up."""
    return _with_slope(q, kv, generator, per_key=4 * 0.6931 / 128)


@maker
def falling_maximum(q, kv, generator):
    """The first key has the largest score: nothing is ever rescaled."""
    return _with_slope(q, kv, generator, per_key=-16 / 128)


@maker
def very_negative_scores(q, kv, generator):
    """Every score near -200: exp of the score itself would be 0 in float32."""
    q, k, v = normal(q, kv, generator)
    scale = q.shape[-1] ** -0.5
    q[..., 0], k[..., 0] = -200 / scale / 16, 16.0
    return q, k, v


@maker
def largest_fp16(q, kv, generator):
    """v of 60000, near fp16's largest 65504: sums above it live in float32 alone."""
    q, k, v = normal(q, kv, generator)
    return q, k, 60000 * torch.sign(v)


def _with_slope(q, kv, generator, per_key):
    """Normal scores of standard deviation 1/4 plus per_key times the key's index."""
    q, k, v = normal(q, kv, generator)
    q, k = q / 2, k / 2
    scale = q.shape[-1] ** -0.5
    index = torch.arange(k.shape[1], dtype=torch.float32)
    # Two columns carry the slope, coarse and fine, because bf16 has 8 bits: in one column the
    # rounding of a large index would hide the step to the next key.
    q[..., 0], q[..., 1] = 8.0, 8.0
    coarse = (index // 16) * 16
    k[..., 0] = (coarse * per_key / scale / 8)[None, :, None]
    k[..., 1] = ((index - coarse) * per_key / scale / 8)[None, :, None]
    return q, k, v
