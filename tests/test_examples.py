"""Every example runs, and prints what its docstring promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str) -> str:
    """Output of a Python script of this repository; its error output fails the test."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_one_call_prints_shape_error_and_what_executed_it():
    # 40 characters: one key tile, so that the emulator needs a few seconds.
    output = run("examples/01_one_call.py", "--characters", "40", "--head-dim", "64")
    assert "q (1, 40, 8, 64), torch.bfloat16" in output
    assert "out (1, 40, 8, 64), torch.bfloat16; lse (1, 8, 40), torch.float32" in output
    assert "error     out " in output
    assert "of them tcgen05.mma" in output
    assert "by the emulator" in output


@pytest.mark.parametrize("arguments", [[], ["--head-dim", "72", "--arch", "sm_103a"]], ids=str)
def test_the_schedule_is_printed_from_the_code(arguments):
    output = run("examples/02_read_the_schedule.py", *arguments)
    assert output.index("Barriers") < output.index("p_ready") < output.index("Timeline")


def test_the_schedule_of_a_refused_configuration_is_the_refusal():
    with pytest.raises(AssertionError, match="qk_depth=48 is not built yet"):
        run("examples/02_read_the_schedule.py", "--head-dim", "48")


def test_a_small_kernel_runs_on_the_emulator():
    output = run("examples/03_any_cute_kernel_on_the_emulator.py")
    assert "512 numbers reversed in blocks of 128: equal to torch" in output
    assert "st.shared" in output


def test_the_broken_kernel_is_told_where_it_reads_what_nobody_wrote():
    output = run("examples/03_any_cute_kernel_on_the_emulator.py", "--broken")
    assert output.startswith("UninitializedRead: ")
    assert "ld.shared" in output
    assert "03_any_cute_kernel_on_the_emulator.py" in output  # the Python line of the read


def test_paged_decode_writes_what_plain_pytorch_computes():
    # 8 keys a page: a prompt of 39 characters crosses four edges, and three steps cross the fifth.
    output = run("examples/04_paged_decode.py", "--steps", "3", "--page-size", "8")
    assert "pages of 8 keys used" in output
    assert "logits (4, 3, 256)" in output
