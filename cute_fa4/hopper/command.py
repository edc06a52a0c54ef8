"""The command line of `python -m cute_fa4 hopper`: build, check, driver, report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# No further imports: `python -m cute_fa4 --help` loads neither torch nor the compiler.

NO_SUITABLE_GPU = 2
AMOUNTS = ("quick", "most", "all")
AMOUNT_HELP = (
    "quick: a few problems a variant; most: the table's; all: long sequences too; default: most"
)


def add_options(command: argparse.ArgumentParser) -> None:
    steps = command.add_subparsers(required=True, metavar="step")
    step = steps.add_parser("build", help="rewrite and assemble the kernels; needs nvcc, no GPU")
    step.add_argument("--out", required=True, metavar="DIR", help="created; there is no default")
    step.add_argument("--amount", choices=AMOUNTS, default="most", help=AMOUNT_HELP)
    step.add_argument(
        "--flash-attn-4",
        action="store_true",
        help="its kernels too (extra compare); default: ours alone",
    )
    add_only(step)
    step.set_defaults(run=build)
    step = steps.add_parser("check", help="run what was built; needs the GPU and no compiler")
    step.add_argument("directory", metavar="DIR", help="written by hopper build")
    step.add_argument("--amount", choices=AMOUNTS, default="most", help=AMOUNT_HELP)
    step.add_argument("--report", metavar="FILE", help="results as JSON; default: none")
    step.add_argument(
        "--share", default="1/1", metavar="I/N", help="part I of N of the variants; default: 1/1"
    )
    add_only(step)
    step.add_argument(
        "--patience",
        type=float,
        default=120,
        metavar="S",
        help="seconds until a launch counts as hanging; default: 120",
    )
    step.set_defaults(run=check)
    step = steps.add_parser("driver", help="the host library of exported kernels on a real driver")
    step.add_argument("directory", metavar="DIR", help="written by hopper build")
    step.add_argument("--report", metavar="FILE", help="results as JSON; default: none")
    step.set_defaults(run=driver)
    step = steps.add_parser("report", help="results -> tables")
    step.add_argument("results", nargs="+", metavar="FILE", help="written with --report")
    step.add_argument(
        "--add", metavar="DATA", help="append the run to this data file; default: print its tables"
    )
    step.set_defaults(run=report)


def add_only(step: argparse.ArgumentParser) -> None:
    step.add_argument(
        *("--only", "-k"),
        action="append",
        metavar="TEXT",
        help='variants with this in "d=128 bf16 causal, pages of 16", or "gradients"; may be repeated; default: all',
    )


def build(options) -> int:
    import subprocess
    import time

    from cute_fa4.aot import manifest
    from cute_fa4.hopper import build as builder
    from cute_fa4.hopper import gradients
    from cute_fa4.hopper.calls import configurations
    from cute_fa4.hopper.cases import selected
    from cute_fa4.system import progress

    begin, out = time.perf_counter(), Path(options.out)
    variants, of_gradients = selected(options.only)
    further = [gradients.call(problem, "cpu").launch for problem in of_gradients]
    configs = configurations(variants, options.amount, further)
    with progress.bar(len(configs), "building", "kernel") as advance:

        def say(done: int, total: int, name: str) -> None:
            if done:
                advance()
            if done < total:
                progress.say(f"[{done + 1}/{total}] {name}")

        builder.build(configs, out, progress=say)
    number = len(configs)
    if options.flash_attn_4:
        command = [sys.executable, "-m", "cute_fa4.hopper.foreign", str(out)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        records = json.loads(done.stdout.strip().splitlines()[-1])
        builder.write_manifest(out, manifest.read_manifest(out)["kernels"] + records)
        number += len(records)
    number += export_append(out)
    print(f"{number} kernels in {out}, {time.perf_counter() - begin:.1f} s")
    return 0


def export_append(out: Path) -> int:
    """Build the kernels of `hopper driver`; returns their number."""
    from cute_fa4 import aot
    from cute_fa4.hopper import driver_calls

    aot.export(driver_calls.configs(), out / driver_calls.FOLDER)
    return len(driver_calls.configs())


def check(options) -> int:
    import time

    from cute_fa4.hopper.run import run

    if not on_hopper():
        return NO_SUITABLE_GPU
    part, parts = map(int, options.share.split("/"))
    begin = time.perf_counter()
    result = run(
        options.directory,
        options.amount,
        part=part,
        parts=parts,
        only=options.only,
        patience=options.patience,
        report=options.report,
    )
    seconds = time.perf_counter() - begin
    problems = len(result["rows"]) + len(result["gradients"])
    print(f"{problems} problems, {len(result['failures'])} failures, {seconds:.0f} s")
    return int(bool(result["failures"]))


def driver(options) -> int:
    from cute_fa4.hopper import driver
    from cute_fa4.hopper.run import about

    if not on_hopper():
        return NO_SUITABLE_GPU
    rows = driver.run(options.directory)
    print(driver.table(rows))
    if options.report:
        text = json.dumps({**about(options.directory), "driver_cases": rows}, indent=1)
        Path(options.report).write_text(text)
    return int(not all(row["ok"] for row in rows))


def on_hopper() -> bool:
    import torch

    from cute_fa4.hopper import load

    if torch.cuda.is_available() and torch.cuda.get_device_capability() == load.HOPPER:
        return True
    text = "no Hopper GPU is there (compute capability 9.0); accepted: H100, H200, GH200"
    print(text, file=sys.stderr)
    return False


def report(options) -> int:
    from cute_fa4.hopper import report as reporter

    run = reporter.record(reporter.read(options.results))
    if options.add:
        reporter.add(Path(options.add), run)
    else:
        print(reporter.tables(run))
    return 0
