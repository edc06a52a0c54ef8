"""Caches of 4 bits (NVFP4): two numbers an element, so that a row of k or v has half as many elements as columns."""

from __future__ import annotations

import torch

from cute_fa4.dtypes import BF16, DTYPES, E2M1, OPERANDS, names_of
from cute_fa4.sm100.blueprint.reach import DEPTHS_OF_FP4
from cute_fa4.sm100.choose.which_kernel import dequantizes_rows, in_units

BYTES = DTYPES[E2M1.element].torch  # two numbers an element
PAIRS = E2M1.torch  # torch's own dtype of the same bytes, which few of its functions take
KEY_DTYPE_NAMES = names_of(OPERANDS) | {BYTES: E2M1.name}  # of k and v
DEPTHS_OF_ROWS = tuple(depth for depth in DEPTHS_OF_FP4 if dequantizes_rows(depth, 0))
# Remedies where a head dim has no kernel.
PADDING = {
    "q": "of q and k together; pad both with zeros to the next of them and pass softmax_scale",
    "v": "of v and out; pad v with zeros to the next of them and drop these columns of out",
}


def columns_of(keys: torch.Tensor) -> int:
    """Numbers in a row of k or v."""
    return keys.shape[-1] * DTYPES[KEY_DTYPE_NAMES.get(keys.dtype, BF16.name)].in_byte


def check_columns(q, k, v) -> None:
    """Head dims over caches of 4 bits."""
    head_dim = q.shape[-1]
    if columns_of(k) != head_dim:
        raise ValueError(
            f"k: {k.shape[-1]} bytes a row, shape {tuple(k.shape)}, while q has head_dim {head_dim}; accepted: "
            f"{head_dim // 2}, two numbers a byte"
        )
    of_v = DEPTHS_OF_FP4 if in_units(head_dim, 0, E2M1.name) else DEPTHS_OF_ROWS
    for name, depth, accepted in (("q", head_dim, DEPTHS_OF_FP4), ("v", columns_of(v), of_v)):
        if depth not in accepted:
            also = f" with q of head_dim {head_dim}" if name == "v" else ""
            remedy = PADDING[name]
            if name == "v" and depth > max(accepted):
                remedy = f"of v and out; call once for each {max(accepted)} columns of v, v_block_scale and out"
            raise ValueError(
                f"{name}: head_dim {depth} over k and v of 4 bits{also}; accepted: "
                f"{' or '.join(map(str, accepted))}, {remedy}"
            )
