"""Launches that a CUDA graph would capture: one per kernel, on the caller's stream, independent of tensor contents.

Shown without a GPU: the driver is a library that records calls, the tensors only claim to be on a GPU (cuda_calls.py).
Not shown: that a capture on a real stream succeeds, and what torch's allocator does for out and lse while it lasts.
"""

import json
import re
import subprocess
import warnings

import pytest

from cute_fa4 import EmulatorWarning, aot
from cute_fa4.system import c_compiler
from tests.aot.conftest import ROOT, python
from tests.operators import cuda_calls

NEW_OUT, NEW_LSE = "aten.empty_like.default", "aten.empty_strided.default"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        configurations = cuda_calls.configurations()
    return aot.export(configurations, tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def recorded(exported, tmp_path_factory):
    """case -> [(operations of torch, calls of the driver)] of each repetition."""
    directory = tmp_path_factory.mktemp("driver")
    source = ROOT / "examples" / "aot_cpp" / "recording_driver.c"
    command = [c_compiler.find_compiler(), "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(directory / "libcuda.so.1")], check=True)
    code = "import sys; from tests.operators import cuda_calls; cuda_calls.main(sys.argv[1])"
    environment = dict(
        LD_LIBRARY_PATH=directory,
        RECORDING=directory / "calls.txt",
        RECORDING_QUERIES=1,
        CUTE_FA4_JIT="error",
    )
    return json.loads(python(code, exported, **environment).stdout)


def launches(calls):
    return [call for call in calls if call.startswith("cuLaunch")]


@pytest.mark.parametrize("case", cuda_calls.CALLS)
def test_a_repeated_call_asks_the_driver_for_launches_only(recorded, case):
    kernels = 2 if case.startswith("decode") else 1
    for _, calls in recorded[case][1:]:
        others = {call for call in calls if not call.startswith("cuLaunch")}
        # Which context is current: a query that waits for nothing and is allowed in a capture.
        assert len(launches(calls)) == kernels and others <= {"cuCtxGetCurrent", "cuCtxGetDevice"}
    assert recorded[case][1] == recorded[case][2]


@pytest.mark.parametrize("case", cuda_calls.CALLS)
def test_launches_are_on_the_callers_stream(recorded, case):
    for _, calls in recorded[case]:
        assert all(f"stream={cuda_calls.STREAM:#x}" in call for call in launches(calls))


@pytest.mark.parametrize("case", [case for case in cuda_calls.CALLS if "other" in case])
def test_the_launch_does_not_depend_on_what_the_tensors_hold(recorded, case):
    like = case.replace(", other lengths", "")
    assert launches(recorded[case][1][1]) == launches(recorded[like][1][1])


@pytest.mark.parametrize("case", cuda_calls.CALLS)
def test_between_call_and_launch_torch_allocates_what_is_returned_and_reads_nothing(recorded, case):
    # Of the results all but `out` are allocated where it is given; "ragged" and "decode" return nothing else.
    operations = {"dense": [NEW_OUT, NEW_LSE], "dense into out": [NEW_LSE]}.get(case, [])
    assert [found for found, _ in recorded[case]] == [operations] * cuda_calls.REPETITIONS


def test_the_recorder_sees_a_host_read():
    # The oracle of the tests above can fail: reading an element is an operation, or an error.
    tensor = cuda_calls.OnCuda(cuda_calls.int32(1, 2))
    with cuda_calls.Recorder() as recorder:
        assert bool((tensor == tensor).all())
    assert "aten._local_scalar_dense.default" in recorder.operations
    with cuda_calls.Recorder(), pytest.raises(RuntimeError):
        tensor.tolist()


def test_compiled_host_code_can_call_nothing_that_a_capture_forbids(exported):
    # Undefined symbols of the object file are all that it can call: no allocation, copy, event or synchronisation.
    objects = sorted(exported.glob("*.o"))
    assert len(objects) == len(cuda_calls.configurations())
    for path in objects:
        listing = subprocess.run(["nm", "-u", path], capture_output=True, text=True, check=True)
        called = set(re.findall(r"U (_?cu\w+)", listing.stdout))
        assert called == {
            *("_cudaLibraryLoadData", "_cudaLibraryGetKernel", "_cuKernelGetAttribute"),
            *("_cudaKernelSetAttributeForDevice", "_cudaDeviceGetAttribute"),
            *("_cudaGetDevice", "_cudaSetDevice", "_cudaLaunchKernelEx"),
            *("cuda_dialect_init_library_once", "cuda_dialect_unload_library_once"),
        }
