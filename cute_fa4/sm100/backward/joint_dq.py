"""The warps that add dQ (joint.py): tensor memory -> registers -> shared memory -> float32 in global memory, in turns.

A warp has 32 queries and half of the depth of them. Pairs that own later keys of the sequence wait for those with
earlier ones: each warp has a counter for each tile of queries, which says how many pairs have added. So the order of
additions depends on the sequence alone. Under a full or a causal mask, pairs with earlier keys see all queries that a
pair sees, so its number in the sequence is how many add before it.

A pair takes its number when it begins (take_ticket). It waits only for pairs with smaller ones, which have begun.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import minimum
from ...tma import copies
from ...tma.tensor_maps import (
    clipped_store,
    clipped_store_view,
    dense_view,
    make_operand,
    row_space,
)
from ..blueprint.chip import WARP_SIZE
from ..instructions import mbarriers, tensor_memory, turns
from ..pair.barriers import LEADER
from ..pair.sync import is_leader
from ..steps import row_math
from ..steps.store import write_words
from .joint import COUNTERS, DEPTH, PIECE
from .load import other_rows
from .operands import OwnerArgs
from .work import Place, Work, line_of_tile, q_head

DTYPE = cutlass.Float32


def operand(cfg, dq):
    """PIECE columns of the queries of a warp, added to what is in memory."""
    if cfg.packed:
        view = clipped_store_view(dq, row_space(dq), WARP_SIZE, PIECE, PIECE)
    else:
        view = dense_view(dq, PIECE, PIECE)
    return make_operand(view, DTYPE, WARP_SIZE, PIECE, direction="add")


@cute.jit
def take_ticket(args: OwnerArgs, address: cute.Pointer):
    """One thread of CTA 0 takes the number of the pair; both CTAs read it after they have met."""
    if is_leader():
        with cute.arch.elect_one():
            last = args.counters.iterator + (args.counters.shape[0] - 1) * COUNTERS
            number = cute.arch.atomic_add(last, Int32(1), sem="relaxed", scope="gpu")
            cute.make_tensor(address, cute.make_layout(1))[0] = number


def ticket(address: cute.Pointer) -> Int32:
    """The number of the pair."""
    number = mbarriers.load_from(mbarriers.there(LEADER, address.toint()))
    return cute.arch.make_warp_uniform(number)


@cute.jit
def add_piece(
    cfg: cutlass.Constexpr,
    args: OwnerArgs,
    buffer: Int32,
    work: Work,
    rows: tuple,
    head: Int32,
    column: Int32,
):
    """PIECE columns of the queries of a warp that exist. rows: as operands.store takes them"""
    first, length, row = rows
    if row < length:
        if cutlass.const_expr(cfg.packed):
            at, further = clipped_store(
                WARP_SIZE, first + row, minimum(length - row, WARP_SIZE), head
            )
        else:
            at, further = row, (head, work.sequence.index)
        copies.store_tile(args.dq, DTYPE, buffer, at, further, first_column=column)
    cute.arch.cp_async_bulk_commit_group()


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
    head, lane = q_head(owner, work, place), cute.arch.lane_idx()
    line = head * args.stats.shape[1] + work.sequence.stats_tile + line_of_tile(owner, place)
    counter = args.counters.iterator + (line * COUNTERS + work.rank * (COUNTERS // 2) + warp)
    buffer = cta.base + owner.smem.staging.offset + warp * owner.piece_bytes
    for piece in cutlass.range_constexpr(DEPTH // 2 // PIECE):
        part = row_math.multiplied(values[piece * PIECE : (piece + 1) * PIECE], args.scale)
        if cutlass.const_expr(piece > 0):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.sync_warp()
        write_words(buffer, lane, 0, [x.bitcast(Int32) for x in part])
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        if cutlass.const_expr(piece == 0):
            turns.await_turn(counter, work.number)
        column = warp // 2 * (DEPTH // 2) + piece * PIECE
        add_piece(cfg, args, buffer, work, (first, length, row), head, column)
    cute.arch.cp_async_bulk_wait_group(0, read=False)
    turns.end_turn(counter)


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
