"""The number of clusters of CTAs that a GPU runs at the same time, queried from its driver once per device and size.

A cluster cannot span the GPCs of a chip. Their sizes differ, even between chips of one model.
cuOccupancyMaxActiveClusters knows them. It needs a kernel, so an empty one is loaded, with as much shared memory as
a CTA can have: one CTA per SM, as for the kernels of this package.

CUDA Driver API, "Occupancy": cuOccupancyMaxActiveClusters; CUlaunchConfig, CUlaunchAttribute.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

SHARE = (7, 8)  # of the SMs that clusters certainly fill, if no driver can be queried
THREADS = 128
_CLUSTER_DIMENSION, _MAX_DYNAMIC_SHARED = 4, 8  # CU_LAUNCH_ATTRIBUTE_..., CU_FUNC_ATTRIBUTE_...
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_OPTIN_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_EMPTY = b".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n\0"


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("number", ctypes.c_uint),
    )  # fmt: skip


def most_clusters(device: torch.device, ctas: int, sms: int) -> int:
    """Clusters of this many CTAs that run at the same time. sms: of the device, used without a driver.

    >>> [most_clusters(torch.device("cpu"), ctas, 148) for ctas in (2, 4, 8)]
    [64, 32, 16]
    """
    found = asked_of_driver(device.index or 0, ctas) if device.type == "cuda" else None
    some, of = SHARE
    return sms * some // (of * ctas) if found is None else found


@cache
def asked_of_driver(index: int, ctas: int) -> int | None:
    """The same for CUDA device `index`; None if its driver does not report it."""
    try:
        with torch.cuda.device(index):
            return _asked(ctypes.CDLL("libcuda.so.1"), index, ctas)
    except (OSError, RuntimeError, AttributeError):  # no driver, or one without clusters
        return None


def _asked(driver, index: int, ctas: int) -> int:
    def call(name: str, *arguments) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    # During a graph capture, loading a kernel is allowed only in this mode; it enqueues nothing.
    mode = ctypes.c_int(_RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        return _of_empty_kernel(call, index, ctas)
    finally:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


def _of_empty_kernel(call, index: int, ctas: int) -> int:
    shared = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(shared), _OPTIN_SHARED, index)
    module, function, found = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    call("cuModuleLoadData", ctypes.byref(module), _EMPTY)
    try:
        call("cuModuleGetFunction", ctypes.byref(function), module, b"empty")
        call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        dims = _Attribute(_CLUSTER_DIMENSION, value=(ctypes.c_uint * 16)(ctas, 1, 1))
        config = _Config(
            (ctas, 1, 1), (THREADS, 1, 1), shared.value, None, ctypes.pointer(dims), 1
        )  # fmt: skip
        call("cuOccupancyMaxActiveClusters", ctypes.byref(found), function, ctypes.byref(config))
    finally:
        call("cuModuleUnload", module)
    return found.value
