"""Decode from caches of 8 and 4 bits in the model: one table, compared with 16-bit calls."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.decode.time import CallTime, Source, ours
from benchmarks.cycle_model.modelled import NAN, marked
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

# batch, keys: launches that memory bounds, in the order of their size.
ROWS = ((8, 4096), (8, 16384), (64, 1024), (64, 4096), (64, 16384))
# name -> dtypes of queries and cache.
KINDS = {
    "bf16": ("bf16", "bf16"),
    "e4m3": ("e4m3", "e4m3"),
    "bf16 over e4m3": ("bf16", "e4m3"),
    "bf16 over mxe4m3": ("bf16", "mxe4m3"),
    "bf16 over e2m1": ("bf16", "e2m1"),
}
# Kind -> times the speed of 16 bits that is wanted.
WANTED = {"e4m3": 1.9, "bf16 over e4m3": 1.9, "bf16 over mxe4m3": 1.9, "bf16 over e2m1": 3.2}


def problem_of(batch: int, keys: int, kind: str) -> DecodeProblem:
    """64 heads on 8, one query, pages of 16 keys."""
    dtype, kv_dtype = KINDS[kind]
    return replace(DecodeProblem.even(batch, keys), dtype=dtype, kv_dtype=kv_dtype)


def table(constants: dict[str, Constant], source: Source) -> str:
    lines = [
        "Microseconds of a decode on a B200, **modelled**, d=128, 64 heads on 8, one query, pages of 16 keys, with as "
        "many parts as the call chooses. bf16; all of e4m3 (P, too); queries of bf16 over a cache of e4m3, of e4m3 "
        "with scales of blocks of 32 (MXFP8, mxe4m3), and of e2m1 with scales of blocks of 16 (NVFP4); the kernel "
        "dequantizes them. over: the speed over that of bf16.",
        "",
        "| batch | keys | bf16 |" + "".join(f" {name} | bound by | over |" for name in WANTED),
        "|---|---|---|" + "---|---|---|" * len(WANTED),
    ]
    found = {
        row: {kind: ours(problem_of(*row, kind), constants, source=source) for kind in KINDS}
        for row in ROWS
    }
    for row, times in found.items():
        wide = times["bf16"].us
        cells = [*row, marked(f"{wide:.1f}", *times.values())]
        for name in WANTED:
            mine = times[name]
            cells += [f"{mine.us:.1f}", mine.bound, ratio(wide / mine.us)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", goal(found)])


def goal(found: dict[tuple, dict[str, CallTime]]) -> str:
    """The rows of the table that reach WANTED."""
    said = []
    for name, wanted in WANTED.items():
        over = [times["bf16"].us / times[name].us for times in found.values()]
        reached = sum(each >= wanted for each in over) if sum(over) == sum(over) else NAN
        said.append(f"{wanted} by {name}: {reached} of {len(over)} rows, largest {max(over):.2f}")
    return f"Wanted times the speed of bf16: {'; '.join(said)}."
