"""Documented deployment steps work: the C and C++ examples, the command line. tests/docs runs deployment.md."""

import os
import shutil
import subprocess
import sys

import pytest

from cute_fa4 import __main__ as command_line
from cute_fa4.compiler import toolkit

from .conftest import PLAIN, ROOT


@pytest.fixture(scope="module")
def programs(exported, tmp_path_factory):
    build = tmp_path_factory.mktemp("build")
    configure = ["cmake", "-S", str(ROOT / "examples" / "aot_cpp"), "-B", str(build)]
    configure += [
        f"-DKERNELS={exported}",
        f"-DKERNEL={PLAIN.name}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    for command in (configure, ["cmake", "--build", str(build)]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return build


@pytest.mark.skipif(not shutil.which("cmake"), reason="builds the examples with CMake")
@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_examples_launch_and_are_refused(language, programs, exported, tmp_path):
    command = [str(programs / f"attention_{language}")]
    if language == "cpp":
        command += [str(exported / f"{PLAIN.name}.so"), PLAIN.name]
    log = tmp_path / "calls.txt"
    env = {**os.environ, "LD_LIBRARY_PATH": str(programs / "recording"), "RECORDING": str(log)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    launched, refused = done.stdout.splitlines()
    assert launched == "launched"
    assert "expected dtype=bfloat16" in refused
    calls = log.read_text().splitlines()
    # 2 sequences, 4 heads, 300 queries in CTAs of 128
    assert [c.split(" shared")[0] for c in calls if "Launch" in c] == [
        "cuLaunchKernelEx device=0 grid=24,1,1 block=512,1,1"
    ]


def test_info_names_versions_and_the_cache(capsys):
    assert command_line.main(["info"]) == 0
    out = capsys.readouterr().out
    for word in (
        "cute_fa4",
        "torch",
        "nvidia-cutlass-dsl",
        f"ptxas                {toolkit.ptxas()}, of cu1",
        "cpu (emulator)",
        "disk cache",
        "CUTE_FA4_JIT",
    ):
        assert word in out


def test_capabilities_says_why_not(capsys):
    assert command_line.main(["capabilities", "--dtype", "e4m3", "--head-dim", "136"]) == 0
    said = capsys.readouterr().out
    assert "no: qk_depth=136 is not supported: use a multiple of 16 up to 256" in said
    assert "BN=" not in said  # of a tile that there is not


def test_export_lists_a_set_of_a_catalogue(capsys, tmp_path):
    arguments = [
        "export",
        "--catalogue",
        "serving",
        "--model",
        "ViT encoder",
        "--list",
        "--out",
        str(tmp_path),
    ]
    assert command_line.main(arguments) == 0
    assert (
        len(capsys.readouterr().out.split()) == 8
    )  # dense and packed; tiles of 256, 128, 32 and 8 rows


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["export", "--out", "x"], "one of --catalogue, --hf-config and --head-dim"),
        (["export-kernel", "--out", "x", "--head-dim", "50"], "qk_depth=50"),
        (
            ["export", "--out", "x", "--catalogue", "none"],
            "accepted: a TOML file, or one of serving",
        ),
        (["check", "--load", "/nowhere"], "no manifest.json"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_status(arguments, message, capsys):
    assert command_line.main(arguments) == 1
    assert message in capsys.readouterr().err
