"""The wheels: which files each has, what it requires, and what it does without the others."""

import email
import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cute_fa4 import __version__
from cute_fa4.emulator.model import nvdisasm, ptxas
from tests import installations
from tests.installations import PROJECTS, ROOT
from tests.suite import import_graph
from tests.test_package import DISTRIBUTION_OF, OF_PROGRAMS, distributions, imported_modules

WHOLE, RUNTIME, EMULATOR = PROJECTS
SAME_VERSION = f"{EMULATOR}=={__version__}"
OF_CHECKOUT = f"{EMULATOR} @ {(ROOT / PROJECTS[EMULATOR]).as_uri()}"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    return installations.build_wheels(tmp_path_factory.mktemp("wheels"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def modules(wheel: Path) -> set[str]:
    return {name for name in names(wheel) if name.startswith("cute_fa4/")}


def metadata(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def unpacked(folder: Path, *wheels: Path) -> Path:
    """The folder with the files of the wheels, as pip installs them."""
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def python(*arguments, path, status=0, **environment) -> str:
    """Output of an interpreter that sees the standard library and the folders of `path`."""
    done = subprocess.run(
        [sys.executable, "-S", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert done.returncode == status, said[-3000:]
    return said


# --- files


def test_every_file_belongs_to_one_of_two_wheels(wheels):
    package = (path for path in (ROOT / "cute_fa4").rglob("*") if path.is_file())
    every = {p.relative_to(ROOT).as_posix() for p in package if "__pycache__" not in p.parts}
    assert names(wheels[WHOLE]) & names(wheels[EMULATOR]) == set()
    assert modules(wheels[WHOLE]) | modules(wheels[EMULATOR]) == every
    assert modules(wheels[RUNTIME]) == modules(wheels[WHOLE])


def test_the_emulator_imports_only_modules_of_its_wheel(wheels):
    known = import_graph.modules(["cute_fa4"])
    # The command line calls the attention kernel where cute-fa4 is installed, and says so elsewhere.
    reached = reached_from("cute_fa4.emulator", known) - {"cute_fa4"}
    files = {known[module].relative_to(ROOT).as_posix() for module in reached}
    assert files <= modules(wheels[EMULATOR])

    requirements = installations.project(EMULATOR)
    declared = distributions(
        requirements["dependencies"] + requirements["optional-dependencies"]["dsl"]
    )
    for module in reached:
        foreign = imported_modules(known[module]) - set(sys.stdlib_module_names) - {"cute_fa4"}
        foreign -= OF_PROGRAMS.get(known[module].name, set())
        assert {DISTRIBUTION_OF.get(name, name) for name in foreign} <= declared, module


def reached_from(package: str, known: dict[str, Path]) -> set[str]:
    """The modules of a package and everything that they import, also inside of functions."""
    waiting = [module for module in known if f"{module}.".startswith(f"{package}.")]
    found = set(waiting)
    while waiting:
        module = waiting.pop()
        new = import_graph.imported(module, known[module], known) - found
        found |= new
        waiting += new
    return found


def test_all_wheels_are_built_from_the_source_distribution(wheels, tmp_path):
    """It has no links: one that leads out of the archive makes pip and build refuse to unpack it."""
    released = installations.released_wheels(tmp_path)
    [source] = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert [member.name for member in archive if not member.isfile()] == []
    for distribution, wheel in released.items():
        assert names(wheel) == names(wheels[distribution])
        required = metadata(wheel).get_all("Requires-Dist", [])
        assert (SAME_VERSION in required) == (distribution != EMULATOR)


def test_a_part_has_no_source_distribution(tmp_path):
    with pytest.raises(AssertionError, match=f"{EMULATOR} has no source .* build with --wheel"):
        installations.build("sdist", EMULATOR, tmp_path)


# --- requirements


def test_wheels_have_one_version_and_require_that_of_the_emulator(wheels):
    """`pip install .` in a checkout takes the emulator from there: an index may not have it."""
    required = {
        name: metadata(wheel).get_all("Requires-Dist", []) for name, wheel in wheels.items()
    }
    assert {metadata(wheel)["Version"] for wheel in wheels.values()} == {__version__}
    assert OF_CHECKOUT in required[WHOLE] and SAME_VERSION in required[RUNTIME]
    assert not any(text.startswith("cute-fa4") for text in required[EMULATOR])


@pytest.mark.parametrize("kind, required", [("standard", [OF_CHECKOUT]), ("editable", [])])
def test_an_editable_install_requires_no_other_distribution(kind, required):
    pytest.importorskip("hatchling", reason="builds the distributions: pip install -e '.[test]'")
    source = ROOT / "packaging" / "sources.py"
    specification = importlib.util.spec_from_file_location("sources_of_wheels", source)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    about = SimpleNamespace(core=SimpleNamespace(raw_name=WHOLE), version=__version__)
    hook = module.Sources(str(ROOT), {}, None, about, "", "wheel")
    data = {"dependencies": [], "force_include": {}}
    hook.initialize(kind, data)
    assert data == {"dependencies": required, "force_include": {}}


def test_requirements_of_the_emulator_are_those_of_the_whole():
    whole, emulator = installations.project(WHOLE), installations.project(EMULATOR)
    extras = emulator["optional-dependencies"]
    assert set(emulator["dependencies"]).isdisjoint(extras["dsl"])
    assert set(emulator["dependencies"]) | set(extras["dsl"]) <= set(whole["dependencies"])
    assert extras["profile"] == whole["optional-dependencies"]["profile"]
    assert emulator["requires-python"] == whole["requires-python"]


@pytest.mark.parametrize("part", [RUNTIME, EMULATOR])
def test_parts_have_the_license_of_the_repository(part):
    assert (ROOT / PROJECTS[part] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


# --- one without the other

# Runs a command of the emulator, then prints the packages that were imported: the cost of a start, in modules.
COMMAND = """
import sys
from cute_fa4.emulator import __main__ as command
status = command.main(sys.argv[1:]) if sys.argv[1:] else 0
found = {name.partition(".")[0] for name, m in sys.modules.items() if getattr(m, "__spec__", 0)}
print("imported", *sorted(found - set(sys.stdlib_module_names)))
sys.exit(status)
"""
SCALE = (ROOT / "examples" / "programs" / "scale.ptx", "--grid", "2", "--block", "64")
ARGUMENTS = ("f32:100:zeros", "f32:100:count", "f32:3", "f32:7", "u32:100")
LAUNCH = (*SCALE, *(word for each in ARGUMENTS for word in ("--argument", each)))


@pytest.fixture(scope="module")
def emulator_alone(wheels, tmp_path_factory):
    """Folder with the emulator's wheel and NumPy: neither torch nor a compiler can be imported."""
    folder = unpacked(tmp_path_factory.mktemp("alone"), wheels[EMULATOR])
    numpy = Path(np.__file__).parent
    for place in (numpy, numpy.with_name("numpy.libs")):
        if place.exists():
            (folder / place.name).symlink_to(place)
    return folder


@pytest.mark.parametrize("name", ["import", "run", "profile"])
def test_a_ptx_file_runs_with_numpy_alone(name, emulator_alone):
    words = () if name == "import" else (name, *LAUNCH)
    programs = {}
    if name == "profile":
        try:
            programs = {"NVDISASM": str(nvdisasm.find()), "PTXAS": str(next(ptxas.candidates()))}
        except (nvdisasm.NvdisasmError, StopIteration) as missing:
            pytest.skip(f"profile reads machine code: {missing}")
    said = python("-c", COMMAND, *words, path=[emulator_alone], **programs)
    assert "imported cute_fa4 numpy\n" in said
    assert "written:\n[  7.  10.  13." in said or name == "import"
    assert "One CTA:" in said or name != "profile"


@pytest.mark.parametrize(
    "words, remedy",
    [
        (("trace", "--text"), "name a .py, .ptx or .cu file, or pip install cute-fa4\n"),
        (("run", "program.py"), "no module 'torch' is installed: pip install 'cute-fa4-emulator[ds"),
        (("profile", "--as-if-cuda", "program.py"), "program.py: programs for a GPU run with torch"),
    ],
)  # fmt: skip
def test_the_emulator_says_what_else_to_install(words, remedy, emulator_alone):
    said = python("-m", "cute_fa4.emulator", *words, path=[emulator_alone], status=2)
    assert remedy in said and "Traceback" not in said


def test_profile_says_how_to_install_the_disassembler(emulator_alone):
    nowhere = {"NVDISASM": "/nowhere", "PATH": "/usr/bin:/bin"}
    words = ("-m", "cute_fa4.emulator", "profile", *LAUNCH)
    said = python(*words, path=[emulator_alone], status=2, **nowhere)
    assert "profile: NVDISASM=/nowhere is not a file. pip install nvidia-cuda-nvdisasm" in said
    assert "Traceback" not in said


def test_both_make_one_package(wheels, emulator_alone, tmp_path):
    together = unpacked(tmp_path, wheels[WHOLE], wheels[EMULATOR])
    (together / "numpy").symlink_to(Path(np.__file__).parent)
    program = "import cute_fa4, cute_fa4.emulator; print(cute_fa4.__version__)"
    assert python("-c", program, path=[together]) == f"{__version__}\n"


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another folder of sys.path"])
@pytest.mark.parametrize("program", ["import cute_fa4", "from cute_fa4.calls import launch"])
def test_the_rest_says_how_to_install_the_emulator(program, left, wheels, emulator_alone, tmp_path):
    path = [unpacked(tmp_path, wheels[WHOLE])]
    if left == "an empty folder":
        (path[0] / "cute_fa4" / "emulator" / "__pycache__").mkdir(parents=True)
    if left == "another folder of sys.path":
        path.append(emulator_alone)
    said = python("-c", program, path=path, status=1)
    assert f"pip install --force-reinstall --no-deps {SAME_VERSION}" in said
