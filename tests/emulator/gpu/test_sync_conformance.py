"""Small PTX kernels on the emulator and, where there is one, on a Hopper GPU, byte for byte against an oracle.

    python tests/emulator/gpu/test_sync_conformance.py                    all cases
    python tests/emulator/gpu/test_sync_conformance.py tensor cluster/    cases whose name begins with one of these
    python tests/emulator/gpu/test_sync_conformance.py --ptxas            no GPU: does ptxas take every kernel

Exchange in a warp, named barriers, mbarriers, loads and stores, atomics, bulk and tensor copies, clusters:
the families are in *_cases.py in this folder. pytest runs every case on the emulator; the script adds the GPU,
and compares tensor maps encoded by hand with those of cuTensorMapEncodeTiled. NumPy is all the script needs.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.emulator.gpu.gpu_process import GpuProcess  # noqa: E402
from tests.emulator.gpu.ptx_cases import all_cases, run_on_emulator  # noqa: E402
from tests.emulator.gpu.tensor_map_fields import TensorMapFields  # noqa: E402

CASES = all_cases()
MODES = ("in_order", "hostile", "random")
RANDOM_MAPS = 300  # every field over its range, some hundred times


def emulated(case, mode="in_order"):
    """(buffers or None, lines): lines tell what is otherwise than expected."""
    try:
        got = run_on_emulator(case, mode, seed=1)
    except Exception as error:  # any failure is one line of the report
        if case.refusal and re.search(case.refusal, str(error)):
            return None, []
        return None, [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    if case.refusal:
        return got, [f"runs, although a refusal was expected: {case.refusal}"]
    lines = case.differences(got, masked=False)
    if case.disagreement:
        return got, [] if lines else [f"agrees now; remove the remark: {case.disagreement}"]
    return got, lines


def on_gpu(gpu, case):
    """(lines of differences, lines of answers and remarks) of a case on the GPU."""
    answer = gpu.run(case.name)
    if "error" in answer:
        return [answer["error"]], []
    lines = case.differences(answer["buffers"])
    if answer["guards"]:
        lines.append(f"{answer['guards']} bytes outside of the buffers were changed")
    remarks = []
    if case.question:
        told = case.differences(answer["buffers"], masked=False)
        verdict = "as expected" if not told else "otherwise than expected"
        remarks.append(f"question: {case.question}")
        remarks.append(f"    {verdict}; open words: {case.open_values(answer['buffers'])}")
        remarks += [f"    {line}" for line in told[:9]]
    for compared in answer["maps"]:
        wrong, remark = map_lines(compared)
        lines, remarks = lines + wrong, remarks + remark
    return lines, remarks


def map_lines(compared):
    """(differences, remarks) of one tensor map encoded twice."""
    if "refused" in compared:
        return [], [f"cuTensorMapEncodeTiled: {compared['refused']} for {compared['fields']}"]
    words = [f"w{w} driver {d:#x}, by hand {h:#x}" for w, d, h in compared["differing"]]
    return ([f"tensor map {compared['fields']}: {'; '.join(words)}"] if words else []), []


# --- pytest -------------------------------------------------------------------------------------------------------

try:
    import pytest
except ImportError:
    pytest = None

if pytest is not None:

    @pytest.fixture(scope="module")
    def gpu():
        try:
            process = GpuProcess()
        except OSError as why:
            pytest.skip(f"no CUDA device ({why})")
        if process.target != "sm_90a":
            process.stop()
            pytest.skip(f"the kernels are for sm_90a, the device is {process.target}")
        yield process
        process.stop()

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", CASES)
    def test_emulator(name, mode):
        _, lines = emulated(CASES[name], mode)
        assert not lines, "\n".join(lines)

    @pytest.mark.gpu
    @pytest.mark.parametrize("name", CASES)
    def test_gpu(gpu, name):
        lines, _ = on_gpu(gpu, CASES[name])
        assert not lines, "\n".join(lines)

    @pytest.mark.gpu
    def test_tensor_maps_encoded_by_the_driver(gpu):
        maps = gpu.ask(f"random maps {RANDOM_MAPS}")["maps"]
        lines = [line for compared in maps for line in map_lines(compared)[0]]
        assert sum("refused" not in compared for compared in maps) > RANDOM_MAPS // 2
        assert not lines, "\n".join(lines[:5])


def test_one_wrong_bit_is_a_difference():
    for name in ("warp/vote", "tensor/2d"):
        case = CASES[name]
        got = [buffer.copy() for buffer in case.expected]
        assert not case.differences(got)
        got[0].reshape(-1).view(np.uint8)[37] ^= 1
        assert any("1 of" in line for line in case.differences(got))


def test_open_bytes_are_compared_on_demand_only():
    case = CASES["tensor/nan fill f16"]
    got = [buffer.copy() for buffer in case.expected]
    byte = int(np.flatnonzero(case.open[0])[0])
    got[0][byte] ^= 1
    assert not case.differences(got)
    assert case.differences(got, masked=False)


def test_hand_encoding_of_a_known_map():
    """The words that cute's host code packs for a 4d bf16 tensor (128, 1000, 8, 2) at 0x7f1240001000."""
    fields = TensorMapFields("bf16", (128, 1000, 8, 2), (2048, 256, 2048000), (64, 128, 1, 1), 128)
    words = np.frombuffer(fields.encode(0x7F1240001000), np.uint32)[:16]
    expected = [
        0x40001000,
        0x7F12,
        0x46530,
        0x80,
        0x10,
        0x1F400,
        0,
        0,
        127,
        999,
        7,
        1,
        0,
        0x3F000000,
        0x7F,
        0,
    ]
    assert words.tolist() == expected


def test_ptxas_takes_every_kernel():
    if pytest is not None and shutil.which("ptxas") is None:
        pytest.skip("no ptxas in PATH; it comes with the CUDA toolkit")
    # a sample, one of each family: the script's --ptxas assembles all
    sample = {name.split("/")[0]: case for name, case in CASES.items()}
    assert not [line for case in sample.values() for line in ptxas_errors(case)]


# --- command line ----------------------------------------------------------------------------------------------------


def ptxas_errors(case):
    """What ptxas (of PATH) says against a kernel, for sm_90a."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kernel.ptx"
        path.write_text(case.text)
        command = ["ptxas", "-arch", "sm_90a", str(path), "-o", str(path.with_suffix(".cubin"))]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    return [f"{case.name}: {result.stderr.strip()}"] if result.returncode else []


def report(name, state, lines):
    print(f"{state:10} {name}", flush=True)
    for line in lines:
        print(f"    {line}", flush=True)


def main(arguments):
    prefixes = tuple(a for a in arguments if not a.startswith("--"))
    chosen = [case for case in CASES.values() if case.name.startswith(prefixes or ("",))]
    if "--ptxas" in arguments:
        errors = [line for case in chosen for line in ptxas_errors(case)]
        print(
            *errors, f"{len(chosen)} kernels, {len(errors)} refused by ptxas for sm_90a", sep="\n"
        )
        return 1 if errors else 0
    try:
        gpu = GpuProcess()
    except OSError as why:
        print(f"no CUDA device: {why}")
        gpu = None
    if gpu is not None:
        print(f"{gpu.name}, {gpu.target}, driver API {gpu.version}")
        if gpu.target != "sm_90a":
            print("the kernels are for sm_90a: emulator only")
            gpu.stop()
            gpu = None
    wrong_emulator, wrong_gpu, answers = [], [], []
    for case in chosen:
        _, lines = emulated(case)
        lines = [f"emulator: {line}" for line in lines]
        if lines:
            wrong_emulator.append(case.name)
        if case.refusal or case.disagreement:
            lines.append(
                f"emulator, known: {case.disagreement or 'refuses (' + case.refusal + ')'}"
            )
        if gpu is not None:
            differing, remarks = gpu_lines(gpu, case)
            if differing:
                wrong_gpu.append(case.name)
            lines += [f"GPU: {line}" for line in differing] + remarks
            answers += [f"{case.name}: {line}" for line in remarks]
        bad = case.name in wrong_emulator or case.name in wrong_gpu
        report(case.name, "DIFFERENT" if bad else "ok", lines)
    if gpu is not None:
        wrong_gpu += random_map_report(gpu)
        gpu.stop()
    if answers:
        print("\nremarks and answers to open questions:", *answers, sep="\n  ")
    ran = "not run" if gpu is None else f"{len(wrong_gpu)} differ from the expectation"
    print(
        f"\n{len(chosen)} cases; emulator: {len(wrong_emulator)} differ from the expectation; GPU: {ran}"
    )
    for title, names in (("emulator", wrong_emulator), ("GPU", wrong_gpu)):
        if names:
            print(f"  {title}: {', '.join(names)}")
    return 1 if wrong_emulator or wrong_gpu else 0


def gpu_lines(gpu, case):
    try:
        return on_gpu(gpu, case)
    except OSError as why:  # the process could not be started again
        return [str(why)], []


def random_map_report(gpu):
    answer = gpu.ask(f"random maps {RANDOM_MAPS}")
    if "error" in answer:
        report("random tensor maps", "DIFFERENT", [answer["error"]])
        return ["random tensor maps"]
    refused = [c for c in answer["maps"] if "refused" in c]
    lines = [line for compared in answer["maps"] for line in map_lines(compared)[0]]
    remark = f"{RANDOM_MAPS} tensor maps encoded twice: {len(lines)} differ in words 0 to 15, {len(refused)} refused"
    report("random tensor maps", "DIFFERENT" if lines else "ok", [remark, *lines[:5]])
    return ["random tensor maps"] if lines else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
