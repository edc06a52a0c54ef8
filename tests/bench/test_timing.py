"""The order of operations of a measurement, and the readings of nvidia-smi."""

import pytest
import torch

from cute_fa4.bench import timing
from cute_fa4.bench.timing import measure
from tests.bench.fake_machine import FakeMachine

REPEATS = 7


def measured(**costs):
    machine = FakeMachine(**costs)
    return machine, measure(machine, machine.launching(), REPEATS)


def test_every_launch_is_between_two_marks_with_a_cold_l2_and_nothing_waits():
    machine, _ = measured()
    line = ["hold", "flush", "mark", "launch", "mark"]
    assert machine.calls[-len(line) * REPEATS - 1 :] == line * REPEATS + ["synchronize"]


def test_seconds_are_those_between_the_marks():
    _, measurement = measured(launch_seconds=2e-3)
    assert measurement.seconds == (2e-3,) * REPEATS


@pytest.mark.parametrize("host_seconds", [1e-5, 1e-2])
def test_the_gpu_is_held_for_longer_than_the_host_needs(host_seconds):
    machine, measurement = measured(host_seconds=host_seconds)
    assert measurement.host_seconds == pytest.approx(host_seconds)
    assert machine.held >= 2 * host_seconds


def test_the_clock_is_warm_before_the_first_mark():
    machine, _ = measured(host_seconds=1e-2)
    assert machine.first_mark >= timing.WARM_SECONDS
    assert "launch" in machine.calls[: machine.calls.index("mark")]


@pytest.mark.parametrize("looks", [0, 30])
def test_the_clock_is_read_while_launches_run(looks):
    machine, measurement = measured(looks=looks, host_seconds=1e-2)
    assert measurement.clock == {"sm_mhz": 1850.0, "power_w": 900.0}
    rounds = machine.calls[: machine.calls.index("mark")].count("synchronize")
    assert rounds >= looks


def test_a_reading_that_never_comes_ends_the_warm_up_without_a_clock():
    machine, measurement = measured(looks=10**9, host_seconds=1e-1)
    assert measurement.clock is None
    assert machine.time < timing.LONGEST_WARM_UP_SECONDS + 5


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A program of that name, first in PATH, that prints what it is told."""

    def write(output: str, status: int = 0):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho '{output}'\nexit {status}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return write


def read():
    reading = timing._SmiReading("GPU-0")
    reading._process.wait()
    assert reading.done()
    return reading.value()


def test_clock_and_power_are_numbers_or_unknown(nvidia_smi):
    nvidia_smi("1850, 912.30")
    assert read() == {"sm_mhz": 1850.0, "power_w": 912.3}
    nvidia_smi("1850, [N/A]")
    assert read() == {"sm_mhz": 1850.0, "power_w": None}
    nvidia_smi("No devices were found", status=6)
    assert read() is None
    assert timing._query("GPU-0", "driver_version") is None


def test_without_nvidia_smi_there_is_no_clock(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    reading = timing._SmiReading("GPU-0")
    assert reading.done() and reading.value() is None
    assert timing._query("GPU-0", "driver_version") is None


@pytest.mark.gpu
def test_a_real_machine_holds_flushes_and_tells_the_time():
    machine = timing.CudaMachine()
    told = machine.describe()
    assert told["flush_bytes"] > told["l2_bytes"] > 0
    x = torch.randn(4096, 4096, device=machine.device)
    launch = lambda: x @ x
    measurement = measure(machine, launch, REPEATS)
    assert len(measurement.seconds) == REPEATS
    assert all(1e-5 < seconds < 1 for seconds in measurement.seconds)
    begin = machine.mark()
    machine.hold(1e-2)
    end = machine.mark()
    machine.synchronize()
    assert 0.9e-2 < machine.seconds_between(begin, end) < 1e-1
