"""`python -m cute_fa4 check --report FILE`: all stages, printed as they end, and the report."""

from __future__ import annotations

from pathlib import Path

from cute_fa4.readiness import (
    basics,
    company,
    contracts,
    endurance,
    figures,
    report,
    runner,
    training,
)
from cute_fa4.readiness.stage import Context, Stage

STAGES: tuple[Stage, ...] = (
    *basics.STAGES[:3],
    *contracts.STAGES,
    *basics.STAGES[3:],
    *training.STAGES,
    *endurance.STAGES[:3],
    *company.STAGES[:3],
    *endurance.STAGES[3:],
    *company.STAGES[3:],
    *figures.STAGES,
)


def run(device: str, path: str, stages: tuple[Stage, ...] = STAGES) -> int:
    """0: every stage that can run here passed; 1: one did not, and the report names it."""
    context, target = Context(device), Path(path)
    if not target.parent.is_dir():
        raise ValueError(
            f"--report {path}: {target.parent} is not a directory; accepted: a file in an existing one"
        )
    numbers = {stage.name: number for number, stage in enumerate(stages, 1)}
    by_name = {stage.name: stage for stage in stages}
    print(f"{len(stages)} stages on {device}; each has a process and a time limit of its own")

    def finished(outcome: runner.Outcome) -> None:
        stage = by_name[outcome.stage]
        print(report.line_of(numbers[stage.name], stage, outcome), flush=True)

    outcomes = runner.run_all(stages, context, finished)
    data = report.as_data(stages, outcomes, context)
    report.write(target, data)
    print("\n".join(line for line in data["head"][1:2] + data["head"][2 + len(stages) :]))
    print(f"report: {target}")
    stopped = any(outcome.status in runner.STOPPING for outcome in outcomes)
    if device == "cuda" and not stopped:
        print("next: python -m cute_fa4 tune --out tuning.toml, the choices between kernels")
    return int(stopped)
