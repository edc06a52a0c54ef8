"""Masked tiles, per warp: columns that all rows of a warp see need no select; columns that none sees, no exponential.

A tile on the diagonal of a causal mask, 32 columns at a time:

    rows         columns 0..    32..     64..     96..
    0 .. 31      select         select   none     none         none: P is 0, and adds 0 to the row sum
    32 .. 63     whole          select   none     none
    64 .. 95     whole          whole    select   none
    96 .. 127    whole          whole    whole    select

A vote of the warp decides, so no warp diverges. A skipped part has the result of masked scores, bit by bit: P = 0,
and 0 added to a sum. Masked scores are not examined, so a NaN among them has no effect, as before.
Exponentials are skipped in the second half of a tile only. If they are skipped in the whole tile, ptxas compiles the
unrelated loop over whole tiles differently (docs/decisions/0016).
"""

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cutlass_dsl import if_generate

from . import row_math, visibility
from .visibility import WORD


def words_of(bands: list, columns: int) -> list:
    """The visibility words of a row of `columns` columns. bands: as in visibility.visibility."""
    return [visibility.visibility(bands, first) for first in range(0, columns, WORD)]


def keep_visible(scores: list, words: list) -> list:
    """The same result as visibility.keep_visible."""
    kept = []
    for i, word in enumerate(words):
        kept += _keep(scores[i * WORD : (i + 1) * WORD], word)
    return kept


def keep_visible_parts(parts, words: list):
    """The same for (first column, scores of a word), part by part."""
    for first, scores in parts:
        yield first, _keep(scores, words[first // WORD])


def _keep(scores: list, word) -> list:
    """Scores of the columns of a word, -inf where the row does not see the column."""
    return if_generate(
        cute.arch.vote_all_sync(word == -1),
        lambda *scores: list(scores),
        lambda *scores: visibility.selected(list(scores), word),
        scores,
        [Float32] * len(scores),
    )


def add_powers(words: list, first: int, columns: int, powers, scores: list, sums: list) -> tuple:
    """P of the scores from column `first` of `columns` on, one visibility word: -> (its words, the sums with it).

    powers(scores): of half_powers; sums: of row_math.add_values, [] starts new ones
    """
    word, pairs = words[first // WORD], len(scores) // 2

    def seen(*given):
        found = powers(list(given[: len(scores)]))
        before = given[len(scores) :]
        added = row_math.add_values(list(zip(before[::2], before[1::2], strict=True)), found.values)
        return [*found.words, *(value for two in added for value in two)]

    def unseen(*given):
        return [Int32(0)] * pairs + list(given[len(scores) :])

    if first < columns // 2:
        found = seen(*scores, *(value for two in sums for value in two))
    else:
        flat = [value for two in sums for value in two]
        some = cute.arch.vote_any_sync(word != 0)
        types = [Int32] * pairs + [Float32] * len(flat)
        found = if_generate(some, seen, unseen, [*scores, *flat], types)
    flat = found[pairs:]
    return list(found[:pairs]), list(zip(flat[::2], flat[1::2], strict=True))
