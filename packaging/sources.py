"""The files of the wheels, for hatchling, from the exclude list in ../pyproject.toml.

    cute-fa4            all of cute_fa4 except that list; hatchling selects them
    cute-fa4-runtime    the same files
    cute-fa4-emulator   the folders of that list

The wheels of the first two require that of the emulator, of the same version. `pip install .` takes it from the
checkout. An editable install of the root has every file in place and requires no other distribution.
"""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; hatchling depends on it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
WHOLE, EMULATOR = "cute-fa4", "cute-fa4-emulator"


def of_the_emulator() -> list[Path]:
    """The folders that belong to the emulator's wheel only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    return [ROOT / pattern.strip("/") for pattern in patterns]


def files(distribution: str) -> list[Path]:
    """Every file of cute_fa4 that the wheel of the distribution has."""
    folders = set(of_the_emulator())
    return [
        path
        for path in sorted((ROOT / "cute_fa4").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
        if folders.isdisjoint(path.parents) == (distribution != EMULATOR)
    ]


class Sources(BuildHookInterface):
    """Adds the files and the requirement of a wheel; refuses source distributions of parts of the tree."""

    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        name = self.metadata.core.raw_name
        if self.target_name == "sdist":
            raise ValueError(
                f"{name} has no source distribution: that of {WHOLE} contains packaging/, from which all wheels "
                "are built; build with --wheel"
            )
        if name == WHOLE and version == "editable":
            return
        if name != EMULATOR:
            build_data["dependencies"].append(self._emulator(name))
        if name != WHOLE:
            for path in files(name):
                build_data["force_include"][str(path)] = path.relative_to(ROOT).as_posix()

    def _emulator(self, name: str) -> str:
        """The requirement: by its folder for the whole built in a checkout, which an index need not have."""
        is_checkout = not (ROOT / "PKG-INFO").exists()  # a source distribution has that file
        if name == WHOLE and is_checkout:
            return f"{EMULATOR} @ {(ROOT / 'packaging' / 'emulator').as_uri()}"
        return f"{EMULATOR}=={self.metadata.version}"
