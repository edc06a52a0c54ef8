"""The loops of the backward pass in the cycle model: cute_fa4's two or three kernels, and flash-attn-4's.

    python -m benchmarks.cycle_model.backward            # writes backward.json; some minutes

Cycles of an SM for a tile of 128 x 128 scores in the steady state, without a mask. A CTA of ours has 128 queries or 128
keys, and passes the tiles of the other side. A pair of CTAs of theirs has 256 keys, and passes the queries.

MMAs wait for whatever else uses shared memory: copies, and with the constant `contention` warps, bulk stores and
reductions. The tables of the forward pass were fitted without the latter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.emulator.model.constants import Constant, fitted_b200
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.sm100.backward.config import BackwardConfig

DATA = Path(__file__).parent / "backward.json"
ROWS = 128
TURNS = 4, 8  # of the loop; what the second adds is the steady state
DEPTHS = (64, 64), (128, 128), (192, 128), (256, 256)  # of q and k, of v
THEIRS = (64, 64), (128, 128)
CLOCK_GHZ, SMS = 1.85, 148


@dataclass(frozen=True)
class Loop:
    """cycles: of a tile of scores; tensor_core: share of them in which it works."""

    maker: str
    kernel: str
    depths: tuple[int, int]
    cycles: int
    tensor_core: float


def constants() -> dict[str, Constant]:
    """Those of a B200, with full contention for shared memory."""
    found = fitted_b200()
    return found | {"contention": replace(found["contention"], value=1.0)}


def zeros(rows: int, keys: int, depths: tuple[int, int], **options) -> list[torch.Tensor]:
    """q, k, v, out and the gradient of out, of one head."""
    depth, depth_v = depths
    sizes = ((rows, depth), (keys, depth), (keys, depth_v), (rows, depth_v), (rows, depth_v))
    return [torch.zeros(1, n, 1, d, dtype=torch.bfloat16, **options) for n, d in sizes]


def run_ours(rows: int, keys: int, depths: tuple[int, int]) -> Profiles:
    q, k, v, out, dout = zeros(rows, keys, depths)
    with profiling(constants=constants()) as found:
        of = Attended(q, k, v, out, torch.zeros(1, 1, rows))
        gradients(of, dout, None, Scores(depths[0] ** -0.5))
    return found


def run_theirs(rows: int, keys: int, depths: tuple[int, int]) -> Profiles:
    from cute_fa4.emulator.as_if_cuda import as_if_cuda

    with as_if_cuda():
        from flash_attn.cute import interface

        q, k, v, out, dout = zeros(rows, keys, depths, device="cuda")
        lse = torch.zeros(1, 1, rows, device="cuda")
        with profiling(constants=constants()) as found:
            interface._flash_attn_bwd(q, k, v, out, dout, lse, causal=False)
    return found


def loop(maker: str, kernel: str, run: Callable, sizes: Callable, depths: tuple[int, int]) -> Loop:
    """What further turns cost. sizes(turns) -> (queries, keys); kernel: a part of the name."""
    few, many = (
        next(p for p in run(*sizes(turns), depths).kernels if kernel in p.kernel) for turns in TURNS
    )
    cycles = (many.cycles - few.cycles) / (TURNS[1] - TURNS[0])
    return Loop(maker, kernel.strip("_"), depths, round(cycles), round(many.busy["tensor core"], 2))


def of_queries(depths: tuple[int, int]) -> Loop:
    return loop("cute_fa4", "_dq_", run_ours, lambda n: (ROWS, ROWS * n), depths)


def of_keys(depths: tuple[int, int]) -> list[Loop]:
    """One kernel, or where head dims are wide one for each result."""
    apart = len(BackwardConfig("bf16", *depths).owners_of_keys) > 1
    kernels = ("_dk_", "_dv_") if apart else ("_dkv_",)
    return [
        loop("cute_fa4", name, run_ours, lambda n: (ROWS * n, ROWS), depths) for name in kernels
    ]


def theirs(depths: tuple[int, int]) -> Loop:
    return loop("flash-attn-4", "bwd_sm100", run_theirs, lambda n: (ROWS * n, 2 * ROWS), depths)


def load() -> list[Loop]:
    return [Loop(**row | {"depths": tuple(row["depths"])}) for row in json.loads(DATA.read_text())]


def teraflops(cycles: float, depths: tuple[int, int]) -> float:
    """The speed of all SMs, with the five products that define the gradients.

    >>> round(teraflops(2560, (128, 128)))
    2243
    """
    flops = 2 * ROWS * ROWS * (3 * depths[0] + 2 * depths[1])
    return flops / cycles * SMS * CLOCK_GHZ * 1e-3


def table() -> str:
    lines = [
        "| head dims | maker | kernel | cycles of 128 x 128 scores | tensor core busy | TFLOPS of all |",
        "|---|---|---|---|---|---|",
    ]
    found = load()
    for row in found:
        every = [x for x in found if (x.maker, x.depths) == (row.maker, row.depths)]
        speed = teraflops(sum(x.cycles for x in every), row.depths)
        said = f"{speed:.0f}" if row == every[-1] else ""
        depths = "/".join(map(str, row.depths))
        cells = (depths, row.maker, row.kernel, f"{row.cycles:,}", f"{row.tensor_core:.0%}", said)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    rows = []
    for depths in DEPTHS:
        rows += [of_queries(depths), *of_keys(depths)]
        if depths in THEIRS:
            rows.append(theirs(depths))
    DATA.write_text("[\n" + ",\n".join("  " + json.dumps(asdict(row)) for row in rows) + "\n]\n")
    print(table())


if __name__ == "__main__":
    main()
