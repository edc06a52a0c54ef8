"""Cycles of one CTA -> time of a launch: tile order, waves, causal imbalance, persistence, clock.

    launch               CTAs or clusters                        order
    cute_fa4             one a 256-row block, head, batch        block fastest, causal from the end
    flash-attn-4 causal  the same                                longest first, in sections of heads
                                                                 whose K and V fit 50 MiB of L2
    flash-attn-4 full    as many as fit, persistent              tile = cluster + k x clusters

A CTA fills an SM (its shared memory does), so the next one starts when it has left. Hardware hands
CTAs out in order, each to the SM that is free first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass

from benchmarks.cycle_model.constants import Constant
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.workloads import KEYS_A_TILE

# flash-attn-4, tile_scheduler.py, SingleTileLPTScheduler: L2 taken for K and V.
LPT_L2_BYTES = 50 * 1024 * 1024
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Problem:
    """One call: batch sequences of seqlen queries and keys."""

    batch: int
    heads_q: int
    heads_kv: int
    seqlen: int
    head_dim: int
    causal: bool

    @property
    def flops(self) -> float:
        """Multiply-adds of both products count two; a causal mask halves them, as published."""
        full = 4.0 * self.batch * self.heads_q * self.seqlen**2 * self.head_dim
        return full / 2 if self.causal else full

    @property
    def bytes(self) -> float:
        """Q, K, V read once and O written once."""
        heads = 2 * self.heads_q + 2 * self.heads_kv
        return float(self.batch * heads * self.seqlen * self.head_dim * ELEMENT_BYTES)


@dataclass(frozen=True)
class Curve:
    """Cycles against key tiles: the simulated points, linear between and beyond them."""

    points: tuple[tuple[int, float], ...]

    def __call__(self, tiles: float) -> float:
        xs = [x for x, _ in self.points]
        at = min(max(bisect_right(xs, tiles), 1), len(xs) - 1)
        (x0, y0), (x1, y1) = self.points[at - 1], self.points[at]
        return y0 + (y1 - y0) * (tiles - x0) / (x1 - x0)

    @property
    def per_tile(self) -> float:
        """Cycles of one more key tile in the steady state."""
        (x0, y0), (x1, y1) = self.points[-2:]
        return (y1 - y0) / (x1 - x0)


@dataclass(frozen=True)
class CTACycles:
    """single: a CTA with one work tile. added: what a persistent CTA's further work tiles add."""

    single: Curve
    added: Curve | None = None


@dataclass(frozen=True)
class LaunchTime:
    """us: time of the launch. busy: share of SM cycles in which a CTA was at work.

    bound_by_memory: the bytes take longer at the sustained rate of HBM than the SMs need.
    """

    us: float
    busy: float
    ctas: int
    bound_by_memory: bool

    def tflops(self, problem: Problem) -> float:
        return problem.flops / self.us * 1e-6


def launch_time(
    variant: Variant,
    problem: Problem,
    cycles: CTACycles,
    constants: dict[str, Constant],
    clock_factor: float = 1.0,
) -> LaunchTime:
    """The modelled time of one launch at constants' clock times clock_factor."""
    value = {name: constant.value for name, constant in constants.items()}
    rows = variant.rows
    packing = variant.group if variant.packed else 1
    heads = problem.batch * problem.heads_q // packing
    blocks = -(-problem.seqlen * packing // rows)
    tiles = [
        _tiles(problem, min((block + 1) * rows, problem.seqlen * packing) / packing)
        for block in range(blocks)
    ]
    slots = int(value["sms"]) // (2 if variant.pair else 1)
    if variant.persistent:
        makespan, work = _persistent(tiles * heads, slots, cycles)
    else:
        order = _order(variant, problem, tiles, heads)
        lengths = {n: cycles.single(n) + value["cta_gap"] for n in set(tiles)}
        makespan, work = _dispatched([lengths[n] for n in order], slots)
    clock = value["clock_ghz"] * 1e3 * clock_factor
    busy_us = makespan / clock
    memory_us = problem.bytes / value["hbm_tbs"] * 1e-6
    overhead = value["launch_us"] + value["cold_memory"] * memory_us
    return LaunchTime(
        us=max(busy_us, memory_us) + overhead,
        busy=work / (makespan * slots),
        ctas=blocks * heads * (2 if variant.pair else 1),
        bound_by_memory=memory_us > busy_us,
    )


def _tiles(problem: Problem, last_query: float) -> int:
    """Key tiles of a block whose rows end before query `last_query`."""
    keys = last_query if problem.causal else problem.seqlen
    return -(-int(-(-keys // 1)) // KEYS_A_TILE)


def _order(variant: Variant, problem: Problem, tiles: list[int], heads: int) -> list[int]:
    """Key tiles of every CTA in the order of CTA numbers."""
    falling = tiles[::-1] if problem.causal else tiles
    if variant.maker == OURS:
        return falling * heads
    head_bytes = problem.seqlen * 2 * problem.head_dim * ELEMENT_BYTES
    fitting = LPT_L2_BYTES // head_bytes
    section = 1 << (fitting.bit_length() - 1) if fitting else 1
    order: list[int] = []
    for first in range(0, heads, section):
        width = min(section, heads - first)
        order += [n for n in falling for _ in range(width)]
    return order


def _dispatched(lengths: list[float], slots: int) -> tuple[float, float]:
    """(makespan, work) of CTAs handed out in order, each to the SM that is free first."""
    free = [0.0] * slots
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free), sum(lengths)


def _persistent(tiles: list[int], slots: int, cycles: CTACycles) -> tuple[float, float]:
    """(makespan, work): cluster c does tiles c, c + slots, ... one after the other."""
    single = {n: cycles.single(n) for n in set(tiles)}
    added = {n: cycles.added(n) for n in set(tiles)} if cycles.added else single
    ends = []
    for first in range(min(slots, len(tiles))):
        mine = tiles[first::slots]
        ends.append(single[mine[0]] + sum(added[n] for n in mine[1:]))
    return max(ends), sum(ends)
