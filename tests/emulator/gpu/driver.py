"""The CUDA driver through ctypes: devices, modules, launches, tensor maps. Needs libcuda and nothing else."""

import ctypes

import numpy as np

from tests.emulator.gpu.tensor_map_fields import DTYPES, SPANS

# CUdevice_attribute, CUjit_option and CUfunction_attribute of cuda.h
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76
JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

GUARD_BYTES = 1024
GUARD = 0xA5


class Driver:
    """The first CUDA device. Raises OSError, with the name of the error, for what the driver refuses."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)
        major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        for value, attribute in (
            (major, COMPUTE_CAPABILITY_MAJOR),
            (minor, COMPUTE_CAPABILITY_MINOR),
        ):
            self.check("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        self.check("cuDriverGetVersion", ctypes.byref(version))
        name = ctypes.create_string_buffer(100)
        self.check("cuDeviceGetName", name, 100, device)
        self.target = f"sm_{major.value}{minor.value}" + ("a" if major.value >= 9 else "")
        self.name = name.value.decode()
        self.driver_version = version.value

    def call(self, function, *arguments):
        """The CUresult of a driver function."""
        return getattr(self.driver, function)(*arguments)

    def check(self, function, *arguments):
        status = self.call(function, *arguments)
        if status:
            raise OSError(f"{function}: {self.error_name(status)}")

    def error_name(self, status):
        text = ctypes.c_char_p()
        self.call("cuGetErrorName", status, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({status})"

    def allocate(self, nbytes):
        pointer = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        return pointer

    def load(self, ptx):
        """A loaded module. Raises OSError with the assembler's messages."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        text = ctypes.c_char_p(ptx.encode())
        status = self.call("cuModuleLoadDataEx", ctypes.byref(module), text, 2, options, values)
        if status:
            message = log.value.decode(errors="replace").strip()
            raise OSError(f"cuModuleLoadDataEx: {self.error_name(status)} {message}")
        return module

    def to_device(self, pointer, array):
        array = np.ascontiguousarray(array)
        source, nbytes = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self.check("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), source, nbytes)

    def from_device(self, pointer, nbytes):
        array = np.empty(nbytes, np.uint8)
        target = ctypes.c_void_p(array.ctypes.data)
        self.check("cuMemcpyDtoH_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
        return array

    # --- tensor maps -----------------------------------------------------------------------------------------

    def encode(self, fields, address):
        """(128 bytes, "") as cuTensorMapEncodeTiled makes them, or (None, why it refuses)."""
        storage = (ctypes.c_uint8 * 192)()  # a CUtensorMap is aligned to 64 bytes
        at = ctypes.addressof(storage) + -ctypes.addressof(storage) % 64
        rank = fields.rank
        status = self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(at),
            ctypes.c_int(DTYPES[fields.dtype][1]),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(address + fields.shift),
            (ctypes.c_uint64 * rank)(*fields.sizes),
            (ctypes.c_uint64 * max(rank - 1, 1))(*fields.strides),
            (ctypes.c_uint32 * rank)(*fields.box),
            (ctypes.c_uint32 * rank)(*fields.element_strides),
            ctypes.c_int(0),  # no interleave
            ctypes.c_int(SPANS.index(fields.span)),
            ctypes.c_int(fields.l2),
            ctypes.c_int(fields.nan),
        )
        return (None, self.error_name(status)) if status else (ctypes.string_at(at, 128), "")

    # --- launches --------------------------------------------------------------------------------------------

    def run(self, case):
        """Launch a case. Returns (buffers after the launch, number of changed bytes between them, address of each)."""
        module = self.load(case.text)
        function = ctypes.c_void_p()
        self.check("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"bench"))
        self.check("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, case.shared)
        offsets, end = [], GUARD_BYTES
        for buffer in case.buffers:
            offsets.append(end)
            end += -(-buffer.nbytes // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        arena = self.allocate(end)
        image = np.full(end, GUARD, np.uint8)
        for offset, buffer in zip(offsets, case.buffers, strict=True):
            image[offset : offset + buffer.nbytes] = (
                np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
            )
        self.to_device(arena.value, image)
        addresses = [arena.value + offset for offset in offsets]
        maps = [
            ctypes.create_string_buffer(fields.encode(addresses[fields.buffer]), 128)
            for fields in case.maps
        ]
        words = [ctypes.c_uint64(address) for address in addresses]
        pointers = (ctypes.c_void_p * (len(maps) + len(words)))(
            *(ctypes.addressof(parameter) for parameter in [*maps, *words])
        )
        sizes = map(ctypes.c_uint, (*case.grid, *case.block, case.shared))
        self.check("cuLaunchKernel", function, *sizes, None, pointers, None)
        self.check("cuCtxSynchronize")
        after = self.from_device(arena.value, end)
        buffers, guards = [], np.ones(end, bool)
        for offset, buffer in zip(offsets, case.buffers, strict=True):
            buffers.append(after[offset : offset + buffer.nbytes].copy())
            guards[offset : offset + buffer.nbytes] = False
        self.check("cuMemFree_v2", arena)
        self.check("cuModuleUnload", module)
        return buffers, int((guards & (after != GUARD)).sum()), addresses
