"""The executor for tensors of a device, and the architecture for which the kernel is compiled.

device of the tensors             executor   compiled for
cpu                               emulator   sm_100a
cuda, compute capability 10.0     cuda       sm_100a      B200, GB200
cuda, compute capability 10.3     cuda       sm_103a      B300, GB300
meta, inside asked_for(arch)      nothing    that arch: the call is checked, but not compiled or launched
anything else                     refused, with the reason
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import torch

ARCH_OF_COMPUTE_CAPABILITY = {(10, 0): "sm_100a", (10, 3): "sm_103a"}

# Code for the emulator: that of the B200. The emulator also executes sm_103a, which no call needs here.
EMULATED_ARCH = "sm_100a"


class Target(NamedTuple):
    """Where a call runs: executor "emulator", "cuda" or "nothing", and the arch in the compiler's spelling."""

    executor: str
    arch: str


_asked: ContextVar[tuple[str, list] | None] = ContextVar("cute_fa4_asked", default=None)


@contextmanager
def asked_for(arch: str) -> Iterator[list]:
    """Inside, calls with tensors of the meta device are only checked, for this arch.

    Yields the list of configurations that these calls would compile.
    """
    configs: list = []
    token = _asked.set((arch, configs))
    try:
        yield configs
    finally:
        _asked.reset(token)


def note_asked(config) -> None:
    """Record a configuration that a checked call would compile."""
    asked = _asked.get()
    if asked is None:
        raise RuntimeError("note_asked() outside of asked_for()")
    asked[1].append(config)


def target_of(device: torch.device) -> Target:
    """The Target for tensors on `device`; ValueError, naming the device, if there is none."""
    if device.type == "cpu":
        return Target("emulator", EMULATED_ARCH)
    if device.type == "cuda":
        capability = _compute_capability(device.index)
        reason = refusal_of_compute_capability(capability)
        if reason:
            raise ValueError(f"q, k, v: on {device}, {reason}")
        return Target("cuda", ARCH_OF_COMPUTE_CAPABILITY[capability])
    asked = _asked.get()
    if device.type == "meta" and asked is not None:
        return Target("nothing", asked[0])
    raise ValueError(
        f"q, k, v: device {device.type!r} is not accepted; accepted: CUDA devices of compute "
        f"capability {_accepted_capabilities()}, and cpu, where the emulator runs; "
        "move them with .to('cuda')"
    )


def accept(capability: tuple[int, int], arch: str) -> None:
    """Also accept devices of this compute capability: kernels for arch have been converted for them."""
    ARCH_OF_COMPUTE_CAPABILITY.setdefault(capability, arch)


def refusal_of_compute_capability(capability: tuple[int, int]) -> str | None:
    """Why a CUDA device of this compute capability cannot run the kernel; None if it can."""
    if capability in ARCH_OF_COMPUTE_CAPABILITY:
        return None
    major, minor = capability
    return (
        f"compute capability {major}.{minor} cannot run the kernel; accepted: "
        f"{_accepted_capabilities()}, because only these have the tcgen05 instructions "
        "that it is made of; CPU tensors run it on the emulator"
    )


def _accepted_capabilities() -> str:
    return " and ".join(f"{major}.{minor}" for major, minor in ARCH_OF_COMPUTE_CAPABILITY)


@cache
def _compute_capability(device_index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device_index)
