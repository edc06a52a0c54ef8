"""P of scores, and the weight that dS uses instead: P times the slope of score_mod; both 0 where mask_mod hides keys.

    without functions   P = 2^(c S - L)                          the same
    with score_mod f    P = 2^(log2(e) f(scale S) - L)           P f'(scale S)

f' is derived from what f computes (traced/slopes.py); both owners compute it where they compute P.
"""

from cutlass import Float32, Int32, select_

from ...layouts.scalars import minimum
from ..blueprint.score_inputs import Aux
from ..instructions import exp2
from ..steps import row_math
from ..steps.row_math import LOG2_E
from .operands import OwnerArgs
from .work import Place, Work, q_head


def places(cfg, owner, args: OwnerArgs, work: Work, place: Place, row, columns: list) -> list:
    """Arguments of functions other than the score, for each score of an own row; indices stay within the sequence."""
    of, head, own = work.sequence, q_head(owner, work, place), work.row + row
    out = []
    for column in columns:
        at = (column, own) if owner.owns_keys else (own, column)
        q_index, key = minimum(at[0], of.length_q - 1), minimum(at[1], of.length_k - 1)
        q_row = q_index + (of.first_q if cfg.packed else of.index * args.sizes.seqlen_q)
        facts = q_index + of.num_keys - of.length_q, q_row, of.length_q, of.num_keys
        dtypes = tuple(dtype for dtype, _ in cfg.aux)
        indices = of.index, head, q_index, key
        aux = Aux(args.aux, dtypes, *map(Int32, facts)).at(*at)
        out.append((*map(Int32, indices), aux))
    return out


def of_scores(
    cfg, args: OwnerArgs, scores: list, lse: list, where: list, full=False
) -> tuple[list, list]:
    """-> (P, the weights that dS uses instead). where: as places() returns it.

    lse: of each score, in units of log2; None: the score is without it
    full: whether the block is a full one, of which mask_mod hides nothing
    """
    p, of_ds = [], []
    plain = cfg.score_mod is None
    powers = powers_of(cfg, args, scores, lse) if plain else scores
    for score, weight, subtracted, at in zip(scores, powers, lse, where, strict=True):
        slope = 1.0
        if not plain:
            score = score * args.scale
            value = cfg.score_mod.score(score, *at)
            slope = cfg.score_mod.slope(score, value, at)
            weight = exp2.hardware(value * Float32(LOG2_E) - subtracted)
        moves = weight if type(slope) is float and slope == 1.0 else weight * slope
        if cfg.mask_mod is not None and full is not True:
            shows = shown(cfg, at, full)
            weight, moves = (select_(shows, x, Float32(0.0)) for x in (weight, moves))
        p.append(weight)
        of_ds.append(moves)
    return p, of_ds


def powers_of(cfg, args: OwnerArgs, scores: list, lse: list) -> list:
    """2^(c S - L) of scores without functions, some on the FMA units (exp2_emulated)."""
    bias = (
        Float32(0.0) if lse[0] is None else -lse[0]
    )  # one for all: MMAs subtract those of columns
    emulated = exp2.emulated_pairs(len(scores) // 2, cfg.exp2_emulated, 0)
    return row_math.saturated_powers(scores, args.scale_log2, bias, emulated)


def shown(cfg, at: tuple, full):
    """Whether mask_mod shows a key, or the block is a full one."""
    shows = cfg.mask_mod.shows(*at)
    return shows if full is False else shows | full


def of_elements(
    cfg, args: OwnerArgs, scores: list, lse: Float32, where: list, full=False
) -> list[list]:
    """For each wanted element of aux tensors: P times the derivative of score_mod by it, score by score."""
    out = [[] for _ in cfg.summed]
    for score, at in zip(scores, where, strict=True):
        score = score * args.scale
        value = cfg.score_mod.score(score, *at)
        weight = exp2.hardware(value * Float32(LOG2_E) - lse)
        if cfg.mask_mod is not None:
            weight = select_(shown(cfg, at, full), weight, Float32(0.0))
        slopes = cfg.score_mod.slopes(score, value, at)
        for moves, (number, *_) in zip(out, cfg.summed, strict=True):
            moves.append(times(slopes[number], weight))
    return out


def times(slope, weight):
    """0 where the weight is 0, also for a slope that is infinite there."""
    if type(slope) is float:
        return weight if slope == 1.0 else weight * Float32(slope)
    return select_(weight == Float32(0.0), Float32(0.0), weight * slope)
