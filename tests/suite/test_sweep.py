"""pytest -m sweep on a small project of its own: what runs, the plan, shards that are a partition, and resuming."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import sweep

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.suite.sweep import SweepPlugin, add_options

def pytest_addoption(parser):
    add_options(parser)

def pytest_configure(config):
    config.addinivalue_line("markers", "sweep: of a product")
    config.pluginmanager.register(SweepPlugin(config))
"""
# 3 * 2 * 2 cases, of which pairs are 6; four kernels, two of each head dim. One more for the sweep alone, one for both.
TESTS = """
from pathlib import Path
from tests import pairwise

@pairwise.cases("attention", {"d": (64, 80, 128), "lse": (0, 1), "n": (1, 9)}, kernel=("d", "lse"), seconds=6)
def test_a_product(d, lse, n):
    assert not (Path(__file__).with_name("broken").exists() and (d, lse, n) == (80, 1, 9))

@pairwise.sweep_only("random", seconds=60)
def test_more(): pass

def test_of_its_own(): pass
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "tests" / "test_product.py").write_text(TESTS)
    return tmp_path


def run(project, *options, passes=True):
    """(names of the tests that passed, everything that was printed)."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(project)},
    )
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    return set(re.findall(r"::(\S+) PASSED", done.stdout)), done.stdout + done.stderr


def test_plain_pytest_runs_pairs_and_the_sweep_all(project):
    plain, _ = run(project)
    assert len(plain) == 7 and "test_of_its_own" in plain and "test_more" not in plain
    every, said = run(project, "-m", "sweep")
    assert len(every) == 13 and plain - every == {"test_of_its_own"}
    # 12 * 6 s and six compiles of 1.7 s are 1.4 minutes.
    assert re.search(r"12 cases +6 kernels +1\.4 min  attention", said)
    assert re.search(r"1 cases +0 kernels +1\.0 min  random", said)
    assert re.search(r"13 cases +6 kernels +2\.4 min  on one core", said)


def test_shards_are_a_partition_and_a_kernel_is_in_one_of_them(project):
    shards = [run(project, "-m", "sweep", "--shard", f"{i}/3")[0] for i in (1, 2, 3)]
    assert sum(map(len, shards)) == 13 == len(set().union(*shards))
    kernels = [{name.rpartition("-")[0] for name in shard if "product" in name} for shard in shards]
    assert sum(map(len, kernels)) == 6 == len(set().union(*kernels))


def test_resuming_runs_what_has_not_passed_at_these_sources(project):
    (project / "tests" / "broken").touch()
    passed, said = run(project, "-m", "sweep", passes=False)
    assert len(passed) == 12
    (project / "tests" / "broken").unlink()
    again, said = run(project, "-m", "sweep", "--resume")
    assert again == {"test_a_product[80-1-9]"} and "12 have passed before" in said
    with (project / "tests" / "test_product.py").open("a") as file:
        file.write("# other sources\n")
    assert len(run(project, "-m", "sweep", "--resume")[0]) == 13


def test_workers_run_the_same_and_the_plan_comes_first(project):
    every, said = run(project, "-m", "sweep", "-n", "2")
    assert len(every) == 0 and said.count("PASSED") == 13  # xdist prints the name after the word
    assert 0 < said.index("13 cases") < said.index("PASSED")


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(text):
    with pytest.raises(pytest.UsageError, match="accepted are I/N with 1 <= I <= N"):
        sweep.shard_of(text)


def test_only_the_sweep_resumes(project):
    _, said = run(project, "--resume", passes=False)
    assert "--resume: only the sweep notes what has passed; use it with -m sweep" in said
