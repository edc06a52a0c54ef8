"""Driver calls of a rewritten kernel's library around a launch, on a driver that records them."""

import json
import subprocess

import pytest

from cute_fa4.aot import build as aot_build
from cute_fa4.aot import manifest
from cute_fa4.aot.config_data import to_data
from cute_fa4.hopper import build
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.system import c_compiler
from tests.aot.conftest import ROOT, python
from tests.launch_arguments import AFTER_SCALE

CONFIG = choose_config(qkv_dtype="bf16", head_dim=64, causal=True)
SCRATCH = 256

SETUP = (
    f"AFTER_SCALE = {AFTER_SCALE}"
    + """
import json, os, sys
import torch
from cute_fa4.emulator import as_cuda
from cute_fa4.hopper import load
stand_in = load.open_function(sys.argv[1], sys.argv[2])
q = torch.zeros(2, 300, 4, 64, dtype=torch.bfloat16)
def call():
    tensors = [as_cuda(t) for t in (q, q, q, q)]
    stand_in(*tensors, None, 0.125, *AFTER_SCALE)
calls = lambda: open(os.environ["RECORDING"]).read().splitlines()
results = {}
def case(name, function):
    before = len(calls()) if os.path.exists(os.environ["RECORDING"]) else 0
    try:
        function()
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    results[name] = text, calls()[before:]
case("first", call)
case("second", call)
results["clusters"] = stand_in.clusters()
with stand_in.claims(refused=0.25, seed=7, greedy=3):
    case("disturbed", call)
os.environ["RECORDING_HANGS"] = "1"
stand_in.patience(0.05)
case("hangs", call)
print(json.dumps(results))
"""
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A built kernel with the compiler's cubin, which this driver does not read."""
    out = tmp_path_factory.mktemp("hopper")
    built = aot_build.build(CONFIG, CONFIG.name)
    cubin, library = out / "kernel.cubin", out / f"{CONFIG.name}.so"
    cubin.write_bytes(built.cubin)
    build.link_host(built.host_object, cubin, SCRATCH, library)
    record = {"name": CONFIG.name, "symbol": f"__tvm_ffi_{CONFIG.name}", "config": to_data(CONFIG)}
    files = {"library": manifest.file_record(library)}
    content = {"versions": manifest.versions(), "kernels": [{**record, "files": files}]}
    manifest.write_manifest(out, content)
    return out


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    command = [c_compiler.find_compiler(), "-shared", "-fPIC", f"-I{ROOT / 'examples' / 'aot_cpp'}"]
    source = ROOT / "tests" / "hopper" / "more_driver.c"
    subprocess.run([*command, str(source), "-o", str(folder / "libcuda.so.1")], check=True)
    return {"LD_LIBRARY_PATH": folder, "RECORDING": folder / "calls", "RECORDING_CAPABILITY": "9.0"}


@pytest.fixture(scope="module")
def results(directory, environment):
    return json.loads(python(SETUP, directory, CONFIG.name, **environment).stdout)


# 300 queries are 2 blocks of 256, for 4 heads and 2 sequences
CTAS = 16


def test_the_first_launch(results):
    text, calls = results["first"]
    assert text == "no error"
    assert calls[0] == "cuInit" and calls[1] == "cuLibraryLoadData elf=1"
    prepared = calls.index("cuLibraryGetGlobal cute_fa4_control")
    assert [c for c in calls if "Alloc" in c] == [
        f"cuMemAlloc {CTAS * 512 * 128 * 4}",  # tensor memory of every CTA
        f"cuMemAlloc {CTAS * 4}",  # which columns are allocated
        f"cuMemAlloc {(CTAS + 1) * 4}",  # which blocks were claimed, and how many were looked at
    ]
    assert calls[prepared + 1 : -1] == [
        f"cuMemsetD32 ffffffff count={CTAS * 512 * 128}",  # NaN
        f"cuMemsetD32 0 count={CTAS}",
        f"cuMemsetD32 0 count={CTAS + 1}",
        "control refused=0 seed=0 greedy=0 wrong=0",
    ]
    assert "grid=16,1,1 block=512,1,1" in calls[-1]
    assert int(calls[-1].partition("shared=")[2].split()[0]) >= CONFIG.smem.nbytes + SCRATCH


def test_a_further_launch_finds_memory_and_kernel(results):
    _, calls = results["second"]
    assert not [c for c in calls if "Alloc" in c or "LoadData" in c]
    assert calls[-1] == results["first"][1][-1]


def test_blocks_that_nobody_ran_are_told_from_those_that_ran(results):
    # The driver ran nothing: every word is 0, free.
    assert results["clusters"] == [-2] * CTAS


def test_claims_are_disturbed_as_asked(results):
    assert "control refused=64 seed=7 greedy=3 wrong=0" in results["disturbed"][1]


def test_a_launch_that_does_not_end_is_an_error(results):
    assert "has not ended after 0 s: it hangs" in results["hangs"][0]


def test_too_little_memory_is_an_error_that_says_what_for(directory, environment):
    code = SETUP.partition('case("first"')[0] + 'case("full", call)\nprint(json.dumps(results))'
    out = python(code, directory, CONFIG.name, **environment, RECORDING_FULL="1").stdout
    text, _ = json.loads(out)["full"]
    assert "memory for the tensor memory of all CTAs, 256 KiB each" in text


def test_another_gpu_is_refused(directory, environment):
    code = SETUP.partition('case("first"')[0] + 'case("b200", call)\nprint(json.dumps(results))'
    out = python(code, directory, CONFIG.name, **{**environment, "RECORDING_CAPABILITY": "10.0"})
    text, _ = json.loads(out.stdout)["b200"]
    assert "exported for sm_90a, compute capability 9.0, and device 0 has 10.0" in text


def test_an_unknown_name_lists_the_kernels(directory):
    from cute_fa4.hopper import load

    with pytest.raises(manifest.LoadError, match=f"no kernel 'x'; accepted: {CONFIG.name}"):
        load.open_function(directory, "x")
