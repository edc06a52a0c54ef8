"""Measurements: cycles of single instructions, clock and memory, claims by class, and the benchmark."""

from __future__ import annotations

import statistics

import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from cute_fa4.readiness.stage import Context, Stage, kernels_with, require

EMPTY_LAUNCHES = 200
COPY_BYTES = 1 << 30
REPEATS = 30


def instructions(context: Context) -> dict:
    """Cycles of single instructions, as one warp sees them; on the emulator they are only instruction counts."""
    from cute_fa4.readiness import cycles

    blocks = 2
    if context.on_gpu:  # enough that some have not started when CTA 0 claims
        blocks = 64 * torch.cuda.get_device_properties(0).multi_processor_count
    found = cycles.measured_cycles(context.device, context.arch, blocks, times=context.size(21, 1))
    require(set(found) == set(cycles.QUESTIONS), f"answers to {sorted(found)}")
    if not context.on_gpu:
        return {"questions": list(found)}
    # arrive + wait is measured together; the model has both separately.
    half = found.pop("mbarrier_round_trip") / 2
    return {"cycles": found | {"mbarrier_arrive": half, "mbarrier_wake": half}}


def machine(context: Context) -> dict:
    """SMs, the clock under attention, an empty launch, and a copy through memory."""
    from cute_fa4.bench.timing import CudaMachine, measure
    from cute_fa4.readiness import probes

    gpu = CudaMachine()
    q, k, v = (context.random(4, 8192, 16, 128, seed=seed) for seed in range(3))
    clock = measure(gpu, lambda: flash_attn_func(q, k, v), REPEATS).clock
    nothing = probes.neighbour_function(context.device, context.arch)
    out = torch.empty(32, dtype=torch.float32, device=context.device)
    launch = measure(gpu, lambda: nothing(out, 0), EMPTY_LAUNCHES).seconds
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=context.device)
    target = torch.empty_like(source)
    copy = measure(gpu, lambda: target.copy_(source), REPEATS).seconds
    found = {
        "sms": gpu.describe()["sms"],
        "launch_us": 1e6 * statistics.median(launch),
        "hbm_tbs": 2 * COPY_BYTES / statistics.median(copy) / 1e12,
    }
    if clock is not None and clock["sm_mhz"] is not None:
        found["clock_ghz"] = clock["sm_mhz"] / 1e3
    return {"constants": found, "clock under attention": clock}


def class_problems(context: Context) -> dict:
    """A call of each class of sm100/blueprint/claims.py: short ones, which gain most from claims, and long ones."""
    found = {}
    for length in (512, 4096):
        batch = 32768 // length
        q, k, v = (context.random(batch, length, 16, 128, seed=seed) for seed in range(3))
        found[f"dense full {length}"] = lambda q=q, k=k, v=v: flash_attn_func(q, k, v)
        found[f"other {length}"] = lambda q=q, k=k, v=v: flash_attn_func(q, k, v, causal=True)
        cu = context.int32(*range(0, 32768 + 1, length))
        rows = [x.reshape(-1, 16, 128) for x in (q, k, v)]
        found[f"packed MHA {length}"] = lambda rows=rows, cu=cu, length=length: (
            flash_attn_varlen_func(
                *rows, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=length, max_seqlen_k=length
            )
        )
    return found


def claims_by_class(context: Context) -> dict:
    """Time without claims over time with them, for each class: above 1, claims pay."""
    from cute_fa4.bench.timing import CudaMachine, measure

    gpu, speedups = CudaMachine(), {}
    for name, call in class_problems(context).items():
        seconds = {}
        for choice in ("on", "off"):
            with kernels_with(choice):
                seconds[choice] = statistics.median(measure(gpu, call, REPEATS).seconds)
        speedups[name] = seconds["off"] / seconds["on"]
    return {"claims": speedups}


def bench(context: Context) -> dict:
    """The published table, as `python -m cute_fa4 bench` prints it."""
    import argparse

    from cute_fa4.bench import command, report, timing
    from cute_fa4.bench.backends import BACKENDS, OURS
    from cute_fa4.bench.run import run

    parser = argparse.ArgumentParser()
    command.add_options(parser)
    options = parser.parse_args([])
    gpu = timing.CudaMachine()
    results = run(command.problems(options), BACKENDS, gpu, repeats=options.repeats)
    wrong = [r for r in results if r.backend == OURS and r.status in ("wrong", "failed")]
    require(not wrong, "; ".join(f"{r.problem}: {r.reason}" for r in wrong))
    lines = report.lines(results)
    return {"lines": lines, "bench": report.as_data(results, gpu.describe(), options.repeats)}


STAGES = (
    Stage(
        "instructions",
        "how many cycles do the instructions take that the model guesses?",
        instructions,
        "readiness/cycles.py",
    ),
    Stage(
        "machine",
        "which clock, launch time and bandwidth has this machine?",
        machine,
        "clocks and power of the machine",
        needs_gpu=True,
    ),
    Stage(
        "claims by class",
        "do claims pay, by class of problem?",
        claims_by_class,
        "sm100/blueprint/claims.py",
        seconds=300,
        needs_gpu=True,
    ),
    Stage(
        "bench",
        "how fast is it beside flash-attn-4, cuDNN and torch?",
        bench,
        "the table says which backend or problem",
        seconds=1800,
        needs_gpu=True,
    ),
)
