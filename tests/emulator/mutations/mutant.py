"""A planted defect, and what happened when it ran.

    Mutant   name, edit, the subject it is planted in, the check that is meant to catch it
    Outcome  caught by: the class of the error, or "wrong numbers"; under which schedule; the message

A defect is looked for under one schedule after the other until it is caught. The order is from the tamest to
the most adverse, so that the table shows how much is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cute_fa4.emulator.ptx.errors import EmulatorError

SCHEDULES = (("in_order", 0), ("hostile", 1), ("random", 2))

PATIENCE = tuple(("hostile", seed) for seed in range(2, 26))
"""Tried when SCHEDULES show nothing: some defects need one role to be late at one moment, which about one
hostile seed in four brings about."""

WRONG_NUMBERS = "wrong numbers"

# Classes of errors by the check that raises them: what Mutant.meant is made of.
ORDER = ("RaceError", "RegisterHazard")
IN_FLIGHT = ("InFlightError",)
ASYNCHRONY = (*ORDER, "UninitializedRead")  # something was read before it was written
COUNTS = ("BarrierError",)
HANG = ("Deadlock",)
MEMORY = ("TensorMemoryError",)

BUDGET = 4
"""Warp instructions of a mutant, as a multiple of the unchanged kernel's: polling needs some more."""


@dataclass(frozen=True)
class Mutant:
    """edit: PTX -> PTX. subject: key of SUBJECTS. meant: classes that count as caught by the right check.

    equivalent  why the mutant computes the same under every rule that the level claims, or ""
    survives    why no check can see it, or ""
    """

    name: str
    subject: str
    edit: Callable[[str], str]
    meant: tuple
    equivalent: str = ""
    survives: str = ""


@dataclass
class Outcome:
    """caught_by is "" when no schedule showed anything."""

    mutant: Mutant
    caught_by: str = ""
    schedule: str = ""
    message: str = ""
    kinds: tuple = ()  # caught_by and the classes above it

    @property
    def as_meant(self):
        """Was it the check meant for it? EmulatorError, above all of them, means itself only."""
        kinds = set(self.kinds) - ({"EmulatorError"} - {self.caught_by})
        return bool(kinds & set(self.mutant.meant))


@dataclass
class Subject:
    """Something to plant defects in: run(edit, mode, seed, budget) -> (results, warp instructions).

    results are compared with ==; whatever run raises is what was caught.
    """

    name: str
    run: Callable
    level: str | None = "ptx"

    def __post_init__(self):
        self._expected = None

    def expected(self):
        """(results, instructions) of the unchanged program, the same under every schedule."""
        if self._expected is None:
            for mode, seed in SCHEDULES:
                results, instructions = self.run(None, mode, seed, None)
                if self._expected is None:
                    self._expected = results, instructions
                assert results == self._expected[0], f"{self.name}: {mode} {seed} differs"
        return self._expected


def try_mutant(mutant: Mutant, subject: Subject) -> Outcome:
    """Plant the defect and run it under one schedule after the other until something notices."""
    results, instructions = subject.expected()
    outcome = Outcome(mutant)
    patience = PATIENCE[:3] if mutant.equivalent or mutant.survives else PATIENCE
    for mode, seed in SCHEDULES + patience:
        try:
            found, _ = subject.run(mutant.edit, mode, seed, BUDGET * instructions)
        except EmulatorError as error:
            outcome.caught_by, outcome.message = type(error).__name__, str(error)
            outcome.kinds = tuple(kind.__name__ for kind in type(error).__mro__)
        else:
            if found == results:
                continue
            outcome.caught_by, outcome.message = WRONG_NUMBERS, "results differ"
            outcome.kinds = (WRONG_NUMBERS,)
        outcome.schedule = mode if (mode, seed) in SCHEDULES else f"{mode} {seed}"
        break
    return outcome


def assert_caught(mutant: Mutant, subject: Subject) -> None:
    """The defect is noticed, and by a check that is meant for it."""
    outcome = try_mutant(mutant, subject)
    assert outcome.caught_by, "nothing noticed"
    assert outcome.as_meant, (
        f"caught by {outcome.caught_by}, meant {mutant.meant}: {outcome.message}"
    )
