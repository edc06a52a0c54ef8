"""Helpers of the cases of `hopper driver`: exported functions, calls, and the state of the driver."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import torch

from cute_fa4 import aot, compile_cache
from cute_fa4.emulator.host.dlpack import _CODES, _DLDataType, _DLDevice, _DLTensor
from cute_fa4.sm100.append.config import AppendConfig

FOLDER = "append"


def configs() -> list:
    """The kernels in DIR/append: two for Hopper, and one that Hopper must refuse."""
    paged = AppendConfig("bf16", 64, 64, page_size=16, arch="sm_90a")
    return [paged, AppendConfig("bf16", 64, 64, arch="sm_90a"), AppendConfig("fp16", 64, 64)]


class Functions:
    """The exported functions of a directory, opened at first use."""

    def __init__(self, directory):
        self._configs = aot.load(directory, executors=("cuda",))

    def __call__(self, number: int):
        wanted = configs()[number]
        assert wanted in self._configs, "the directory was built by another version"
        return compile_cache.function_for(wanted, "cuda")


class Append:
    """New rows for two sequences of a cache in pages of 16, and the expected cache."""

    def __init__(self, device="cuda:0", paged: bool = True):
        self.paged, shape = paged, ((8, 16) if paged else (2, 48))
        self.new = [torch.randn(2, 3, 2, 64, device=device).bfloat16() for _ in "kv"]
        self.cache = [torch.zeros(*shape, 2, 64, device=device).bfloat16() for _ in "kv"]
        self.lengths = torch.tensor([5, 20], dtype=torch.int32, device=device)
        self.table = torch.tensor([[3, 1, 7], [0, 6, 2]], dtype=torch.int32, device=device)

    def arguments(self) -> tuple:
        """Arguments of the exported function: those of sm100/append/kernel.py without the stream."""
        table = self.table if self.paged else None
        return (*self.new, *self.cache, self.lengths, None, table, 2, None, None)

    def run(self, function) -> None:
        function(*self.arguments())

    def wrong(self) -> int:
        """Number of wrong rows in the whole cache."""
        torch.cuda.synchronize(self.new[0].device)
        count = 0
        for new, cache in zip(self.new, self.cache, strict=True):
            expected = torch.zeros_like(cache)
            for b, length in enumerate((5, 20)):
                for i in range(3):
                    at = length + i
                    block = (
                        (((3, 1, 7), (0, 6, 2))[b][at // 16], at % 16) if self.paged else (b, at)
                    )
                    expected[block] = new[b, i]
            count += int((cache != expected).any(dim=-1).any(dim=-1).sum())
        return count


class Value(ctypes.Structure):
    """cute_fa4_value of aot/kernel.h."""

    _fields_ = (("type", ctypes.c_int32), ("zero", ctypes.c_uint32), ("value", ctypes.c_int64))

    @classmethod
    def of(cls, thing) -> Value:
        if thing is None:
            return cls(0, 0, 0)
        if isinstance(thing, int):
            return cls(1, 0, thing)
        numbers = ctypes.c_int64 * thing.dim()
        tensor = _DLTensor(
            *(thing.data_ptr(), _DLDevice(2, thing.device.index), thing.dim()),
            _DLDataType(*_CODES[str(thing.dtype).removeprefix("torch.")], 1),
            *(numbers(*thing.shape), numbers(*thing.stride()), 0),
        )
        _kept.append(tensor)
        return cls(7, 0, ctypes.addressof(tensor))


_kept: list = []


def message(function: Callable) -> str:
    """The error that it raises, or "no error"."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def active(device: int) -> bool:
    """Whether a device has an active primary context."""
    flags, state = ctypes.c_uint(), ctypes.c_int()
    cuda_driver().cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state))
    return bool(state.value)


def current() -> bool:
    """Whether the calling thread has a current context."""
    context = ctypes.c_void_p()
    cuda_driver().cuCtxGetCurrent(ctypes.byref(context))
    return bool(context.value)


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def cuda_driver():
    return ctypes.CDLL("libcuda.so.1")


def in_thread(function: Callable):
    """Call it in a new thread, which has no context; its result or its exception."""
    found: list = []

    def run():
        try:
            found.append((function(), None))
        except Exception as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error:
        raise error
    return result
