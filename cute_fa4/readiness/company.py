"""Concurrency: two streams, a captured graph, and another kernel that needs the same tensor memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.readiness.stage import Context, Stage, error_of, require, same_bits


def problem(context: Context, seed: int):
    batch, length, heads = context.size((2, 1500, 8), (1, 130, 1))
    return [context.random(batch, length, heads, 64, seed=3 * seed + i) for i in range(3)]


def differing(context: Context, streams, call, expected, rounds: int) -> list:
    """Failures when threads make call(0), call(1), ... concurrently, one per stream: errors, and their numbers.

    streams   None is torch's default stream, which every thread uses if it sets none
    expected  what each call must return, bit for bit
    """
    failures: list = []

    def work(n: int, stream) -> None:
        try:
            with torch.cuda.stream(stream):
                outs = [call(n) for _ in range(rounds)]
                if context.on_gpu:
                    torch.cuda.current_stream().synchronize()
            failures.extend(n for out in outs if not same_bits(out, expected[n]))
        except Exception as error:  # raised in a thread: reported by the stage
            failures.append(error)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def own_streams(context: Context) -> list:
    return [torch.cuda.Stream() if context.on_gpu else None for _ in range(2)]


def two_streams(context: Context) -> dict:
    """Two problems at once, each on a separate stream; on the emulator two threads."""
    problems = [problem(context, seed) for seed in range(2)]

    def call(n: int):
        return flash_attn_func(*problems[n], causal=True)

    expected, rounds = [call(n) for n in range(2)], context.size(200, 1)
    context.synchronize()
    failures = differing(context, own_streams(context), call, expected, rounds)
    require(not failures, f"{len(failures)} launches failed or differ, the first: {failures[:1]}")
    return {"launches": 2 * rounds}


def captured(context: Context, call) -> Callable[[], None]:
    """A function that replays a captured call; without graphs (emulator) it calls again."""
    if not context.on_gpu:
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()  # compiles before the capture
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        call()
    return recorded.replay


def graph(context: Context) -> dict:
    """A captured call, replayed with other inputs."""
    q, k, v = problem(context, 0)
    out = torch.empty_like(q)
    replay = captured(context, lambda: flash_attn_func(q, k, v, causal=True, out=out))
    worst, replays = 0.0, context.size(20, 2)
    for seed in range(1, 1 + replays):
        for old, new in zip((q, k, v), problem(context, seed), strict=True):
            old.copy_(new)
        out.fill_(float("nan"))
        replay()
        context.synchronize()
        worst = max(worst, error_of(out, q, k, v, f"replay {seed}", causal=True))
    return {"replays": replays, "error": worst}


def split_keys(context: Context) -> dict:
    """Partial results of two problems at once: threads on the default stream, and two replayed graphs."""
    problems = [problem(context, seed) for seed in range(2)]
    outs = [torch.empty_like(q) for q, _, _ in problems]

    def call(n: int, out=None):
        return flash_attn_func(*problems[n], causal=True, num_splits=3, out=out)

    expected, rounds = [call(n) for n in range(2)], context.size(200, 1)
    errors = [
        error_of(out, q, k, v, "split keys", causal=True)
        for out, (q, k, v) in zip(expected, problems, strict=True)
    ]
    failures = differing(context, (None, None), call, expected, rounds)
    require(not failures, f"two threads: {len(failures)} calls failed or differ: {failures[:1]}")
    replays = [captured(context, lambda n=n: call(n, outs[n])) for n in range(2)]
    streams = own_streams(context)
    for out in outs:
        out.fill_(float("nan"))
    context.synchronize()
    for _ in range(rounds):
        for stream, replay in zip(streams, replays, strict=True):
            with torch.cuda.stream(stream):
                replay()
    context.synchronize()
    for n, out in enumerate(outs):
        require(same_bits(out, expected[n]), f"graph {n} of two that were replayed at once differs")
    return {"calls": 2 * rounds, "replays": 2 * rounds, "error": max(errors)}


def co_residency(context: Context) -> dict:
    """Attention concurrent with a kernel that repeatedly allocates all of tensor memory, and with a matrix product."""
    from cute_fa4.readiness import probes

    q, k, v = problem(context, 0)
    expected = flash_attn_func(q, k, v)
    blocks, rounds = context.size((296, 2000), (2, 3))
    out = torch.empty(blocks * 32, dtype=torch.float32, device=context.device)
    neighbour = probes.neighbour_function(context.device, context.arch)
    a = context.random(context.size(4096, 16), context.size(4096, 16))
    context.synchronize()
    if context.on_gpu:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            neighbour(out, rounds)
            a @ a
    else:
        neighbour(out, rounds)
    launches = context.size(200, 1)
    outs = [flash_attn_func(q, k, v) for _ in range(launches)]
    context.synchronize()
    wrong = sum(not same_bits(other, expected) for other in outs)
    require(wrong == 0, f"{wrong} of {launches} launches differ beside another kernel")
    right = probes.expected_of_neighbour(blocks, rounds, context.device)
    # Sums of many rounds are rounded; values of another CTA would be off by whole numbers per round.
    require(
        torch.allclose(out, right, rtol=1e-4),
        "the neighbour's tensor memory was changed, or its sums are wrong",
    )
    return {"launches": launches, "neighbours": blocks}


STAGES = (
    Stage(
        "two streams",
        "are two problems right that run at the same time?",
        two_streams,
        "state that launches share: calls/launch.py, calls/repeat.py",
    ),
    Stage(
        "graph",
        "is a captured call right when it is replayed with other inputs?",
        graph,
        "what the host reads or allocates during a capture (docs/torch.md)",
    ),
    Stage(
        "split keys",
        "are split calls right in two threads on one stream, and in two graphs that are replayed at once?",
        split_keys,
        "calls/split_keys/workspace.py: memory of partial results; docs/torch.md has the rules of captures",
    ),
    Stage(
        "co-residency",
        "is attention right beside a kernel that takes all of tensor memory?",
        co_residency,
        "sm100/kernel.py: tcgen05.alloc waits for the neighbour; relinquish_alloc_permit",
        seconds=300,
    ),
)
