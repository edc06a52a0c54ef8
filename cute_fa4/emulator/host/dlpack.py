"""CPU tensors that claim to be on a CUDA device, so that compiled functions accept them.

    torch tensor (CPU) --as_cuda--> tvm_ffi.Tensor of device (kDLCUDA, 0), same memory

The memory is registered as global memory of the emulator for the lifetime of the result.
DLPack: https://dmlc.github.io/dlpack/latest/c_api.html
"""

import atexit
import ctypes
import gc
import itertools
import sys

from cute_fa4.emulator.host.driver_api import global_memory
from cute_fa4.emulator.machine.memory import Allocation

KDL_CPU, KDL_CUDA = 1, 2


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _DELETER))


# DLDataTypeCode of dlpack.h, by torch's name of the type.
_CODES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16), "bool": (6, 8),
    "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_alive: dict[int, tuple] = {}  # managed tensors that a consumer still holds
_keys = itertools.count(1)


def as_cuda(tensor, name=None):
    """A CPU torch tensor as a tvm_ffi.Tensor that claims device cuda:0; it shares the tensor's memory.

    name  name of the allocation in messages; default "tensor (shape) dtype"
    Raises ValueError for a tensor that is not on the CPU, TypeError for a dtype without DLPack code.
    """
    import tvm_ffi

    if tensor.device.type != "cpu":
        raise ValueError(
            f"as_cuda takes CPU tensors, this one is on {tensor.device}; the emulator runs on the CPU"
        )
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _CODES:
        raise TypeError(
            f"as_cuda: dtype {tensor.dtype} has no DLPack type code here; known are {', '.join(_CODES)}"
        )
    return tvm_ffi.from_dlpack(_Exporter(tensor, *_CODES[kind], name))


def claim_cuda(value):
    """as_cuda for CPU torch tensors, also inside tuples and lists; other values unchanged."""
    if isinstance(value, (tuple, list)):
        items = [claim_cuda(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if (
        type(value).__module__.partition(".")[0] == "torch"
        and hasattr(value, "data_ptr")
        and value.device.type != "cuda"
    ):
        return as_cuda(value)
    return value


class _Exporter:
    """Makes DLPack capsules of one tensor."""

    def __init__(self, tensor, code, bits, name):
        self.tensor, self.code, self.bits = tensor, code, bits
        self.name = (
            name or f"the tensor {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        )

    def __dlpack_device__(self):
        return (KDL_CUDA, 0)

    def __dlpack__(self, **_):
        t = self.tensor
        n = t.dim()
        shape, strides = (ctypes.c_int64 * n)(*t.shape), (ctypes.c_int64 * n)(*t.stride())
        managed = _DLManagedTensor(
            _DLTensor(
                t.data_ptr(),
                _DLDevice(KDL_CUDA, 0),
                n,
                _DLDataType(self.code, self.bits, 1),
                shape,
                strides,
                0,
            ),
            next(_keys),
            _delete,
        )
        last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
        nbytes = (last + 1) * t.element_size() if t.numel() else 0
        allocation = Allocation(t.data_ptr(), nbytes, self.name, keep=t)
        try:
            global_memory.add(allocation)
            _alive[managed.manager_ctx] = (managed, shape, strides, allocation)
            return _new_capsule(ctypes.addressof(managed), b"dltensor", None)
        except BaseException:  # no consumer has the capsule, so it is never deleted
            _alive.pop(managed.manager_ctx, None)
            global_memory.unregister(allocation)
            raise


@_DELETER
def _delete(pointer):
    """Deleter: release the tensor and its registration."""
    try:
        _forget(pointer)
    except BaseException:  # Ctrl-C: a deleter is not called twice
        _forget(pointer)
        raise


def _forget(pointer):
    key = _DLManagedTensor.from_address(pointer).manager_ctx
    entry = _alive.get(key)
    if entry is not None:
        global_memory.unregister(entry[3])
        del _alive[key]


@atexit.register
def _free_tensors() -> None:
    """Free the objects of the traceback of an uncaught error: _DELETER is Python code and cannot run later."""
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()
    # Tensors still in use end with the process: DLPack allows a tensor without a deleter.
    for managed, *_ in _alive.values():
        managed.deleter = _DELETER()
