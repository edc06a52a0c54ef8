"""Epilogue: stores O / row sum from tensor memory to global memory, and the log-sum-exp.

A thread stores 128 columns of its row, 16 bytes at a time, from the output of its warpgroup. Rows past the end of the
sequence are not written.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cute_fa4.dtypes import bytes_of

from ...instructions import tensor_memory
from ...steps import row_math
from ...steps.row_math import RowState
from ...steps.scores import log2_scale, scaled_largest
from ...steps.store_rows import address_of, store_batch
from ...sync.kernel_args import KernelArgs
from ...work import results, rows
from ...work.tile import Work

BATCH = 32  # columns that are in registers at a time


def first_depth(cfg, place):
    """The first of this thread's columns within the depth of O."""
    return place.group * cfg.tiles.pv_mma_shape[1] + place.half * cfg.tiles.o_columns


@cute.jit
def output(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place,
    o_address: Int32,
    factor: Float32,
):
    """Store this thread's columns of its row, times the factor, rounded; zeros if there are no key tiles."""
    row = rows.row_of(cfg, work, 0, place.row_of_tile)
    exists = results.is_row(cfg, args, work, row)
    at = results.row_place(cfg, args, work, row)
    has_keys, address = work.tiles.count > 0, Int64(0)
    if exists:
        address = address_of(args.o, (*at, first_depth(cfg, place)))
    for first in cutlass.range_constexpr(0, cfg.tiles.o_columns, BATCH):
        values = [Float32(0.0)] * BATCH
        if has_keys:
            values = tensor_memory.load(o_address + first, BATCH)
            tensor_memory.wait_load()
        words = row_math.pack(row_math.multiplied(values, factor), cfg.o_dtype)
        if exists:
            store_batch(address + bytes_of(cfg.o_dtype, first), words)


@cute.jit
def log_sum_exp(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place,
    state: RowState,
    factor: Float32 | None,
):
    """Store the natural log-sum-exp of this thread's row (one thread per row stores); -inf for a row without keys.

    factor: scale of the scores in addition to the softmax scale, or None
    """
    row = rows.row_of(cfg, work, 0, place.row_of_tile)
    if results.is_row(cfg, args, work, row) & (place.thread < cfg.tiles.q_box_rows):
        lse = -Float32.inf
        if state.row_sum != 0.0:
            total_log2 = row_math.log2_of_sum(state.row_sum, cfg.p_lift_log2)
            lse = (state.row_max * log2_scale(cfg, args, factor) + total_log2) * math.log(2)
        args.lse[results.lse_place(cfg, args, work, row)] = lse


@cute.jit
def largest_score(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place,
    state,
    factor: Float32 | None,
):
    """Store the largest score of this thread's row, scaled (one thread per row stores); -inf for a row without keys.

    state: PairState of softmax.py; factor: as for log_sum_exp
    """
    row = rows.row_of(cfg, work, 0, place.row_of_tile)
    if results.is_row(cfg, args, work, row) & (place.thread < cfg.tiles.q_box_rows):
        found = scaled_largest(args, state.largest, state.row_sum, factor)
        args.lse[results.max_place(cfg, args, work, row)] = found
