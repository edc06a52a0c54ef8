"""Processes that an emulated program starts have a GPU, too; forkservers are refused."""

import os
import sys
from pathlib import Path

import pytest

from cute_fa4.emulator.host.processes import emulated
from cute_fa4.emulator.host.session import use
from tests.suite import scripts

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import multiprocessing, os, subprocess, sys
import torch
from pathlib import Path
from cute_fa4.emulator import ptx_files
from cute_fa4.emulator.host import driver_api

SCALE = Path(r"{scale}").read_text()

def work(factor):
    import cuda.bindings.driver as driver
    x = torch.arange(100.0, device="cuda")
    y = torch.empty_like(x)
    _, module = driver.cuModuleLoadData(SCALE.encode())
    _, kernel = driver.cuModuleGetFunction(module, b"scale")
    import ctypes
    types = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_uint32
    values = y.data_ptr(), x.data_ptr(), float(factor), 7.0, 100
    driver.cuLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 0, 0, (values, types), 0)
    settings = driver_api.plain_settings()
    return y[10].item(), settings["mode"], settings["seed"], os.getpid()

if __name__ == "__main__":
    if sys.argv[1:]:
        print("CHILD", work(int(sys.argv[1]))[:3])
        sys.exit(3)
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(2) as pool:
            found = pool.map(work, (2, 3))
        assert os.getpid() not in [row[3] for row in found]
        print(how, [row[:3] for row in found])
    done = subprocess.run([sys.executable, "-u", __file__, "5"], capture_output=True, text=True)
    print(done.returncode, done.stdout.strip())
    try:
        multiprocessing.get_context("forkserver").Process(target=work, args=(1,)).start()
    except Exception as error:
        print(error)
"""


def test_children_of_every_kind_launch_kernels(tmp_path):
    """With the settings of the command; the exit status of a child is its own."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("{scale}", str(ROOT / "examples/programs/scale.ptx")))
    command = ("-m", "cute_fa4.emulator", "run", "--mode", "random", "--seed", "4", str(script))
    done = scripts.run(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    fork, spawn, child, refusal = done.stdout.strip().split("\n")
    expected = [(27.0, "random", 4), (37.0, "random", 4)]
    assert fork == f"fork {expected}" and spawn == f"spawn {expected}"
    assert child == "3 CHILD (57.0, 'random', 4)"
    assert "by multiprocessing's forkserver, which the emulator does not follow" in refusal


RUN = ["-m", "cute_fa4.emulator", "run", "--mode", "hostile", "--seed", "9", "--checks", "ptx"]


@pytest.mark.parametrize(
    "before, after",
    [
        ([sys.executable, "{own}", "-c", "3"], [sys.executable, *RUN, "{own}", "-c", "3"]),
        (
            [sys.executable, "-X", "dev", "-u", "{own}"],
            [sys.executable, "-X", "dev", "-u", *RUN, "{own}"],
        ),
        ((sys.executable, "{own}"), [sys.executable, *RUN, "{own}"]),
    ],
)
def test_commands_that_run_a_script_are_emulated(tmp_path, before, after):
    own = str(tmp_path / "worker.py")
    with use(mode="hostile", seed=9, checks="ptx"):
        found = emulated(type(before)(word.replace("{own}", own) for word in before), "hardware")
    assert found == [word.replace("{own}", own) for word in after]


@pytest.mark.parametrize(
    "command",
    [
        f"{sys.executable} worker.py", [], ["git", "status"], ["no-such-command", "worker.py"], [sys.executable],
        [sys.executable, "-c", "pass", "worker.py"], [sys.executable, "-m", "pip", "worker.py"],
        [sys.executable, "worker.txt"], [sys.executable, os.__file__], [sys.executable, pytest.__file__],
    ],
    ids=str,
)  # fmt: skip
def test_other_commands_stay_as_they_are(command):
    assert emulated(command, "hardware") is command
