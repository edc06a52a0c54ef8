"""Paths through kernels that are recorded: none lacks the memory accesses that the emulator executed.

cute_fa4/emulator/model/uncounted.py counts them. EXCEPTIONS names those that are left out, with reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cute_fa4.emulator.model import align, uncounted
from cute_fa4.emulator.model.program import Function
from cute_fa4.emulator.model.trace import Trace

# (words of a kernel's name, kind of access) -> why its paths may lack these.
EXCEPTIONS: dict[tuple[str, str], str] = {}


class UncountedError(RuntimeError):
    """Accesses are on no path: the cycles would leave them out."""


def paths(name: str, function: Function, ptx: str, traces: Sequence[Trace]) -> list[dict]:
    """align.paths for a kernel of this name. UncountedError for accesses on no path that are no exception."""
    found = align.paths(function, ptx, list(traces))
    lacks = uncounted.lacks(traces, found)
    check(name, {lack.kind: lack.text(ptx) for lack in lacks})
    return found


def check(name: str, lacks: dict[str, str]) -> None:
    """lacks: kind -> what a path lacks, in words."""
    wrong = [text for kind, text in lacks.items() if not excepted(name, kind)]
    if wrong:
        raise UncountedError(
            f"{name}: {'; '.join(wrong)}. Load by predicate instead of in a branch, let trace.ALWAYS have the kind, or "
            "name it in EXCEPTIONS of benchmarks/cycle_model/followed.py, with a reason"
        )


def excepted(name: str, kind: str, exceptions: Iterable[tuple[str, str]] | None = None) -> bool:
    """Whether all words of an exception of this kind are in a name."""
    known = EXCEPTIONS if exceptions is None else exceptions
    return any(kind == of and words in name for words, of in known)
