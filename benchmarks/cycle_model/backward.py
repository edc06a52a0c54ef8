"""The loops of the backward pass in the cycle model: cute_fa4's two or three kernels, and flash-attn-4's.

Cycles of an SM for a tile of 128 x 128 scores in the steady state, without a mask. A CTA of ours has 128 queries or 128
keys, a pair 256, and passes the tiles of the other side. The kernel of all gradients has pairs of 256 keys. A pair of
CTAs of theirs has 256 keys, and passes the queries.

MMAs wait for whatever else uses shared memory: copies, and with the constant `contention` warps, bulk stores and
reductions. The tables of the forward pass were fitted without the latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial

import torch

from benchmarks.cycle_model import power, profiled
from benchmarks.cycle_model.grid import makespan, makespan_in_turns
from benchmarks.cycle_model.kernels import OURS, THEIRS
from benchmarks.cycle_model.modelled import made_by, marked
from benchmarks.cycle_model.profiled import Cost, Cycles, Launch
from cute_fa4 import masks
from cute_fa4.calls.backward import Attended, Scores, gradients
from cute_fa4.emulator.model.constants import Constant, fitted_b200
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.joint import KEYS
from cute_fa4.sm100.backward.work import heads_side_by_side
from cute_fa4.sm100.blueprint import tuning

ROWS = 128
TURNS = 4, 8  # of the loop; what the second adds is the steady state
DEPTHS = (64, 64), (128, 128), (192, 128), (256, 256)  # of q and k, of v
OF_THEIRS = (64, 64), (128, 128)
JOINT = "joint"  # the kernel of all gradients, by the part of its name that tells it apart
OF_JOINT = ((128, 128),)
CLOCK_GHZ, SMS = 1.85, 148
# Causal, queries, heads of all sequences.
CALLS = (False, 8192, 64), (True, 8192, 64), (True, 16384, 16)
DEVICES = "B200", "GB200"  # of the sustained speeds: those with the machine code that is modelled
# Products with the depth of q and k, and with that of v. The gradients are defined by five.
PRODUCTS = {
    "dq": (2, 1),
    "dkv": (2, 2),
    "dk": (2, 1),
    "dv": (1, 1),
    "bwd_sm100": (3, 2),
    JOINT: (3, 2),
}
NEXT_TURN = 1400  # cycles from dQ of a pair's next tile to the turn of the next pair: two accesses of L2, as profiled


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
    # The second of three pairs adds dQ; the first stores it, the last rounds the sum.
    keys, cta = (3 * keys, 1) if joint else (keys, 0)
    run = (
        partial(run_ours, rows, keys, depths, cta=cta, joint=joint)
        if ours
        else partial(run_theirs, rows, 2 * ROWS, depths)
    )
    config = (lambda: BackwardConfig("bf16", *depths, joint=joint)) if ours else None
    of = f"{maker} backward d{depths[0]}/{depths[1]}{' by one kernel' * joint}"
    part = f"_{kernel}_" if ours else kernel
    return Launch(f"{of} {kernel} {turns} tiles", of, run, config, part, maker, constants())


def calls() -> list[tuple[str, tuple[int, int], tuple[str, ...]]]:
    """(maker, depths, kernels) of each way to make all gradients."""
    found: list[tuple[str, tuple[int, int], tuple[str, ...]]] = []
    for depths in DEPTHS:
        found.append((OURS, depths, kernels_of(depths)))
        found += [(OURS, depths, (JOINT,))] * (depths in OF_JOINT)
        found += [(THEIRS, depths, ("bwd_sm100",))] * (depths in OF_THEIRS)
    return found


def causal_launch(kernel: str, depths: tuple[int, int], turns: int) -> Launch:
    """A causal call whose recorded CTA, or pair, of this kernel sees so many tiles, of which one is cut.

    Those that see the most come first.
    """
    most, joint = TURNS[-1], kernel == JOINT
    number = (most - turns) * ROWS // rows_of(kernel, depths)
    of = f"{OURS} backward d{depths[0]}/{depths[1]} causal{' by one kernel' * joint}"
    return Launch(
        f"{of} {kernel} {turns} tiles", of,
        partial(run_ours, *[ROWS * most] * 2, depths, masks.causal(), number, joint),
        lambda: BackwardConfig("bf16", *depths, mask=masks.Causal(), joint=joint), f"_{kernel}_", OURS, constants(),
    )  # fmt: skip


def launches() -> list[Launch]:
    """Launches of the loops, and of whole causal calls."""
    each = [(maker, kernel, depths) for maker, depths, kernels in calls() for kernel in kernels]
    found = [one for of in each for one in loop(*of)]
    for maker, kernel, depths in each:
        if kernel == JOINT:
            found.append(causal_launch(kernel, depths, TURNS[-1] - KEYS // ROWS))
        elif maker == OURS:
            found += tiles_apart(kernel, depths)
    return found


def cycles_of(few: float, many: float) -> float:
    """Of a tile of scores: what further turns cost."""
    return (many - few) / (TURNS[1] - TURNS[0])


def ctas_of(
    cost: Cost, depths: tuple[int, int], kernels: tuple[str, ...], causal: bool
) -> list[tuple[Cycles, float, float, int]]:
    """(record, cycles of a tile, cycles besides, CTAs that share MMAs) of each kernel."""
    found = []
    for kernel in kernels:
        apart = tiles_apart(kernel, depths) if causal else loop(OURS, kernel, depths)
        few, many = (cost(each) for each in apart)
        cycles, shared = cycles_of(few.cycles, many.cycles), rows_of(kernel, depths) // ROWS
        used, tiles = many, TURNS[-1]
        if causal and kernel == JOINT:
            tiles -= shared
            used = cost(causal_launch(kernel, depths, tiles))
        found.append((used, cycles, used.cycles - tiles * cycles, shared))
    return found


def loop(maker: str, kernel: str, depths: tuple[int, int]) -> list[Launch]:
    """Two launches, of few and of many tiles, without a mask."""
    return [launch(maker, kernel, depths, turns) for turns in TURNS]


def tiles_apart(kernel: str, depths: tuple[int, int]) -> list[Launch]:
    """Two launches, of few and of many tiles, whose difference is that of the tiles of a causal call.

    The kernel of all gradients: of its loop. In a causal call each of its pairs rounds dQ of as many tiles as it owns.
    """
    if kernel == JOINT:
        return loop(OURS, kernel, depths)
    return [causal_launch(kernel, depths, turns) for turns in TURNS]


def call_microseconds(
    ctas: Iterable[tuple[float, float, int]],
    seqlen: int,
    heads: int,
    depth_v: int,
    causal: bool,
    in_turns: bool,
) -> float:
    """A call without groups: the kernels one after another, after the deltas.

    ctas: of each kernel (cycles of a tile, cycles besides, CTAs that share MMAs). in_turns: it is the kernel of all
    gradients, whose pairs wait for turns
    """
    found = constants()
    read = seqlen * heads * 2 * depth_v * torch.bfloat16.itemsize
    out = found["launch_us"].value + read / found["hbm_tbs"].value * 1e-6
    some = heads_side_by_side(seqlen) if in_turns else heads
    for cycles, besides, shared in ctas:
        tiles = seqlen // ROWS
        order = [
            (head, tiles - own * causal)
            for first in range(0, heads, some)
            for own in range(0, tiles, shared)
            for head in range(first, min(first + some, heads))
        ]
        slots = SMS // shared
        if in_turns:
            span = makespan_in_turns(order, slots, cycles, besides, cycles + NEXT_TURN)
            out += found["kernel_start_us"].value  # zeros of the counters
        else:
            span = makespan((number * cycles + besides for _, number in order), slots)
        out += span / CLOCK_GHZ * 1e-3
    return out


def speed(
    ctas: Iterable[tuple[float, float, int]],
    depths: tuple[int, int],
    size: tuple[int, int],
    causal: bool,
    in_turns: bool,
) -> float:
    """TFLOPS of a call. size: queries, heads"""
    seqlen, heads = size
    us = call_microseconds(ctas, seqlen, heads, depths[1], causal, in_turns)
    tiles = (seqlen / ROWS) ** 2 / (1 + causal) * heads
    return teraflops(us * CLOCK_GHZ * 1e3 * SMS / tiles, depths)


def call_cells(
    cost: Cost, depths: tuple[int, int], kernels: tuple[str, ...]
) -> tuple[dict[str, str], list[str]]:
    """Kernel -> cycles of its CTA without those of its tiles in a causal call; TFLOPS of CALLS."""
    found = {causal: ctas_of(cost, depths, kernels, causal) for causal in (False, True)}
    besides = {
        kernel: marked(f"{each:,.0f}", record)
        for kernel, (record, _, each, _) in zip(kernels, found[True], strict=True)
    }
    speeds = []
    for causal, *size in CALLS:
        ctas = [rest for _, *rest in found[causal]]
        value = speed(ctas, depths, size, causal, kernels == (JOINT,))
        speeds.append(marked(f"{value:,.0f}", *(record for record, *_ in found[causal])))
    return besides, speeds


def teraflops(cycles: float, depths: tuple[int, int]) -> float:
    """The speed of all SMs, with the five products that define the gradients.

    >>> round(teraflops(2560, (128, 128)))
    2243
    """
    flops = 2 * ROWS * ROWS * (3 * depths[0] + 2 * depths[1])
    return flops / cycles * SMS * CLOCK_GHZ * 1e-3


def sustained(
    speed: float, depths: tuple[int, int], kernels: tuple[str, ...], device: str
) -> float:
    """TFLOPS of a long run under the device's limit (power.py). speed: of a B200 at CLOCK_GHZ

    A product more than the five takes the energy of one of them.
    """
    more = products(depths, kernels) / products(depths, (JOINT,))
    return of_chips(speed * more).sustained(device) / more


def of_chips(speed: float) -> power.Speed:
    """speed: TFLOPS of a B200 at CLOCK_GHZ"""
    of_sm = speed / (SMS * CLOCK_GHZ)
    return power.Speed("", "bf16", OURS, "modelled", of_sm, work="backward")


def products(depths: tuple[int, int], kernels: tuple[str, ...]) -> int:
    """Columns that the products of kernels have together."""
    return sum(
        number * depth
        for kernel in kernels
        for number, depth in zip(PRODUCTS[kernel], depths, strict=True)
    )


def sustained_table(cost: Cost = profiled.recorded) -> str:
    """The steady state of each way to make all gradients: in a burst, and under the limit of power."""
    titles = [f"burst, {DEVICES[0]}"]
    titles += [f"{power.LIMITS[device]} W, {device}" for device in DEVICES]
    head = "head dims", "maker", "kernels", *titles
    lines, found = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], []
    for maker, depths, kernels in calls():
        used = [[cost(each) for each in loop(maker, kernel, depths)] for kernel in kernels]
        cycles = sum(cycles_of(*(each.cycles for each in both)) for both in used)
        value, records = teraflops(cycles, depths), [each for both in used for each in both]
        speeds = [of_chips(value).on(DEVICES[0])]
        speeds += [sustained(value, depths, kernels, device) for device in DEVICES]
        names = "/".join(map(str, depths)), maker, ", ".join(kernels)
        cells = *names, *(marked(f"{each:,.0f}", *records) for each in speeds)
        lines.append(f"| {' | '.join(cells)} |")
        found += records
    return "\n".join([*lines, "", made_by(found)])


def table(cost: Cost = profiled.recorded) -> str:
    """Cycles: of a tile of scores; busy: share of them in which the tensor core works; the rest of causal calls."""
    sizes = [
        f"{'causal' if causal else 'full'}, {seqlen // 1024}K, {heads} heads"
        for causal, seqlen, heads in CALLS
    ]
    head = (
        *("head dims", "maker", "kernel", "cycles of 128 x 128 scores", "tensor core busy"),
        *("TFLOPS of all", "start and stores, causal", *sizes),
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    found = []
    for maker, depths, kernels in calls():
        used = [[cost(each) for each in loop(maker, kernel, depths)] for kernel in kernels]
        cycles = [cycles_of(*(each.cycles for each in both)) for both in used]
        besides, speeds = (
            call_cells(cost, depths, kernels) if maker == OURS else ({}, [""] * len(CALLS))
        )
        for kernel, both, own in zip(kernels, used, cycles, strict=True):
            busy = both[1].busy
            last = kernel == kernels[-1]
            cells = (
                *("/".join(map(str, depths)), maker, kernel, marked(f"{own:,.0f}", *both)),
                f"{busy['tensor core']:.0%}" if busy else "nan",
                f"{teraflops(sum(cycles), depths):.0f}" if last else "",
                besides.get(kernel, ""),
                *(speeds if last else [""] * len(CALLS)),
            )
            lines.append(f"| {' | '.join(cells)} |")
        found += [each for both in used for each in both]
        found += (
            [record for record, *_ in ctas_of(cost, depths, kernels, causal=True)]
            if maker == OURS
            else []
        )
    return "\n".join([*lines, "", made_by(found)])
