"""Timing of launches on a GPU: the machine, and the order of operations.

    warm up    launches for WARM_SECONDS, until the clock has been read under this load
    repeat     hold . flush L2 . mark . launch . mark            all enqueued, without synchronization

`hold` makes the GPU wait until the host has enqueued the rest of the line, so the time between the marks is that of
the GPU and not of Python. `flush` writes a buffer larger than L2, so every launch reads its inputs from memory.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from cute_fa4.bench.nvml import Nvml

WARM_SECONDS = 0.5
# Even if nvidia-smi hangs, the warm-up ends.
LONGEST_WARM_UP_SECONDS = 10.0
# Launches between two reads of the host's clock during the warm-up.
LAUNCHES_A_ROUND = 10
# Used if nvidia-smi does not report it: not less than a data-center GPU's.
UNKNOWN_CLOCK_MHZ = 2200
# The wait must be longer than the host takes to enqueue a line.
HOLD_PER_HOST_SECOND = 3


class ClockReading(Protocol):
    """A pending reading of the clock."""

    def done(self) -> bool: ...

    def value(self) -> dict | None:
        """{"sm_mhz": ..., "power_w": ...}, or None if the clock cannot be read."""


class Machine(Protocol):
    """The operations that timing needs from a GPU; the tests implement them without a GPU."""

    device: torch.device

    def hold(self, seconds: float) -> None: ...
    def flush_l2(self) -> None: ...
    def mark(self) -> object: ...
    def seconds_between(self, begin, end) -> float: ...
    def synchronize(self) -> None: ...
    def now(self) -> float: ...
    def begin_clock_reading(self) -> ClockReading: ...
    def describe(self) -> dict: ...


@dataclass(frozen=True)
class Measurement:
    """seconds: GPU time of each launch. host_seconds: time to enqueue one. clock: under this load."""

    seconds: tuple[float, ...]
    host_seconds: float
    clock: dict | None


def measure(machine: Machine, launch: Callable, repeats: int) -> Measurement:
    """Seconds of `repeats` launches, each with a cold L2, after a warm-up."""
    host_seconds, clock = _warm_up(machine, launch)
    marks = []
    for _ in range(repeats):
        machine.hold(HOLD_PER_HOST_SECOND * host_seconds)
        machine.flush_l2()
        begin = machine.mark()
        launch()
        marks.append((begin, machine.mark()))
    machine.synchronize()
    seconds = tuple(machine.seconds_between(begin, end) for begin, end in marks)
    return Measurement(seconds, host_seconds, clock)


def _warm_up(machine: Machine, launch: Callable) -> tuple[float, dict | None]:
    """-> (host seconds to enqueue a launch, the clock during the launches)."""
    reading, host = machine.begin_clock_reading(), []
    begin = machine.now()
    while True:
        round_begin = machine.now()
        for _ in range(LAUNCHES_A_ROUND):
            launch()
        host.append((machine.now() - round_begin) / LAUNCHES_A_ROUND)
        machine.synchronize()
        elapsed = machine.now() - begin
        if elapsed >= LONGEST_WARM_UP_SECONDS or (elapsed >= WARM_SECONDS and reading.done()):
            break
    return statistics.median(host), reading.value() if reading.done() else None


class CudaMachine:
    """A CUDA device, timed with events."""

    def __init__(self, index: int = 0):
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self.properties = torch.cuda.get_device_properties(self.device)
        uuid = str(self.properties.uuid)
        self.uuid = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._nvml = Nvml(self.uuid)
        self.flush_bytes = 2 * self.properties.L2_cache_size
        self._larger_than_l2 = torch.empty(self.flush_bytes, dtype=torch.uint8, device=self.device)
        told = _query(self.uuid, "clocks.max.sm") or {}
        # _sleep counts cycles, which are shortest at the largest clock.
        self._cycles_per_second = 1e6 * (_number(told.get("clocks.max.sm")) or UNKNOWN_CLOCK_MHZ)

    def hold(self, seconds: float) -> None:
        torch.cuda._sleep(int(seconds * self._cycles_per_second))

    def flush_l2(self) -> None:
        self._larger_than_l2.fill_(1)

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, begin, end) -> float:
        return begin.elapsed_time(end) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def now(self) -> float:
        return time.perf_counter()

    def rest(self, seconds: float) -> None:
        torch.cuda.synchronize(self.device)
        time.sleep(seconds)

    def energy_joules(self) -> float | None:
        return self._nvml.energy_joules()

    def begin_clock_reading(self) -> ClockReading:
        return _SmiReading(self.uuid)

    def describe(self) -> dict:
        told = _query(self.uuid, "driver_version", "clocks.max.sm", "power.limit") or {}
        return {
            "gpu": self.properties.name,
            "compute_capability": f"{self.properties.major}.{self.properties.minor}",
            "sms": self.properties.multi_processor_count,
            "l2_bytes": self.properties.L2_cache_size,
            "flush_bytes": self.flush_bytes,
            "driver": told.get("driver_version"),
            "max_sm_mhz": _number(told.get("clocks.max.sm")),
            "power_limit_w": _number(told.get("power.limit")),
        }


class _SmiReading:
    """Starts nvidia-smi, which reads the clock a moment later, while the caller launches."""

    FIELDS = ("clocks.sm", "power.draw")

    def __init__(self, uuid: str):
        self._process: subprocess.Popen | None = None
        try:
            self._process = subprocess.Popen(
                _smi(uuid, self.FIELDS),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            pass  # no nvidia-smi

    def done(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def value(self) -> dict | None:
        if self._process is None or self._process.stdout is None or self._process.returncode:
            return None
        told = _fields(self._process.stdout.read(), self.FIELDS)
        return {"sm_mhz": _number(told["clocks.sm"]), "power_w": _number(told["power.draw"])}


def _smi(uuid: str, fields) -> list[str]:
    query = f"--query-gpu={','.join(fields)}"
    return ["nvidia-smi", f"--id={uuid}", query, "--format=csv,noheader,nounits"]


def _query(uuid: str, *fields: str) -> dict | None:
    """{field: text} from nvidia-smi; None if it is missing or fails."""
    try:
        done = subprocess.run(_smi(uuid, fields), capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else _fields(done.stdout, fields)


def _fields(line: str, fields) -> dict:
    return dict(zip(fields, (part.strip() for part in line.split(",")), strict=True))


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:  # "[N/A]"
        return None
