"""Store: O^T / row sums from tensor memory to global memory, and the log-sum-exp.

    lane      0      1      2    ...
    row 0     O 0,0  O 0,1  O 0,2        a warp stores 32 values of a row that lie side by side, a row at a time:
    row 1     O 1,0  O 1,1  O 1,2        whole sectors, without a way through shared memory
    ...

Rows beyond the sequence are not written.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...tma.tensor_maps import DTYPES
from ..instructions import tensor_memory
from ..kernel_args import KernelArgs
from ..steps.scores import log2_scale
from ..work import results, rows
from ..work.tile import Work
from .columns import BATCH, FACTOR, Place, products_of, read
from .smem import SwappedShared


def depth_of(cfg, place: Place):
    """-> (depth that this thread's lane of O^T is, whether it is one).

    128 lanes are 128 depths. Of 64, the MMA puts each 16 into the first half of a warp's lanes (PTX ISA, "Tensor Core
    5th Generation: data path layout F").
    """
    if cfg.tiles.pv_mma_shape[0] == 128:
        return place.thread, place.thread < cfg.ov_depth
    depth = place.warp * 16 + place.lane % 16
    return depth, (place.lane < 16) & (depth < cfg.ov_depth)


@cute.jit
def outputs(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: SwappedShared,
    work: Work,
    place: Place,
    o_address: Int32,
):
    """One depth of all rows: O * the row's published factor, rounded. Without key tiles zeros: O is not looked at."""
    if work.tiles.count > 0:
        normalised(cfg, args, smem, work, place, o_address)
    else:
        for row in cutlass.range(cfg.tiles.rows, unroll=1):
            output(cfg, args, work, place, row, Float32(0.0))


def normalised(cfg, args: KernelArgs, smem: SwappedShared, work: Work, place: Place, o_address):
    """The values that are in tensor memory."""
    for first, values in tensor_memory.load_batches(o_address, cfg.tiles.rows, BATCH):
        factors = read(smem, place, FACTOR, first, len(values))
        for i, value in enumerate(products_of(values, factors)):
            output(cfg, args, work, place, first + i, value)


@cute.jit
def output(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    place: Place,
    number: Int32,
    value: Float32,
):
    """One value of row `number` of the tile; rows beyond the sequence are not written."""
    depth, is_one = depth_of(cfg, place)
    row = rows.row_of(cfg, work, 0, number)
    if results.is_row(cfg, args, work, row) & is_one:
        args.o[(*results.row_place(cfg, args, work, row), depth)] = value.to(DTYPES[cfg.o_dtype])


@cute.jit
def log_sum_exp(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    row: Int32,
    row_max: Float32,
    row_sum: Float32,
):
    """Of one row, natural logarithm; of a row without keys -inf."""
    place = rows.row_of(cfg, work, 0, row)
    if results.is_row(cfg, args, work, place):
        lse = -Float32.inf
        if row_sum != 0.0:
            total_log2 = cute.math.log2(row_sum, fastmath=True)
            lse = (row_max * log2_scale(cfg, args) + total_log2) * math.log(2)
        args.lse[results.lse_place(cfg, args, work, place)] = lse
