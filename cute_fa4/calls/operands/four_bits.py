"""Caches whose blocks have scales in tensors of their own: NVFP4 and MXFP8.

NVFP4   k torch.uint8, two numbers an element, so that a row has half as many elements as columns
MXFP8   k torch.float8_e4m3fn with k_block_scale of torch.float8_e8m0fnu, which tells it from a cache without blocks
"""

from __future__ import annotations

import torch

from cute_fa4.dtypes import BF16, DTYPES, E2M1, E8M0, MXE4M3, OPERANDS, names_of
from cute_fa4.sm100.blueprint.reach import DEPTHS_OF_CACHE_BLOCKS
from cute_fa4.sm100.choose.rows_of_tiles import dequantizes_rows, in_units

BYTES = DTYPES[E2M1.element].torch  # two numbers an element
PAIRS = E2M1.torch  # torch's own dtype of the same bytes, which few of its functions take
KEY_DTYPE_NAMES = names_of(OPERANDS) | {BYTES: E2M1.name}  # of k and v
OF_MX = MXE4M3.torch, E8M0.torch  # of k and of its scales
NAMES_OF_KEYS = (*KEY_DTYPE_NAMES.values(), MXE4M3.name)
DEPTHS_OF_ROWS = tuple(depth for depth in DEPTHS_OF_CACHE_BLOCKS if dequantizes_rows(depth, 0))
# Remedies where a head dim has no kernel.
PADDING = {
    "q": "of q and k together; pad both with zeros to the next of them and pass softmax_scale",
    "v": "of v and out; pad v with zeros to the next of them and drop these columns of out",
}


def columns_of(keys: torch.Tensor) -> int:
    """Numbers in a row of k or v."""
    return keys.shape[-1] * DTYPES[KEY_DTYPE_NAMES.get(keys.dtype, BF16.name)].in_byte


def has_mx_blocks(k, k_block_scale) -> bool:
    """Whether k is an MXFP8 cache."""
    dtypes = getattr(k, "dtype", None), getattr(k_block_scale, "dtype", None)
    return dtypes == OF_MX


def name_of_keys(k, k_block_scale=None) -> str:
    """The name of the dtype of k, a row of cute_fa4/dtypes.py."""
    return MXE4M3.name if has_mx_blocks(k, k_block_scale) else KEY_DTYPE_NAMES[k.dtype]


def check_columns(q, k, v) -> None:
    """Head dims over caches of 4 bits."""
    head_dim = q.shape[-1]
    if columns_of(k) != head_dim:
        raise ValueError(
            f"k: {k.shape[-1]} bytes a row, shape {tuple(k.shape)}, while q has head_dim {head_dim}; accepted: "
            f"{head_dim // 2}, two numbers a byte"
        )
    check_depths(head_dim, columns_of(v), "of 4 bits")


def check_depths(head_dim: int, head_dim_v: int, stored: str) -> None:
    """Head dims over caches whose blocks have scales. stored: what messages say of k and v."""
    of_v = DEPTHS_OF_CACHE_BLOCKS if in_units(head_dim, 0, E2M1.name) else DEPTHS_OF_ROWS
    for name, depth, accepted in (
        ("q", head_dim, DEPTHS_OF_CACHE_BLOCKS),
        ("v", head_dim_v, of_v),
    ):
        if depth not in accepted:
            also = f" with q of head_dim {head_dim}" if name == "v" else ""
            remedy = PADDING[name]
            if name == "v" and depth > max(accepted):
                remedy = f"of v and out; call once for each {max(accepted)} columns of v, v_block_scale and out"
            raise ValueError(
                f"{name}: head_dim {depth} over k and v {stored}{also}; accepted: "
                f"{' or '.join(map(str, accepted))}, {remedy}"
            )
