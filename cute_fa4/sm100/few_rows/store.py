"""Store: O^T / row sums from tensor memory to global memory, and the log-sum-exp.

    lane      0      1      2    ...
    row 0     O 0,0  O 0,1  O 0,2        a warp stores 32 contiguous values of a row, a row at a time:
    row 1     O 1,0  O 1,1  O 1,2        whole sectors, without staging in shared memory
    ...

With several outputs, those of a latent cache, four lanes exchange first and a warp stores four rows at a time
(four_lanes.py).

Rows beyond the sequence are not written.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm

from cute_fa4.dtypes import DTYPES, is_quantized

from ..instructions import tensor_memory
from ..steps import row_math, sinks
from ..steps.scores import log2_scale, scaled_largest
from ..steps.store_rows import address_of, store_if
from ..sync.kernel_args import KernelArgs, Smem
from ..work import results, rows, scales
from ..work.tile import Work
from .columns import BATCH, FACTOR, Place, products_of, read
from .four_lanes import COLUMNS, FourLanes


def depth_of(cfg, place: Place, of_o):
    """-> (depth that this thread's lane of O^T number `of_o` is, whether it is one).

    128 lanes are 128 depths. With 64, the MMA puts each 16 into the first half of a warp's lanes (PTX ISA, "Tensor Core
    5th Generation: data path layout F").
    """
    if cfg.tiles.pv_mma_shape[0] == 128:
        depth = cfg.tiles.depth_of_lane(place.thread)
        depth = depth if len(cfg.tmem.o) == 1 else depth + of_o * 128
        return depth, depth < cfg.ov_depth
    depth = place.warp * 16 + place.lane % 16
    return depth, (place.lane < 16) & (depth < cfg.ov_depth)


@cute.jit
def outputs(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    work: Work,
    place: Place,
    tmem: Int32,
):
    """Store one depth of each O for all rows: O * the row's published factor, rounded. Zeros without key tiles."""
    if work.tiles.count > 0:
        if cutlass.const_expr(FourLanes.serve(cfg) or len(cfg.tmem.o) == 1):
            for number in cutlass.range_constexpr(len(cfg.tmem.o)):
                normalised(cfg, args, smem, work, place, tmem + cfg.tmem.o[number], number)
        else:  # a loop: unrolled, it would keep the addresses of all rows in registers
            for number in cutlass.range(len(cfg.tmem.o), unroll=1):
                normalised(cfg, args, smem, work, place, column_of_o(cfg, tmem, number), number)
    else:
        for row in cutlass.range(cfg.tiles.rows, unroll=1):
            for number in cutlass.range_constexpr(len(cfg.tmem.o)):
                output(cfg, args, work, place, row, Float32(0.0), number)


def column_of_o(cfg, tmem, number):
    """The column of O number `number`, an int or an Int32; they are evenly spaced."""
    first, second, *_ = cfg.tmem.o
    return tmem + first + number * (second - first)


def normalised(cfg, args: KernelArgs, smem: Smem, work: Work, place: Place, o_address, number):
    """Normalize and store the values of O number `number` from tensor memory."""
    lanes = FourLanes.of(place.lane)
    for first, values in tensor_memory.load_batches(o_address, cfg.tiles.rows, BATCH):
        values = products_of(values, read(smem, place, FACTOR, first, len(values)))
        if FourLanes.serve(cfg):
            for i in range(0, len(values), COLUMNS):
                words = lanes.row_of(values[i : i + COLUMNS], cfg.o_dtype)
                store_four(cfg, args, work, place, lanes, first + i, words, number)
        else:
            for i, value in enumerate(values):
                output(cfg, args, work, place, first + i, value, number)


@cute.jit
def store_four(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place: Place,
    lanes: FourLanes,
    first: int,
    words: list,
    of_o: Int32 | int,
):
    """Four columns of this lane's row of `first` to `first` + 3; rows beyond the sequence are not written."""
    depth, is_one = depth_of(cfg, place, of_o)
    row = rows.row_of(cfg, work, 0, first + lanes.number)
    exists = results.is_row(cfg, args, work, row) & is_one
    at = (*results.row_place(cfg, args, work, row), depth - lanes.number)
    store_if(exists, address_of(args.o, at), words)


@cute.jit
def output(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place: Place,
    number: Int32,
    value: Float32,
    of_o: Int32 | int,
):
    """One value of row `number` of the tile, from O number `of_o`; rows beyond the sequence are not written."""
    depth, is_one = depth_of(cfg, place, of_o)
    row = rows.row_of(cfg, work, 0, number)
    if results.is_row(cfg, args, work, row) & is_one:
        at = (*results.row_place(cfg, args, work, row), depth)
        if cutlass.const_expr(is_quantized(cfg.o_dtype)):
            store_byte(args.o, at, row_math.pack([value] * 4, cfg.o_dtype)[0])
        else:
            args.o[at] = value.to(DTYPES[cfg.o_dtype].cutlass)


def store_byte(o: cute.Tensor, place: tuple, word):
    """Store the low byte of a word to an 8-bit tensor: there is no conversion of a single number to 8 bits."""
    llvm.inline_asm(
        None,
        [(o.iterator + o.layout(place)).toint().ir_value(), word.ir_value()],
        "st.global.b8 [$0], $1;",
        "l,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


@cute.jit
def log_sum_exp(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    row: Int32,
    row_max: Float32,
    row_sum: Float32,
):
    """Store the log-sum-exp of one row, natural logarithm; -inf for a row without keys."""
    place = rows.row_of(cfg, work, 0, row)
    if results.is_row(cfg, args, work, place):
        lse = -Float32.inf
        if row_sum != 0.0:
            total_log2 = row_math.log2_of_sum(row_sum, cfg.p_lift_log2)
            factor = scales.of_scores(cfg, args, work)
            lse = (row_max * log2_scale(cfg, args, factor) + total_log2) * math.log(2)
        lse = sinks.in_lse(cfg, args, work, rows.head_of(cfg, work, place), lse)
        args.lse[results.lse_place(cfg, args, work, place)] = lse


@cute.jit
def largest_score(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    row: Int32,
    largest: Float32,
    row_sum: Float32,
):
    """Store the largest score of one row, scaled; -inf for a row without keys."""
    place = rows.row_of(cfg, work, 0, row)
    if results.is_row(cfg, args, work, place):
        found = scaled_largest(args, largest, row_sum, scales.of_scores(cfg, args, work))
        args.lse[results.max_place(cfg, args, work, place)] = found
