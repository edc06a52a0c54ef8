"""Device memory between unmapped pages: accessing a byte before or after a tensor is an illegal address.

    reserved   |  unmapped  |  mapped               |  unmapped  |
                            K begins here      V ends here

In an ordinary allocation, a wrong load would read adjacent tensors unnoticed.
CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        *(("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", _Location)),
        *(("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


DEVICE, PINNED, READ_WRITE = 1, 1, 3


@cache
def _cuda():
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments) -> None:
    status = getattr(_cuda(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name}: CUresult {status}")


class Memory:
    """Mapped memory of at least this many bytes on a device, with unmapped address space of that size on both sides."""

    def __init__(self, size: int, device: int = 0):
        properties = _Properties(type=PINNED, location=_Location(DEVICE, device))
        granule, handle, address = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_uint64()
        reference, number = ctypes.byref, ctypes.c_size_t
        _call("cuMemGetAllocationGranularity", reference(granule), reference(properties), 0)
        self.size = -(-size // granule.value) * granule.value
        _call(
            "cuMemAddressReserve",
            reference(address),
            number(3 * self.size),
            number(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        _call(
            "cuMemCreate",
            reference(handle),
            number(self.size),
            reference(properties),
            ctypes.c_uint64(0),
        )
        self.begin = address.value + self.size
        where = ctypes.c_uint64(self.begin)
        _call("cuMemMap", where, number(self.size), number(0), handle, ctypes.c_uint64(0))
        access = _Access(_Location(DEVICE, device), READ_WRITE)
        _call("cuMemSetAccess", where, number(self.size), reference(access), number(1))
        self._handle, self._reserved = handle, address

    def close(self) -> None:
        """Free it; no running kernel may use it."""
        torch.cuda.synchronize()
        number = ctypes.c_size_t
        _call("cuMemUnmap", ctypes.c_uint64(self.begin), number(self.size))
        _call("cuMemRelease", self._handle)
        _call("cuMemAddressFree", self._reserved, number(3 * self.size))


class Guard:
    """Copies of tensors at the edges of guarded memory, while it is open."""

    def __init__(self):
        self._memories: list[Memory] = []

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_) -> None:
        while self._memories:
            self._memories.pop().close()

    def place(self, tensor: torch.Tensor, at_the_end: bool) -> torch.Tensor:
        """A copy at the beginning, or at the end, of its mapped memory."""
        count = tensor.numel() * tensor.element_size()
        if count == 0:
            return tensor
        memory = Memory(count, tensor.device.index or 0)
        self._memories.append(memory)
        first = memory.begin + (memory.size - count) * at_the_end
        raw = torch.as_tensor(_Bytes(first, count), device=tensor.device)
        placed = raw.view(tensor.dtype).view(tensor.shape)
        return placed.copy_(tensor)


class _Bytes:
    """An address and a size, for torch.as_tensor."""

    def __init__(self, address: int, count: int):
        self.__cuda_array_interface__ = {
            **{"data": (address, False), "shape": (count,), "typestr": "|u1"},
            **{"strides": None, "version": 2},
        }
