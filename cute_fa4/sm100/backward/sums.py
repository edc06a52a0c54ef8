"""The kernel for aux tensors: sums of dF df/da, dF = P (dP - delta), over the scores that share an element a.

A CTA owns 128 queries, as in the kernel for dQ, and writes its sums to its own line in global memory. The host
adds up the lines in a fixed order, so the same inputs give the same bits (calls/aux_gradients.py).

    which scores share an element   a CTA's line                       sums in the kernel
    "rows"                          2 halves of columns x 128 rows     of a row over all of its columns
    "distances"                     key tiles x (128 + their rows)     of a tile over scores of equal column - row
    "scores"                        128 rows x columns                 none

Number 127 + column - row of a tile has one distance; the last number is 0. Key tiles have 128 rows, or 64 where head
dims are wide. A warp has 32 rows and half of the columns. Its sums over distances take one shuffle for each column: a
lane receives the sum of the lane before it, which has the row before and the column before, and adds its own number.
The last lane's sum is complete.

    lane, column    0,0     0,1     0,2 ...
                       \\       \\
                    1,0     1,1     1,2 ...

Eight warps write such sums to shared memory, and one thread for each number adds those that belong together.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..instructions import tensor_memory
from ..steps import visibility
from ..sync.pipelines import Slot
from ..traced.shared import DISTANCES
from ..traced.shared import ROWS as OF_ROWS
from . import products, weights
from .operands import OwnerArgs, first_slots, next_slots
from .owner import LANES, ROWS
from .work import Place, Work, bands_of, moved

BATCH = 32  # columns in registers at a time
WRITTEN = 5  # named barrier of the compute warps: the sums of all warps are in shared memory


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """Every tile of a CTA, and its sums over rows."""
    slot, place = Slot(Int32(0), Int32(0)), Place.of(work)
    of_rows = cute.make_rmem_tensor(len(cfg.summed), Float32)
    of_rows.fill(0.0)
    for n in cutlass.range(work.count, unroll=1):
        tile(cfg, owner, args, cta, thread, work, (slot, n, place), of_rows)
        slot, place = slot.next(owner.slots[0]), place.next(work)
    if work.count > 0:
        cta.done.wait(0, 0)  # a CTA outlives its commits
    for number, (*_, shared) in enumerate(cfg.summed):
        if cutlass.const_expr(shared == OF_ROWS):
            line = line_of(args, number)
            line[thread.column // owner.columns * ROWS + thread.row] = of_rows[number]


def line_of(args: OwnerArgs, number: int) -> cute.Tensor:
    """The CTA's numbers of an element."""
    block, _, _ = cute.arch.block_idx()
    return args.lines[number][block, None]


@cute.jit
def multiply(owner: cutlass.Constexpr, cta, tmem: Int32, work: Work):
    """The MMA warp: S and dP of every tile, one commit for both, and one barrier after both have been read."""
    slots, count = first_slots(owner, 0), work.count
    for n in cutlass.range(count, unroll=1):
        products.make(owner, cta, tmem, slots, 0, n)
        products.make(owner, cta, tmem, slots, 1, n)
        cta.ds_ready.wait(0, n & 1)
        tensor_memory.fence_after()
        slots = next_slots(owner, slots)
    if count > 0:
        cta.done.commit(0)


@cute.jit
def tile(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    thread,
    work: Work,
    at: tuple,
    of_rows: cute.Tensor,
):
    """One tile of scores. at: (slot, turn, place)."""
    _, n, place = at
    cta.dp_ready.wait(0, n & 1)  # and S, which is made before dP
    tensor_memory.fence_after()
    ahead = [Float32(0.0) for _ in cfg.summed]  # sums of a distance so far, from lane to lane
    for column, numbers in batches(cfg, owner, args, thread, work, place):
        for number, (*_, shared) in enumerate(cfg.summed):
            if shared == OF_ROWS:
                of_rows[number] = of_rows[number] + total(numbers[number])
            elif shared == DISTANCES:
                first = warp_sums(cfg, owner, cta, thread, (number, n))
                ahead[number] = add_distances(first, column, numbers[number], ahead[number], thread)
            else:
                line = line_of(args, number)
                store_scores(owner, line, numbers[number], thread, place, column)
    tensor_memory.fence_before()
    cta.ds_ready.arrive(0)
    if cutlass.const_expr(owner.tables):
        for number, (*_, shared) in enumerate(cfg.summed):
            if cutlass.const_expr(shared == DISTANCES):
                last = owner.columns + LANES - 2 - thread.row % LANES
                warp_sums(cfg, owner, cta, thread, (number, n))[last] = ahead[number]
        cute.arch.barrier(barrier_id=WRITTEN, number_of_threads=owner.warps.compute_threads)
        for number, (*_, shared) in enumerate(cfg.summed):
            if cutlass.const_expr(shared == DISTANCES):
                at_turn = number, n, place
                store_distances(cfg, owner, cta, line_of(args, number), thread, at_turn)


def batches(cfg, owner, args: OwnerArgs, thread, work: Work, place: Place):
    """Yield (first column, dF of BATCH columns for each element), without what masks or the end of queries hide."""
    first = place.tile * owner.other_rows + thread.column
    ends = bands_of(cfg, owner, args.sizes, work.sequence, work.row + thread.row)
    bands = [(moved(lo, -first), moved(hi, -first)) for lo, hi in ends]
    exists = work.row + thread.row < work.sequence.length_q
    s, dp = thread.lanes + owner.s_column, thread.lanes + owner.dp_column
    full = cfg.listed and place.is_full
    for column, (scores, of_dp) in tensor_memory.load_pairs(s, dp, owner.columns, BATCH):
        columns = [first + column + i for i in range(BATCH)]
        places = weights.places(cfg, owner, args, work, place, thread.row, columns)
        word = select_(exists, visibility.visibility(bands, column), Int32(0))
        out = []
        for moves in weights.of_elements(cfg, args, scores, thread.lse, places, full):
            seen = visibility.selected(moves, word, hidden=0.0)
            out.append([x * (y - thread.delta) for x, y in zip(seen, of_dp, strict=True)])
        yield column, out


def total(numbers: list):
    """Their sum, pair by pair."""
    while len(numbers) > 1:
        numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return numbers[0]


def table_of(cfg, number: int) -> int:
    """How many sums over distances are before that of an element."""
    return sum(shared == DISTANCES for *_, shared in cfg.summed[:number])


def warp_sums(cfg, owner, cta, thread, at: tuple) -> cute.Tensor:
    """The warp's sums in shared memory: number s is of distance s - 31, counted from its first row and column.

    at: (number of the element, turn)
    """
    warp = thread.row // LANES + thread.column // owner.columns * (len(owner.warps.compute) // 2)
    first = cta.distances.iterator + buffer_of(cfg, owner, *at) + warp * owner.span
    return cute.make_tensor(first, cute.make_layout(owner.span))


def buffer_of(cfg, owner, number: int, n):
    """First number of a turn's sums in shared memory."""
    tables = table_of(cfg, len(cfg.summed))
    return ((n & 1) * tables + table_of(cfg, number)) * (len(owner.warps.compute) * owner.span)


@cute.jit
def add_distances(
    sums: cute.Tensor, column: cutlass.Constexpr, numbers: list, ahead: Float32, thread
) -> Float32:
    """Add BATCH columns to the sums that wander over the lanes; complete ones go to shared memory. -> the others."""
    lane = thread.row % LANES
    for i, number in enumerate(numbers):
        before = cute.arch.shuffle_sync_up(ahead, 1)
        ahead = select_(lane == 0, Float32(0.0), before) + number
        if lane == LANES - 1:
            sums[column + i] = ahead
    return ahead


@cute.jit
def store_distances(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    cta,
    line: cute.Tensor,
    thread,
    at: tuple,
):
    """A thread's distance of a tile: the sums of the warps that have it, in their order."""
    number, n, place = at
    mine = thread.row + thread.column // owner.columns * ROWS
    value, base = Float32(0.0), buffer_of(cfg, owner, number, n)
    for warp in cutlass.range_constexpr(len(owner.warps.compute)):
        row, column = warp % 4 * LANES, warp // 4 * owner.columns
        inside = mine - (ROWS - 1) - column + row + LANES - 1
        if inside >= 0 and inside < owner.columns + LANES - 1:
            value = value + cta.distances[base + warp * owner.span + inside]
    to = place.tile * owner.distances + mine
    if cutlass.const_expr(owner.distances == owner.warps.compute_threads):
        line[to] = value
    elif mine < owner.distances:
        line[to] = value


def store_scores(owner, line: cute.Tensor, numbers: list, thread, place: Place, column):
    """BATCH numbers of a row, of `columns` in all."""
    columns = line.shape[0] // ROWS
    first = thread.row * columns + place.tile * owner.other_rows + thread.column + column
    layout = cute.make_layout(BATCH)
    held = cute.make_rmem_tensor(BATCH, Float32)
    for i, number in enumerate(numbers):
        held[i] = number
    to = cute.make_tensor((line.iterator + first).align(16), layout)
    cute.autovec_copy(held, to)
