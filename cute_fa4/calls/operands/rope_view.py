"""k_rope of a checked call, as the kernel takes it, and the same for later calls with tensors like these."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4.calls.operands.tensors import DTYPE_NAMES, FP8
from cute_fa4.operands import NAMES, ROPE, CallTensors


@dataclass(frozen=True)
class Rope:
    """k_rope as the kernel takes it, with one head and strides that a descriptor can hold.

    depth       its columns
    page_size   rows of its pages; 0: its rows are those of k
    of_keys     dtype of k
    dtype       the name of its own dtype, where that differs from k: 8 bits under 16, or 16 beside 8; None: that of k
    of_q        the columns of q that it multiplies, where q has them in a separate tensor
    scales      float32 of its rows, of any strides; None: there are none
    """

    view: torch.Tensor
    page_table: torch.Tensor | None
    of_keys: torch.dtype
    of_q: torch.Tensor | None = None
    scales: torch.Tensor | None = None

    @property
    def dtype(self) -> str | None:
        has_own = self.view.dtype != self.of_keys
        return DTYPE_NAMES[self.view.dtype] if has_own else None

    @property
    def dtypes(self) -> dict:
        """Configuration fields for it and for its scales."""
        scaled = self.scales is not None
        return {"rope_dtype": self.dtype, "scale_dtype": "f32" if scaled else None}

    @property
    def is_dequantized(self) -> bool:
        """Whether it has 8 bits while k has 16."""
        return self.view.dtype in FP8 and self.of_keys not in FP8

    @property
    def depth_of_q(self) -> int:
        """Columns that q lacks."""
        return 0 if self.of_q is None else self.depth

    @property
    def depth(self) -> int:
        return self.view.shape[-1]

    @property
    def page_size(self) -> int:
        return 0 if self.page_table is None else self.view.shape[1]

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        tensors = self.view, self.page_table, self.of_q, self.scales
        return dict(zip(NAMES[ROPE], tensors, strict=True))


class RopeView:
    """The same for every call with tensors like these."""

    def __init__(self, rope: Rope):
        self.layout = rope.view.shape, rope.view.stride()
        self.of_q = None if rope.of_q is None else (rope.of_q.shape, rope.of_q.stride())
        self.scales = None if rope.scales is None else (rope.scales.shape, rope.scales.stride())

    def of(self, tensors: CallTensors) -> tuple[torch.Tensor, ...]:
        """Tensors that the kernel takes."""
        k_rope, table, q_rope, scales = tensors.of(ROPE)
        view = k_rope.as_strided(*self.layout)
        found = (view,) if table is None else (view, table)
        if self.of_q is not None:
            found = (*found, q_rope.as_strided(*self.of_q))
        return found if self.scales is None else (*found, scales.as_strided(*self.scales))
