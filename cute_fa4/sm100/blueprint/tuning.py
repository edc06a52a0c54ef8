"""Choices between kernels, and between cuts of keys, that all give right answers: one table, tuning.toml.

    [[exp2_emulated]]                 a row: for the kernels of these facts, this value
    arch = "sm_100a"
    maximum = "lagged"
    value = 24
    reason = "..."                    and where it comes from: evidence, by, device, date

The first row whose facts hold decides. A number may have bounds instead: `head_dim_to = 64`, `keys_from = 4096`. The
last row of a choice has no facts. Rows of a user's file come before all of these:

    CUTE_FA4_TUNING=FILE              read when the kernel of a call is chosen, once for calls that are alike
    using(load(FILE))                 for what is chosen inside: lists of kernels, measurements

`python -m cute_fa4 tune` writes such a file. Kernels of two tables have different configurations wherever they
differ, so caches and exported kernels never mix them up.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any

from cute_fa4.system import toml

from .choices import CHOICES, FACTS, FLAG, NUMBER, value_text, wrong_word

VARIABLE = "CUTE_FA4_TUNING"
TABLE = Path(__file__).with_name("tuning.toml")

METADATA = ("reason", "evidence", "by", "device", "date")
MARGIN = (
    "margin",
    "error",
)  # of rows of a choice with candidates; the head of tuning.toml says what they are
EVIDENCE = ("modelled", "measured", "published", "assumed")


@dataclass(frozen=True)
class Row:
    """For these facts, this value. facts: name, name_from or name_to -> the value or the bound."""

    facts: dict[str, Any]
    value: Any
    about: dict[str, Any] = field(default_factory=dict)

    def holds(self, known: dict[str, Any], left_open: tuple[str, ...] = ()) -> bool:
        """left_open: facts with any value."""
        return all(_holds(name, wanted, known, left_open) for name, wanted in self.facts.items())


def _holds(name: str, wanted, known: dict, left_open: tuple) -> bool:
    fact, _, bound = name.rpartition("_")
    if bound not in ("from", "to"):
        fact, bound = name, ""
    if fact in left_open:
        return True
    value = known.get(fact)
    if value is None:
        return False
    if bound == "from":
        return value >= wanted
    return value <= wanted if bound == "to" else value == wanted


@dataclass(frozen=True, eq=False)
class Tuning:
    """Rows of every choice, in the order in which they are asked. source: the file, for messages."""

    rows: dict[str, tuple[Row, ...]]
    source: str = ""

    def choose(self, name: str, facts: dict) -> Any:
        return next(row.value for row in self.rows[name] if row.holds(facts))

    def may_choose(self, name: str, facts: dict, left_open: tuple[str, ...]) -> list:
        """Values for these facts, whatever the others are."""
        found = []
        for row in self.rows[name]:
            if row.holds(facts, left_open):
                found.append(row.value)
                if row.holds(facts):
                    break
        return found

    def before(self, other: Tuning) -> Tuning:
        """These rows, then those of another table."""
        rows = {name: self.rows.get(name, ()) + other.rows.get(name, ()) for name in CHOICES}
        return Tuning(rows, self.source)

    def changed(self, **values) -> Tuning:
        """The same table with other values, for any facts."""
        return Tuning({name: (Row({}, value),) for name, value in values.items()}).before(self)


def read(path: str | Path) -> Tuning:
    """The rows of a file alone. ValueError with the file, the row and what is accepted."""
    path = Path(path)
    content, rows = toml.read(path), {}
    for name, entries in content.items():
        if name not in CHOICES:
            raise ValueError(f"{path}: [[{name}]]; {_accepted(name, CHOICES)}")
        if not isinstance(entries, list):
            raise ValueError(f"{path}: {name}; accepted: rows, each under [[{name}]]")
        rows[name] = tuple(_row(path, name, entry) for entry in entries)
    return Tuning(rows, str(path))


def load(path: str | Path) -> Tuning:
    """The rows of a file, then those of the package."""
    return read(path).before(shipped())


def _row(path: Path, name: str, entry: dict) -> Row:
    choice, where = CHOICES[name], f"{path}: [[{name}]]"
    keys = {"value": None, **dict.fromkeys((*METADATA, *MARGIN))}
    for fact in choice.facts:
        bounds = ("", "_from", "_to") if FACTS[fact] is NUMBER else ("",)
        keys |= {f"{fact}{bound}": FACTS[fact] for bound in bounds}
    for key, value in entry.items():
        if key not in keys:
            raise ValueError(f"{where}: {key}; {_accepted(key, keys)}")
        why = _wrong_fact(value, keys[key]) if keys[key] is not None else None
        if why:
            raise ValueError(f"{where}: {key} = {value_text(value)}; {why}")
    if "value" not in entry:
        raise ValueError(f"{where}: a row without `value`: {choice.about}")
    why = choice.accepts(entry["value"])
    if why:
        raise ValueError(f"{where}: value = {value_text(entry['value'])}; {why}")
    about = {key: entry[key] for key in (*METADATA, *MARGIN) if key in entry}
    if about.get("evidence", EVIDENCE[0]) not in EVIDENCE:
        raise ValueError(
            f"{where}: evidence = {about['evidence']!r}; accepted: {', '.join(EVIDENCE)}"
        )
    for key in MARGIN:
        if key in about and not (isinstance(about[key], (int, float)) and 0 <= about[key] < 10):
            raise ValueError(
                f"{where}: {key} = {value_text(about[key])}; accepted: a share of the time, from 0 to 10"
            )
    facts = {key: value for key, value in entry.items() if key != "value" and key not in about}
    return Row(facts, entry["value"], about)


def _wrong_fact(value, kind) -> str | None:
    if kind is NUMBER:
        return (
            None if isinstance(value, int) and not isinstance(value, bool) else "accepted: a number"
        )
    return wrong_word(value, (True, False) if kind is FLAG else kind)


def _accepted(name: str, names) -> str:
    near = get_close_matches(name, list(names), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}accepted: {', '.join(names)}"


def text(tuning: Tuning) -> str:
    """The table as TOML, which read() reads."""
    lines = []
    for name, rows in tuning.rows.items():
        for row in rows:
            entries = {**row.facts, "value": row.value, **row.about}
            lines += [
                f"[[{name}]]",
                *(f"{key} = {value_text(v)}" for key, v in entries.items()),
                "",
            ]
    return "\n".join(lines)


# --- which table is asked

_using: contextvars.ContextVar[Tuning | None] = contextvars.ContextVar("tuning", default=None)
_recorded: contextvars.ContextVar[dict | None] = contextvars.ContextVar("recorded", default=None)


@cache
def shipped() -> Tuning:
    """The table of the package."""
    return read(TABLE)


@lru_cache(maxsize=64)
def _named(path: str) -> Tuning:
    try:
        return load(path)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def active() -> Tuning:
    """The table that decides here."""
    given = _using.get()
    if given is not None:
        return given
    path = os.environ.get(VARIABLE)
    return _named(path) if path else shipped()


@contextlib.contextmanager
def using(tuning: Tuning):
    """Inside, this table decides, for this thread."""
    token = _using.set(tuning)
    try:
        yield tuning
    finally:
        _using.reset(token)


@contextlib.contextmanager
def recording():
    """Inside, -> {(choice, facts): value} of every choice that is made, for this thread. Nothing cached is taken."""
    found: dict = {}
    token = _recorded.set(found)
    try:
        yield found
    finally:
        _recorded.reset(token)


def choose(name: str, **facts) -> Any:
    """The value of a choice. facts: those of CHOICES[name]; a number may be a float, between the table's."""
    value, found = active().choose(name, facts), _recorded.get()
    if found is not None:
        found[name, tuple(sorted(facts.items()))] = value
    return value


def cached(maxsize: int) -> Callable:
    """lru_cache of a function that makes choices: its answers are of one table."""

    def decorate(function: Callable) -> Callable:
        @lru_cache(maxsize=maxsize)
        def of_table(table, *args, **named):
            return function(*args, **named)

        @wraps(function)
        def answer(*args, **named):
            if _recorded.get() is not None:
                return function(*args, **named)
            return of_table(active(), *args, **named)

        answer.cache_clear = of_table.cache_clear  # type: ignore[attr-defined]
        return answer

    return decorate
