"""Cases out of a product of options: those that plain pytest runs, and all of them for the sweep.

    @pairwise.cases(
        "attention",
        {"head_dim": (64, 128), "dtype": ("bf16", "fp16"), "mask": ("full", "causal"), "lse": (False, True)},
        kernel=("head_dim", "dtype", "mask", "lse"),
        also={"two bits of the row sum got lost here once": dict(head_dim=64, dtype="fp16", mask="full", lse=True)},
    )
    def test_a_law(head_dim, dtype, mask, lse): ...

Of the 16 cases 6 have every two values of two options together, and pytest runs these and those of `also`; with
commits=3 a commit runs the pairs of a third of the kernels, and three commits run all. Most defects
that options cause need one value or two (D. R. Kuhn, D. R. Wallace, A. M. Gallo, "Software Fault Interactions and
Implications for Software Testing", IEEE TSE 30(6), 2004): what needs three is left to `pytest -m sweep`, which runs the
product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.suite import turns

kept_only = False
"""Whether the rest is left out here already: plain pytest need not collect 30,000 cases to leave them to the sweep."""


def product(options: dict, valid: Callable[..., bool] = lambda **case: True) -> list[dict]:
    """Every case that is valid, in the order of the options.

    >>> product({"a": (1, 2), "b": (3, 4)}, valid=lambda a, b: a + b != 5)
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 4}]
    """
    found = (
        dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    )
    return [case for case in found if valid(**case)]


def pairs(case: dict) -> set:
    """The pairs of (option number, value) that a case covers; single values if there is one option."""
    values = list(enumerate(case.values()))
    return set(itertools.combinations(values, min(2, len(values))))


def covering(cases: list[dict]) -> list[int]:
    """Numbers of cases that cover every pair that any of them covers, found greedily: the same ones every time.

    >>> options = {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    >>> [tuple(product(options)[n].values()) for n in covering(product(options))]
    [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)]
    """
    bits = {}  # pair -> a bit: sets of pairs are integers, whose intersections are counted four times as fast
    covers = []
    missing = 0
    for case in cases:
        covers.append(sum(1 << bits.setdefault(pair, len(bits)) for pair in pairs(case)))
        missing |= covers[-1]
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda n: (covers[n] & missing).bit_count())
        chosen.append(best)
        missing &= ~covers[best]
    return sorted(chosen)


def cases(
    area: str,
    options: dict,
    *,
    kernel: tuple = (),
    valid: Callable[..., bool] = lambda **case: True,
    also: dict | None = None,
    quick: dict | None = None,
    commits: int = 1,
    seconds: float = 0.1,
    ids: Callable = str,
):
    """Decorator of a test whose parameters are the options.

    area     where the plan of the sweep counts the cases
    kernel   options that decide what is compiled
    valid    which combinations there are
    also     reason -> case that pytest runs in addition to the pairs
    quick    option -> values of which pytest runs pairs, where it does not run those of all: the rest is the sweep's
    commits  how many run all pairs: each the cases of some kernels (tests/suite/turns.py)
    seconds  of a case, about, without its compile: for the plan
    """
    every = product(options, valid)
    for name, values in (quick or {}).items():
        if not set(values) < set(options[name]):
            raise ValueError(f"{area}: {name} of {values}; accepted: some of {options[name]}")
    paired = [
        number
        for number, case in enumerate(every)
        if all(case[name] in values for name, values in (quick or {}).items())
    ]
    compiled = [tuple(str(case[name]) for name in kernel) or None for case in every]
    chosen = {paired[n] for n in covering([every[number] for number in paired])}
    kept = in_turn(chosen, compiled, commits)
    for reason, case in (also or {}).items():
        number = every.index(case)  # ValueError: a case that the product does not have
        if not reason or number in chosen:
            raise ValueError(
                f"{area}: {case} needs a reason and must not be among the pairs already"
            )
        kept.add(number)
    parameters = []
    for number, case in enumerate(every):
        if kept_only and number not in kept:
            continue
        mark = _mark(area, number in kept, compiled[number], seconds, commits)
        name = "-".join(ids(value) for value in case.values())
        parameters.append(pytest.param(*case.values(), marks=mark, id=name))
    return pytest.mark.parametrize(tuple(options), parameters)


def in_turn(numbers: set[int], compiled: list, commits: int) -> set[int]:
    """Those of the cases whose kernel has its turn in this commit: a kernel is compiled for all of its cases or none.

    >>> in_turn({0, 2}, ["a kernel", "another", "a kernel"], commits=1)
    {0, 2}
    """
    kernels = {
        name: n for n, name in enumerate(dict.fromkeys(compiled[n] for n in sorted(numbers)))
    }
    return {n for n in numbers if turns.taken(kernels[compiled[n]], commits)}


def choose(
    area: str,
    things: list,
    by: tuple,
    *,
    kernel: Callable,
    commits: int = 1,
    seconds: float = 0.1,
) -> list:
    """Parameters out of a list of cases that exists: pytest runs those that cover every two values of the attributes.

    kernel(thing) says what is compiled for it. commits: as in cases().
    """
    chosen = set(covering([{name: getattr(thing, name) for name in by} for thing in things]))
    kept = (
        in_turn(chosen, [str(kernel(thing)) for thing in things], commits)
        if commits > 1
        else chosen
    )
    return [
        pytest.param(
            thing,
            marks=_mark(area, n in kept, (str(kernel(thing)),), seconds, commits),
            id=str(thing),
        )
        for n, thing in enumerate(things)
        if n in kept or not kept_only
    ]


def of_pairs(options: dict, quick: dict) -> list:
    """Cases that cover every two values, as parameters: plain pytest runs those that have what `quick` says."""
    every = product(options)
    return [
        pytest.param(
            *case.values(),
            marks=() if quick.items() <= case.items() else pytest.mark.sweep,
            id="-".join(str(x).removeprefix("torch.").replace(" ", "") for x in case.values()),
        )
        for case in map(every.__getitem__, covering(every))
    ]


def sweep_only(area: str, *, seconds: float = 0.1):
    """Decorator of a test that the sweep alone runs: more of what another test shows a little of."""
    return _mark(area, False, None, seconds)


def _mark(area, kept, kernel, seconds, commits=1):
    return pytest.mark.sweep(area=area, kept=kept, kernel=kernel, seconds=seconds, commits=commits)
