"""The sources of the backward kernels with one text replaced, as a separate package."""

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from cute_fa4.sm100 import backward
from cute_fa4.sm100.backward import kernel
from tests.emulator.mutations.edits import with_text

NAME = "cute_fa4.sm100.damaged_backward"
SOURCES = Path(backward.__file__).parent


@dataclass(frozen=True)
class Defect:
    """In `file`, `old` becomes `new`; a problem that shows it."""

    file: str
    old: str
    new: str
    problem: str

    def damaged(self) -> str:
        """The text of the file. PlantingError where `old` is not there once."""
        source = SOURCES / f"{self.file}.py"
        return with_text(source.read_text(), self.old, self.new, source.name)

    def plant(self, monkeypatch, folder: Path):
        """Kernels made from here on have the defect. folder: an empty one of the test."""
        copy = folder / "damaged"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / f"{self.file}.py").write_text(self.damaged())
        for name in [name for name in sys.modules if name.startswith(NAME)]:
            monkeypatch.delitem(sys.modules, name)
        spec = importlib.util.spec_from_file_location(
            NAME, copy / "__init__.py", submodule_search_locations=[str(copy)]
        )
        monkeypatch.setitem(sys.modules, NAME, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(sys.modules[NAME])
        config, made = (importlib.import_module(f"{NAME}.{part}") for part in ("config", "kernel"))

        for name in ("BackwardKernel", "AuxKernel"):
            of = getattr(made, name)
            monkeypatch.setattr(
                kernel, name, lambda cfg, of=of: of(config.BackwardConfig(**vars(cfg)))
            )
