"""Which problems claim: a finished CTA takes over another block, or exits (docs/decisions/0007 has the reasons).

    class          what it is                                       claims    published, against what
    dense full     every query of a dense batch sees every key      yes       -2.5, +0.5 %: against CTAs that stride
    packed MHA     packed sequences, a key/value head a query head  yes       -0.2 %: against CTAs that end, as ours
    other          masks, grouped heads, pages, lengths             yes       +3.9 %: against CTAs that end

A class is one that a peer has measured (flash-attention#2455, B200); tuning.toml has the choice of each. The first run
on a chip settles them: `python -m cute_fa4 check --device cuda --report FILE` compares both kernels in each class, and
`python -m cute_fa4 tune` writes what wins.
"""

from . import choices, tuning
from .problem import Problem

CLASSES = choices.FACTS["calls"]


def class_of(problem: Problem) -> str:
    """The class of a problem, a name of CLASSES."""
    if problem.q_layout == "packed" and problem.kv_layout != "paged" and problem.group == 1:
        return "packed MHA"
    if not problem.unequal_blocks and not problem.reads_lengths:
        return "dense full"
    return "other"


def claims_pay(problem: Problem) -> bool:
    """Whether a kernel for the problem claims blocks unless its schedule says otherwise.

    With share_keys, every CTA has its own range of key tiles: there is nothing to claim.
    """
    return not problem.share_keys and class_claims(class_of(problem))


def resolved(claims: bool | None, problem: Problem) -> bool:
    """Whether a kernel claims blocks. claims: what its schedule says; None is open, as all is with share_keys."""
    return claims_pay(problem) if claims is None or problem.share_keys else claims


def class_claims(name: str) -> bool:
    """Whether problems of a class claim blocks."""
    return tuning.choose("claims", calls=name)
