"""The warps that add dQ (joint.py) in turns: tensor memory -> registers -> shared memory -> a sum in global memory.

A warp has 32 queries and half of the depth of them. Pairs that own later keys of the sequence wait for those with
earlier ones: each warp has a counter for each tile of queries, which says how many pairs have added. So the order of
additions depends on the sequence alone. Under a full or a causal mask, pairs with earlier keys see all queries that a
pair sees, so its number in the sequence is how many add before it.

    pair                  dQ in 16 bits                                        dQ in float32
    the first             stores to the sum                                    adds to dQ
    between               adds to the sum                                      adds to dQ
    the last of a tile    loads the sum, adds its own, stores 16 bits          adds to dQ
    first and last        stores 16 bits

The first pair passes all queries of its sequence, so each row of dQ is written, also without keys. A sum of the last
pair is sum so far + own, rounded to float32 and then to 16 bits: the bits of an addition in memory and a copy.

A pair takes its number when it begins (take_ticket). It waits only for pairs with smaller ones, which have begun.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...tma.tensor_maps import TMAOperand
from ..blueprint.chip import WARP_SIZE
from ..instructions import global_memory, mbarriers, tensor_memory, turns
from ..pair.barriers import LEADER
from ..pair.sync import is_leader
from ..steps import pieces, row_math
from ..steps.store import CHUNK_ROW_BYTES, PIECE_BYTES, write_words
from . import operands
from .joint import COUNTERS, DEPTH, PIECE
from .load import other_rows
from .operands import Box, OwnerArgs
from .work import Place, Work, line_of_tile, q_head

BOX = Box(WARP_SIZE, PIECE, Float32)  # of the sum, which a warp adds or stores at a time
OF_ACCESS = 4  # columns of a row that a thread has of the sum: 16 bytes
LANES = PIECE // OF_ACCESS  # of a row
ROWS_AT_A_TIME = WARP_SIZE // LANES
TOGETHER = 8  # loads of a thread in flight: all of a piece


def arguments(cfg, dq, total=None) -> dict:
    """Fields of JointArgs. total: the sum, where dq has 16 bits"""
    added = operands.store_operand(cfg, dq if cfg.accumulate else total, BOX, "add")
    if cfg.accumulate:
        return dict(added=added)
    begun = operands.store_operand(cfg, total, BOX, "store")
    return dict(added=added, begun=begun, total=total, dq=dq)


@cute.jit
def take_ticket(args: OwnerArgs, address: cute.Pointer):
    """One thread of CTA 0 takes the number of the pair; both CTAs read it after they have met."""
    if is_leader():
        with cute.arch.elect_one():
            last = args.joint.counters.iterator + (args.joint.counters.shape[0] - 1) * COUNTERS
            number = cute.arch.atomic_add(last, Int32(1), sem="relaxed", scope="gpu")
            cute.make_tensor(address, cute.make_layout(1))[0] = number


def ticket(address: cute.Pointer) -> Int32:
    """The number of the pair."""
    number = mbarriers.load_from(mbarriers.there(LEADER, address.toint()))
    return cute.arch.make_warp_uniform(number)


@dataclass(frozen=True)
class Rows:
    """The queries of a warp in a tile, and where their parts of dQ are: the first ones may be past the end."""

    first: Int32  # of the sequence, in the tensor
    length: Int32  # of the sequence
    row: Int32  # in the sequence
    head: Int32
    column: Int32  # of the depth
    buffer: Int32  # of the warp, in shared memory


@cute.jit
def put_piece(
    cfg: cutlass.Constexpr, operand: TMAOperand, work: Work, rows: Rows, piece: cutlass.Constexpr
):
    """PIECE columns of the queries of a warp that exist: added or stored, as the operand says."""
    if rows.row < rows.length:
        where, column = (rows.first, rows.length, rows.row), rows.column + piece * PIECE
        operands.store(cfg, BOX, operand, rows.buffer, work.sequence, where, rows.head, column)


def of_piece(args: OwnerArgs, values: list, piece: int) -> list:
    """PIECE columns of a row, times the scale."""
    return row_math.multiplied(values[piece * PIECE : (piece + 1) * PIECE], args.scale)


@cute.jit
def add(
    cfg: cutlass.Constexpr,
    args: OwnerArgs,
    counter,
    work: Work,
    rows: Rows,
    values: list,
):
    """The turn of a pair: it adds to the sum, or begins it. values: of the thread's row"""
    for piece in cutlass.range_constexpr(len(values) // PIECE):
        if cutlass.const_expr(piece > 0):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.sync_warp()
        words = row_math.pack(of_piece(args, values, piece), "f32")
        write_words(rows.buffer, cute.arch.lane_idx(), 0, words)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        if cutlass.const_expr(piece == 0):
            turns.await_turn(counter, work.number)
        if cutlass.const_expr(cfg.accumulate):
            put_piece(cfg, args.joint.added, work, rows, piece)
        else:
            if work.number == 0:
                put_piece(cfg, args.joint.begun, work, rows, piece)
            else:
                put_piece(cfg, args.joint.added, work, rows, piece)
        cute.arch.cp_async_bulk_commit_group()
    cute.arch.cp_async_bulk_wait_group(0, read=False)
    turns.end_turn(counter)


@cute.jit
def round_sum(
    cfg: cutlass.Constexpr,
    args: OwnerArgs,
    counter,
    work: Work,
    rows: Rows,
    values: list,
    alone: cutlass.Constexpr,
):
    """The turn of the last pair, which stores dQ in 16 bits. alone: no pair has added before.

    Own numbers go through shared memory, so that threads next to each other have columns of one row.
    """
    if cutlass.const_expr(not alone):
        turns.await_turn(counter, work.number)
    for piece in cutlass.range_constexpr(len(values) // PIECE):
        cute.arch.sync_warp()
        words = row_math.pack(of_piece(args, values, piece), "f32")
        write_words(rows.buffer, cute.arch.lane_idx(), 0, words)
        cute.arch.sync_warp()
        for first in cutlass.range_constexpr(0, WARP_SIZE // ROWS_AT_A_TIME, TOGETHER):
            round_rows(cfg, args, work, rows, piece, first, alone)


@cute.jit
def round_rows(
    cfg: cutlass.Constexpr,
    args: OwnerArgs,
    work: Work,
    rows: Rows,
    piece: cutlass.Constexpr,
    first: cutlass.Constexpr,
    alone: cutlass.Constexpr,
):
    """PIECE columns of TOGETHER x ROWS_AT_A_TIME queries. first: how many of ROWS_AT_A_TIME before them"""
    lane = cute.arch.lane_idx()
    column = rows.column + piece * PIECE + lane % LANES * OF_ACCESS
    sums = [[Float32(0.0)] * OF_ACCESS] * TOGETHER
    exist = [(rows.row + row < rows.length) & (column < cfg.depth) for row in rows_of(first, lane)]
    if cutlass.const_expr(not alone):
        sums = [
            global_memory.load_floats(place(cfg, args.joint.total, work, rows, row, column), exists)
            for row, exists in zip(rows_of(first, lane), exist, strict=True)
        ]
    for row, exists, before in zip(rows_of(first, lane), exist, sums, strict=True):
        inside = (lane % LANES ^ (row & 7)) * PIECE_BYTES
        own = [
            x.bitcast(Float32)
            for x in pieces.load_piece(rows.buffer + row * CHUNK_ROW_BYTES + inside)
        ]
        if cutlass.const_expr(not alone):
            own = [a + b for a, b in zip(before, own, strict=True)]
        words = row_math.pack(own, cfg.dtype)
        global_memory.store_words(place(cfg, args.joint.dq, work, rows, row, column), words, exists)


def rows_of(first: int, lane) -> list:
    """Rows of a warp's part that a thread has."""
    return [(first + i) * ROWS_AT_A_TIME + lane // LANES for i in range(TOGETHER)]


def place(cfg, tensor: cute.Tensor, work: Work, rows: Rows, row, column):
    """Where columns of a row are in a tensor of the form of q; past the end it may be outside."""
    at = rows.first + rows.row + row
    where = (at, rows.head, column) if cfg.packed else (work.sequence.index, at, rows.head, column)
    return tensor.iterator + cute.crd2idx(where, tensor.layout)


@cute.jit
def tile(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    lanes: Int32,
    warp: Int32,
    work: Work,
    at: tuple,
):
    """dQ of a tile of queries. lanes: of the warp, in tensor memory; warp: its number among four; at: (turn, place)"""
    n, place = at
    cta.dq_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    values = tensor_memory.load(lanes + owner.dq_column, DEPTH // 2)
    tensor_memory.wait_load()
    tensor_memory.fence_before()
    cta.dq_read.arrive(0)
    first, length, row = other_rows(owner, work, place)
    row = row + work.rank * owner.tiles[0].rows + warp % 2 * WARP_SIZE
    head = q_head(owner, work, place)
    line = head * args.stats.shape[1] + work.sequence.stats_tile + line_of_tile(owner, place)
    counter = args.joint.counters.iterator + (line * COUNTERS + work.rank * (COUNTERS // 2) + warp)
    buffer = cta.base + owner.smem.staging.offset + warp * owner.piece_bytes
    rows = Rows(first, length, row, head, warp // 2 * (DEPTH // 2), buffer)
    if cutlass.const_expr(cfg.accumulate):
        add(cfg, args, counter, work, rows, values)
    else:
        if place.tile >= work.last_before:
            add(cfg, args, counter, work, rows, values)
        elif work.number == 0:
            round_sum(cfg, args, counter, work, rows, values, True)
        else:
            round_sum(cfg, args, counter, work, rows, values, False)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    tmem: Int32,
    warp: Int32,
    work: Work,
):
    """Every tile of queries. warp: number among four"""
    place, lanes = Place.of(work), tmem + warp * (WARP_SIZE << 16)
    for n in cutlass.range(work.count, unroll=1):
        tile(cfg, owner, args, cta, lanes, warp, work, (n, place))
        place = place.next(work)
