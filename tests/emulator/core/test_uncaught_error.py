"""A program that does not catch an error of the emulator ends as any other: message, exit status 1."""

import subprocess
import sys

PROGRAM = """
import torch
from cute_fa4 import emulator, flash_attn_func

q = torch.randn(1, 8, 1, 64).bfloat16()
with emulator.use(instruction_budget=100):
    flash_attn_func(q, q, q)
"""


def test_an_uncaught_error_ends_the_program_with_status_1():
    """The traceback lives until the interpreter is gone; a tensor in it would then be freed by Python code."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr[-500:]
    assert "instruction" in done.stderr and "Segfault" not in done.stderr
