"""Bars: after DELAY_SECONDS, on a terminal, on stderr; nothing of them anywhere else."""

import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from cute_fa4.system import progress

ROOT = Path(__file__).resolve().parents[2]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def drawn(monkeypatch, work, delay=0.0, stderr=Terminal) -> tuple[str, str]:
    """What work() leaves on stdout, a terminal, and on stderr."""
    with monkeypatch.context() as patch:
        patch.setattr(progress, "DELAY_SECONDS", delay)
        patch.setattr(sys, "stdout", Terminal())
        patch.setattr(sys, "stderr", stderr())
        work()
        return sys.stdout.getvalue(), sys.stderr.getvalue()


LINES = "kernel 0\nkernel 1\nkernel 2\n"


def three_steps():
    with progress.bar(3, "compiling", "kernel") as step:
        for _ in range(3):
            step()


def three_steps_and_lines():
    with progress.bar(3, "compiling", "kernel") as step:
        for i in range(3):
            progress.say(f"kernel {i}")
            step()


def is_erased(terminal: str) -> bool:
    """The last thing drawn is an empty line, with the cursor at its start."""
    return terminal.endswith("\r") and terminal.split("\r")[-2].strip() == ""


def test_a_bar_says_what_and_how_far_and_is_erased(monkeypatch):
    out, err = drawn(monkeypatch, three_steps)
    assert "compiling" in err and "0/3" in err and " kernel" in err
    assert is_erased(err) and "\n" not in err
    assert out == ""


def test_lines_are_on_stdout_and_the_bar_around_them(monkeypatch):
    out, err = drawn(monkeypatch, three_steps_and_lines)
    assert out == LINES
    assert "0/3" in err and is_erased(err)


@pytest.mark.parametrize(
    "work, lines", [(three_steps, ""), (three_steps_and_lines, LINES)], ids=["steps", "and lines"]
)
@pytest.mark.parametrize(
    "reason",
    [
        {"delay": 60.0},  # work that is done before the bar is due
        {"stderr": io.StringIO},  # a log
    ],
    ids=["soon done", "log"],
)
def test_nothing_is_drawn(reason, work, lines, monkeypatch):
    assert drawn(monkeypatch, work, **reason) == (lines, "")


def test_without_tqdm_the_work_is_done_without_a_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert drawn(monkeypatch, three_steps_and_lines) == (LINES, "")


def test_an_error_erases_the_bar_and_passes(monkeypatch):
    def failing():
        with pytest.raises(ValueError, match="no kernel"):
            with progress.bar(2, "compiling", "kernel") as step:
                step()
                raise ValueError("no kernel")

    _, err = drawn(monkeypatch, failing)
    assert is_erased(err)
    assert not progress._bars


EMULATED = """
import sys, torch
from cute_fa4 import flash_attn_func
from cute_fa4.system import progress
q = torch.zeros(1, 10, 3, 64, dtype=torch.bfloat16)  # three heads: three CTAs
for progress.DELAY_SECONDS in (600.0, 0.0):
    print("out", tuple(flash_attn_func(q, q, q).shape))
    print("next", file=sys.stderr)
"""


def test_the_emulator_counts_clusters_on_a_real_terminal():
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))  # 80 columns
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", EMULATED],
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(slave)
    terminal = b""
    while select.select([master], [], [], 300)[0]:
        try:
            terminal += os.read(master, 4096)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert process.communicate()[0] == "out (1, 10, 3, 64)\n" * 2
    assert process.returncode == 0
    early, late, rest = terminal.decode().split("next\r\n")
    assert early == rest == ""
    assert "emulator" in late and "/3" in late and is_erased(late)
