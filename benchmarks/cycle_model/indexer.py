"""The indexer and its top-k in the cycle model, beside what others published.

    python -m benchmarks.cycle_model.indexer             # writes indexer.json; many minutes

logits   cycles of a CTA for tiles of 128 keys and two queries of 64 heads: what the second half of the tiles adds is
         the steady state. FLOPs are counted as DeepGEMM counts them: 2 * heads * 128 for a query and a key that it sees
top-k    cycles of a row with k = 2,048, of one CTA or a cluster. Each further STRETCH of keys of a CTA adds as much as
         the last one that was modelled

Reads of global memory take the latency of the model, and no launch is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.cycle_model.backward import CLOCK_GHZ, SMS
from cute_fa4.calls import indexer as calls
from cute_fa4.emulator.model.profile import Profile
from cute_fa4.emulator.model.report import Profiles, profiling
from cute_fa4.indexer import fp8_mqa_logits, topk_indices
from cute_fa4.sm100.indexer.config import DEPTH, KEYS, STRETCH

DATA = Path(__file__).parent / "indexer.json"
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


def measure(run: Callable, *given) -> Profile:
    """The only kernel of a run."""
    [profile] = run(*given).kernels
    return profile


def busiest(profile: Profile) -> dict[str, float]:
    """The three units that work most of the time, and how much of it."""
    found = sorted(profile.busy.items(), key=lambda of: -of[1])[:3]
    return {unit: round(share, 2) for unit, share in found}


def load() -> dict:
    return json.loads(DATA.read_text())


def steady(found: dict) -> float:
    """Cycles of an SM for a tile of 128 keys and two queries.

    >>> steady({"logits": [{"tiles": 8, "cycles": 5000}, {"tiles": 16, "cycles": 9000}]})
    500.0
    """
    few, many = found["logits"]
    return (many["cycles"] - few["cycles"]) / (many["tiles"] - few["tiles"])


def teraflops(cycles: float) -> float:
    """The speed of all SMs.

    >>> round(teraflops(512))
    2243
    """
    return 2 * QUERIES * HEADS * DEPTH * KEYS / cycles * SMS * CLOCK_GHZ * 1e-3


def of_row(found: dict, ctas: int, keys: int) -> float:
    """Cycles of a row, extrapolated from the longest modelled one by stretches of one CTA.

    >>> rows = [(1, 8192, 9000), (1, 16384, 14000), (8, 65536, 12000)]
    >>> found = {"top-k": [dict(ctas=c, keys=n, cycles=x) for c, n, x in rows]}
    >>> of_row(found, 1, 32768), of_row(found, 8, 131072), of_row(found, 1, 8192)
    (24000.0, 17000.0, 9000.0)
    """
    rows = {(row["ctas"], row["keys"]): row["cycles"] for row in found["top-k"]}
    if (ctas, keys) in rows:
        return float(rows[ctas, keys])
    alone = sorted(n for c, n in rows if c == 1)[-2:]
    a_stretch = (rows[1, alone[1]] - rows[1, alone[0]]) / (alone[1] - alone[0]) * STRETCH
    longest = max(n for c, n in rows if c == ctas and n <= keys)
    return rows[ctas, longest] + (keys - longest) / ctas / STRETCH * a_stretch


def tables() -> dict[str, str]:
    """The two tables of docs/serving/indexer.md, by name."""
    found, published = load(), json.loads(PUBLISHED.read_text())
    cycles = steady(found)
    busy = ", ".join(f"{unit} {share:.0%}" for unit, share in found["logits"][1]["busy"].items())
    logits = [
        "| logits, 64 heads, keys past the first | TFLOPS | busy |",
        "|---|---:|---|",
        f"| cute_fa4, modelled for a B200: {cycles:.0f} cycles for 128 keys and two queries | {teraflops(cycles):,.0f} "
        f"| {busy} |",
    ]
    logits += [f"| [{x['what']}]({x['url']}) | {x['tflops']:,} | |" for x in published["logits"]]
    heads = "| top-k of 2,048, us | " + " | ".join(f"{n:,} keys" for n in TABLE_KEYS) + " |"
    rows = [heads, "|---|" + "---:|" * len(TABLE_KEYS)]
    for ctas in (1, 8):
        us = [of_row(found, ctas, n) / CLOCK_GHZ * 1e-3 for n in TABLE_KEYS]
        name = f"cute_fa4, modelled for a B200, {ctas} CTA{'s' * (ctas > 1)} a row"
        rows.append(f"| {name} | " + " | ".join(f"{x:.1f}" for x in us) + " |")
    for x in published["top-k"]:
        cells = (x["us"].get(str(n), "") for n in TABLE_KEYS)
        rows.append(f"| [{x['what']}]({x['url']}) | " + " | ".join(cells) + " |")
    return {"indexer_logits": "\n".join(logits), "indexer_topk": "\n".join(rows)}


def main() -> None:
    tiles = {n: measure(logits_of, n) for n in TILES}
    logits = [dict(tiles=n, cycles=round(p.cycles), busy=busiest(p)) for n, p in tiles.items()]
    rows = [dict(ctas=c, keys=n, cycles=round(measure(row_of, c, n).cycles)) for c, n in ROWS]
    found = {"logits": logits, "top-k": rows}
    lines = (
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
        for name, rows in found.items()
    )
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(*tables().values(), sep="\n\n")


if __name__ == "__main__":
    main()
