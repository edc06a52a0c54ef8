"""The report at the end of a run: sums, and a run that took too much memory fails."""

import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.suite import costs
from tests.suite.costs import Costs, Timed, report_lines

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.suite import costs

costs.MEMORY_LIMIT_BYTES = {limit}

def pytest_configure(config):
    config.pluginmanager.register(costs.CostsPlugin())
"""


def run(directory, limit, *options):
    (directory / "conftest.py").write_text(CONFTEST.format(limit=limit))
    (directory / "test_it.py").write_text("def test_it(): pass\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(directory)},
    )


def test_a_run_above_the_limit_fails_and_names_the_worker(tmp_path):
    for options, name in (((), "this process"), (("-n", "1"), "gw0")):
        done = run(tmp_path, 1 << 20, *options)
        assert done.returncode == 1 and f"ERROR: {name} took more than" in done.stdout
        done = run(tmp_path, 1 << 40, *options)
        assert done.returncode == 0 and f"peak memory of {name} 0." in done.stdout


def test_seconds_are_summed_over_workers_and_files_are_sorted():
    seconds = Counter({f"tests/test_{n}.py": float(n) for n in range(1, 13)})
    worker = Costs(compile_seconds=2.0, compiles=3, cpu_seconds=9.0, peak_bytes=1 << 30).as_data()
    worker["by_file"] = {"tests/test_12.py": 5.0}
    text = "\n".join(report_lines(seconds, {"gw0": worker, "gw1": worker}))
    assert text.index("12.0s    10.0s  tests/test_12.py") < text.index("11.0s     0.0s")
    assert "    3.0s     0.0s  2 other files" in text
    assert "   78.0s    18.0s  together" in text
    assert "4.0s           compiler, 6 functions" in text


def test_a_call_inside_of_another_one_counts_once(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))
    mine = Costs()
    timed = Timed(mine, "compile_seconds", "compiles")
    inner = timed(lambda: None)
    timed(lambda: inner())()
    assert (mine.compile_seconds, mine.compiles) == (2, 1)  # from tick 0 to 2; inner begins at 1


def _compute(seconds):
    """Use a core for so long, by the clock of the process."""
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_the_time_of_a_process_counts_once_while_it_runs_and_after_its_end(method):
    """0.5 s: 50 ticks of the kernel's clock, beside which starting a process is little."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    begin = costs.cpu_seconds()
    process.start()
    ours.send(0.5)
    ours.recv()
    running = costs.cpu_seconds() - begin
    ours.send(None)
    process.join()
    ended = costs.cpu_seconds() - begin
    assert ended >= 0.45
    assert (running >= 0.45) == (
        method == "forkserver"
    )  # a child's time is known when it has ended


def _serve(pipe):
    while (seconds := pipe.recv()) is not None:
        _compute(seconds)
        pipe.send(None)
