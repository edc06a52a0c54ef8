"""The command line of `python -m cute_fa4 bench`: options -> problems, refusal without a GPU, table, JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

# No further imports: `python -m cute_fa4 --help` loads neither torch nor the compiler.

HEAD_DIMS = (128,)
PREFILL_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
DECODE_LENGTHS = (1024, 4096, 16384)
# Prefill: the same number of tokens and model width at every length, as in FlashAttention's published tables.
TOKENS, MODEL_WIDTH = 32768, 2048
DECODE_BATCH, DECODE_HEADS, DECODE_HEADS_KV = 64, 32, 8
NO_SUITABLE_GPU = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    shapes = parser.add_argument_group("shapes; several values: every combination")
    shapes.add_argument(
        "--head-dim", type=_positive, nargs="+", default=HEAD_DIMS, metavar="D", help="default: 128"
    )
    shapes.add_argument(
        "--seqlen",
        type=_positive,
        nargs="+",
        metavar="S",
        help=f"keys, and queries too without --decode; default: {_words(PREFILL_LENGTHS)}, "
        f"with --decode {_words(DECODE_LENGTHS)}",
    )
    shapes.add_argument(
        "--causal",
        action=argparse.BooleanOptionalAction,
        help="default: both; with --decode or --window: causal",
    )
    shapes.add_argument(
        "--window", type=_count, metavar="W", help="see W keys before the own one; default: all"
    )
    shapes.add_argument("--decode", action="store_true", help="one query a sequence; default: off")
    shapes.add_argument(
        "--paged", type=_positive, default=0, metavar="P", help="pages of P keys; default: none"
    )
    shapes.add_argument(
        "--batch",
        type=_positive,
        help=f"default: {TOKENS} / S, at least 1; with --decode {DECODE_BATCH}",
    )
    shapes.add_argument(
        "--heads",
        type=_positive,
        help=f"query heads; default: {MODEL_WIDTH} / D, at least 1; with --decode {DECODE_HEADS}",
    )
    shapes.add_argument(
        "--heads-kv",
        type=_positive,
        help=f"default: as many as query heads; with --decode {DECODE_HEADS_KV}",
    )
    shapes.add_argument(
        "--dtype", choices=("bf16", "fp16"), nargs="+", default=["bf16"], help="default: bf16"
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        metavar="NAME",
        help="out of cute_fa4, flash-attn-4, frost, cudnn, torch-flash; default: all",
    )
    parser.add_argument("--repeats", type=_positive, default=50, help="default: 50")
    parser.add_argument("--json", metavar="FILE", help="also write everything; default: no file")


def problems(options) -> list:
    """The Problems that the options describe."""
    from cute_fa4.bench.problems import Problem

    lengths = options.seqlen or (DECODE_LENGTHS if options.decode else PREFILL_LENGTHS)
    causal: tuple[bool, ...] = (options.causal,)
    if options.causal is None:
        causal = (True,) if options.decode or options.window is not None else (False, True)
    found = []
    for dtype, head_dim, mask, length in itertools.product(
        options.dtype, options.head_dim, causal, lengths
    ):
        heads = DECODE_HEADS if options.decode else max(MODEL_WIDTH // head_dim, 1)
        heads = options.heads or heads
        found.append(
            Problem(
                batch=options.batch
                or (DECODE_BATCH if options.decode else max(TOKENS // length, 1)),
                seqlen_q=1 if options.decode else length,
                seqlen_k=length,
                heads_q=heads,
                heads_kv=options.heads_kv or (DECODE_HEADS_KV if options.decode else heads),
                head_dim=head_dim,
                causal=mask,
                window=options.window,
                page_size=options.paged,
                dtype=dtype,
            )
        )
    return found


def refusal() -> str | None:
    """Why this machine cannot measure, and what to do instead; None on a GPU that runs the kernel."""
    import torch

    from cute_fa4.system.devices import refusal_of_compute_capability

    why: str | None
    if not torch.cuda.is_available():
        why = f"torch {torch.__version__} finds no CUDA device"
    else:
        why = refusal_of_compute_capability(torch.cuda.get_device_capability())
    if why is None:
        return None
    return (
        f"bench: nothing is measured: {why}. The emulator's time says nothing about a GPU. Instead: "
        "`python -m cute_fa4 check` runs the kernel on the emulator and compares it with float64, and "
        "`python benchmarks/model.py` models its cycles from the machine code."
    )


def main(options, machine=None) -> int:
    """0: measured; 1: this package's results are wrong or failed; 2: no GPU that runs the kernel.

    machine: the device to measure; None: the current CUDA device.
    """
    if machine is None:
        why = refusal()
        if why is not None:
            print(why, file=sys.stderr)
            return NO_SUITABLE_GPU
    from cute_fa4.bench import report, timing
    from cute_fa4.bench.backends import BACKENDS, OURS
    from cute_fa4.bench.run import run
    from cute_fa4.system import progress

    asked, backends = problems(options), _chosen(options.backends, BACKENDS)
    machine = machine or timing.CudaMachine()
    description = machine.describe()
    print("\n".join(report.header(description)))
    with progress.bar(len(asked) * len(backends), "bench", "measurement") as step:
        results = run(
            asked, backends, machine, repeats=options.repeats, finished=lambda result: step()
        )
    print("\n".join(report.lines(results)))
    if options.json:
        data = report.as_data(results, description, options.repeats)
        Path(options.json).write_text(json.dumps(data, indent=1) + "\n")
    return int(any(r.backend == OURS and r.status in ("wrong", "failed") for r in results))


def _chosen(names, backends: dict) -> dict:
    unknown = [name for name in names or () if name not in backends]
    if unknown:
        raise ValueError(f"--backends: {_words(unknown)}; accepted: {_words(backends)}")
    return {name: backends[name] for name in names or backends}


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}; accepted: a number of at least 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}; accepted: a number of at least 0")
    return value


def _words(values) -> str:
    return ", ".join(map(str, values))
