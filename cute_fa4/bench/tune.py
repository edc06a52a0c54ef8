"""Measures the candidates of each choice of the tuning table on a problem, and keeps what wins by more than the noise.

    record     one call: which choices it asks, and with which facts (sm100/blueprint/tuning.py). A backward pass is
               another problem (problems.Training), and asks the choices of its kernels
    candidates the values that its Choice names; one that gives no other kernel, or is refused, is left out
    check      the result of each against float64; a wrong one is never timed
    burst      single launches with a pause before each: a cool chip at its boost clock
    sustained  launches back to back, as long as power decides the clock
    verify     all winners together against the table before; a problem that then loses gives its winners up

Candidates take turns in every round, so that a drift of the clock meets all of them. A winner is faster by more than
the noise when sustained, and not slower by more than that in a burst. Rows hold for the facts that were measured; of
queries, keys and blocks, for lengths within a factor of the square root of two.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cute_fa4.bench import backends
from cute_fa4.bench.problems import Problem, Training, make_dout, make_inputs
from cute_fa4.bench.timing import HOLD_PER_HOST_SECOND, Machine
from cute_fa4.calls import repeat
from cute_fa4.reference import (
    allowed_error,
    attention_float64,
    gradients_by_heads,
    max_error,
)
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.choices import CHOICES, value_text
from cute_fa4.sm100.blueprint.tuning import Row, Tuning
from cute_fa4.system import gains

ROUNDS = 7
REST_SECONDS = 0.05  # before a burst
SUSTAINED_SECONDS = 0.25  # of each candidate in each round
MOST_LAUNCHES = 2000  # of them
BANDED = ("queries", "keys", "blocks")
BASE = "base"


class TuningMachine(Machine, Protocol):
    """What tuning needs of a GPU, in addition to the timing of bench."""

    def rest(self, seconds: float) -> None: ...
    def energy_joules(self) -> float | None: ...


@dataclass(frozen=True)
class Times:
    """Seconds of a launch in each round; watts: mean power while sustained, None: not known."""

    burst: tuple[float, ...]
    sustained: tuple[float, ...]
    watts: float | None = None


@dataclass
class Trial:
    """One choice of one problem. times: by candidate as text, with BASE. wrong, refused: why, by candidate."""

    problem: str
    choice: str
    facts: dict
    chosen: str
    times: dict[str, Times] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Launch:
    """The call of a problem under a table, with plans of its own."""

    def __init__(self, subject: Subject, table: Tuning):
        self.call, self.kernels_of = subject.call, subject.kernels_of
        self.table, self.plans = table, repeat.Plans()

    def __call__(self):
        with tuning.using(self.table), repeat.apart(self.plans):
            return self.call()

    @property
    def kernels(self):
        """What tells kernels and cuts apart, after a call; None: not known."""
        if self.kernels_of is not None:
            with tuning.using(self.table):
                return self.kernels_of()
        plan = self.plans.latest[0]
        return None if plan is None else (plan.functions, getattr(plan, "split", None))


@dataclass
class Subject:
    """A problem with its inputs and its float64 results.

    exact, allowed  of each tensor that `call` returns
    kernels_of      what tells kernels apart under the table of the moment; None: the plan of the call does
    """

    problem: Problem
    call: Callable
    exact: tuple
    allowed: tuple[float, ...]
    kernels_of: Callable | None = None

    @classmethod
    def of(cls, problem: Problem, device) -> Subject:
        inputs = make_inputs(problem, device)
        options: dict[str, Any] = {"causal": problem.causal, "window_size": problem.window_size}
        if isinstance(problem, Training):
            of = inputs.q, inputs.k, inputs.v, make_dout(problem, device)
            call, kernels_of = backends.gradients(problem, inputs, of[-1])
            return cls(problem, call, *gradients_by_heads(*of, **options), kernels_of)
        exact, _ = attention_float64(inputs.q, inputs.k, inputs.v, **options)
        allowed = allowed_error(inputs.q, inputs.k, inputs.v, **options).out
        call = backends.BACKENDS[backends.OURS](problem, inputs)
        return cls(problem, call, (exact,), (allowed,))

    def why_wrong(self, found) -> str | None:
        """found: what `call` returned."""
        results = found if isinstance(found, tuple) else (found,)
        for result, exact, allowed in zip(results, self.exact, self.allowed, strict=True):
            error = max_error(result, exact)
            if not error <= allowed:
                return f"off by {error:.2e} from float64, {allowed:.2e} is allowed"
        return None


def asked(subject: Subject, base: Tuning) -> list[tuple[str, dict, Any]]:
    """(choice, facts, chosen value) for each choice with candidates that the call makes, in their order."""
    with tuning.using(base), tuning.recording() as found, repeat.apart(repeat.Plans()):
        subject.call()
    return [
        (name, dict(facts), value)
        for (name, facts), value in found.items()
        if CHOICES[name].candidates
    ]


def row_facts(facts: dict) -> dict:
    """The facts of the row that a measurement writes.

    >>> row_facts({"keys": 1000, "sms": 148})
    {'keys_from': 708, 'keys_to': 1414, 'sms': 148}
    """
    found = {}
    for name, value in facts.items():
        if name in BANDED:
            found[f"{name}_from"] = math.ceil(value / math.sqrt(2))
            found[f"{name}_to"] = math.floor(value * math.sqrt(2))
        else:
            found[name] = value
    return found


def trial(
    subject: Subject, base: Tuning, choice: tuple[str, dict, Any], machine: TuningMachine
) -> Trial:
    """All candidates of a choice, checked and timed next to the base."""
    name, facts, chosen = choice
    found = Trial(str_of(subject.problem), name, facts, value_text(chosen))
    launches = {BASE: Launch(subject, base)}
    why = subject.why_wrong(launches[BASE]())
    if why:
        found.wrong[BASE] = why
        return found
    for value in CHOICES[name].candidates:
        text = value_text(value)
        if value == chosen:
            continue
        row = Row(row_facts(facts), value)
        launch = Launch(subject, Tuning({name: (row,)}).before(base))
        try:
            why = subject.why_wrong(launch())
        except ValueError as refusal:
            found.refused[text] = str(refusal)
            continue
        if why:
            found.wrong[text] = why
        elif launch.kernels is None or launch.kernels != launches[BASE].kernels:
            launches[text] = launch
    if len(launches) > 1:
        found.times = interleaved(machine, launches)
        for (
            text,
            launch,
        ) in launches.items():  # again, after many launches: a race may show only now
            why = subject.why_wrong(launch())
            if why:
                found.wrong[text] = why
    return found


def interleaved(machine: TuningMachine, launches: Mapping[str, Callable]) -> dict[str, Times]:
    """Times of launches that take turns, in another order in each round."""
    names = list(launches)
    host = {name: _host_seconds(machine, launches[name]) for name in names}
    burst: dict[str, list] = {name: [] for name in names}
    sustained: dict[str, list] = {name: [] for name in names}
    watts: dict[str, list] = {name: [] for name in names}
    for round_ in range(ROUNDS):
        turned = names[round_ % len(names) :] + names[: round_ % len(names)]
        for name in turned:
            machine.rest(REST_SECONDS)
            burst[name].append(_seconds(machine, launches[name], 1, host[name]))
        for name in turned:
            count = SUSTAINED_SECONDS / max(statistics.median(burst[name]), 1e-7)
            count = max(1, min(MOST_LAUNCHES, round(count)))
            before, begin = machine.energy_joules(), machine.now()
            sustained[name].append(_seconds(machine, launches[name], count, host[name]))
            after, end = machine.energy_joules(), machine.now()
            if before is not None and after is not None and end > begin:
                watts[name].append((after - before) / (end - begin))
    return {
        name: Times(
            tuple(burst[name]),
            tuple(sustained[name]),
            statistics.median(watts[name]) if watts[name] else None,
        )
        for name in names
    }


def _host_seconds(machine: TuningMachine, launch: Callable) -> float:
    begin = machine.now()
    launch()
    seconds = machine.now() - begin
    machine.synchronize()
    return seconds


def _seconds(machine: TuningMachine, launch: Callable, count: int, host_seconds: float) -> float:
    """Seconds of a launch: the mean of `count` that follow each other."""
    machine.hold(HOLD_PER_HOST_SECOND * host_seconds * min(count, 8))
    machine.flush_l2()
    begin = machine.mark()
    for _ in range(count):
        launch()
    end = machine.mark()
    machine.synchronize()
    return machine.seconds_between(begin, end) / count


# --- what wins


def gain(base: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Share of the time that `other` saves, of medians.

    >>> gain((4.0, 4.0), (3.0, 3.0))
    0.25
    """
    return 1 - statistics.median(other) / statistics.median(base)


def noise(*samples: tuple[float, ...]) -> float:
    """A share of the time below which samples cannot be told apart: their half quartile ranges, at least LEAST_GAIN."""
    return max(gains.LEAST_GAIN, sum(map(_spread, samples)))


def _spread(sample: tuple[float, ...]) -> float:
    if len(sample) < 2:
        return 0.0
    low, _, high = statistics.quantiles(sample, n=4)
    return (high - low) / 2 / statistics.median(sample)


def wins(base: Times, other: Times) -> bool:
    """Faster by more than the noise when sustained, and not slower by more than that in a burst."""
    faster = gain(base.sustained, other.sustained) > noise(base.sustained, other.sustained)
    return faster and not loses(base, other)


def loses(base: Times, other: Times) -> bool:
    """Slower by more than the noise, sustained or in a burst."""
    pairs = (base.sustained, other.sustained), (base.burst, other.burst)
    return any(gain(before, after) < -noise(before, after) for before, after in pairs)


@dataclass(frozen=True)
class Winner:
    """A row that measurements ask for, with the problems that it was measured on and the mean gain when sustained."""

    choice: str
    row: Row
    problems: tuple[str, ...]
    gain: float


def winners(trials: Iterable[Trial]) -> list[Winner]:
    """For each choice and facts the candidate with the largest mean gain, if it wins somewhere and loses nowhere."""
    groups: dict[tuple, list[Trial]] = {}
    for found in trials:
        key = found.choice, json.dumps(row_facts(found.facts), sort_keys=True)
        groups.setdefault(key, []).append(found)
    chosen = []
    for (choice, _), group in groups.items():
        facts, best = row_facts(group[0].facts), None
        for value in CHOICES[choice].candidates:
            text = value_text(value)
            timed = [t for t in group if text in t.times and BASE in t.times]
            if not timed or any({text, BASE} & set(t.wrong) for t in group):
                continue
            pairs = [(t.times[BASE], t.times[text]) for t in timed]
            if any(loses(*pair) for pair in pairs) or not any(wins(*pair) for pair in pairs):
                continue
            mean = statistics.mean(gain(b.sustained, o.sustained) for b, o in pairs)
            if best is None or mean > best.gain:
                best = Winner(choice, Row(facts, value), tuple(t.problem for t in timed), mean)
        if best is not None:
            chosen.append(best)
    return chosen


def table_of(found: Iterable[Winner], about: dict[str, str]) -> Tuning:
    """The rows of winners. about: who measured, on which device, when."""
    rows: dict[str, list[Row]] = {}
    for winner in found:
        reason = f"{gains.change(-winner.gain)} time, sustained: {'; '.join(winner.problems)}"
        row = Row(winner.row.facts, winner.row.value, {"reason": reason, **about})
        rows.setdefault(winner.choice, []).append(row)
    return Tuning({name: tuple(of_choice) for name, of_choice in rows.items()})


def verified(
    found: list[Winner],
    subjects: dict[str, Callable[[], Subject]],
    base: Tuning,
    machine: TuningMachine,
) -> tuple[list[Winner], list[str]]:
    """Winners that also hold together -> (those, notes). A problem that loses with all of them gives its own up."""
    left, notes = list(found), []
    for name, make in subjects.items():
        mine = [winner for winner in left if name in winner.problems]
        if len(mine) < 2:  # it was measured alone
            continue
        subject = make()
        both = {
            BASE: Launch(subject, base),
            "all": Launch(subject, table_of(left, {}).before(base)),
        }
        why = subject.why_wrong(both["all"]())
        times = {} if why else interleaved(machine, both)
        if why or loses(times[BASE], times["all"]):
            left = [winner for winner in left if winner not in mine]
            names = ", ".join(winner.choice for winner in mine)
            notes.append(f"{name}: {names} together: {why or 'slower than before'}; given up")
    return left, notes


def str_of(problem: Problem) -> str:
    """A problem in words.

    >>> str_of(Problem(2, 1, 4096, 32, 8, 128, causal=True, page_size=16))
    'bf16 causal, pages of 16, d=128, 2 x 32/8, 1 over 4096'
    """
    shape = f"d={problem.head_dim}, {problem.batch} x {problem.heads_q}/{problem.heads_kv}"
    return f"{problem.dtype} {problem}, {shape}, {problem.seqlen_q} over {problem.seqlen_k}"


# --- what is kept for a run that was interrupted


class Progress:
    """Finished trials in a file of lines. head: what they belong to; another head begins anew."""

    def __init__(self, path: Path, head: dict):
        self.path = path
        self.trials: dict[tuple, Trial] = {}
        lines = path.read_text().splitlines() if path.is_file() else []
        if lines and _parsed(lines[0]) == head:
            for line in lines[1:]:
                data = _parsed(line)
                if data is not None:
                    data["times"] = {k: Times(*map(_tuple, v)) for k, v in data["times"].items()}
                    self._keep(Trial(**data))
        else:
            path.write_text(json.dumps(head) + "\n")

    def done(self, problem: str, choice: str, facts: dict) -> Trial | None:
        return self.trials.get((problem, choice, json.dumps(facts, sort_keys=True)))

    def add(self, found: Trial) -> None:
        data = {**vars(found), "times": {k: list(vars(t).values()) for k, t in found.times.items()}}
        with self.path.open("a") as file:
            file.write(json.dumps(data) + "\n")
        self._keep(found)

    def _keep(self, found: Trial) -> None:
        key = found.problem, found.choice, json.dumps(found.facts, sort_keys=True)
        self.trials[key] = found


def _parsed(line: str):
    try:
        return json.loads(line)
    except ValueError:  # the run was stopped while it wrote
        return None


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value
