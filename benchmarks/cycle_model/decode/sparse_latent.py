"""Sparse prefill and decode over a latent cache in the model: a table of each, with published times.

A query is a sequence, whose keys are the rows that it lists. Rows of a cache that L2 holds come from memory once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cycle_model.decode import latent
from benchmarks.cycle_model.decode.launch import Streaming
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import CallTime, Source, ours
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.modelled import marked
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

PUBLISHED_FILE = Path(__file__).parents[1] / "published_sparse_latent.json"
TOP_K, CACHE_ROWS = 2048, 8192  # rows of 1,152 bytes: 9 MB
DECODE_QUERIES, COLUMNS = 12, 512  # of three sequences; of a row of DeepSeek V4
# heads, queries
ROWS = ((128, 512), (128, 1024), (128, 4096), (64, 512), (64, 4096), (32, 512), (32, 1024))


def problem_of(heads: int, queries: int) -> DecodeProblem:
    """A row of the cache is a page."""
    one = latent.problem_of(1, heads, 1, page_size=1)
    return replace(one, lengths=(TOP_K,) * queries)


def decode_problem_of(heads: int, listed: int) -> DecodeProblem:
    """Few queries, each of which lists so many rows of 512 columns."""
    one = latent.problem_of(1, heads, 1, page_size=1)
    return replace(one, head_dim=COLUMNS, lengths=(listed,) * DECODE_QUERIES)


def decode_rows() -> list[tuple]:
    """(heads, rows that a query lists, their times), of those that are published."""
    return [tuple(row) for row in json.loads(PUBLISHED_FILE.read_text())["decode"]["rows"]]


def operations(heads: int, queries: int) -> int:
    """Operations of a call."""
    return latent.operations(heads, queries, TOP_K)


@dataclass(frozen=True)
class FromL2:
    """A source whose kernels read each of so many rows from memory once."""

    source: Source
    share: float  # of the bytes that they copy

    def attention(self, config, seqlen_q: int, constants: dict[str, Constant]) -> Streaming:
        found = self.source.attention(config, seqlen_q, constants)
        return replace(found, tile_bytes=found.tile_bytes * self.share)

    def their_attention(self, kernel, constants: dict[str, Constant]) -> Streaming:
        return self.source.their_attention(kernel, constants)

    def merge_cycles(self, config, constants: dict[str, Constant]) -> Curve:
        return self.source.merge_cycles(config, constants)


def time_of(heads: int, queries: int, constants: dict[str, Constant], source: Source) -> CallTime:
    cached = FromL2(source, min(1.0, CACHE_ROWS / (queries * TOP_K)))
    return ours(problem_of(heads, queries), constants, source=cached)


def table(constants: dict[str, Constant], source: Source) -> str:
    data = json.loads(PUBLISHED_FILE.read_text())
    known = {(heads, queries): times for heads, queries, *times in data["rows"]}
    lines = [
        "Microseconds of `flash_mla_sparse_fwd` on a B200, **modelled**: rows of 576 columns of bf16, 2048 listed by"
        " each query out of 8192. Best case: rows come from memory once and otherwise from L2, without a limit of its"
        " bandwidth. Published: FlashMLA and trtllm-gen, measured by others, on a GPU that they do not name; over: the"
        " speed of cute_fa4 over theirs.",
        "",
        "| heads | queries | cute_fa4 | TFLOPS | parts | bound by | FlashMLA | over it | trtllm-gen | over it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        mine = time_of(*row, constants, source)
        tflops = operations(*row) / mine.us * 1e-6
        cells = [*row, marked(f"{mine.us:.0f}", mine), f"{tflops:.0f}", mine.parts, mine.bound]
        for us in known.get(row, (None, None)):
            cells += [us or "", ratio(us / mine.us) if us else ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def decode_table(constants: dict[str, Constant], source: Source) -> str:
    lines = [
        f"Microseconds of a decode of {DECODE_QUERIES} queries on a B200, **modelled**: each lists rows of {COLUMNS}"
        " columns of bf16, which come from memory once. Published: cake_sparse_mla and trtllm-gen, measured by others"
        " on a GPU that they do not name; their lists may end earlier. Over: the speed of cute_fa4 over theirs.",
        "",
        "| heads | rows listed | cute_fa4 | parts | bound by | cake_sparse_mla | over it | trtllm-gen | over it |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for heads, listed, *theirs in decode_rows():
        mine = ours(decode_problem_of(heads, listed), constants, source=source)
        cells = [heads, listed, marked(f"{mine.us:.1f}", mine), mine.parts, mine.bound]
        for us in theirs:
            cells += [us, ratio(us / mine.us)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
