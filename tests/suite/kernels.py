"""One compile for a kernel, whichever worker needs it first, and none where an earlier run has compiled it.

Kernels are kept in .kernels/<fingerprint>: the disk cache of all runs of the tests with these kernel sources. The least
recently used fingerprints go when all together are larger than 1 GiB. `pytest --cold` compiles every kernel again.

What lies there is of these sources only. So a test that changes kernels must neither read it nor leave its own behind:

    def test_a_changed_kernel(own_kernels, monkeypatch):
        monkeypatch.setattr(exp2, "exp2", ...)      # compiled for this test alone, not kept

Without own_kernels, asking for a kernel while anything of the kernel sources is replaced fails the test, and names it.
Once a source file is edited during a run, what a process has imported is no longer what the files say. Its kernels are
then kept apart until the run ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from tests.suite import planting
from tests.suite.imports import after_imports

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ".kernels"
LIMIT_BYTES = 1 << 30
"""Of all fingerprints together. The kernels of a whole run are about 300 MB."""

# Packages and modules whose functions, classes and numbers end up in kernels (cute_fa4.aot.manifest hashes them).
KERNEL_SOURCES = (
    "cute_fa4.sm100",
    "cute_fa4.tma",
    "cute_fa4.layouts",
    "cute_fa4.compiler.arguments",
    "cute_fa4.compiler.arguments_of_lists",
    "cute_fa4.compiler.fake_tensors",
)

_MISSING = object()


class Originals:
    """What was in modules and their classes when they had been imported."""

    def __init__(self):
        self.found = {}  # module or class -> attribute -> value

    def keep(self, module: ModuleType) -> None:
        """Remember everything in a module and in the classes that it defines."""
        self._keep(module)
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self._keep(value)

    def _keep(self, owner) -> None:
        values = list(vars(owner).items())
        found = {n: value for n, value in values if not n.startswith("__") or callable(value)}
        self.found.setdefault(owner, {}).update(found)

    def replaced(self) -> list[str]:
        """Names of replaced functions, such as "cute_fa4.sm100.exp2.exp2"."""
        return [name for name, _, _ in self.changes()]

    def changes(self) -> list[tuple]:
        """(name, original, replacement) of each replaced function, class or number."""
        changed = []
        for owner, values in self.found.items():
            now = vars(owner)
            for name, value in values.items():
                if now.get(name, _MISSING) is not value:
                    changed.append((_full_name(owner, name), value, now.get(name)))
        return changed


def _full_name(owner, name: str) -> str:
    if isinstance(owner, type):
        return f"{getattr(owner, '__module__', '')}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"


def sources_module():
    """cute_fa4.compiler.sources without an import of the package, which tests may want to see imported."""
    path = ROOT / "cute_fa4" / "compiler" / "sources.py"
    spec = util.spec_from_file_location("sources_of_kernels", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def state_of(files) -> tuple:
    """What changes when a file is edited."""
    found = []
    for path in files:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)


def size_bytes(directory: Path) -> int:
    """Of every file below."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def make_room(parent: Path, keep: Path, limit: int = LIMIT_BYTES) -> None:
    """Remove the least recently used directories of `parent` until all together are within the limit; `keep` stays."""
    others = [path for path in parent.iterdir() if path.is_dir() and path != keep]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    total = size_bytes(keep)
    for path in others:
        total += size_bytes(path)
        if total > limit:
            shutil.rmtree(path, ignore_errors=True)


def directory_of(fingerprint: str, parent: Path, cold: bool = False) -> Path:
    """The directory of these sources, made or emptied, with room for it."""
    directory = parent / fingerprint
    if cold:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.utime(directory)
    make_room(parent, directory)
    return directory


class KernelsPlugin:
    """The directory of kernels, and the law that only unchanged sources compile into it."""

    plant_only = False  # --plant-only: tests with kernels of their own end at their first compile

    def __init__(self, directory: str | None, cold: bool = False, parent: Path = ROOT / DIRECTORY):
        self.sources = sources_module()
        self.files = self.sources.kernel_sources()
        self.state = state_of(self.files)
        self.directory = directory or str(
            directory_of(self.sources.fingerprint(), parent, cold).resolve()
        )
        self.apart = None  # where kernels go after an edit
        self.originals = Originals()
        self.own = False  # whether the test at hand has kernels of its own
        os.environ["CUTE_FA4_CACHE"] = "on"
        os.environ["CUTE_FA4_CACHE_DIR"] = self.directory
        after_imports(is_kernel_source, self.originals.keep)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        """In the controller of several workers: they all use this directory."""
        node.workerinput["kernels"] = self.directory

    def pytest_unconfigure(self):
        """The run is over."""
        if self.apart is not None:
            self.apart.cleanup()

    def keep_apart_after_an_edit(self) -> None:
        """Kernels of this process are no longer those of the files, and what is kept is for later runs."""
        if self.apart is None and state_of(self.files) != self.state:
            self.apart = tempfile.TemporaryDirectory(prefix="cute_fa4-test-kernels-")
            os.environ["CUTE_FA4_CACHE_DIR"] = self.apart.name

    def check(self) -> None:
        """AssertionError if a kernel that is not the sources' own would be shared with other tests."""
        replaced = [] if self.own else self.originals.replaced()
        if replaced:
            raise AssertionError(
                f"a kernel is asked for while {', '.join(replaced)} is replaced: other tests would get it, or this "
                "one theirs; take the fixture own_kernels"
            )

    @pytest.fixture(autouse=True)
    def _shared_kernels_are_of_these_sources(self, monkeypatch):
        """The law, where kernels are looked up."""
        from cute_fa4 import compile_cache

        compile_or_open = compile_cache._from_disk_or_compiler

        def checked(config, executor):
            self.check()
            if self.own:
                planting.check(self.originals, self.plant_only)
            self.keep_apart_after_an_edit()
            return compile_or_open(config, executor)

        monkeypatch.setattr(compile_cache, "_from_disk_or_compiler", checked)

    @pytest.fixture
    def own_kernels(self, monkeypatch):
        """Kernels of this test alone: none of the run's, neither in memory nor on disk, and none is left behind."""
        from cute_fa4.calls import repeat
        from cute_fa4.compiler import functions

        for name in ("_functions", "_registered", "_seconds"):
            monkeypatch.setattr(functions, name, {})
        monkeypatch.setenv("CUTE_FA4_CACHE", "off")
        repeat.clear()
        self.own = True
        yield
        self.own = False
        repeat.clear()


def is_kernel_source(name: str) -> bool:
    """Whether a module's functions end up in kernels.

    >>> modules = "cute_fa4.sm100.blueprint.chip", "cute_fa4.sm100", "cute_fa4.calls"
    >>> tuple(map(is_kernel_source, modules))
    (True, True, False)
    """
    return any(name == source or name.startswith(source + ".") for source in KERNEL_SOURCES)
