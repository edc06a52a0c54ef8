"""The project's distributions, built from the tree, and fresh environments to install them into without a network."""

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest depends on it there
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]

# Distribution -> the folder of its pyproject.toml.
PROJECTS = {
    "cute-fa4": ".",
    "cute-fa4-runtime": "packaging/runtime",
    "cute-fa4-emulator": "packaging/emulator",
}


def project(distribution: str) -> dict:
    """The [project] table of a distribution."""
    return tomllib.loads((ROOT / PROJECTS[distribution] / "pyproject.toml").read_text())["project"]


def build(target: str, distribution: str, folder: Path, root: Path = ROOT) -> Path:
    """A wheel or an sdist of a distribution, written to a folder. root: a checkout, or an unpacked sdist."""
    pytest.importorskip("hatchling", reason="builds the distributions: pip install -e '.[test]'")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(
        command, cwd=root / PROJECTS[distribution], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ending = {"wheel": "-py3-none-any.whl", "sdist": ".tar.gz"}[target]
    [path] = folder.glob(f"{distribution.replace('-', '_')}-[0-9]*{ending}")
    return path


def build_wheels(folder: Path, root: Path = ROOT) -> dict[str, Path]:
    """The wheel of every distribution."""
    return {distribution: build("wheel", distribution, folder, root) for distribution in PROJECTS}


def released_wheels(folder: Path) -> dict[str, Path]:
    """The same, built from the source distribution as `python -m build` does; the folder has that, too."""
    with tarfile.open(build("sdist", "cute-fa4", folder)) as archive:
        names = archive.getnames()
        archive.extractall(folder, filter="data")
    return build_wheels(folder, folder / names[0].partition("/")[0])


# Packages that a run-time machine does not have.
LEFT_OUT = ("nvidia_cutlass_dsl", "cutlass", "cute_fa4", "_editable", "__editable")


class Environment:
    """A fresh virtual environment that sees the packages of this one, except LEFT_OUT.

    pip downloads nothing: it refuses what it finds neither there nor in the folder of wheels.
    """

    def __init__(self, folder: Path, wheels: Path):
        self.wheels, links = wheels, folder / "links"
        links.mkdir()
        for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for path in Path(place).iterdir():
                if not path.name.startswith(LEFT_OUT) and path.suffix != ".pth":
                    (links / path.name).symlink_to(path)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        [site] = (folder / "venv").glob("lib/python*/site-packages")
        (site / "links.pth").write_text(f"{links}\n")

    def run(self, *arguments, status=0, **environment):
        done = subprocess.run(
            [self.python, *map(str, arguments)],
            env={"PATH": "/usr/bin:/bin", "CUTE_FA4_CACHE": "off", **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said[-3000:]
        return said

    def pip(self, *arguments, status=0):
        options = ("--no-index", "--find-links", self.wheels, "--disable-pip-version-check")
        return self.run("-m", "pip", "install", "--quiet", *options, *arguments, status=status)
