"""Runs a function under many schedules and reports differences, races and hangs.

    def run():
        out = torch.zeros(n)
        my_kernel(x, out)              compiled by emulator.compile
        return out

    found = emulator.compare(run, seeds=4)
    print(found)                       "9 schedules at level ptx, no finding", or the findings
    assert not found.findings

    in_order twice -> is the function deterministic?     hostile 0, 1, ...     random 0, 1, ...
         |                                                  |                    |
         +--- expected results ---------- bit by bit -------+--------------------+

A kernel is right only if it is right under every schedule, so results are compared bit by bit. Functions with
floating-point atomics differ legitimately; the finding says where and by how much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from cute_fa4.emulator.host.session import use
from cute_fa4.emulator.ptx import errors
from cute_fa4.emulator.run.schedules import MODES, SEEDED

KINDS = {
    "difference": "results that are not the same bits under another schedule",
    "race": "accesses that nothing orders, or values used before they are there",
    "hang": "a deadlock, or an endless loop",
    "error": "anything else that the emulator refuses",
    "function": "the function itself does not repeat: its inputs change from call to call",
}

_RACES = (errors.RaceError, errors.RegisterHazard, errors.UninitializedRead)


@dataclass(frozen=True)
class Schedule:
    """Arguments of emulator.use that reproduce it."""

    mode: str
    seed: int

    def __str__(self):
        return self.mode if self.mode == "in_order" else f"{self.mode} {self.seed}"


@dataclass
class Finding:
    """One finding.

    kind       key of KINDS             error      class of the error, "" for a difference
    message    the emulator's report, or the values that differ
    schedules  that show it: emulator.use(mode=..., seed=...) reproduces it
    """

    kind: str
    message: str
    error: str = ""
    schedules: list = field(default_factory=list)

    def __str__(self):
        under = ", ".join(map(str, self.schedules))
        title = f"{self.kind}{f' ({self.error})' if self.error else ''} under {under}"
        return "\n".join([title, *("  " + line for line in self.message.splitlines())])


@dataclass
class Comparison:
    """findings: empty if all schedules agree. schedules: all that ran. results: of the first.

    levels: of the ordering checks of the launches
    """

    findings: list
    schedules: list
    results: object = None
    levels: list = field(default_factory=list)

    def __str__(self):
        level = f" at level {', '.join(self.levels)}" if self.levels else ""
        number = f"{len(self.schedules)} schedules{level}"
        if not self.findings:
            return f"{number}, no finding"
        clean = len(self.schedules) - len({s for f in self.findings for s in f.schedules})
        head = f"{number}, {clean} of them clean; {len(self.findings)} findings"
        return "\n\n".join([head, *map(str, self.findings)])


def compare(
    function: Callable,
    seeds: int | Sequence[int] = 4,
    modes: Sequence[str] = ("in_order", *SEEDED),
    **settings,
) -> Comparison:
    """Call ``function()`` under every schedule and compare its results bit by bit.

    function  launches kernels compiled by emulator.compile and returns their results: a tensor, an array,
              a number, or tuples, lists and dicts of them. It is called once per schedule, so it must create
              the same inputs each time, and must not return an input that it modifies in place
              without resetting it
    seeds     seeds of the modes "random" and "hostile": a number n stands for 0 to n - 1
    modes     modes of emulator.use; results are compared with those of the first complete schedule. Default:
              all but "together", which is between the others
    settings  further arguments of emulator.use: checks, transform, labels, instruction_budget, claims

    Errors of the emulator are findings; other exceptions propagate. Raises ValueError for an unknown mode, and if
    function returns nothing.
    """
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise ValueError(f"modes {list(modes)}: accepted are some of {', '.join(MODES)}")
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    schedules = [
        Schedule(mode, seed)
        for mode in sorted(modes, key=MODES.index)
        for seed in (seeds if mode in SEEDED else (0,))
    ]
    comparison = Comparison([], schedules)
    expected = None
    for schedule in schedules:
        scheduled = use(mode=schedule.mode, seed=schedule.seed, **settings)
        try:
            with scheduled as run:
                results = function()
        except errors.EmulatorError as error:
            _add(comparison, _kind(error), str(error), type(error).__name__, schedule)
            continue
        finally:
            comparison.levels += [level for level in run.levels if level not in comparison.levels]
        values = list(_flatten(results))
        if not values:
            raise ValueError(
                "the function returns nothing: return the tensors that are to be compared"
            )
        if expected is None:
            expected, comparison.results = [value.copy() for _, value in values], results
            if not _repeats(function, schedule, settings, expected, comparison):
                return comparison
            continue
        difference = _difference(values, expected)
        if difference:
            _add(comparison, "difference", difference, "", schedule)
    return comparison


def _repeats(function, schedule, settings, expected, comparison):
    """Does a second call under the same schedule give the same bits?"""
    with use(mode=schedule.mode, seed=schedule.seed, **settings):
        again = list(_flatten(function()))
    difference = _difference(again, expected)
    if difference:
        text = f"called twice under the same schedule: {difference}"
        _add(comparison, "function", text, "", schedule)
    return not difference


def _kind(error):
    if isinstance(error, errors.Deadlock):
        return "hang"
    return "race" if isinstance(error, _RACES) else "error"


def _add(comparison, kind, message, error, schedule):
    """A new finding, or one more schedule of a finding with the same first line and locations."""
    for finding in comparison.findings:
        if (finding.kind, finding.error) == (kind, error) and _same(finding.message, message):
            finding.schedules.append(schedule)
            return
    comparison.findings.append(Finding(kind, message, error, [schedule]))


def _same(first, second):
    """Whether two reports are of one defect: they name the same PTX lines."""
    lines = [
        [line.strip() for line in text.splitlines() if "PTX line" in line]
        for text in (first, second)
    ]
    if lines[0] or lines[1]:
        return lines[0] == lines[1]
    return first.splitlines()[0] == second.splitlines()[0]


def _flatten(results, name="result"):
    """(name, array of bits' type) of everything in nested results."""
    if results is None:
        return
    if isinstance(results, dict):
        for key, value in results.items():
            yield from _flatten(value, f"{name}[{key!r}]")
    elif isinstance(results, (tuple, list)):
        for i, value in enumerate(results):
            yield from _flatten(value, f"{name}[{i}]")
    else:
        yield name, _as_array(results)


def _as_array(value):
    if hasattr(value, "detach"):  # a torch tensor; NumPy does not know bfloat16 and float8
        import torch

        value = value.detach().cpu()
        if value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            value = value.float()
        return value.numpy()
    return np.asarray(value)


def _difference(values, expected):
    """Text of the first array that differs, or "". NaNs with the same bits are equal."""
    if len(values) != len(expected):
        return f"{len(values)} results instead of {len(expected)}"
    for (name, value), wanted in zip(values, expected, strict=True):
        if value.shape != wanted.shape or value.dtype != wanted.dtype:
            return f"{name}: {value.dtype}{value.shape} instead of {wanted.dtype}{wanted.shape}"
        bits = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (value, wanted)]
        size = value.dtype.itemsize
        wrong = (bits[0] != bits[1]).reshape(-1, size).any(axis=1)
        if wrong.any():
            flat = int(wrong.argmax())
            first = tuple(int(i) for i in np.unravel_index(flat, value.shape or (1,)))
            return (
                f"{name}: {int(wrong.sum())} of {wrong.size} values differ, the first at {first}: "
                f"{value.reshape(-1)[flat]} instead of {wanted.reshape(-1)[flat]}"
            )
    return ""
