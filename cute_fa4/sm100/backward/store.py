"""Results: tensor memory -> registers -> shared memory, in place of the own tiles -> global memory by TMA.

64 columns belong to one warpgroup: dK and dV (or dQ) have 64 for each, or the two have one of both. They are one chunk
of 128 bytes a row, and in float32 two, for which shared memory also takes the first half of the ring: all of its tiles
have been multiplied. A CTA whose rows saw nothing writes zeros. Where results accumulate, the copy adds them to what
is in memory. Each of these numbers is added to once, so the bits do not depend on the order of CTAs.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..blueprint.chip import SWIZZLE_BYTES
from ..instructions import tensor_memory
from ..steps import row_math
from ..steps.store import write_words
from . import operands
from .load import own_rows
from .operands import OwnerArgs
from .owner import GRANULE, ROWS
from .work import Work

OF_GROUP = 3  # the first named barrier of a warpgroup
COLUMNS = 32
CHUNK_BYTES = ROWS * SWIZZLE_BYTES


def chunks_of(owner) -> list:
    """(result, chunk) in the order in which warpgroups take turns.

    >>> from .config import BackwardConfig
    >>> chunks_of(BackwardConfig("bf16", 64, 64).owner("keys"))
    [(0, 0), (1, 0)]
    """
    return [(i, chunk) for i in owner.results for chunk in range(owner.depths[i] // GRANULE)]


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """All results of a CTA; all warpgroups call it."""
    if cutlass.const_expr(owner.ctas > 1):  # a CTA without rows outlives its commits, too
        await_sums(cta, work)
        await_moves(owner, cta, work)
    if work.row < own_rows(owner, work)[1]:
        if cutlass.const_expr(owner.ctas == 1):
            await_sums(cta, work)
        for i, (result, chunk) in enumerate(chunks_of(owner)):
            if thread.column == i % owner.warps.groups * owner.columns:
                store_chunk(cfg, owner, args, cta, thread, work, (i, result, chunk))
        if thread.row < 32:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def await_sums(cta, work: Work):
    """Until all sums of a CTA are complete."""
    if work.count > 0:
        cta.done.wait(0, 0)
        tensor_memory.fence_after()


@cute.jit
def await_moves(owner: cutlass.Constexpr, cta, work: Work):
    """Until every warp has read its part of own tiles, over which results are written.

    For a CTA alone, `done` says so. The MMAs of a pair wait for tensor memory alone.
    """
    if work.count > 0:
        for number in cutlass.range_constexpr(len(owner.moved)):
            cta.own_moved.wait(number, 0)


@cute.jit
def store_chunk(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    thread,
    work: Work,
    what: cutlass.Constexpr,
):
    """64 columns of one result. what: (number of the chunk among all, result, chunk of it)."""
    number_of_all, result, chunk = what
    pieces = GRANULE // cfg.stored_columns
    buffer = cta.own_address + number_of_all * CHUNK_BYTES * pieces
    column = owner.result_column(result) + chunk * GRANULE
    factor = args.scale if cutlass.const_expr(result == 0) else Float32(1.0)
    if work.count > 0:
        write_chunk(cfg, buffer, thread.first_lane + column, thread.row, factor)
    else:
        for piece in range(pieces):
            zeros = [Int32(0)] * (SWIZZLE_BYTES // 4)
            write_words(buffer + piece * CHUNK_BYTES, thread.row, 0, zeros)
    cute.arch.fence_proxy("async.shared", space="cta")
    group = thread.column // owner.columns
    cute.arch.barrier(barrier_id=OF_GROUP + group, number_of_threads=ROWS)
    if thread.row < 32:
        to, rows = args.results[owner.results.index(result)], own_rows(owner, work)
        first = chunk * pieces
        existing = -(-(cfg.depth, cfg.depth_v)[result] // cfg.stored_columns)
        for number in range(first, min(first + pieces, existing)):
            at = buffer + (number - first) * CHUNK_BYTES
            column = number * cfg.stored_columns
            operands.store(
                cfg, operands.box_of(cfg), to, at, work.sequence, rows, work.head, column
            )
        cute.arch.cp_async_bulk_commit_group()


def write_chunk(cfg, buffer, address, row, factor):
    """64 columns of a row, rounded, into shared memory."""
    for column, values in tensor_memory.load_batches(address, GRANULE, COLUMNS):
        words = row_math.pack(row_math.multiplied(values, factor), cfg.grad_dtype)
        piece, inside = divmod(column, cfg.stored_columns)
        write_words(
            buffer + piece * CHUNK_BYTES, row, inside * SWIZZLE_BYTES // cfg.stored_columns, words
        )
