"""Decode from a latent cache (MLA) in the model: one table, with published times."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.cycle_model.decode.problems import ROWS as OF_ROWS
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import Source, ours
from benchmarks.cycle_model.modelled import marked
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

PUBLISHED_FILE = Path(__file__).parents[1] / "published_latent_decode.json"
KEYS, PAGE_SIZE = 8192, 32
# queries, heads, batch, dtype: those that are published, and 16 of 128 heads, an eighth of a node's GPUs.
ROWS = (
    *((1, 128, batch, "bf16") for batch in (1, 32, 64, 128, 256)),
    (4, 128, 256, "bf16"),
    *((1, 128, batch, "e4m3") for batch in (1, 32, 64, 128, 256)),
    *((1, 16, batch, "bf16") for batch in (1, 64, 256)),
    (4, 16, 64, "bf16"),
    (1, 16, 64, "e4m3"),
    *((1, heads, batch, OF_ROWS) for heads in (16, 128) for batch in (1, 64, 256)),
)


def problem_of(
    queries: int, heads: int, batch: int, dtype: str = "bf16", page_size: int = PAGE_SIZE
) -> DecodeProblem:
    shape = dict(
        heads_q=heads, heads_kv=1, head_dim=576, page_size=page_size, latent=True, kv_dtype=dtype,
        dtype="bf16" if dtype == OF_ROWS else dtype,
    )  # fmt: skip
    return DecodeProblem.even(batch, KEYS, queries, **shape)


def operations(heads: int, queries: int, keys: int) -> int:
    """Operations of Q K^T over 576 columns and P V over 512; keys: that each query sees."""
    return 2 * heads * queries * keys * (576 + 512)


def published() -> dict[tuple[int, int, int, str], tuple[float, str]]:
    """(queries, heads, batch, dtype) -> (microseconds, kernel)."""
    rows = json.loads(PUBLISHED_FILE.read_text())["rows"]
    return {
        (queries, 128, batch, dtype): (us, kernel) for dtype, queries, batch, us, kernel in rows
    }


def table(constants: dict[str, Constant], source: Source) -> str:
    known = published()
    lines = [
        "Microseconds of a decode from a latent cache on a B200, **modelled**: 8192 keys a sequence, pages of 32,"
        " stream-K split. Best case: rows that several CTAs of a sequence read come from memory once and otherwise from"
        " L2, without a limit of its bandwidth. Published: the faster of FlashInfer's kernels, measured by"
        " others. `rows`: a cache of 656 bytes a token, under queries of bf16.",
        "",
        "| dtype | heads | q | batch | cute_fa4 | TB/s | TFLOPS | ends | merges | bound by | published | over it |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        queries, heads, batch, dtype = row
        problem = problem_of(*row)
        mine = ours(problem, constants, source=source)
        us, kernel = known.get(row, (None, ""))
        cells = [dtype, heads, queries, batch, marked(f"{mine.us:.1f}", mine)]
        cells += [f"{mine.tb_s(problem):.2f}"]
        cells += [
            f"{operations(heads, queries * batch, KEYS) / mine.us * 1e-6:.0f}",
            f"{mine.set_up_us:.1f}",
            f"{mine.merge_us:.1f}",
        ]
        cells += [mine.bound, f"{us} ({kernel})" if us else "", ratio(us / mine.us) if us else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
