"""Which ptxas makes the machine code: the toolkits of the DSL, the one it selects, and the version in a cubin.

    nvidia-cutlass-dsl           brings a code generator and a ptxas of CUDA 12    flavour "cu12"
    nvidia-cutlass-dsl[cu13]     adds those of CUDA 13                             flavour "cu13"

The DSL selects the newest flavour that the driver supports, or without a driver the newest. Its version number is the
same for both, so compiled code is also stored under the flavour.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from importlib import metadata

from cute_fa4.system import forks

_scratch = forks.ScratchDirectory("cute_fa4-ptxas-")
FLAVOURS = {"cu12": 12, "cu13": 13}
_RELEASE = re.compile(rb"Cuda compilation tools, release \d+\.\d+, V(\d+(?:\.\d+)+)")


def ptxas_of(cubin: bytes) -> str | None:
    """The version of the ptxas that made a cubin, from its ELF note; None if the note is missing.

    >>> ptxas_of(b"ptxas\\0Cuda compilation tools, release 13.4, V13.4.59\\0-O 3 -arch sm_100a")
    '13.4.59'
    """
    found = _RELEASE.search(cubin)
    return found[1].decode() if found else None


@cache
def installed() -> tuple[str, ...]:
    """The flavours that are installed, oldest first."""
    found = []
    for flavour in FLAVOURS:
        try:
            metadata.version(f"nvidia-cutlass-dsl-libs-{flavour}")
        except metadata.PackageNotFoundError:
            continue
        found.append(flavour)
    return tuple(found)


@cache
def driver_version() -> int | None:
    """CUDA version of the driver as it counts, 13010 for 13.1; None without a driver. Nothing is initialised."""
    version = ctypes.c_int(0)
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if status else version.value


def chosen(flavours: tuple[str, ...], driver: int | None) -> str | None:
    """The flavour that the DSL selects; None if none is installed or the driver is too old for all.

    >>> chosen(("cu12", "cu13"), None), chosen(("cu12", "cu13"), 12090), chosen(("cu12",), 13010)
    ('cu13', 'cu12', 'cu12')
    """
    usable = [f for f in flavours if driver is None or driver // 1000 >= FLAVOURS[f]]
    return max(usable, key=lambda f: FLAVOURS[f], default=None)


def flavour() -> str | None:
    """The flavour that compiles in this process."""
    return chosen(installed(), driver_version())


def description() -> str:
    """The line of `python -m cute_fa4 info`."""
    if not installed():
        return "not installed; kernels compiled ahead of time need none"
    if flavour() is None:
        return f"none: the driver {driver_version()} is too old for {', '.join(installed())}"
    return f"{ptxas()}, of {flavour()} ({', '.join(installed())} installed)"


@cache
def ptxas() -> str | None:
    """The version of the ptxas that compiles in this process, read from a cubin that it makes now (a second)."""
    import tempfile

    import cutlass.cute as cute

    @cute.kernel
    def nothing():
        pass

    @cute.jit
    def launch():
        nothing().launch(grid=[1, 1, 1], block=[32, 1, 1])

    with tempfile.TemporaryDirectory(dir=_scratch.path()) as folder:
        options = f"--keep-cubin --gpu-arch sm_100a --dump-dir={folder}"
        return ptxas_of(cute.compile(launch, options=options).__cubin__)
