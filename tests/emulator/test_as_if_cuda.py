"""A program written for a GPU runs unmodified: its tensors, its compile, its calls, its streams."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cute_fa4.emulator.as_if_cuda import as_if_cuda
from cute_fa4.emulator.host.device import ALIGNMENT
from tests.suite import scripts

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import cutlass, cutlass.cute as cute, cutlass.utils as utils, torch
import cuda.bindings.driver as cuda
from cutlass.cute.runtime import from_dlpack

@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr):
    i, _, _ = cute.arch.thread_idx()
    y[i] = x[i] * factor

@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr):
    scaled(x, y, factor).launch(grid=[1, 1, 1], block=[64, 1, 1])

@cute.jit
def on_stream(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Constexpr, stream: cuda.CUstream):
    scaled(x, y, factor).launch(grid=[1, 1, 1], block=[64, 1, 1], stream=stream)

assert torch.cuda.is_available() and utils.HardwareInfo().get_max_active_clusters(2) == 74
x = torch.arange(64.0).cuda()
y, z = torch.empty(64, device="cuda"), torch.zeros(64).to("cuda", torch.float32)
tensors = [from_dlpack(t, assumed_align=16).mark_layout_dynamic() for t in (x, y, z)]
launch(tensors[0], tensors[1], 3)                                  # compiles, and calls
stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
compiled = cute.compile[cute.GenerateLineInfo(True), cute.KeepPTX()](on_stream, tensors[0], tensors[2], 5, stream)
compiled(tensors[0], tensors[2], stream)
torch.cuda.synchronize()
assert torch.equal(y.cpu(), 3 * torch.arange(64.0)) and torch.equal(z, 5 * x)
print("RIGHT")
"""


def test_a_program_for_a_gpu_runs_unmodified(tmp_path):
    """It is handed to the command that counts lines, as its user would."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "cute_fa4.emulator", "coverage", "--as-if-cuda", str(script)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "RIGHT" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0 and done.stdout.count("in 1 launches") == 2
    assert "level hardware" in done.stdout


# Functions without annotations that get tensors of torch, and the experimental namespace with its own jit.
NAMESPACES = """
import cutlass.cute as cute, torch
try:
    from cutlass.cute import experimental
except ImportError:
    experimental = cute

x = torch.arange(32.0, device="cuda")
for namespace in (cute, experimental):
    @namespace.kernel
    def kernel(x, y):
        i, _, _ = cute.arch.thread_idx()
        y[i] = x[i] + 1

    @namespace.jit
    def launch(x, y):
        kernel(x, y).launch(grid=[1, 1, 1], block=[32, 1, 1])

    first, second = torch.empty_like(x), torch.empty_like(x)
    launch(x, first)
    namespace.compile(launch, x, second)(x, second)
    assert torch.equal(first, x + 1) and torch.equal(second, x + 1)
print("PASS")
"""


def test_tensors_of_torch_and_the_experimental_namespace(tmp_path):
    script = tmp_path / "namespaces.py"
    script.write_text(NAMESPACES)
    done = run("run", str(script))
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr
    assert "emulator: 4 launches" in done.stderr


PROGRAMS = ROOT / "examples" / "programs"


@pytest.mark.parametrize(
    "program, needs, launches",
    [("cute_dsl.py", "cutlass", 1), ("cuda_python.py", "cuda.bindings", 1),
     ("cuda_core.py", "cuda.bindings._internal.driver", 1), ("triton_add.py", "triton", 1)],
)  # fmt: skip
def test_a_program_of_every_kind_runs_as_it_is(program, needs, launches):
    pytest.importorskip(needs)
    done = run("run", str(PROGRAMS / program))
    assert done.returncode == 0 and "PASS\n" in done.stdout, done.stdout + done.stderr
    assert f"emulator: {launches} launches, " in done.stderr and "level hardware" in done.stderr


def test_arguments_are_the_programs_and_nothing_is_timed():
    done = run("run", str(PROGRAMS / "cute_dsl.py"), "--n", "64")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "37 clusters of 4 CTAs at a time\nnan ms between the events, nan us a launch\nPASS\n"
    )
    assert run("run", str(PROGRAMS / "cute_dsl.py"), "--size", "64").returncode == 2


def test_an_error_of_the_emulator_is_the_exit_status(tmp_path):
    script = tmp_path / "broken.py"
    right = (PROGRAMS / "cute_dsl.py").read_text()
    script.write_text(right.replace("y[i] =", "y[i + 1] ="))
    done = run("run", str(script), "--n", "32")
    assert done.returncode == 1 and "IllegalAccess\n" in done.stderr, done.stdout + done.stderr


def run(*command):
    return scripts.run("-m", "cute_fa4.emulator", *command, cwd=ROOT, env=os.environ)


def test_nothing_of_it_is_left_after():
    import cutlass.cute as cute
    import cutlass.utils
    from cuda.bindings import driver

    def patched():
        return (
            cute.compile, cute.jit, cutlass.utils.HardwareInfo, torch.cuda.is_available, driver.cuInit,
            sys.modules.get("cuda.cuda"), list(sys.meta_path),
        )  # fmt: skip

    before = patched()
    with pytest.raises(KeyError), as_if_cuda():
        assert cute.compile is not before[0]
        moved = torch.arange(10.0)[1:].cuda()
        assert moved.device.type == "cpu" and moved.data_ptr() % ALIGNMENT == 0
        assert torch.equal(torch.zeros(3, device="cuda:0"), torch.zeros(3))
        raise KeyError
    assert before == patched()


def test_tensors_say_that_they_are_on_a_gpu_and_nothing_is_timed():
    with as_if_cuda():
        tensor, event = torch.zeros(2, device="cuda"), torch.cuda.Event(enable_timing=True)
        event.record()
        assert tensor.is_cuda and tensor.data_ptr() % ALIGNMENT == 0
        assert event.query() and math.isnan(event.elapsed_time(event))
    assert not torch.zeros(2).is_cuda


# What programs for a GPU call of torch besides: name -> (call, result).
CALLS = {
    "generator": (lambda: torch.Generator(device="cuda").manual_seed(3).initial_seed(), 3),
    "generator of a tensor": (
        lambda: torch.rand(3, device="cuda", generator=torch.Generator("cuda")).is_cuda,
        True,
    ),
    "pin_memory()": (lambda: torch.ones(3).pin_memory().sum().item(), 3),
    "pin_memory=": (lambda: torch.ones(3, pin_memory=True).sum().item(), 3),
    ".to(number)": (lambda: torch.ones(3).to(0).data_ptr() % ALIGNMENT, 0),
    ".cuda(number)": (lambda: torch.ones(3).cuda(0, non_blocking=True).data_ptr() % ALIGNMENT, 0),
    "like": (lambda: torch.empty_like(torch.ones(3)).data_ptr() % ALIGNMENT, 0),
    "parameter": (lambda: torch.rand(3, device="cuda", requires_grad=True).is_leaf, True),
    "copy of a parameter": (lambda: torch.rand(3, requires_grad=True).to("cuda").is_leaf, False),
    "module": (lambda: next(torch.nn.Linear(2, 2).to("cuda").parameters()).is_cuda, True),
    "default device": (lambda: torch.set_default_device("cuda") or torch.ones(2).is_cuda, True),
    "capability": (lambda: torch.cuda.get_device_capability(), (10, 0)),
    "properties": (lambda: torch.cuda.get_device_properties(0).multi_processor_count, 148),
    "external stream": (lambda: torch.cuda.ExternalStream(5).cuda_stream, 5),
    "own stream": (lambda: torch.cuda.Stream(0).cuda_stream != torch.cuda.Stream(0).cuda_stream, True),
    "waits": (lambda: torch.cuda.Stream().wait_stream(torch.cuda.current_stream()), None),
    "device": (lambda: torch.cuda.device(0).__enter__(), None),
    "nvtx": (lambda: torch.cuda.nvtx.range_push("name"), None),
    "profiler": (lambda: torch.cuda.profiler.start(), None),
    "statistics": (lambda: torch.cuda.reset_peak_memory_stats(), None),
}  # fmt: skip


@pytest.mark.parametrize("call, result", CALLS.values(), ids=CALLS)
def test_torch_says_that_there_is_a_gpu(call, result):
    with as_if_cuda():
        assert call() == result


def test_a_graph_is_executed_as_it_is_captured_and_replayed_once():
    with as_if_cuda():
        graph, done = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            done.append(1)
        graph.replay()
        with pytest.raises(NotImplementedError, match="can be replayed once"):
            graph.replay()
    assert done == [1]
