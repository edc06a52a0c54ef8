"""A directory of rewritten kernels -> functions that run CUDA tensors on a Hopper GPU, without compiler and nvcc.

    load(dir)            the attention functions find the kernels of this package in it, on compute capability 9.0
    open_function(...)   any other kernel, by its record in the manifest

Launches are synchronous. Their time says nothing about speed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

from cute_fa4.aot import manifest
from cute_fa4.aot.config_data import from_data
from cute_fa4.aot.loader import open_private
from cute_fa4.aot.manifest import read_verified
from cute_fa4.compiler import functions
from cute_fa4.system import devices

HOPPER = (9, 0)
_CLAIMED = (
    2  # tcgen05.cu: from this value on, a word of the cluster table names the claiming cluster
)


class StandIn:
    """A rewritten kernel's function, with settings and results of its launches.

    takes_over    whether its clusters claim blocks of others; assumed for foreign kernels
    """

    def __init__(self, directory: Path, kernel: dict, takes_over: bool = True):
        import tvm_ffi  # loads its library, which NAME.so needs by name

        data = read_verified(directory, kernel, "library")
        self._library = open_private(data, kernel["name"])
        address = ctypes.cast(getattr(self._library, kernel["symbol"]), ctypes.c_void_p).value or 0
        self._function = tvm_ffi.Function.__from_extern_c__(
            address, keep_alive_object=self._library
        )
        self._library.cute_fa4_hopper_clusters.restype = ctypes.c_int64
        self.__name__ = kernel["name"]
        self.takes_over = takes_over

    def __call__(self, *arguments):
        return self._function(*arguments)

    @contextlib.contextmanager
    def claims(
        self, *, refused: float = 0.0, seed: int = 0, greedy: int = 0, wrong: bool = False
    ) -> Iterator[None]:
        """Inside this context, claims behave as set.

        refused  this share of them is refused at random
        greedy   this many clusters claim before the others start; 0: no order
        wrong    grants name the cluster before the one that was claimed: a planted error
        """
        self._library.cute_fa4_hopper_claims(round(256 * refused), seed, greedy, int(wrong))
        try:
            yield
        finally:
            self._library.cute_fa4_hopper_claims(0, 0, 0, 0)

    def patience(self, seconds: float) -> None:
        """Time limit of a launch."""
        self._library.cute_fa4_hopper_patience(ctypes.c_double(seconds))

    def clusters(self) -> list[int]:
        """Per cluster of the last launch: -1 if it ran itself, -2 if it did not run, else its claimer."""
        count = self._library.cute_fa4_hopper_clusters(None, 0)
        words = (ctypes.c_uint32 * max(count, 1))()
        if self._library.cute_fa4_hopper_clusters(words, count) < 0:
            raise RuntimeError("the table of clusters cannot be read: the kernel has failed before")
        return [word - _CLAIMED for word in words[:count]]


def open_function(directory, name: str) -> StandIn:
    """The function of one kernel of a directory, of any origin."""
    directory = Path(directory)
    kernels = {kernel["name"]: kernel for kernel in manifest.read_manifest(directory)["kernels"]}
    if name not in kernels:
        raise manifest.LoadError(f"{directory}: no kernel {name!r}; accepted: {', '.join(kernels)}")
    return StandIn(directory, kernels[name])


def takes_over(config) -> bool:
    """Whether a kernel of this package claims blocks. Append and merge kernels have no schedule and claim none."""
    return bool(getattr(getattr(config, "schedule", None), "claims", False))


def load(directory) -> dict:
    """Register this package's kernels of a directory for GPUs of compute capability 9.0.

    Returns {configuration: its StandIn}. After this, the attention functions accept CUDA tensors on a Hopper GPU. A
    call that needs another kernel compiles it for sm_100a, which Hopper refuses to load.
    """
    directory = Path(directory)
    content = manifest.read_manifest(directory)
    manifest.check_versions(directory / manifest.MANIFEST, content["versions"])
    opened = {}
    for kernel in content["kernels"]:
        if kernel["config"]:
            config = from_data(kernel["config"])
            opened[config] = StandIn(directory, kernel, takes_over(config))
            functions.register(config, "cuda", functools.partial(opened.__getitem__, config))
            devices.accept(HOPPER, config.arch)
    return opened
