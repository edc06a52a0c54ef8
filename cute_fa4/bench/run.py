"""Checks each result, then times it: problems x backends -> results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cute_fa4.bench.backends import Backend, Unsupported
from cute_fa4.bench.problems import Problem, make_inputs
from cute_fa4.bench.timing import Machine, Measurement, measure
from cute_fa4.reference import allowed_error, attention_float64, max_error

REPEATS = 50


@dataclass(frozen=True)
class Result:
    """One backend on one problem. Only status "ok" has a speed.

    status   "ok"           correct before the timing and after it
             "wrong"        the output is further from float64 than a correct kernel may be: not timed, or the
                            timing is discarded
             "unsupported"  the backend has no such call
             "failed"       it raised an error
    reason   of any status but "ok"
    error, allowed   largest |out - float64|, and that of cute_fa4.reference.allowed_error; None: no output
    """

    problem: Problem
    backend: str
    status: str
    reason: str = ""
    error: float | None = None
    allowed: float | None = None
    measurement: Measurement | None = None

    @property
    def seconds(self) -> float | None:
        """Median over the launches."""
        if self.measurement is None or self.status != "ok":
            return None
        return statistics.median(self.measurement.seconds)

    @property
    def tflops(self) -> float | None:
        return None if self.seconds is None else self.problem.flops / self.seconds / 1e12

    @property
    def gbps(self) -> float | None:
        """GB/s, 10^9 bytes: bytes that must be read and written, over the median."""
        return None if self.seconds is None else self.problem.bytes / self.seconds / 1e9


def run(
    problems: Iterable[Problem],
    backends: dict[str, Backend],
    machine: Machine,
    *,
    repeats: int = REPEATS,
    finished: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """Every backend on every problem; finished(result) is called after each."""
    results = []
    for problem in problems:
        inputs = make_inputs(problem, machine.device)
        options: dict[str, Any] = {"causal": problem.causal, "window_size": problem.window_size}
        exact, _ = attention_float64(inputs.q, inputs.k, inputs.v, **options)
        allowed = allowed_error(inputs.q, inputs.k, inputs.v, **options).out
        for name, backend in backends.items():
            results.append(
                _result(problem, name, backend, inputs, exact, allowed, machine, repeats)
            )
            finished(results[-1])
    return results


def _result(problem, name, backend, inputs, exact, allowed, machine, repeats) -> Result:
    try:
        launch = backend(problem, inputs)
        error = max_error(launch(), exact)
        if error > allowed:
            return Result(problem, name, "wrong", _wrong(error, allowed), error, allowed)
        measurement = measure(machine, launch, repeats)
        # Check again after many launches and with a cold L2: a race may show only now.
        machine.flush_l2()
        error = max(error, max_error(launch(), exact))
    except Unsupported as refusal:
        return Result(problem, name, "unsupported", str(refusal))
    except Exception as failure:  # of any of the compared packages
        first_line = (str(failure).strip() or "no message").splitlines()[0]
        return Result(problem, name, "failed", f"{type(failure).__name__}: {first_line}")
    if error > allowed:
        reason = f"after {repeats} launches, {_wrong(error, allowed)}"
        return Result(problem, name, "wrong", reason, error, allowed)
    return Result(problem, name, "ok", "", error, allowed, measurement)


def _wrong(error: float, allowed: float) -> str:
    return f"the result is wrong: off by {error:.2e} from float64, {allowed:.2e} is allowed"
