"""Backends that compute a part: the kernel of this package, or torch's own attention.

A backend has attention(q, k, v, call, scale, softcap) -> (out, lse), float32; merge(outs, lses), which writes the
merge of two parts over the first; and for caches decode(q, cache, options, softcap) -> (out, lse) and merged(outs,
lses, dtype). For calls that want gradients it has check_gradients(q, k, v, sink), and add_gradients(queries, k, v,
call, scale, softcap, sums), which adds the gradients of a part to the float32 sums (dq, dk, dv). "cute_fa4" is the
kernel, on a GPU or the emulator. "sdpa" is for tests of the surrounding code, and for machines that cannot run the
kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from cute_fa4.calls import backward
from cute_fa4.calls.append import names_of_caches
from cute_fa4.calls.operands.tensors import (
    DENSE,
    PACKED,
    check,
    check_no_gradient,
    check_one_device,
    check_shapes,
)
from cute_fa4.calls.prepare import checked as check_call
from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.calls.repeat import attend
from cute_fa4.calls.request import Choices, Numbers, Options
from cute_fa4.calls.split_keys.merge import merge_into, merged
from cute_fa4.distributed.geometry import Call
from cute_fa4.masks import resolve_mask
from cute_fa4.operands import CallTensors
from cute_fa4.operators import gradients
from cute_fa4.sm100.blueprint.score_mods import ScoreMod, soft_cap
from cute_fa4.system.devices import target_of

aten = torch.ops.aten

AXES = {3: PACKED, 4: DENSE}


class Queries(NamedTuple):
    """Queries, their results over the keys of all ranks, and the gradients of these results; dlse may be None.

    The weights of a part are exp(scores - lse) and their gradients weights * (dout v^T - rowsum(dout * out) + dlse), so
    with the results over all keys the gradients of parts add up to those of the whole.
    """

    q: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor
    dout: torch.Tensor
    dlse: torch.Tensor | None

    def each(self, of_rows: Callable, of_lses: Callable) -> Queries:
        """of_rows(x) of q, out and dout, of_lses(x) of lse and dlse."""
        q, out, dout = map(of_rows, (self.q, self.out, self.dout))
        dlse = None if self.dlse is None else of_lses(self.dlse)
        return Queries(q, out, of_lses(self.lse), dout, dlse)


class Kernel:
    """The kernel of this package: results in float32, merged by sm100/combine."""

    def check(self, q, k, v, softcap: float) -> None:
        """Check everything that a call would check, before any data is sent; nothing is launched."""
        axes = AXES[q.dim()]
        check(q, k, v, None, axes, axes)
        target_of(q.device)

    def attention(self, q, k, v, call: Call, scale: float, softcap: float) -> tuple:
        tensors, longest = CallTensors(q, k, v), None
        if call.ends is not None:
            of_q, of_k, longest, _ = offsets(call, q.device)
            tensors = tensors._replace(cu_seqlens_q=of_q, cu_seqlens_k=of_k)
        causal = call.is_causal
        window = (None, None) if causal else (call.band.left, call.band.right)
        return partial_attention(
            tensors,
            window=window,
            causal=causal,
            scale=scale,
            softcap=softcap,
            max_seqlen_q=longest,
        )

    def check_gradients(self, q, k, v, sink) -> None:
        """NotImplementedError, by name, for what has no backward pass."""
        gradients.check({"q": q, "k": k, "v": v, "learnable_sink": sink, "score_mod": ""})

    def add_gradients(
        self, of: Queries, k, v, call: Call, scale: float, softcap: float, sums: tuple
    ) -> None:
        rows: tuple = ()
        if call.ends is not None:
            rows = offsets(call, of.q.device)
        causal = call.is_causal
        window = (None, None) if causal else (call.band.left, call.band.right)
        cap = soft_cap(softcap) if softcap else None
        scores = backward.Scores(scale, resolve_mask(causal, window, None), score_mod=cap)
        attended = backward.Attended(of.q, k, v, of.out, of.lse, *rows)
        backward.gradients(attended, of.dout, of.dlse, scores, sums)

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> None:
        merge_into(outs, lses, outs[0], lses[0])

    def merged(self, outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype) -> tuple:
        return merged(outs, lses, dtype)

    def check_cache(self, q, cache, softcap: float) -> None:
        """The checks of flash_attn_with_kvcache, including the contents of CPU tensors."""
        target_of(q.device)
        with names_of_caches():
            tensors = _with_cache(q, cache)
            check_call(tensors, max_seqlen_q=cache.max_seqlen_q, kv_layout=cache.kv_layout)

    def decode(self, q, cache, options: Options, softcap: float) -> tuple:
        """Attention to the keys of a rank (decode.Cache)."""
        tensors = _with_cache(q, cache)
        if cache.masked:
            tensors = tensors._replace(aux_tensors=[cache.place, cache.first])
        return partial_attention(
            tensors,
            scale=options.softmax_scale,
            softcap=softcap,
            max_seqlen_q=cache.max_seqlen_q,
            num_splits=options.num_splits,
            kv_layout=cache.kv_layout,
            mask_mod=SHOWN if cache.masked else None,
        )


def _with_cache(q, cache) -> CallTensors:
    """Queries over the keys of a rank."""
    return CallTensors(
        *(q, cache.k, cache.v),
        cu_seqlens_q=cache.cu_seqlens_q,
        seqused_k=cache.lengths,
        page_table=cache.page_table,
    )


def _shown(batch, head, q_idx, kv_idx, aux):
    """mask_mod for keys on several ranks: maps row kv_idx of this rank to its position in the sequence."""
    interleave = aux[0][0]
    turn = kv_idx // interleave
    key = turn * aux[0][1] + aux[0][2] + (kv_idx - turn * interleave)
    query = aux[1][batch] + q_idx
    return (key >= query - aux[0][3]) & (key <= query + aux[0][4])


SHOWN = ScoreMod.of(_shown)


def partial_attention(
    tensors: CallTensors, *, window=(None, None), causal=False, scale, softcap=0.0, max_seqlen_q=None,
    num_splits=1, kv_layout="NHD", mask_mod=None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(out, lse), both float32, of a call as flash_attn_varlen_func makes it."""
    numbers = Numbers(scale, causal, softcap, max_seqlen_q, None)
    choices = Choices(
        mask=None,
        num_splits=num_splits,
        tokens_per_split=None,
        pack_gqa=None,
        score_mod=None,
        mask_mod=mask_mod,
        block_sparse_tensors=None,
        kv_layout=kv_layout,
        seqused_k_excludes_new=False,
        return_lse=True,
        in_float32=True,
    )
    return attend(prepare_attention, tensors, (window, tuple(numbers), tuple(choices)))


class TorchAttention:
    """torch's own attention, with its log-sum-exp: on a GPU torch's FlashAttention, on the CPU its counterpart.

    On the CPU everything is float32, also inputs, so that errors of sending and merging show in the last bits.
    """

    def check(self, q, k, v, softcap: float) -> None:
        _check_without_kernel({"q": q, "k": k, "v": v}, softcap)
        axes = AXES[q.dim()]
        check_shapes(q, k, v, axes, axes)

    def attention(self, q, k, v, call: Call, scale: float, softcap: float) -> tuple:
        if q.shape[-1] != v.shape[-1]:
            return self._of_two_depths(q, k, v, call, scale, softcap)
        if q.device.type == "cuda":
            return _flash_attention(q, k, v, call, scale)
        if call.ends is None:
            return _attention_on_cpu(q, k, v, call.band, scale)
        outs, lses, first_q, first_k = [], [], 0, 0
        for q_end, k_end in call.ends:
            rows = q[None, first_q:q_end], k[None, first_k:k_end], v[None, first_k:k_end]
            out, lse = _attention_on_cpu(*rows, call.band, scale)
            outs.append(out[0])
            lses.append(lse[0])
            first_q, first_k = q_end, k_end
        return torch.cat(outs), torch.cat(lses, dim=-1)

    def _of_two_depths(self, q, k, v, call: Call, scale: float, softcap: float) -> tuple:
        """torch's attention has one head dim: zeros fill the smaller one."""
        depth = max(q.shape[-1], v.shape[-1])
        wide = [torch.nn.functional.pad(x, (0, depth - x.shape[-1])) for x in (q, k, v)]
        out, lse = self.attention(wide[0], wide[1], wide[2], call, scale, softcap)
        return out[..., : v.shape[-1]], lse

    def check_gradients(self, q, k, v, sink) -> None:
        """Every call that check() accepts has gradients."""

    def add_gradients(
        self, of: Queries, k, v, call: Call, scale: float, softcap: float, sums: tuple
    ) -> None:
        """By their definition, in float32: all scores of a head are in memory."""
        for total, one in zip(sums, self._gradients(of, k, v, call, scale), strict=True):
            total += one

    def _gradients(self, of: Queries, k, v, call: Call, scale: float) -> tuple:
        if call.ends is None:
            return _gradients(of, k, v, call.band, scale)
        found, first_q, first_k = [], 0, 0
        for q_end, k_end in call.ends:
            part = of.each(partial(_rows, first_q, q_end, -3), partial(_rows, first_q, q_end, -1))
            k_part, v_part = (_rows(first_k, k_end, -3, x) for x in (k, v))
            found.append(_gradients(part, k_part, v_part, call.band, scale))
            first_q, first_k = q_end, k_end
        return tuple(torch.cat([x[0] for x in parts]) for parts in zip(*found, strict=True))

    def merge(self, outs: torch.Tensor, lses: torch.Tensor) -> None:
        out, lse = merged_by_torch(outs, lses)
        outs[0], lses[0] = out, lse

    def merged(self, outs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype) -> tuple:
        out, lse = merged_by_torch(outs, lses)
        return out.to(dtype), lse

    def check_cache(self, q, cache, softcap: float) -> None:
        _check_without_kernel({"q": q, "k_cache": cache.k, "v_cache": cache.v}, softcap)

    def decode(self, q, cache, options: Options, softcap: float) -> tuple:
        """Attention to the keys of a rank (decode.Cache), by its definition: matrix products in float32."""
        return _cached_attention(q, cache, options.softmax_scale)


def _check_without_kernel(tensors: dict, softcap: float) -> None:
    check_one_device(tensors)
    check_no_gradient(tensors)
    dtype, on_cpu = tensors["q"].dtype, tensors["q"].device.type == "cpu"
    known = (torch.bfloat16, torch.float16, *((torch.float32,) if on_cpu else ()))
    for name, tensor in tensors.items():
        if tensor.dtype != dtype or dtype not in known:
            raise TypeError(
                f"{name}: dtype {tensor.dtype} while q is {dtype}; accepted: torch.bfloat16 or torch.float16 for all, "
                "or torch.float32 on the CPU"
            )
    if softcap:
        raise NotImplementedError(
            f"softcap: {softcap} with backend='sdpa', which has none; accepted: backend='cute_fa4'"
        )


def merged_by_torch(outs: torch.Tensor, lses: torch.Tensor) -> tuple:
    """The same merge in torch's own operations, in float32."""
    largest = lses.amax(0)
    largest = torch.where(largest == -math.inf, 0.0, largest)
    weights = torch.exp(torch.where(lses == largest, 0.0, lses - largest))  # both may be +inf
    total = weights.sum(0)
    shares = torch.where(total == 0, 0.0, weights / total).movedim(-1, -2)[..., None]
    # The values of a part without keys are not read.
    out = torch.where(shares == 0, 0.0, outs.float() * shares).sum(0)
    return out, largest + torch.log(total)


def _attention_on_cpu(q, k, v, band, scale) -> tuple:
    mask = None
    if band.left is not None or band.right is not None:
        shown = _shown_by(band, q.shape[1], k.shape[1], q.device)
        mask = torch.zeros(shown.shape).masked_fill(~shown, -math.inf)
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=mask, scale=scale
    )
    return out.transpose(1, 2), lse


def _rows(first: int, end: int, dim: int, x: torch.Tensor) -> torch.Tensor:
    """Rows of a packed tensor as a batch of one sequence."""
    return x.narrow(dim, first, end - first)[None]


def _shown_by(band, m: int, n: int, device) -> torch.Tensor:
    """(m, n) bool: which keys a query sees."""
    distance = torch.arange(n, device=device)
    distance = distance - (torch.arange(m, device=device)[:, None] + n - m)
    shown = torch.ones(m, n, dtype=torch.bool, device=device)
    if band.left is not None:
        shown &= distance >= -band.left
    if band.right is not None:
        shown &= distance <= band.right
    return shown


def _gradients(of: Queries, k, v, band, scale: float) -> tuple:
    """(dq, dk, dv), float32, of (batch, rows, heads, head_dim)."""
    group = of.q.shape[2] // k.shape[2]
    q, out, dout = (x.float().transpose(1, 2) for x in (of.q, of.out, of.dout))
    k, v = (x.float().transpose(1, 2).repeat_interleave(group, dim=1) for x in (k, v))
    shown = _shown_by(band, q.shape[2], k.shape[2], q.device)
    lse = of.lse.masked_fill(of.lse == -math.inf, math.inf)[..., None]
    weights = torch.exp(q @ k.mT * scale - lse).masked_fill(~shown, 0.0)
    delta = (dout * out).sum(-1, keepdim=True)
    if of.dlse is not None:
        delta = delta - of.dlse[..., None]
    changes = weights * (dout @ v.mT - delta) * scale
    of_keys = (changes.mT @ q, weights.mT @ dout)
    dk, dv = (x.unflatten(1, (-1, group)).sum(2).transpose(1, 2) for x in of_keys)
    return (changes @ k).transpose(1, 2), dk, dv


def _cached_attention(q, cache, scale: float) -> tuple:
    k, v = (_rows_of_cache(x, cache) for x in (cache.k, cache.v))
    sequences, q_index = _rows_of_queries(q, cache)
    rows = q.reshape(-1, *q.shape[-2:]).float()
    group = q.shape[-2] // k.shape[-2]
    k, v = (x.float().repeat_interleave(group, dim=2)[sequences] for x in (k, v))
    scores = torch.einsum("rhd,rnhd->rhn", rows, k) * scale
    j = torch.arange(k.shape[1], device=q.device)
    seen = j < cache.lengths[sequences, None]
    if cache.masked:
        interleave, turn, begin, left, right = cache.place
        key = j // interleave * turn + begin + j % interleave
        query = (cache.first[sequences] + q_index)[:, None]
        seen &= (key >= query - left) & (key <= query + right)
    scores = scores.masked_fill(~seen[:, None], -math.inf)
    lse = torch.logsumexp(scores, -1)
    shares = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    # Hidden rows may hold anything.
    v = torch.where(seen[:, :, None, None], v, 0.0)
    out = torch.einsum("rhn,rnhd->rhd", shares, v).reshape(*q.shape[:-1], -1)
    return out, lse.reshape(q.shape[:-1]).movedim(-1, -2).contiguous()


def _rows_of_cache(x: torch.Tensor, cache) -> torch.Tensor:
    """(batch, rows, heads, head_dim)."""
    if cache.page_table is None:
        return x
    x = x if cache.kv_layout == "NHD" else x.transpose(1, 2)
    return x[cache.page_table.clamp(0, x.shape[0] - 1).long()].flatten(1, 2)


def _rows_of_queries(q, cache) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row of q: its sequence, and its index there."""
    if cache.cu_seqlens_q is None:
        rows = torch.arange(q.shape[0] * q.shape[1], device=q.device)
        return rows // q.shape[1], rows % q.shape[1]
    rows = torch.arange(q.shape[0], device=q.device, dtype=torch.int32)
    last = cache.cu_seqlens_q.shape[0] - 2
    sequences = (torch.searchsorted(cache.cu_seqlens_q, rows, right=True) - 1).clamp(0, last)
    return sequences, rows - cache.cu_seqlens_q[sequences]


def _flash_attention(q, k, v, call: Call, scale) -> tuple:
    packed: tuple = (None, None, q.shape[1], k.shape[1])
    if call.ends is not None:
        packed = offsets(call, q.device)
    left, right = call.band.left, call.band.right
    windows = {}
    if not call.is_causal and (left is not None or right is not None):
        windows = {
            "window_size_left": -1 if left is None else left,
            "window_size_right": -1 if right is None else right,
        }
    q, k, v = (x.contiguous() for x in (q, k, v))
    out, lse, *_ = aten._flash_attention_forward(
        q, k, v, *packed, 0.0, call.is_causal, False, scale=scale, **windows
    )
    return out.float(), lse


def offsets(call: Call, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """cu_seqlens of queries and keys, and the longest document of each."""
    ends = tuple((0, *side) for side in zip(*(call.ends or ()), strict=True))
    longest = (max(b - a for a, b in itertools.pairwise(side)) for side in ends)
    both = torch.tensor(ends, dtype=torch.int32)
    if device.type == "cuda":
        both = both.pin_memory().to(device, non_blocking=True)
    return both[0], both[1], *longest


BACKENDS = {"cute_fa4": Kernel(), "sdpa": TorchAttention()}


def backend_of(backend):
    """A backend by its name, or an object with its methods."""
    if isinstance(backend, str):
        if backend not in BACKENDS:
            raise ValueError(
                f"backend: {backend!r}; accepted: {', '.join(map(repr, BACKENDS))}, or an object with check, "
                "attention and merge"
            )
        return BACKENDS[backend]
    for method in ("check", "attention", "merge"):
        if not callable(getattr(backend, method, None)):
            raise TypeError(
                f"backend: {type(backend).__name__} without {method}; accepted: "
                f"{', '.join(map(repr, BACKENDS))}, or an object with check, attention and merge"
            )
    return backend
