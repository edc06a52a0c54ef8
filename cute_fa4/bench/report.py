"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
import math
import platform
from importlib import metadata

import torch

from cute_fa4.bench import timing
from cute_fa4.bench.problems import SEED
from cute_fa4.bench.run import Result
from cute_fa4.compiler import toolkit

SCHEMA = 1
PACKAGES = (
    "cute-fa4",
    "torch",
    "nvidia-cutlass-dsl",
    "flash-attn-4",
    "nvidia-cudnn-frontend",
    "triton",
)


def header(machine: dict) -> list[str]:
    """The machine, and the method of measurement."""
    known = {name: value for name, value in versions().items() if value}
    power = "" if machine["power_limit_w"] is None else f", {machine['power_limit_w']:.0f} W"
    fastest = machine["max_sm_mhz"]
    fastest = "unknown" if fastest is None else f"{fastest:.0f} MHz"
    return [
        f"{machine['gpu']}: compute capability {machine['compute_capability']}, {machine['sms']} SMs, "
        f"{machine['l2_bytes'] / 2**20:.0f} MiB L2, largest clock {fastest}{power}, driver {machine['driver']}",
        ", ".join(f"{name} {version}" for name, version in known.items()),
        "median of single launches, CUDA events, L2 flushed before each, normal random data; "
        "clock and error are those of the first backend",
    ]


def lines(results: list[Result]) -> list[str]:
    """One line per problem, one column per backend; reasons for empty cells follow the table.

    Prefill in TFLOPS, decode in GB/s. `error` is the first backend's, next to the error allowed for a correct kernel.
    """
    names = list(dict.fromkeys(result.backend for result in results))
    problems = list(dict.fromkeys(result.problem for result in results))
    found = {(result.problem, result.backend): result for result in results}
    reasons: dict[str, int] = {}
    text = []
    for unit, decode in (("TFLOPS", False), ("GB/s", True)):
        chosen = [problem for problem in problems if problem.is_decode == decode]
        if not chosen:
            continue
        widths = [max(len(name), 8) for name in names]
        columns = "  ".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
        text += [
            "",
            f"{unit:24} {'d':>3} {'batch':>5} {'heads':>7} {'queries':>7} {'keys':>7}  {columns}"
            f"  {'clock MHz':>9} {'error':>8} {'allowed':>8}",
        ]
        for problem in chosen:
            cells = []
            for name, width in zip(names, widths, strict=True):
                result = found[problem, name]
                value = result.gbps if decode else result.tflops
                if value is not None:
                    cells.append(f"{value:{width}.0f}" if value >= 100 else f"{value:{width}.2f}")
                else:
                    mark = reasons.setdefault(_reason(result), len(reasons) + 1)
                    cells.append(f"{f'[{mark}]':>{width}}")
            ours = found[problem, names[0]]
            heads = f"{problem.heads_q}/{problem.heads_kv}"
            text.append(
                f"{f'{problem.dtype} {problem}':24} {problem.head_dim:3} {problem.batch:5} {heads:>7} "
                f"{problem.seqlen_q:7} {problem.seqlen_k:7}  {'  '.join(cells)}"
                f"  {_clock(ours):>9} {_scientific(ours.error):>8} {_scientific(ours.allowed):>8}"
            )
    if reasons:
        text += ["", *(f"[{number}] {reason}" for reason, number in reasons.items())]
    return text


def as_data(results: list[Result], machine: dict, repeats: int) -> dict:
    """Everything, for JSON. Numbers of a result whose status is not "ok" are null; its reason explains why."""
    return {
        "schema": SCHEMA,
        "machine": machine,
        "python": platform.python_version(),
        "versions": versions(),
        "method": {
            "repeats": repeats,
            "warm_seconds": timing.WARM_SECONDS,
            "timer": "CUDA events around single launches",
            "l2": "flushed before every launch",
            "inputs": "normal random numbers",
            "seed": SEED,
            "flops": "4 head_dim for each visible pair of query and key",
            "bytes": "q, out and the visible keys and values once each, page table",
        },
        "results": [_result(result) for result in results],
    }


def versions() -> dict:
    """Version of every compared package; None: not installed."""
    found = {name: _version(name) for name in PACKAGES}
    found["cuda (torch)"] = torch.version.cuda
    found["toolkit"] = toolkit.flavour()
    cudnn = torch.backends.cudnn
    found["cudnn (torch)"] = str(cudnn.version()) if cudnn.is_available() else None
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _result(result: Result) -> dict:
    measured = result.measurement if result.status == "ok" else None
    return {
        **dataclasses.asdict(result.problem),
        "flops": result.problem.flops,
        "bytes": result.problem.bytes,
        "backend": result.backend,
        "status": result.status,
        "reason": result.reason,
        # JSON has no infinity, which is the error of a NaN.
        "error": None if result.error == math.inf else result.error,
        "allowed_error": result.allowed,
        "median_seconds": result.seconds,
        "seconds": list(measured.seconds) if measured else None,
        "host_seconds": measured.host_seconds if measured else None,
        "tflops": result.tflops,
        "gbps": result.gbps,
        "clock": measured.clock if measured else None,
    }


def _reason(result: Result) -> str:
    return f"{result.backend}: {result.reason}"


def _clock(result: Result) -> str:
    clock = result.measurement.clock if result.measurement else None
    return "-" if clock is None or clock["sm_mhz"] is None else f"{clock['sm_mhz']:.0f}"


def _scientific(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
