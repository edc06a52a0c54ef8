"""The disk cache: one process compiles, the next ones do not; a bad directory costs time, not results."""

import os
import subprocess
import sys
import threading
import time

import pytest

from cute_fa4 import compile_cache
from cute_fa4.aot import disk_cache, manifest
from cute_fa4.compiler import compiler, functions
from cute_fa4.sm100.blueprint.score_mods import InKernel, ScoreMod
from cute_fa4.sm100.choose.config import FA4Config

from .conftest import APPEND, PLAIN, ROOT, python

# The append kernel compiles fastest. The cuda executor: opening a kernel takes neither a GPU nor a linker.
WARM = """
import logging, sys, time
logging.basicConfig(format="%(message)s")
from cute_fa4 import compile_cache, warmup
from cute_fa4.sm100.append.config import AppendConfig
config = AppendConfig("bf16", 64, 64, page_size=16)
print(warmup([config]), "cutlass" in sys.modules)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache directory of this test's own, in this process too."""
    monkeypatch.setenv("CUTE_FA4_CACHE", "on")
    monkeypatch.setenv("CUTE_FA4_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})
    monkeypatch.setattr(functions, "_seconds", {})
    disk_cache._note.cache_clear()
    return tmp_path / "cache"


def warm(cache, **environment):
    return python(WARM, CUTE_FA4_CACHE="on", CUTE_FA4_CACHE_DIR=cache, **environment)


def entry_of(cache):
    (entry,) = disk_cache.entries(cache / "kernels")
    return entry


def test_two_processes_that_race_compile_once(cache):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    racing = [
        subprocess.Popen([sys.executable, "-c", WARM], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outs = sorted(process.communicate(timeout=120)[0] for process in racing)
    assert outs == ["0 False\n", "1 True\n"]  # the one that waited never loaded the compiler
    assert len(disk_cache.entries(cache / "kernels")) == 1
    assert not list((cache / "kernels").glob(".new-*"))

    # Later processes find it; a damaged entry is compiled again, and found again.
    assert warm(cache).stdout == "0 False\n"
    library = next(entry_of(cache).glob("*.so"))
    library.write_bytes(library.read_bytes()[:-64])
    again = warm(cache)
    assert (
        again.stdout == "1 True\n"
        and "compiled again" in again.stderr
        and "truncated" in again.stderr
    )
    assert warm(cache).stdout == "0 False\n"


@pytest.fixture
def stored(exported, cache):
    """An entry for PLAIN, made of exported files: what one process would have written."""
    import json
    import shutil

    entry = cache / "kernels" / disk_cache.key_of(PLAIN, "cuda")
    (cache / "kernels").mkdir(parents=True, mode=0o700)
    shutil.copytree(exported, entry)
    content = json.loads((entry / "manifest.json").read_text())
    content["kernels"] = [k for k in content["kernels"] if k["name"] == PLAIN.name]
    (entry / "manifest.json").write_text(json.dumps(content))
    return entry


def compiled_marker():
    return "compiled here"


def test_a_stored_kernel_is_opened_without_compiling(stored):
    function, compiled = disk_cache.function_for(PLAIN, "cuda", compiled_marker)
    assert not compiled and callable(function)


def spoil_manifest(entry):
    path = entry / "manifest.json"
    path.write_text(path.read_text().replace('sha256": "', 'sha256": "0'))


def of_another_configuration(entry):
    path = entry / "manifest.json"
    path.write_text(path.read_text().replace('"write_lse": false', '"write_lse": true'))


@pytest.mark.parametrize(
    "spoil", [spoil_manifest, of_another_configuration], ids=lambda f: f.__name__
)
def test_a_spoiled_entry_is_replaced(spoil, stored, caplog, monkeypatch):
    spoil(stored)
    from cute_fa4.aot import exporter

    monkeypatch.setattr(exporter, "export_one", lambda *a, **k: pytest.fail("compiled"))
    with pytest.raises(pytest.fail.Exception):
        disk_cache.function_for(PLAIN, "cuda", compiled_marker)
    assert "compiled again" in caplog.text


def refused_directories(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    open_to_all = tmp_path / "open"
    (open_to_all / "kernels").mkdir(parents=True)
    (open_to_all / "kernels").chmod(0o777)
    root = (
        tmp_path / "root"
    )  # who may write to it could put another directory in the place of kernels/
    (root / "kernels").mkdir(parents=True, mode=0o700)
    root.chmod(0o777)
    return {
        "others may write to the root": (root, "writable by nobody else"),
        "a file": (file, "Not a directory|File exists"),
        # /proc takes no directories, not even from root, whom permissions do not stop
        "read-only": ("/proc/cute_fa4_cache", "/proc/cute_fa4_cache"),
        "others may write": (open_to_all, "writable by nobody else"),
    }


@pytest.mark.parametrize(
    "which", ["a file", "read-only", "others may write", "others may write to the root"]
)
def test_a_directory_that_cannot_be_used_falls_back_to_memory_with_one_note(
    which, cache, tmp_path, monkeypatch, caplog
):
    directory, note = refused_directories(tmp_path)[which]
    monkeypatch.setenv("CUTE_FA4_CACHE_DIR", str(directory))
    for _ in range(2):
        assert disk_cache.function_for(PLAIN, "cuda", compiled_marker) == ("compiled here", True)
    assert len(caplog.records) == 1
    import re

    assert re.search(f"kept in memory only: .*({note})", caplog.text)


def test_a_directory_that_becomes_read_only_after_it_was_made(cache, monkeypatch, caplog):
    # os.open of the lock file fails as on a file system mounted read-only
    (cache / "kernels").mkdir(parents=True, mode=0o700)

    def read_only(path, *args):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(disk_cache.os, "open", read_only)
    assert disk_cache.function_for(PLAIN, "cuda", compiled_marker) == ("compiled here", True)
    assert "Read-only file system" in caplog.text


def test_without_a_c_compiler_kernels_stay_in_memory(cache, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert disk_cache.function_for(PLAIN, "cuda", compiled_marker) == ("compiled here", True)
    assert "found none (looked for $CC, cc, gcc, clang)" in caplog.text
    assert not disk_cache.entries(cache / "kernels")


def test_what_cannot_be_written_as_data_never_reaches_the_disk(cache):
    config = FA4Config(score_mod=ScoreMod(InKernel(lambda score, *rest: score), "mine"))
    assert disk_cache.function_for(config, "cuda", compiled_marker) == ("compiled here", True)
    assert not disk_cache.entries(cache / "kernels")


def test_an_entry_of_the_emulator_has_no_machine_code_and_is_never_opened_for_cuda(cache, caplog):
    """Its key is different. Copied to the key of the cuda executor, it is compiled again and not launched as PTX."""
    made = disk_cache.function_for(APPEND, "emulator", lambda: pytest.fail("not into the cache"))
    assert made[1]
    entry = entry_of(cache)
    assert {path.suffix for path in entry.iterdir()} == {".json", ".o", ".ptx"}
    host_object = next(entry.glob("*.o")).read_bytes()
    assert host_object.count(b"\x7fELF") == 1, "the object itself; a cubin in it would be another"
    entry.rename(entry.with_name(disk_cache.key_of(APPEND, "cuda")))
    assert disk_cache._open(entry_of(cache), APPEND, "emulator") is not None
    assert disk_cache._open(entry_of(cache), APPEND, "cuda") is None
    assert "no library file" in caplog.text and "compiled again" in caplog.text


def test_the_key_changes_with_everything_that_decides_the_bytes(monkeypatch):
    keys = {disk_cache.key_of(PLAIN, "cuda"), disk_cache.key_of(PLAIN, "emulator")}
    keys |= {
        disk_cache.key_of(PLAIN.with_(arch="sm_103a"), "cuda"),
        disk_cache.key_of(APPEND, "cuda"),
    }
    now = manifest.versions()
    for name in now:
        monkeypatch.setattr(manifest, "versions", lambda name=name: {**now, name: "other"})
        keys.add(disk_cache.key_of(PLAIN, "cuda"))
    assert len(keys) == 4 + len(now)


def test_what_a_killed_process_had_begun_to_write_goes_after_a_day(tmp_path):
    begun = {hours: tmp_path / f"{disk_cache.BEGUN}{hours}" for hours in (1, 25)}
    for hours, path in begun.items():
        path.mkdir()
        (path / "entry").mkdir()
        then = time.time() - hours * 3600
        os.utime(path, (then, then))
    disk_cache._evict(tmp_path, keep=tmp_path / "an entry")
    assert begun[1].exists() and not begun[25].exists()


def test_eviction_removes_the_least_recently_used_beyond_the_limit(cache, monkeypatch):
    directory = cache / "kernels"
    for age, name in enumerate("abcd"):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").write_bytes(bytes(100))
        os.utime(directory / name, (1000 - age, 1000 - age))  # a is the newest, d the oldest
    monkeypatch.setenv("CUTE_FA4_CACHE_BYTES", "250")
    disk_cache._evict(directory, keep=directory / "d")
    # 250 bytes hold two of 100; the one just written stays although it looks oldest
    assert {p.name for p in disk_cache.entries(directory)} == {"a", "d"}


@pytest.mark.parametrize(
    "name, value, ask",
    [
        ("CUTE_FA4_CACHE_BYTES", "1GB", disk_cache.limit_bytes),
        ("CUTE_FA4_CACHE", "maybe", disk_cache.usable_directory),
    ],
)
def test_unknown_settings_are_refused(name, value, ask, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'; accepted"):
        ask()


def test_off_means_off(cache, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_CACHE", "off")
    assert disk_cache.function_for(PLAIN, "cuda", compiled_marker) == ("compiled here", True)
    assert not cache.exists()


def test_a_lock_is_released_by_a_process_that_dies(cache, tmp_path):
    path = tmp_path / "lock"
    code = (
        "import os, sys; from pathlib import Path; from cute_fa4.aot import disk_cache\n"
        "with disk_cache._locked(Path(sys.argv[1]), 'x'): os._exit(3)"
    )
    assert python(code, path, check=False).returncode == 3
    taken = threading.Event()

    def take():
        with disk_cache._locked(path, "x"):
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert taken.wait(timeout=10)


def test_warmup_compiles_whatever_the_policy(cache, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    monkeypatch.setenv("CUTE_FA4_CACHE", "off")
    monkeypatch.setattr(compiler, "compile_function", lambda config, executor: compiled_marker)
    assert compile_cache.warmup([PLAIN, APPEND, PLAIN]) == 2
    assert compile_cache.warmup([PLAIN, APPEND]) == 0
