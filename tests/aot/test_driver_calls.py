"""An exported library on a driver that records calls: what it asks the driver, and what it says when that refuses."""

import json
import math
import re

import pytest

from tests.launch_arguments import AFTER_SCALE

from .conftest import PLAIN, python

# The kernel of PLAIN as the public functions would call it; CPU tensors claim to be CUDA tensors.
SETUP = (
    f"AFTER_SCALE = {AFTER_SCALE}"
    + """
import sys
import torch
from cute_fa4 import aot, compile_cache
from cute_fa4.emulator import as_cuda
(config,) = [c for c in aot.load(sys.argv[1]) if c.name == sys.argv[2]]
function = compile_cache.function_for(config, "cuda")
q = torch.zeros(2, 300, 4, 64, dtype=torch.bfloat16)
k = torch.zeros(2, 300, 4, 64, dtype=torch.bfloat16)
def call(q=q, k=k, v=k, out=q, lse=None, convert=as_cuda):
    tensors = [convert(t) for t in (q, k, v, out)]
    function(*tensors, lse, 0.125, *AFTER_SCALE)
"""
)


# Every case of one process: starting one takes longer than all of them. The driver reads its settings at each call.
REFUSALS = """
import json, os
calls = lambda: open(os.environ["RECORDING"]).read().splitlines() if os.path.exists(os.environ["RECORDING"]) else []
results = {}
def case(name, **changes):
    before = len(calls())
    try:
        call(**changes)
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    results[name] = text, calls()[before:]
os.environ["RECORDING_DEVICES"] = "0"
case("no GPU")
os.environ["RECORDING_DEVICES"] = "1"
for capability in ("9.0", "12.0", "10.3"):
    os.environ["RECORDING_CAPABILITY"] = capability
    case(capability)
os.environ["RECORDING_CAPABILITY"] = "10.0"
case("good")
case("good again")
case("dtype", q=q.half())
case("rank", k=k[0])
case("head dim", q=torch.zeros(2, 300, 4, 72, dtype=q.dtype))
case("batch", q=q[:1])
case("device", convert=lambda t: t)
case("misaligned", q=torch.zeros(2 * 300 * 4 * 64 + 1, dtype=q.dtype)[1:].view(2, 300, 4, 64))
case("stride", q=torch.zeros(2, 300, 4, 68, dtype=q.dtype)[..., :64])
case("lse", lse=as_cuda(torch.zeros(2, 4, 300)))
try:
    function(1)
except TypeError as error:
    results["count"] = str(error), []
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(exported, driver_directory, tmp_path_factory):
    """case -> (error text, calls that reached the driver)."""
    log = tmp_path_factory.mktemp("recording") / "calls.txt"
    environment = {"LD_LIBRARY_PATH": driver_directory, "RECORDING": log}
    out = python(SETUP + REFUSALS, exported, PLAIN.name, **environment).stdout
    return json.loads(out)


def test_the_calls_of_the_first_launch(results):
    text, calls = results["good"]
    assert text == "no error"
    # The driver was opened by the refused calls before.
    assert calls[:-1] == [
        "cuLibraryLoadData elf=1",
        f"cuLibraryGetKernel cute_fa4_{PLAIN.name}_0",
        # 227 KiB of dynamic shared memory, and clusters beyond the portable size
        "cuKernelSetAttribute device=0 attribute=8 value=232448",
        "cuKernelSetAttribute device=0 attribute=14 value=1",
        "cuDevicePrimaryCtxRetain device=0",
    ]
    # 300 queries are 3 CTAs of 128 rows, 4 heads, 2 sequences, in any order of axes; 16 warps
    assert PLAIN.tiles.BM == 128
    grid = re.search(r"cuLaunchKernelEx device=0 grid=(\d+),(\d+),(\d+) block=512,1,1", calls[-1])
    assert math.prod(map(int, grid.groups())) == 3 * 4 * 2
    assert PLAIN.smem.nbytes <= int(re.search(r"shared=(\d+)", calls[-1])[1]) <= 232448


def test_later_launches_are_one_driver_call(results):
    text, calls = results["good again"]
    assert text == "no error" and len(calls) == 1 and calls == results["good"][1][-1:]


def test_no_gpu(results):
    text, calls = results["no GPU"]
    assert text.startswith("RuntimeError") and "CUDA_ERROR_NO_DEVICE" in text
    assert calls == ["cuInit"]


@pytest.mark.parametrize("capability", ["9.0", "12.0", "10.3"])
def test_gpu_of_another_architecture(results, capability):
    text, calls = results[capability]
    assert f"exported for sm_100a, compute capability 10.0, and device 0 has {capability}" in text
    assert not any("Load" in call or "Launch" in call for call in calls)


@pytest.mark.parametrize(
    "case, what, parameter",
    [
        ("dtype", "dtype", "mQ"),
        ("rank", "ndim", "mK"),
        ("head dim", "shape", "mQ"),
        ("batch", "shape", "m"),
        ("device", "device", "m"),
        ("misaligned", "align", "mQ"),
        ("stride", "stride", "mQ"),
        ("lse", "None", "mLSE"),
        ("count", f"Expects {6 + len(AFTER_SCALE)} parameters", "mQ: Tensor"),
    ],
)
def test_wrong_arguments_are_refused_by_name_before_any_driver_call(results, case, what, parameter):
    text, calls = results[case]
    assert parameter in text and what.lower() in text.lower(), text
    assert calls == []


def test_no_driver(exported, tmp_path):
    code = "try:\n    call()\nexcept RuntimeError as error:\n    print(error)"
    out = python(SETUP + code, exported, PLAIN.name, LD_LIBRARY_PATH=tmp_path).stdout
    assert (
        "CUDA driver cannot be opened: libcuda.so.1" in out and "install the NVIDIA driver" in out
    )


def test_tensors_on_device_1_give_device_0_no_context(exported, driver_directory, tmp_path):
    # The thread has no context: the library makes device 1 current for the launch and leaves none behind.
    code = """
from cute_fa4.emulator.host import dlpack
dlpack._Exporter.__dlpack_device__ = lambda self: (2, 1)
device = dlpack._DLDevice
dlpack._DLDevice = lambda kind, number: device(kind, 1)
call()
"""
    log = tmp_path / "calls.txt"
    environment = {"LD_LIBRARY_PATH": driver_directory, "RECORDING": log, "RECORDING_DEVICES": 2}
    python(SETUP + code, exported, PLAIN.name, **environment)
    calls = log.read_text().splitlines()
    assert [c for c in calls if "Retain" in c] == ["cuDevicePrimaryCtxRetain device=1"]
    assert "cuLaunchKernelEx device=1" in calls[-1]
    assert sum("device=1 attribute=8" in c for c in calls) == 1
