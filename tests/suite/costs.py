"""Where the time and the memory of a test run go: printed at its end, summed over its workers.

    ten slowest test files                    set-up, tests and tear-down: by the clock, and on a core
    compile, emulator                         seconds inside of the compiler and inside of emulated launches
    peak memory of every worker               and the files during which it grew; above 4 GB the run fails

Processes that tests start (examples, pages of the documentation) count in their file only.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.suite import scripts
from tests.suite.imports import after_import

# A worker may take this much. Two of them, their controller and the compiler's own processes fit in a machine
# with 16 GB, and a test that needs more would meet this limit on the way.
MEMORY_LIMIT_BYTES = 4 << 30

SLOWEST = 10


@dataclass
class Costs:
    """The costs of one process."""

    compile_seconds: float = 0.0
    compiles: int = 0
    emulator_seconds: float = 0.0
    launches: int = 0
    cpu_seconds: float = 0.0  # of this process and those it started
    peak_bytes: int = 0
    by_file: Counter = field(default_factory=Counter)  # test file -> seconds on a core
    grown: Counter = field(
        default_factory=Counter
    )  # test file -> bytes by which the peak grew in it

    def as_data(self) -> dict:
        """What xdist can send to the controller."""
        return {**vars(self), "grown": dict(self.grown), "by_file": dict(self.by_file)}


def peak_bytes() -> int:
    """The largest resident set this program has had. (ru_maxrss would count that of the parent at the fork, too.)"""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cpu_seconds() -> float:
    """CPU time of this process, of its finished children, of ranks, and of the scripts that another process forks."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    of_children = sum(usage.ru_utime + usage.ru_stime for usage in used)
    return of_children + scripts.cpu_seconds + _seconds_of_ranks()


_of_ranks: dict[int, float] = {}  # process -> its CPU time when it was last seen


def _seconds_of_ranks() -> float:
    """CPU time of processes that a server forked (multiprocessing's forkserver), which are not this one's children."""
    for rank in multiprocessing.active_children():
        try:
            fields = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # no /proc, or it has just ended
            continue
        parent, user, system = (int(fields[place]) for place in (1, 11, 12))
        if rank.pid is not None and parent != os.getpid():
            _of_ranks[rank.pid] = (user + system) / os.sysconf("SC_CLK_TCK")
    return sum(_of_ranks.values())


class Timed:
    """Adds the time inside of functions to a Costs; a call inside of another one counts once."""

    def __init__(self, costs: Costs, what: str, number: str):
        self.costs, self.what, self.number, self.depth = costs, what, number, 0

    def __call__(self, function):
        @functools.wraps(function)
        def timed(*args, **kwargs):
            self.depth += 1
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self._add(time.perf_counter() - begin)

        return timed

    def _add(self, seconds):
        setattr(self.costs, self.what, getattr(self.costs, self.what) + seconds)
        setattr(self.costs, self.number, getattr(self.costs, self.number) + 1)


class CostsPlugin:
    """Measures in every process that runs tests; the process that reports adds up and prints."""

    def __init__(self):
        self.mine = Costs()
        self.of_workers = {}  # name -> Costs as data
        self.seconds = Counter()  # test file -> seconds
        compiling = Timed(self.mine, "compile_seconds", "compiles")
        emulating = Timed(self.mine, "emulator_seconds", "launches")

        def time_compiler(module):
            module.CompileCallable.__call__ = compiling(module.CompileCallable.__call__)

        def time_emulator(module):
            module.execute_grid = emulating(module.execute_grid)

        after_import("cutlass.base_dsl.compiler", time_compiler)
        after_import("cute_fa4.emulator.run.launch", time_emulator)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """In a worker, and without workers: what a test takes of a core, and whether it made the peak grow."""
        begin = cpu_seconds()
        result = yield
        self.mine.by_file[file_of(item.nodeid)] += cpu_seconds() - begin
        self._note_peak(item.nodeid)
        return result

    def _note_peak(self, nodeid):
        peak = peak_bytes()
        if peak > self.mine.peak_bytes:
            self.mine.grown[file_of(nodeid)] += peak - self.mine.peak_bytes
            self.mine.peak_bytes = peak

    def pytest_runtest_logreport(self, report):
        """Every phase of every test, wherever it ran."""
        self.seconds[file_of(report.nodeid)] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        """A worker hands its costs over; the reporting process fails a run that took too much memory."""
        self.mine.peak_bytes = max(self.mine.peak_bytes, peak_bytes())
        self.mine.cpu_seconds = cpu_seconds()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = self.mine.as_data()
        elif self.too_large() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """The costs reported by a worker; none if it crashed."""
        costs = getattr(node, "workeroutput", {}).get("costs")
        if costs is not None:
            self.of_workers[node.gateway.id] = costs

    def processes(self) -> dict:
        """Those that ran tests: the workers, or this one."""
        return self.of_workers or {"this process": self.mine.as_data()}

    def too_large(self) -> list[str]:
        """Processes above the limit."""
        return [n for n, c in self.processes().items() if c["peak_bytes"] > MEMORY_LIMIT_BYTES]

    def pytest_terminal_summary(self, terminalreporter):
        """Print it."""
        if not self.seconds or terminalreporter.config.getoption("collectonly"):
            return
        terminalreporter.section("where the time went")
        for line in report_lines(self.seconds, self.processes()):
            terminalreporter.write_line(line)
        for name in self.too_large():
            terminalreporter.write_line(
                f"ERROR: {name} took more than {MEMORY_LIMIT_BYTES / 2**30:.0f} GB; the files above made it grow",
                red=True,
            )


def report_lines(seconds: Counter, processes: dict) -> list[str]:
    """The report: seconds by test file, costs as data by process."""
    total = lambda name: sum(costs[name] for costs in processes.values())
    on_core = Counter()
    for costs in processes.values():
        on_core.update(costs["by_file"])
    slowest = seconds.most_common(SLOWEST)
    lines = ["    wall     core"]
    lines += [f"{amount:7.1f}s {on_core[file]:7.1f}s  {file}" for file, amount in slowest]
    rest, rest_on_core = seconds.total(), sum(on_core.values())
    rest -= sum(amount for _, amount in slowest)
    rest_on_core -= sum(on_core[file] for file, _ in slowest)
    others = max(0, len(seconds) - SLOWEST)
    lines += [
        f"{rest:7.1f}s {rest_on_core:7.1f}s  {others} other files",
        f"{seconds.total():7.1f}s {total('cpu_seconds'):7.1f}s  together; core: with collecting and imports",
        f"{total('compile_seconds'):7.1f}s           compiler, {total('compiles')} functions",
        f"{total('emulator_seconds'):7.1f}s           emulator, {total('launches')} launches",
    ]
    for name, costs in sorted(processes.items()):
        grown = ", ".join(
            f"{file} {amount / 2**20:.0f} MB"
            for file, amount in Counter(costs["grown"]).most_common(3)
        )
        lines.append(f"peak memory of {name} {costs['peak_bytes'] / 2**30:.2f} GB; most in {grown}")
    return lines


def file_of(nodeid: str) -> str:
    """The file of a node id.

    >>> file_of("tests/sm100/test_exp2.py::test_halves[1::2]")
    'tests/sm100/test_exp2.py'
    """
    return nodeid.partition("::")[0]
