"""Runs each stage in a separate process, so that a hang or a crash becomes a result and the report is still written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cute_fa4.readiness.stage import SECONDS_ON_CPU, Context, Stage
from cute_fa4.system import forks

_scratch = forks.ScratchDirectory("cute_fa4-stage-")
PASSED, FAILED, HUNG, CRASHED = "passed", "failed", "hung", "crashed"
LEFT_OUT, NOT_RUN = "left out", "not run"
STOPPING = (FAILED, HUNG, CRASHED)
SHOWN_CHARACTERS = 4000  # of what a stage's process wrote


@dataclass(frozen=True)
class Outcome:
    """status: one of the words above; reason: of any status but "passed"; measured: the stage's result."""

    stage: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    measured: dict = field(default_factory=dict)
    output: str = ""


def command_of(stage: Stage, context: Context, answer: Path) -> list[str]:
    """Starts the process of a stage, which writes its result as JSON."""
    module = "cute_fa4.readiness"
    return [sys.executable, "-m", module, stage.name, context.device, str(answer)]


def run_all(
    stages: Iterable[Stage],
    context: Context,
    finished: Callable[[Outcome], None] = lambda outcome: None,
    command: Callable[[Stage, Context, Path], list[str]] = command_of,
) -> list[Outcome]:
    """Runs stages in order until one does not pass; finished(outcome) is called after each."""
    outcomes, stopped = [], False
    for stage in stages:
        if stopped:
            outcome = Outcome(stage.name, NOT_RUN, "an earlier stage did not pass")
        elif stage.needs_gpu and not context.on_gpu:
            outcome = Outcome(stage.name, LEFT_OUT, "the emulator's time says nothing about a GPU")
        else:
            outcome = run_one(stage, context, command)
            stopped = outcome.status in STOPPING
        outcomes.append(outcome)
        finished(outcome)
    return outcomes


def run_one(stage: Stage, context: Context, command=command_of) -> Outcome:
    """Runs one stage, and kills it after its time limit."""
    limit = stage.seconds if context.on_gpu else max(stage.seconds, SECONDS_ON_CPU)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(stage, context, answer),
                stdout=output,
                stderr=subprocess.STDOUT,
                # Output of a stage must be in its log even if it crashes.
                env={**os.environ, "PYTHONUNBUFFERED": "1", **stage.environment},
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        seconds = time.monotonic() - begin
        said = log.read_text(errors="replace")[-SHOWN_CHARACTERS:]
        if status is None:
            return Outcome(stage.name, HUNG, f"ended after {limit} s", seconds, {}, said)
        if not answer.exists():
            return Outcome(stage.name, CRASHED, _how_it_ended(status), seconds, {}, said)
        found = json.loads(answer.read_text())
    if found["reason"]:
        return Outcome(stage.name, FAILED, found["reason"], seconds, {}, said)
    return Outcome(stage.name, PASSED, "", seconds, found["measured"], said)


def _end(process: subprocess.Popen) -> None:
    """Kill the process and its children; a process that waits for a GPU may take a moment to end."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass  # it cannot be killed: the report says that it hung


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"ended by signal {signal.Signals(-status).name}, without an answer"
    return f"ended with status {status}, without an answer"


def answer_of(stage: Stage, context: Context) -> dict:
    """In the stage's process: its result, or why it failed. A CUDA error also fails it."""
    from cute_fa4.readiness.stage import run

    try:
        return {"measured": run(stage, context), "reason": ""}
    except Exception as error:
        text = str(error).strip() or "no message"
        return {"measured": {}, "reason": f"{type(error).__name__}: {text}"}
