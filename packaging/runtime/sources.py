"""Where the package lies: two folders up in a checkout, beside this file in a source distribution."""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def package() -> Path:
    inside = HERE / "cute_fa4"
    return inside if inside.is_dir() else HERE.parents[1] / "cute_fa4"


def version() -> str:
    text = (package() / "__init__.py").read_text()
    return re.search(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)[1]


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # the version is read by others, too
    pass
else:

    class Sources(BuildHookInterface):
        """Puts the package into the wheel, and into the source distribution beside this file."""

        PLUGIN_NAME = "custom"

        def initialize(self, version, build_data):
            for path in sorted(package().rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    name = path.relative_to(package().parent).as_posix()
                    build_data["force_include"][str(path)] = name
