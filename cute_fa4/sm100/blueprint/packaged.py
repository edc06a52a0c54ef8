"""The computations of the score functions in the package, their derivatives by the score, and checks of arguments.

score_mods.py wraps them in functions with names and checks. They are called while a kernel is built, with the values
of one score: (score, batch, head, q_idx, kv_idx, aux) -> score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import index

import torch

from cute_fa4.system.messages import shown

LOG2_E = 1.4426950408889634

# The kernel computes 2^(c s - c m), where c m, m the row maximum, is rounded to float32: for m = -2^23 off by at most
# 1/2. Rows far below, such as -3.4e38, have no weights (steps/row_math.py): -2^23 is within the limit of every P.
LOWEST = -(2.0**23)


@dataclass(frozen=True, eq=False)
class InKernel:
    """A function of this package that is called while a kernel is built. Its key must say everything that it does.

    by_score  its derivative by the score: its value -> slope, or a number: 1.0 if it adds what does not depend on the
              score. None: it has no derivative
    plain     the same function in torch, from which the derivatives by elements of aux are derived. None: it reads none
    """

    function: Callable
    by_score: Callable | float | None = None
    plain: Callable | None = None

    def __call__(self, *given):
        return self.function(*given)


def capped(cap: float) -> InKernel:
    """cap * tanh(score / cap)"""

    def value_of(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32

        # tanh(x) = 1 - 2 / (1 + e^2x): the hardware's own tanh is off by 2^-11, which a cap of 50 would make 0.02.
        from ..instructions import exp2

        e = exp2.hardware(score * Float32(2 * LOG2_E / cap))
        return Float32(cap) - Float32(2 * cap) * _reciprocal(e + Float32(1.0))

    def by_score(value):
        from cutlass import Float32

        tanh = value * Float32(1.0 / cap)
        return Float32(1.0) - tanh * tanh

    return InKernel(value_of, by_score)


def with_slopes_of_heads(num_heads: int) -> InKernel:
    """score - slope(head) * |position - key|"""
    full = 1 << (num_heads.bit_length() - 1)

    def biased(score, batch, head, q_idx, kv_idx, aux):
        import cutlass.cute as cute
        from cutlass import Float32, Int32, select_

        # -log2 of the slope is linear in the head, with another line for the heads beyond the power of two.
        first = Float32(8.0 / full) * (head + 1).to(Float32)
        rest = Float32(4.0 / full) * (2 * (head - full) + 1).to(Float32)
        slope = cute.math.exp2(-select_(head < full, first, rest), fastmath=True)
        distance = aux.position - kv_idx
        distance = Int32(select_(distance < 0, Int32(0) - distance, distance))
        return score - slope * distance.to(Float32)

    return InKernel(biased, by_score=1.0)


def with_bias(heads: bool) -> InKernel:
    """score + aux[0][batch, head, q_idx, kv_idx], or without the axis of heads"""

    def biased(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32, Int32, select_

        bias = aux[0]
        queries, keys = bias.shape[-2], bias.shape[-1]
        # `&` of two comparisons; an index of 0 where the tensor ends.
        inside = (q_idx < queries) & (kv_idx < keys)
        q_inside, kv_inside = select_(inside, q_idx, Int32(0)), select_(inside, kv_idx, Int32(0))
        at = (batch, head, q_inside, kv_inside) if heads else (batch, q_inside, kv_inside)
        value = select_(inside, bias[at].to(Float32), Float32(float("-inf")))
        far = (value < Float32(LOWEST)) & (value > Float32(float("-inf")))
        return select_(far, Float32(LOWEST), score + value)

    def by_score(value):
        from cutlass import Float32, select_

        return select_(value == Float32(LOWEST), Float32(0.0), Float32(1.0))

    def plain(score, batch, head, q_idx, kv_idx, aux):
        queries, keys = aux[0].shape[-2], aux[0].shape[-1]
        inside = (q_idx < queries) & (kv_idx < keys)
        at = torch.where(inside, q_idx, 0), torch.where(inside, kv_idx, 0)
        bias = aux[0][(batch, head, *at) if heads else (batch, *at)]
        value = torch.where(inside, bias, -math.inf)
        far = (value < LOWEST) & (value > -math.inf)
        return torch.where(far, LOWEST, score + value)

    return InKernel(biased, by_score, plain)


def with_logits(extent: int) -> InKernel:
    """score + aux[0][query row, head, position - key] where 0 <= position - key < extent"""

    def biased(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32, Int32, select_

        distance = aux.position - kv_idx
        near = (distance >= 0) & (distance < extent)
        bias = aux[0][aux.q_row, head, select_(near, distance, Int32(0))].to(Float32)
        return score + select_(near, bias, Float32(0.0))

    def plain(score, batch, head, q_idx, kv_idx, aux):
        distance = aux.position - kv_idx
        near = (distance >= 0) & (distance < extent)
        bias = aux[0][aux.q_row, head, torch.where(near, distance, 0)]
        return score + torch.where(near, bias, 0.0)

    return InKernel(biased, by_score=1.0, plain=plain)


def _reciprocal(x):
    import cutlass.cute as cute

    return cute.arch.rcp_approx(x)


def alibi_slope(head: int, num_heads: int) -> float:
    """2^(-8 (h+1) / H) for a power of two H; otherwise with F, the largest power of two below, for h < F, and
    2^(-8 (2 (h-F) + 1) / (2F)) for the rest.

    >>> alibi_slope(0, 8), alibi_slope(7, 8), alibi_slope(8, 12)
    (0.5, 0.00390625, 0.7071067811865476)
    """
    full = 1 << (num_heads.bit_length() - 1)
    if head < full:
        return 2.0 ** (-8 * (head + 1) / full)
    return 2.0 ** (-8 * (2 * (head - full) + 1) / (2 * full))


# --- their arguments


def counted(function: str, name: str, value, accepted: str) -> int:
    """A number of at least 1 as a Python int."""
    is_count = hasattr(value, "__index__") and not isinstance(value, bool)
    is_count = is_count and not hasattr(value, "data_ptr")  # a tensor; its number may be elsewhere
    if not is_count or index(value) < 1:
        raise refused(function, name, value, is_count, accepted)
    return index(value)


def refused(function: str, name: str, value, right_type: bool, accepted: str) -> Exception:
    text = f"score_mods.{function}: {name}: {shown(value)}; accepted: {accepted}"
    return ValueError(text) if right_type else TypeError(text)


def check_first_aux(name: str, aux: tuple, axes: str, least: tuple):
    """aux[0] has these axes, each at least so long; otherwise the kernel would read outside it."""
    shape = tuple(aux[0].shape) if aux else None
    short = shape is None or len(shape) != len(least)
    if short or any(size < needed for size, needed in zip(shape, least, strict=True)):
        raise ValueError(
            f"aux_tensors: the first has shape {shape}; accepted: for {name} {axes}, at least {least}"
        )
