"""Modelled kernels as data: docs/data/modelled.json has the cycles of each, docs/generate.py writes the tables from it.

    python benchmarks/model.py --record --processes 8        models what is missing or stale
    python benchmarks/model.py --record --only "cute_fa4 d64"   the kernels whose name has these words

A record is stale if the kernel's PTX has changed since (tests/ptx_digests.json, which tests hold to today's code), or a
constant that its cycles depend on. A row of a kernel without a record stays as it is printed. Both have modelled.MARK.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.cycle_model import (
    b300,
    calibration,
    depths,
    eight_bits,
    fixed_cost,
    pairs,
    peers,
    report,
    wide,
)
from benchmarks.cycle_model import cache as files
from benchmarks.cycle_model import pages as performance
from benchmarks.cycle_model.evaluate import SteadyState, cta_cycles
from benchmarks.cycle_model.kernels import OURS, PACKAGES, ROOT, THEIRS, Variant
from benchmarks.cycle_model.kernels import load as load_kernel
from benchmarks.cycle_model.modelled import MARK, Modelled, made_by, model, unknown
from cute_fa4.emulator.model.constants import Constant, fitted_b200, of_target

FILE = ROOT / "docs" / "data" / "modelled.json"
DIGESTS = ROOT / "tests" / "ptx_digests.json"
MAKERS = (OURS, THEIRS)
Constants = dict[str, Constant]


class Work(NamedTuple):
    """What CTAs of a record did: key tiles of a work tile, work tiles."""

    tiles: int
    work_tiles: int


@dataclass(frozen=True)
class Cycles:
    cycles: float


def normalised(ptx: str) -> str:
    """PTX without the name of its kernel, which has a hash of the configuration."""
    return re.sub(r"\bcute_fa4_\w+?(?=_param_\d+\b|\b)", "KERNEL", ptx)


def digest_of(ptx: str) -> str:
    """A hash of what PTX says: without comments, which name the compiler, and without the end of the text.

    >>> digest_of("// by a compiler\\n  ret; // begin\\n\\0") == digest_of("  ret;")
    True
    """
    lines = (line.split("//")[0].rstrip() for line in ptx.rstrip("\0").splitlines())
    said = "\n".join(line for line in lines if line)
    return hashlib.sha256(said.encode()).hexdigest()[:24]


# --- which kernels


def kernels() -> dict[str, tuple[Variant, Constants]]:
    """Name of a record -> kernel and constants, of every table that is written from records."""
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
    ]
    found = [(variant, base) for variant in of_b200]
    found += [(v, setting) for v in report.claimed(False) for setting in report.claims(base)]
    found += [
        (Variant.of(m, p, b300.ARCH), b300.constants()) for p in b300.problems() for m in MAKERS
    ]
    return {name_of(*one): one for one in found if not one[0].not_modelled}


def name_of(variant: Variant, constants: Constants) -> str:
    """The kernel, and constants that are not those of its chip."""
    chip = of_target(variant.arch)[0]
    changed = [f"{n} {c.value:g}" for n, c in constants.items() if c.value != chip[n].value]
    return ", ".join([str(variant), *changed])


def own_variants() -> dict[str, Variant]:
    """Our kernels, each once, by name: those whose PTX tests/ptx_digests.json holds."""
    return {str(v): v for v, _ in kernels().values() if v.maker == OURS}


# --- what is recorded


@cache
def records() -> dict[str, dict]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


@cache
def digests() -> dict[str, str]:
    return json.loads(DIGESTS.read_text())["variants"]


def inside(constants: Constants) -> str:
    """A hash of the constants that cycles of a CTA depend on: microseconds belong to launches."""
    return files.key(
        json.dumps({n: c.value for n, c in sorted(constants.items()) if c.unit != "us"})
    )


def state_of(variant: Variant, constants: Constants) -> str:
    """missing, stale, or empty: a record of today's code."""
    record = records().get(name_of(variant, constants))
    if record is None:
        return "missing"
    of_code = variant.maker == OURS and record["code"] != digests().get(str(variant))
    return "stale" if of_code or record["constants"] != inside(constants) else ""


def recorded(variant: Variant, constants: Constants) -> Modelled:
    """The record of a kernel, as modelled.model returns it; without one all figures are NaN."""
    state = state_of(variant, constants)
    if state == "missing":
        return unknown(variant, state)
    record = records()[name_of(variant, constants)]
    results = {Work(tiles, works): Cycles(cycles) for tiles, works, cycles in record["cycles"]}
    steady = SteadyState(record["steady"], record["busy"])
    return Modelled(variant, cta_cycles(results), steady, results, record["ptxas"], state)


def record_of(found: Modelled, constants: Constants, code: str) -> dict:
    """The record of a kernel that was modelled. code: the digest of its PTX."""
    cycles = [(w.tiles, w.work_tiles, round(r.cycles, 2)) for w, r in found.results.items()]
    package = PACKAGES.get(found.variant.maker)
    return {
        **(
            {"package": f"{package[0]} {importlib.metadata.version(package[0])}"} if package else {}
        ),
        "code": code,
        "constants": inside(constants),
        "date": date.today().isoformat(),
        "ptxas": found.ptxas,
        "steady": round(found.steady.cycles, 2),
        "busy": {name: round(share, 4) for name, share in found.steady.busy.items()},
        "cycles": sorted(cycles),
    }


def code_of(variant: Variant) -> str:
    """The digest of the PTX of a kernel as it compiles now."""
    if variant.maker != OURS:
        return digest_of(load_kernel(variant).ptx)
    from benchmarks.cycle_model.our_kernel import config
    from benchmarks.sass.our_kernel import compile_artifacts

    return digest_of(normalised(compile_artifacts(config(variant)).ptx))


def modelled_again(variant: Variant, settings: list[Constants]) -> dict[str, dict]:
    """The records of a kernel with each of these constants, modelled now."""
    code = code_of(variant)
    found = ((constants, model(variant, constants)) for constants in settings)
    return {name_of(variant, c): record_of(one, c, code) for c, one in found}


def write(changed: dict[str, dict]) -> None:
    """Put records into the file, and leave out those that no table has."""
    found = {name: record for name, record in (records() | changed).items() if name in kernels()}
    lines = (f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    records.cache_clear()


def record(words: Iterable[str] | None, processes: int) -> int:
    """Model kernels in parallel and write each when it is ready. words: of their names; None: missing and stale ones.

    How many could not be modelled.
    """
    wanted: dict[Variant, list[Constants]] = {}
    for name, (variant, constants) in kernels().items():
        if state_of(variant, constants) if words is None else set(words) <= set(name.split()):
            wanted.setdefault(variant, []).append(constants)
    failed = 0
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(modelled_again, *one): str(one[0]) for one in wanted.items()}
        for number, job in enumerate(as_completed(jobs), 1):
            error = job.exception()
            failed += error is not None
            if error is None:
                write(job.result())
            print(f"{number} of {len(jobs)}: {jobs[job]}", error or "", flush=True)
    return failed


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
    }


NOT_KNOWN = re.compile(r"\bnan\b")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def kept(table: str, printed: str) -> str:
    """A table whose rows of kernels without a record are as printed, marked; all of it if a text below lacks a figure.

    >>> kept("| 1 | nan † | 7 |\\n| 2 | 3 | 7 |\\n| 3 | nan † | 7 |", "| 1 | 9 | 8 |")
    '| 1 | 9 † | 8 |\\n| 2 | 3 | 7 |\\n| 3 | - † | 7 |'
    """
    known = [_cells(line) for line in printed.splitlines() if line.startswith("|")]
    lines = []
    for line in table.splitlines():
        if not NOT_KNOWN.search(line):
            lines.append(line)
            continue
        if not line.startswith("|"):
            return printed
        cells = _cells(line)
        at = next(n for n, cell in enumerate(cells) if MARK in cell or NOT_KNOWN.search(cell))
        same = [row for row in known if row[:at] == cells[:at] and len(row) == len(cells)]
        if same:
            cells = list(same[0])
        else:
            cells = ["-" if NOT_KNOWN.search(cell) else cell for cell in cells]
        cells[at] = cells[at].removesuffix(MARK) + MARK
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pages(before: dict[Path, str]) -> dict[Path, str]:
    """The pages of docs/performance/ with the tables of records."""
    after = dict(before)
    for name, table in tables().items():
        path = performance.page_of(after, name)
        table = kept(table, performance.printed(after[path], name))
        after[path] = performance.fill(after[path], name, table)
    return after
