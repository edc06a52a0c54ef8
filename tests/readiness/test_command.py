"""The command of the first run: processes, watchdog, verdict, report."""

import json
import sys
import time

import pytest

from cute_fa4 import __main__ as command_line
from cute_fa4.readiness import command, report, runner
from cute_fa4.readiness.stage import Context, Stage, Wrong

CPU = Context("cpu")


def stage(name, **more):
    return Stage(name, f"{name}?", lambda context: {}, f"the file of {name}", **more)


def answering(code: str):
    """A command for the runner: Python that has `answer`, the path, and may write it."""
    head = "import os, sys, time, json, pathlib; answer = pathlib.Path(sys.argv[1])\n"
    return lambda stage, context, answer: [sys.executable, "-c", head + code, str(answer)]


PASS = "answer.write_text(json.dumps({'measured': {'n': 1}, 'reason': ''}))"


def test_a_stage_that_hangs_is_ended_with_its_children(monkeypatch, tmp_path):
    """A child that would write a file three seconds later, after the watchdog's second."""
    late = tmp_path / "late"
    code = f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 3; touch {late}']); time.sleep(60)"
    monkeypatch.setattr(runner, "SECONDS_ON_CPU", 0)
    begin = time.monotonic()
    outcome = runner.run_one(stage("hangs", seconds=1), CPU, answering(code))
    assert (outcome.status, outcome.reason) == ("hung", "ended after 1 s")
    assert time.monotonic() - begin < 30
    time.sleep(3.5)
    assert not late.exists()


@pytest.mark.parametrize(
    "code, status, reason, said",
    [
        (PASS, "passed", "", ""),
        ("print('before'); os.abort()", "crashed", "ended by signal SIGABRT, without an answer", "before"),
        ("sys.exit('no such thing')", "crashed", "ended with status 1, without an answer", "no such thing"),
        ("answer.write_text(json.dumps({'measured': {}, 'reason': 'Wrong: x'}))", "failed", "Wrong: x", ""),
    ],
)  # fmt: skip
def test_how_a_stage_ends_is_what_the_report_says(code, status, reason, said):
    outcome = runner.run_one(stage("one"), CPU, answering(code))
    assert (outcome.status, outcome.reason) == (status, reason)
    assert said in outcome.output


def test_the_environment_of_a_stage_reaches_its_process():
    code = "answer.write_text(json.dumps({'measured': {'word': os.environ['WORD']}, 'reason': ''}))"
    outcome = runner.run_one(stage("one", environment={"WORD": "there"}), CPU, answering(code))
    assert outcome.measured == {"word": "there"}


def test_the_first_stage_that_does_not_pass_ends_the_run():
    stages = (stage("good"), stage("on a gpu", needs_gpu=True), stage("bad"), stage("after"))

    def of(stage, context, answer):
        return answering("os.abort()" if stage.name == "bad" else PASS)(stage, context, answer)

    outcomes = runner.run_all(stages, CPU, command=of)
    assert [o.status for o in outcomes] == ["passed", "left out", "crashed", "not run"]
    line = report.verdict(stages, outcomes, CPU)
    assert line.startswith("STOPPED at stage 3 of 4, 'bad', which crashed")
    assert line.endswith("Look first at: the file of bad")


def test_what_a_stage_raises_is_its_reason():
    def wrong(context):
        raise Wrong("row 3 is off")

    answer = runner.answer_of(Stage("one", "?", wrong, ""), CPU)
    assert answer == {"measured": {}, "reason": "Wrong: row 3 is off"}


def test_the_command_runs_a_stage_in_a_process_and_writes_the_report(tmp_path, capsys):
    """The first stage as it is; its head can be read, the rest is data."""
    path = tmp_path / "report.json"
    assert command.run("cpu", str(path), command.STAGES[:1]) == 0
    text = path.read_text()
    data = json.loads(text)
    assert next(iter(data)) == "head" and data["head"][1].startswith("PASSED: 1 of 1 stages ran")
    assert data["stages"][0]["measured"]["device"] == "cpu (emulator)"
    assert data["head"][1] in capsys.readouterr().out
    assert {each["verdict"] for each in data["assumptions"]} == {"not measured"}


def test_a_report_of_a_chip_has_its_verdicts_in_the_head():
    measured = {
        "device": {"device": "a GPU", "cute_fa4": "1", "ptxas": "13.4.59"},
        "instructions": {"cycles": {"claim": 4000}},
        "machine": {"constants": {"clock_ghz": 1.85}},
        "bench": {"lines": ["TFLOPS ..."]},
    }
    stages = tuple(stage(name) for name in measured)
    outcomes = [runner.Outcome(name, "passed", measured=found) for name, found in measured.items()]
    head = report.as_data(stages, outcomes, Context("cuda"))["head"]
    assert "refuted      claim: assumed 1000 cycles, measured 4000" in head
    assert "confirmed    clock_ghz: assumed 1.85 GHz, measured 1.85" in head
    assert head[0] == "cute_fa4 1 on a GPU, ptxas 13.4.59" and head[-1] == "TFLOPS ..."
    assert "the emulator" not in head[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--report", "x.json"], "give --device cuda"),
        (["--report", "x.json", "--device", "cpu", "--load", "d"], "and no --load"),
        (["--report", "/no/such/x.json", "--device", "cpu"], "/no/such is not a directory"),
    ],
)
def test_what_cannot_be_reported_is_refused(arguments, message, capsys):
    assert command_line.main(["check", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_without_a_gpu_the_first_stage_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is there")
    outcomes = runner.run_all(command.STAGES[:2], Context("cuda"))
    assert [o.status for o in outcomes] == ["failed", "not run"]
    assert "finds no CUDA device" in outcomes[0].reason
