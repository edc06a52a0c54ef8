"""Records of what was modelled: docs/data/modelled.json has the figures of each kernel, docs/generate.py the tables.

A record is stale if the kernel's PTX has changed since (tests/ptx_digests.json, which tests hold to today's code), or a
constant that its cycles depend on. What no record says is missing. A figure of either has modelled.MARK on its page.
recorded.py says what is recorded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import date
from functools import cache
from multiprocessing import get_context

from benchmarks.cycle_model import cache as files
from benchmarks.cycle_model.kernels import OURS, PACKAGES, ROOT
from cute_fa4.emulator.model.constants import Constant

FILE = ROOT / "docs" / "data" / "modelled.json"
DIGESTS = ROOT / "tests" / "ptx_digests.json"
Constants = dict[str, Constant]


@dataclass(frozen=True)
class Subject:
    """One kernel, doing some work: a record has its figures.

    name      of the record
    kernel    whose PTX it is; several records may be of one kernel, each of other work or other constants
    measure   models it now, and gives its figures; of a kernel that is not ours with its `code` and `ptxas`
    config    of ours: gives its configuration
    """

    name: str
    kernel: str
    constants: Constants
    measure: Callable[[], dict]
    config: Callable[[], object] | None = None
    maker: str = OURS

    @property
    def state(self) -> str:
        """missing, stale, or empty: there is a record of today's code."""
        record = records().get(self.name)
        if record is None:
            return "missing"
        of_code = self.maker == OURS and record["code"] != digests().get(self.kernel)
        return "stale" if of_code or record["constants"] != inside(self.constants) else ""

    @property
    def ptxas(self) -> str | None:
        """What made the machine code of the record."""
        return records().get(self.name, {}).get("ptxas")


Subjects = dict[str, Subject]


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


def entry(subject: Subject, figures: dict) -> dict:
    """The record of figures that were modelled today, with their `code` and `ptxas`."""
    package = PACKAGES.get(subject.maker)
    of = {"package": f"{package[0]} {importlib.metadata.version(package[0])}"} if package else {}
    code = figures["code"]
    rest = {name: figure for name, figure in figures.items() if name != "code"}
    today = date.today().isoformat()
    return {**of, "code": code, "constants": inside(subject.constants), "date": today, **rest}


def measured(subjects: Callable[[], Subjects], names: list[str]) -> dict[str, dict]:
    """The records of these names, modelled now; they are of one kernel."""
    of = [subjects()[name] for name in names]
    compiled = _compiled(of[0]) if of[0].maker == OURS else {}
    return {subject.name: entry(subject, subject.measure() | compiled) for subject in of}


def _compiled(subject: Subject) -> dict:
    """The digest of the PTX of a kernel of ours as it compiles now, and its ptxas."""
    from benchmarks.sass.our_kernel import compile_artifacts
    from cute_fa4.compiler import toolkit

    assert subject.config is not None
    found = compile_artifacts(subject.config())
    return {
        "code": digest_of(normalised(found.ptx)),
        "ptxas": toolkit.ptxas_of(found.cubin),
    }


def write(changed: dict[str, dict], subjects: Subjects) -> None:
    """Put records into the file, and leave out those that no table has."""
    found = {name: record for name, record in (records() | changed).items() if name in subjects}
    lines = (f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    records.cache_clear()


def chosen(subjects: Subjects, words: Iterable[str] | None) -> list[Subject]:
    """Those whose names have these words; None: all that are missing or stale."""
    if words is None:
        return [subject for subject in subjects.values() if subject.state]
    return [subject for subject in subjects.values() if set(words) <= set(subject.name.split())]


def listing(subjects: Subjects, words: Iterable[str] | None) -> list[str]:
    """A line for each that is missing or stale, or whose name has these words, and how many there are."""
    found = [(subject.state or "recorded", subject.name) for subject in chosen(subjects, words)]
    lines = [f"{state:8} {name}" for state, name in found]
    counts = (
        f"{sum(one == state for one, _ in found)} {state}"
        for state in ("missing", "stale", "recorded")
    )
    return [*lines, f"{', '.join(counts)}; {len(subjects)} in all"]


def record(
    subjects: Callable[[], Subjects], words: Iterable[str] | None, processes: int
) -> list[str]:
    """Model what is chosen, kernels in parallel, and write each when it is ready. The errors of those that failed.

    subjects: a function of a module, which each process calls.
    """
    wanted: dict[str, list[str]] = {}
    for subject in chosen(subjects(), words):
        wanted.setdefault(subject.kernel, []).append(subject.name)
    errors = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(measured, subjects, names): kernel for kernel, names in wanted.items()}
        for number, job in enumerate(as_completed(jobs), 1):
            error = job.exception()
            if error is None:
                write(job.result(), subjects())
            else:
                errors.append(f"{jobs[job]}: {error}")
            print(f"{number} of {len(jobs)}: {jobs[job]}", error or "", flush=True)
    return errors
