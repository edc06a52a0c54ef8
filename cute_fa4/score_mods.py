"""Functions of a score for the `score_mod=` of the attention functions.

soft_cap(cap)            cap tanh(score / cap); the same as softcap=
alibi(num_heads)         score - slope(head) |position - key|
additive_bias(heads)     score + aux_tensors[0][batch, head, query, key]: a materialised mask
relative_logits(extent)  score + aux_tensors[0][query row, head, position - key] for distances below extent
composed(first, then)    first, then the second

This is another name for sm100/blueprint/score_mods.py, which defines them and documents what your own function
receives and may do.
"""

from cute_fa4.sm100.blueprint.packaged import alibi_slope
from cute_fa4.sm100.blueprint.score_mods import (
    ScoreMod,
    additive_bias,
    alibi,
    composed,
    relative_logits,
    soft_cap,
)

__all__ = [
    "ScoreMod",
    "additive_bias",
    "alibi",
    "alibi_slope",
    "composed",
    "relative_logits",
    "soft_cap",
]
