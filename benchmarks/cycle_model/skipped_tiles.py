"""Skip-softmax in the cycle model: cycles of a key tile by the part of tiles that is skipped, and of the dense call.

One CTA of 256 queries; skipped tiles are spread evenly, and all of its warps skip them. The steady state is what
TILES[1] - TILES[0] further tiles add. docs/generate.py writes the table of docs/serving/skip_softmax.md from records.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from benchmarks.cycle_model import profiled
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.modelled import Model, made_by, marked
from benchmarks.cycle_model.profiled import Launch
from benchmarks.cycle_model.records import Constants
from benchmarks.cycle_model.workloads import KEYS_A_TILE, ROWS_A_CTA
from cute_fa4 import flash_attn_func
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.system.gains import ratio

DEPTH = 128
DENSE = Variant(OURS, DEPTH)
QUARTERS = range(5)  # of the tiles that are skipped
TILES = 8, 16  # between the first and the last one, which are not skipped
LOW = -4.0  # of each number of a key that is skipped, whose scores are e^-45 in weight


def skips(tile: int, quarters: int) -> bool:
    """
    >>> [sum(skips(tile, quarters) for tile in range(8)) for quarters in QUARTERS]
    [0, 2, 4, 6, 8]
    """
    return (tile + 1) * quarters // 4 > tile * quarters // 4


def run(quarters: int, tiles: int) -> Profiles:
    """One CTA with so many tiles between the first and the last one."""
    low = [0.0, *(LOW * skips(tile, quarters) for tile in range(tiles)), 0.0]
    k = torch.tensor(low).repeat_interleave(KEYS_A_TILE)[None, :, None, None]
    k = k.expand(1, -1, 1, DEPTH).bfloat16().contiguous()
    q = torch.ones(1, ROWS_A_CTA, 1, DEPTH, dtype=torch.bfloat16)
    with profiling() as found:
        flash_attn_func(q, k, torch.ones_like(k), skip_softmax_threshold_scale_factor=1.0)
    return found


def config():
    """The kernel of these calls."""
    from cute_fa4.sm100.choose.choose_config import choose_config

    return choose_config(qkv_dtype="bf16", head_dim=DEPTH, skip_softmax=True)


def launch(quarters: int, tiles: int) -> Launch:
    kernel = f"{OURS} d{DEPTH} full skip-softmax"
    name = f"{kernel}, {quarters} of 4 skipped, {tiles} tiles"
    return Launch(name, kernel, partial(run, quarters, tiles), config)


def launches() -> Iterable[Launch]:
    return (launch(quarters, tiles) for quarters in QUARTERS for tiles in TILES)


def table(constants: Constants, model: Model) -> str:
    """Cycles of a key tile, and the speed over that of the dense call on CTAs alone."""
    dense = model(DENSE, constants)
    lines = [
        "| tiles | cycles of a key tile | speed, of the dense call's |",
        "|---|---|---|",
        f"| dense call | {marked(f'{dense.steady.cycles:,.0f}', dense)} | |",
    ]
    used = [dense]
    for quarters in QUARTERS:
        both = [profiled.recorded(launch(quarters, tiles)) for tiles in TILES]
        cycles = (both[1].cycles - both[0].cycles) / (TILES[1] - TILES[0])
        used += both
        speed = ratio(dense.steady.cycles / cycles)
        lines.append(
            f"| {quarters / 4:.0%} skipped | {marked(f'{cycles:,.0f}', *both)} | {marked(speed, dense, *both)} |"
        )
    return "\n".join([*lines, "", made_by(used)])
