"""Do something right after a module was imported, so that measuring a module does not import it.

after_import("cutlass.cute", function) calls function(module) once: now if it is imported, else at its import.
"""

import importlib.abc
import importlib.machinery
import sys


class _Watch(importlib.abc.MetaPathFinder):
    """Finds modules as the path does, and lets those that are waited for report that they were executed."""

    def __init__(self):
        self.waiting = []  # (does it match this name?, what to do)

    def find_spec(self, name, path, target=None):
        """The usual spec, whose loader also calls what waits for this name."""
        todo = [function for matches, function in self.waiting if matches(name)]
        if not todo:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                for function in todo:
                    function(module)

            spec.loader.exec_module = exec_module
        return spec


_watch = _Watch()


def after_import(name, function):
    """Call function(module) when the module of this name has been executed, now if it has been already."""
    after_imports(lambda other: other == name, function)


def after_imports(matches, function):
    """The same for every module whose name matches."""
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
    for name, module in list(sys.modules.items()):
        if module is not None and matches(name):
            function(module)
    _watch.waiting.append((matches, function))
