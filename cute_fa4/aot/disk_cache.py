"""Compiled kernels on disk: one process compiles, every later one opens the file.

    $CUTE_FA4_CACHE_DIR, else $XDG_CACHE_HOME/cute_fa4, else ~/.cache/cute_fa4
      kernels/
        <key>/        manifest.json, NAME.o, NAME.so, NAME.ptx, NAME.cubin: as cute_fa4.aot.export writes them; for the
                      emulator without NAME.so and NAME.cubin: ptxas makes machine code only for the cuda executor
        <key>.lock    held by the process that compiles; the system releases it whenever the process ends

The key is a hash of the configuration as data, the executor, the package's kernel sources, and the versions of the
compiler and of TVM-FFI. An entry is used when its manifest says the same and every file's hash is right; one that is
damaged is compiled again. Nothing is unpickled.

    CUTE_FA4_CACHE=off          no disk cache
    CUTE_FA4_CACHE_BYTES=N      size of all entries, default 1 GiB; the least recently used go first

When the directory cannot be used (read-only, others may write to it, no C compiler to link with), kernels are kept in
memory and a note says why, once. Functions of the user's own are part of the key by the operations and constants that
were traced.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cute_fa4.aot import manifest, missing
from cute_fa4.aot.config_data import ConfigDataError, to_data
from cute_fa4.aot.manifest import LoadError
from cute_fa4.system import cache_directory, environment

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock between processes, so no cache either
    fcntl = None  # type: ignore[assignment]  # users check whether it is None

LOG = logging.getLogger("cute_fa4")
SWITCH, LIMIT = "CUTE_FA4_CACHE", "CUTE_FA4_CACHE_BYTES"
DEFAULT_LIMIT_BYTES = 1 << 30  # about 3,000 kernels
HOST_TARGET = "x86-64-v2" if platform.machine() == "x86_64" else "native"

BEGUN = ".new-"
BEGUN_AT_MOST_SECONDS = 24 * 3600

_WAIT_SECONDS = 0.05  # between two looks at a lock; a compile takes seconds
_NOTE_AFTER_SECONDS = 10


def function_for(config, executor: str, compile_it: Callable) -> tuple[Callable, bool]:
    """-> (function, whether it was compiled just now); compile_it() is called if the disk has none."""
    directory = usable_directory()
    if directory is None:
        return compile_it(), True
    try:
        key = key_of(config, executor)
    except ConfigDataError as error:
        LOG.debug("%s stays in memory: %s", config.name, error)
        return compile_it(), True
    entry = directory / key
    found = _open(entry, config, executor)
    if found is not None:
        return found, False
    try:
        with _locked(directory / f"{key}.lock", config.name):
            found = _open(entry, config, executor)  # another process may have written it meanwhile
            if found is not None:
                return found, False
            return _compile_into(entry, config, executor, compile_it), True
    except OSError as error:
        _note(f"{directory}: {error}")
        return compile_it(), True


def key_of(config, executor: str) -> str:
    """Name of an entry: everything that decides its bytes."""
    parts = [to_data(config), executor, manifest.versions(), HOST_TARGET, platform.machine()]
    return manifest.sha256(json.dumps(parts, sort_keys=True).encode())[:40]


# --- the directory


def usable_directory() -> Path | None:
    """The directory of entries, created; None, with a note, where none can be kept."""
    if environment.choice(SWITCH, "on", "off") == "off":
        return None
    if fcntl is None:
        _note("this system has no file locks")
        return None
    try:
        return cache_directory.own_directory("kernels")
    except cache_directory.UnusableDirectory as error:
        _note(str(error))
        return None


@cache
def _note(why: str) -> None:
    """Show the note once for each reason."""
    LOG.warning("kernels are kept in memory only: %s", why)


def limit_bytes() -> int:
    text = os.environ.get(LIMIT)
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not text.isdigit():
        raise ValueError(f"{LIMIT}={text!r}; accepted: a number of bytes")
    return int(text)


# --- entries


def _open(entry: Path, config, executor: str) -> Callable | None:
    """The function of an entry; None if there is none or it is damaged."""
    from cute_fa4.aot import loader

    if not entry.is_dir():
        return None
    try:
        content = manifest.read_manifest(entry)
        manifest.check_versions(entry / manifest.MANIFEST, content["versions"])
        (kernel,) = content["kernels"]
        if loader.verified_config(entry, kernel) != config:
            raise LoadError(f"{entry}: of another configuration, {kernel['name']}")
        function = loader.maker(entry, kernel, config, executor)()
    except (LoadError, ValueError) as error:
        LOG.warning("a cached kernel is compiled again: %s", error)
        return None
    with contextlib.suppress(OSError):
        os.utime(entry)  # for the order of eviction
    return function


def _compile_into(entry: Path, config, executor: str, compile_it: Callable) -> Callable:
    """Compile and write the entry; its function. compile_it's own function where there is no C compiler."""
    from cute_fa4.aot import exporter
    from cute_fa4.system import c_compiler
    from cute_fa4.system.c_compiler import CCompilerError

    try:
        c_compiler.find_compiler()
    except CCompilerError as error:
        _note(str(error))
        return compile_it()
    missing.check(config, executor)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=BEGUN) as scratch:
        new = Path(scratch) / "entry"
        new.mkdir(mode=0o700)
        record = exporter.export_one(
            config,
            to_data(config),
            new,
            HOST_TARGET,
            for_emulator=executor == "emulator",
            c_entry=False,
        )
        manifest.write_manifest(new, {"versions": manifest.versions(), "kernels": [record]})
        if entry.exists():  # damaged
            shutil.rmtree(entry)
        os.rename(new, entry)
    _evict(entry.parent, keep=entry)
    function = _open(entry, config, executor)
    return compile_it() if function is None else function


@contextlib.contextmanager
def _locked(path: Path, name: str):
    """Hold a lock that other processes and other file handles of this one wait for."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        begin, noted = time.monotonic(), False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not noted and time.monotonic() - begin > _NOTE_AFTER_SECONDS:
                    noted = True
                    LOG.warning("waiting for another process that compiles %s (%s)", name, path)
                time.sleep(_WAIT_SECONDS)
        yield
    finally:
        # Closing unlocks. The file stays: removing it would let two processes hold "the" lock.
        os.close(handle)


def entries(directory: Path) -> list[Path]:
    """Entries, the least recently used first."""
    found = []
    for path in directory.iterdir():
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.name.startswith("."):
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def size_bytes(entry: Path) -> int:
    total = 0
    for path in entry.iterdir():
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _evict(directory: Path, keep: Path) -> None:
    """Remove the least recently used entries beyond the limit. A process that is reading one compiles it again.

    Partial entries older than a day are also removed: their process was killed.
    """
    for begun in directory.glob(f"{BEGUN}*"):
        with contextlib.suppress(OSError):
            if time.time() - begun.lstat().st_mtime > BEGUN_AT_MOST_SECONDS:
                shutil.rmtree(begun, ignore_errors=True)
    limit, sizes = limit_bytes(), {}
    for entry in entries(directory):
        with contextlib.suppress(OSError):
            sizes[entry] = size_bytes(entry)
    total = sum(sizes.values())
    for entry, size in sizes.items():
        if total <= limit:
            return
        if entry != keep:
            shutil.rmtree(entry, ignore_errors=True)
            total -= size
