"""Softmax warpgroup i: S_i -> P_i and the factor that O_i needs, key tile by key tile; a thread owns one row.

For every key tile:

    wait s_ready[i]          read the row's BN scores, mask them if the tile needs it
    row maximum              factor 2^(old - new) -> row_scale[i]          correction can begin
    P = 2^(c s - c m)        stored quarter by quarter, over S or, where it has room, beside it
    after three quarters     p_ready[i]                                    the MMA can begin
    after the last one       p_last[i]
    row sum                  while the MMA works

After the last one the row sum goes to correction, which divides O by it, in the place of the factor; the log-sum-exp
goes to global memory.

Whole tiles and masked tiles are separate loops over the same step: a tile that needs no mask carries no mask code.
A sink is a key with the sink as its score and no value: the state a row starts with.
"""

import math
from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from . import (
    exp2,
    kv_range,
    mask,
    online_softmax,
    rows,
    score_mods,
    tmem_instructions,
    work_queue,
)
from .kernel_args import Events, KernelArgs, Smem, Work
from .online_softmax import LOG2_E, RowState
from .scalars import minimum
from .work_queue import WorkQueue

LOAD_COLUMNS = 32  # scores of one tcgen05.ld


def read_scores(cfg, address) -> list:
    """The BN scores of this thread's row."""
    scores = []
    for column in range(0, cfg.BN, LOAD_COLUMNS):
        scores += tmem_instructions.load(address + column, LOAD_COLUMNS)
    tmem_instructions.wait_load()
    return scores


def write_probabilities(
    cfg, smem: Smem, events: Events, i, thread, address, scores: list, scale_log2, bias
) -> list:
    """P = 2^(scale_log2 s + bias), rounded and stored quarter by quarter; returns the accumulators of its sum.

    The sum is taken of the values before rounding.

    P over S     softmax and P V wait for each other, so P must be there soon: the sum comes last. The bias is read
                 again, from shared memory, after p_ready: otherwise the compiler computes the last quarter before that.
    P apart      they do not wait: the sum fills the gaps between exponentials.
    """
    pairs = cfg.BN // 2
    first_pair = 0 if cfg.p_apart else pairs // 4
    emulated = (
        exp2.emulated_pairs(pairs, cfg.exp2_emulated, first_pair)
        if cfg.exp2_emulated
        else frozenset()
    )
    if not cfg.p_apart:
        smem.row_bias[thread] = bias
    quarter = cfg.BN // 4
    sums, late = [], []
    for first in range(0, cfg.BN, quarter):
        if first == cfg.p_first_part:
            tmem_instructions.wait_store()
            tmem_instructions.fence_before()
            events.p_ready.arrive(i)
            if not cfg.p_apart:
                bias = smem.row_bias[thread]
        here = frozenset(pair - first // 2 for pair in emulated)
        exponents = online_softmax.scaled_exponents(
            scores[first : first + quarter], scale_log2, bias
        )
        values = online_softmax.exponentials(exponents, here)
        words = online_softmax.pack_pairs(values, cfg.qkv_dtype)
        tmem_instructions.store(address + first * cfg.dtype_bytes // 4, words)
        if cfg.p_apart:
            sums = online_softmax.add_values(sums, values)
        else:
            late += values
    tmem_instructions.wait_store()
    tmem_instructions.fence_before()
    events.p_last.arrive(i)
    return online_softmax.add_values(sums, late)


@dataclass(frozen=True)
class RowContext:
    """What a softmax thread knows about its row."""

    thread: Int32
    q_index: Int32  # of the query in its sequence, not beyond the last
    head: Int32
    bands: tuple  # ((lo, hi), ...) of the keys it sees


def row_context(cfg, args: KernelArgs, work: Work, i, thread) -> RowContext:
    sequence = work.sequence
    row = rows.row_of(cfg, work, i, thread % cfg.rows_per_q_tile)
    position = sequence.position(row.q_index)
    bands = cfg.mask.bands(position, sequence.num_keys, args.mask_sizes)
    limited = tuple((lo, minimum(hi, sequence.key_limit)) for lo, hi in bands)
    return RowContext(thread, minimum(row.q_index, sequence.seqlen_q - 1), row.head, limited)


def first_state(cfg, args: KernelArgs, row: RowContext) -> RowState:
    """Of a row that has seen no key: nothing, or the sink, in the units of the scores."""
    if not cfg.sink:
        return RowState.empty()
    sink = args.sink[row.head].to(Float32)
    return RowState(sink if cfg.score_mod is not None else sink / args.scale, Float32(1.0))


def log2_scale(cfg, args: KernelArgs):
    """From the units of the scores to log2: a score_mod has had the softmax scale already."""
    return Float32(LOG2_E) if cfg.score_mod is not None else args.scale_log2


def modified(
    cfg, args: KernelArgs, work: Work, row: RowContext, n, scores: list, masked: bool
) -> list:
    """Scores after score_mod and mask_mod, column by column; indices beyond the sequence are not passed on."""
    aux = score_mods.Aux.of(args, work.sequence, row)
    out = []
    for column, score in enumerate(scores):
        key = n * cfg.BN + column
        if masked:
            key = minimum(key, work.sequence.num_keys - 1)
        indices = (work.sequence.batch, row.head, row.q_index, key)
        where = (*(Int32(index) for index in indices), aux)
        if cfg.score_mod is not None:
            score = Float32(cfg.score_mod.function(score * args.scale, *where))
        if cfg.mask_mod is not None:
            score = select_(cfg.mask_mod.function(*where), score, Float32(mask.MASKED))
        out.append(score)
    return out


@cute.jit
def step(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    i: Int32,
    row: RowContext,
    tiles_before: Int32,
    n: Int32,
    state: RowState,
    masked: cutlass.Constexpr,
) -> RowState:
    """Key tile n: scores to probabilities. `tiles_before`: key tiles of all work tiles before."""
    phase = (n - work.tiles.first + tiles_before) & 1
    events.s_ready.wait(i, phase)
    tmem_instructions.fence_after()
    scores = read_scores(cfg, tmem)
    if cutlass.const_expr(cfg.p_apart):
        tmem_instructions.fence_before()
        events.s_free.arrive(i)
    if cutlass.const_expr(cfg.score_mod is not None or cfg.mask_mod is not None):
        scores = modified(cfg, args, work, row, n, scores, masked)
    if cutlass.const_expr(masked):
        first_key = n * cfg.BN
        lower = cfg.mask.has_lower_bound or not cfg.mask.is_band
        bands = [(lo - first_key if lower else None, hi - first_key) for lo, hi in row.bands]
        scores = mask.keep_visible(scores, bands)
    scale_log2 = log2_scale(cfg, args)
    tile_max = online_softmax.row_maximum(scores, state.row_max)
    row_max, safe_max, factor = online_softmax.update_maximum(
        state.row_max, tile_max, scale_log2, cfg.rescale_log2
    )
    if cutlass.const_expr(cfg.p_apart):  # the last factor and the last P have been read
        events.pv_done.wait(i, phase ^ 1)
        tmem_instructions.fence_after()
    if n != work.tiles.first:  # nothing to rescale before
        smem.row_scale[row.thread] = factor
        events.row_scale.arrive(i)
    bias = -safe_max * scale_log2
    p_address = tmem + (cfg.tmem_p[0] - cfg.tmem_s[0])
    sums = write_probabilities(
        cfg, smem, events, i, row.thread, p_address, scores, scale_log2, bias
    )
    row_sum = state.row_sum * factor + online_softmax.row_total(sums)
    return RowState(row_max, row_sum)


def whole_tiles(cfg, args: KernelArgs, work: Work, i) -> kv_range.WholeTiles:
    """The key tiles that every row of query tile i sees whole."""
    sequence, per_tile = work.sequence, rows.positions_per_tile(cfg)
    first = minimum(work.tile.first_position + i * per_tile, sequence.seqlen_q - 1)
    last = minimum(first + per_tile, sequence.seqlen_q) - 1
    return kv_range.whole_tiles(
        cfg,
        work.tiles,
        sequence.position(first),
        sequence.position(last),
        sequence.num_keys,
        sequence.key_limit,
        args.mask_sizes,
    )


@cute.jit
def work_tile(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    work: Work,
    i: Int32,
    tiles_before: Int32,
) -> tuple[RowContext, RowState]:
    """All key tiles of query tile i."""
    thread, _, _ = cute.arch.thread_idx()
    row = row_context(cfg, args, work, i, thread)
    whole = whole_tiles(cfg, args, work, i)
    end = work.tiles.first + work.tiles.count
    state = first_state(cfg, args, row)
    before = tiles_before
    if cutlass.const_expr(cfg.mask.has_lower_bound):
        for n in cutlass.range(work.tiles.first, whole.begin, unroll=1):
            state = step(cfg, args, smem, tmem, events, work, i, row, before, n, state, masked=True)
    if cutlass.const_expr(cfg.mask.is_band):
        for n in cutlass.range(whole.begin, whole.end, unroll=1):
            state = step(
                cfg, args, smem, tmem, events, work, i, row, before, n, state, masked=False
            )
    for n in cutlass.range(whole.end, end, unroll=1):
        state = step(cfg, args, smem, tmem, events, work, i, row, before, n, state, masked=True)
    return row, state


@cute.jit
def write_lse(cfg: cutlass.Constexpr, args: KernelArgs, work: Work, i: Int32, state: RowState):
    """The log-sum-exp of this thread's row, natural logarithm; of a row without keys -inf."""
    thread, _, _ = cute.arch.thread_idx()
    place = rows.row_of(cfg, work, i, thread % cfg.rows_per_q_tile)
    sequence = work.sequence
    if place.q_index < sequence.seqlen_q:
        lse = -Float32.inf
        if state.row_sum != 0.0:
            total_log2 = cute.math.log2(state.row_sum, fastmath=True)
            lse = (state.row_max * log2_scale(cfg, args) + total_log2) * math.log(2)
        if cutlass.const_expr(cfg.q_layout == "dense"):
            args.lse[sequence.batch, place.head, place.q_index] = lse
        else:
            args.lse[place.head, sequence.q_first_row + place.q_index] = lse


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    queue: WorkQueue,
    i: Int32,
):
    """Query tile i of every work tile. `tmem`: address of S_i for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    number, tiles = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != work_queue.NO_MORE:
        row, state = work_tile(cfg, args, smem, tmem, events, work, i, tiles)
        if work.tiles.count > 0:
            tiles = tiles + work.tiles.count
            # Correction has read the last factor, or the sum of the work tile before.
            events.p_ready.wait(i, (tiles - 1) & 1)
            smem.row_scale[thread] = state.row_sum
            events.row_scale.arrive(i)
        if cutlass.const_expr(cfg.write_lse):
            write_lse(cfg, args, work, i, state)
        number = number + 1
        work = queue.next(cfg, args, number)
    events.p_ready.arrive(i)  # correction has begun the phase of a tile that does not come
