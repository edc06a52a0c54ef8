"""Edits of a kernel's source: one text of a module replaced, and the damaged functions and methods in its place."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.emulator.mutations.edits import with_text


@dataclass(frozen=True)
class Edit:
    """In the source of a module, `old` becomes `new`.

    users: modules that have imported names of it. They keep the old classes, with the damaged methods: the compiler
    compares classes
    """

    module: ModuleType
    old: str
    new: str
    users: tuple[ModuleType, ...] = ()

    def plant(self, monkeypatch, folder: Path) -> None:
        """Kernels made from here on have it. folder: a folder of the test."""
        source = Path(self.module.__file__)
        path, name = folder / "damaged.py", f"{self.module.__package__}.damaged"
        path.write_text(with_text(source.read_text(), self.old, self.new, source.name))
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        for attribute, value in list(vars(made).items()):
            if getattr(value, "__module__", None) != name:
                continue
            if isinstance(value, type) and self.users:
                own = getattr(self.module, attribute)
                for method, function in vars(value).items():
                    if method == "__call__" or not method.startswith("__"):
                        monkeypatch.setattr(own, method, function, raising=False)
                setattr(made, attribute, own)
                continue
            for module in (self.module, *self.users):
                if hasattr(module, attribute):
                    monkeypatch.setattr(module, attribute, value)
