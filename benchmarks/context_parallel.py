"""Attention over several GPUs: the communication time that attention does not hide. Needs GPUs and NCCL.

    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --report rows.json
    torchrun --nproc-per-node 2 benchmarks/context_parallel.py --kernels DIR    this package's, rewritten for Hopper
    python benchmarks/context_parallel.py --table rows.json                     the table of docs/distributed.md
    python benchmarks/context_parallel.py --build DIR                           the kernels for --kernels; needs no GPU

torch's FlashAttention computes instead of the kernel (backend="sdpa"): bf16, causal, zigzag, 32 query heads and 8
key/value heads of 128, batch 1. For each layout and number of tokens, all of it in milliseconds:

whole       a call: context_parallel_attention with check="first"
attention   the same call without sending; received memory is uninitialized
messages    the same call without computing
exposed     whole - attention: communication that attention does not hide
one GPU     all tokens on one GPU, without this package

A time is the median of the repeats between CUDA events, on the slowest rank. Results are compared with those of one
GPU, row by row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from cute_fa4.distributed import (
    context_parallel_attention,
    decode_attention,
    local_lengths,
    shard,
    transport,
)
from cute_fa4.distributed.backends import TorchAttention
from cute_fa4.distributed.geometry import Band, Call

HEADS_Q, HEADS_KV, DEPTH = 32, 8, 128
LAYOUTS = ("ring", "all_gather", "all_to_all")
TOKENS = tuple(1024 * n for n in (8, 16, 32, 64, 128, 256))
COLUMNS = ("whole", "attention", "messages", "exposed", "one GPU")


class Idle(TorchAttention):
    """Computes nothing: results are uninitialized memory of the right shapes."""

    def attention(self, q, k, v, call, scale, softcap):
        rows = q.shape[:-1] if q.dim() == 3 else q.shape[1:-1]
        batch = () if q.dim() == 3 else q.shape[:1]
        lse = q.new_empty((*batch, rows[1], rows[0]), dtype=torch.float32)
        return q.new_empty(q.shape, dtype=torch.float32), lse

    def merge(self, outs, lses):
        pass

    def decode(self, q, cache, options, softcap):
        lse = q.new_zeros((*q.shape[:-3], q.shape[-2], q.shape[-3]), dtype=torch.float32)
        return q.new_zeros(q.shape, dtype=torch.float32), lse


@contextlib.contextmanager
def nothing_sent():
    """Inside, a message is uninitialized memory of its size."""

    def exchange(ranks, tensor, step, what):
        received = torch.empty_like(tensor)
        return lambda: received

    def all_gather(ranks, tensor, what, into=None):
        every = tensor.new_empty((ranks.size, *tensor.shape)) if into is None else into
        return lambda: every

    def all_to_all(ranks, tensor, what, into=None):
        received = torch.empty_like(tensor) if into is None else into
        return lambda: received

    kept = transport.exchange, transport.all_gather, transport.all_to_all
    transport.exchange, transport.all_gather, transport.all_to_all = (
        exchange,
        all_gather,
        all_to_all,
    )
    try:
        yield
    finally:
        transport.exchange, transport.all_gather, transport.all_to_all = kept


def milliseconds(function, repeats: int) -> float:
    """Median time of a call on the slowest rank."""
    for _ in range(2):
        function()
    found = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    slowest = torch.tensor(statistics.median(found))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def random_tensors(tokens: int) -> list[torch.Tensor]:
    """q, k and v of all tokens, the same on every rank."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [
        torch.randn(
            1, tokens, heads, DEPTH, dtype=torch.bfloat16, device="cuda", generator=generator
        )
        for heads in (HEADS_Q, HEADS_KV, HEADS_KV)
    ]


def on_one_gpu(q, k, v) -> tuple:
    call = Call(0, q.shape[1], 0, k.shape[1], Band(None, 0))
    return TorchAttention().attention(q, k, v, call, DEPTH**-0.5, 0.0)


def beside_one_gpu(tokens: int, repeats: int) -> tuple:
    """This rank's rows of q, k and v, of the results of one GPU, and its milliseconds."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = random_tensors(tokens)
    out, lse = on_one_gpu(*whole)
    results = shard(out, rank, ranks), shard(lse, rank, ranks, dim=2)
    one = milliseconds(lambda: on_one_gpu(*whole), repeats)
    return [shard(x, rank, ranks) for x in whole], results, one


def measured(tokens: int, repeats: int) -> list[dict]:
    mine, (expected, expected_lse), one = beside_one_gpu(tokens, max(2, repeats // 4))
    rows = []
    for layout in LAYOUTS:

        def call(backend="sdpa", layout=layout):
            return context_parallel_attention(
                *mine, layout=layout, causal=True, return_lse=True, check="first", backend=backend
            )

        out, lse = call()
        row = {
            "tokens": tokens,
            "layout": layout,
            "error": float((out.float() - expected).abs().max()),
            "lse_error": float((lse - expected_lse).abs().max()),
            "whole": milliseconds(call, repeats),
        }
        with transport.counting() as counter:
            row["messages"] = milliseconds(lambda: call(IDLE), repeats)
        row["megabytes"] = counter.sent / (repeats + 2) / 1e6
        with nothing_sent():
            row["attention"] = milliseconds(call, repeats)
        row["exposed"], row["one GPU"] = row["whole"] - row["attention"], one
        rows.append(row)
        say(row)
    return rows


IDLE = Idle()


def link(megabytes: int = 256) -> float:
    """GB/s in one direction, while both directions are used: a ring message."""
    from cute_fa4.distributed.groups import ranks_of

    tensor = torch.empty(megabytes << 20, dtype=torch.uint8, device="cuda")
    once = lambda: transport.exchange(ranks_of(None), tensor, 1, "a message")()
    return tensor.nbytes / milliseconds(once, 20) / 1e6


def agreement() -> dict:
    """Microseconds on the host that check="always" adds to a small call, by the transport of the messages."""
    words = {"gloo": None, "nccl": dist.new_group(backend="nccl")}
    mine = [x[:, :256].contiguous() for x in random_tensors(512)]
    found = {}
    for name, group in words.items():
        for check in ("first", "always"):

            def call(group=group, check=check):
                context_parallel_attention(
                    *mine, group=group, causal=True, check=check, backend=IDLE
                )

            for _ in range(3):
                call()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                call()
            torch.cuda.synchronize()
            found[f"{name} {check}"] = (time.perf_counter() - begin) / 50 * 1e6
    return found


# --- decode


def cache(batch: int, keys: int, interleave: int) -> tuple:
    """This rank's keys of a batch, and all keys: a random permutation of rows."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator("cuda").manual_seed(1)
    q = torch.randn(batch, 1, HEADS_Q, DEPTH, device="cuda", generator=generator).bfloat16()
    k, v = (
        torch.randn(batch, keys, HEADS_KV, DEPTH, device="cuda", generator=generator).bfloat16()
        for _ in range(2)
    )
    p = torch.arange(keys, device="cuda")
    here = p // interleave % ranks == rank
    return q, k, v, k[:, here].contiguous(), v[:, here].contiguous()


def decoded(batch: int, keys: int, repeats: int, wire) -> dict:
    """Communication of a decode step, called and replayed from a graph; the result against one GPU."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    q, k, v, mine_k, mine_v = cache(batch, keys, 64)
    lengths = torch.randint(1, keys, (batch,), device="cuda", dtype=torch.int32)
    dist.broadcast(lengths, 0)
    heads = HEADS_Q // ranks
    own = q[:, :, rank * heads : (rank + 1) * heads].contiguous()

    def call(backend="sdpa"):
        options = dict(interleave=64, check="first", wire_dtype=wire, backend=backend)
        return decode_attention(own, mine_k, mine_v, lengths, **options)

    out = call()
    exact = reference(q, k, v, lengths)[:, :, rank * heads : (rank + 1) * heads]
    used = local_lengths(lengths, rank, ranks, 64)
    assert int(used.max()) <= mine_k.shape[1]
    graph = torch.cuda.CUDAGraph()
    call(IDLE)
    with torch.cuda.graph(graph):
        replayed = call()
    idle = torch.cuda.CUDAGraph()
    with torch.cuda.graph(idle):
        call(IDLE)
    graph.replay()
    row = {
        "batch": batch,
        "keys": keys,
        "wire": str(wire),
        "error": float((out.float() - exact).abs().max()),
        "replay_is_call": bool(torch.equal(replayed, out)),
        "messages_called": milliseconds(lambda: call(IDLE), repeats),
        "messages_replayed": milliseconds(idle.replay, repeats),
    }
    say(row)
    return row


def reference(q, k, v, lengths) -> torch.Tensor:
    group = HEADS_Q // HEADS_KV
    k, v = (x.float().repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bmhd,bnhd->bhmn", q.float(), k) * DEPTH**-0.5
    hidden = torch.arange(k.shape[1], device="cuda") >= lengths[:, None]
    p = torch.softmax(scores.masked_fill(hidden[:, None, None], -torch.inf), -1)
    return torch.einsum("bhmn,bnhd->bmhd", p, v)


# --- this package's kernels, rewritten for Hopper


def with_kernels(directory: str) -> list[dict]:
    """Small problems by the kernel, against float64."""
    from cute_fa4.hopper import load
    from cute_fa4.reference import attention_float64

    load.load(directory)
    rank, ranks, rows = dist.get_rank(), dist.get_world_size(), []
    for layout in LAYOUTS:
        for tokens in (256, 1536):
            whole = random_tensors(tokens)
            mine = [shard(x, rank, ranks) for x in whole]
            begin = time.perf_counter()
            out, lse = context_parallel_attention(
                *mine, layout=layout, causal=True, return_lse=True
            )
            torch.cuda.synchronize()
            exact, exact_lse = (
                shard(x, rank, ranks, dim=dim)
                for x, dim in zip(attention_float64(*whole, causal=True), (1, 2), strict=True)
            )
            rows.append(
                {
                    "layout": layout,
                    "tokens": tokens,
                    "error": float((out.double() - exact).abs().max()),
                    "lse_error": float((lse - exact_lse).abs().max()),
                    "seconds": time.perf_counter() - begin,
                }
            )
            say(rows[-1])
    q, k, v, mine_k, mine_v = cache(4, 512, 64)
    lengths = torch.tensor([512, 1, 65, 300], device="cuda", dtype=torch.int32)
    heads = HEADS_Q // ranks
    own = q[:, :, rank * heads : (rank + 1) * heads].contiguous()
    out = decode_attention(own, mine_k, mine_v, lengths, interleave=64, num_splits=1)
    exact = reference(q, k, v, lengths)[:, :, rank * heads : (rank + 1) * heads]
    rows.append(
        {"layout": "decode", "tokens": 512, "error": float((out.float() - exact).abs().max())}
    )
    say(rows[-1])
    return rows


def kernels():
    """The configurations that with_kernels calls."""
    from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
    from cute_fa4.sm100.combine.config import CombineConfig

    whole = dict(qkv_dtype="bf16", head_dim=DEPTH, group=HEADS_Q // HEADS_KV)
    calls = [
        *(dict(causal=c, pack_gqa=p) for c in (False, True) for p in (False, True)),
        dict(seqused_k=True, pack_gqa=True),
    ]
    return [
        *(split_configs(choose_config(**whole, **call), True)[0] for call in calls),
        CombineConfig("f32", DEPTH, write_lse=True),
        CombineConfig("bf16", DEPTH, write_lse=True),
    ]


# --- reports


def say(row: dict) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)


def table(report: dict) -> str:
    """Rows of a report as the table of docs/distributed.md."""
    lines = [
        "| tokens | layout | sent, MB | " + " | ".join(f"{c}, ms" for c in COLUMNS) + " | error |",
        "|---|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]
    for row in report["rows"]:
        numbers = " | ".join(f"{row[c]:.2f}" for c in COLUMNS)
        lines.append(
            f"| {row['tokens'] // 1024}K | `{row['layout']}` | {row['megabytes']:.1f} | {numbers} "
            f"| {row['error']:.1e} |"
        )
    return "\n".join(lines)


def decode_table(report: dict) -> str:
    """Decode steps of a report."""
    lines = [
        "| batch | partial results sent as | messages, called, ms | replayed, ms | replay = call | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["decode"]:
        same = "yes" if row["replay_is_call"] else "no"
        lines.append(
            f"| {row['batch']} | {row['wire'].removeprefix('torch.')} | {row['messages_called']:.2f} "
            f"| {row['messages_replayed']:.2f} | {same} | {row['error']:.1e} |"
        )
    return "\n".join(lines)


FLOPS = 1e15  # a second and GPU, of attention: assumed, none has been measured
LINKS = {"NVLink": 900e9, "InfiniBand": 50e9}  # bytes a second, GPU and direction


def paper() -> str:
    """The least rows per GPU for which a ring hides its messages, and the total, for several group sizes."""
    from cute_fa4.distributed.volume import rows_that_hide_a_hop

    lines = [
        "| link, GB/s per direction | query heads per key/value head | rows per GPU "
        "| tokens on 8 | on 64 | on 512 GPUs |",
        "|---|---|---|---|---|---|",
    ]
    for name, rate in LINKS.items():
        for group in (1, 4, 8):
            rows = rows_that_hide_a_hop(FLOPS, rate, group)
            total = " | ".join(f"{rows * n / 1000:,.0f}K" for n in (8, 64, 512))
            lines.append(f"| {name}, {rate / 1e9:.0f} | {group} | {rows:,} | {total} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--report")
    parser.add_argument(
        "--kernels", metavar="DIR", help="kernels of `hopper build`; only these are run"
    )
    parser.add_argument("--build", metavar="DIR", help="build these kernels; needs no GPU")
    parser.add_argument("--table", metavar="FILE", help="print the table of a report; needs no GPU")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if options.build:
        from cute_fa4.hopper import build

        print(build.build(kernels(), options.build))
        return
    if options.table:
        print(table(json.loads(Path(options.table).read_text())))
        return
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    report = {
        "device": torch.cuda.get_device_name(),
        "ranks": dist.get_world_size(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "date": time.strftime("%Y-%m-%d"),
    }
    if options.kernels:
        report["kernels"] = with_kernels(options.kernels)
    else:
        report["GB/s"] = link()
        report["rows"] = [row for n in options.tokens for row in measured(n, options.repeats)]
        report["decode"] = [
            decoded(batch, 4096, options.repeats, wire)
            for batch in (1, 64)
            for wire in (torch.float32, torch.bfloat16)
        ]
        report["agreement, us"] = agreement()
    if dist.get_rank() == 0:
        print(json.dumps({k: v for k, v in report.items() if k not in ("rows", "decode")}))
        if options.report:
            Path(options.report).write_text(json.dumps(report, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
