"""Only correct results have a speed; tables, JSON and exit status say so."""

import argparse
import json
import warnings
from functools import partial

import pytest
import torch

from cute_fa4 import EmulatorWarning
from cute_fa4.bench import backends, command, report, timing
from cute_fa4.bench.backends import BACKENDS, Unsupported
from cute_fa4.bench.problems import Problem
from cute_fa4.bench.run import run
from cute_fa4.reference import attention_float64
from tests.bench.fake_machine import FakeMachine, recording

# Small enough for float64 on the CPU in milliseconds, with a key tile's edge where the kernel itself runs.
SMALL = Problem(2, 9, 9, 4, 2, 64, causal=True)
DECODE = Problem(2, 1, 30, 4, 2, 64, causal=True)


def exact(problem, inputs):
    """A correct backend."""
    options = {"causal": problem.causal, "window_size": problem.window_size}

    def launch():
        return attention_float64(inputs.q, inputs.k, inputs.v, **options)[0].to(inputs.q.dtype)

    return launch


def loses_a_key(problem, inputs):
    """A backend that forgets the first key."""

    def launch():
        out, _ = attention_float64(inputs.q, inputs.k[:, 1:], inputs.v[:, 1:], causal=True)
        return out.to(inputs.q.dtype)

    return launch


def has_a_race(problem, inputs):
    """A backend that is right the first time only."""
    right, wrong, calls = exact(problem, inputs), loses_a_key(problem, inputs), []

    def launch():
        calls.append(1)
        return right() if len(calls) == 1 else wrong()

    return launch


def is_nan(problem, inputs):
    return lambda: torch.full_like(inputs.q, torch.nan)


def has_no_call(problem, inputs):
    raise Unsupported("no pages")


def crashes(problem, inputs):
    raise RuntimeError("no kernel image\nis available")


ALL = {
    "exact": exact,
    "loses a key": loses_a_key,
    "has a race": has_a_race,
    "is NaN": is_nan,
    "has no call": has_no_call,
    "crashes": crashes,
}


@pytest.fixture(scope="module")
def everything():
    """(machine, results) of every backend above on both problems; 1 ms a launch."""
    machine = FakeMachine(launch_seconds=1e-3)
    wrapped = {name: recording(backend, machine) for name, backend in ALL.items()}
    return machine, run([SMALL, DECODE], wrapped, machine, repeats=3)


def test_only_the_correct_backend_has_a_speed(everything):
    _, results = everything
    assert [(r.backend, r.status) for r in results[: len(ALL)]] == [
        ("exact", "ok"),
        ("loses a key", "wrong"),
        ("has a race", "wrong"),
        ("is NaN", "wrong"),
        ("has no call", "unsupported"),
        ("crashes", "failed"),
    ]
    for result in results:
        correct = result.backend == "exact"
        assert (result.status == "ok") is correct
        for value in (result.seconds, result.tflops, result.gbps):
            assert (value is not None) is correct
        assert bool(result.reason) is not correct


def test_speed_is_work_over_the_median(everything):
    _, results = everything
    for result in results:
        if result.status == "ok":
            assert result.tflops == pytest.approx(result.problem.flops / 1e-3 / 1e12)
            assert result.gbps == pytest.approx(result.problem.bytes / 1e-3 / 1e9)


def test_what_is_wrong_at_once_is_not_timed():
    machine = FakeMachine()
    [result] = run([SMALL], {"x": recording(loses_a_key, machine)}, machine, repeats=3)
    assert machine.calls == ["launch"]
    assert result.error > result.allowed
    assert (
        f"off by {result.error:.2e} from float64, {result.allowed:.2e} is allowed" in result.reason
    )


def test_what_becomes_wrong_while_it_is_timed_loses_its_speed():
    machine = FakeMachine()
    [result] = run([SMALL], {"x": recording(has_a_race, machine)}, machine, repeats=3)
    assert machine.calls.count("mark") == 2 * 3
    assert result.reason.startswith("after 3 launches, the result is wrong")


@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        Problem(1, 130, 130, 1, 1, 64, window=5, dtype="fp16"),
        Problem(2, 1, 20, 4, 1, 64, causal=True, page_size=8),
    ],
    ids=["causal", "window", "paged decode"],
)
def test_the_kernel_itself_is_correct_here_and_its_time_the_fake_clocks(problem, monkeypatch):
    monkeypatch.setattr(timing, "LAUNCHES_A_ROUND", 1)
    machine = FakeMachine(launch_seconds=5e-4, host_seconds=1.0)  # a warm-up of one round
    backend = recording(backends.cute_fa4, machine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        [result] = run([problem], {"cute_fa4": backend}, machine, repeats=1)
    assert result.status == "ok", result.reason
    assert 0 < result.error <= result.allowed
    assert result.seconds == 5e-4


@pytest.mark.parametrize("problem", [SMALL, DECODE, Problem(1, 5, 9, 2, 2, 64)], ids=str)
def test_torchs_function_is_asked_for_the_same_problem(problem):
    machine = FakeMachine()
    math = recording(partial(backends._sdpa, "MATH"), machine)  # the one that a CPU has
    [result] = run([problem], {"math": math}, machine, repeats=1)
    assert result.status == "ok", result.reason


@pytest.mark.parametrize(
    "problem, why",
    [
        (Problem(1, 4, 9, 2, 2, 64, causal=True), "top left"),
        (Problem(1, 9, 9, 2, 2, 64, window=3), "no window"),
        (Problem(1, 1, 9, 2, 2, 64, page_size=8), "no pages"),
    ],
    ids=["other alignment", "window", "pages"],
)
def test_another_problem_is_not_compared(problem, why):
    [result] = run([problem], {"cudnn": BACKENDS["cudnn"]}, FakeMachine(), repeats=1)
    assert result.status == "unsupported" and why in result.reason


@pytest.mark.parametrize("page_size", [0, 16])
def test_flash_attn_4_is_called_as_its_signature_says(page_size, monkeypatch):
    package = pytest.importorskip("flash_attn.cute", reason="flash-attn-4 is not installed")
    import inspect

    from cute_fa4.bench.problems import make_inputs

    problem = Problem(2, 1, 30, 4, 2, 64, window=8, page_size=page_size)
    name = "flash_attn_varlen_func" if page_size else "flash_attn_func"
    signature = inspect.signature(getattr(package, name))
    given = {}

    def instead(*args, **kwargs):
        given.update(signature.bind(*args, **kwargs).arguments)
        return "out", None

    monkeypatch.setattr(package, name, instead)
    assert backends.flash_attn_4(problem, make_inputs(problem, "cpu"))() == "out"
    assert given["window_size"] == (8, 0) and given["num_splits"] == 0
    assert ("page_table" in given) is bool(page_size)


def test_frost_is_called_as_its_signature_says(monkeypatch):
    package = pytest.importorskip(
        "cudnn.sdpa.fwd.api_dsl", reason="nvidia-cudnn-frontend is not installed"
    )
    import inspect

    from cute_fa4.bench.problems import make_inputs

    name = "sdpa_fwd_wrapper_dsl_sm100"
    signature = inspect.signature(getattr(package, name))
    given = {}

    def instead(*args, **kwargs):
        given.update(signature.bind(*args, **kwargs).arguments)
        return {"o_tensor": given["q_tensor"]}

    monkeypatch.setattr(package, name, instead)
    inputs = make_inputs(Problem(2, 20, 30, 4, 2, 64, causal=True), "cpu")
    out = backends.frost(Problem(2, 20, 30, 4, 2, 64, causal=True), inputs)()
    assert out.shape == (2, 20, 4, 64) and given["k_tensor"].shape == (2, 2, 30, 64)
    assert given["is_causal"] and given["causal_bottom_right"]


@pytest.mark.parametrize(
    "problem",
    [DECODE, Problem(1, 9, 9, 2, 2, 64, page_size=8), Problem(1, 9, 9, 2, 2, 64, window=3)],
    ids=["decode", "pages", "window"],
)
def test_frost_is_called_for_prefill_only(problem):
    [result] = run([problem], {"frost": backends.frost}, FakeMachine(), repeats=1)
    assert result.status == "unsupported" and "for prefill without pages" in result.reason


@pytest.mark.parametrize(
    "module, backend, problem",
    [
        ("flash_attn.cute", backends.flash_attn_4, DECODE),
        ("cudnn.sdpa.fwd.api_dsl", backends.frost, Problem(1, 9, 9, 2, 2, 64)),
    ],
    ids=["flash-attn-4", "FROST"],
)
def test_without_a_package_the_table_says_so(module, backend, problem, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    [result] = run([problem], {"theirs": backend}, FakeMachine(), repeats=1)
    assert result.status == "unsupported" and "not installed" in result.reason


def test_the_table_has_the_speeds_and_the_reasons(everything):
    _, results = everything
    lines = report.lines(results)
    [prefill] = [line for line in lines if line.startswith("TFLOPS")]
    [decode] = [line for line in lines if line.startswith("GB/s")]
    assert lines.index(prefill) < lines.index(decode)
    for heading, result in ((prefill, results[0]), (decode, results[len(ALL)])):
        row = lines[lines.index(heading) + 1]
        speed = result.gbps if result.problem.is_decode else result.tflops
        assert f"{speed:.2f} " in row
        # Five backends without a number, and every mark explained once.
        assert row.count("[") == len(ALL) - 1
    notes = [line for line in lines if line.startswith("[")]
    assert len(notes) == len(set(notes))
    assert any("crashes: RuntimeError: no kernel image" in note for note in notes)
    assert any("loses a key: the result is wrong" in note for note in notes)


PROBLEM_FIELDS = {
    "batch": int,
    "seqlen_q": int,
    "seqlen_k": int,
    "heads_q": int,
    "heads_kv": int,
    "head_dim": int,
    "causal": bool,
    "window": (int, type(None)),
    "page_size": int,
    "dtype": str,
    "flops": int,
    "bytes": int,
}
ALWAYS = {"backend": str, "status": str, "reason": str}
ONLY_OF_CORRECT = {
    "median_seconds": float,
    "seconds": list,
    "host_seconds": float,
    "tflops": float,
    "gbps": float,
    "clock": dict,
}


def test_json_has_this_schema(everything):
    machine, results = everything
    data = json.loads(json.dumps(report.as_data(results, machine.describe(), 3), allow_nan=False))
    assert set(data) == {"schema", "machine", "python", "versions", "method", "results"}
    assert data["schema"] == 1
    assert {"cute-fa4", "torch", "nvidia-cutlass-dsl", "flash-attn-4"} <= set(data["versions"])
    assert data["method"]["repeats"] == 3
    assert len(data["results"]) == 2 * len(ALL)
    fields = {**PROBLEM_FIELDS, **ALWAYS, **ONLY_OF_CORRECT}
    for row in data["results"]:
        assert set(row) == {*fields, "error", "allowed_error"}
        for name, kind in {**PROBLEM_FIELDS, **ALWAYS}.items():
            assert isinstance(row[name], kind), name
        for name, kind in ONLY_OF_CORRECT.items():
            assert isinstance(row[name], kind if row["status"] == "ok" else type(None)), name


# --- the command line


def options(*arguments):
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    return parser.parse_args(arguments)


def test_the_default_is_the_published_table():
    found = command.problems(options())
    assert {(p.causal, p.seqlen_q) for p in found} == {
        (causal, length) for causal in (False, True) for length in command.PREFILL_LENGTHS
    }
    for p in found:
        assert p.batch * p.seqlen_q == 32768 and p.heads_q * p.head_dim == 2048
        assert p.seqlen_k == p.seqlen_q and p.group == 1 and not p.page_size


def test_options_say_every_part_of_the_shape():
    [p] = command.problems(
        options(*"--decode --head-dim 64 --seqlen 500 --window 100 --paged 16".split())
    )
    assert (p.seqlen_q, p.seqlen_k, p.head_dim, p.window, p.page_size) == (1, 500, 64, 100, 16)
    assert (p.batch, p.heads_q, p.heads_kv, p.causal) == (64, 32, 8, True)
    [p] = command.problems(
        options(*"--seqlen 9 --no-causal --batch 2 --heads 6 --heads-kv 3 --dtype fp16".split())
    )
    assert p == Problem(2, 9, 9, 6, 3, 128, causal=False, dtype="fp16")


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(options()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "finds no CUDA device" in err and "python -m cute_fa4 check" in err


def test_a_gpu_that_cannot_run_the_kernel_is_told_why(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert command.main(options()) == 2
    assert "compute capability 9.0 cannot run the kernel" in capsys.readouterr().err


@pytest.mark.parametrize("backend, status", [(exact, 0), (loses_a_key, 1), (crashes, 1)])
def test_the_command_prints_writes_and_exits(backend, status, monkeypatch, capsys, tmp_path):
    machine = FakeMachine()
    monkeypatch.setitem(BACKENDS, "cute_fa4", recording(backend, machine))
    file = tmp_path / "bench.json"
    asked = options(
        *"--seqlen 20 --head-dim 64 --batch 1 --heads 2 --causal --repeats 2".split(),
        *("--json", str(file), "--backends", "cute_fa4", "cudnn"),
    )
    assert command.main(asked, machine) == status
    out = capsys.readouterr().out
    assert out.startswith("no GPU: compute capability 10.0") and "TFLOPS" in out
    rows = json.loads(file.read_text())["results"]
    assert [row["backend"] for row in rows] == ["cute_fa4", "cudnn"]
    assert rows[1]["status"] == "failed"  # a CPU has no cuDNN


@pytest.mark.gpu
def test_the_command_measures_on_the_gpu_it_is_made_for(capsys):
    why = command.refusal()
    if why:
        pytest.skip(why)
    small = options(*"--seqlen 512 --batch 2 --repeats 5 --backends cute_fa4 cudnn".split())
    assert command.main(small) == 0
    assert "TFLOPS" in capsys.readouterr().out


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="--backends: fa5; accepted: cute_fa4, flash-attn-4, "):
        command.main(options("--backends", "fa5"), FakeMachine())
