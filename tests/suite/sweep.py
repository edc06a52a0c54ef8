"""pytest -m sweep: the full products of what plain pytest runs by pairs (tests/pairwise.py).

pytest -m sweep                    everything, after a plan: cases by area, kernels, time
pytest -m sweep --collect-only -q  the plan alone
pytest -m sweep --shard 2/8        the second of eight parts that take about as long; a kernel is in one of them
pytest -m sweep --resume           without what has passed at these sources; works after Ctrl-C and kill, too

What passed is in .sweep/<fingerprint>, a line for each: the fingerprint is of every file of the package and the tests.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests import pairwise

COMPILE_SECONDS = 1.7
"""Of a kernel, once a run."""

DIRECTORY = ".sweep"


@dataclass(frozen=True)
class Part:
    """A case of the sweep, or of anything else that is cut into shards."""

    area: str
    kept: bool
    kernel: tuple | None
    seconds: float
    commits: int  # that share the list of its cases

    @classmethod
    def of(cls, item) -> Part | None:
        """The arguments of a test's mark; None without one."""
        mark = item.get_closest_marker("sweep")
        if mark is None:
            return None
        without = cls("other", kept=False, kernel=None, seconds=0.1, commits=1)
        return replace(without, **mark.kwargs)


def add_options(parser) -> None:
    """--shard and --resume."""
    parser.addoption("--shard", metavar="I/N", help="run the I-th of N parts")
    parser.addoption(
        "--resume", action="store_true", help="leave out what has passed at these sources"
    )


def shard_of(text: str) -> tuple[int, int]:
    """(I, N) of "I/N".

    >>> shard_of("2/8")
    (2, 8)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--shard {text}: accepted are I/N with 1 <= I <= N, as 2/8")
    return int(found[1]), int(found[2])


def fingerprint(root: Path) -> str:
    """Of the files that decide whether a case passes."""
    digest = hashlib.sha256()
    files = [
        path
        for folder in ("cute_fa4", "tests", "benchmarks")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".c", ".h", ".toml", ".json")
    ]
    for path in sorted([*files, *root.glob("conftest.py"), *root.glob("pyproject.toml")]):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:24]


def groups_of(items) -> dict:
    """key -> items that belong into one shard: those of one kernel, else those of one file."""
    groups = defaultdict(list)
    for item in items:
        part = Part.of(item)
        kernel = part.kernel if part else None
        groups[str(item.path) if kernel is None else f"{part.area} {kernel}"].append(item)
    return dict(groups)


def seconds_of(key_and_items) -> float:
    """The approximate time of a group."""
    _, items = key_and_items
    parts = [Part.of(item) for item in items]
    compiled = any(part and part.kernel for part in parts)
    return sum(part.seconds if part else 0.1 for part in parts) + COMPILE_SECONDS * compiled


def cut(items: list, index: int, number: int) -> set:
    """The items of one shard: groups, the longest first, each to the shard with the least cost."""
    load = [0.0] * number
    chosen = set()
    for group in sorted(groups_of(items).items(), key=lambda g: (-seconds_of(g), g[0])):
        shard = load.index(min(load))
        load[shard] += seconds_of(group)
        if shard == index - 1:
            chosen.update(group[1])
    return chosen


def plan_lines(items, done: int) -> list[str]:
    """How many cases of which area, how many kernels, how long."""
    areas = defaultdict(list)
    for item in items:
        areas[Part.of(item).area].append(item)
    lines, total = [], 0.0
    for area, members in sorted(areas.items()):
        seconds = sum(seconds_of(group) for group in groups_of(members).items())
        kernels = len({Part.of(item).kernel for item in members} - {None})
        total += seconds
        lines.append(
            f"{len(members):6} cases  {kernels:4} kernels  {seconds / 60:7.1f} min  {area}"
        )
    kernels = len({(Part.of(i).area, Part.of(i).kernel) for i in items if Part.of(i).kernel})
    left_out = f", {done} have passed before" if done else ""
    lines.append(
        f"{len(items):6} cases  {kernels:4} kernels  {total / 60:7.1f} min  on one core{left_out}"
    )
    return lines


class SweepPlugin:
    """Selects what is run, says the plan, and notes what has passed."""

    def __init__(self, config):
        self.sweeping = "sweep" in (config.getoption("-m") or "")
        self.shard = config.getoption("--shard") and shard_of(config.getoption("--shard"))
        self.resume = config.getoption("--resume")
        self.reports = not hasattr(config, "workerinput")
        self.plan = []
        self.failed = set()
        # With workers, the first of them tells its plan in a file: the controller collects nothing.
        self.told = getattr(config, "workerinput", {}).get("plan")
        self.is_first = getattr(config, "workerinput", {}).get("workerid") == "gw0"
        self.to_be_told = None
        if self.resume and not self.sweeping:
            raise pytest.UsageError(
                "--resume: only the sweep notes what has passed; use it with -m sweep"
            )
        pairwise.kept_only = not self.sweeping
        if self.sweeping:
            self.passed_file = config.rootpath / DIRECTORY / fingerprint(config.rootpath)

    @pytest.hookimpl(trylast=True)  # after -m and -k
    def pytest_collection_modifyitems(self, config, items):
        """Plain pytest leaves the rest of the products to the sweep."""
        wanted, done = set(items), 0
        if not self.sweeping:
            wanted = {item for item in items if (part := Part.of(item)) is None or part.kept}
        if self.shard:
            wanted &= cut([item for item in items if item in wanted], *self.shard)
        if self.resume and self.passed_file.exists():
            passed = set(self.passed_file.read_text().split("\n"))
            done = sum(item.nodeid in passed for item in wanted)
            wanted = {item for item in wanted if item.nodeid not in passed}
        left = [item for item in items if item in wanted]
        if self.sweeping:
            self.plan = plan_lines([item for item in left if Part.of(item)], done)
            if self.told and self.is_first:
                Path(self.told).write_text("\n".join(self.plan))
        if len(left) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
            items[:] = left

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        """In the controller: where the plan is to be told."""
        if self.sweeping and self.to_be_told is None:
            handle, path = tempfile.mkstemp(prefix="cute_fa4-sweep-")
            os.close(handle)
            self.to_be_told = Path(path)
        if self.to_be_told is not None:
            node.workerinput["plan"] = str(self.to_be_told)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node):
        """In the controller: the plan, before the first case runs."""
        if self.to_be_told is None or node.gateway.id != "gw0":
            return
        self.plan = self.to_be_told.read_text().splitlines()
        self.to_be_told.unlink()
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        for line in ["", *self.pytest_report_collectionfinish()]:
            reporter.write_line(line)

    def pytest_report_collectionfinish(self):
        """The plan, before the first case runs."""
        return ["sweep:", *self.plan] if self.plan else []

    def pytest_runtest_logreport(self, report):
        """A case has passed when set-up, call and tear-down have."""
        if not (self.sweeping and self.reports):
            return
        if not report.passed:
            self.failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self.failed:
            self.passed_file.parent.mkdir(exist_ok=True)
            with self.passed_file.open("a") as file:
                file.write(f"{report.nodeid}\n")
