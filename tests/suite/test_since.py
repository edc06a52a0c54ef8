"""pytest --since REV leaves out no test that a change can reach."""

import json
import subprocess
import sys

import pytest

from tests.suite import import_graph, since
from tests.suite.import_graph import ROOT, reached_by

CAUSAL = "tests/attention/test_causal.py"
HERE = "tests/suite/test_since.py"
LOADS = """
import json, sys
from cute_fa4.compiler.compiler import kernel_and_arguments
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.choose.choose_config import choose_config
for family in ("mha2q", "mha1q"):
    kernel_and_arguments(choose_config(qkv_dtype="bf16", head_dim=64, family=family))
kernel_and_arguments(AppendConfig("bf16", 64, 64))
from cute_fa4.aot import disk_cache, exporter, loader
from cute_fa4 import flash_attn_func
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith("cute_fa4.") and m.__file__]))
"""


def test_the_graph_has_what_a_process_loads(tmp_path):
    """Names in strings, homes of lazy names and packages that load all their modules among it."""
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    loaded = {path.removeprefix(f"{ROOT}/") for path in json.loads(done.stdout)}
    assert len(loaded) > 100
    homes = ("interface.py", "compiler/compiler.py", "aot/exporter.py", "aot/disk_cache.py")
    reached = set().union(*(reached_by(f"cute_fa4/{home}") for home in homes))
    assert loaded <= reached


@pytest.mark.parametrize(
    "file, reaches",
    {
        "cute_fa4/sm100/few_rows/kernel.py": True,  # by the name of a family
        "cute_fa4/emulator/instructions/control.py": True,  # by a loop over the files of a package
        "cute_fa4/emulator/host/runtime_library.c": True,  # by the name of a file
        "tests/attention/conftest.py": True,
        "cute_fa4/hopper/rewrite.py": False,
        "cute_fa4/aot/wheel.py": False,
        "benchmarks/model.py": False,
        "tests/serving/test_sinks.py": False,
        CAUSAL: True,
    }.items(),
)
def test_what_a_test_reaches(file, reaches):
    assert (ROOT / file).exists(), "the example is out of date"
    assert (file in reached_by(CAUSAL)) == reaches
    assert since.reaches(CAUSAL, {file}) == reaches


def test_changes_without_a_place_run_everything_and_some_nothing():
    for file in ("tests/conftest.py", "pyproject.toml", "cute_fa4/gone.py", "unknown.data", HERE):
        assert since.reaches(CAUSAL, {"LICENSE", file}), file
    assert not since.reaches(CAUSAL, {"LICENSE", ".ci/run"})
    assert not since.reaches(CAUSAL, set())


def test_tests_that_walk_over_files_run_where_the_package_changes():
    walking = "tests/compiler/test_sources.py"
    assert since.reaches(walking, {"cute_fa4/hopper/rewrite.py"})
    assert not since.reaches(walking, {"tests/serving/test_sinks.py"})
    assert since.reaches("tests/house/test_floors.py", {"tests/serving/test_sinks.py"})


def test_changes_are_what_git_says_and_new_files(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run([*git, "init", "-q"], check=True)
    for name in ("edited", "deleted", "same"):
        (tmp_path / name).write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "m"], check=True)
    (tmp_path / "edited").write_text("2")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").touch()
    assert since.changed_since("HEAD", tmp_path) == {"edited", "deleted", "new"}
    with pytest.raises(
        pytest.UsageError, match="--since nothing: git says: .*; accepted: a commit"
    ):
        since.changed_since("nothing", tmp_path)


def test_code_for_other_processes_is_read():
    known = import_graph.modules(["cute_fa4"])
    code = "\n    import sys\n    from cute_fa4.aot import wheel\n"
    assert import_graph._imports_of_code(code, known) == {"cute_fa4.aot.wheel"}
    assert import_graph._imports_of_code("what import means", known) == set()
