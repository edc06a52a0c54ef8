"""Masks and score functions as strings, and back: the schema of an operator holds neither.

    masks.both(masks.causal(), masks.chunked(64))    "Both(Causal(),Chunked())", and the sizes (64,)
    score_mods.alibi(8)                              "alibi(8)"
    a function of the user, as ScoreMod.of traced it  its key; found again in this process only

A tracer follows the conversion to the string, so another mask or function gives another trace.
"""

from __future__ import annotations

import ast
from functools import cache, lru_cache

from cute_fa4 import masks
from cute_fa4.masks import BoundMask
from cute_fa4.sm100.blueprint.score_mods import (
    PACKAGED,
    THEN,
    ScoreMod,
    composed,
    packaged_call,
    remembered,
)

_PAIRS = (masks.Both, masks.Either)


def spell_mask(mask: masks.Mask) -> str:
    kind = type(mask)
    if type(mask) is masks.Both or type(mask) is masks.Either:
        return f"{kind.__name__}({spell_mask(mask.a)},{spell_mask(mask.b)})"
    if type(mask) is masks.Window:
        return f"Window({mask.left},{mask.right})"
    if masks.KINDS.get(kind.__name__) is not kind:  # Dynamo of PyTorch 2.8 cannot search values()
        raise NotImplementedError(
            f"mask: a {kind.__name__} cannot be traced; accepted: the masks of cute_fa4.masks; call outside "
            "of the compiled function"
        )
    return f"{kind.__name__}()"


@lru_cache(maxsize=4096)
def mask_of(spelled: str, sizes: tuple[int, ...]) -> BoundMask:
    """
    >>> mask_of("Both(Causal(),Window(True,False))", (8,)).mask
    Both(a=Causal(), b=Window(left=True, right=False))
    """
    return BoundMask(_parsed(spelled), sizes)


def kind_of(spelled: str) -> masks.Mask:
    """A mask without its sizes.

    >>> kind_of("Window(True,False)")
    Window(left=True, right=False)
    """
    return _parsed(spelled)


def _parsed(spelled: str) -> masks.Mask:
    try:
        return _mask_of(ast.parse(spelled, mode="eval").body)
    except (SyntaxError, AttributeError, KeyError, TypeError, ValueError):
        kinds = ", ".join(masks.KINDS)
        raise ValueError(f"mask: {spelled!r}; accepted: calls of {kinds}, as 'Causal()'") from None


def _mask_of(call) -> masks.Mask:
    kind = masks.KINDS[call.func.id]
    if kind is masks.Window:
        return kind(*map(ast.literal_eval, call.args))
    if kind in _PAIRS:
        return kind(*map(_mask_of, call.args))
    return kind(*call.args)


def is_known(key: str) -> bool:
    try:
        return function_of("score_mod", key) is not None
    except ValueError:
        return False


@cache
def function_of(parameter: str, key: str) -> ScoreMod | None:
    """The function with a key, None for no key; parameter: what a message calls it."""
    if not key or remembered(key) is not None:
        return remembered(key)
    mod = None
    for part in key.split(THEN):
        mod = composed(mod, remembered(part) or _packaged(parameter, part))
    return mod


def _packaged(parameter: str, key: str) -> ScoreMod:
    """
    >>> _packaged("score_mod", "alibi(8)").key
    'alibi(8)'
    """
    call = packaged_call(key)
    if call is None:
        raise ValueError(
            f"{parameter}: {key!r} is not a function of this process; accepted: those of cute_fa4.score_mods "
            "and what score_mods.ScoreMod.of has traced here; call it first with a function that computes the same"
        )
    name, argument = call
    return PACKAGED[name](argument)
