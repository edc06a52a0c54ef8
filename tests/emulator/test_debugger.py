"""The command line on a user's script, the page of the timeline, annotated PTX, forks, and the notebook."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator import __main__ as command_line
from cute_fa4.emulator.reports import trace

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]
# The smallest one that launches: its two warps each double 32 numbers, and a mistake can be asked for.
SCRIPT = """
import sys
import cutlass, cutlass.cute as cute, torch
from cutlass.cute.runtime import make_fake_compact_tensor
from cute_fa4 import emulator

@cute.kernel
def doubled(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = x[thread] + x[thread]

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    doubled(x, y).launch(grid=[1, 1, 1], block=[64, 1, 1])

def run():
    fake = lambda: make_fake_compact_tensor(cutlass.Float32, (64,), assumed_align=16)
    y = torch.empty(64)
    emulator.compile(launch, fake(), fake())(torch.arange(64.0)[: int(sys.argv[1])], y)
    return y

if __name__ == "__main__":
    assert run()[3] == 6
    print("the script ran with", sys.argv[1:])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "my_kernel.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture(scope="module")
def recorded():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 1, 64, generator=generator).bfloat16() for n in (256, 384, 384))
    with trace.record() as recording, emulator.use(checks=None):
        flash_attn_func(q, k, v)
    return recording


def test_commands_run_a_script_of_the_user(script, tmp_path, capsys):
    """coverage counts its kernel, ptx annotates it with lines of the script, compare calls its run()."""
    assert command_line.main(["coverage", script, "64"]) == 0
    printed = capsys.readouterr().out
    assert "the script ran with ['64']" in printed and "doubled" in printed
    out = tmp_path / "annotated.ptx"
    assert command_line.main(["ptx", "--out", str(out), script, "64"]) == 0
    text = out.read_text()
    assert re.search(r"// \S*my_kernel.py:\d+   y\[thread\] = x\[thread\] \+ x\[thread\]", text)
    assert re.search(r"st\.global\S* .*// warp 0 x 1, warp 1 x 1", text)
    assert command_line.main(["compare", "--seeds", "1", script, "64"]) == 0
    assert "no finding" in capsys.readouterr().out


def test_a_script_without_kernel_or_run_is_told_so(tmp_path, capsys):
    empty = tmp_path / "empty.py"
    empty.write_text("print('nothing')")
    assert command_line.main(["coverage", str(empty)]) == 0
    assert "launched no kernel" in capsys.readouterr().err
    assert command_line.main(["compare", str(empty)]) == 2
    assert "calls its function run()" in capsys.readouterr().err


def test_the_page_holds_the_marks_of_the_picture(recorded, tmp_path):
    """One file without network: lanes are the roles, arrows lead forward, from who raises to who waits."""
    path = tmp_path / "page.html"
    page = recorded.html(path)
    assert path.read_text() == page
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    timeline = json.loads(data)["timelines"][0]
    assert {"softmax 0", "softmax 1", "correction", "copies", "tensor core"} <= set(
        timeline["lanes"]
    )
    drawn = {mark["name"] for mark in timeline["marks"]}
    svg = recorded.svg()
    assert {"S0 = Q0 kv[0]", "load Q0", "read S0"} <= drawn
    assert all(mark["name"] in svg for mark in timeline["marks"] if mark["kind"] == "product")
    assert timeline["arrows"], "somebody waits for somebody"
    for (_, start), (lane, end), name in timeline["arrows"]:
        assert 0 <= start <= end and name
        assert lane < len(timeline["lanes"])
    [load] = {mark["text"] for mark in timeline["marks"] if mark["name"] == "load Q0"}
    assert load, "the source line comes along"


def test_annotated_ptx_is_ptx_and_names_mbarriers():
    """The annotated text of the attention kernel is executed in its place, and gives the same bits."""
    from cute_fa4.emulator.reports import annotated

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 1, 64, generator=generator).bfloat16() for _ in "qkv")
    with annotated.record() as runs:
        expected = flash_attn_func(q, k, v)
    text = runs.text()
    assert re.search(r"mbarrier\.try_wait.*// .*mma x \d+.*kv_full\[0\]", text)
    with emulator.use(transform=lambda name, ptx: text):
        assert torch.equal(flash_attn_func(q, k, v), expected)


FORK = """
import os, sys, threading, warnings
import torch
from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator.machine.observer import Observer, observing
warnings.simplefilter("ignore")
q = torch.randn(1, 128, 1, 64).bfloat16()
expected = flash_attn_func(q, q, q)

class Stop(Observer):
    inside, go_on = threading.Event(), threading.Event()
    def arrive(self, *_):
        if threading.current_thread() is not threading.main_thread():
            self.inside.set(); self.go_on.wait()

with observing(Stop()):
    thread = threading.Thread(target=lambda: flash_attn_func(q, q, q))
    thread.start(); Stop.inside.wait()
    child = os.fork()
    if child == 0:
        sys.exit(0 if torch.equal(flash_attn_func(q, q, q), expected) else 3)
    _, status = os.waitpid(child, 0)
    Stop.go_on.set(); thread.join()
from cute_fa4.emulator.host.runtime_library import scratch_directory
assert scratch_directory().exists(), "the child's exit has left our scratch directory"
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_while_another_thread_emulates_does_not_hang():
    """The child computes the same bits, and its exit leaves what the parent needs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=environment, cwd=ROOT, timeout=300, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_lock_that_its_own_thread_forks_with_stays_held():
    """A thread that forks inside the lock still holds it in the child, and releases it there."""
    from cute_fa4.system.forks import Lock

    held, others = Lock(), Lock()
    taken, leave = threading.Event(), threading.Event()

    def hold():
        with others.held:
            taken.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    with held.held:
        child = os.fork()
        if child == 0:
            with others.held:  # held by a thread that the child does not have
                pass
            os._exit(0 if held.held._is_owned() else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
