"""The indexer and its top-k in the cycle model, beside what others published.

logits   cycles of a CTA for tiles of 128 keys and two queries of 64 heads: what the second half of the tiles adds is
         the steady state. FLOPs are counted as DeepGEMM counts them: 2 * heads * 128 for a query and a key that it sees
top-k    cycles of a row with k = 2,048, of one CTA or a cluster. Each further STRETCH of keys of a CTA adds as much as
         the last one that was modelled

Reads of global memory take the latency of the model, and no launch is counted.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.cycle_model import profiled
from benchmarks.cycle_model.backward import CLOCK_GHZ, SMS
from benchmarks.cycle_model.modelled import made_by, marked
from benchmarks.cycle_model.profiled import Cost, Cycles, Launch
from cute_fa4.calls import indexer as calls
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.indexer import fp8_mqa_logits, topk_indices
from cute_fa4.sm100.indexer.config import DEPTH, KEYS, STRETCH, IndexerConfig, TopKConfig

PUBLISHED = Path(__file__).parent / "published_indexer.json"
HEADS, QUERIES, TOP_K = 64, 2, 2048
TILES = 8, 16
ROWS = (1, 8192), (1, 16384), (8, 16384), (8, 65536)  # CTAs of a row, keys
TABLE_KEYS = 16384, 65536, 131072


def logits_of(tiles: int) -> Profiles:
    """A CTA with so many tiles of keys."""
    keys, e4m3 = tiles * KEYS, torch.float8_e4m3fn
    q, k = torch.ones(QUERIES, HEADS, DEPTH).to(e4m3), torch.ones(keys, DEPTH).to(e4m3)
    first, end = torch.zeros(2, QUERIES, dtype=torch.int32)
    with profiling() as found, patch.object(calls, "tiles_each", lambda *given: tiles):
        fp8_mqa_logits(q, (k, torch.ones(keys)), torch.ones(QUERIES, HEADS), first, end + keys)
    return found


def row_of(ctas: int, keys: int) -> Profiles:
    """A row of normally distributed logits."""
    logits = torch.randn(1, keys, generator=torch.Generator().manual_seed(0))
    with profiling() as found, patch.object(calls, "ctas_of_row", lambda *given: ctas):
        topk_indices(logits, TOP_K)
    return found


def logits(tiles: int) -> Launch:
    """A CTA with so many tiles of keys."""
    run = partial(logits_of, tiles)
    config = IndexerConfig(HEADS, QUERIES)
    return Launch(f"indexer logits {tiles} tiles", "indexer logits", run, lambda: config)


def row(ctas: int, keys: int) -> Launch:
    """The top-k of a row of so many keys by one CTA or a cluster."""
    kernel = f"indexer topk {ctas} CTAs"
    return Launch(
        f"{kernel} {keys} keys", kernel, partial(row_of, ctas, keys), lambda: TopKConfig(ctas=ctas)
    )


def launches() -> list[Launch]:
    """Every launch of both tables."""
    return [*map(logits, TILES), *(row(*one) for one in ROWS)]


def busiest(found: Cycles) -> str:
    """The three units that work most of the time, and how much of it."""
    of = sorted(found.busy.items(), key=lambda of: -of[1])[:3]
    return ", ".join(f"{unit} {share:.0%}" for unit, share in of) or "nan"


def steady(few: Cycles, many: Cycles) -> float:
    """Cycles of an SM for a tile of 128 keys and two queries, from those of TILES.

    >>> steady(Cycles(5000, {}), Cycles(9000, {}))
    500.0
    """
    return (many.cycles - few.cycles) / (TILES[1] - TILES[0])


def teraflops(cycles: float) -> float:
    """The speed of all SMs.

    >>> round(teraflops(512))
    2243
    """
    return 2 * QUERIES * HEADS * DEPTH * KEYS / cycles * SMS * CLOCK_GHZ * 1e-3


def of_row(rows: dict[tuple[int, int], float], ctas: int, keys: int) -> float:
    """Cycles of a row, extrapolated from the longest modelled one by stretches of one CTA.

    rows: (CTAs of a row, keys) -> cycles

    >>> rows = {(1, 8192): 9000, (1, 16384): 14000, (8, 65536): 12000}
    >>> of_row(rows, 1, 32768), of_row(rows, 8, 131072), of_row(rows, 1, 8192)
    (24000.0, 17000.0, 9000.0)
    """
    if (ctas, keys) in rows:
        return float(rows[ctas, keys])
    alone = sorted(n for c, n in rows if c == 1)[-2:]
    a_stretch = (rows[1, alone[1]] - rows[1, alone[0]]) / (alone[1] - alone[0]) * STRETCH
    longest = max(n for c, n in rows if c == ctas and n <= keys)
    return rows[ctas, longest] + (keys - longest) / ctas / STRETCH * a_stretch


def tables(cost: Cost = profiled.recorded) -> dict[str, str]:
    """The two tables of docs/serving/indexer.md, by name."""
    published = json.loads(PUBLISHED.read_text())
    few, many = (cost(logits(tiles)) for tiles in TILES)
    cycles = steady(few, many)
    of_logits = [
        f"Logits of {HEADS} heads; cycles of {KEYS} keys past the first and {QUERIES} queries.",
        "",
        "| kernel | cycles | TFLOPS | busy |",
        "|---|---:|---:|---|",
        f"| cute_fa4, modelled for a B200 | {marked(f'{cycles:.0f}', few, many)} | {teraflops(cycles):,.0f} "
        f"| {busiest(many)} |",
    ]
    of_logits += [
        f"| [{x['what']}]({x['url']}) | | {x['tflops']:,} | |" for x in published["logits"]
    ]
    heads = "| top-k of 2,048, us | " + " | ".join(f"{n:,} keys" for n in TABLE_KEYS) + " |"
    of_rows = [heads, "|---|" + "---:|" * len(TABLE_KEYS)]
    found = {one: cost(row(*one)) for one in ROWS}
    known = {one: each.cycles for one, each in found.items()}
    for ctas in (1, 8):
        us = [of_row(known, ctas, n) / CLOCK_GHZ * 1e-3 for n in TABLE_KEYS]
        cells = [f"cute_fa4, modelled for a B200, {ctas} CTA{'s' * (ctas > 1)} a row"]
        cells += [f"{x:.1f}" for x in us]
        cells[1] = marked(cells[1], *found.values())
        of_rows.append("| " + " | ".join(cells) + " |")
    for x in published["top-k"]:
        cells = (x["us"].get(str(n), "") for n in TABLE_KEYS)
        of_rows.append(f"| [{x['what']}]({x['url']}) | " + " | ".join(cells) + " |")
    return {
        "indexer_logits": "\n".join([*of_logits, "", made_by([few, many])]),
        "indexer_topk": "\n".join([*of_rows, "", made_by(found.values())]),
    }
