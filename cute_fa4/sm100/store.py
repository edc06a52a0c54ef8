"""Store: O_i / row_sum -> shared memory -> global memory by TMA, and the log-sum-exp.

Softmax warpgroup i does it for its own query tile: its threads already hold the row sums. O_i leaves through the
bytes of Q_i, which no MMA reads any more once o_ready[i] has fired, in the same swizzled chunks of 64 columns:

    thread = row    16-byte piece c of a 128-byte chunk row r is written to piece c ^ (r % 8)

so that eight threads of a phase write to eight different bank groups. A chunk is on its way to global memory while
the next one is being written. Rows beyond the end of the sequence are dropped by TMA. A row without keys gets zeros
and LSE = -inf.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm

from ..tma import copies
from ..tma.tensor_maps import DTYPES
from . import online_softmax, rows, tmem_instructions
from .kernel_args import Events, KernelArgs, Smem, Work
from .online_softmax import RowState
from .scalars import minimum
from .softmax import log2_scale

COLUMNS = 32  # columns of O in registers at a time
PIECE_BYTES = 16  # one st.shared.v4
CHUNK_ROW_BYTES = 128
NAMED_BARRIER = 1  # 1 + i; 0 belongs to sync_threads


def store_piece(address, words: list):
    """16 bytes (four 32-bit words) to shared memory in one instruction."""
    llvm.inline_asm(
        None,
        [Int32(address).ir_value(), *(w.ir_value() for w in words)],
        "st.shared.v4.b32 [$0], {$1, $2, $3, $4};",
        "r,r,r,r,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def write_row(cfg, o_address, tile_address, row, scale):
    """This thread's row of O, scaled and rounded, into the swizzled tile; yields each chunk that is complete."""
    width = cfg.pv_mma_shape[1]
    for column, values in tmem_instructions.load_batches(o_address, width, COLUMNS):
        scaled = []
        for pair in range(0, len(values), 2):
            scaled += cute.arch.mul_packed_f32x2((values[pair], values[pair + 1]), (scale, scale))
        words = online_softmax.pack_pairs(scaled, cfg.o_dtype)
        write_columns(cfg, tile_address, row, column, words)
        chunk, inside = divmod(column + len(values), cfg.swizzle_granule)
        if inside == 0:
            yield chunk - 1
    if inside:
        yield chunk


def write_zero_row(cfg, tile_address, row):
    """A row of zeros, padding included, without a look at tensor memory, which nobody wrote."""
    write_columns(
        cfg, tile_address, row, 0, [Int32(0)] * (cfg.padded_ov_depth * cfg.dtype_bytes // 4)
    )


def write_columns(cfg, tile_address, row, column: int, words: list):
    """Packed values of a row from `column` on, 16 bytes at a time, each piece where the swizzle wants it."""
    for piece in range(len(words) // 4):
        chunk, inside = divmod(column * cfg.dtype_bytes + piece * PIECE_BYTES, CHUNK_ROW_BYTES)
        chunk_row = tile_address + (chunk * cfg.rows_per_q_tile + row) * CHUNK_ROW_BYTES
        swizzled = Int32(inside) ^ ((row & 7) * PIECE_BYTES)
        store_piece(chunk_row + swizzled, words[4 * piece : 4 * piece + 4])


def store_chunk(cfg, args: KernelArgs, work: Work, i, tile_address, chunk: int):
    """Bulk store of one depth chunk of query tile i; rows beyond the sequence are dropped."""
    sequence, per_tile = work.sequence, rows.positions_per_tile(cfg)
    first = work.tile.first_position + i * per_tile
    head = work.tile.kv_head if cfg.pack_gqa else work.tile.head
    place = (first, (head, sequence.batch))
    if cfg.clips_queries:
        valid = minimum(sequence.seqlen_q - first, per_tile)
        row = sequence.q_first_row + first
        if cfg.q_layout == "dense":
            row = sequence.batch * args.rows_per_block[0] + first
        place = (per_tile - valid, (row + valid, head))
    address = tile_address + chunk * cfg.rows_per_q_tile * CHUNK_ROW_BYTES
    column = chunk * cfg.swizzle_granule
    copies.store_tile(args.o, DTYPES[cfg.o_dtype], address, *place, first_column=column)


@cute.jit
def hand_over(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    i: Int32,
    row: Int32,
    tile_address: Int32,
    chunk: cutlass.Constexpr,
):
    """All threads of the warpgroup have written the chunk: one warp stores it."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=NAMED_BARRIER + i, number_of_threads=cfg.rows_per_q_tile)
    first = work.tile.first_position + i * rows.positions_per_tile(cfg)
    if row < 32 and first < work.sequence.seqlen_q:
        store_chunk(cfg, args, work, i, tile_address, chunk)


def write_and_store(cfg, args: KernelArgs, work: Work, i, tmem, row, tile_address, scale):
    for chunk in write_row(cfg, tmem, tile_address, row, scale):
        hand_over(cfg, args, work, i, row, tile_address, chunk)


def store_zeros(cfg, args: KernelArgs, work: Work, i, row, tile_address):
    write_zero_row(cfg, tile_address, row)
    for chunk in range(cfg.padded_ov_depth // cfg.swizzle_granule):
        hand_over(cfg, args, work, i, row, tile_address, chunk)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    i: Int32,
    state: RowState,
):
    """Normalise and store query tile i. `tmem`: address of O_i for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    row = thread % cfg.rows_per_q_tile
    sequence = work.sequence
    tile_address = smem.q_address + i * cfg.q_tile_bytes
    if work.tiles.count > 0:
        inverse = Float32(0.0)
        if state.row_sum != 0.0:  # also true for NaN, which belongs in the output
            inverse = cute.arch.rcp_approx(state.row_sum)
        events.o_ready.wait(i, 0)
        tmem_instructions.fence_after()
        write_and_store(cfg, args, work, i, tmem, row, tile_address, inverse)
    else:
        store_zeros(cfg, args, work, i, row, tile_address)
    if row < 32:
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)
    if cutlass.const_expr(cfg.write_lse):
        place = rows.row_of(cfg, work, i, row)
        if place.q_index < sequence.seqlen_q:
            lse = -Float32.inf
            if state.row_sum != 0.0:
                total_log2 = cute.math.log2(state.row_sum, fastmath=True)
                lse = (state.row_max * log2_scale(cfg, args) + total_log2) * math.log(2)
            if cutlass.const_expr(cfg.q_layout == "dense"):
                args.lse[sequence.batch, place.head, place.q_index] = lse
            else:
                args.lse[place.head, sequence.q_first_row + place.q_index] = lse
