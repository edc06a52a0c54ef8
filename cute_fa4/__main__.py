"""python -m cute_fa4: what is installed, what runs, kernels for export, a check against float64, speed.

info           versions, devices, caches
capabilities   which combinations run, and why the others do not
export         kernels of models for cute_fa4.aot.load
export-kernel  one such kernel
aot            inspects a directory of such kernels
check          a few shapes on the GPU or the emulator against float64
hopper         the kernels on a Hopper GPU, with tcgen05 in software
tune           measures the choices between kernels on a Blackwell GPU and writes a tuning table
bench          speed on a Blackwell GPU compared with other packages; exits with 2 without one
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from cute_fa4 import __version__
from cute_fa4.bench import command as bench_command
from cute_fa4.bench import tune_command
from cute_fa4.commands import export as export_command
from cute_fa4.commands import kernels as kernels_command
from cute_fa4.dtypes import DTYPES, OPERANDS, UNQUANTIZED
from cute_fa4.hopper import command as hopper_command
from cute_fa4.system import pipes

CHECKS = (
    # name, sizes, options: each mask, grouped heads, a ragged edge, and a decode step
    ("full", dict(seqlen_q=40, seqlen_k=72, heads_q=1, heads_kv=1), {}),
    ("causal", dict(seqlen_q=130, seqlen_k=130, heads_q=1, heads_kv=1), {"causal": True}),
    ("grouped heads", dict(seqlen_q=9, seqlen_k=40, heads_q=4, heads_kv=2), {"causal": True}),
    ("decode step", dict(seqlen_q=1, seqlen_k=200, heads_q=4, heads_kv=1), {"causal": True}),
)
GROUP_HELP = "query heads a key/value head; default: 1"
# 16-bit P and output round to 2^-9 relative each; outputs are averages of values of standard deviation 1.
ALLOWED_ERROR = {"bf16": 2e-2, "fp16": 4e-3}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except BrokenPipeError:
        raise
    except (ValueError, RuntimeError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cute_fa4", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"cute_fa4 {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("info", help="versions, devices, caches")
    command.set_defaults(run=info)

    command = commands.add_parser("capabilities", help="which combinations run, and why not")
    command.add_argument("--dtype", choices=OPERANDS, help="default: all")
    command.add_argument("--head-dim", type=int, help="default: those that are often asked for")
    command.add_argument("--group", type=int, default=1, help=GROUP_HELP)
    command.add_argument("--arch", choices=("sm_100a", "sm_103a"), help="default: both")
    command.set_defaults(run=show_capabilities)

    command = commands.add_parser("export", help="kernels for cute_fa4.aot.load; needs no GPU")
    export_command.add_options(command)

    command = commands.add_parser("export-kernel", help="one kernel of them, field by field")
    export_command.add_options_of_one(command)

    command = commands.add_parser("aot", help="list, verify, compare and show exported kernels")
    kernels_command.add_options(command)

    command = commands.add_parser("check", help="a few shapes against float64")
    command.add_argument("--head-dim", type=int, default=64, help="default: 64")
    command.add_argument("--dtype", choices=UNQUANTIZED, default="bf16", help="default: bf16")
    command.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where it runs, else cpu"
    )
    command.add_argument(
        "--load",
        nargs="?",
        const="",
        metavar="DIR",
        help="call every kernel of this directory, or of installed wheels (cute_fa4.aot.load), instead of a few "
        "shapes; default: compile",
    )
    command.add_argument(
        "--kernel", default="", metavar="TEXT", help="with --load: only these names; default: all"
    )
    command.add_argument(
        "--report",
        metavar="FILE",
        help="instead: the first run on a B200, stage by stage, written to this file; needs --device; default: off",
    )
    command.set_defaults(run=check)

    command = commands.add_parser(
        "bench",
        help="speed on a Blackwell GPU beside flash-attn-4, cuDNN and torch",
        description="TFLOPS, in decode GB/s. A wrong result has no speed. Exit status 2 without a suitable GPU.",
    )
    bench_command.add_options(command)
    command.set_defaults(run=bench_command.main)

    command = commands.add_parser(
        "tune",
        help="measure the choices between kernels on a Blackwell GPU, and write a tuning table",
        description="Exit status 1 after a wrong result, 2 without a suitable GPU.",
    )
    tune_command.add_options(command)
    command.set_defaults(run=tune_command.main)

    command = commands.add_parser(
        "hopper",
        help="run the kernels on a Hopper GPU, with tcgen05 in software: numbers and hangs, not speed",
    )
    hopper_command.add_options(command)
    return parser


def info(options) -> int:
    import platform

    from cute_fa4.aot import disk_cache, installed, manifest
    from cute_fa4.compiler import policy, toolkit

    rows = {
        "cute_fa4": manifest.versions()["cute_fa4"],
        "kernel sources": manifest.source_fingerprint(),
    }
    rows["python"] = f"{platform.python_version()} on {platform.machine()}"
    for name in ("torch", "apache-tvm-ffi", "nvidia-cutlass-dsl", "numpy"):
        rows[name] = manifest.version_of(name) or "not installed"
    rows["ptxas"] = toolkit.description()
    rows["devices"] = ", ".join(_devices())
    directory = disk_cache.usable_directory()
    rows["disk cache"] = "off, or not usable"
    if directory is not None:
        entries = disk_cache.entries(directory)
        used = sum(map(disk_cache.size_bytes, entries))
        rows["disk cache"] = f"{directory}: {len(entries)} kernels, {used / 1e6:.1f} MB"
    rows[policy.VARIABLE] = policy.policy()
    for name, value in rows.items():
        print(f"{name:20} {value}")
    conflict = installed.conflict()
    if conflict:
        print(conflict, file=sys.stderr)
    return int(conflict is not None)


def _devices() -> list[str]:
    import torch

    from cute_fa4.system.devices import refusal_of_compute_capability

    found = ["cpu (emulator)"]
    for i in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(i)
        runs = (
            "does not run: compute capability"
            if refusal_of_compute_capability(capability)
            else "runs:"
        )
        found.append(
            f"cuda:{i} {torch.cuda.get_device_name(i)} ({runs} {capability[0]}.{capability[1]})"
        )
    return found


def show_capabilities(options) -> int:
    from cute_fa4 import capabilities

    rows = capabilities(
        dtype=options.dtype, head_dim=options.head_dim, group=options.group, arch=options.arch
    )
    print(f"{'dtype':6} {'head dim':>8} {'causal':6} {'lse':5} {'arch':8} runs")
    for row in rows:
        verdict = "yes" if row.runs else "no: " + "; ".join(row.reasons)
        print(
            f"{row.dtype:6} {row.head_dim:8} {row.causal!s:6} {row.return_lse!s:5} {row.arch:8} {verdict}"
        )
    return 0


def first_run(options) -> int:
    from cute_fa4.readiness import command

    if options.load or options.device is None:
        raise ValueError(
            "--report runs every stage with kernels that are compiled now: give --device cuda (or cpu, a dry run on "
            "the emulator), and no --load"
        )
    return command.run(options.device, options.report)


def check(options) -> int:
    if options.report:
        return first_run(options)
    import torch

    from cute_fa4 import EmulatorWarning, aot, flash_attn_func
    from cute_fa4.reference import attention_float64
    from cute_fa4.system import progress
    from cute_fa4.system.devices import refusal_of_compute_capability

    device = options.device
    if device is None:
        usable = torch.cuda.is_available() and not refusal_of_compute_capability(
            torch.cuda.get_device_capability()
        )
        device = "cuda" if usable else "cpu"
    if options.load is not None:
        configs = aot.load(options.load or None)
        return check_loaded([c for c in configs if options.kernel in c.name], device)
    print(
        f"{'case':14} {'queries':>7} {'keys':>5} {'heads':>7} {'error':>9} {'allowed':>9} {'seconds':>8}"
    )
    generator, failed = torch.Generator().manual_seed(0), 0
    dtype, allowed = (
        DTYPES[options.dtype].torch,
        ALLOWED_ERROR[options.dtype],
    )
    with progress.bar(len(CHECKS), "check", "case") as step:
        for name, sizes, arguments in CHECKS:
            q, k, v = (
                torch.randn(
                    *(1, sizes[f"seqlen_{s}"], sizes[f"heads_{h}"], options.head_dim),
                    generator=generator,
                ).to(device, dtype)
                for s, h in (("q", "q"), ("k", "kv"), ("k", "kv"))
            )
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EmulatorWarning)
                out = flash_attn_func(q, k, v, **arguments).cpu().double()
            seconds = time.perf_counter() - begin
            exact, _ = attention_float64(q.cpu(), k.cpu(), v.cpu(), **arguments)
            error = (out - exact).abs().max().item()
            good = error <= allowed
            failed += not good
            progress.say(
                f"{name:14} {sizes['seqlen_q']:7} {sizes['seqlen_k']:5} {sizes['heads_q']:3}/{sizes['heads_kv']:<3} "
                f"{error:9.2e} {allowed:9.0e} {seconds:8.2f}{'' if good else '  WRONG'}"
            )
            step()
    print(
        f"{len(CHECKS) - failed} of {len(CHECKS)} agree with float64 on {device}{_checked(device)}"
    )
    return int(failed > 0)


def _checked(device: str) -> str:
    """The check level of the emulator's latest launch, for a report."""
    if device != "cpu":
        return ""
    from cute_fa4 import emulator

    return f", ordering checks at level {emulator.last_run().level}"


def check_loaded(configs: list, device: str) -> int:
    """Call each loaded kernel once; exit status 1 if one is wrong, or if none could be tried."""
    from cute_fa4.commands import trials
    from cute_fa4.system import progress

    executor = "emulator" if device == "cpu" else "cuda"
    print(trials.HEADER)
    verdicts = []
    with progress.bar(len(configs), "check", "kernel") as step:
        for config in configs:
            verdicts.append(trials.verdict(config, device, executor))
            progress.say(str(verdicts[-1]))
            step()
    tried = [verdict for verdict in verdicts if not verdict.not_tried]
    good = sum(verdict.good for verdict in tried)
    print(
        f"{good} of {len(tried)} kernels agree with float64 on {device}, {len(verdicts) - len(tried)} not tried"
        + (_checked(device) if tried else "")
    )
    return int(good < len(tried) or not tried)


if __name__ == "__main__":
    sys.exit(pipes.run(main))
