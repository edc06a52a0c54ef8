"""Around a launch: the compiled function with what its executor needs, the device, the emulator's lock and warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FrameType

import torch

from cute_fa4 import compile_cache
from cute_fa4.compiler.compiler import EMULATOR_CHECKS
from cute_fa4.system import forks
from cute_fa4.system.devices import Target, note_asked


class EmulatorWarning(UserWarning):
    """CPU tensors run on the emulator: results as on a GPU, but the speed says nothing about one."""


def function_for(config, target: Target) -> Callable:
    """The compiled function; for a call that is only queried, one that does nothing."""
    if target.executor == "nothing":
        note_asked(config)
        return _do_nothing
    function = compile_cache.function_for(config, target.executor)
    return _Emulated(function) if target.executor == "emulator" else function


def _do_nothing(*arguments) -> None:
    pass


def launching_on(device: torch.device) -> AbstractContextManager:
    """The tensors' device as the current one: for the first launch on it, which loads the kernel.

    Later ones do not need it: the compiled host code makes the device of its tensors current for the launch.
    """
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


# The emulator counts instructions and keeps errors for the process: one launch at a time.
_emulator_lock = forks.Lock()


@dataclass(frozen=True)
class _Emulated:
    """A compiled function with exclusive use of the emulator."""

    function: Callable

    def __call__(self, *arguments) -> None:
        _warn_once()
        with _emulator_lock.held:
            self.function(*arguments)


_warned = False
_warn_lock = forks.Lock()  # a warning handler may make another call


def _warn_once() -> None:
    global _warned
    if _warned:
        return
    from cute_fa4.emulator.host import driver_api

    level = driver_api.level_in_force(EMULATOR_CHECKS)
    stacklevel = _frames_inside(__name__.partition(".")[0])
    with _warn_lock.held:
        if not _warned:
            warnings.warn(
                "CPU tensors: the kernel's sm_100a PTX is executed by the emulator. The results are those of the "
                f"kernel, with ordering checks at level {level!r}; the running time says nothing about a GPU",
                EmulatorWarning,
                stacklevel=stacklevel,
            )
            _warned = True  # not earlier: an interrupted warning is shown again


def _frames_inside(package: str) -> int:
    """Stack frames from the caller of this function up to the call into the package."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level
