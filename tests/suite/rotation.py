"""Expensive tests take turns where the whole suite runs, so that a run takes minutes: each commit runs a part of them.

costs.json              test function -> seconds on a core of a case, for functions that take SECONDS or more together
pytest --record-costs   writes it: what ran replaces its old record. The first function that uses a kernel pays for its
                        compile, so the file has the larger cost of two runs in different orders
pytest --all-turns      every case, as in a run of single files or with -k, -m or --since

The cases of a function are dealt to as many commits as the function costs multiples of SECONDS, at most MOST. Where it
has fewer cases than that, some commits run none of it. A function that is not in the file runs in every commit. Lists
that were dealt before (by_turns, quick_or_sweep, pairwise) are dealt to fewer commits here, so that MOST successive
commits run every case.
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
from tests.suite.sweep import Part

FILE = Path(__file__).with_name("costs.json")
SECONDS = 0.5
"""What every commit may spend on a function."""
MOST = 36
"""Commits that share a function, at most."""
DEAR = 4.0
"""Seconds of a function that a run names if no cost is recorded: every commit pays for it."""


def function_of(nodeid: str) -> str:
    """A test function without its case.

    >>> function_of("tests/test_a.py::TestB::test_c[x[0]-y]")
    'tests/test_a.py::TestB::test_c'
    """
    file, _, name = nodeid.partition("::")
    return f"{file}::{name.partition('[')[0]}"


def commits_for(seconds: float, dealt: int = 1) -> int:
    """How many commits share a function that takes so many seconds on a core.

    >>> [commits_for(seconds) for seconds in (0.2, 0.5, 1.1, 3.5, 300.0)]
    [1, 1, 3, 7, 36]

    dealt: commits that share its list already.

    >>> [commits_for(300.0, dealt) for dealt in (1, 3, 12)]
    [36, 12, 3]
    """
    return min(MOST // dealt, max(1, math.ceil(seconds / SECONDS)))


def part_of(cases: dict[str, int], costs: dict[str, float]) -> set[str]:
    """The cases that this run takes. cases: node ID -> commits that share the list of the case already."""
    lists = defaultdict(list)
    for nodeid, dealt in cases.items():
        lists[function_of(nodeid), dealt].append(nodeid)
    taken = set()
    for (function, dealt), nodeids in lists.items():
        commits = commits_for(costs.get(function, 0.0) * len(nodeids), dealt)
        # Functions begin at different turns: else one commit would run all those of a single case.
        # A case of a list that was dealt before is here at every dealt-th commit.
        first = zlib.crc32(function.encode()) + turns.turn() // dealt
        taken.update(each for number, each in enumerate(nodeids, first) if number % commits == 0)
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


def without_cost(costs: dict[str, float], seconds: dict[str, float]) -> list[str]:
    """Functions that took DEAR seconds or more, and have no cost.

    >>> without_cost({"dear": 9.0}, {"dear": 9.0, "new": 5.0, "cheap": 0.1})
    ['new']
    """
    return [name for name, took in seconds.items() if took >= DEAR and name not in costs]


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
        parts = {item.nodeid: Part.of(item) for item in items}
        dealt = {nodeid: part.commits if part else 1 for nodeid, part in parts.items()}
        taken = part_of(dealt, recorded())
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

    def pytest_terminal_summary(self, terminalreporter):
        """Name what has come since the costs were recorded."""
        names = without_cost(recorded(), self.seconds) if self.rotates else []
        for name in names:
            terminalreporter.write_line(
                f"no cost of {name}, which takes {self.seconds[name]:.0f} s in every run of all tests: record it with "
                "pytest --all-turns --record-costs PATH"
            )

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
