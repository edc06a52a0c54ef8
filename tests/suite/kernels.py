"""One compile for a kernel and a run of the tests, whichever worker needs it first.

The run has a directory of its own as disk cache, made by the process that reports and told to its workers. What lies
there is of these sources only, so a test whose kernel is another one must neither read it nor leave its own behind:

    def test_a_changed_kernel(own_kernels, monkeypatch):
        monkeypatch.setattr(exp2, "exp2", ...)      # compiled for this test alone, not kept

Without own_kernels, asking for a kernel while anything of the kernel sources is replaced fails the test, and names it.
"""

from __future__ import annotations

import os
import shutil
from types import ModuleType

import pytest

from tests.suite.imports import after_imports

# Packages and modules whose functions, classes and numbers end up in kernels (cute_fa4.aot.manifest hashes them).
KERNEL_SOURCES = (
    "cute_fa4.sm100",
    "cute_fa4.tma",
    "cute_fa4.layouts",
    "cute_fa4.compiler.arguments",
)

_MISSING = object()


class Originals:
    """What was in modules and their classes when they had been imported."""

    def __init__(self):
        self.found = {}  # (module or class, attribute) -> value

    def keep(self, module: ModuleType) -> None:
        """Remember everything in a module and in the classes that it defines."""
        self._keep(module)
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self._keep(value)

    def _keep(self, owner) -> None:
        for name, value in list(vars(owner).items()):
            if not name.startswith("__") or callable(value):
                self.found[owner, name] = value

    def replaced(self) -> list[str]:
        """What is no longer what it was, as "cute_fa4.sm100.exp2.exp2"."""
        return [
            f"{getattr(owner, '__module__', '')}.{owner.__qualname__}.{name}"
            if isinstance(owner, type)
            else f"{owner.__name__}.{name}"
            for (owner, name), value in self.found.items()
            if vars(owner).get(name, _MISSING) is not value
        ]


def made_for_this_run() -> str:
    """A directory of this process; it does not import the package in workers, which tests may want to see imported."""
    from cute_fa4.system import forks

    return str(forks.ScratchDirectory("cute_fa4-test-kernels-").path())


class KernelsPlugin:
    """The directory of the run, and the law that only unchanged sources compile into it."""

    def __init__(self, directory: str | None):
        self.made = directory is None
        # A run that is killed leaves hundreds of megabytes, which the next one removes.
        self.directory = directory or made_for_this_run()
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
        if self.made:
            shutil.rmtree(self.directory, ignore_errors=True)

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

    >>> is_kernel_source("cute_fa4.sm100.chip"), is_kernel_source("cute_fa4.sm100"), is_kernel_source("cute_fa4.calls")
    (True, True, False)
    """
    return any(name == source or name.startswith(source + ".") for source in KERNEL_SOURCES)
