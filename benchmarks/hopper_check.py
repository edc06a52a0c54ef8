"""The model's method where time can be measured: modelled against measured on an H200.

    python benchmarks/hopper_check.py build FOLDER      anywhere: compiles flash-attn-4's sm_90a
                                                        kernels, models them, writes FOLDER
    python benchmarks/hopper_check.py measure FOLDER    on a machine with an H200: needs torch and
                                                        FOLDER only; writes FOLDER/measured.json
    python benchmarks/hopper_check.py table FOLDER      both as Markdown

The rate of matrix products that measure prints first may be given to a second build
(--wgmma-rate): it belongs to the machine, not to attention.

Measured: CUDA events around single launches, median, normal random bf16 data, warm caches, after
the first half second; the SM clock is read from nvidia-smi meanwhile. The result is compared with
scaled_dot_product_attention first. Modelled: cycles at that clock.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a file: make `benchmarks` importable
    sys.path.insert(0, str(ROOT))

WARM_UP_SECONDS = 0.5
LAUNCHES = 100
# bf16 output against the float32 math of another kernel: a few roundings of values below 1.
LARGEST_ERROR = 0.02


# --- build: no GPU --------------------------------------------------------------------------------


def build_one(folder: Path, causal: bool, wgmma_rate: float | None) -> None:
    """Compile, trace, model and describe one kernel; a process of its own (see flash_attn_4.py).

    wgmma_rate: FLOP/cycle/SM that the machine's matrix products sustain; None: the vendor's.
    """
    from dataclasses import replace

    from benchmarks.cycle_model import align, control_codes, hopper, trace
    from benchmarks.cycle_model.evaluate import cta_cycles, steady_state
    from benchmarks.cycle_model.grid import launch_time
    from benchmarks.cycle_model.machine import Machine

    constants = dict(hopper.H200)
    if wgmma_rate:
        vendor = constants["rate_wgmma"]
        constants["rate_wgmma"] = replace(
            vendor, value=wgmma_rate, source="sustained by a large matrix product, measured"
        )
    variant = hopper.HopperVariant(causal)
    with trace.installed():
        captured = hopper.capture(variant)
        traces = {work: hopper.record(captured, work) for work in hopper.workloads(variant)}
    cubin = folder / f"{variant.name}.cubin"
    cubin.write_bytes(captured.kernel.__cubin__)
    code = control_codes.read_file(cubin)
    found = align.paths(code.function, captured.kernel.__ptx__, list(traces.values()))
    machine = Machine(constants)
    results = {
        work: machine.run(paths, code.codes, traces[work])
        for work, paths in zip(traces, found, strict=True)
    }
    cycles, steady = cta_cycles(results), steady_state(results)
    rows = []
    for problem in hopper.SHAPES:
        if problem.causal != causal:
            continue
        launch = hopper.launch_parameters(captured, problem)
        modelled = launch_time(variant, problem, cycles, constants)
        rows.append(
            {
                "kernel": variant.name,
                "entry": launch.entry,
                "problem": vars(problem),
                "flops": problem.flops,
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "params": launch.params.hex(),
                "addresses": launch.addresses,
                "modelled_us": modelled.us,
                "modelled_clock_ghz": constants["clock_ghz"].value,
                "launch_us": constants["launch_us"].value,
            }
        )
    description = {
        "rows": rows,
        "cycles_per_key_tile": steady.cycles,
        "busy": steady.busy,
        "single_work_tile": cycles.single.points,
        "unknown_opcodes": sorted(machine.pipes.unknown),
    }
    (folder / f"{variant.name}.json").write_text(json.dumps(description, indent=1))


def build(folder: Path, wgmma_rate: float | None) -> None:
    """Both masks, each in a new process."""
    folder.mkdir(parents=True, exist_ok=True)
    for mask in ("full", "causal"):
        command = [sys.executable, __file__, "build-one", str(folder), "--mask", mask]
        command += ["--wgmma-rate", str(wgmma_rate)] if wgmma_rate else []
        subprocess.run(command, cwd=ROOT, check=True)


def rows_of(folder: Path) -> list[dict]:
    """Every row that build wrote, in a fixed order."""
    files = sorted(f for f in folder.glob("*.json") if f.name != "measured.json")
    return [row for file in files for row in json.loads(file.read_text())["rows"]]


# --- measure: on the machine with the GPU -----------------------------------------------------------


class Driver:
    """The few CUDA driver calls that launching a cubin takes."""

    def __init__(self):
        self._cuda = ctypes.CDLL("libcuda.so.1")

    def check(self, name: str, *args) -> None:
        error = getattr(self._cuda, name)(*args)
        if error:
            raise RuntimeError(f"{name} returned CUresult {error}")

    def kernel(self, cubin: bytes, entry: str, shared_bytes: int) -> ctypes.c_void_p:
        """A function of a cubin that may use so much dynamic shared memory."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuModuleLoadData", ctypes.byref(module), cubin)
        self.check("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        max_dynamic_shared_bytes = 8  # CUfunction_attribute
        self.check("cuFuncSetAttribute", function, max_dynamic_shared_bytes, shared_bytes)
        return function

    def launcher(self, function, row: dict, params: bytes, stream: int):
        """A callable that launches the kernel with a packed parameter block."""
        block = ctypes.create_string_buffer(params, len(params))
        size = ctypes.c_size_t(len(params))
        pointer, length, end = 1, 2, 0  # CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END
        extra = (ctypes.c_void_p * 5)(
            pointer, ctypes.addressof(block), length, ctypes.addressof(size), end
        )
        numbers = (*row["grid"], *row["block"], row["shared_bytes"])

        def launch():
            self.check("cuLaunchKernel", function, *numbers, ctypes.c_void_p(stream), None, extra)

        launch.keep = (block, size)
        return launch


class ClockWatch:
    """The SM clock in MHz, sampled from nvidia-smi until stopped."""

    def __init__(self):
        command = ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
        self._process = subprocess.Popen(
            [*command, "-lms", "20"], stdout=subprocess.PIPE, text=True
        )
        self._samples: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._process.stdout:
            if line.strip().isdigit():
                self._samples.append((time.perf_counter(), int(line)))

    def median_ghz(self, since: float) -> float | None:
        recent = [mhz for when, mhz in self._samples if when >= since]
        return statistics.median(recent) / 1000 if recent else None

    def stop(self):
        self._process.terminate()


def measure(folder: Path) -> None:
    """Time every row; RuntimeError when a result differs from scaled_dot_product_attention."""
    import torch

    torch.manual_seed(0)
    driver, watch, out = Driver(), ClockWatch(), []
    device = torch.device("cuda", 0)
    print(json.dumps(matrix_product_rate(watch)), flush=True)
    for row in rows_of(folder):
        p = row["problem"]
        shape = (p["batch"], p["seqlen"], p["heads_q"], p["head_dim"])
        q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
        o = torch.zeros_like(q)
        pointers = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr(), "o": o.data_ptr()}
        params = bytearray.fromhex(row["params"])
        for position, name in row["addresses"]:
            params[position : position + 8] = pointers[name].to_bytes(8, "little")
        cubin = (folder / f"{row['kernel']}.cubin").read_bytes()
        function = driver.kernel(cubin, row["entry"], row["shared_bytes"])
        stream = torch.cuda.current_stream().cuda_stream
        launch = driver.launcher(function, row, bytes(params), stream)
        launch()
        torch.cuda.synchronize()
        error = largest_error(o[:1, :, :1], q[:1, :, :1], k[:1, :, :1], v[:1, :, :1], p["causal"])
        if not error <= LARGEST_ERROR:
            raise RuntimeError(f"{row['kernel']} {shape}: error {error}, allowed {LARGEST_ERROR}")
        start = time.perf_counter()
        while time.perf_counter() - start < WARM_UP_SECONDS:
            launch()
            torch.cuda.synchronize()
        since, times = time.perf_counter(), []
        for _ in range(LAUNCHES):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            launch()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) * 1000)
        out.append(
            {
                "kernel": row["kernel"],
                "problem": p,
                "median_us": statistics.median(times),
                "fastest_us": min(times),
                "slowest_us": max(times),
                "clock_ghz": watch.median_ghz(since),
                "error": error,
                "gpu": torch.cuda.get_device_name(0),
            }
        )
        print(out[-1], flush=True)
    watch.stop()
    (folder / "measured.json").write_text(json.dumps(out, indent=1))


def matrix_product_rate(watch: ClockWatch) -> dict:
    """What a large bf16 product of random matrices sustains, in FLOP/cycle/SM: input of build."""
    import torch

    size = 8192
    a, b = (torch.randn((size, size), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_UP_SECONDS:
        a @ b
        torch.cuda.synchronize()
    since, times = time.perf_counter(), []
    for _ in range(LAUNCHES):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        a @ b
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e-3)
    flops, clock = 2 * size**3 / statistics.median(times), watch.median_ghz(since)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rate = flops / (clock * 1e9 * sms) if clock else None
    return {"tflops": flops * 1e-12, "clock_ghz": clock, "flop_per_cycle_and_sm": rate}


def largest_error(o, q, k, v, causal: bool) -> float:
    """Against float32 attention of one head, tensors (1, seqlen, 1, depth)."""
    import torch

    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return (o.float().transpose(1, 2) - exact).abs().max().item()


# --- table --------------------------------------------------------------------------------------------


def table(folder: Path) -> str:
    """Modelled at the measured clock, beside measured."""
    measured = {
        json.dumps(m["problem"]): m for m in json.loads((folder / "measured.json").read_text())
    }
    lines = [
        "| kernel | batch x S | clock GHz | measured us | modelled us | error |",
        "|---|---|---|---|---|---|",
    ]
    errors = []
    for row in rows_of(folder):
        found = measured[json.dumps(row["problem"])]
        clock = found["clock_ghz"] or row["modelled_clock_ghz"]
        busy = (row["modelled_us"] - row["launch_us"]) * row["modelled_clock_ghz"] / clock
        modelled = busy + row["launch_us"]
        errors.append(modelled / found["median_us"] - 1)
        p = row["problem"]
        lines.append(
            f"| {row['kernel']} | {p['batch']} x {p['seqlen']} | {clock:.3f} | "
            f"{found['median_us']:.1f} | {modelled:.1f} | {errors[-1]:+.1%} |"
        )
    worst = max(map(abs, errors))
    lines += ["", f"mean error {statistics.mean(map(abs, errors)):.1%}, worst {worst:.1%}"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("build", "build-one", "measure", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mask", choices=("full", "causal"), default="full")
    parser.add_argument(
        "--wgmma-rate", type=float, help="FLOP/cycle/SM for build: the one that measure prints"
    )
    args = parser.parse_args(argv)
    if args.step == "build":
        build(args.folder, args.wgmma_rate)
    elif args.step == "build-one":
        build_one(args.folder, args.mask == "causal", args.wgmma_rate)
    elif args.step == "measure":
        measure(args.folder)
    else:
        print(table(args.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
