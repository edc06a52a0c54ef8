"""Operations of a softmax thread on the scores of its row in one key tile, and its facts about the row."""

import math
from dataclasses import replace
from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ...layouts.scalars import minimum
from ...scales import ROW
from ..blueprint.score_inputs import Aux
from ..instructions import exp2, tensor_memory, threads
from ..sync.kernel_args import KernelArgs
from ..work import kv_range, list_parts, results, rows, runs, scales
from ..work.tile import Work
from . import half_powers, lost_weights, row_math, seen, sinks, visibility
from .row_math import LOG2_E, RowState
from .warpgroup import Exponential, PlaceOfP, RowContext, Warpgroup

LOAD_COLUMNS = 32  # scores of one tcgen05.ld


def maximum_comes_with_load(cfg) -> bool:
    """Whether the instruction that loads scores also gives the largest: for scores without a function or a
    scale of keys, where the chip supports it."""
    plain = cfg.score_mod is None and cfg.mask_mod is None and cfg.descales.k != ROW
    return cfg.arch == "sm_103a" and plain


def read_scores(
    cfg, address, with_maxima: bool = False, first: tuple = (), first_read=None
) -> tuple:
    """-> (the BN scores of this thread's row, values with the same maximum: the scores, or one per load).

    first    columns that are loaded before the others; first_read() is called as soon as they are in registers
    """
    scores, maxima = {}, []
    columns = range(0, cfg.tiles.BN, LOAD_COLUMNS)
    for column in (*first, *(c for c in columns if c not in first)):
        if with_maxima:
            values, largest = tensor_memory.load_with_maximum(address + column, LOAD_COLUMNS)
            maxima.append(largest)
        else:
            values = tensor_memory.load(address + column, LOAD_COLUMNS)
        scores[column] = values
        if first and column == first[-1]:
            tensor_memory.wait_load()
            first_read()
    tensor_memory.wait_load()
    scores = [value for column in columns for value in scores[column]]
    return scores, maxima or scores


def quarters(ahead: list, cfg, address):
    """(first column, scores) of each quarter of a row; the load of the first quarter, `ahead`, is in flight."""
    return tensor_memory.batches_after(ahead, address, cfg.tiles.BN, cfg.tiles.BN // 4)


def write_probabilities(
    cfg, order, group: Warpgroup, to: PlaceOfP, scores, exponential: Exponential
):
    """P, rounded and stored quarter by quarter; returns its sum.

    The sum is over the values before rounding. scores: a list, or (first column, quarter of it) in the order of the
    loads from tensor memory.

    order.sum_early    the sum fills the gaps between exponentials
    otherwise          P is needed soon: the sum comes last. The bias is read again, from shared memory, after
                       p_ready: otherwise the compiler computes the last quarter before that.
    exponential.lost   returned in place of the sum, with the loss of P here added
    order.holds_p      all of P is in registers before the first part is stored
    """
    smem, events, powers = group.smem, group.events, exponential.powers
    scale_log2, bias, lost = exponential.scale_log2, exponential.bias, exponential.lost
    in_quarters = not isinstance(scores, list)
    emulated = emulated_units(cfg, powers.unit, 0 if order.sum_early or in_quarters else 1)
    if not order.sum_early:
        smem.row_bias[to.thread] = bias
    holds = order.holds_p
    quarter = cfg.tiles.BN // 4
    sums, halves, late, held = [], [], [], []
    sampled = ()
    if lost is not None:
        sampled = lost_weights.sampled_columns(cfg.tiles.BN, powers.unit, emulated)
    if not in_quarters:
        scores = [(c, scores[c : c + quarter]) for c in range(0, cfg.tiles.BN, quarter)]
    for first, some in scores:
        if first == cfg.p_first_part and not holds:
            tensor_memory.wait_store()
            tensor_memory.fence_before()
            events.p_ready.arrive(to.at)
            if not order.sum_early:
                bias = smem.row_bias[to.thread]
        here = frozenset(unit - first // powers.unit for unit in emulated)
        if exponential.words is None:
            p = powers(some, scale_log2, bias, here, cfg.p_dtype)
        else:
            of_seen = partial(
                powers, scale_log2=scale_log2, bias=bias, emulated=here, dtype=cfg.p_dtype
            )
            visible = exponential.words, first, cfg.tiles.BN
            p_words, sums = seen.add_powers(*visible, of_seen, some, sums)
            p = half_powers.Probabilities(p_words, [])
        held.append((cfg.tiles.tmem_columns_of(first), p.words))
        if not holds:
            if first == 0:
                to.may_store()
            tensor_memory.store(to.address + held[-1][0], held.pop()[1])
        if order.sum_early:
            sums = row_math.add_values(sums, p.values)
        else:
            late += p.values
        halves += p.halves
        for column in (c - first for c in sampled if first <= c < first + quarter):
            lost = lost_weights.add(lost, some[column : column + 2], scale_log2, bias)
    if holds:
        to.may_store()
        for column, words in held:
            tensor_memory.store(to.address + column, words)
        tensor_memory.wait_store()
        tensor_memory.fence_before()
        events.p_ready.arrive(to.at)
    else:
        tensor_memory.wait_store()
        tensor_memory.fence_before()
    events.p_last.arrive(to.at)
    if lost is not None:
        return lost
    total = row_math.row_total(row_math.add_values(sums, late))
    return total + half_powers.sum_of_halves(halves) if halves else total


def emulated_units(cfg, unit: int, first_quarter: int) -> frozenset[int]:
    """The units, of `unit` scores each, that the FMA units compute, from a quarter of the tile on."""
    units = cfg.tiles.BN // unit
    if not cfg.schedule.exp2_emulated:
        return frozenset()
    return exp2.emulated_pairs(units, cfg.schedule.exp2_emulated, units // 4 * first_quarter)


def row_context(cfg, args: KernelArgs, work: Work, i, thread) -> RowContext:
    sequence = work.sequence
    row = rows.row_of(cfg, work, i, thread % cfg.tiles.rows_per_q_tile)
    position = sequence.position(row.q_index)
    bands = cfg.mask.bands(position, sequence.num_keys, args.mask_sizes)
    limited = tuple((lo, minimum(hi, sequence.key_limit)) for lo, hi in bands)
    factor = scales.of_scores(cfg, args, work, row)
    q_index, head = minimum(row.q_index, sequence.seqlen_q - 1), rows.head_of(cfg, work, row)
    return RowContext(thread, q_index, head, limited, factor)


def computed_again(cfg, args: KernelArgs, work: Work, i, row: RowContext) -> RowContext:
    """The same row. Its place and its bands are new values, for which the code before this needs no registers."""
    if not cfg.row_again:
        return row
    again = row_context(cfg, args, work, i, threads.number_again())
    return replace(again, factor=row.factor)


def first_state(cfg, args: KernelArgs, work: Work, row: RowContext, mine=True) -> RowState:
    """The state of a row that has seen no key: empty, or the sink, in the units of the scores.

    mine: whether this warpgroup, among those that share the row, counts the sink; True or a Boolean of the kernel
    """
    if not sinks.begin_rows(cfg):
        return RowState.empty()
    in_scores = sinks.first_maximum(cfg, args, row.head, row.factor)
    weight = Float32(2.0**cfg.p_lift_log2)
    if cfg.in_parts or mine is not True:  # once over all parts and all warpgroups of a row
        empty = RowState.empty()
        if cfg.in_parts:
            first = results.is_first_part(cfg, work)
            mine = first if mine is True else first & mine
        return RowState(
            select_(mine, in_scores, empty.row_max), select_(mine, weight, empty.row_sum)
        )
    return RowState(in_scores, weight)


def log2_scale(cfg, args: KernelArgs, factor):
    """From the units of the scores to log2: a score_mod has already applied the softmax scale.

    factor: of the scores, in addition to the softmax scale, or None
    """
    if cfg.score_mod is not None:
        return Float32(LOG2_E)
    return scales.times(args.scale_log2, factor)


def scaled_largest(args: KernelArgs, largest, row_sum, factor):
    """The largest score of a row in natural units; NaN for a row whose sum is NaN. factor: as for log2_scale."""
    scaled = largest * scales.times(args.scale, factor)
    return select_(row_sum == row_sum, scaled, row_sum)


def apply_score_functions(
    cfg, args: KernelArgs, work: Work, row: RowContext, n, scores: list, masked: bool, full=None
) -> list:
    """Scores after score_mod and mask_mod, column by column; indices beyond the sequence are not passed to them.

    full: whether the key tile is one of a listed full block, of which mask_mod hides nothing; None: it is not listed
    """
    hides = cfg.mask_mod is not None and (masked or not cfg.lists_blocks)
    aux = Aux.of(cfg, args, work.sequence, row)
    out = []
    for column, score in enumerate(scores):
        key = place = n * cfg.tiles.BN + column
        if masked:
            key = minimum(key, work.sequence.num_keys - 1)
        indices = (work.sequence.batch, row.head, row.q_index, key)
        where = (*(Int32(index) for index in indices), aux.at(row.q_index, place))
        if cfg.score_mod is not None:
            scale = scales.times(args.scale, row.factor)
            score = cfg.score_mod.score(score * scale, *where)
        if hides:
            shows = cfg.mask_mod.shows(*where)
            shows = shows if full is None else full | shows
            score = select_(shows, score, Float32(visibility.MASKED))
        out.append(score)
    return out


def whole_tiles(cfg, args: KernelArgs, work: Work, i) -> kv_range.WholeTiles:
    """The key tiles that every row of query tile i sees whole."""
    sequence, per_tile = work.sequence, rows.positions_per_tile(cfg)
    first = minimum(work.tile.first_position + i * per_tile, sequence.seqlen_q - 1)
    last = minimum(first + per_tile, sequence.seqlen_q) - 1
    return kv_range.whole_tiles(
        cfg,
        work.tiles,
        i,
        sequence.position(first),
        sequence.position(last),
        sequence.num_keys,
        sequence.key_limit,
        args.mask_sizes,
    )


@cute.jit
def write_lse(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    i: Int32,
    state: RowState,
    factor: Float32 | None,
    mine=True,
):
    """The log-sum-exp of this thread's row, natural logarithm; -inf for a row without keys.

    factor: of the scores, in addition to the softmax scale, or None
    mine: whether this warpgroup writes it: True, or a Boolean of the kernel
    """
    if cutlass.const_expr(cfg.row_again):
        thread = threads.number_again()
    else:
        thread, _, _ = cute.arch.thread_idx()
    place = rows.row_of(cfg, work, i, thread % cfg.tiles.rows_per_q_tile)
    writes = results.is_row(cfg, args, work, place)
    if cutlass.const_expr(mine is not True):
        writes = writes & mine
    if writes:
        lse = row_lse(cfg, args, work, rows.head_of(cfg, work, place), state, factor)
        if cutlass.const_expr(cfg.in_runs):
            first, end = runs.parts_of(work.tile.part)
            for part in cutlass.range(first, end, unroll=1):
                own = part == runs.number_of(work.tile.part)
                of_part = results.lse_place(cfg, args, work, place, part)
                args.lse[of_part] = cutlass.select_(own, lse, -Float32.inf)
        elif cutlass.const_expr(cfg.cut_lists):
            row = i * cfg.tiles.rows_per_q_tile + thread % cfg.tiles.rows_per_q_tile
            if list_parts.is_part(work.tile.part):
                args.splits.lse[list_parts.slot_of(work.tile.part), row] = lse
            else:
                args.lse[results.lse_place(cfg, args, work, place)] = lse
        else:
            args.lse[results.lse_place(cfg, args, work, place)] = lse


@cute.jit
def row_lse(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    head,
    state: RowState,
    factor: Float32 | None,
) -> Float32:
    """The log-sum-exp of a row of this head, as write_lse has it."""
    lse = -Float32.inf
    if state.row_sum != 0.0:
        total_log2 = row_math.log2_of_sum(state.row_sum, cfg.p_lift_log2)
        lse = (state.row_max * log2_scale(cfg, args, factor) + total_log2) * math.log(2)
    return sinks.in_lse(cfg, args, work, head, lse)
