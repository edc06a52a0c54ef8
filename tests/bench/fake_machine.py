"""A machine without a GPU: CPU tensors, a clock that the test sets, and a record of what it was asked."""

import torch


class Reading:
    """A clock reading that is done after so many looks."""

    def __init__(self, looks: int, value):
        self.looks, self._value = looks, value

    def done(self):
        self.looks -= 1
        return self.looks < 0

    def value(self):
        return self._value


class FakeMachine:
    """A launch takes launch_seconds between its marks, enqueuing it host_seconds of the host's clock."""

    device = torch.device("cpu")

    def __init__(self, launch_seconds=1e-3, host_seconds=1e-2, looks=0, clock=None):
        self.launch_seconds, self.host_seconds, self.looks = launch_seconds, host_seconds, looks
        self.clock = {"sm_mhz": 1850.0, "power_w": 900.0} if clock is None else clock
        self.calls, self.time, self.first_mark = [], 0.0, None

    def launching(self, launch=lambda: None):
        """launch, recorded and with its costs."""

        def recorded():
            self.calls.append("launch")
            self.time += self.host_seconds
            return launch()

        return recorded

    def hold(self, seconds):
        self.calls.append("hold")
        self.held = seconds

    def flush_l2(self):
        self.calls.append("flush")

    def mark(self):
        self.calls.append("mark")
        self.first_mark = self.time if self.first_mark is None else self.first_mark
        return len(self.calls)

    def seconds_between(self, begin, end):
        assert end == begin + 2, "one launch between two marks"
        return self.launch_seconds

    def synchronize(self):
        self.calls.append("synchronize")
        self.time += 0.1  # so that unrecorded launches take time, too

    def now(self):
        return self.time

    def begin_clock_reading(self):
        return Reading(self.looks, self.clock)

    def describe(self):
        return {
            "gpu": "no GPU",
            "compute_capability": "10.0",
            "sms": 148,
            "l2_bytes": 1 << 20,
            "flush_bytes": 1 << 21,
            "driver": None,
            "max_sm_mhz": None,
            "power_limit_w": None,
        }


def recording(backend, machine):
    """The backend, its launches recorded by the machine."""
    return lambda problem, inputs: machine.launching(backend(problem, inputs))
