"""Scratch directories: gone at the exit of their process, and after a kill when the next one makes its own."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from cute_fa4.system import forks
from tests.suite import scripts

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "cute_fa4-of-a-test-"
MAKES = f"""
import sys
from cute_fa4.system import forks
made = forks.ScratchDirectory("{PREFIX}").path()
(made / "kept.ptx").write_text("text")
print(made, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A /tmp of the test's own, where a file is never too young."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(forks, "_BEING_MADE_SECONDS", -1)


def process(tmp_path) -> tuple[subprocess.Popen, Path]:
    """(one that has made a directory and waits, the directory)."""
    started = subprocess.Popen(
        [sys.executable, "-c", MAKES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    return started, Path(started.stdout.readline().strip())


def test_a_directory_goes_with_its_process_or_when_the_next_one_makes_its_own(tmp_path):
    (ends, of_ends), (killed, of_killed), (runs, of_runs) = (process(tmp_path) for _ in range(3))
    ends.communicate("")
    assert not of_ends.exists() and of_killed.exists()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert (of_killed / "kept.ptx").exists(), "nobody could remove it"
    foreign = tmp_path / f"{PREFIX}without-a-lock"
    foreign.mkdir()

    mine = forks.ScratchDirectory(PREFIX)
    assert mine.path().is_dir() and mine.path() == mine.path()
    assert not of_killed.exists()
    assert (of_runs / "kept.ptx").exists(), "its process runs"
    assert foreign.exists(), "nothing says whose it is"
    runs.communicate("")
    assert not of_runs.exists()


def test_a_forked_child_has_its_own_and_what_it_leaves_goes_with_the_next(tmp_path):
    mine = forks.ScratchDirectory(PREFIX)
    before = mine.path()
    child = os.fork()
    if child == 0:
        own = mine.path()
        os._exit(0 if own != before and own.is_dir() and before.is_dir() else 1)  # no atexit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(tmp_path.iterdir())) == 2
    other = forks.ScratchDirectory(PREFIX).path()
    assert set(tmp_path.iterdir()) == {before, other}


def test_a_directory_that_a_cleaner_removed_is_made_again():
    mine = forks.ScratchDirectory(PREFIX)
    (mine.path() / forks.IN_USE).unlink()
    mine.path().rmdir()
    assert mine.path().is_dir()


def test_a_directory_that_is_just_being_made_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(forks, "_BEING_MADE_SECONDS", 60)
    young = tmp_path / f"{PREFIX}young"
    young.mkdir()
    (young / forks.IN_USE).touch()
    forks.remove_left_after(PREFIX)
    assert young.exists()


# What makes a temporary directory for a while, up to the line in its midst at which the process is killed.
KILLED_IN = {
    "the question for ptxas": """
        import cutlass.cute as cute
        from cute_fa4.compiler import toolkit
        cute.compile = die
        toolkit.ptxas()""",
    "an export into a wheel": """
        from cute_fa4 import __main__, aot
        aot.export = die
        __main__.main(["export-kernel", "--wheel", "wheels", "--head-dim", "64"])""",
    "a stage of the first run": """
        from cute_fa4.readiness import runner
        stage = runner.Stage("stage", "question", run=dict, suspect="nothing")
        runner.run_one(stage, runner.Context("cpu"), command=die)""",
}
DIES = """
import os, signal, sys, tempfile
from cute_fa4.system import forks
tempfile.tempdir = os.environ["TMPDIR"]
forks._BEING_MADE_SECONDS = -1
def die(*arguments, **options):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(7)
"""


@pytest.mark.parametrize("name", KILLED_IN)
def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path, name):
    code = DIES + textwrap.dedent(KILLED_IN[name])
    where = dict(cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)})
    done = scripts.run("-c", code, "killed", **where)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(tmp_path.iterdir())) == 1, "it made one, which nobody could remove"
    done = scripts.run("-c", code, "ends", **where)
    assert done.returncode == 7, done.stderr
    assert list(tmp_path.iterdir()) == []
