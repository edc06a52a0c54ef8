"""Softmax warps of either CTA: S -> P, one key tile at a time; four threads share a row, a quarter of the keys each.

    thread t    row t % 64 of the CTA
                lanes of tensor memory: of half (t / 64) % 2, keys 64 half to 64 half + 63 of a key tile
                warpgroup t / 128: the first or the second 32 of these, and the output whose O it rescales and stores

For every key tile:

    wait s_ready          read the row's 32 scores, mask them if the tile needs it
    row maximum           of this thread; the other three maxima come through shared memory
    P = 2^(c s - c m)
    wait pv_done          O is complete up to the previous tile, and its P has been read
    a maximum moved       O *= 2^(old - new), this thread's 128 columns. Rare: it may lag by 2^8
    P to shared memory    a quarter of a row, in the layout of operand A of the next product
    p_ready

All four keep the same running maximum, so they take the same branch. After the last tile they add up their sums, wait
for O and store it (store.py).
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ...blueprint.chip import WARP_SIZE
from ...few_rows.columns import NAMED_BARRIER, SoftmaxWarps
from ...few_rows.softmax import Before
from ...few_rows.visibility import is_picked
from ...instructions import tensor_memory
from ...steps import row_math, sinks, visibility
from ...steps.row_math import RowState
from ...steps.scores import RowContext, log2_scale, row_context, whole_tiles
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...work import scales
from ...work.blocks import rank_in_cluster
from ...work.queue import NO_MORE, WorkQueue
from ...work.tile import Work
from . import store
from .schedule import S_BUFFERS
from .tiles import CTAS

BATCH = 32  # columns of O that are in registers at a time


@dataclass(frozen=True)
class Place:
    """A softmax thread.

    thread  0 to 255
    row     within the CTA; row_of_tile: within the 128 rows of the pair
    half    0 or 1: half of the lanes, hence of the keys of a tile and of the columns of an output
    group   0 or 1: the warpgroup, which has half of these keys and one of the outputs
    """

    thread: Int32
    row: Int32
    row_of_tile: Int32
    half: Int32
    group: Int32

    @staticmethod
    def here(cfg) -> "Place":
        thread, _, _ = cute.arch.thread_idx()
        rows = cfg.tiles.q_box_rows
        row = thread % rows
        number = thread // rows
        return Place(thread, row, rank_in_cluster() * rows + row, number % CTAS, number // CTAS)


@dataclass(frozen=True)
class PairState(RowState):
    """largest: score of the row so far, where cfg.write_max."""

    largest: Float32 | None = None


def exchange(cfg, smem: Smem, place: Place, number, value) -> list:
    """The values of all threads of this row, in the same order for each. number: count of earlier exchanges.

    There are two buffers, so the barrier of one exchange frees the buffer of the previous one.
    """
    rows, sharing = cfg.tiles.q_box_rows, cfg.tiles.threads_of_row
    smem.exchanged[(place.thread, number & 1)] = value
    cute.arch.barrier(barrier_id=NAMED_BARRIER, number_of_threads=sharing * rows)
    return [smem.exchanged[(place.row + i * rows, number & 1)] for i in range(sharing)]


def write_p(cfg, smem: Smem, place: Place, words: list):
    """Store this thread's quarter of a row of P."""
    tile = cfg.tiles.p_tile
    span, half_bytes = tile.swizzle.span_bytes, cfg.tiles.bytes_of(cfg.tiles.s_columns)
    of_half = tile.chunk_bytes if half_bytes == span else half_bytes
    of_group = cfg.tiles.bytes_of(cfg.tiles.keys_of_thread)
    line = place.half * of_half + place.row * span + place.group * of_group
    for piece in range(len(words) // 4):
        four = words[4 * piece : 4 * piece + 4]
        store_piece(smem.p_address + tile.swizzle(line + piece * PIECE_BYTES), four)


def column_of_o(cfg, place: Place):
    """First tensor memory column of this thread's output."""
    return cfg.tmem.o[0] + place.group * (cfg.tmem.o[1] - cfg.tmem.o[0])


def rescale_o(cfg, tmem, place: Place, factor):
    """O *= factor, in this thread's columns."""
    address = tmem + column_of_o(cfg, place)
    for first, values in tensor_memory.load_batches(address, cfg.tiles.o_columns, BATCH):
        tensor_memory.store(address + first, row_math.multiplied(values, factor))
    tensor_memory.wait_store()


def first_key(cfg, place: Place, n):
    """The first of this thread's keys of key tile n."""
    inside = place.half * cfg.tiles.s_columns + place.group * cfg.tiles.keys_of_thread
    return n * cfg.tiles.BN + inside


def scores_of(cfg, tmem, place: Place, buffer) -> list:
    """This thread's scores of a key tile."""
    address = tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
    address = address + place.group * cfg.tiles.keys_of_thread
    scores = tensor_memory.load(address, cfg.tiles.keys_of_thread)
    tensor_memory.wait_load()
    return scores


def picked_keys(cfg, args: KernelArgs, work: Work, place: Place, n) -> Int32:
    """Bitmask of this warp's 32 keys of a tile that the page table has a page for; each lane looks up one key."""
    assert cfg.tiles.keys_of_thread == WARP_SIZE
    key = first_key(cfg, place, n) + cute.arch.lane_idx()
    return cute.arch.vote_ballot_sync(is_picked(cfg, args, work, key))


def keep_picked(word, scores: list) -> list:
    """Scores with -inf where there is no key."""
    out = []
    for i, score in enumerate(scores):
        picked = (word & (1 << i)) != 0
        out.append(select_(picked, score, Float32(visibility.MASKED)))
    return out


@cute.jit
def step(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    row: RowContext,
    before: Before,
    n: Int32,
    state: PairState,
    masked: cutlass.Constexpr,
) -> PairState:
    """Key tile n: scores to probabilities."""
    args, smem, tmem = warps.args, warps.smem, warps.tmem
    events, place = warps.events, warps.place
    tile = n - work.tiles.first + before.tiles
    buffer = tile & (S_BUFFERS - 1)
    picked = None
    if cutlass.const_expr(cfg.picks_keys):  # in flight while S is computed
        picked = picked_keys(cfg, args, work, place, n)
    events.s_ready.wait(buffer, tile >> 1 & 1)
    tensor_memory.fence_after()
    scores = scores_of(cfg, tmem, place, buffer)
    if cutlass.const_expr(masked):
        first = first_key(cfg, place, n)
        lower = cfg.mask.has_lower_bound or not cfg.mask.is_band
        bands = [(lo - first if lower else None, hi - first) for lo, hi in row.bands]
        scores = visibility.keep_visible(scores, bands)
    if cutlass.const_expr(cfg.picks_keys):
        scores = keep_picked(picked, scores)
    scale_log2 = log2_scale(cfg, args, row.factor)
    start = state.largest if cfg.write_max else state.row_max
    own = row_math.row_maximum(scores, start)
    tile_max = own
    for other in exchange(cfg, smem, place, tile + before.work_tiles, own):
        tile_max = cute.arch.fmax(tile_max, other)
    largest = None
    if cutlass.const_expr(cfg.write_max):
        largest = tile_max
        tile_max = cute.arch.fmax(largest, state.row_max)
    row_max, safe_max, factor = row_math.update_maximum(
        state.row_max, tile_max, scale_log2, cfg.schedule.rescale_log2
    )
    bias = row_math.exponent_bias(cfg, safe_max, scale_log2)
    values = row_math.powers(scores, scale_log2, bias, frozenset())
    words = row_math.pack(values, cfg.p_dtype)
    total = row_math.row_total(row_math.add_values([], values))
    events.pv_done.wait(0, (tile - 1) & 1)
    if n != work.tiles.first:  # at the first tile, O holds no product of this work tile
        if cute.arch.vote_any_sync(factor < 1.0):
            tensor_memory.fence_after()
            rescale_o(cfg, tmem, place, factor)
    write_p(cfg, smem, place, words)
    cute.arch.fence_proxy("async.shared", space="cta")
    tensor_memory.fence_before()
    events.p_ready.arrive(0)
    return PairState(row_max, state.row_sum * factor + total, largest)


def begin(cfg) -> PairState:
    """Initial state of a row."""
    state = RowState.empty()
    largest = Float32(-Float32.inf) if cfg.write_max else None
    return PairState(state.row_max, state.row_sum, largest)


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    before: Before,
) -> tuple[RowContext, PairState]:
    """The mainloop: all key tiles of a work tile."""
    args, place = warps.args, warps.place
    row = row_context(cfg, args, work, 0, place.row_of_tile)
    whole = whole_tiles(cfg, args, work, 0)
    first, end = work.tiles.first, work.tiles.first + work.tiles.count
    state = begin(cfg)
    if cutlass.const_expr(cfg.mask.has_lower_bound):
        for n in cutlass.range(first, whole.begin, unroll=1):
            state = step(cfg, warps, work, row, before, n, state, masked=True)
    if cutlass.const_expr(cfg.mask.is_band):
        for n in cutlass.range(whole.begin, whole.end, unroll=1):
            state = step(cfg, warps, work, row, before, n, state, masked=False)
    for n in cutlass.range(whole.end, end, unroll=1):
        state = step(cfg, warps, work, row, before, n, state, masked=True)
    return row, state


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
):
    """Process every work tile. `tmem`: address of the first column for this warp's lanes."""
    place = Place.here(cfg)
    warps = SoftmaxWarps(args, smem, tmem, events, place)
    before = Before(Int32(0), Int32(0))
    work = queue.next(cfg, args, before.work_tiles)
    while work.tiles.count != NO_MORE:
        row, state = key_tiles(cfg, warps, work, before)
        tiles = before.tiles + work.tiles.count
        sink = sinks.of_head(args, row.head) if sinks.end_rows(cfg) else None
        a, b, c, d = exchange(cfg, smem, place, tiles + before.work_tiles, state.row_sum)
        scale_log2 = log2_scale(cfg, args, row.factor)
        total = row_math.closed(cfg, state.row_max, (a + b) + (c + d), scale_log2)
        if work.tiles.count > 0:
            events.pv_done.wait(0, (tiles - 1) & 1)
            tensor_memory.fence_after()
        state = replace(state, row_sum=total)
        divisor = sinks.ended(cfg, sink, state.row_max, total, scale_log2)
        factor = scales.times(row_math.inverse(divisor), scales.of_output(cfg, args, work))
        store.output(cfg, args, work, place, tmem + column_of_o(cfg, place), factor)
        if cutlass.const_expr(cfg.write_lse):
            store.log_sum_exp(cfg, args, work, place, state, row.factor)
        if cutlass.const_expr(cfg.write_max):
            store.largest_score(cfg, args, work, place, state, row.factor)
        before = Before(tiles, before.work_tiles + 1)
        work = queue.next(cfg, args, before.work_tiles)
