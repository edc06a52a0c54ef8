"""pytest --since REV: the tests that the changes since a commit can reach, by what their files import, name and read.

pytest --since main        what differs from main, with what is not committed yet
pytest --since HEAD        what is not committed yet

A test runs where its file reaches a file that changed (import_graph.py). Everything runs where a change has no place in
that graph: pyproject.toml, this folder, a deleted file, one that no Python file names. Tests that walk over folders run
where anything but tests changed, those of tests/house always. Kernel families are found by name at run time, so a
change in one of them reaches every test that runs a kernel; -k and paths narrow that down.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.suite import import_graph
from tests.suite.import_graph import ROOT

EVERYTHING = ("pyproject.toml", *import_graph.OF_EVERY_TEST)
NOTHING = (".gitignore", "LICENSE", ".pre-commit-config.yaml", ".github/", ".ci/")
ALWAYS = ("tests/house/",)
_WALKS = re.compile(r"\br?glob\(|\.iterdir\(|os\.walk\(|kernel_sources\(")


def changed_since(revision: str, root: Path = ROOT) -> set[str]:
    """Files that differ from a commit, deleted ones too, and new ones. UsageError for a name that git does not know."""
    git = ["git", "-C", str(root)]
    command = [*git, "diff", "--name-only", "--no-renames", revision, "--"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise pytest.UsageError(
            f"--since {revision}: git says: {done.stderr.strip()}; accepted: a commit, a branch or a tag"
        )
    new = [*git, "ls-files", "--others", "--exclude-standard"]
    untracked = subprocess.run(new, capture_output=True, text=True, check=True, timeout=60).stdout
    return {file for file in (done.stdout + untracked).split("\n") if file}


def reaches(test_file: str, changed: set[str]) -> bool:
    """Whether a change can alter what the tests of a file find."""
    changed = {file for file in changed if not file.startswith(NOTHING)}
    if not changed:
        return False
    if test_file.startswith(ALWAYS) or any(has_no_place(file) for file in changed):
        return True
    reached = import_graph.reached_by(test_file)
    if reached & changed:
        return True
    beyond_tests = any(not file.startswith("tests/") for file in changed)
    return beyond_tests and any(walks(file) for file in reached if is_of_tests(file))


def is_of_tests(file: str) -> bool:
    """Whether it is a test or a helper of some."""
    return file.startswith("tests/") and not file.startswith(import_graph.OF_EVERY_TEST)


def has_no_place(file: str) -> bool:
    """Whether a changed file is one of which the graph says too little: then every test runs."""
    if file.startswith(EVERYTHING):
        return True
    if file.endswith(".py"):
        return not (ROOT / file).exists()  # deleted, or under another name
    return not any(file in targets for targets in import_graph._graph().values())


def walks(file: str) -> bool:
    """Whether a file of the tests looks at all files of a folder."""
    path = ROOT / file
    return path.suffix == ".py" and bool(_WALKS.search(path.read_text()))


class SincePlugin:
    """Leaves out the tests that no change reaches, and says how many files are left."""

    def __init__(self, revision: str):
        self.changed = changed_since(revision)
        self.revision = revision

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        """Before the products are cut, so that their counts are of what runs."""
        files = {item.path for item in items}
        kept = {p for p in files if reaches(p.relative_to(ROOT).as_posix(), self.changed)}
        config.hook.pytest_deselected(items=[item for item in items if item.path not in kept])
        items[:] = [item for item in items if item.path in kept]

    def pytest_report_header(self):
        """At the start of a run."""
        return f"since {self.revision}: {len(self.changed)} files changed"
