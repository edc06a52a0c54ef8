"""Which planted defects plain pytest plants; `pytest -m sweep` plants all of them."""

from collections.abc import Collection, Iterable

import pytest

from tests.suite import turns

OF_PTX = 3
"""Three commits plant all: a defect edits the PTX of a kernel that is compiled once, and takes 0.3 s of a core."""

OF_SOURCES = 12
"""Twelve commits plant all: a defect edits a function of the sources, so it takes a compile of its own."""

MIRRORED = 12
"""Likewise: defects of another table, planted again under another mask or order of products."""


def quick_or_sweep(defects: Iterable, quick: Collection[str] | int = OF_PTX) -> list:
    """Defects as parameters of a test with their names as ids, marked for plain pytest or the sweep alone.

    defects   Mutants, or names
    quick     how many commits plant all of them; or the names of those that every commit plants
    """
    defects = list(defects)
    by_name = {getattr(defect, "name", defect): defect for defect in defects}
    assert len(by_name) == len(defects), "two defects have the same name"
    commits = 1
    if isinstance(quick, int):
        commits, quick = quick, [name for n, name in enumerate(by_name) if turns.taken(n, quick)]
    unknown = set(quick) - by_name.keys()
    assert not unknown, f"quick: {sorted(unknown)}: no defects of these names"
    return [
        pytest.param(defect, id=name, marks=mark(name in quick, commits))
        for name, defect in by_name.items()
    ]


def mark(kept: bool, commits: int):
    """Marks of a case that the sweep runs, and plain pytest if it is kept: in one of so many commits."""
    return turns.mark("defects", kept, commits=commits)
