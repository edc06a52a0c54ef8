"""Expensive tests take turns where the whole suite runs, so that a run takes minutes: each commit runs a part of them.

costs.json              test function -> seconds on a core of a case, for functions that take SECONDS or more together
pytest --record-costs   writes it: what ran replaces its old record. The first function that uses a kernel pays for its
                        compile, so the file has the larger cost of two runs in different orders
pytest --all-turns      every case, as in a run of single files or with -k, -m or --since

The cases of a function are dealt to as many commits as the function costs multiples of SECONDS, at most MOST. Where it
has fewer cases than that, some commits run none of it. A function that is not in the file runs in every commit.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.suite import turns
from tests.suite.costs import cpu_seconds

FILE = Path(__file__).with_name("costs.json")
SECONDS = 2.0
"""What every commit may spend on a function."""
MOST = 6
"""Commits that share a function, at most."""
DEALT = 12
"""A multiple of every number of commits to which lists are dealt before (by_turns, quick_or_sweep, pairwise)."""


def function_of(nodeid: str) -> str:
    """A test function without its case.

    >>> function_of("tests/test_a.py::TestB::test_c[x[0]-y]")
    'tests/test_a.py::TestB::test_c'
    """
    file, _, name = nodeid.partition("::")
    return f"{file}::{name.partition('[')[0]}"


def commits_for(seconds: float) -> int:
    """How many commits share a function that takes so many seconds on a core.

    >>> [commits_for(seconds) for seconds in (0.5, 2.0, 2.1, 7.0, 300.0)]
    [1, 1, 2, 4, 6]
    """
    return min(MOST, max(1, math.ceil(seconds / SECONDS)))


def part_of(nodeids: list[str], costs: dict[str, float]) -> set[str]:
    """Those that this run takes.

    Some lists have dealt their cases to 3 or 12 commits before. The part moves on by one with each commit, and by one
    more after DEALT: else a case whose turn comes at every twelfth commit could meet the same part each time.
    """
    by_function = defaultdict(list)
    for nodeid in nodeids:
        by_function[function_of(nodeid)].append(nodeid)
    taken = set()
    for function, cases in by_function.items():
        commits = commits_for(costs.get(function, 0.0) * len(cases))
        # Functions begin at different turns: else one commit would run all those of a single case.
        first = zlib.crc32(function.encode()) + turns.turn() + turns.turn() // DEALT
        taken.update(case for number, case in enumerate(cases, first) if number % commits == 0)
    return taken


def recorded() -> dict[str, float]:
    """What costs.json says."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def updated(costs: dict, seconds: Counter, ran: Counter, collected: Counter) -> dict:
    """Costs after a run: of each function its seconds, the cases that ran, and those that were there to run."""
    new = dict(costs)
    for function, number in ran.items():
        case = seconds[function] / number
        new.pop(function, None)
        if case * max(collected[function], number) >= SECONDS:
            new[function] = round(case, 2)
    return dict(sorted(new.items()))


def add_options(parser) -> None:
    """--all-turns and --record-costs."""
    parser.addoption("--all-turns", action="store_true", help="run expensive tests in full")
    parser.addoption(
        "--record-costs",
        action="store_true",
        help="write what tests cost to tests/suite/costs.json",
    )


class RotationPlugin:
    """Deselects what other commits run; records costs where asked to."""

    def __init__(self, config):
        given = getattr(config, "workerinput", None)
        self.is_worker = given is not None
        self.rotates = given["rotates"] if self.is_worker else self._is_whole(config)
        self.records = config.getoption("--record-costs")
        self.seconds, self.ran, self.collected = Counter(), Counter(), Counter()
        self.skipped: set[str] = set()

    @staticmethod
    def _is_whole(config) -> bool:
        """Whether no option or path selects tests."""
        chosen = [config.getoption(name, None) for name in ("-k", "-m", "--since", "--all-turns")]
        return config.args_source is config.ArgsSource.TESTPATHS and not any(chosen)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        """A worker is given its files by the controller, which knows whether a user chose them."""
        node.workerinput["rotates"] = self.rotates

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        """After the sweep has left out what is its own."""
        self.collected = Counter(function_of(item.nodeid) for item in items)
        if not self.rotates:
            return
        taken = part_of([item.nodeid for item in items], recorded())
        left_out = [item for item in items if item.nodeid not in taken]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid in taken]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """In a worker, and without workers: measure the time on a core."""
        begin = cpu_seconds()
        result = yield
        if item.nodeid not in self.skipped:  # a skipped case says nothing about the others
            function = function_of(item.nodeid)
            self.seconds[function] += cpu_seconds() - begin
            self.ran[function] += 1
        return result

    def pytest_runtest_logreport(self, report):
        """During the protocol of the test."""
        if report.skipped:
            self.skipped.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """Adds the measurements of a worker; a crashed one has none."""
        seconds, ran, collected = getattr(node, "workeroutput", {}).get("functions", ({},) * 3)
        self.seconds.update(seconds)
        self.ran.update(ran)
        self.collected |= Counter(collected)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """A worker hands over what it measured; the reporting process writes the file."""
        if self.is_worker:
            session.config.workeroutput["functions"] = [
                dict(counter) for counter in (self.seconds, self.ran, self.collected)
            ]
        elif self.records:
            costs = updated(recorded(), self.seconds, self.ran, self.collected)
            FILE.write_text(json.dumps(costs, indent=1) + "\n")
