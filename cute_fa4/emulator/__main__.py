"""Look into the attention kernel while the emulator executes it.

python -m cute_fa4.emulator trace --head-dim 128 --causal --seqlen 512 --out trace.json --text --svg pipeline.svg
python -m cute_fa4.emulator coverage --head-dim 64 --seqlen 300
"""

import argparse
import sys
import warnings

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.emulator import coverage, trace, use
from cute_fa4.emulator.schedules import MODES
from cute_fa4.system import pipes


def arguments(argv):
    """The parsed command line; argparse exits with 2 for what it does not accept."""
    parser = argparse.ArgumentParser(
        prog="python -m cute_fa4.emulator", description=__doc__.split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    traced = commands.add_parser("trace", help="what every role did, and what it waited for")
    traced.add_argument(
        "--out",
        metavar="FILE",
        help="Chrome trace events for https://ui.perfetto.dev; default: not written",
    )
    traced.add_argument(
        "--text", action="store_true", help="print a timeline: columns are roles; default: off"
    )
    traced.add_argument(
        "--svg", metavar="FILE", help="write the timeline as a picture; default: not written"
    )
    covered = commands.add_parser("coverage", help="which PTX lines the call does not execute")
    covered.add_argument(
        "--limit", type=int, default=40, help="ranges of lines to print; default: 40"
    )
    for command in (traced, covered):
        command.add_argument("--head-dim", type=int, default=128, help="default: 128")
        command.add_argument("--causal", action="store_true", help="default: every key is seen")
        command.add_argument("--seqlen", type=int, default=512, help="queries; default: 512")
        command.add_argument("--seqlen-k", type=int, help="keys; default: as many as queries")
        command.add_argument("--heads", type=int, default=1, help="default: 1")
        command.add_argument("--mode", choices=MODES, default="in_order", help="default: in_order")
        command.add_argument("--seed", type=int, default=0, help="of the mode; default: 0")
    parsed = parser.parse_args(argv)
    if parsed.command == "trace" and not (parsed.out or parsed.text or parsed.svg):
        parser.error("trace: say what to write: --out FILE, --text, --svg FILE")
    return parsed


def attention(options):
    """One call of flash_attn_func on random numbers."""
    generator = torch.Generator().manual_seed(0)
    keys = options.seqlen if options.seqlen_k is None else options.seqlen_k
    q, k, v = (
        torch.randn(1, n, options.heads, options.head_dim, generator=generator).bfloat16()
        for n in (options.seqlen, keys, keys)
    )
    with warnings.catch_warnings(), use(mode=options.mode, seed=options.seed) as run:
        warnings.simplefilter("ignore")
        flash_attn_func(q, k, v, causal=options.causal)
    return run


def main(argv=None) -> int:
    """Run a command; returns the exit status."""
    options = arguments(argv)
    if options.command == "coverage":
        with coverage.collect() as covered:
            run = attention(options)
        print(covered.report(options.limit))
        print(f"ordering checks at level {run.level}")
        return 0
    with trace.record() as recording:
        run = attention(options)
    if options.text:
        print(recording.text())
    if options.out:
        recording.chrome(options.out)
        print(
            f"{options.out}: {len(recording.marks)} marks of {run.instructions:,} warp instructions, "
            f"ordering checks at level {run.level}"
        )
    if options.svg:
        recording.svg(options.svg)
        print(f"{options.svg}: written")
    return 0


if __name__ == "__main__":
    sys.exit(pipes.run(main))
