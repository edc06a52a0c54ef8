"""A key tile of softmax warpgroup i: scores of a thread's row -> P, and the rescale factor of O_i.

step          the tile's maximum, then P: whole tiles and masked ones
first_step    a first whole tile whose reference is the maximum of its first quarter
lagged_step   the reference comes from earlier tiles (steps/lagged.py): no maximum of the tile's scores

wait s_ready[i]          read the row's BN scores, mask them if the tile needs it
row maximum              factor 2^(old - new) -> row_scale[i]          correction can begin
P = 2^(c s - c m)        stored quarter by quarter, over S or, where memory has room, next to S
after three quarters     p_ready[i]                                    the MMA can begin
after the last one       p_last[i]                              (with a lagged reference p_ready[i] comes after two)
row sum                  while the MMA works
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..instructions import tensor_memory
from ..steps import (
    half_powers,
    lagged,
    lost_weights,
    row_math,
    seen,
    skipped,
    token_scales,
    visibility,
)
from ..steps.row_math import RowState
from ..steps.scores import (
    apply_score_functions,
    log2_scale,
    maximum_comes_with_load,
    quarters,
    read_scores,
    write_probabilities,
)
from ..steps.warpgroup import Exponential, KeyTile, PlaceOfP, RowContext, Share, Warpgroup
from ..work import block_lists


def scores_of(cfg, order, group: Warpgroup, tile: KeyTile, with_maxima=False) -> tuple:
    """(address of S_i, the row's scores, values with the same maximum), in registers: S_i may be overwritten."""
    events, i = group.events, group.i
    s_address = order.s_address(cfg, group.tmem, tile.at)
    events.s_ready.wait(tile.at, tile.phase)
    tensor_memory.fence_after()
    scores, maxima = read_scores(
        *(cfg, s_address, with_maxima),
        *(order.first_columns(cfg), lambda: order.first_columns_read(events, i)),
    )
    order.may_free_s(events, i, tile.phase)
    order.scores_read(events, i)
    return s_address, scores, maxima


def begin_scores(cfg, order, group: Warpgroup, tile: KeyTile) -> tuple:
    """(address of S, quarters of the row's scores in load order), where no other warp waits for the read of S."""
    s_address = order.s_address(cfg, group.tmem, tile.at)
    group.events.s_ready.wait(tile.at, tile.phase)
    tensor_memory.fence_after()
    ahead = tensor_memory.load(s_address, cfg.tiles.BN // 4)
    return s_address, quarters(ahead, cfg, s_address)


def visible_bands(cfg, row: RowContext, n) -> list:
    """[(lo or None, hi)] of the columns of key tile n that the row sees."""
    first_key = n * cfg.tiles.BN
    lower = cfg.mask.has_lower_bound or not cfg.mask.is_band
    return [(lo - first_key if lower else None, hi - first_key) for lo, hi in row.bands]


def masked_scores(cfg, scores: list, bands: list) -> tuple:
    """-> (scores with -inf in hidden columns of the row, the words of steps/seen.py or None)."""
    if not cfg.sees_by_warp:
        return visibility.keep_visible(scores, bands), None
    words = seen.words_of(bands, cfg.tiles.BN)
    return seen.keep_visible(scores, words), words


def masked_parts(cfg, parts, bands: list):
    """The same for (first column, scores), part by part."""
    if not cfg.sees_by_warp:
        return visibility.keep_visible_parts(parts, bands)
    return seen.keep_visible_parts(parts, seen.words_of(bands, cfg.tiles.BN))


def send_factor(cfg, order, group: Warpgroup, row: RowContext, tile: KeyTile, factor):
    """Send correction the factor that O_i is multiplied by before the P V of this key tile."""
    to = order.buffer_before(tile.at)
    order.may_write_factor(group.events, tile.at, tile.phase)
    group.smem.row_scale[order.factor_word(cfg, row.thread, to)] = factor
    group.events.row_scale.arrive(to)


def store_p(
    cfg,
    order,
    group: Warpgroup,
    share: Share,
    tile: KeyTile,
    s_address,
    scores,
    exponential: Exponential,
):
    """P of the scores to tensor memory; -> the row's sum, or its lost weight (write_probabilities)."""
    p_address = order.p_address(cfg, s_address, group.i)

    def may_store():
        order.may_store_p(group.events, share.work, tile.n, group.i, tile.phase)

    to = PlaceOfP(p_address, share.row.thread, tile.at, may_store)
    return write_probabilities(cfg, order, group, to, scores, exponential)


def powers_of(cfg):
    """How a step computes its exponentials."""
    return half_powers.HALF if cfg.schedule.exponential == "half" else half_powers.EXACT


@cute.jit
def step(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    share: Share,
    n: Int32,
    state: RowState,
    masked: cutlass.Constexpr,
) -> RowState:
    """Key tile n, or the one listed for turn n: scores to probabilities. `order`: its hooks."""
    args, smem, events, i = group.args, group.smem, group.events, group.i
    work, row, tiles_before = share.work, share.row, share.tiles_before
    first = order.first_tile(cfg, work, i)
    phase = order.parity(cfg, work, n, i, tiles_before)
    tile = KeyTile(n, order.buffer_at(cfg, work, n, i, tiles_before), phase)
    with_maxima = not masked and maximum_comes_with_load(cfg)
    s_address, scores, maxima = scores_of(cfg, order, group, tile, with_maxima)
    of_keys = token_scales.entry_of(cfg, order, smem, events, work, n, i, tiles_before)
    scores = token_scales.scaled(cfg, events, of_keys, scores)
    key = n if cutlass.const_expr(share.listed is None) else share.listed
    if cutlass.const_expr(cfg.has_functions):
        full = block_lists.is_full(cfg, work, n)
        scores = apply_score_functions(cfg, args, work, row, key, scores, masked, full)
    if cutlass.const_expr(masked):
        scores, words = masked_scores(cfg, scores, visible_bands(cfg, row, key))
    scale_log2 = log2_scale(cfg, args, row.factor)
    largest = maxima if cutlass.const_expr(with_maxima) else scores
    own, tile_max = skipped.maxima(cfg, largest, state)
    row_max, safe_max, factor = row_math.update_maximum(
        state.row_max, tile_max, scale_log2, cfg.schedule.rescale_log2
    )
    order.may_write_p(events, i, phase)
    if cutlass.const_expr(order.holds_p):
        smem.row_bias[row.thread] = row_math.exponent_bias(cfg, safe_max, scale_log2)
    of_o = token_scales.factor_of_o(cfg, smem, of_keys, row.thread, factor)
    if n != first:  # nothing to rescale before
        send_factor(cfg, order, group, row, tile, of_o)
    if cutlass.const_expr(order.holds_p):
        bias = smem.row_bias[row.thread]  # otherwise the compiler computes P before the barriers
    else:
        bias = row_math.exponent_bias(cfg, safe_max, scale_log2)
    powers = token_scales.weighted(cfg, of_keys, powers_of(cfg))
    lost = lost_weights.before(state, factor)
    words = words if cutlass.const_expr(masked and order.sum_early) else None
    exponential = Exponential(scale_log2, bias, powers, lost, words)
    highest = None
    if cutlass.const_expr(cfg.skip_softmax):
        highest, total = cute.arch.fmax(own, state.highest, nan=True), Float32(0.0)
        if skipped.vote(cfg, group, row, tile, own * scale_log2, highest * scale_log2, n == first):
            total = store_p(cfg, order, group, share, tile, s_address, scores, exponential)
        else:
            skipped.store_zeros(cfg, order, group, work, tile, s_address)
    else:
        total = store_p(cfg, order, group, share, tile, s_address, scores, exponential)
    token_scales.release(cfg, events, of_keys)
    return skipped.followed(lost_weights.after(cfg, state, row_max, factor, total), highest)


def after(first: tuple, parts):
    """(first column, scores) part by part, of which the first has been taken."""
    yield first
    yield from parts


def joined(parts) -> list:
    """The scores of all parts."""
    return [score for _, scores in parts for score in scores]


@cute.jit
def first_step(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    share: Share,
    n: Int32,
    state: RowState,
) -> RowState:
    """Key tile n, the first and whole: its reference comes from the first quarter of its scores."""
    events, i, work = group.events, group.i, share.work
    phase = order.parity(cfg, work, n, i, share.tiles_before)
    tile = KeyTile(n, order.buffer_at(cfg, work, n, i, share.tiles_before), phase)
    scale_log2 = log2_scale(cfg, group.args, share.row.factor)
    s_address, parts = begin_scores(cfg, order, group, tile)
    first = next(parts)
    state = lagged.begun(cfg, state, first[1], scale_log2)
    scores = after(first, parts)
    if cutlass.const_expr(not cfg.reads_by_quarter):
        scores = joined(scores)
        order.may_free_s(events, i, phase)
        order.scores_read(events, i)
        order.may_write_p(events, i, phase)
    bias = -state.row_max * scale_log2
    powers = half_powers.Exact(row_math.saturated_powers)
    exponential = Exponential(scale_log2, bias, powers)
    total = store_p(cfg, order, group, share, tile, s_address, scores, exponential)
    return RowState(state.row_max, state.row_sum + total)


@cute.jit
def lagged_step(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: Warpgroup,
    share: Share,
    n: Int32,
    state: RowState,
    masked: cutlass.Constexpr,
) -> RowState:
    """Key tile n, not the first: its reference comes from earlier tiles, with no maximum of its scores."""
    events, i, work, row = group.events, group.i, share.work, share.row
    phase = order.parity(cfg, work, n, i, share.tiles_before)
    scale_log2 = log2_scale(cfg, group.args, row.factor)
    state, factor = lagged.renewed(state, scale_log2)
    tile = KeyTile(n, order.buffer_at(cfg, work, n, i, share.tiles_before), phase)
    if cutlass.const_expr(cfg.reads_by_quarter):
        s_address, scores = begin_scores(cfg, order, group, tile)
        send_factor(cfg, order, group, row, tile, factor)
    else:
        s_address, scores, _ = scores_of(cfg, order, group, tile)
        if cutlass.const_expr(cfg.has_functions):
            scores = apply_score_functions(cfg, group.args, work, row, n, scores, masked=False)
        order.may_write_p(events, i, phase)
        send_factor(cfg, order, group, row, tile, factor)
    bias = -state.row_max * scale_log2
    if cutlass.const_expr(masked):  # by quarter
        bands = visible_bands(cfg, row, n)
        scores = masked_parts(cfg, scores, bands)
        bias = lagged.of_visible(bias, bands)
    powers = half_powers.Exact(row_math.saturated_powers)
    exponential = Exponential(scale_log2, bias, powers)
    total = store_p(cfg, order, group, share, tile, s_address, scores, exponential)
    return RowState(state.row_max, state.row_sum + total)
