"""Caches whose blocks have scales (NVFP4, MXFP8) for the calls of `check --load` (trials.py).

Bytes of codes and scales are float32 numbers until they are stored, so that rows of no sequence can be NaN. There codes
are then 0, and scales NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from cute_fa4 import mxfp8, nvfp4
from cute_fa4.dtypes import DTYPES
from cute_fa4.layouts import cache_scales

Rows = list[torch.Tensor]  # of each sequence


class Blocks(NamedTuple):
    """K or V. meant: values that codes and scales mean, in float32."""

    codes: Rows
    scales: Rows
    meant: Rows
    dtypes: tuple[torch.dtype, torch.dtype]


def drawn(kv_dtype: str, rows: Rows) -> Blocks:
    """Rows of one tensor, (tokens, heads, depth), as the cache holds them."""
    if DTYPES[kv_dtype].in_byte > 1:
        quantized = [nvfp4.quantize(x, 1.0)[:2] for x in rows]
        meant = [nvfp4.dequantize(*one) for one in quantized]
    else:
        quantized = [mxfp8.quantise(x) for x in rows]
        meant = [mxfp8.dequantise(*one) for one in quantized]
    codes, scales = (
        [x.view(torch.uint8).float() for x in each] for each in zip(*quantized, strict=True)
    )
    of_codes, of_scales = (x.dtype for x in quantized[0])
    return Blocks(codes, scales, meant, (of_codes, of_scales))


def arguments(of: tuple[Blocks, Blocks], layout: str, stored: Callable[[Rows, Rows], dict]) -> dict:
    """The cache of a call. of: k and v; stored: puts rows of k and v where the call reads them."""
    k, v = of
    codes, scales = stored(k.codes, v.codes), stored(k.scales, v.scales)
    if layout == cache_scales.INTERLEAVED4:
        scales["v"] = nvfp4.interleaved(scales["v"].transpose(1, 2)).transpose(1, 2)
    found = dict(codes, v_block_scale_layout=layout)
    for name, (of_codes, of_scales) in (("k", k.dtypes), ("v", v.dtypes)):
        found[name] = codes[name].nan_to_num(0.0).byte().view(of_codes)
        unused = torch.tensor(math.nan).to(of_scales).view(torch.uint8).item()
        found[f"{name}_block_scale"] = scales[name].nan_to_num(unused).byte().view(of_scales)
    return found
