"""The running result of a rank: out and lse over the keys processed so far, into which parts are merged in turn."""

from __future__ import annotations

import math

import torch

from cute_fa4.distributed.geometry import Call


def queries_of(call: Call, q: torch.Tensor) -> torch.Tensor:
    """The rows of a call, of (batch, rows, heads, head_dim) or (rows, heads, head_dim)."""
    return q.narrow(-3, call.q_at, call.q_rows)


def keys_of(call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same for keys and what has their rows."""
    return tuple(x.narrow(-3, call.k_at, call.k_rows) for x in tensors)


class Running:
    """A float32 state and memory for one part. The merge of the two overwrites the state.

    The initial state is that of a query without keys: out 0 and lse -inf, or the sink, which is thus counted once.
    """

    def __init__(self, q: torch.Tensor, depth_v: int, sink: torch.Tensor | None, backend):
        """q: (batch, rows, heads, head_dim), or (rows, heads, head_dim); depth_v: head dim of v and out."""
        self.backend, self.q, self.packed = backend, q, q.dim() == 3
        shape = (1, *q.shape) if self.packed else q.shape
        batch, rows, heads, _ = shape
        of_out = 2, batch, rows, heads, depth_v
        self.outs = torch.empty(of_out, dtype=torch.float32, device=q.device)
        self.lses = torch.empty((2, batch, heads, rows), dtype=torch.float32, device=q.device)
        self.outs[0].zero_()
        if sink is None:
            self.lses[0].fill_(-math.inf)
        else:
            self.lses[0].copy_(sink[:, None].expand(heads, rows))
        self.is_empty = sink is None

    def attend(self, k, v, call: Call, scale: float, softcap: float) -> None:
        """Attention of a call, merged into the state. k, v: tensors that the call's row offsets refer to."""
        q, (k, v) = queries_of(call, self.q), keys_of(call, k, v)
        rows = slice(call.q_at, call.q_at + call.q_rows)
        if self.packed and call.ends is None:
            q, k, v = q[None], k[None], v[None]
        self.add(rows, *self.backend.attention(q, k, v, call, scale, softcap))

    def add(self, rows: slice, out: torch.Tensor, lse: torch.Tensor) -> None:
        if out.dim() == 3:
            out, lse = out[None], lse[None]
        outs, lses = self.outs[:, :, rows], self.lses[:, :, :, rows]
        alone = self.is_empty and out.shape == self.outs.shape[1:]
        outs[0 if alone else 1].copy_(out)
        lses[0 if alone else 1].copy_(lse)
        if not alone:
            self.backend.merge(outs, lses)
        self.is_empty = False

    def result(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(out in the dtype of q, lse), memory of their own."""
        out, lse = self.outs[0].to(self.q.dtype, copy=True), self.lses[0].clone()
        return (out[0], lse[0]) if self.packed else (out, lse)
