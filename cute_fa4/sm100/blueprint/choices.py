"""The choices of the tuning table: what each decides, the facts that its rows may ask, and the values it accepts.

tuning.py reads the rows. This list is also what `python -m cute_fa4 tune` compares (bench/tune.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from .chip import ARCHES

FAMILIES = (
    "mha2q", "mhapair", "mhamx", "mhawiden2q", "mha1q", "mhawide", "mhawidepair", "mharope", "mhawidewiden",
    "mhaswap", "mhawiden", "mla_decode", "mla_pair", "mla_widen", "mla_widenpair",
)  # fmt: skip
BACKWARD = "backward"  # the kernels of the backward pass, as a family
NUMBER, FLAG = int, bool
FACTS: dict[str, Any] = {
    "arch": ARCHES,
    "family": (*FAMILIES, BACKWARD),
    "calls": ("dense full", "packed MHA", "other"),  # classes of claims.py
    "mask": ("Full", "Causal", "other"),
    "head_dim": NUMBER,
    "head_dim_v": NUMBER,
    "maximum": ("exact", "lagged"),
    "exponential": ("exact", "half"),
    "summed": FLAG,  # P V computes the row sums
    "eight_bits": FLAG,
    "pack_gqa": FLAG,
    "split_keys": FLAG,
    "longest_first": FLAG,
    "latent": FLAG,
    "queries": NUMBER,
    "keys": NUMBER,
    "blocks": NUMBER,
    "sms": NUMBER,
}
"""What rows may ask: names of facts, with the accepted words."""
RULE = "rule"  # instead of a number: the arithmetic of the numbers in this table


@dataclass(frozen=True)
class Choice:
    """One choice of the table.

    about       one sentence
    facts       that its rows may ask
    accepts     says what is wrong with a value; None: nothing
    candidates  what `tune` compares; empty: a number of a rule, which is not compared alone
    simplest    the candidate that needs the least: no second CTA, no other order, nothing on further units. It is the
                default where no other is faster by more than the model's error (docs/decisions/0051)
    """

    about: str
    facts: tuple[str, ...]
    accepts: Callable[[Any], str | None]
    candidates: tuple = ()
    simplest: Any = None


def _one_of(*values) -> Callable[[Any], str | None]:
    def accepts(value):
        if any(value == v and type(value) is type(v) for v in values):
            return None
        near = get_close_matches(str(value), [str(v) for v in values], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"accepted: {', '.join(map(value_text, values))}{hint}"

    return accepts


def _number(low, high, kind=int, word: str | None = None) -> Callable[[Any], str | None]:
    def accepts(value):
        is_number = isinstance(value, (int, float) if kind is float else int)
        if value == word or (is_number and not isinstance(value, bool) and low <= value <= high):
            return None
        return f"accepted: a number from {low} to {high}" + (f", or {word!r}" if word else "")

    return accepts


ORDERS = ("p_crossed_summed", "p_beside_s", "p_crossed", "p_over_s")


def _orders(value) -> str | None:
    if isinstance(value, list) and sorted(value) == sorted(ORDERS):
        return None
    return f"accepted: a list of {', '.join(ORDERS)}, each once: the first that a problem allows"


def _steps(value) -> str | None:
    pairs = isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 for v in value)
    if pairs and value and value == sorted(value) and value[-1][0] >= 1:
        return None
    return (
        "accepted: a list of [share of the SMs, most key tiles of a CTA] by share, the last share 1"
    )


def _pairs(value) -> str | None:
    if value in ("alone", "pairs"):
        return None
    if isinstance(value, dict) and set(value) == {"alone", "pairs"}:
        if all(
            isinstance(v, list) and len(v) == 2 and all(isinstance(n, (int, float)) for n in v)
            for v in value.values()
        ):
            return None
    return "accepted: 'alone', 'pairs', or { alone = [cycles of a start, of a key tile], pairs = [..] }"


_switch = _one_of(True, False)
CHOICES: dict[str, Choice] = {
    "pairs": Choice(
        "whether pairs of CTAs share the MMAs of head dims up to 192",
        ("arch", "head_dim", "head_dim_v", "mask", "queries", "keys"),
        _pairs,
        ("alone", "pairs"),
        "alone",
    ),
    "pairs_least_gain": Choice(
        "share of the cycles that pairs must save: the error of the model on pairs", ("arch",), _number(0, 1, float)
    ),
    "pairs_longest_of_mean": Choice(
        "a stated longest sequence counts up to so many means", (), _number(1, 1024, float)
    ),
    "wide_pairs": Choice(
        "whether pairs of CTAs share the MMAs of wide head dims",
        ("arch", "head_dim", "head_dim_v"),
        _switch,
        (True, False),
        False,
    ),
    "backward_pairs": Choice(
        "whether pairs of CTAs share the MMAs of the backward pass",
        ("arch", "head_dim", "head_dim_v", "mask"),
        _switch,
        (True, False),
        False,
    ),
    "backward_joint": Choice(
        "whether one kernel on pairs of CTAs makes all gradients: of full and causal calls, head dims 72 to 128",
        ("arch", "head_dim", "head_dim_v", "mask"),
        _switch,
        (True, False),
        False,
    ),
    "order": Choice(
        "preference among the orders of the products, the first that a problem allows",
        ("arch", "family", "head_dim", "eight_bits", "mask"),
        _orders,
        tuple([first, *(o for o in ORDERS if o != first)] for first in ORDERS),
        ["p_over_s", *ORDERS[:-1]],
    ),
    "maximum": Choice(
        "the maximum that exponentials subtract, where both are possible",
        ("arch", "family", "head_dim", "mask"),
        _one_of("exact", "lagged"),
        ("exact", "lagged"),
        "exact",
    ),
    "first_reference": Choice(
        "where a lagged maximum begins: with a quarter of the first tile's scores, or with all",
        ("arch", "family", "head_dim", "mask"),
        _one_of("quarter", "tile"),
        ("quarter", "tile"),
        "tile",
    ),
    "exponential": Choice(
        "precision of the FMA units' exponentials of P of eight bits",
        ("arch", "family"),
        _one_of("exact", "half"),
        ("exact", "half"),
        "exact",
    ),
    "exp2_emulated": Choice(
        "of 64 pairs of exponentials, so many on the FMA units",
        ("arch", "family", "head_dim", "maximum", "exponential", "summed"),
        _number(0, 64),
        (0, 8, 12, 16, 18, 20, 24, 28, 32, 40),
        0,
    ),
    "claims": Choice(
        "whether a finished CTA takes over another block (the tile scheduler)",
        ("calls",),
        _switch,
        (True, False),
        False,
    ),
    "dependent_launch": Choice(
        "whether a kernel may start while the previous one ends",
        ("family", "pack_gqa", "split_keys", "longest_first"),
        _switch,
        (True, False),
        False,
    ),
    "cluster_parts": Choice(
        "CTAs of a cluster that share the keys of a block; 0: none, a second launch merges",
        ("blocks", "keys", "sms"),
        lambda value: _one_of(RULE, 0, 1, 2, 4, 8)(value),
        (0, 1, 2, 4, 8),
        0,
    ),
    "parts": Choice(
        "even parts of the keys of a sequence, merged by a second launch",
        ("blocks", "keys", "sms"),
        _number(1, 1024, word=RULE),
        (1, 2, 4, 8, 16, 32),
        1,
    ),
    "split_least_keys": Choice(
        "keys of a sequence from which a second launch may merge parts", ("latent",), _number(1, 1 << 20)
    ),
    "merged_a_tile": Choice(
        "further parts that are merged in the time of a key tile", (), _number(1, 1024)
    ),
    "merged_alike": Choice("parts that a launch merges as fast as two", (), _number(1, 1024)),
    "shared_least_tiles": Choice(
        "key tiles of a CTA of a stream-K split, at least", (), _number(1, 1024)
    ),
    "shared_parts": Choice(
        "parts of a block of a stream-K split, at most", ("latent",), _number(1, 1024, word=RULE)
    ),
    "run_tiles": Choice(
        "key tiles of a CTA that takes several parts of fixed length in turn, at most", (), _number(1, 1 << 20)
    ),
    "run_start_tiles": Choice(
        "key tiles in the time of which such a CTA claims and begins its parts", (), _number(0, 1024)
    ),
    "few_rows": Choice(
        "query rows up to which keys are the lanes (swap-AB)", (), _one_of(0, 8, 32)
    ),
    "decode_blocks": Choice(
        "query blocks of a head that still count as decode", (), _number(1, 1024)
    ),
    "cluster_tiles": Choice(
        "key tiles of a CTA of a cluster, at most, by the share of the SMs that clusters fill", (), _steps
    ),
    "longest_first": Choice(
        "work tiles with lists, for each SM, beyond which they are sorted by length", (), _number(0, 1 << 20)
    ),
    "cut_lists": Choice(
        "work tiles with lists, for each SM, up to which long lists are cut into parts", (), _number(0, 1 << 20)
    ),
    "cut_least_keys": Choice(
        "keys of a sequence from which long lists are cut into parts", (), _number(1, 1 << 30)
    ),
    "cut_least_tiles": Choice("key tiles of a part of a list, at least", (), _number(1, 1024)),
    "topk_shared_keys": Choice(
        "logits of a row from which the CTAs of a cluster share it", (), _number(1, 1 << 30)
    ),
    "logits_tiles": Choice("key tiles of a CTA of the indexer, at most", (), _number(1, 32)),
    "logits_ctas": Choice(
        "CTAs of the indexer for each SM, from which on a CTA gets more key tiles", (), _number(1, 1024)
    ),
    "alone_tiles": Choice(
        "key tiles that a CTA takes alone before a second launch pays", (), _number(1, 1024)
    ),
}  # fmt: skip


def value_text(value) -> str:
    """A value as TOML writes it.

    >>> print(value_text({"alone": [1, 2.5], "pairs": [True, "x"]}))
    { alone = [1, 2.5], pairs = [true, "x"] }
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        return f'"{escaped}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {value_text(item)}' for key, item in value.items())} }}"
    return str(value)


def wrong_word(value, words) -> str | None:
    """Why a value is none of some words; None: it is one."""
    return _one_of(*words)(value)
