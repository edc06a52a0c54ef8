"""The report: one JSON file that starts with a readable summary.

{"head": ["cute_fa4, first run: ...", ...], "schema": 1, "device": ..., "date": ...,
 "stages": [{"stage", "asks", "status", "reason", "seconds", "measured", "output", "suspect"}],
 "assumptions": [{"name", "assumed", "measured", "verdict"}]}
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from cute_fa4.readiness import assumptions
from cute_fa4.readiness.runner import PASSED, STOPPING, Outcome
from cute_fa4.readiness.stage import Context, Stage

SCHEMA = 1


def verdict(stages: tuple[Stage, ...], outcomes: list[Outcome], context: Context) -> str:
    """The run in one line."""
    where = "on the GPU" if context.on_gpu else "on the emulator, which says nothing about a chip"
    for stage, outcome in zip(stages, outcomes, strict=True):
        if outcome.status in STOPPING:
            return (
                f"STOPPED at stage {stages.index(stage) + 1} of {len(stages)}, {stage.name!r}, which {outcome.status}: "
                f"{outcome.reason}. Look first at: {stage.suspect}"
            )
    passed = sum(outcome.status == PASSED for outcome in outcomes)
    return f"PASSED: {passed} of {len(stages)} stages ran and passed {where}"


def line_of(number: int, stage: Stage, outcome: Outcome) -> str:
    """One stage in one line."""
    why = f": {outcome.reason}" if outcome.reason else ""
    return f"{number:2} {stage.name:28} {outcome.status:9} {outcome.seconds:6.1f} s{why}"


def as_data(stages: tuple[Stage, ...], outcomes: list[Outcome], context: Context) -> dict:
    """The report, ready for JSON."""
    measured = {outcome.stage: outcome.measured for outcome in outcomes}
    found = assumptions.verdicts(measured)
    counts = Counter(each.verdict for each in found)
    numbered = enumerate(zip(stages, outcomes, strict=True), 1)
    said = [each.line for each in found if each.verdict != assumptions.NOT_MEASURED]
    open_ones = [each.name for each in found if each.verdict == assumptions.NOT_MEASURED]
    device = measured.get("device", {})
    return {
        "head": [
            f"cute_fa4 {device.get('cute_fa4', '')} on {device.get('device', context.device)}, "
            f"ptxas {device.get('ptxas')}",
            verdict(stages, outcomes, context),
            *(line_of(number, *pair) for number, pair in numbered),
            "assumptions: " + ", ".join(f"{n} {word}" for word, n in sorted(counts.items())),
            *said,
            f"not measured: {', '.join(open_ones) or 'none'}",
            *measured.get("bench", {}).get("lines", ()),
        ],
        "schema": SCHEMA,
        "device": context.device,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "stages": [
            {"asks": stage.asks, **asdict(outcome), "suspect": stage.suspect}
            for stage, outcome in zip(stages, outcomes, strict=True)
        ],
        "assumptions": [asdict(each) for each in found],
    }


def write(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=1, default=str) + "\n")
