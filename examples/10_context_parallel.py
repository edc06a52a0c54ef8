"""Attention of one sequence over several processes, and decode from a cache that is distributed over them.

    torchrun --nproc-per-node 2 examples/10_context_parallel.py                   on CPUs: gloo, the emulator
    torchrun --nproc-per-node 8 examples/10_context_parallel.py --device cuda     on B200s: NCCL

Each rank has some of the tokens. For each layout it prints the error of its rows against float64 attention over all
tokens. Then comes a decode step: every rank has the keys of its own pages, and all ranks get the result.
"""

import argparse
import os
import warnings

import torch
import torch.distributed as dist

import cute_fa4
from cute_fa4.distributed import (
    RankError,
    context_parallel_attention,
    decode_attention,
    local_lengths,
    shard,
)
from cute_fa4.reference import attention_float64, max_error

DEPTH, PAGE = 64, 16


def tokens_of_all(rows: int, device: str) -> list[torch.Tensor]:
    """q, k and v, the same on every rank; a model would compute only its own rows."""
    generator = torch.Generator().manual_seed(0)
    heads = max(2, dist.get_world_size())  # all_to_all gives each rank at least one
    shape = (1, rows, heads, DEPTH)
    return [torch.randn(shape, generator=generator).bfloat16().to(device) for _ in range(3)]


def prefill(rank: int, ranks: int, rows: int, device: str) -> None:
    """The three layouts."""
    whole = tokens_of_all(rows, device)
    exact, _ = attention_float64(*whole, causal=True)
    for layout in ("ring", "all_gather", "all_to_all"):
        mine = [shard(x, rank, ranks) for x in whole]  # a piece from the front, one from the end
        out = context_parallel_attention(*mine, causal=True, layout=layout)
        error = max_error(out, shard(exact, rank, ranks))
        print(f"rank {rank} of {ranks}: {layout}, {out.shape[1]} of {rows} rows, error {error:.1e}")
        assert error < 0.02


def decode(rank: int, ranks: int, rows: int, device: str) -> None:
    """One query over a cache of which this rank has every ranks-th page."""
    q, k, v = tokens_of_all(rows, device)
    query = q[:, -1:]
    here = torch.arange(rows) // PAGE % ranks == rank
    lengths = torch.tensor([rows], dtype=torch.int32, device=device)
    mine = [x[:, here].contiguous() for x in (k, v)]
    if not here.any():
        mine = [x[:, :PAGE] for x in (k, v)]  # unused rows
    out = decode_attention(query, *mine, lengths, interleave=PAGE, heads="all")
    exact, _ = attention_float64(query, k, v, causal=True)
    keys = int(local_lengths(lengths, rank, ranks, PAGE))
    print(
        f"rank {rank} of {ranks}: decode, {keys} of {rows} keys, error {max_error(out, exact):.1e}"
    )
    assert max_error(out, exact) < 0.02


def refused(rank: int, device: str) -> None:
    """Rank 0 passes a different mask: an error on all ranks, before any data is sent."""
    q = torch.zeros(1, 4, 2, DEPTH, dtype=torch.bfloat16, device=device)
    try:
        context_parallel_attention(q, q, q, causal=rank == 0)
    except RankError as error:
        print(f"rank {rank}: refused: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=48, help="tokens of all ranks together")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(
            "start it with torchrun: torchrun --nproc-per-node 2 examples/10_context_parallel.py"
        )
    warnings.simplefilter("ignore", cute_fa4.EmulatorWarning)
    dist.init_process_group("gloo" if options.device == "cpu" else "cpu:gloo,cuda:nccl")
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    prefill(rank, ranks, options.rows, options.device)
    decode(rank, ranks, options.rows, options.device)
    if ranks > 1:
        refused(rank, options.device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
