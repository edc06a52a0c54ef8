"""A run of the whole suite takes a part of what is expensive; successive commits take all of it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.emulator.mutations import quick
from tests.suite import rotation, turns

ROOT = Path(__file__).resolve().parents[2]

SKIPPED = {"test_it.py::test_skipped": 2.0}  # its cost is that of a machine where it runs
CONFTEST = """
from pathlib import Path

from tests.emulator.mutations import quick
from tests.suite import rotation, turns

turns.chosen = 0
rotation.FILE = Path("costs.json")
pytest_addoption = rotation.add_options

def pytest_configure(config):
    config.addinivalue_line("markers", "sweep: unused")
    config.pluginmanager.register(rotation.RotationPlugin(config))
"""
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(6))
def test_dear(n): pass

def test_cheap(): pass

@pytest.mark.skip(reason="of the test")
def test_skipped(): pass
"""


@pytest.fixture
def project(tmp_path):
    """Six cases that cost 6 seconds together, and a cheap one; a function that runs pytest there."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    (tmp_path / "costs.json").write_text(json.dumps({"test_it.py::test_dear": 1.0} | SKIPPED))

    def run(*options):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize(
    "options",
    [("test_it.py", "-n", "1"), ("-k", "test"), ("--all-turns",)],
    ids=" ".join,
)
def test_whoever_chooses_tests_gets_all_their_cases(project, options):
    """--since, too; it needs a repository (test_since.py)."""
    assert "7 passed" in project(*options)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "with a worker"])
def test_a_run_of_the_whole_suite_takes_a_part_and_records_it(project, options, tmp_path):
    """In truth nothing costs a second here, so afterwards what ran has not to take turns."""
    assert "2 passed" in project("--record-costs", *options)
    assert json.loads((tmp_path / "costs.json").read_text()) == SKIPPED


def test_a_run_names_what_is_expensive_and_has_no_cost(project, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST + "rotation.DEAR = 0.0\n")
    said = project()
    assert "no cost of test_it.py::test_cheap, " in said
    assert "no cost of test_it.py::test_dear" not in said
    assert "no cost" not in project("test_it.py")  # which takes no turns


def test_costs_count_the_cases_that_a_run_left_out():
    """A case of 0.5 s that stands for six costs 3 s; functions that did not run keep what they had."""
    old = {"a::x": 1.0, "a::y": 4.0, "a::z": 9.0}
    ran, collected = Counter({"a::x": 1, "a::y": 2}), Counter({"a::x": 6, "a::y": 2, "a::z": 1})
    new = rotation.updated(old, Counter({"a::x": 0.5, "a::y": 0.4}), ran, collected)
    assert new == {"a::x": 0.5, "a::z": 9.0}


@pytest.mark.parametrize("dealt", [1, turns.OF_CASES, quick.OF_PTX, quick.OF_SOURCES])
@pytest.mark.parametrize("commits", [*range(1, rotation.MOST, 5), rotation.MOST])
@pytest.mark.parametrize("number", [1, 12, 37], ids=lambda n: f"{n} cases")
def test_successive_commits_run_every_case(dealt, commits, number, monkeypatch):
    """MOST of them, also of lists that have been dealt before. Where there are cases enough, each runs some."""
    names = [f"t.py::test_x[{n}]" for n in range(number)]
    cost = rotation.SECONDS * commits * dealt / number
    left = set(names)
    for turn in range(1000, 1000 + rotation.MOST):
        monkeypatch.setattr(turns, "chosen", turn)
        here = {name: dealt for n, name in enumerate(names) if turns.taken(n, dealt)}
        taken = rotation.part_of(here, {"t.py::test_x": cost})
        assert taken or len(here) < rotation.commits_for(cost * len(here), dealt)
        left -= taken
    assert not left


def test_a_function_may_have_cases_of_a_dealt_list_beside_others(monkeypatch):
    """Each list takes its own turns: what one keeps does not move the numbers of the other."""
    dealt = {f"t.py::test_x[{n}]": 3 if n % 2 else 1 for n in range(36)}
    left = set(dealt)
    for turn in range(1000, 1000 + rotation.MOST):
        monkeypatch.setattr(turns, "chosen", turn)
        here = {name: d for n, (name, d) in enumerate(dealt.items()) if turns.taken(n // 2, d)}
        left -= rotation.part_of(here, {"t.py::test_x": 100.0})
    assert not left


def test_functions_of_one_case_do_not_all_wait_for_one_commit(monkeypatch):
    monkeypatch.setattr(turns, "chosen", 0)
    names = [f"t.py::test_{n}" for n in range(3600)]
    taken = rotation.part_of(dict.fromkeys(names, 1), dict.fromkeys(names, 1000.0))
    assert 50 < len(taken) < 150  # a thirty-sixth is 100


def test_the_record_names_functions_that_exist():
    """A renamed function needs a record under its new name: --record-costs."""
    for function in rotation.recorded():
        file, _, name = function.partition("::")
        assert f"def {name.rpartition('::')[2]}(" in (ROOT / file).read_text(), function
