"""Launches of which one CTA, or cluster, is modelled alone on its SM: what a table takes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.cycle_model import followed
from benchmarks.cycle_model.kernels import OURS
from benchmarks.cycle_model.modelled import NAN
from benchmarks.cycle_model.records import Constants, Subject, records
from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.emulator.model.report import Profiles


@dataclass(frozen=True)
class Launch:
    """One launch.

    name     of its record
    kernel   whose PTX it is, as in records.Subject
    run      launches it, and gives the profiles
    part     of the name of the kernel, where it launches several
    """

    name: str
    kernel: str
    run: Callable[[], Profiles] = field(compare=False)
    config: Callable[[], object] | None = field(default=None, compare=False)
    part: str = ""
    maker: str = OURS
    constants: Constants = field(default_factory=fitted_b200, compare=False)

    @property
    def subject(self) -> Subject:
        return Subject(
            self.name, self.kernel, self.constants, self.figures, self.config, self.maker
        )

    def figures(self) -> dict:
        """Modelled now."""
        from cute_fa4.compiler import toolkit

        found = self.run()
        try:
            (profile,) = (one for one in found.kernels if self.part in one.kernel)
        except ValueError:
            names = [one.kernel for one in found.kernels]
            raise ValueError(f"{self.name}: {names}, failed {found.failed}") from None
        followed.check(self.name, profile.uncounted)
        busy = {unit: round(share, 2) for unit, share in profile.busy.items()}
        others = {} if self.maker == OURS else {"code": "", "ptxas": toolkit.ptxas()}
        return {**others, "cycles": round(profile.cycles), "busy": busy}


@dataclass(frozen=True)
class Cycles:
    """Of one CTA. busy: unit -> share of its steady state; state, ptxas: as in modelled.Modelled."""

    cycles: float
    busy: dict[str, float]
    state: str = ""
    ptxas: str | None = None


Cost = Callable[[Launch], Cycles]


def recorded(launch: Launch) -> Cycles:
    """The record of a launch; without one its cycles are NaN."""
    subject = launch.subject
    if subject.state == "missing":
        return Cycles(NAN, {}, subject.state)
    record = records()[launch.name]
    return Cycles(record["cycles"], record["busy"], subject.state, subject.ptxas)


def subjects(launches: Iterable[Launch]) -> list[Subject]:
    return [launch.subject for launch in launches]
