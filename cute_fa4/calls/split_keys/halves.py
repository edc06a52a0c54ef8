"""Values of more than 256 columns, of 8 bits more than 128: a launch for either half of the columns of v and out.

    q k^T     (rows, keys)                 512 columns of q and k, made twice
    out       (rows, 0 .. 255)    launch 1: v[..., :256]
              (rows, 256 .. 511)  launch 2: v[..., 256:]       the same probabilities, bit for bit

128 rows of 256 columns in float32 are half of tensor memory, S in two buffers is the other half. So S is computed
twice, which costs a third of the launch's products; nothing is exchanged, and everything that the kernel of 256 columns
runs (pages, splits, masks, sinks, log-sum-exp) holds for more. sm100/wide/ has the kernel.

For 8 bits it is the kernel of 128 columns of V (sm100/two_tiles/ and those for fewer rows): S0, S1 and an O of 128
columns each are tensor memory. S of 256 columns of 8 bits costs the tensor core what 128 of 16 do. Where 16-bit q
meets 8-bit k in units of columns (sm100/wide/dequantized/), one launch has all 256.
"""

from __future__ import annotations

from cute_fa4.calls.operands.four_bits import BYTES
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, FP8
from cute_fa4.calls.plan import Plan, Results, Views
from cute_fa4.operands import ROWS, CallTensors
from cute_fa4.sm100.choose.choose_config import columns_of_v
from cute_fa4.sm100.choose.rows_of_tiles import in_units


def comes_in_halves(q, v, rope: int) -> bool:
    """Whether v has more columns than a kernel. rope: columns of k in a separate tensor."""
    if v.dtype is BYTES:
        return False
    stored = None if v.dtype == q.dtype else DTYPE_NAMES.get(v.dtype)
    of_8_bits = v.dtype in FP8 and not in_units(q.shape[-1], rope, stored)
    return columns_of_v(v.shape[-1], of_8_bits) < v.shape[-1]


def half_of(x, first: bool):
    """Half of the columns of v or out."""
    middle = x.shape[-1] // 2
    return x[..., :middle] if first else x[..., middle:]


class HalvesPlan(Plan):
    """Two launches of a plan for half of the columns."""

    __slots__ = ("half",)

    def __init__(self, half: Plan, results: Results, tensors: CallTensors):
        """tensors: of the call, of which the extents of q, k, v and out must not meet."""
        numbers = half.scale, half.seqlen_q, half.sizes, half.in_cache, half.skips
        views = Views(tensors.of(ROWS), tensors.of(ROWS))
        super().__init__(half.function, numbers, results, views, half.repeats, half.small_bytes)
        self.half = half

    @property
    def functions(self) -> tuple:
        return (*super().functions, *self.half.functions)

    def __call__(self, tensors: CallTensors):
        v, out = tensors.v, tensors.out
        if self.append is not None:
            self.append(tensors)
        if out is None:
            out = self.results.new_out(tensors.q)
        for first in (False, True):  # they give the same log-sum-exp
            halves = {"v": half_of(v, first), "out": half_of(out, first)}
            found = self.half(tensors._replace(**halves))
        return (out, found[1]) if isinstance(found, tuple) else out
