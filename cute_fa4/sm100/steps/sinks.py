"""Sinks: a score of each head, in natural units, that takes weight and has no value. The rule of every kernel, here.

    keys            a row begins with the sink as its maximum and with the weight 1, once over all parts of its keys.
                    The log-sum-exp includes the sink
    latent caches   a row ends with it: O / (row sum + 2^(sink - maximum)). The maximum and the log-sum-exp are those of
                    the keys alone, however large the sink is. Parts of the keys have none: the kernel that merges them
                    ends the rows (combine/kernel.py)

Either way a sink of +inf leaves out 0, and one of -inf changes no bit. A row begins with less than the limit of scores
(row_math.closed): beside a larger sink keys have no weight, and its log-sum-exp is the sink. Below the negative limit
a row sum is closed to 0, as that of a row without keys, and again the log-sum-exp is the sink.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, select_

from ..instructions import exp2
from ..sync.kernel_args import KernelArgs
from ..work import results, scales
from ..work.tile import Work
from . import row_math
from .row_math import LOG2_E

FIRST = 1.0 - 2.0**-20  # of the limit of scores: the largest sink that a row begins with
# Of the limit: a row whose sink is of a larger size has an LSE of at least the sink.
AT_LIMIT = 1.0 - 2.0**-19


def begin_rows(cfg) -> bool:
    return cfg.sink and not cfg.latent


def end_rows(cfg) -> bool:
    return cfg.sink and cfg.latent


def of_head(args: KernelArgs, head):
    return args.sink[head].to(Float32)


def first_maximum(cfg, args: KernelArgs, head, factor):
    """The maximum that a row begins with, in the units of the scores. factor: of the scores, or None."""
    largest = Float32(FIRST * cfg.score_limit_log2 / LOG2_E)
    sink = cute.arch.fmin(of_head(args, head), largest, nan=True)
    return sink if cfg.score_mod is not None else sink / scales.times(args.scale, factor)


@cute.jit
def in_lse(cfg: cutlass.Constexpr, args: KernelArgs, work: Work, head, lse: Float32) -> Float32:
    """The log-sum-exp of a row: the sink itself, if that is larger and beyond the limit of scores, on either side.

    lse: of the row sum; -inf where that is 0. Above, the row's maximum would say the same. A second use of it would
    keep a multiplication and an addition of the LSE apart, which round together in kernels without a sink.
    """
    if cutlass.const_expr(begin_rows(cfg)):
        sink = of_head(args, head)
        begins = abs(sink) > AT_LIMIT * cfg.score_limit_log2 / LOG2_E
        if cutlass.const_expr(cfg.in_parts):
            begins = begins & results.is_first_part(cfg, work)
        if begins:
            lse = larger(lse, sink)
    return lse


def larger(lse, sink):
    """The larger one; NaN if lse is."""
    return select_(lse < sink, sink, lse)


def ended(cfg, sink, row_max, row_sum, scale_log2):
    """What O is divided by after a row's last key: the row sum with the weight of the sink; 0 for a row without keys.

    That weight has the factor of all others.
    """
    if not end_rows(cfg):
        return row_sum
    bias = row_math.exponent_bias(cfg, row_max, scale_log2)
    return select_(row_sum == 0.0, row_sum, row_sum + exp2.hardware(sink * LOG2_E + bias))
