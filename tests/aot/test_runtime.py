"""A run-time without the compiler, and kernels as a wheel: installed by pip into a fresh environment, and run there."""

import re
import shlex
import zipfile

import pytest

from cute_fa4 import __main__ as command_line
from cute_fa4 import __version__
from cute_fa4.aot import ExportError, wheel
from cute_fa4.compiler import requirement
from tests import installations

from .conftest import PLAIN, ROOT
from .test_load import CALLS


def test_the_runtime_requires_all_but_the_compiler():
    full, runtime = installations.project("cute-fa4"), installations.project("cute-fa4-runtime")
    assert set(full["dependencies"]) - set(runtime["dependencies"]) == set(requirement.COMPILER)
    assert set(runtime["dependencies"]) < set(full["dependencies"])
    assert runtime["requires-python"] == full["requires-python"]


def test_the_recipe_is_what_the_page_shows_and_its_commands_are_accepted():
    recipe = (ROOT / "packaging" / "Containerfile").read_text()
    assert f"```text\n{recipe}```" in (ROOT / "docs" / "deployment_wheels.md").read_text()
    lines = [
        line.removeprefix("RUN ") for line in recipe.splitlines() if line.startswith("RUN python")
    ]
    lines += re.findall(r"attention (python .*)", recipe)
    assert len(lines) == 3
    for line in lines:
        command_line._parser().parse_args(shlex.split(line)[3:])


# --- the wheel of kernels


def test_a_wheel_says_what_it_is_and_is_the_same_each_time(exported, tmp_path):
    path = wheel.write(exported, tmp_path / "a", "small-set")
    assert path.name.startswith(f"cute_fa4_kernels_small_set-{__version__}+")
    assert path.read_bytes() == wheel.write(exported, tmp_path / "b", "small-set").read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        [points] = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        text = archive.read(points).decode()
    assert text == "[cute_fa4.kernels]\nsmall-set = cute_fa4_kernels_small_set\n"
    assert {file.name for file in exported.iterdir()} <= names


def test_the_tag_is_of_the_newest_glibc_that_a_library_asks_for():
    libraries = {
        "a.so": b"\0GLIBC_2.34\0GLIBC_2.2.5\0",
        "b.so": b"GLIBC_2.9",
        "c.ptx": b"GLIBC_2.99",
    }
    assert wheel._platform(libraries).startswith("manylinux_2_34_")
    # No tag names an older one than that of PEP 600's first.
    assert wheel._platform({"b.so": b"GLIBC_2.9"}).startswith("manylinux_2_17_")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a--b"])
def test_a_wheel_has_a_name_that_a_package_can_have(name, exported, tmp_path):
    with pytest.raises(ExportError, match="--name: .*accepted: letters"):
        wheel.write(exported, tmp_path, name)


# --- both, installed


@pytest.fixture(scope="module")
def wheels(exported, tmp_path_factory):
    """Folder with the wheels of all distributions and of the kernels."""
    folder = tmp_path_factory.mktemp("wheels")
    installations.released_wheels(folder)
    wheel.write(exported, folder, "small")
    return folder


@pytest.fixture(scope="module")
def runtime(wheels, tmp_path_factory):
    """The run-time and the kernels, resolved by pip: dependencies are followed."""
    environment = installations.Environment(tmp_path_factory.mktemp("runtime"), wheels)
    refused = environment.pip("cute-fa4-kernels-small[compiler]", status=1)
    assert (
        "nvidia-cutlass-dsl" in refused
    )  # the whole package brings the compiler, which is not there
    environment.pip("cute-fa4-kernels-small[runtime]")
    return environment


INSTALLED = """
import importlib.util, os, sys, warnings
warnings.simplefilter("ignore")
assert importlib.util.find_spec("cutlass") is None
import cute_fa4
from cute_fa4 import aot
load, where = aot.load, os.path.dirname(cute_fa4.__file__)
assert where.startswith(sys.prefix), where
aot.load = lambda _: load()       # the calls below name a directory; nothing is given here
sys.argv.append("")
"""

MISSING = """
try:
    flash_attn_func(*torch.zeros(3, 1, 8, 2, 64).bfloat16())
except cute_fa4.JitError as error:
    print(error)
"""


@pytest.mark.slow
def test_installed_kernels_compute_without_a_compiler_and_say_what_is_missing(runtime):
    calls = CALLS.replace('{"cutlass", "cuda"}', '{"cutlass"}')  # torch may import cuda.bindings
    said = runtime.run("-c", INSTALLED + calls + MISSING)
    assert "pip install 'nvidia-cutlass-dsl" in said and "[[config]]" in said


@pytest.mark.slow
def test_commands_of_a_runtime(runtime, tmp_path):
    assert PLAIN.name in runtime.run("-m", "cute_fa4", "aot", "list")
    assert "as exported" in runtime.run("-m", "cute_fa4", "aot", "verify")
    said = runtime.run("-m", "cute_fa4", "check", "--load", "--kernel", PLAIN.name)
    assert "1 of 1 kernels agree with float64 on cpu" in said
    export = ("export-kernel", "--head-dim", "64", "--out", tmp_path / "x")
    said = runtime.run("-m", "cute_fa4", *export, status=1)
    assert said.startswith("ExportError") and "pip install 'nvidia-cutlass-dsl" in said
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_two_distributions_of_the_package_are_noticed(runtime, wheels, tmp_path):
    environment = installations.Environment(tmp_path, wheels)
    environment.pip("--no-deps", *installations.PROJECTS, "cute-fa4-kernels-small")
    said = environment.run("-m", "cute_fa4", "info", status=1)
    assert "cute-fa4 " in said and "cute-fa4-runtime " in said and "pip uninstall" in said
    load = "from cute_fa4 import aot; aot.load()"
    assert "are both installed" in environment.run("-c", load)
