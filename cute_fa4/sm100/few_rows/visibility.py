"""Masks and score functions where a thread has one key in all rows of the tile."""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, select_

from cute_fa4.layouts.scalars import minimum

from ..blueprint.score_inputs import Aux
from ..steps.visibility import MASKED
from ..sync.kernel_args import KernelArgs
from ..work import rows, scales
from ..work.tile import Work


def keep_visible(cfg, args: KernelArgs, work: Work, key, scores: list) -> list:
    """Scores of `key` with -inf in the rows that do not see it; all rows of one position see the same keys."""
    sequence, per_position = work.sequence, cfg.tiles.rows_per_position
    out = []
    for first in range(0, len(scores), per_position):
        position = sequence.position(rows.row_of(cfg, work, 0, first).q_index)
        seen = None
        for lo, hi in cfg.mask.bands(position, sequence.num_keys, args.mask_sizes):
            here = key < minimum(hi, sequence.key_limit)
            if cfg.mask.has_lower_bound or not cfg.mask.is_band:
                here = here & (key >= lo)
            seen = here if seen is None else seen | here
        for score in scores[first : first + per_position]:
            out.append(select_(seen, score, Float32(MASKED)))
    return out


@cute.jit
def is_picked(cfg: cutlass.Constexpr, args: KernelArgs, work: Work, key: Int32) -> Boolean:
    """With one key per page: whether the page table has a page for a key. Undefined beyond the sequence."""
    entry, row = Int32(0), args.lengths.cache_row(work.sequence.batch)
    if key < work.sequence.num_keys:
        entry = args.page_table[row, key]
    return (entry >= 0) & (entry < args.num_pages)


def keep_picked(picked, scores: list) -> list:
    """Scores of one key, or -inf if it is not picked."""
    return [select_(picked, score, Float32(MASKED)) for score in scores]


def apply_score_functions(
    cfg, args: KernelArgs, work: Work, key, scores: list, factor, masked: bool
) -> list:
    """Scores after score_mod and mask_mod, row by row; indices beyond the sequence are not passed on.

    factor: of the scores in addition to the softmax scale, or None
    """
    sequence, out = work.sequence, []
    if masked:
        key = minimum(key, sequence.num_keys - 1)
    for number, score in enumerate(scores):
        place = rows.row_of(cfg, work, 0, number)
        query = minimum(place.q_index, sequence.seqlen_q - 1)
        row = rows.Row(query, rows.head_of(cfg, work, place))
        aux = Aux.of(cfg, args, sequence, row)
        where = (*(Int32(i) for i in (sequence.batch, row.head, row.q_index, key)), aux)
        if cfg.score_mod is not None:
            scale = scales.times(args.scale, factor)
            score = cfg.score_mod.score(score * scale, *where)
        if cfg.mask_mod is not None:
            score = select_(cfg.mask_mod.shows(*where), score, Float32(MASKED))
        out.append(score)
    return out
