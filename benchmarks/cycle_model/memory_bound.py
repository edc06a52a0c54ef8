"""Memory-bound attention compared with a stream of the same bytes, measured; nothing of this project runs.

    python benchmarks/cycle_model/memory_bound.py         the table, of memory_bound_h200.json
    python benchmarks/cycle_model/memory_bound.py measure on a machine with a GPU and torch: prints that file

The problems are sequences of 128 queries and keys, 16 heads of 128, bf16, for which cuDNN's attention takes hardly
longer than its bytes. The stream is addcmul, which also reads three such tensors and writes one. Each is timed in a
CUDA graph of many, and between two events after other work, which waits, or writes 256 MiB of zeros, so that L2
must write them back.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

FILE = Path(__file__).with_name("memory_bound_h200.json")
TOKENS = (8192, 32768, 131072)
KEYS, HEADS, DEPTH = 128, 16, 128
TENSORS = 4  # Q, K and V, and O
LAUNCHES, REPETITIONS, WARM_UP = 50, 5, 20
ZEROS = 256 << 20
SPIN_CYCLES = 400_000  # longer than it takes to ask for a launch

WAYS = ("graph", "events", "events after zeros")
KINDS = ("nothing", "stream", "attention")


def bytes_of(tokens: int) -> int:
    """Bytes of 16-bit Q, K, V and O."""
    return 2 * TENSORS * tokens * HEADS * DEPTH


def measure() -> dict:
    """Microseconds of every launch, by tokens, kind and way, and the GPU's name."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(0)
    small = torch.zeros(1, device="cuda")
    rows = [["nothing", 0, _ways(lambda: small.add_(1))]]
    for tokens in TOKENS:
        shape = tokens // KEYS, HEADS, KEYS, DEPTH
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        out = torch.empty_like(q)
        rows.append(
            ["stream", tokens, _ways(lambda q=q, k=k, v=v, o=out: torch.addcmul(q, k, v, out=o))]
        )
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            rows.append(["attention", tokens, _ways(lambda q=q, k=k, v=v: attention(q, k, v))])
    return {
        "gpu": torch.cuda.get_device_name(0),
        "date": time.strftime("%Y-%m-%d"),
        "columns": ["kind", "tokens", "microseconds: " + ", ".join(WAYS)],
        "rows": rows,
    }


def _ways(launch: Callable[[], object]) -> list[float]:
    import torch

    zeros = torch.empty(ZEROS, dtype=torch.int8, device="cuda")
    before = (lambda: torch.cuda._sleep(SPIN_CYCLES), zeros.zero_)
    return [
        round(us, 1)
        for us in (_in_graph(launch), *(_between_events(launch, work) for work in before))
    ]


def _in_graph(launch: Callable[[], object]) -> float:
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            launch()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    graph.replay()
    return statistics.median(_elapsed(graph.replay) for _ in range(REPETITIONS)) / LAUNCHES


def _elapsed(work: Callable[[], object]) -> float:
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) * 1e3


def _between_events(launch: Callable[[], object], before: Callable[[], object]) -> float:
    import torch

    for _ in range(WARM_UP):
        launch()
    pairs = []
    for _ in range(LAUNCHES):
        before()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        launch()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in pairs) * 1e3


def measured() -> dict[tuple[str, int], dict[str, float]]:
    """(kind, tokens) -> way -> microseconds."""
    rows = json.loads(FILE.read_text())["rows"]
    return {(kind, tokens): dict(zip(WAYS, us, strict=True)) for kind, tokens, us in rows}


def table() -> str:
    """Times of attention and of the stream for each method, and the rate of the bytes."""
    found, data = measured(), json.loads(FILE.read_text())
    lines = [
        "| MB | "
        + " | ".join(f"{kind}, {way}" for way in WAYS for kind in KINDS[1:])
        + " | more than the stream |",
        "|---|" + "---|" * (2 * len(WAYS) + 1),
    ]
    for tokens in TOKENS:
        cells = [f"{found[kind, tokens][way]:.1f}" for way in WAYS for kind in KINDS[1:]]
        more = [found["attention", tokens][way] - found["stream", tokens][way] for way in WAYS]
        cells.append(f"{min(more):.1f} to {max(more):.1f}")
        lines.append(f"| {bytes_of(tokens) / 1e6:.0f} | " + " | ".join(cells) + " |")
    nothing = ", ".join(f"{way} {us:.1f}" for way, us in found["nothing", 0].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Microseconds, measured on an {data['gpu']}, {data['date']}. A launch of one addition: {nothing}.",
        ]
    )


if __name__ == "__main__":
    print(json.dumps(measure()) if sys.argv[1:] == ["measure"] else table())
