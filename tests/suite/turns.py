"""Which part of a list a run takes whose whole would be too much: every commit takes the next part.

    taken(number, every=3)      whether the run takes the number-th: one of three, and three commits take all
    by_turns(values)            parameters of a test, of which the run takes a third; each must cost compiles of its own

A commit's turn is the number of commits until it, so every run of one commit takes the same part. `pytest --turn N`
takes another part, `pytest -m sweep` takes all. A shallow clone does not know that number: there it is the hash of the
commit. Where there is no git, the turn is 0.
"""

import functools
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OF_CASES = 3
"""Three commits run all cases of a law whose cases compile kernels of their own. Every commit runs some of each."""

chosen = None
"""What --turn says; None for that of the commit."""


@functools.cache
def of_commit(root: Path = ROOT) -> int:
    """Commits until HEAD; of a shallow clone a number by its hash, 0 where this is not a git checkout."""
    if _git(root, "rev-parse", "--is-shallow-repository") == "true":
        return int(_git(root, "rev-parse", "HEAD")[:12], 16)
    return int(_git(root, "rev-list", "--count", "HEAD") or 0)


def _git(root: Path, *command: str) -> str:
    """What git prints; "" where it fails or is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *command], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def turn() -> int:
    """Of this run."""
    return of_commit() if chosen is None else chosen


def header() -> str:
    """The line at the head of a run that says which part it takes, and how to run the others."""
    third = -turn() % OF_CASES + 1
    return f"turn {turn()}: of {OF_CASES} parts of rotating cases the {third}.; --turn N runs another, -m sweep all"


def taken(number: int, every: int) -> bool:
    """Whether this run takes the number-th of a list, of which `every` commits take all."""
    return (number + turn()) % every == 0


def by_turns(values: Iterable, among: Iterable = (), every: int = OF_CASES) -> list:
    """Values, or tuples of them, as parameters: a third for plain pytest, every one for the sweep.

    among  the list that counts, where tests of several laws share the kernels of a value: its cases then take turns
           together. A tuple counts by its first value.
    """
    values = list(values)
    numbers = {value: number for number, value in enumerate(among or values)}
    assert len(numbers) >= every, "each commit runs some"
    parameters = []
    for value in values:
        single = value if isinstance(value, tuple) else (value,)
        number = numbers[value if value in numbers else single[0]]
        parameters.append(
            pytest.param(*single, marks=mark("cases", taken(number, every), commits=every))
        )
    return parameters


def mark(area: str, kept: bool, seconds: float = 0.5, commits: int = 1):
    """The mark of a case that the sweep runs, and plain pytest where it is kept: in one of so many commits."""
    return pytest.mark.sweep(area=area, kept=kept, kernel=None, seconds=seconds, commits=commits)
