"""Store: O_i / row_sum -> shared memory -> global memory by TMA, chunk by chunk of 64 columns.

    thread = row    16-byte piece c of a 128-byte chunk row r is written to piece c ^ (r % 8)

so that eight threads of a phase write to eight different bank groups. There are two chunk buffers: one is being copied
to global memory while the other is written. (If shared memory has room for one only, copy and write alternate.)

    depth 128    O0 columns 0..63 | O0 64..127 | O1 0..63 | O1 64..127 |        depth 64    O0 | O1 |
    buffer       0                | 1          | 0        | 1          |                    0  | 1  |

Rows beyond the end of the sequence are dropped by TMA. A row without keys gets zeros. The correction warpgroup does the
whole store.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm

from ...dtypes import DTYPES
from ...tma import copies
from ..blueprint.entries import SUMS_OF_ACCESS
from ..instructions import tensor_memory
from ..sync.kernel_args import KernelArgs, Smem
from ..work import list_parts, results, rows
from ..work.tile import Work
from . import row_math
from .warpgroup import CorrectionGroup

COLUMNS = 16  # columns of O in registers at a time
COLUMNS_OF_TWO = 8  # of each O, where two are summed
PIECE_BYTES = 16  # one st.shared.v4
CHUNK_ROW_BYTES = 128
NAMED_BARRIER = 1  # of the correction warpgroup; 0 belongs to sync_threads


def chunks(cfg) -> int:
    """Chunks of one query tile."""
    return -(-cfg.ov_depth // cfg.tiles.o_granule)


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


def swizzled(row, inside):
    """Where 16 bytes that begin `inside` a chunk row are in it."""
    return Int32(inside) ^ ((row & 7) * PIECE_BYTES)


def write_words(buffer, row, first_byte: int, words: list):
    """Packed values of a row from `first_byte` of the chunk on, each 16 bytes at their swizzled place."""
    for piece in range(len(words) // 4):
        at = swizzled(row, first_byte + piece * PIECE_BYTES)
        store_piece(buffer + row * CHUNK_ROW_BYTES + at, words[4 * piece : 4 * piece + 4])


def store_chunk(cfg, args: KernelArgs, work: Work, i, buffer, chunk: int):
    """Bulk store of one depth chunk of query tile i; rows beyond the sequence are dropped."""
    place = results.o_place(cfg, args, work, i)
    column = chunk * cfg.tiles.o_granule
    copies.store_tile(args.o, DTYPES[cfg.o_dtype].cutlass, buffer, *place, first_column=column)


def copies_under_way(cfg, i: int, chunk: int) -> int:
    """How many of the last copies may still be reading when a chunk is written; the copy from its buffer may not.

    Two buffers alternate. If a work tile has an odd number of chunks, its last chunk and the first of the next work
    tile use the same buffer.
    """
    buffers = cfg.tiles.o_buffers
    first, odd = i == 0 and chunk == 0, cfg.tiles.num_q * chunks(cfg) % buffers
    return 0 if first and odd else buffers - 1


@cute.jit
def begin_chunk(cfg: cutlass.Constexpr, row: Int32, i: cutlass.Constexpr, chunk: cutlass.Constexpr):
    """Wait until every thread may write into the buffer of the chunk."""
    if row < 32:  # the warp that stores
        cute.arch.cp_async_bulk_wait_group(copies_under_way(cfg, i, chunk), read=True)
    cute.arch.barrier(barrier_id=NAMED_BARRIER, number_of_threads=cfg.tiles.rows_per_q_tile)


@cute.jit
def end_chunk(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    work: Work,
    i: cutlass.Constexpr,
    row: Int32,
    chunk: cutlass.Constexpr,
):
    """Every thread has written its row of the chunk: one warp stores it."""
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=NAMED_BARRIER, number_of_threads=cfg.tiles.rows_per_q_tile)
    first = work.tile.first_position + i * rows.positions_per_tile(cfg)
    if row < 32:
        if first < work.sequence.seqlen_q:
            store_chunk(cfg, args, work, i, buffer_of(cfg, smem, i, chunk), chunk)
        cute.arch.cp_async_bulk_commit_group()


def buffer_of(cfg, smem: Smem, i: int, chunk: int):
    buffer = (i * chunks(cfg) + chunk) % cfg.tiles.o_buffers
    return smem.o_address + buffer * cfg.tiles.o_chunk_bytes


def scaled(cfg, group: CorrectionGroup, work: Work, i: int, o_address, scale, when_read):
    """O_i * scale, rounded, to global memory. when_read() is called when all of O_i is in registers.

    Every thread of the warpgroup calls it, each for its row.
    """

    def batches():
        return tensor_memory.load_batches(o_address, cfg.tiles.pv_mma_shape[1], COLUMNS)

    def values(batch):
        return row_math.multiplied(batch, scale)

    put_out(cfg, group, work, i, batches, values, COLUMNS, when_read)


def merged(cfg, group: CorrectionGroup, work: Work, i: int, o, weights, when_read):
    """The sum of two O, each times its weight, for query tile i; otherwise as `scaled`."""

    def batches():
        return tensor_memory.load_pairs(*o, cfg.tiles.pv_mma_shape[1], COLUMNS_OF_TWO)

    def values(batch):
        return row_math.weighted_sum(*batch, *weights)

    put_out(cfg, group, work, i, batches, values, COLUMNS_OF_TWO, when_read)


@cute.jit
def put_out(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    i: cutlass.Constexpr,
    batches_of: cutlass.Constexpr,
    values_of: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    when_read: cutlass.Constexpr,
):
    """write_out, or for a part of a list of key blocks write_part. batches_of(): the batches."""
    if cutlass.const_expr(cfg.cut_lists):
        if list_parts.is_part(work.tile.part):
            write_part(cfg, group, work, i, batches_of(), values_of, when_read)
        else:
            write_out(cfg, group, work, i, batches_of(), values_of, columns, when_read)
    else:
        write_out(cfg, group, work, i, batches_of(), values_of, columns, when_read)


def write_part(cfg, group: CorrectionGroup, work: Work, i: int, batches, values_of, when_read):
    """Values of query tile i in float32, to the slot of the part (work/list_parts.py); otherwise as write_out."""
    row = i * cfg.tiles.rows_per_q_tile + group.row
    to = group.args.splits.o[list_parts.slot_of(work.tile.part), row, None]
    for column, batch in batches:
        values = values_of(batch)
        if column + len(values) == cfg.tiles.pv_mma_shape[1]:
            when_read()
        for first in range(0, len(values), SUMS_OF_ACCESS):
            held = cute.make_rmem_tensor(SUMS_OF_ACCESS, Float32)
            for n in range(SUMS_OF_ACCESS):
                held[n] = values[first + n]
            pointer = (to.iterator + (column + first)).align(SUMS_OF_ACCESS * 4)
            cute.autovec_copy(held, cute.make_tensor(pointer, cute.make_layout(SUMS_OF_ACCESS)))


def write_out(
    cfg, group: CorrectionGroup, work: Work, i: int, batches, values_of, columns: int, when_read
):
    """Rounded values of query tile i, chunk by chunk, to global memory.

    batches: (first column, input of values_of(...) for the `columns` values from there on); its loads are complete
    """
    args, smem, row = group.args, group.smem, group.row
    width, granule = cfg.tiles.pv_mma_shape[1], cfg.tiles.o_granule
    o = DTYPES[cfg.o_dtype]
    held = []  # words of an incomplete piece
    for column, batch in batches:
        chunk, inside = divmod(column, granule)
        last = column + columns == width
        if last:
            when_read()
        values = values_of(batch)
        words = row_math.pack(values, cfg.o_dtype)
        if inside == 0:
            begin_chunk(cfg, row, i, chunk)
        inside_end = inside + len(values)
        if last:  # the copy reads whole chunks, though it stores no column beyond the depth
            words += [Int32(0)] * (o.bytes_of(granule - inside_end) // 4)
        first_byte, words = o.bytes_of(inside) - 4 * len(held), held + words
        held = words[len(words) // 4 * 4 :]
        write_words(buffer_of(cfg, smem, i, chunk), row, first_byte, words)
        if last or inside_end == granule:
            end_chunk(cfg, args, smem, work, i, row, chunk)


@cute.jit
def zeros(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, row: Int32):
    """Zeros for both query tiles, in which no row sees a key; tensor memory is not read.

    Nothing for a part of a list: the merge kernel does not read the O of a part without keys.
    """
    if cutlass.const_expr(cfg.cut_lists):
        if list_parts.is_whole(work.tile.part):
            write_zeros(cfg, args, smem, work, row)
    else:
        write_zeros(cfg, args, smem, work, row)


def write_zeros(cfg, args: KernelArgs, smem: Smem, work: Work, row):
    """Zeros for both query tiles."""
    for i in range(cfg.tiles.num_q):
        for chunk in range(chunks(cfg)):
            begin_chunk(cfg, row, i, chunk)
            words = [Int32(0)] * (CHUNK_ROW_BYTES // 4)
            write_words(buffer_of(cfg, smem, i, chunk), row, 0, words)
            end_chunk(cfg, args, smem, work, i, row, chunk)


@cute.jit
def wait(row: Int32):
    """Wait until every copy has read its buffer: then the CTA may exit."""
    if row < 32:
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def zeros_of_rows(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, row: Int32):
    """Call zeros, except for a work tile that has no rows either."""
    if cutlass.const_expr(work.again is None):
        zeros(cfg, args, smem, work, row)
    else:
        if work.tiles.count == 0:
            zeros(cfg, args, smem, work, row)


@cute.jit
def wait_for_first(work: Work, row: Int32):
    """Wait until every copy is written, where a work tile is rerun: its rows are written twice."""
    if cutlass.const_expr(work.again is not None):
        if work.again != 0:
            if row < 32:
                cute.arch.cp_async_bulk_wait_group(0, read=False)


def row_sum(address):
    """The sum of P in this thread's row, where P V computes it; the next column has the same value."""
    sums = tensor_memory.load(address, 2)
    tensor_memory.wait_load()
    return sums[0]


def rescale(cfg, o_address, factor, sum_address=None):
    """O_i *= factor, for this thread's row, and the row sum where that is in tensor memory, too."""
    if sum_address is not None:
        tensor_memory.store(sum_address, [row_sum(sum_address) * factor] * 2)
    _, width, _ = cfg.tiles.pv_mma_shape
    for column, values in tensor_memory.load_batches(o_address, width, COLUMNS):
        tensor_memory.store(o_address + column, row_math.multiplied(values, factor))
    tensor_memory.wait_store()
