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

    dQ[n] -> registers   tensor memory is free   additions of n - 1 are complete: its turn ends   turn of n   additions

So MMAs wait for no addition. The last pair of a tile loads the sum before dQ is ready.

A pair takes its number when it begins (take_ticket). It waits only for pairs with smaller ones, which have begun.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...dtypes import DTYPES
from ...layouts.scalars import minimum
from ...tma.tensor_maps import TMAOperand
from ..blueprint.chip import F32_BYTES, WARP_SIZE
from ..instructions import mbarriers, tensor_memory, turns
from ..pair.barriers import LEADER
from ..pair.sync import is_leader
from ..steps import pieces, row_math
from ..steps.store import CHUNK_ROW_BYTES, PIECE_BYTES, swizzled, write_words
from . import operands
from .joint import BOX_BYTES, COUNTERS, DEPTH, PIECE, PIECES
from .load import other_rows
from .operands import Box, OwnerArgs
from .work import Place, Work, line_of_tile, place_in_turn, q_head

BOX = Box(WARP_SIZE, PIECE, Float32)  # of the sum
TICKET = 2  # numbers, which take divisions (place_in_turn)
OF_PIECE = PIECE_BYTES // F32_BYTES  # float32 of an access to shared memory


def rounded_box(cfg) -> Box:
    """Of dQ in 16 bits: all columns of a warp."""
    return Box(WARP_SIZE, DEPTH // 2, DTYPES[cfg.dtype].cutlass)


def arguments(cfg, dq, total=None) -> dict:
    """Fields of JointArgs. total: the sum, where dq has 16 bits"""
    added = operands.box_operand(cfg, dq if cfg.accumulate else total, BOX, "add")
    if cfg.accumulate:
        return dict(added=added)
    return dict(
        added=added,
        begun=operands.box_operand(cfg, total, BOX, "store"),
        so_far=operands.box_operand(cfg, total, BOX, "load"),
        rounded=operands.box_operand(cfg, dq, rounded_box(cfg), "store"),
    )


@cute.jit
def take_ticket(owner: cutlass.Constexpr, args: OwnerArgs, address: cute.Pointer):
    """One thread of CTA 0 takes the number of the pair, and says which keys that are, when both CTAs have met."""
    if is_leader():
        with cute.arch.elect_one():
            last = args.joint.counters.iterator + (args.joint.counters.shape[0] - 1) * COUNTERS
            number = cute.arch.atomic_add(last, Int32(1), sem="relaxed", scope="gpu")
            to = cute.make_tensor(address, cute.make_layout(TICKET))
            for i, x in enumerate(place_in_turn(owner, args.sizes, number, args.joint.side)):
                to[i] = x


def ticket(address: cute.Pointer) -> tuple:
    """place_in_turn of the pair."""
    words = [
        mbarriers.load_from(mbarriers.there(LEADER, (address + i).toint())) for i in range(TICKET)
    ]
    return tuple(cute.arch.make_warp_uniform(word) for word in words)


@dataclass(frozen=True)
class Rows:
    """The queries of a warp in a tile, and where their parts of dQ are: the first ones may be past the end."""

    first: Int32  # of the sequence, in the tensor
    length: Int32  # of the sequence
    row: Int32  # in the sequence
    head: Int32
    column: Int32  # of the depth
    buffer: Int32  # of the warp, in shared memory

    @property
    def where(self) -> tuple:
        """As operands.load and store take it."""
        return self.first, self.length, self.row

    def boxes(self, box: Box) -> list[tuple]:
        """(place in the buffer, first column) of each box."""
        return [
            (self.buffer + number * BOX_BYTES, self.column + number * box.columns)
            for number in range(DEPTH // 2 // box.columns)
        ]


def stage(rows: Rows, words: list):
    """The thread's row, 32-bit words, to the buffer: boxes of 32 columns."""
    for first in range(0, len(words), PIECE):
        at = rows.buffer + first // PIECE * BOX_BYTES
        write_words(at, cute.arch.lane_idx(), 0, words[first : first + PIECE])
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_warp()


@cute.jit
def put(
    cfg: cutlass.Constexpr,
    box: cutlass.Constexpr,
    operand: TMAOperand,
    work: Work,
    rows: Rows,
):
    """Boxes of what is staged, of queries that exist: added or stored, as the operand says."""
    for at, column in rows.boxes(box):
        operands.store(cfg, box, operand, at, work.sequence, rows.where, rows.head, column)
    cute.arch.cp_async_bulk_commit_group()


@cute.jit
def add(cfg: cutlass.Constexpr, args: OwnerArgs, work: Work, rows: Rows, own: list):
    """In the turn of a pair: it adds to the sum, or begins it."""
    stage(rows, [x.bitcast(Int32) for x in own])
    if cutlass.const_expr(cfg.accumulate):
        put(cfg, BOX, args.joint.added, work, rows)
    else:
        if work.number == 0:
            put(cfg, BOX, args.joint.begun, work, rows)
        else:
            put(cfg, BOX, args.joint.added, work, rows)


@cute.jit
def load_sum(cfg: cutlass.Constexpr, args: OwnerArgs, full, warp: Int32, work: Work, rows: Rows):
    """In the turn of the last pair of a tile: what the others have added, to the buffer. full: the event of arrival"""
    mbarrier = full.arrive_and_expect(warp, PIECES * BOX_BYTES)
    sum_so_far, of, head = args.joint.so_far, work.sequence, rows.head
    for at, column in rows.boxes(BOX):
        operands.load_box(cfg, BOX, sum_so_far, (at, mbarrier), of, rows.where, head, column)


def added(rows: Rows, own: list) -> list:
    """The sum so far, in the buffer, and own numbers of the thread's row."""
    row, out = cute.arch.lane_idx(), []
    for first in range(0, len(own), OF_PIECE):
        piece, inside = divmod(first, PIECE)
        at = swizzled(row, inside * F32_BYTES)
        at = rows.buffer + (piece * BOX_BYTES + at) + row * CHUNK_ROW_BYTES
        before = pieces.load_piece(at)
        out += [x.bitcast(Float32) + own[first + i] for i, x in enumerate(before)]
    return out


@cute.jit
def store_rounded(cfg: cutlass.Constexpr, args: OwnerArgs, work: Work, rows: Rows, values: list):
    """dQ of the last pair of a tile, in 16 bits."""
    stage(rows, row_math.pack(values, cfg.dtype))
    put(cfg, rounded_box(cfg), args.joint.rounded, work, rows)


def is_last(work: Work, place: Place):
    """Whether the pair is the last one of a tile, where dQ has 16 bits."""
    return place.tile < work.last_before


def loads_before(work: Work, place: Place):
    """How many tiles the pair has been the last of: these are the last ones that it passes."""
    end = minimum(work.last_before, work.end)
    return (end - 1 - place.tile) * work.turns + place.turn


@cute.jit
def begin(
    cfg: cutlass.Constexpr,
    args: OwnerArgs,
    full,
    warp: Int32,
    work: Work,
    at: tuple,
    rows: Rows,
    counters: tuple,
):
    """Before dQ of a tile is ready: the turn comes, and the last pair loads the sum.

    full: the event of its arrival; at: (n, place, place before); counters: of both places
    """
    n, place, before = at
    if cutlass.const_expr(not cfg.accumulate):
        if (n > 0) & is_last(work, place):
            end(cfg, work, before, counters[1])
    turns.await_turn(counters[0], work.number)
    if cutlass.const_expr(not cfg.accumulate):
        if (work.number > 0) & is_last(work, place):
            load_sum(cfg, args, full, warp, work, rows)


@cute.jit
def end(cfg: cutlass.Constexpr, work: Work, place: Place, counter: cute.Pointer):
    """Until the buffer may be written again. A pair that added ends its turn: the next one may add."""
    if cutlass.const_expr(cfg.accumulate):
        end_turn(counter)
    else:
        if is_last(work, place):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        else:
            end_turn(counter)
    cute.arch.sync_warp()


def end_turn(counter: cute.Pointer):
    """When the additions are complete."""
    cute.arch.cp_async_bulk_wait_group(0, read=False)
    turns.end_turn(counter)


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
    """dQ of a tile of queries. lanes: of the warp, in tensor memory; warp: its number among four

    at: (turn, place, place of the turn before)
    """
    n, place, before = at
    rows = rows_of(owner, cta, warp, work, place)
    counters = tuple(counter_of(owner, args, warp, work, each) for each in (place, before))
    begin(cfg, args, cta.sum_there, warp, work, at, rows, counters)
    cta.dq_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    own = tensor_memory.load(lanes + owner.dq_column, DEPTH // 2)
    tensor_memory.wait_load()
    tensor_memory.fence_before()
    cta.dq_read.arrive(0)
    own = row_math.multiplied(own, args.scale)
    if cutlass.const_expr(cfg.accumulate):
        if n > 0:
            end(cfg, work, before, counters[1])
        add(cfg, args, work, rows, own)
    else:
        if not is_last(work, place):
            if n > 0:
                end(cfg, work, before, counters[1])
            add(cfg, args, work, rows, own)
        elif work.number == 0:
            store_rounded(cfg, args, work, rows, own)
        else:
            cta.sum_there.wait(warp, loads_before(work, place) & 1)
            store_rounded(cfg, args, work, rows, added(rows, own))


def rows_of(owner, cta, warp, work: Work, place: Place) -> Rows:
    first, length, row = other_rows(owner, work, place)
    row = row + work.rank * owner.tiles[0].rows + warp % 2 * WARP_SIZE
    head, column = q_head(owner, work, place), warp // 2 * (DEPTH // 2)
    buffer = cta.base + owner.smem.staging.offset + warp * (PIECES * BOX_BYTES)
    return Rows(first, length, row, head, column, buffer)


def counter_of(owner, args: OwnerArgs, warp, work: Work, place: Place) -> cute.Pointer:
    """Of the pairs that have added to a warp's part of a tile."""
    line = q_head(owner, work, place) * args.stats.shape[1]
    line = line + work.sequence.stats_tile + line_of_tile(owner, place)
    return args.joint.counters.iterator + (line * COUNTERS + work.rank * (COUNTERS // 2) + warp)


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
    before = place
    for n in cutlass.range(work.count, unroll=1):
        tile(cfg, owner, args, cta, lanes, warp, work, (n, place, before))
        before, place = place, place.next(work)
    if work.count > 0:
        end(cfg, work, before, counter_of(owner, args, warp, work, before))
