"""Successive commits take every part of a list, and a run of one commit always takes the same."""

import subprocess

import pytest

from tests.emulator.mutations.quick import quick_or_sweep
from tests.suite import turns


def kept(parameters) -> set:
    """Ids of those that plain pytest runs."""
    return {p.id for p in parameters if all(m.name != "sweep" or m.kwargs["kept"] for m in p.marks)}


@pytest.mark.parametrize("every", [1, 3, 12])
def test_successive_commits_plant_every_defect_once(every, monkeypatch):
    names = [str(n) for n in range(31)]
    planted = []
    for turn in range(100, 100 + every):
        monkeypatch.setattr(turns, "chosen", turn)
        planted += kept(quick_or_sweep(names, every))
    assert sorted(planted) == sorted(names)


def test_three_commits_run_every_case_and_each_runs_some(monkeypatch):
    ran = []
    for turn in range(100, 103):
        monkeypatch.setattr(turns, "chosen", turn)
        taken = [p.values for p in turns.by_turns("abcdefg") if p.marks[0].kwargs["kept"]]
        assert taken
        ran += taken
    assert sorted(ran) == [(letter,) for letter in "abcdefg"]


@pytest.mark.parametrize("turn", [99, 100, 101])
def test_the_head_of_a_run_names_its_part(turn, monkeypatch):
    """Part n has the n-th case of a list."""
    monkeypatch.setattr(turns, "chosen", turn)
    [part] = [n for n in (1, 2, 3) if turns.taken(n - 1, turns.OF_CASES)]
    assert turns.header().startswith(f"turn {turn}: of 3 parts of rotating cases the {part}.;")


def test_cases_that_share_a_kernel_take_turns_together(monkeypatch):
    monkeypatch.setattr(turns, "chosen", 1)
    kept = lambda parameters: {p.values[0] for p in parameters if p.marks[0].kwargs["kept"]}
    alone = kept(turns.by_turns("abcdef"))
    assert (
        kept(turns.by_turns([("f", 1), ("e", 1), ("f", 2)], among="abcdef")) == {"e", "f"} & alone
    )
    with pytest.raises(AssertionError, match="each commit runs some"):
        turns.by_turns("ab")


def test_the_sweep_has_every_defect(monkeypatch):
    monkeypatch.setattr(turns, "chosen", 0)
    every = quick_or_sweep("abcd", 3)
    assert all("sweep" in {m.name for m in p.marks} for p in every) and kept(every) == {"a", "d"}


def test_the_turn_is_the_number_of_commits(tmp_path):
    assert turns.of_commit(tmp_path / "nowhere") == 0
    (tmp_path / "empty").mkdir()
    assert turns.of_commit(tmp_path / "empty") == 0
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    for _ in range(2):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    assert turns.of_commit(tmp_path) == 2
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}", str(shallow)], check=True
    )
    head = subprocess.run(
        ["git", "-C", str(shallow), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert turns.of_commit(shallow) == int(head.stdout[:12], 16)
