"""Random problems of the backward pass, and the kernels' answers between canaries."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from cute_fa4 import masks
from cute_fa4.calls.backward import Attended, Scores, float32_zeros, gradients
from cute_fa4.reference import attention_of_functions_float64

CANARY_ROWS = 3  # NaN rows before and after every tensor that a kernel reads


@dataclass(frozen=True)
class Problem:
    """Sizes of a dense call."""

    seqlen_q: int
    seqlen_k: int
    heads: tuple[int, int] = (1, 1)
    depths: tuple[int, int] = (128, 128)
    batch: int = 1
    dtype: torch.dtype = torch.bfloat16
    window: tuple[int | None, int | None] = (None, None)

    def tensors(self, seed: int = 0) -> list[torch.Tensor]:
        """q, k, v and the gradient of out."""
        random = torch.Generator().manual_seed(seed)
        (heads_q, heads_kv), (depth, depth_v) = self.heads, self.depths
        shapes = (
            (self.seqlen_q, heads_q, depth),
            (self.seqlen_k, heads_kv, depth),
            (self.seqlen_k, heads_kv, depth_v),
            (self.seqlen_q, heads_q, depth_v),
        )
        return [between_nans(self.batch, *s, random=random, dtype=self.dtype) for s in shapes]


def between_nans(batch, rows, heads, depth, *, random, dtype) -> torch.Tensor:
    """Normal numbers whose neighbours in memory, before and after each sequence, are NaN."""
    whole = torch.full((batch, rows + 2 * CANARY_ROWS, heads, depth), math.nan, dtype=dtype)
    inside = whole[:, CANARY_ROWS : CANARY_ROWS + rows]
    inside.copy_(torch.randn(inside.shape, generator=random))
    return inside


def attended(q, k, v, **options) -> Attended:
    """The forward pass as its definition rounds it. options: of the oracles of gradients."""
    out, lse = attention_of_functions_float64(q, k, v, **options)
    return Attended(q, k, v, out.to(q.dtype), lse.to(torch.float32))


def packed(
    parts: list, options: list[dict], padding: int, hidden: int
) -> tuple[Attended, torch.Tensor, list]:
    """Sequences side by side -> (their forward pass, the gradient of out, lengths of queries and of keys).

    parts: q, k, v and the gradient of out of each sequence; options: of the oracles, of each
    padding: NaN rows after each sequence, which lengths leave out; hidden: keys at its end that a limit hides
    """
    forward = [
        attention_of_functions_float64(*of[:3], **own)
        for of, own in zip(parts, options, strict=True)
    ]
    with_out = [(*of, out.to(of[0].dtype)) for of, (out, _) in zip(parts, forward, strict=True)]
    q, k, v, dout, out = (
        torch.cat([pad(x[0], (0, 0, 0, 0, 0, padding), value=torch.nan) for x in of])
        for of in zip(*with_out, strict=True)
    )
    lse = torch.cat([pad(lse[0], (0, padding), value=torch.nan) for _, lse in forward], dim=1)
    counts = [torch.tensor([of[i].shape[1] for of in parts], dtype=torch.int32) for i in (0, 1)]
    offsets = [pad((x + padding).cumsum(0, dtype=torch.int32), (1, 0)) for x in counts]
    longest = [int(x.max()) + padding for x in counts]
    used = (*counts, counts[1] - hidden) if padding or hidden else ()
    return Attended(q, k, v, out, lse.float(), *offsets, *longest, *used), dout, counts


def run(
    q, k, v, dout, window=(None, None), dlse=None, scores: dict | None = None, sums: float | None = None,
    **options,
) -> tuple:  # fmt: skip
    """(dq, dk, dv) of the kernels, and dsink of calls that have one, on the emulator at its strictest level.

    scores: fields of Scores; options: what the oracles are told in their place
    sums: of of_kernels
    """
    of_call = Scores(q.shape[-1] ** -0.5, mask_of(window))._replace(**(scores or {}))
    of = attended(q, k, v, window_size=window, **options)
    found = of_kernels(of, dout, dlse, of_call, sums)
    return found if of_call.sink is not None else found[:3]


def of_kernels(of: Attended, dout, dlse, of_call: Scores, sums: float | None = None) -> tuple:
    """(dq, dk, dv, dsink) of the kernels.

    sums: a float32 number that dq, dk and dv are added to, and that is subtracted from them here
    """
    if sums is None:
        return gradients(of, dout, dlse, of_call)
    *added, dsink = gradients(of, dout, dlse, of_call, tuple(x + sums for x in float32_zeros(of)))
    return *(x - sums for x in added), dsink


def mask_of(window) -> masks.BoundMask:
    left, right = window
    kind = masks.Window(left is not None, right is not None)
    sizes = tuple(size for size in window if size is not None)
    return masks.BoundMask(kind, sizes) if sizes else masks.full()
