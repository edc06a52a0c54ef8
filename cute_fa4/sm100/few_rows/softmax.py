"""Softmax warps: S^T -> P^T, key tile by key tile; a thread owns a key of the tile, in all rows.

For every key tile:

    wait s_ready          read this key's score in each row, mask them if the tile needs it
    row maxima            over the warp, over the warps: columns.py
    P = 2^(c s - c m)
    wait pv_done          O is complete up to the previous tile, and its P has been read
    a maximum moved       O *= 2^(old - new), row by row: one depth per thread. Rare: it may lag by 2^8
    P to shared memory    a line of 32 bytes for each key, already laid out as B of the next product
    p_ready

After the last tile the threads add up their row sums, wait for O and store it: a warp holds 32 depths of every row.

Scales of 8-bit operands are constants of the work tile, except scales per query and head: such a scale multiplies the
scores of its row as they are read (work/scales.py).

Each of the 128 threads keeps its part of a row's sum, so only the maxima are exchanged for each tile. Unmasked and
masked tiles are separate loops over the same step. A row that begins with a sink (steps/sinks.py) has its weight in the
first thread's part of the sum.
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..blueprint.chip import align_up
from ..instructions import exp2, tensor_memory
from ..steps import row_math, sinks
from ..steps.scores import log2_scale, whole_tiles
from ..steps.store import PIECE_BYTES, store_piece
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import blocks, results, rows, scales
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work
from . import store, token_scales
from .barriers import S_BUFFERS
from .columns import (
    BATCH,
    BIAS,
    FACTOR,
    SCALE,
    Place,
    RowStates,
    SoftmaxWarps,
    products_of,
    publish,
    read,
    tile_maxima,
    total_over_keys,
    update,
)
from .visibility import apply_score_functions, is_picked, keep_picked, keep_visible

WORDS_OF_PIECE = PIECE_BYTES // 4


@dataclass(frozen=True)
class Before:
    """Progress of the CTA, which determines the parities.

    tiles       key tiles of all earlier work tiles
    work_tiles  earlier work tiles; each exchanges values once more than it has key tiles
    queries     earlier work tiles with keys, counted where scales of rows come with Q; None: not needed
    """

    tiles: Int32
    work_tiles: Int32
    queries: Int32 | None = None


def counts_sink(cfg, work: Work):
    """Whether this CTA adds the sink, which only one part does. None: keys are not split."""
    if cfg.cluster_parts > 1:
        return cute.arch.block_idx_in_cluster() == 0
    return results.is_first_part(cfg, work) if cfg.split_keys else None


def own_row(cfg, work: Work, place: Place, i: int) -> rows.Row:
    """The i-th row whose running maximum this lane keeps."""
    number = (place.lane & (min(cfg.tiles.rows, 32) - 1)) + 32 * i
    return rows.row_of(cfg, work, 0, number)


@dataclass(frozen=True)
class OwnScales:
    """The factor of each row's scores, where it is not 1: read from global memory by the lane that keeps the row."""

    def none_before(self):
        """Initial value of Before.queries."""

    def following(self, queries, work: Work):
        """Before.queries after a work tile."""

    def publish(self, cfg, args, smem: Smem, events: Events, work: Work, place, before):
        """The factor of each row to shared memory."""
        if cfg.tiles.rows_have_scales:
            kept = [own_row(cfg, work, place, i) for i in range(cfg.tiles.rows_per_lane)]
            publish(smem, place, SCALE, [scales.of_row(cfg, args, work, row) for row in kept])


OWN_SCALES = OwnScales()


def first_states(cfg, args: KernelArgs, work: Work, place: Place, factor) -> RowStates:
    """States of rows that have seen no key, or only sinks, in units of the scores. factor: of the scores, or None."""
    nothing, zero = Float32(-Float32.inf), Float32(0.0)
    unseen = (nothing,) * cfg.tiles.rows_per_lane
    largest = unseen if cfg.write_max else None
    if not sinks.begin_rows(cfg):
        return RowStates(unseen, (zero,) * cfg.tiles.rows, largest=largest)
    mine = place.thread == 0
    counts = counts_sink(cfg, work)
    maxima = []
    for i in range(cfg.tiles.rows_per_lane):
        head = rows.head_of(cfg, work, own_row(cfg, work, place, i))
        scaled = sinks.first_maximum(cfg, args, head, factor)
        maxima.append(scaled if counts is None else select_(counts, scaled, nothing))
    weight = Float32(2.0**cfg.p_lift_log2)
    one = select_(mine if counts is None else mine & counts, weight, zero)
    return RowStates(tuple(maxima), (one,) * cfg.tiles.rows, largest=largest)


def own_sinks(cfg, args: KernelArgs, work: Work, place: Place) -> list:
    """Those that the rows of this lane end with."""
    if not sinks.end_rows(cfg):
        return [None] * cfg.tiles.rows_per_lane
    kept = [own_row(cfg, work, place, i) for i in range(cfg.tiles.rows_per_lane)]
    return [sinks.of_head(args, rows.head_of(cfg, work, row)) for row in kept]


def write_p(cfg, smem: Smem, key, words: list):
    """This key's line of P: its probabilities in all rows, two a word."""
    tile = cfg.tiles.p_tile
    words = words + [Int32(0)] * (-len(words) % WORDS_OF_PIECE)
    for piece in range(len(words) // WORDS_OF_PIECE):
        inside = key * tile.swizzle.span_bytes + piece * PIECE_BYTES
        four = words[WORDS_OF_PIECE * piece :][:WORDS_OF_PIECE]
        store_piece(smem.p_address + tile.swizzle(inside), four)


def rescale_o(cfg, smem: Smem, place: Place, o_address, growth):
    """O *= factor, row by row, for this thread's depth. growth: from unit to unit, or None."""
    for first, values in tensor_memory.load_batches(o_address, cfg.tiles.rows, BATCH):
        factors = read(smem, place, FACTOR, first, len(values))
        if growth is not None:
            factors = [factor * growth for factor in factors]
        tensor_memory.store(o_address + first, products_of(values, factors))
    tensor_memory.wait_store()


def rescaled_sums(smem: Smem, place: Place, sums: tuple) -> tuple:
    """sums[row] * factor of the row."""
    out = []
    for first in range(0, len(sums), BATCH):
        batch = list(sums[first : first + BATCH])
        out += products_of(batch, read(smem, place, FACTOR, first, len(batch)))
    return tuple(out)


def probabilities(cfg, smem: Smem, place: Place, scores: list, scale_log2, sums: tuple, weight):
    """2^(scale_log2 s + bias of its row) for every score -> (rounded, two a word; sums with them before rounding).

    weight: the factor applied to them before rounding, or None
    """
    words, totals = [], []
    for first in range(0, len(scores), BATCH):
        batch = scores[first : first + BATCH]
        biases, values = read(smem, place, BIAS, first, len(batch)), []
        for i in range(0, len(batch), 2):
            x, y = cute.arch.fma_packed_f32x2(
                (batch[i], batch[i + 1]), (scale_log2, scale_log2), (biases[i], biases[i + 1])
            )
            pair = exp2.hardware(x), exp2.hardware(y)
            totals += cute.arch.add_packed_f32x2((sums[first + i], sums[first + i + 1]), pair)
            values += pair
        if weight is not None:
            values = row_math.multiplied(values, weight)
        words += row_math.pack(values, cfg.p_dtype)
    return words, tuple(totals)


@cute.jit
def step(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    before: Before,
    n: Int32,
    states: RowStates,
    factor: Float32 | None,
    masked: cutlass.Constexpr,
) -> RowStates:
    """Key tile n: scores to probabilities. factor: of the scores in addition to the softmax scale, or None."""
    args, smem, tmem = warps.args, warps.smem, warps.tmem
    events, place = warps.events, warps.place
    tile = n - work.tiles.first + before.tiles
    buffer = tile & (S_BUFFERS - 1)
    key = blocks.key_tile(cfg, n) * cfg.tiles.BN + place.thread
    picked = True
    if cutlass.const_expr(cfg.picks_keys):  # in flight while S is computed
        picked = is_picked(cfg, args, work, key)
    ahead = token_scales.read_ahead(cfg, args, work, place, n, states.of_keys)
    events.s_ready.wait(buffer, tile >> 1 & 1)
    tensor_memory.fence_after()
    scores = tensor_memory.load(tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0]), cfg.tiles.rows)
    tensor_memory.wait_load()
    if cutlass.const_expr(cfg.tiles.rows_have_scales):
        scores = products_of(scores, read(smem, place, SCALE, 0, cfg.tiles.rows))
    scores = token_scales.scaled(cfg, states.of_keys, scores)
    if cutlass.const_expr(cfg.score_mod is not None or cfg.mask_mod is not None):
        scores = apply_score_functions(cfg, args, work, key, scores, factor, masked)
    if cutlass.const_expr(masked):
        scores = keep_visible(cfg, args, work, key, scores)
    if cutlass.const_expr(cfg.picks_keys):
        scores = keep_picked(picked, scores)
    scale_log2 = log2_scale(cfg, args, factor)
    exchange = tile + before.work_tiles
    token_scales.hand_in(cfg, smem, place, exchange, states.of_keys)
    largest = None
    if cutlass.const_expr(cfg.write_max):
        largest = tuple(tile_maxima(cfg, smem, place, scores, exchange, states.largest))
        both = zip(states.maxima, largest, strict=True)
        highest = [cute.arch.fmax(old, new) for old, new in both]
    else:
        highest = tile_maxima(cfg, smem, place, scores, exchange, states.maxima)
    unit = token_scales.new_unit(cfg, smem, exchange, states.of_keys)
    updates = [
        update(cfg, old, new, scale_log2) for old, new in zip(states.maxima, highest, strict=True)
    ]
    moved = updates[0].factor < 1.0
    for i in cutlass.range_constexpr(1, len(updates)):
        moved = moved | (updates[i].factor < 1.0)
    moved = token_scales.grows(states.of_keys, unit, moved)
    moved = cute.arch.vote_any_sync(moved)  # the same in all four warps
    growth = token_scales.growth(states.of_keys, unit)
    publish(smem, place, BIAS, [u.bias for u in updates])
    sums = states.sums
    if moved:
        publish(smem, place, FACTOR, [u.factor for u in updates])
        sums = rescaled_sums(smem, place, sums)
    weight = token_scales.weight(cfg, states.of_keys, unit)
    words, sums = probabilities(cfg, smem, place, scores, scale_log2, sums, weight)
    events.pv_done.wait(0, (tile - 1) & 1)
    if moved & (n != work.tiles.first):  # at the first tile O holds no product yet
        tensor_memory.fence_after()
        if cutlass.const_expr(len(cfg.tmem.o) == 1):
            rescale_o(cfg, smem, place, tmem + cfg.tmem.o[0], growth)
        else:
            for number in cutlass.range(len(cfg.tmem.o), unroll=1):
                rescale_o(cfg, smem, place, store.column_of_o(cfg, tmem, number), growth)
    write_p(cfg, smem, place.thread, words)
    cute.arch.fence_proxy("async.shared", space="cta")
    tensor_memory.fence_before()
    events.p_ready.arrive(0)
    of_keys = token_scales.after(states.of_keys, ahead, unit)
    return RowStates(tuple(u.maximum for u in updates), sums, of_keys, largest)


@cute.jit
def key_tiles(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    before: Before,
    of_rows: cutlass.Constexpr,
) -> RowStates:
    """All key tiles of a work tile."""
    args, place = warps.args, warps.place
    whole = whole_tiles(cfg, args, work, 0)
    first, end = work.tiles.first, work.tiles.first + work.tiles.count
    factor = scales.of_scores(cfg, args, work)
    of_rows.publish(cfg, args, warps.smem, warps.events, work, place, before)
    states = first_states(cfg, args, work, place, factor)
    states = replace(states, of_keys=token_scales.begin(cfg, args, work, place))
    if cutlass.const_expr(cfg.mask.has_lower_bound):
        for n in cutlass.range(first, whole.begin, unroll=1):
            states = step(cfg, warps, work, before, n, states, factor, masked=True)
    if cutlass.const_expr(cfg.mask.is_band):
        for n in cutlass.range(whole.begin, whole.end, unroll=1):
            states = step(cfg, warps, work, before, n, states, factor, masked=False)
    for n in cutlass.range(whole.end, end, unroll=1):
        states = step(cfg, warps, work, before, n, states, factor, masked=True)
    return states


@cute.jit
def finish(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    before: Before,
    states: RowStates,
):
    """O / row sums and the log-sum-exp to global memory."""
    args, smem, tmem = warps.args, warps.smem, warps.tmem
    events, place = warps.events, warps.place
    tiles = before.tiles + work.tiles.count
    scale_log2 = log2_scale(cfg, args, scales.of_scores(cfg, args, work))
    number = tiles + before.work_tiles
    row_sums = total_over_keys(cfg, smem, place, states, number, scale_log2)
    last_sinks = own_sinks(cfg, args, work, place)  # while the last product with P runs
    inverses, factor = [], scales.of_output(cfg, args, work)
    factor = scales.times(factor, token_scales.unit_of(states))
    for i in cutlass.range_constexpr(cfg.tiles.rows_per_lane):
        of_keys = states.maxima[i], row_sums[i]
        divisor = sinks.ended(cfg, last_sinks[i], *of_keys, scale_log2)
        inverses.append(scales.times(row_math.inverse(divisor), factor))
    publish(smem, place, FACTOR, inverses)
    if work.tiles.count > 0:
        events.pv_done.wait(0, (tiles - 1) & 1)
        tensor_memory.fence_after()
    store.outputs(cfg, args, smem, work, place, tmem)
    if cutlass.const_expr(cfg.write_lse):
        for i in cutlass.range_constexpr(cfg.tiles.rows_per_lane):
            row = place.lane + 32 * i
            if (place.warp == 0) & (row < cfg.tiles.rows):
                store.log_sum_exp(cfg, args, work, row, states.maxima[i], row_sums[i])
                if cutlass.const_expr(cfg.write_max):
                    store.largest_score(cfg, args, work, row, states.largest[i], row_sums[i])


@dataclass(frozen=True)
class Alone:
    """The epilogue of a CTA that shares its keys with no other CTA: it stores its results."""

    finish = staticmethod(finish)

    def set_up(self):
        """Every thread, when its CTA's mbarriers are initialised."""

    def begin(self):
        """Softmax, before its first work tile."""

    def after_others(self):
        """Another warp is done with the CTA's work tiles."""

    def in_descriptors(self, smem):
        """Addresses of the operands in the form that tensor-core descriptors take."""
        return smem


ALONE = Alone()


def set_up(cfg, smem: Smem, tmem, place: Place):
    """Zero what is read but never written later: columns of P beyond the rows, lanes of O beyond the depth."""
    zero = Int32(0)
    if cfg.tiles.rows < cfg.tiles.q_box_rows:
        tile, first = cfg.tiles.p_tile, align_up(cfg.tiles.bytes_of(cfg.tiles.rows), PIECE_BYTES)
        for byte in range(first, tile.swizzle.span_bytes, PIECE_BYTES):
            inside = place.thread * tile.swizzle.span_bytes + byte
            store_piece(smem.p_address + tile.swizzle(inside), [zero] * 4)
    if cfg.tiles.pv_mma_shape[0] < 128:
        tensor_memory.store(tmem + cfg.tmem.o[0], [zero] * cfg.tiles.rows)
        tensor_memory.wait_store()


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
    ending: cutlass.Constexpr = ALONE,
    of_rows: cutlass.Constexpr = OWN_SCALES,
):
    """Every work tile. `tmem`: address of the first column for this warp's lanes; ending: the epilogue.

    of_rows: where the scales of rows come from
    """
    place = Place.here()
    warps = SoftmaxWarps(args, smem, tmem, events, place)
    set_up(cfg, smem, tmem, place)
    ending.begin()
    before = Before(Int32(0), Int32(0), of_rows.none_before())
    work = queue.next(cfg, args, before.work_tiles)
    while work.tiles.count != NO_MORE:
        states = key_tiles(cfg, warps, work, before, of_rows)
        ending.finish(cfg, warps, work, before, states)
        queries = of_rows.following(before.queries, work)
        before = Before(before.tiles + work.tiles.count, before.work_tiles + 1, queries)
        work = queue.next(cfg, args, before.work_tiles)
