"""tune: candidates of the table are checked, timed in turn, kept if they win, and a run that stops goes on.

The timer is the test's: it says how long a launch takes under a table. Kernels run on the emulator, once per table.
"""

import argparse
import ctypes
import itertools

import pytest
import torch

from cute_fa4.bench import backends, tune, tune_command
from cute_fa4.bench.nvml import Nvml
from cute_fa4.bench.problems import Problem, Training
from cute_fa4.bench.tune import BASE, Times, Trial, gain, noise, winners, wins
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import choices, tuning
from cute_fa4.sm100.choose.choose_config import config_for
from tests.bench.fake_machine import FakeMachine

# 130 rows: more than a tile of 128, so the kernel of two query tiles, whose first reference and claims are choices.
SHAPE = dict(batch=1, seqlen_q=130, seqlen_k=130, heads_q=1, heads_kv=1, head_dim=64, causal=True)
CONFIG = dict(qkv_dtype="bf16", head_dim=64, causal=True)


class Timer(FakeMachine):
    """A launch takes seconds(table, rested); rested: nothing ran since the pause."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.elapsed, self.rested, self.launches = seconds, 0.0, True, []

    def launched(self):
        table = tuning.active()
        self.launches.append(table)
        self.elapsed += self.seconds(table, self.rested)
        self.rested = False

    def rest(self, seconds):
        self.rested = True

    def mark(self):
        return self.elapsed

    def seconds_between(self, begin, end):
        return end - begin

    def energy_joules(self):
        return 100 * self.time


@pytest.fixture
def timed(monkeypatch):
    """timed(machine, change): the package's call, which tells the machine; change: of the result under a table."""

    def install(machine, change=lambda table, out: out):
        def backend(problem, inputs, original=backends.cute_fa4):
            call, results = original(problem, inputs), {}

            def launch():
                machine.launched()
                table = tuning.active()
                if table not in results:
                    results[table] = call().clone()
                return change(table, results[table])

            return launch

        def of_training(problem, inputs, dout, original=backends.gradients):
            call, kernels_of = original(problem, inputs, dout)
            results = {}

            def launch():
                machine.launched()
                table = tuning.active()
                if table not in results:
                    results[table] = tuple(x.clone() for x in call())
                return tuple(change(table, x) for x in results[table])

            return launch, kernels_of

        monkeypatch.setitem(backends.BACKENDS, backends.OURS, backend)
        monkeypatch.setattr(backends, "gradients", of_training)
        monkeypatch.setattr(tune, "ROUNDS", 3)

    return install


def run(tmp_path, machine, *flags, of=SHAPE) -> tuple[int, object]:
    shapes, out = tmp_path / "shapes.toml", tmp_path / "tuning.toml"
    shape = "\n".join(f"{name} = {choices.value_text(value)}" for name, value in of.items())
    shapes.write_text(f"[[shape]]\n{shape}\n")
    parser = argparse.ArgumentParser()
    tune_command.add_options(parser)
    words = ["--shapes", str(shapes), "--out", str(out), *flags]
    return tune_command.main(parser.parse_args(words), machine), out


TWO = ("--choice", "claims", "--choice", "first_reference")


def claims(table) -> bool:
    return table.choose("claims", {"calls": "other"})


def test_what_wins_is_written_and_then_decides(tmp_path, timed, monkeypatch, capsys):
    """Claims lose a tenth here, first references nothing: one row, for the class that was measured."""
    machine = Timer(lambda table, rested: 1.0 if claims(table) else 0.9)
    timed(machine)
    status, out = run(tmp_path, machine, *TWO)
    assert status == 0 and not out.with_name("tuning.toml.progress").exists()
    rows = tuning.read(out).rows
    assert list(rows) == ["claims"]
    (row,) = rows["claims"]
    assert (row.facts, row.value, row.about["evidence"]) == ({"calls": "other"}, False, "measured")
    said = capsys.readouterr().out
    assert "claims = true: false -10.0% sustained, -10.0% burst, 100 W" in said
    assert 'first_reference = "tile": "quarter" as fast sustained' in said
    assert "claims (calls other): false, -10.0% time" in said
    assert config_for(**CONFIG).schedule.claims
    monkeypatch.setenv(tuning.VARIABLE, str(out))
    assert not config_for(**CONFIG).schedule.claims


def test_a_run_that_was_stopped_goes_on(tmp_path, timed, monkeypatch):
    """It stops after one trial; the second run measures the other one alone."""
    machine = Timer(lambda table, rested: 1.0)
    timed(machine)
    original, trials = tune.trial, []

    def stops(subject, base, choice, machine):
        if trials:
            raise KeyboardInterrupt
        trials.append(choice[0])
        return original(subject, base, choice, machine)

    monkeypatch.setattr(tune, "trial", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, machine, *TWO)
    seen = []
    monkeypatch.setattr(tune, "trial", lambda s, b, c, m: seen.append(c[0]) or original(s, b, c, m))
    status, out = run(tmp_path, machine, *TWO)
    assert status == 0 and sorted(trials + seen) == ["claims", "first_reference"]
    assert "no candidate won" in out.read_text() and tuning.read(out).rows == {}


def test_a_wrong_result_is_named_and_never_kept(tmp_path, timed, capsys):
    machine = Timer(lambda table, rested: 1.0 if claims(table) else 0.5)
    timed(machine, lambda table, out: out if claims(table) else out + 1)
    status, out = run(tmp_path, machine, "--choice", "claims")
    assert status == 1 and tuning.read(out).rows == {}
    assert "claims = false: off by" in capsys.readouterr().out


# Beyond head dim 192 the owners of queries and of keys can run on pairs. One tile of scores.
TRAINING = dict(
    batch=1, seqlen_q=40, seqlen_k=40, heads_q=2, heads_kv=1, head_dim=256, causal=True, training=True
)  # fmt: skip


def backward_pairs(table) -> bool:
    facts = dict(arch="sm_100a", head_dim=256, head_dim_v=256, mask="Causal")
    return table.choose("backward_pairs", facts)


def test_choices_of_the_backward_pass_are_timed_on_it(tmp_path, timed, capsys):
    """CTAs alone are a tenth faster here. The call that is timed has the gradients alone, which are right."""
    machine = Timer(lambda table, rested: 1.0 if backward_pairs(table) else 0.9)
    timed(machine)
    status, out = run(tmp_path, machine, "--choice", "backward_pairs", of=TRAINING)
    assert status == 0
    (row,) = tuning.read(out).rows["backward_pairs"]
    facts = dict(arch="sm_100a", head_dim=256, head_dim_v=256, mask="Causal")
    assert (row.facts, row.value) == (facts, False)
    assert "backward_pairs = true: false -10.0% sustained" in capsys.readouterr().out


def test_a_wrong_gradient_is_named_and_never_kept(tmp_path, timed, capsys):
    machine = Timer(lambda table, rested: 1.0 if backward_pairs(table) else 0.5)
    timed(machine, lambda table, out: out if backward_pairs(table) else out + 1)
    status, out = run(tmp_path, machine, "--choice", "backward_pairs", of=TRAINING)
    assert status == 1 and tuning.read(out).rows == {}
    assert "backward_pairs = false: off by" in capsys.readouterr().out


def test_candidates_with_the_kernels_of_the_table_are_not_timed(tmp_path, timed, capsys):
    """No owner of head dim 64 has a pair: both candidates are the same kernels."""
    machine = Timer(lambda table, rested: 1.0)
    timed(machine)
    status, _ = run(
        tmp_path, machine, "--choice", "backward_pairs", of=TRAINING | dict(head_dim=64)
    )
    assert status == 0
    assert "backward_pairs = false: no other kernel" in capsys.readouterr().out


def test_a_model_has_training_on_request_and_the_default_shapes_have_it():
    """In each prefill shape and no decode shape; pages have no gradients."""
    for flags, trains in ((dict(), True), (dict(model=["Llama 3 8B"]), False),
                          (dict(model=["Llama 3 8B"], training=True), True)):  # fmt: skip
        options = dict(shapes=None, model=None, training=False) | flags
        found = tune_command.problems(argparse.Namespace(**options))
        forward = [p for p in found if not isinstance(p, Training) and not p.is_decode]
        of = [p for p in found if isinstance(p, Training)]
        assert [vars(p) for p in of] == [vars(p) for p in forward] * trains
    with pytest.raises(ValueError, match="page_size: 16 with training; accepted: 0"):
        Training(**SHAPE, page_size=16)


def test_candidates_take_turns():
    """Each round has every candidate, in another order."""
    order = []
    machine = Timer(lambda table, rested: 1.0)
    names = "abc"

    def launch(name):
        def call():
            order.append(name)
            machine.launched()

        return call

    tune.interleaved(machine, {name: launch(name) for name in names})
    rounds = [order[n : n + 3] for n in range(3, len(order), 3)]
    assert len(rounds) == 2 * tune.ROUNDS and all(sorted(r) == list(names) for r in rounds)
    assert rounds[0] != rounds[2]


def test_a_gain_below_the_noise_is_none():
    base = Times((1.0,) * 7, (1.0,) * 7)
    assert not wins(base, Times((0.985,) * 7, (0.985,) * 7))  # below 2 %
    assert wins(base, Times((0.97,) * 7, (0.97,) * 7))
    assert not wins(base, Times((1.05,) * 7, (0.90,) * 7))  # a burst loses
    scattered = (0.8, 0.9, 0.95, 0.97, 1.0, 1.1, 1.2)
    assert gain(base.sustained, scattered) > 0.02 and noise(base.sustained, scattered) > 0.1
    assert not wins(base, Times(base.burst, scattered))


def trial_of(problem, seconds, facts=None, choice="claims"):
    same = {BASE: Times((1.0, 1.0), (1.0, 1.0)), "false": Times((seconds,) * 2, (seconds,) * 2)}
    return Trial(problem, choice, facts or {"calls": "other"}, "true", same)


def test_a_row_wins_on_all_problems_with_its_facts():
    assert winners([trial_of("a", 0.9), trial_of("b", 1.0)])[0].problems == ("a", "b")
    assert winners([trial_of("a", 0.9), trial_of("b", 1.1)]) == []
    other = {"calls": "dense full"}
    found = winners([trial_of("a", 0.9), trial_of("b", 1.1, other)])
    assert [winner.row.facts for winner in found] == [{"calls": "other"}]


def test_winners_that_lose_together_are_given_up(timed):
    """Each saves a tenth alone; together they take half as long again."""

    def seconds(table, rested):
        changed = [not claims(table), table.choose("first_reference", {}) == "quarter"]
        return {0: 1.0, 1: 0.9, 2: 1.5}[sum(changed)]

    machine = Timer(seconds)
    timed(machine)
    subject = tune.Subject.of(Problem(**SHAPE), torch.device("cpu"))
    name = tune.str_of(subject.problem)
    rows = [("claims", False, {"calls": "other"}), ("first_reference", "quarter", {})]
    found = [tune.Winner(choice, tuning.Row(f, v), (name,), 0.1) for choice, v, f in rows]
    for count, left in ((1, 1), (2, 0)):
        kept, notes = tune.verified(
            found[:count], {name: lambda: subject}, tuning.shipped(), machine
        )
        assert len(kept) == left and len(notes) == count - 1


def test_every_choice_with_candidates_is_asked_by_some_default_problem(monkeypatch):
    """So that `tune` without flags measures each; prepared on the CPU, not launched."""
    from cute_fa4.calls.split_keys import split
    from cute_fa4.sm100.choose.pays import Asked, Lengths, pays
    from cute_fa4.sm100.choose.which_kernel import Call, which_kernel

    options = argparse.Namespace(shapes=None, model=None, training=False)
    with tuning.recording() as found:
        for p in tune_command.problems(options):
            if isinstance(p, Training):
                BackwardConfig(p.dtype, p.head_dim, p.head_dim)
                continue
            rows = dict(group=p.group, seqlen_q=p.seqlen_q)
            lengths = Lengths(p.seqlen_q, p.seqlen_k, p.batch * p.heads_q)
            problem = dict(qkv_dtype=p.dtype, head_dim=p.head_dim, group=p.group, causal=p.causal)
            kernel = which_kernel(
                Call.of_choices(problem, **rows | {"seqlen_q": p.seqlen_q}), lengths
            )
            config_for(**problem, **kernel.choices)
            pays(Asked(p.dtype, p.head_dim, p.head_dim, config_for(**problem).mask), lengths)
            split.cluster_parts(p.batch * p.heads_kv, p.seqlen_k, 148)
            tuning.choose("parts", blocks=p.batch, keys=p.seqlen_k, sms=148)
            config_for(**problem | {"qkv_dtype": "e4m3", "head_dim": 128})
    wanted = {name for name, choice in choices.CHOICES.items() if choice.candidates}
    assert wanted <= {name for name, _ in found}


@pytest.mark.parametrize(
    "flags, named",
    [
        (("--choice", "claim"), "--choice: claim; accepted: pairs"),
        (("--model", "Llama"), "--model: Llama; accepted: Llama 3 8B"),
    ],
)
def test_what_is_not_known_is_named(tmp_path, flags, named):
    parser = argparse.ArgumentParser()
    tune_command.add_options(parser)
    options = parser.parse_args([*flags, "--out", str(tmp_path / "x.toml")])
    with pytest.raises(ValueError) as raised:
        tune_command.main(options, Timer(lambda table, rested: 1.0))
    assert named in str(raised.value)


def test_shapes_of_a_file_are_problems_and_others_are_named(tmp_path):
    path = tmp_path / "shapes.toml"
    options = argparse.Namespace(shapes=str(path), model=None, training=False)
    wrong = {
        "[[shape]]\nhead = 1\n": "head; accepted: batch",
        "[shape]\nbatch = 1\n": "accepted: [[shape]]",
        "[[shape]]\nbatch = 1\n": "missing",
    }
    for text, named in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError) as raised:
            tune_command.problems(options)
        assert named in str(raised.value)
    models = argparse.Namespace(shapes=None, model=["GPT-OSS"], training=False)
    assert {(p.head_dim, p.window) for p in tune_command.problems(models)} == {
        (64, None),
        (64, 127),
    }


def test_without_a_gpu_nothing_is_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    from cute_fa4.__main__ import main

    assert main(["tune", "--out", str(tmp_path / "x.toml")]) == 2
    assert "tune: nothing is measured" in capsys.readouterr().err


class Driver:
    """NVML's functions, with counters of the test."""

    def __init__(self, status=0):
        self.status, self.energy = status, itertools.count(5000, 1000)

    def nvmlInit_v2(self):
        return self.status

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, device, value):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_ulonglong))[0] = next(self.energy)
        return 0

    def nvmlDeviceGetPowerUsage(self, device, value):
        return 3  # not supported


def test_nvml_has_the_counters_that_the_driver_has():
    """Millijoules and milliwatts; a missing function, a status and a missing library are None."""
    nvml = Nvml("GPU-1", Driver())
    assert (nvml.energy_joules(), nvml.energy_joules()) == (5.0, 6.0)
    assert nvml.power_watts() is None and nvml.sm_mhz() is None
    assert Nvml("GPU-2", Driver()).energy_joules() is None
    assert Nvml("GPU-1", Driver(status=999)).energy_joules() is None
    assert Nvml("GPU-1").energy_joules() is None  # no driver on this machine
