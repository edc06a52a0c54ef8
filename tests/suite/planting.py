"""Whether planted defects still fit the sources, without a compile: pytest --plant-only

A defect replaces functions of kernel sources, for one test (the fixture own_kernels). When a function gets another
parameter or moves, the defect no longer compiles, and its test fails where its turn comes, which may be many commits
later. A run with --plant-only takes the tests with own_kernels alone, those of the sweep too, and each until its first
compile:

    nothing replaced yet         skipped: a kernel without the defect comes first
    a replacement does not fit   failed: what is missing, or how many arguments each takes
    otherwise                    skipped: planted
"""

from __future__ import annotations

import inspect
import math

import pytest

FIXTURE = "own_kernels"


def misfit(original, replacement) -> str | None:
    """Why a replacement cannot be called as the original is, by the number of its arguments; None where it can.

    >>> misfit(lambda cfg, word=0: word, lambda cfg, *more: more)
    >>> misfit(lambda cfg, word: word, lambda cfg: cfg)
    'takes at most 1 of 2 arguments'
    >>> misfit(lambda cfg: cfg, lambda cfg, word: word)
    'needs 2 arguments of at most 1'
    """
    of_original, of_replacement = _arguments(original), _arguments(replacement)
    if of_original is None or of_replacement is None:
        return None
    needed, most = of_original
    needs, takes = of_replacement
    if takes < needed:
        return f"takes at most {takes} of {needed} arguments"
    if needs > most:
        return f"needs {needs} arguments of at most {most}"
    return None


def _arguments(value) -> tuple[int, float] | None:
    """(needed, at most) by position; None for what is not called or does not say."""
    if isinstance(value, property):
        return None
    value = getattr(value, "__func__", value)
    if isinstance(value, type) or not callable(value):
        return None
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    needed = sum(p.default is p.empty for p in by_position)
    return needed, math.inf if any_number else len(by_position)


def check(originals, only: bool) -> None:
    """Fail where a replacement does not fit; only: skip what would be compiled."""
    replaced = originals.changes()
    for name, original, replacement in replaced:
        if why := misfit(original, replacement):
            pytest.fail(f"{name} is replaced by what {why}: plant the defect anew")
    if only:
        pytest.skip("planted" if replaced else "a kernel without the defect comes first")


class PlantingPlugin:
    """With --plant-only: every case that plants in sources, and no other."""

    def __init__(self, config):
        config.option.all_turns = True
        config.option.markexpr = config.option.markexpr or "sweep or not sweep"

    def pytest_ignore_collect(self, collection_path):
        """Files that plant nothing are not imported."""
        is_test = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
        return True if is_test and FIXTURE not in collection_path.read_text() else None

    def pytest_collection_modifyitems(self, config, items):
        """Leave the tests with the fixture."""
        plants, others = [], []
        for item in items:
            (plants if FIXTURE in getattr(item, "fixturenames", ()) else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = plants
