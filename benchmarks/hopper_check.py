"""The model's method on a GPU where time can be measured: modeled and measured cycles on an H200.

    python benchmarks/hopper_check.py build FOLDER      anywhere: compiles flash-attn-4's sm_90a
                                                        kernels, models them, writes FOLDER
    python benchmarks/hopper_check.py measure FOLDER    on a machine with an H200: needs torch and
                                                        FOLDER only; writes FOLDER/measured.json
    python benchmarks/hopper_check.py table FOLDER      both as Markdown

No constant is fitted to attention: cycle_model/hopper.py says where each comes from.

Launches run back to back in a stream, on normal random bf16 data with warm caches, after half a second of warm-up.
Before and after them a probe reads the cycle counter of each SM and the global timer. This gives cycles, time and
the actual clock, even if the power limit reduces it. The result is first compared with
scaled_dot_product_attention.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a file: make `benchmarks` importable
    sys.path.insert(0, str(ROOT))

WARM_UP_SECONDS = 0.5
REPETITIONS = 5
SECONDS_A_REPETITION = 0.1
LAUNCHES_OF_NOTHING = 1000
# bf16 output against the float32 math of another kernel: a few roundings of values below 1.
LARGEST_ERROR = 0.02


# --- build: no GPU --------------------------------------------------------------------------------


def build_one(folder: Path, causal: bool) -> None:
    """Compile, trace, model and describe one kernel; in a separate process (see flash_attn_4.py)."""
    from dataclasses import asdict

    from benchmarks.cycle_model import followed, hopper
    from benchmarks.cycle_model.evaluate import cta_cycles, steady_state
    from benchmarks.cycle_model.grid import launch_time
    from cute_fa4.emulator.model import control_codes, trace
    from cute_fa4.emulator.model.machine import Machine

    constants = hopper.H200
    variant = hopper.HopperVariant(causal)
    with trace.installed():
        captured = hopper.capture(variant)
        traces = {work: hopper.record(captured, work) for work in hopper.workloads(variant)}
    cubin = folder / f"{variant.name}.cubin"
    cubin.write_bytes(captured.kernel.__cubin__)
    code = control_codes.read_file(cubin)
    found = followed.paths(
        variant.name, code.function, captured.kernel.__ptx__, list(traces.values())
    )
    machine = Machine(constants)
    results = {
        work: machine.run(paths, code.codes, traces[work])
        for work, paths in zip(traces, found, strict=True)
    }
    cycles, steady = cta_cycles(results), steady_state(results)
    clock, launch_us = (constants[name].value for name in ("clock_ghz", "launch_us"))
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
                "problem": asdict(problem),
                "flops": problem.flops,
                "grid": launch.grid,
                "block": launch.block,
                "shared_bytes": launch.shared_bytes,
                "params": launch.params.hex(),
                "offsets": launch.offsets,
                "maps": launch.maps,
                "modelled_cycles": (modelled.us - launch_us) * clock * 1e3,
                "launch_us": launch_us,
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


def build(folder: Path) -> None:
    """Both masks, each in a new process."""
    folder.mkdir(parents=True, exist_ok=True)
    for mask in ("full", "causal"):
        command = [sys.executable, __file__, "build-one", str(folder), "--mask", mask]
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

    def tensor_map(self, described: dict, address: int) -> bytes:
        """cuTensorMapEncodeTiled of a bf16 tensor, described as in hopper.LaunchParameters.maps."""
        sizes, strides, box = (described[name] for name in ("sizes", "strides", "box"))
        rank, bf16 = len(sizes), 9
        room = ctypes.create_string_buffer(192)
        aligned = -(-ctypes.addressof(room) // 64) * 64
        self.check(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(aligned),
            bf16,
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * (rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            0,  # no interleave
            described["swizzle"],
            described["l2_promotion"],
            0,  # zeros outside of the tensor
        )
        return ctypes.string_at(aligned, 128)

    def launcher(self, function, row: dict, params: bytes, stream: int):
        """A callable that launches the kernel with these parameters.

        One pointer a parameter: ptxas places them elsewhere than PTX does.
        """
        block = ctypes.create_string_buffer(params, len(params))
        start = ctypes.addressof(block)
        pointers = (ctypes.c_void_p * len(row["offsets"]))(*(start + at for at in row["offsets"]))
        numbers = (*row["grid"], *row["block"], row["shared_bytes"])

        def launch():
            self.check(
                "cuLaunchKernel", function, *numbers, ctypes.c_void_p(stream), pointers, None
            )

        launch.keep = block
        return launch


PROBE = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry probe(.param .u64 out)
{
    .reg .b64 %rd<6>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %smid;
    mov.u64 %rd2, %clock64;
    mov.u64 %rd3, %globaltimer;
    mul.wide.u32 %rd4, %r1, 16;
    add.u64 %rd5, %rd1, %rd4;
    st.global.v2.u64 [%rd5], {%rd2, %rd3};
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""


class Stopwatch:
    """Cycles and microseconds of what a stream does, from counters of the SMs."""

    def __init__(self, driver: Driver):
        self._driver = driver
        self._probe = driver.kernel(PROBE.encode(), "probe", 0)
        self.nothing = driver.kernel(PROBE.encode(), "nothing", 0)

    def _stamp(self):
        import torch

        sms = torch.cuda.get_device_properties(0).multi_processor_count
        out = torch.zeros((sms, 2), dtype=torch.int64, device="cuda")
        row = {"grid": (4 * sms, 1, 1), "block": (1, 1, 1), "shared_bytes": 0, "offsets": [0]}
        params = out.data_ptr().to_bytes(8, "little")
        self._driver.launcher(self._probe, row, params, _stream())()
        return out

    def measure(self, launch) -> dict:
        """Time of one launch among many: median, smallest and largest of some repetitions."""
        import torch

        start, launches = time.perf_counter(), 0
        while time.perf_counter() - start < WARM_UP_SECONDS:
            for _ in range(20):
                launch()
            torch.cuda.synchronize()
            launches += 20
        each = (time.perf_counter() - start) / launches
        number, found = max(10, int(SECONDS_A_REPETITION / each)), []
        for _ in range(REPETITIONS):
            first = self._stamp()
            for _ in range(number):
                launch()
            passed = self._stamp() - first
            cycles, nanoseconds = passed.double().median(dim=0).values.tolist()
            found.append((cycles / number, nanoseconds / number / 1000))
        cycles, us = zip(*found, strict=True)
        return {
            "cycles": statistics.median(cycles),
            "us": statistics.median(us),
            "cycles_range": [min(cycles), max(cycles)],
            "us_range": [min(us), max(us)],
            "clock_ghz": statistics.median(c / u for c, u in found) / 1000,
            "launches": number * REPETITIONS,
        }

    def nothing_us(self) -> float:
        """An empty kernel among many in a graph: the cost of a launch after another."""
        import torch

        row = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared_bytes": 0, "offsets": []}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch = self._driver.launcher(self.nothing, row, b"", _stream())
            for _ in range(LAUNCHES_OF_NOTHING):
                launch()
        return self.measure(graph.replay)["us"] / LAUNCHES_OF_NOTHING


def _stream() -> int:
    import torch

    return torch.cuda.current_stream().cuda_stream


def measure(folder: Path) -> None:
    """Time every row; RuntimeError when a result differs from scaled_dot_product_attention."""
    import torch

    torch.manual_seed(0)
    device, driver = torch.device("cuda", 0), Driver()
    torch.zeros(1, device=device)  # makes the context that the driver's calls need
    stopwatch = Stopwatch(driver)
    machine = {
        "gpu": torch.cuda.get_device_name(0),
        "date": time.strftime("%Y-%m-%d"),
        "launch_us": stopwatch.nothing_us(),
        "matrix_product": matrix_product(stopwatch),
    }
    print(json.dumps(machine), flush=True)
    out = []
    for row in rows_of(folder):
        p = row["problem"]
        shape = (p["batch"], p["seqlen"], p["heads_q"], p["head_dim"])
        q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
        o = torch.zeros_like(q)
        tensors = {"q": q, "k": k, "v": v, "o": o}
        params = bytearray.fromhex(row["params"])
        for described in row["maps"]:
            at, tensor = described["position"], tensors[described["tensor"]]
            params[at : at + 128] = driver.tensor_map(described, tensor.data_ptr())
        cubin = (folder / f"{row['kernel']}.cubin").read_bytes()
        function = driver.kernel(cubin, row["entry"], row["shared_bytes"])
        launch = driver.launcher(function, row, bytes(params), _stream())
        launch()
        torch.cuda.synchronize()
        error = largest_error(o[:1, :, :1], q[:1, :, :1], k[:1, :, :1], v[:1, :, :1], p["causal"])
        if not error <= LARGEST_ERROR:
            raise RuntimeError(f"{row['kernel']} {shape}: error {error}, allowed {LARGEST_ERROR}")
        found = stopwatch.measure(launch)
        out.append({"kernel": row["kernel"], "problem": p, **found, "error": error})
        print(out[-1], flush=True)
    text = json.dumps({"machine": machine, "rows": out}, indent=1)
    (folder / "measured.json").write_text(text)


def matrix_product(stopwatch: Stopwatch) -> dict:
    """Sustained FLOP/cycle/SM of a large bf16 product of random matrices."""
    import torch

    size = 8192
    a, b = (torch.randn((size, size), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = stopwatch.measure(lambda: a @ b)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    rate = 2 * size**3 / (found["cycles"] * sms)
    return {"tflops": 2 * size**3 / found["us"] * 1e-6, "flop_per_cycle_and_sm": rate, **found}


def largest_error(o, q, k, v, causal: bool) -> float:
    """Against float32 attention of one head, tensors (1, seqlen, 1, depth)."""
    import torch

    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return (o.float().transpose(1, 2) - exact).abs().max().item()


# --- table --------------------------------------------------------------------------------------------


def table(folder: Path) -> str:
    """Modelled beside measured cycles of every row, and what the machine did."""
    found = json.loads((folder / "measured.json").read_text())
    measured = {json.dumps(row["problem"]): row for row in found["rows"]}
    lines = [
        "| kernel | batch x S | measured us | clock GHz | measured cycles | modelled cycles | error |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = []
    for row in rows_of(folder):
        mine, p = measured[json.dumps(row["problem"])], row["problem"]
        cycles = row["modelled_cycles"] + row["launch_us"] * 1e3 * mine["clock_ghz"]
        errors.append(cycles / mine["cycles"] - 1)
        lines.append(
            f"| {row['kernel']} | {p['batch']} x {p['seqlen']} | {mine['us']:.0f} | "
            f"{mine['clock_ghz']:.2f} | {mine['cycles']:,.0f} | {cycles:,.0f} | {errors[-1]:+.1%} |"
        )
    mean, worst = statistics.mean(map(abs, errors)), max(map(abs, errors))
    spread = max(
        (row["cycles_range"][1] - row["cycles_range"][0]) / row["cycles"] for row in found["rows"]
    )
    product = found["machine"]["matrix_product"]
    lines += [
        "",
        f"Measured on an {found['machine']['gpu']}, {found['machine']['date']}, 16 heads, d=128, "
        f"bf16: mean error {mean:.1%}, worst {worst:.1%}; five repetitions differ by at most "
        f"{spread:.1%} in cycles. A matrix product of 8192 sustains "
        f"{product['flop_per_cycle_and_sm']:.0f} of 4096 FLOP a cycle and SM at "
        f"{product['clock_ghz']:.2f} GHz.",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("build", "build-one", "measure", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mask", choices=("full", "causal"), default="full")
    args = parser.parse_args(argv)
    if args.step == "build":
        build(args.folder)
    elif args.step == "build-one":
        build_one(args.folder, args.mask == "causal")
    elif args.step == "measure":
        measure(args.folder)
    else:
        print(table(args.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
