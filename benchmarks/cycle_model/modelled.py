"""A kernel's cycles, modelled now or recorded, and how a table shows which of them are of today's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, cta_cycles, steady_state
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import Variant
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.emulator.model.starts import STARTS

MARK = " †"
MADE_BY = "Machine code by ptxas"
NAN = float("nan")
BUSY = ("fma", "alu", "convert", "mufu", "uniform", "tmem", "issue", "tensor", "copies")


@dataclass
class Modelled:
    """A kernel with its simulated cycles.

    results  workload -> what has `cycles`
    ptxas    the version that made its machine code
    state    why its cycles are not those of today's code; empty: they are
    """

    variant: Variant
    cycles: CTACycles
    steady: SteadyState
    results: dict
    ptxas: str | None = None
    state: str = ""


Model = Callable[[Variant, dict[str, Constant]], Modelled]


def model(variant: Variant, constants: dict[str, Constant]) -> Modelled:
    """Compile (or read from the cache), align and simulate a kernel."""
    kernel = AlignedKernel.load(variant)
    results = kernel.simulate(constants, STARTS)
    return Modelled(variant, cta_cycles(results), steady_state(results), results, kernel.ptxas)


def unknown(variant: Variant, state: str) -> Modelled:
    """A kernel whose cycles are not known: NaN in every figure."""
    curve = Curve(((1, NAN), (2, NAN)))
    steady = SteadyState(NAN, dict.fromkeys(BUSY, NAN))
    return Modelled(variant, CTACycles(curve, curve), steady, {}, state=state)


def marked(text: str, *kernels) -> str:
    """A figure of what has a `state`, or is None, with MARK if that is not of today's code.

    >>> marked("1200")
    '1200'
    """
    return text + MARK * any(kernel is not None and kernel.state for kernel in kernels)


def made_by(kernels: dict[Variant, Modelled] | Iterable) -> str:
    """The lines below every modelled table: which ptxas made the machine code, and what MARK says."""
    found = list(kernels.values() if isinstance(kernels, dict) else kernels)
    versions = {kernel.ptxas or "unknown" for kernel in found if kernel.state != "missing"}
    lines = [f"{MADE_BY} {', '.join(sorted(versions))}."] if versions else []
    if any(kernel.state for kernel in found):
        lines.append(
            f"{MARK.strip()} stale: of an earlier version of a kernel, or not recorded. `python benchmarks/model.py "
            "--record` models it again."
        )
    return "\n\n".join(lines)
