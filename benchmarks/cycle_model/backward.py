"""The loops of the backward pass in the cycle model: cute_fa4's two or three kernels, and flash-attn-4's.

    python -m benchmarks.cycle_model.backward            # prints whole causal calls; some minutes

Cycles of an SM for a tile of 128 x 128 scores in the steady state, without a mask. A CTA of ours has 128 queries or 128
keys, a pair 256, and passes the tiles of the other side. The kernel of all gradients has pairs of 256 keys. A pair of
CTAs of theirs has 256 keys, and passes the queries.

MMAs wait for whatever else uses shared memory: copies, and with the constant `contention` warps, bulk stores and
reductions. The tables of the forward pass were fitted without the latter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch

from benchmarks.cycle_model import profiled
from benchmarks.cycle_model.grid import makespan
from benchmarks.cycle_model.kernels import OURS, THEIRS
from benchmarks.cycle_model.modelled import made_by, marked
from benchmarks.cycle_model.profiled import Cost, Launch
from cute_fa4 import masks
from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.emulator.model.constants import Constant, fitted_b200
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.joint import KEYS
from cute_fa4.sm100.backward.owner import HEADS_SIDE_BY_SIDE
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.chip import F32_BYTES

ROWS = 128
TURNS = 4, 8  # of the loop; what the second adds is the steady state
DEPTHS = (64, 64), (128, 128), (192, 128), (256, 256)  # of q and k, of v
OF_THEIRS = (64, 64), (128, 128)
JOINT = "joint"  # the kernel of all gradients, by the part of its name that tells it apart
OF_JOINT = ((128, 128),)
CLOCK_GHZ, SMS = 1.85, 148
CALLS = (8192, 64), (16384, 16)  # queries, heads of all sequences


def constants() -> dict[str, Constant]:
    """Those of a B200, with full contention for shared memory."""
    found = fitted_b200()
    return found | {"contention": replace(found["contention"], value=1.0)}


def zeros(rows: int, keys: int, depths: tuple[int, int], **options) -> list[torch.Tensor]:
    """q, k, v, out and the gradient of out, of one head."""
    depth, depth_v = depths
    sizes = ((rows, depth), (keys, depth), (keys, depth_v), (rows, depth_v), (rows, depth_v))
    return [torch.zeros(1, n, 1, d, dtype=torch.bfloat16, **options) for n, d in sizes]


@cache  # a run has all kernels of the call
def run_ours(
    rows: int,
    keys: int,
    depths: tuple[int, int],
    mask: masks.BoundMask | None = None,
    cta: int = 0,
    joint: bool = False,
) -> Profiles:
    """cta: number of the recorded one of each kernel, or of the pair. joint: one kernel makes all gradients."""
    q, k, v, out, dout = zeros(rows, keys, depths)
    table = tuning.active().changed(backward_joint=joint)
    with tuning.using(table), profiling(cta, constants()) as found:
        of = Attended(q, k, v, out, torch.zeros(1, 1, rows))
        gradients(of, dout, None, Scores(depths[0] ** -0.5, mask or masks.full()))
    return found


@cache
def run_theirs(rows: int, keys: int, depths: tuple[int, int]) -> Profiles:
    from cute_fa4.emulator.as_if_cuda import as_if_cuda

    with as_if_cuda():
        from flash_attn.cute import interface

        q, k, v, out, dout = zeros(rows, keys, depths, device="cuda")
        lse = torch.zeros(1, 1, rows, device="cuda")
        with profiling(constants=constants()) as found:
            interface._flash_attn_bwd(q, k, v, out, dout, lse, causal=False)
    return found


def kernels_of(depths: tuple[int, int]) -> tuple[str, ...]:
    """Ours, by the part of the name that tells them apart: where head dims are wide dK and dV have one each."""
    apart = len(BackwardConfig("bf16", *depths).owners_of_keys) > 1
    return ("dq", "dk", "dv") if apart else ("dq", "dkv")


def rows_of(kernel: str, depths: tuple[int, int]) -> int:
    """Own rows of a CTA of ours, or of a pair."""
    if kernel == JOINT:
        return KEYS
    config = BackwardConfig("bf16", *depths)
    owners = (config.owner("queries"), *config.owners_of_keys)
    return ROWS * owners[kernels_of(depths).index(kernel)].ctas


def launch(maker: str, kernel: str, depths: tuple[int, int], turns: int) -> Launch:
    """A call whose CTA of this kernel passes its loop so many times."""
    ours = maker == OURS
    own = rows_of(kernel, depths) if ours else ROWS
    rows, keys = (own, ROWS * turns) if kernel == "dq" else (ROWS * turns, own)
    joint = kernel == JOINT
    run = (
        partial(run_ours, rows, keys, depths, joint=joint)
        if ours
        else partial(run_theirs, rows, 2 * ROWS, depths)
    )
    config = (lambda: BackwardConfig("bf16", *depths, joint=joint)) if ours else None
    of = f"{maker} backward d{depths[0]}/{depths[1]}{' by one kernel' * joint}"
    part = f"_{kernel}_" if ours else kernel
    return Launch(f"{of} {kernel} {turns} tiles", of, run, config, part, maker, constants())


def loops() -> list[tuple[str, str, tuple[int, int]]]:
    """(maker, kernel, depths) of each row of the table."""
    found = []
    for depths in DEPTHS:
        found += [(OURS, kernel, depths) for kernel in kernels_of(depths)]
        found += [(OURS, JOINT, depths)] * (depths in OF_JOINT)
        found += [(THEIRS, "bwd_sm100", depths)] * (depths in OF_THEIRS)
    return found


def launches() -> list[Launch]:
    return [launch(*loop, turns) for loop in loops() for turns in TURNS]


def cycles_of(few: float, many: float) -> float:
    """Of a tile of scores: what further turns cost."""
    return (many - few) / (TURNS[1] - TURNS[0])


def causal_ctas(depths: tuple[int, int], joint: bool = False) -> list[tuple[float, float, int]]:
    """(cycles of a tile, cycles besides, CTAs that share MMAs) of a CTA of each kernel; one tile of it is cut.

    Long CTAs come first. Those of a pair see the same tiles. All kernels of these head dims are of one kind.
    """
    most = TURNS[-1]
    names = (JOINT,) if joint else kernels_of(depths)
    (shared,) = {rows_of(kernel, depths) // ROWS for kernel in names}
    few, many = (
        {
            x.kernel: x.cycles
            for x in run_ours(*[ROWS * most] * 2, depths, masks.causal(), number, joint).kernels
        }
        for number in ((most - TURNS[0]) // shared, 0)
    )
    tile = {x: (many[x] - few[x]) / (most - TURNS[0]) for x in many if "_deltas_" not in x}
    return [(cycles, many[x] - most * cycles, shared) for x, cycles in tile.items()]


def causal_microseconds(
    kernels: list[tuple[float, float, int]], seqlen: int, heads: int, depth_v: int
) -> float:
    """A call without groups: the kernels one after another, each with its longest CTAs first, after the deltas."""
    found = constants()
    read = seqlen * heads * 2 * depth_v * torch.bfloat16.itemsize
    out = found["launch_us"].value + read / found["hbm_tbs"].value * 1e-6
    for cycles, besides, shared in kernels:
        longest_first = range(seqlen // ROWS, 0, -shared)
        ctas = (tiles * cycles + besides for tiles in longest_first for _ in range(heads))
        out += makespan(ctas, SMS // shared) / CLOCK_GHZ * 1e-3
    return out


def sum_microseconds(seqlen: int, heads: int, depth: int) -> float:
    """Of the float32 sum of dQ, which memory bounds: zeros, then a copy in 16 bits, a launch each."""
    found = constants()
    nbytes = seqlen * heads * depth * (2 * F32_BYTES + torch.bfloat16.itemsize)
    return nbytes / found["hbm_tbs"].value * 1e-6 + 2 * found["kernel_start_us"].value


def joint_microseconds(
    kernels: list[tuple[float, float, int]], seqlen: int, heads: int, depths: tuple[int, int]
) -> float:
    """A causal call by the kernel of all gradients, with few heads side by side; waits for turns are not modeled."""
    ((cycles, besides, shared),) = kernels
    none = causal_microseconds([], seqlen, heads, depths[1])
    longest_first = range(seqlen // ROWS, 0, -shared)
    ctas = [
        tiles * cycles + besides
        for first in range(0, heads, HEADS_SIDE_BY_SIDE)
        for tiles in longest_first
        for _ in range(min(HEADS_SIDE_BY_SIDE, heads - first))
    ]
    kernel = makespan(ctas, SMS // shared) / CLOCK_GHZ * 1e-3
    return none + kernel + sum_microseconds(seqlen, heads, depths[0])


def causal_calls() -> str:
    lines = []
    for depths, joint in [(x, False) for x in DEPTHS] + [(x, True) for x in OF_JOINT]:
        ctas = causal_ctas(depths, joint)
        for seqlen, heads in CALLS:
            tiles = (seqlen / ROWS) ** 2 / 2 * heads
            if joint:
                us = joint_microseconds(ctas, seqlen, heads, depths)
            else:
                us = causal_microseconds(ctas, seqlen, heads, depths[1])
            speed = teraflops(us * CLOCK_GHZ * 1e3 * SMS / tiles, depths)
            kernels = ", one kernel" * joint
            lines.append(
                f"{depths}, {seqlen} x {heads} heads{kernels}: {us:.0f} us, {speed:.0f} TFLOPS"
            )
    return "\n".join(lines)


def teraflops(cycles: float, depths: tuple[int, int]) -> float:
    """The speed of all SMs, with the five products that define the gradients.

    >>> round(teraflops(2560, (128, 128)))
    2243
    """
    flops = 2 * ROWS * ROWS * (3 * depths[0] + 2 * depths[1])
    return flops / cycles * SMS * CLOCK_GHZ * 1e-3


def one_call(loop: tuple[str, str, tuple[int, int]]) -> tuple:
    """What loops of one call have in common."""
    maker, kernel, depths = loop
    return maker, depths, kernel == JOINT


def table(cost: Cost = profiled.recorded) -> str:
    """Cycles: of a tile of scores; busy: share of them in which the tensor core works."""
    lines = [
        "| head dims | maker | kernel | cycles of 128 x 128 scores | tensor core busy | TFLOPS of all |",
        "|---|---|---|---|---|---|",
    ]
    used = {loop: [cost(launch(*loop, turns)) for turns in TURNS] for loop in loops()}
    cycles = {loop: cycles_of(*(each.cycles for each in both)) for loop, both in used.items()}
    for loop, (few, many) in used.items():
        maker, kernel, depths = loop
        every = [each for each in used if one_call(each) == one_call(loop)]
        speed = teraflops(sum(cycles[each] for each in every), depths)
        busy = f"{many.busy['tensor core']:.0%}" if many.busy else "nan"
        cells = "/".join(map(str, depths)), maker, kernel, marked(f"{cycles[loop]:,.0f}", few, many)
        said = f"{speed:.0f}" if loop == every[-1] else ""
        lines.append("| " + " | ".join([*cells, busy, said]) + " |")
    found = [each for both in used.values() for each in both]
    return "\n".join([*lines, "", made_by(found)])


if __name__ == "__main__":
    print(causal_calls())
