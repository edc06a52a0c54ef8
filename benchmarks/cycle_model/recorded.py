"""The kernels that are recorded, and the tables of their records (docs/data/modelled.json), for docs/generate.py.

    python benchmarks/model.py --record --list               what no record has, or one of earlier code or constants
    python benchmarks/model.py --record --processes 8        models it
    python benchmarks/model.py --record --only "cute_fa4 d64"   the kernels whose name has these words

records.py says when a record is stale. A row of a kernel without a record stays as it is printed. Both have
modelled.MARK.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.cycle_model import (
    append,
    b300,
    backward,
    block_sparse,
    calibration,
    converted_lists,
    copy_cost,
    cut_lists,
    depths,
    dequantized,
    eight_bits,
    fixed_cost,
    indexer,
    instruction_cache,
    invariance,
    listed_backward,
    memory_bound,
    pairs,
    peers,
    profiled,
    records,
    report,
    skipped_tiles,
    wide,
)
from benchmarks.cycle_model import pages as performance
from benchmarks.cycle_model.decode import check as decode_check
from benchmarks.cycle_model.decode import latent, narrow, recording, sparse_latent
from benchmarks.cycle_model.decode import problems as decode_problems
from benchmarks.cycle_model.decode import report as decode_report
from benchmarks.cycle_model.evaluate import SteadyState, cta_cycles
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.kernels import load as load_kernel
from benchmarks.cycle_model.modelled import MADE_BY, MARK, Modelled, made_by, model, unknown
from benchmarks.cycle_model.records import Constants, Subject, Subjects, digest_of
from cute_fa4.emulator.model.constants import fitted_b200, of_target

MAKERS = (OURS, THEIRS)


class Work(NamedTuple):
    """What CTAs of a record did: key tiles of a work tile, work tiles, parts of each."""

    tiles: int
    work_tiles: int
    parts: int = 1


@dataclass(frozen=True)
class Cycles:
    cycles: float


# --- which kernels


def kernels() -> dict[str, tuple[Variant, Constants]]:
    """Name of a record -> kernel and constants, of the tables whose rows are launches of a kernels.Variant."""
    base = fitted_b200()
    of_b200 = [
        *report.variants(MAKERS),
        *report.claimed(),
        *(row.variant for row in calibration.published_rows()),
        *(v for problem in pairs.problems() for v in pairs.both(problem)),
        *(Variant.of(THEIRS, problem) for problem in pairs.problems()),
        *(v for problem in depths.latent_problems() for v in depths.latent_variants(problem)),
        *(depths.variant_of(*both) for both in depths.depths()),
        *(v for problem in wide.problems() for v in wide.variants(problem)),
        *(Variant.of(maker, p) for p in eight_bits.problems() for maker in MAKERS),
        *filter(None, map(peers.frost, peers.CALLS)),
        *peers.KERNELS,
        *block_sparse.variants(MAKERS),
        *cut_lists.variants(),
        *copy_cost.PREFILL,
    ]
    found = [(variant, base) for variant in of_b200]
    found += [(v, setting) for v in report.claimed(False) for setting in report.claims(base)]
    found += [
        (Variant.of(m, p, b300.ARCH), b300.constants()) for p in b300.problems() for m in MAKERS
    ]
    found += [one for causal in (True, False) for one in invariance.kernels(causal, base)]
    return {name_of(*one): one for one in found if not one[0].not_modelled}


def name_of(variant: Variant, constants: Constants) -> str:
    """The kernel, and constants that are not those of its chip."""
    chip = of_target(variant.arch)[0]
    changed = [f"{n} {c.value:g}" for n, c in constants.items() if c.value != chip[n].value]
    return ", ".join([str(variant), *changed])


def of_variant(variant: Variant, constants: Constants) -> Subject:
    from benchmarks.cycle_model.our_kernel import config

    return Subject(
        name_of(variant, constants),
        str(variant),
        constants,
        partial(measure, variant, constants),
        partial(config, variant) if variant.maker == OURS else None,
        variant.maker,
    )


def decode_calls() -> list[tuple[decode_problems.DecodeProblem, dict]]:
    """Every call of decode of the tables, and what call_of takes besides."""
    plain = [
        *decode_problems.problems(),
        *(latent.problem_of(*row) for row in latent.ROWS),
        *(sparse_latent.problem_of(*row) for row in sparse_latent.ROWS),
        *(sparse_latent.decode_problem_of(*row[:2]) for row in sparse_latent.decode_rows()),
        *(narrow.problem_of(*row, kind) for row in narrow.ROWS for kind in narrow.KINDS),
        *peers.decode_problems(),
    ]
    return [*((problem, {}) for problem in plain), *invariance.calls()]


@cache
def subjects() -> Subjects:
    """Everything that is recorded, by name. ValueError if kernels of two configurations have one name."""
    base = fitted_b200()
    launches = [
        *block_sparse.launches(base),
        *cut_lists.launches(base),
        *converted_lists.launches(),
        *skipped_tiles.launches(),
        *indexer.launches(),
        *backward.launches(),
        *listed_backward.launches(),
    ]
    found = [
        *(of_variant(*one) for one in kernels().values()),
        *recording.subjects(decode_calls(), decode_problems.problems(), base),
        *profiled.subjects(launches),
        *map(instruction_cache.subject, instruction_cache.KERNELS),
        *map(copy_cost.subject, copy_cost.PAGE_SIZES),
        *dequantized.subjects(base),
        *(append.subject(kind, base) for kind in append.KINDS),
    ]
    configs: dict[str, object] = {}
    for subject in found:
        if subject.config is not None:
            config = subject.config()
            if configs.setdefault(subject.kernel, config) != config:
                raise ValueError(f"two kernels are called {subject.kernel}")
    return {subject.name: subject for subject in found}


def own_kernels() -> Subjects:
    """A subject of each of our kernels, by its name in tests/ptx_digests.json."""
    return {one.kernel: one for one in subjects().values() if one.maker == OURS}


# --- records of variants


def recorded(variant: Variant, constants: Constants) -> Modelled:
    """The record of a kernel, as modelled.model returns it; without one all figures are NaN."""
    subject = of_variant(variant, constants)
    if subject.state == "missing":
        return unknown(variant, subject.state)
    record = records.records()[subject.name]
    results = {Work(*work): Cycles(cycles) for *work, cycles in record["cycles"]}
    steady = SteadyState(record["steady"], record["busy"])
    return Modelled(variant, cta_cycles(results), steady, results, record["ptxas"], subject.state)


def figures_of(found: Modelled) -> dict:
    """The figures that a record has of a kernel that was modelled."""
    rows = []
    for work, result in found.results.items():
        parts = getattr(work, "parts", 1)
        rows.append((work.tiles, work.work_tiles, *[parts] * (parts > 1), round(result.cycles, 2)))
    return {
        "ptxas": found.ptxas,
        "steady": round(found.steady.cycles, 2),
        "busy": {name: round(share, 4) for name, share in found.steady.busy.items()},
        "cycles": sorted(rows),
    }


def measure(variant: Variant, constants: Constants) -> dict:
    """The figures of a kernel, modelled now."""
    figures = figures_of(model(variant, constants))
    return (
        figures
        if variant.maker == OURS
        else {"code": digest_of(load_kernel(variant).ptx), **figures}
    )


# --- the tables


def tables() -> dict[str, str]:
    """By the marks of the pages."""
    constants = fitted_b200()
    found = {v: recorded(v, constants) for v in report.variants(MAKERS)}
    rows = report.rows(found, constants)
    theirs = {row.variant: recorded(row.variant, constants) for row in calibration.published_rows()}
    of_speeds = {
        "speeds": report.table(rows, found),
        "pages": report.pages_table(rows, found),
        "orders": report.orders_table(found, constants),
        "claims": report.claims_table(found, constants, recorded),
        "steady": report.steady_table(found),
    }
    of_theirs = {"calibration": report.calibration_table(theirs, constants)}
    if not any(one.state == "missing" for one in theirs.values()):  # nothing can be fitted to NaN
        cycles = {variant: one.cycles for variant, one in theirs.items()}
        of_theirs["fixed_cost"] = fixed_cost.table(cycles, constants)
    return {
        **{name: f"{table}\n\n{made_by(found)}" for name, table in of_speeds.items()},
        **{name: f"{table}\n\n{made_by(theirs)}" for name, table in of_theirs.items()},
        **pairs.tables(MAKERS, constants, recorded),
        **depths.tables(MAKERS, constants, recorded),
        **wide.tables(MAKERS, constants, recorded),
        **eight_bits.tables(MAKERS, constants, recorded),
        "b300": b300.table(MAKERS, recorded),
        **block_sparse.tables(MAKERS, constants, recorded),
        **cut_lists.tables(constants, recorded),
        **_with_source(lambda source: invariance.tables(constants, recorded, source)),
        **decode_tables(constants),
        **indexer.tables(),
        "backward": backward.table(),
        "backward_sustained": backward.sustained_table(),
        "listed_backward": listed_backward.table(),
        "instruction_caches": instruction_cache.table(),
        "page_sizes": copy_cost.recorded_table(),
        "page_prefill": copy_cost.prefill_table(constants, recorded),
        "prefill_cache": dequantized.table(constants, recorded),
        "append": append.table(constants),
        "converted_lists": converted_lists.table(constants),
        "skipped_tiles": skipped_tiles.table(constants, recorded),
        "constants": report.constants_table(constants),
        "memory_bound": memory_bound.table(),
    }


def decode_tables(constants: Constants) -> dict[str, str]:
    """Tables of the pages of decode: modelled, published, and the check of the method."""
    check = decode_check.Check()

    def of_calls(source) -> dict[str, str]:
        found = decode_report.rows(constants, source)
        return {
            "decode_modelled": decode_report.table(found),
            "decode_short": decode_report.short_table(found, constants),
        }

    return {
        **_with_source(of_calls),
        **_with_source(lambda source: {"latent_decode": latent.table(constants, source)}),
        **_with_source(lambda source: {"sparse_latent": sparse_latent.table(constants, source)}),
        **_with_source(
            lambda source: {"sparse_decode": sparse_latent.decode_table(constants, source)}
        ),
        **_with_source(lambda source: {"narrow_decode": narrow.table(constants, source)}),
        "decode": report.decode_table(),
        "decode_merging": decode_report.merging_table(check),
        "decode_check": decode_report.check_table(check),
    }


def _with_source(make: Callable[[recording.Recorded], dict[str, str]]) -> dict[str, str]:
    """Tables of records of decode; those that do not say what made their kernels get a line that does."""
    source = recording.Recorded()
    made = make(source)
    return {
        name: table if MADE_BY in table else f"{table}\n\n{source.made_by()}"
        for name, table in made.items()
    }


NOT_KNOWN = re.compile(r"\bnan\b")
# Tables whose rows are chosen by their figures: which rows there are without a record is known only from the page.
CHOSEN = ("decode_short",)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _kept_row(line: str, known: list[list[str]]) -> str:
    cells = _cells(line)
    at = next(n for n, cell in enumerate(cells) if MARK in cell or NOT_KNOWN.search(cell))
    same = [row for row in known if row[:at] == cells[:at] and len(row) == len(cells)]
    if same:
        cells = list(same[0])
    else:
        cells = ["-" if NOT_KNOWN.search(cell) else cell for cell in cells]
    cells[at] = cells[at].removesuffix(MARK) + MARK
    return "| " + " | ".join(cells) + " |"


def _kept_text(line: str, known: list[str]) -> str:
    """A text as it is printed, which begins alike; else with a dash for each figure."""
    begin = line[: NOT_KNOWN.search(line).start()]
    same = [text for text in known if text.startswith(begin)]
    return (same[0] if same else NOT_KNOWN.sub("-", line)).removesuffix(MARK) + MARK


def kept(table: str, printed: str, only_printed: bool = False) -> str:
    """A table whose rows and texts of kernels without a record are as printed, marked.

    only_printed: rows without a record that are not on the page are left out

    >>> kept("| 1 | nan † | 7 |\\n| 2 | 3 | 7 |\\n| 3 | nan † | 7 |", "| 1 | 9 | 8 |")
    '| 1 | 9 † | 8 |\\n| 2 | 3 | 7 |\\n| 3 | - † | 7 |'
    >>> kept("mean nan, worst nan\\nof nan", "mean 2, worst 3"), kept("| 1 | nan |", "", only_printed=True)
    ('mean 2, worst 3 †\\nof - †', '')
    """
    printed_lines = printed.splitlines()
    rows = [_cells(line) for line in printed_lines if line.startswith("|")]
    lines = []
    for line in table.splitlines():
        if not NOT_KNOWN.search(line):
            lines.append(line)
        elif line.startswith("|"):
            found = _kept_row(line, rows)
            lines += [found] * (not only_printed or not re.search(rf"\| (-)?{MARK} ", found))
        else:
            lines.append(_kept_text(line, printed_lines))
    return "\n".join(lines)


def pages(before: dict[Path, str]) -> dict[Path, str]:
    """Pages with the tables of records."""
    after = dict(before)
    for name, table in tables().items():
        path = performance.page_of(after, name)
        table = kept(table, performance.printed(after[path], name), name in CHOSEN)
        after[path] = performance.fill(after[path], name, table)
    return after
