"""NVML, the driver's library of power and clocks, by ctypes: energy since the driver was loaded, SM clock, power.

It answers in microseconds, where nvidia-smi takes half a second. Each reading is None where the library, the device
or the counter is missing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK = 1  # NVML_CLOCK_SM


class Nvml:
    """The counters of one device. library: the loaded library, for tests; None: that of the driver."""

    def __init__(self, uuid: str, library=None):
        self._library, self._device = library, ctypes.c_void_p()
        try:
            if library is None:
                self._library = ctypes.CDLL(LIBRARY)
            failed = self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByUUID(
                uuid.encode(), ctypes.byref(self._device)
            )
        except (OSError, AttributeError):
            failed = True
        if failed:
            self._library = None

    def energy_joules(self) -> float | None:
        """Energy of the board since the driver was loaded."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong(), 1e-3)

    def power_watts(self) -> float | None:
        return self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint(), 1e-3)

    def sm_mhz(self) -> float | None:
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_uint(), 1.0, SM_CLOCK)

    def _read(self, name: str, value, unit: float, *arguments) -> float | None:
        function: Callable | None = getattr(self._library, name, None)
        if function is None or function(self._device, *arguments, ctypes.byref(value)):
            return None
        return value.value * unit
