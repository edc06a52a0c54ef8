"""Former module paths, which import the modules at their new paths with a DeprecationWarning."""

import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec


class MovedModules(MetaPathFinder, Loader):
    """Imports a former path as a module that forwards every name to the new one."""

    def __init__(self, moved: dict[str, str]):
        self.moved = moved

    def find_spec(self, name, path=None, target=None):
        if name not in self.moved:
            return None
        is_package = any(former.startswith(f"{name}.") for former in self.moved)
        return ModuleSpec(name, self, is_package=is_package)

    def exec_module(self, module):
        new = self.moved[module.__name__]
        warnings.warn(f"{module.__name__} moved to {new}", DeprecationWarning, stacklevel=2)
        module.__getattr__ = lambda name: getattr(import_module(new), name)
