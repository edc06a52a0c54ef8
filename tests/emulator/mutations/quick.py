"""Which planted defects plain pytest plants; `pytest -m sweep` plants the others."""

from collections.abc import Collection, Iterable

import pytest


def quick_or_sweep(defects: Iterable, quick: Collection[str] | int) -> list:
    """Defects as parameters of a test with their names as ids, those marked for the sweep that are not quick.

    defects   Mutants, or names
    quick     the names of the quick ones, which must be among the defects; or n for the first of every n
    """
    defects = list(defects)
    by_name = {getattr(defect, "name", defect): defect for defect in defects}
    assert len(by_name) == len(defects), "two defects have the same name"
    if isinstance(quick, int):
        quick = list(by_name)[::quick]
    unknown = set(quick) - by_name.keys()
    assert not unknown, f"quick: {sorted(unknown)}: no defects of these names"
    return [
        pytest.param(defect, id=name, marks=() if name in quick else pytest.mark.sweep)
        for name, defect in by_name.items()
    ]
