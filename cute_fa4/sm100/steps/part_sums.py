"""The merge of partial results of a row, part after part, with a running maximum of their log-sum-exps.

With O_p and L_p the result and log-sum-exp of part p, M the maximum so far, T the sum of weights and A that of results:

    M' = max(M, L_p)    a = e^(M - M')    b = e^(L_p - M')    T = a T + b    A = a A + b O_p
    at the end          O = A / T         L = M + log T

One of a and b is 1. Two kernels do exactly these operations in this order, and so have the same bits: the merge kernel
(combine/kernel.py) and a CTA that merges its own parts (two_tiles/own_parts/). A part without keys has L_p = -inf and
b = 0: its O_p counts as 0, whatever it is. A row of one part gets its O_p and L_p unchanged.
"""

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from .row_math import LOG2_E

NOTHING = (
    -0.0
)  # A before the first part: with -0 added a result stays as it is, also one that is -0


@dataclass(frozen=True)
class PartSums:
    """The state of a row: the maximum of the log-sum-exps (natural units), and the sum of the weights."""

    largest: Float32
    total: Float32

    @staticmethod
    def empty() -> "PartSums":
        return PartSums(Float32(-Float32.inf), Float32(0.0))


def weight(lse, largest):
    """e^(lse - largest); 0 for a part without keys, also where no part has any; 1 if both are +inf, of a sink."""
    difference = cutlass.select_(lse == largest, Float32(0.0), (lse - largest) * LOG2_E)
    return cutlass.select_(
        lse == -Float32.inf, Float32(0.0), cute.math.exp2(difference, fastmath=True)
    )


def factors(before, largest, lse) -> tuple:
    """-> (a, b). before, largest: M and M'."""
    return weight(before, largest), weight(lse, largest)


def added_weight(state: PartSums, of_old, of_part):
    """T with the weight of a part."""
    return cute.arch.fma_packed_f32x2((state.total, state.total), (of_old,) * 2, (of_part,) * 2)[0]


def counted(values: list, of_part) -> list:
    """O_p, or 0 for a part without weight, in which a NaN does not count. A weight that is NaN counts."""
    counts, zero = of_part != 0.0, Float32(0.0)
    return [Float32(cutlass.select_(counts, value, zero)) for value in values]


@cute.jit
def inverse(state: PartSums, of_sink=None) -> Float32:
    """1 / T, with the weight of a sink in T; 0 where no part saw a key."""
    out = Float32(0.0)
    if state.total != 0.0:  # also true for NaN
        total = state.total
        if cutlass.const_expr(of_sink is not None):
            total = total + of_sink
        out = cute.arch.rcp_approx(total)
    return out


@cute.jit
def log_sum_exp(state: PartSums) -> Float32:
    """L, natural logarithm; -inf where no part saw a key."""
    whole = -Float32.inf
    if state.total != 0.0:
        whole = state.largest + cute.math.log2(state.total, fastmath=True) * math.log(2)
    return whole
