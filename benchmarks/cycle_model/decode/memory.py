"""Memory bandwidth for streaming SMs, and the latency of their copies.

Each SM keeps a number of bytes in flight. If a copy takes the latency of idle memory, SMs request

    asked = bytes in flight / latency        Little's law

The memory delivers at most its ceiling. Between the two is a knee, because requests are not evenly spaced:

    given = (asked^-k + ceiling^-k)^(-1/k)

    TB/s of 148 SMs, k = 2.2   4 KiB   8     16    32    64    128 in flight an SM
    published for a B200       1.10    2.1   3.7   5.6   7.1   7.1
    this formula               1.11    2.2   4.0   5.8   6.9   7.2

By the same formula, the latency of a copy while the memory delivers a share u of its ceiling is

    latency(u) = latency * (1 - u^k)^(-1/k)
"""

from __future__ import annotations

from dataclasses import dataclass

from cute_fa4.emulator.model.constants import Constant


@dataclass(frozen=True)
class Memory:
    """latency in cycles, ceiling in bytes a cycle of the whole chip, knee: the exponent."""

    latency: float
    ceiling: float
    knee: float

    @classmethod
    def of(cls, constants: dict[str, Constant]) -> Memory:
        """The memory beyond L2 of a chip, in its cycles."""
        value = {name: constant.value for name, constant in constants.items()}
        gigahertz = value["clock_ghz"]
        ceiling = value["hbm_tbs"] * 1e3 / gigahertz
        return cls(value["dram_latency_ns"] * gigahertz, ceiling, value["dram_knee"])

    def given(self, in_flight: float) -> float:
        """Bytes a cycle for so many bytes in flight on the whole chip."""
        asked = in_flight / self.latency
        return (asked**-self.knee + self.ceiling**-self.knee) ** (-1 / self.knee)

    def loaded_latency(self, share: float) -> float:
        """Cycles of a copy while the memory delivers this share of its ceiling, below 1."""
        return self.latency * (1 - share**self.knee) ** (-1 / self.knee)

    def share(self, demand) -> float:
        """The share u at which a demand(latency) in bytes per cycle equals the delivered bandwidth."""
        low, high = 0.0, 1.0 - 1e-6
        for _ in range(40):
            middle = (low + high) / 2
            if demand(self.loaded_latency(middle)) > middle * self.ceiling:
                low = middle
            else:
                high = middle
        return high
