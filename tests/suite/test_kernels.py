"""Runs of the same sources share a directory of kernels, and only unchanged sources compile into it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cute_fa4 import compile_cache
from cute_fa4.aot import disk_cache
from cute_fa4.compiler import compiler, functions
from cute_fa4.compiler.sources import fingerprint
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.instructions import exp2
from tests.suite.kernels import KernelsPlugin, Originals, directory_of, make_room, state_of

ROOT = Path(__file__).resolve().parents[2]
CONFIG = AppendConfig("fp16", 248, 232)  # depths that no other test appends


def test_a_kernel_of_a_replaced_function_is_refused_and_named(monkeypatch):
    monkeypatch.setattr(exp2, "emulated_pairs", lambda *_: frozenset())
    with pytest.raises(
        AssertionError, match=r"sm100\.instructions\.exp2\.emulated_pairs is replaced"
    ):
        compile_cache.function_for(CONFIG, "emulator")


def test_a_kernel_of_a_replaced_method_is_refused_too(monkeypatch):
    monkeypatch.setattr(AppendConfig, "name", "other")
    with pytest.raises(AssertionError, match=r"append\.config\.AppendConfig\.name is"):
        compile_cache.function_for(CONFIG, "emulator")


def test_kernels_of_its_own_are_neither_found_nor_left_after(own_kernels, monkeypatch):
    monkeypatch.setattr(exp2, "emulated_pairs", lambda *_: frozenset())
    made = []
    monkeypatch.setattr(compiler, "compile_function", lambda *key: made.append(key) or made.append)
    compile_cache.function_for(CONFIG, "emulator")
    assert made == [(CONFIG, "emulator")]
    assert disk_cache.usable_directory() is None


def test_a_replacement_that_does_not_fit_is_named(own_kernels, monkeypatch):
    monkeypatch.setattr(exp2, "emulated_pairs", lambda: frozenset())
    with pytest.raises(
        pytest.fail.Exception, match=r"exp2\.emulated_pairs is replaced by what takes at most 0"
    ):
        compile_cache.function_for(CONFIG, "emulator")


def test_nothing_was_left_after():
    """Of the test above; in one process when this file is run as it is."""
    assert functions.existing(CONFIG, "emulator") is None


def test_originals_know_functions_methods_and_numbers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sources_of_a_test.py").write_text(
        "NUMBER = 1\ndef f(): pass\nclass C:\n    def m(self): pass\n    n = 2\n"
    )
    import sources_of_a_test as module

    originals = Originals()
    originals.keep(module)
    assert originals.replaced() == []
    module.NUMBER, module.C.n = 2, 3
    module.C.m = module.f = lambda: None
    names = ["NUMBER", "f", "C.m", "C.n"]
    assert set(originals.replaced()) == {f"sources_of_a_test.{name}" for name in names}


def test_workers_and_later_runs_share_one_directory(tmp_path):
    """Two workers, a test each: both see the directory that the controller made, and it stays."""
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from tests.suite.kernels import KernelsPlugin\n"
        "def pytest_configure(config):\n"
        "    given = getattr(config, 'workerinput', {}).get('kernels')\n"
        "    config.pluginmanager.register(KernelsPlugin(given, parent=Path(__file__).with_name('kept')))\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import os, pytest, pathlib\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_it(n, worker_id):\n"
        f"    (pathlib.Path({str(tmp_path)!r}) / worker_id).write_text(os.environ['CUTE_FA4_CACHE_DIR'])\n"
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    first, second = ((tmp_path / name).read_text() for name in ("gw0", "gw1"))
    assert first == second == str((tmp_path / "kept" / fingerprint()).resolve())
    assert Path(first).is_dir()


def test_the_least_recently_used_sources_go_beyond_the_limit(tmp_path):
    for age, name in enumerate("abcd"):
        (tmp_path / name / "kernels").mkdir(parents=True)
        (tmp_path / name / "kernels" / "file").write_bytes(bytes(100_000))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))  # a is the newest, d the oldest
    make_room(tmp_path, keep=tmp_path / "d", limit=250_000)
    # Two fit: those of this run, which stay although they look oldest, and the newest of the others.
    assert {path.name for path in tmp_path.iterdir()} == {"a", "d"}


def test_a_cold_run_begins_without_kernels(tmp_path):
    kept = directory_of("sources", tmp_path) / "kernel"
    kept.touch()
    assert directory_of("sources", tmp_path) == kept.parent and kept.exists()
    assert directory_of("sources", tmp_path, cold=True) == kept.parent and not kept.exists()


def test_kernels_of_edited_sources_are_kept_apart(tmp_path, monkeypatch):
    """A file that is edited, or gone, while the process has what it said before."""
    for name in ("CUTE_FA4_CACHE", "CUTE_FA4_CACHE_DIR"):
        monkeypatch.setenv(name, os.environ[name])
    plugin = KernelsPlugin(None, parent=tmp_path / "kept")
    edited = tmp_path / "source.py"
    edited.write_text("a = 1")
    plugin.files = [edited]
    plugin.state = state_of(plugin.files)
    plugin.keep_apart_after_an_edit()
    assert os.environ["CUTE_FA4_CACHE_DIR"] == plugin.directory
    edited.write_text("a = 12")
    plugin.keep_apart_after_an_edit()
    assert os.environ["CUTE_FA4_CACHE_DIR"] == plugin.apart.name != plugin.directory
    plugin.pytest_unconfigure()
    assert Path(plugin.directory).is_dir() and not Path(plugin.apart.name).exists()
