"""Conversions of FlashInfer's arguments and results, common to its functions."""

from __future__ import annotations

import math
from typing import Any

import torch

from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import BYTES, OF_MX
from cute_fa4.calls.operands.tensors import FP8, check_is_tensor
from cute_fa4.dtypes import E2M1, MXE4M3
from cute_fa4.layouts.cache_scales import INTERLEAVED4, LINEAR
from cute_fa4.system.messages import shown

LAYOUTS = ("NHD", "HND")
# The order of the block scales of V in an NVFP4 cache (layouts/cache_scales.py), by the backend that reads it.
V_SCALES = {"trtllm-gen": INTERLEAVED4, "fa2": LINEAR}


def check_layout(kv_layout) -> None:
    if kv_layout not in LAYOUTS:
        raise ValueError(f"kv_layout: {shown(kv_layout)}; accepted: 'NHD', 'HND'")


def caches_of(name: str, cache) -> tuple[torch.Tensor, torch.Tensor]:
    """(K, V) in pages: a pair, or one tensor (num_pages, 2, ...), or (num_pages, 1, ...) if both are the same."""
    if isinstance(cache, (tuple, list)):
        if len(cache) != 2:
            raise ValueError(f"{name}: {len(cache)} tensors; accepted: two, keys and values")
        for each in cache:
            check_is_tensor(name, each)
        return tuple(cache)
    check_is_tensor(name, cache)
    if cache.dim() != 5 or cache.shape[1] not in (1, 2):
        raise ValueError(
            f"{name}: shape {tuple(cache.shape)}; accepted: (num_pages, 2, ...) of five dimensions, or two tensors"
        )
    return cache[:, 0], cache[:, -1]


def blocks_of(caches: tuple, kv_cache_sf, backend, auto: str) -> dict:
    """The block scales of an NVFP4 or MXFP8 cache, as the public functions take them; {} without.

    caches       (K, V); kv_cache_sf has the scales of both, as a pair or as one tensor, like a cache
    backend      whose order the scales of V have; auto: the one that FlashInfer takes for "auto"
    """
    k, v = (getattr(x, "dtype", None) for x in caches)
    if kv_cache_sf is None and BYTES not in (k, v):
        return {}
    of_mx, scale_of_mx = OF_MX
    if kv_cache_sf is None or (k, v) not in ((BYTES, BYTES), (of_mx, of_mx)):
        found = "None" if kv_cache_sf is None else "given"
        raise TypeError(
            f"kv_cache_sf: {found} with keys of {k} and values of {v}; accepted: the scales of each {E2M1.block} "
            f"numbers of keys and values of {BYTES} (NVFP4), or of each {MXE4M3.block} of {of_mx} (MXFP8); None over "
            "others"
        )
    of_k, of_v = caches_of("kv_cache_sf", kv_cache_sf)
    if k is of_mx:
        for scale in (of_k, of_v):
            if scale.dtype is not scale_of_mx:
                raise TypeError(
                    f"kv_cache_sf: dtype {scale.dtype} over a cache of {of_mx}; accepted: {scale_of_mx} (MXFP8), or "
                    "None with one scale of all numbers in bmm1_scale or k_scale"
                )
        return {"k_block_scale": of_k, "v_block_scale": of_v}
    if backend in ("auto", None):
        backend = auto
    if backend not in V_SCALES:
        raise NotImplementedError(
            f"backend: {shown(backend)} with kv_cache_sf; accepted: {' or '.join(map(repr, V_SCALES))}, which say in "
            "which order the scales of V are, or 'auto'"
        )
    return {
        "k_block_scale": of_k,
        "v_block_scale": of_v,
        "v_block_scale_layout": V_SCALES[backend],
    }


def as_int32(name: str, tensor) -> torch.Tensor:
    """Lengths and pages as int32; uint32 is accepted."""
    check_is_tensor(name, tensor)
    return tensor.view(torch.int32) if tensor.dtype is torch.uint32 else tensor


def sink_of(sinks) -> torch.Tensor | None:
    """One tensor (heads,), or a list of one."""
    if isinstance(sinks, (list, tuple)):
        if len(sinks) != 1:
            raise ValueError(f"sinks: {len(sinks)} tensors; accepted: one, (heads,)")
        (sinks,) = sinks
    return sinks


def scales_of(q, k, of_scores, of_values, names: tuple[str, str]) -> dict:
    """softmax_scale and descales of a call with these scales of scores and values.

    A number becomes the softmax scale. A tensor (one float32 on the device, without synchronization) becomes the
    scale of an 8-bit q, or of quantized keys. names: of the two arguments, for errors.
    """
    scales: dict[str, Any] = {}
    if isinstance(of_scores, torch.Tensor):
        if not _is_quantized(k):
            raise NotImplementedError(_tensor_with_16_bits(names[0]))
        scales["q_descale" if _has_8_bits(q) else "k_descale"] = one_number(names[0], of_scores)
        scales["softmax_scale"] = 1.0
    else:
        scales["softmax_scale"] = of_scores
    if isinstance(of_values, torch.Tensor):
        if not _is_quantized(k):
            raise NotImplementedError(_tensor_with_16_bits(names[1]))
        scales["v_descale"] = one_number(names[1], of_values)
    elif of_values != 1.0:
        if not _is_quantized(k):
            raise NotImplementedError(
                f"{names[1]}: {shown(of_values)} with values of 16 bits; accepted: 1.0"
            )
        scales["v_descale"] = torch.full((1,), float(of_values), device=q.device)
    return scales


def _has_8_bits(x) -> bool:
    return getattr(x, "dtype", None) in FP8


def _is_quantized(x) -> bool:
    return getattr(x, "dtype", None) in (*FP8, BYTES)


def _tensor_with_16_bits(name: str) -> str:
    return f"{name}: a tensor over a cache of 16 bits, which has no scale; accepted: a number"


def one_number(name: str, scale: torch.Tensor) -> torch.Tensor:
    if scale.numel() != 1 or scale.dtype is not torch.float32:
        raise ValueError(
            f"{name}: shape {tuple(scale.shape)}, dtype {scale.dtype}; accepted: one number, torch.float32"
        )
    return scale.reshape(1)


def out_of(out, out_dtype, q, depth: int) -> torch.Tensor | None:
    """The output tensor; None: the call allocates one of q's dtype."""
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise NotImplementedError(f"out_dtype: {shown(out_dtype)}; accepted: a torch.dtype")
    if out is None:
        dtype = q.dtype if out_dtype is None else out_dtype
        given = dtype is not q.dtype or dtype in FP8
        return q.new_empty((*q.shape[:-1], depth), dtype=dtype) if given else None
    check_is_tensor("out", out)
    if out_dtype is not None and out.dtype is not out_dtype:
        raise TypeError(f"out: dtype {out.dtype}; accepted: {out_dtype}, as asked for")
    return out


def base_2(lse: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
    """Natural (heads, tokens) -> (tokens, heads) to base 2."""
    rows = lse.transpose(-1, -2)
    if into is None:
        return rows * math.log2(math.e)
    if into.dtype is not torch.float32 or into.numel() != rows.numel():
        of_tokens = (rows.shape[:-1].numel(), rows.shape[-1])
        raise ValueError(
            f"lse: shape {tuple(into.shape)}, dtype {into.dtype}; accepted: {of_tokens}, torch.float32"
        )
    return torch.mul(rows.reshape(into.shape), math.log2(math.e), out=into)


def window_of(window_left, window_right) -> tuple[int | None, int | None]:
    """-1 or None: open."""
    for name, side in (("window_left", window_left), ("window_right", window_right)):
        if side is not None:
            check_number(name, side)
    left, right = (None if x is None or x < 0 else x for x in (window_left, window_right))
    return left, right


def right_of(causal) -> int:
    """window_right of FlashInfer's causal."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal: {shown(causal)}; accepted: True or False")
    return 0 if causal else -1


def check_number(name: str, value) -> None:
    if not hasattr(value, "__index__") or isinstance(value, (bool, torch.Tensor)):
        raise TypeError(f"{name}: {shown(value)}; accepted: an int")


def check_no_scale_of_out(o_scale, instead: str) -> None:
    """A tensor is not read, which would wait for the device."""
    if o_scale is not None and (isinstance(o_scale, torch.Tensor) or o_scale != 1.0):
        raise NotImplementedError(
            f"o_scale: {shown(o_scale)}; accepted: 1.0; multiply {instead} instead"
        )


def check_table(block_tables, uses_shared_paged_kv_idx) -> torch.Tensor:
    """One table of pages for keys and values."""
    check_neutral(uses_shared_paged_kv_idx=uses_shared_paged_kv_idx)
    return as_int32("block_tables", block_tables)
