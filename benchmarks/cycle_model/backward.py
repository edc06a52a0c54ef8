"""The loops of the backward pass in the cycle model: cute_fa4's two kernels, and flash-attn-4's.

    python -m benchmarks.cycle_model.backward

Cycles of a tile of 128 x 128 scores in the steady state, without a mask. A CTA of ours has 128 queries or 128 keys, and
passes the tiles of the other side; of theirs, a pair of CTAs has 256 keys, and passes the queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.emulator.model.report import Profiles, profiling

ROWS = 128
TURNS = 8, 16  # of the loop; what the second adds is the steady state
DEPTHS = (64, 64), (128, 128), (192, 128)  # of q and k, of v
CLOCK_GHZ, SMS = 1.85, 148


@dataclass(frozen=True)
class Loop:
    """cycles: of a turn; bound: what it waits for; busy: share of the cycles in which each resource works."""

    kernel: str
    cycles: float
    bound: str
    busy: dict[str, float]


def tensors(rows: int, keys: int, depths: tuple[int, int], heads: int = 1) -> list[torch.Tensor]:
    depth, depth_v = depths
    sizes = ((rows, depth), (keys, depth), (keys, depth_v), (rows, depth_v), (rows, depth_v))
    return [torch.zeros(1, n, heads, d, dtype=torch.bfloat16) for n, d in sizes]


def run_ours(rows: int, keys: int, depths: tuple[int, int]) -> Profiles:
    q, k, v, out, dout = tensors(rows, keys, depths)
    with profiling() as found:
        of = Attended(q, k, v, out, torch.zeros(1, 1, rows))
        gradients(of, dout, None, Scores(depths[0] ** -0.5))
    return found


def loop(kernel: str, short: Profiles, long: Profiles) -> Loop:
    """What the turns of `long` add to those of `short`, in the kernel whose name has these letters."""
    few, many = (next(p for p in found.kernels if kernel in p.kernel) for found in (short, long))
    return Loop(kernel, (many.cycles - few.cycles) / (TURNS[1] - TURNS[0]), many.bound, many.busy)


def ours(depths: tuple[int, int]) -> tuple[Loop, Loop]:
    """-> (the kernel of dQ, the kernel of dK and dV)."""
    of_keys, of_queries = (
        [run_ours(*sizes, depths) for sizes in of]
        for of in zip(*(((ROWS * n, ROWS), (ROWS, ROWS * n)) for n in TURNS), strict=True)
    )
    return loop("_dq_", *of_queries), loop("_dkv_", *of_keys)


def teraflops(cycles: float, depths: tuple[int, int]) -> float:
    """Of all SMs, with the five products that the gradients are defined by."""
    flops = 2 * ROWS * ROWS * (3 * depths[0] + 2 * depths[1])
    return flops / cycles * SMS * CLOCK_GHZ * 1e-3


def main() -> None:
    for depths in DEPTHS:
        dq, dkv = ours(depths)
        both = dq.cycles + dkv.cycles
        print(
            depths,
            round(dq.cycles),
            dq.bound,
            round(dkv.cycles),
            dkv.bound,
            round(teraflops(both, depths)),
            flush=True,
        )
        print(dq.busy, dkv.busy)


if __name__ == "__main__":
    main()
