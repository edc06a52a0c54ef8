"""A .ptx or .cu file as a program: its launch by options, what is printed and saved, what is refused; without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cute_fa4.emulator import __main__ as command
from cute_fa4.emulator import kernel_files
from cute_fa4.emulator.kernel_files import Argument, KernelFileError

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "examples" / "programs"
LAUNCH = ("--grid", "2", "--block", "64")
ARGUMENTS = ("f32:100:zeros", "f32:100:count", "f32:3", "f32:7", "u32:100")


def words(*arguments):
    return [word for each in arguments for word in ("--argument", each)]


def run(*given):
    """Exit status of a command."""
    return command.main([*given])


@pytest.mark.parametrize("suffix", ["ptx", "cu"])
def test_a_kernel_is_launched_and_what_it_wrote_is_printed(suffix, capsys, tmp_path):
    if suffix == "cu" and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    saved = tmp_path / "arrays.npz"
    options = (*LAUNCH, "--entry", "scale", *words(*ARGUMENTS), "--save", str(saved))
    assert run("run", str(PROGRAMS / f"scale.{suffix}"), *options) == 0
    said = capsys.readouterr()
    assert "f32:100:zeros  written:\n[  7.  10.  13." in said.out
    assert "f32:100:count  not changed" in said.out and "level hardware" in said.err
    y, x = np.load(saved).values()
    assert np.array_equal(y, 3 * np.arange(100, dtype=np.float32) + 7) and x[99] == 99


def test_the_other_commands_take_a_kernel_file(capsys):
    file = str(PROGRAMS / "scale.ptx")
    assert run("coverage", file, *LAUNCH, *words(*ARGUMENTS)) == 0
    assert "in 1 launches" in capsys.readouterr().out
    assert run("compare", file, *LAUNCH, *words(*ARGUMENTS)) == 2
    assert "use run with --mode random" in capsys.readouterr().err


def test_an_error_of_the_kernel_is_the_exit_status(capsys):
    wrong = words("f32:90:zeros", *ARGUMENTS[1:])
    assert run("run", str(PROGRAMS / "scale.ptx"), *LAUNCH, *wrong) == 1
    assert "IllegalAccess\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (LAUNCH, "scale takes 5 arguments, 0 were given with --argument; parameters: y (u64, 8"),
        (("--grid", "2", *words(*ARGUMENTS)), "scale has no .reqntid: name the threads with --blo"),
        ((*LAUNCH, "--entry", "gemm"), "entry 'gemm': the PTX has scale"),
        ((*LAUNCH, *words(*ARGUMENTS[:4], "f64:2")), "n: 8 bytes for a parameter of 4"),
        ((*LAUNCH, *words(*ARGUMENTS[:4], "f31:2")), "--argument f31:2: accepted are TYPE:NUMBER"),
        ((*LAUNCH, *words("f32:2:many")), "accepted are sizes such as 100 or 4x8, and the fills"),
        ((*LAUNCH, *words("u32:x")), "--argument u32:x: x is not a number of type u32"),
        ((*LAUNCH, *words("u32:2:nan")), "u32 has no NaN"),
    ],
)  # fmt: skip
def test_a_launch_that_is_not_complete_is_explained(options, message, capsys):
    assert run("run", str(PROGRAMS / "scale.ptx"), *options) == 2
    assert message in capsys.readouterr().err


def test_without_nvcc_the_way_to_ptx_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert run("run", str(PROGRAMS / "scale.cu")) == 2
    said = capsys.readouterr().err
    assert "nvcc is not on the PATH" in said and "nvcc --ptx -arch=sm_100a" in said


def test_errors_of_nvcc_are_shown(tmp_path, monkeypatch):
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\necho 'kernel.cu(1): error: expected a declaration' >&2; exit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    with pytest.raises(KernelFileError, match=r"error: expected a declaration"):
        kernel_files.ptx_of("kernel.cu")


ARRAYS = {
    "f32:2x3:ones": np.ones((2, 3), np.float32),
    "s8:4:count": np.arange(4, dtype=np.int8),
    "bf16:3:count": np.array([0, 0x3F80, 0x4000], np.uint16),
    "bf16:2:nan": np.full(2, 0x7FC0, np.uint16),
    "f16:2:nan": np.full(2, np.nan, np.float16),
}


@pytest.mark.parametrize("text", ARRAYS)
def test_arrays_have_the_shape_and_the_numbers_of_their_text(text):
    made = Argument(text, np.random.default_rng(0))
    assert made.value.dtype == ARRAYS[text].dtype and made.value.ctypes.data % 256 == 0
    np.testing.assert_array_equal(made.value, ARRAYS[text])
    assert not made.changed


def test_numbers_have_the_bytes_of_their_type(tmp_path):
    generator = np.random.default_rng(0)
    values = {
        text: Argument(text, generator).value for text in ("bf16:1.5", "f64:2", "s32:-3", "null")
    }
    assert values == {
        "bf16:1.5": b"\xc0\x3f", "f64:2": np.float64(2).tobytes(), "s32:-3": -3, "null": None,
    }  # fmt: skip
    np.save(tmp_path / "x.npy", np.arange(5))
    assert Argument(str(tmp_path / "x.npy"), generator).value.tolist() == [0, 1, 2, 3, 4]
    first, second = (Argument("f32:9:random", np.random.default_rng(n)).value for n in (0, 1))
    assert not np.array_equal(first, second)


def test_a_kernel_that_names_its_block_needs_none(tmp_path, capsys):
    path = tmp_path / "fixed.ptx"
    head = ".version 8.8\n.target sm_100a\n.address_size 64\n"
    path.write_text(f"{head}.visible .entry fixed() .reqntid 64, 1, 1\n{{ ret; }}\n")
    assert run("run", str(path)) == 0
    assert "fixed: grid (1,), block (64, 1, 1)" in capsys.readouterr().out


def test_torch_and_the_compiler_are_not_imported():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['cutlass'] = None\n"
        "from cute_fa4.emulator.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(PROGRAMS / "scale.ptx"), *LAUNCH, *words(*ARGUMENTS)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
