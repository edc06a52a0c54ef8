"""What cuda-python's driver and runtime calls answer on the emulator: cuda.bindings.driver, cuda.bindings.runtime.

    devices    one, with the attributes of device.py; every context is its primary context
    memory     CPU memory at multiples of 256 bytes; copies and memsets happen at the call
    streams    handles: launches have ended when a call returns, so there is nothing to wait for
    events     the same; the time between two events is NaN, because the emulator's time is not a GPU's time
    modules    PTX text, whose kernels cuLaunchKernel and cuLaunchKernelEx execute

Every other call raises EmulatorError with its name.
"""

import ctypes
import importlib.util
import itertools
import re
import sys

import numpy as np

from cute_fa4.emulator.host import device, driver_api, driver_library, tensor_maps
from cute_fa4.emulator.ptx.errors import EmulatorError, IllegalAccess

MODULES = {  # module: (prefix of its calls, its enumeration of errors, success, the former name of the module)
    "cuda.bindings.driver": ("cu", "CUresult", "CUDA_SUCCESS", "cuda.cuda"),
    "cuda.bindings.runtime": ("cuda", "cudaError_t", "cudaSuccess", "cuda.cudart"),
}
# Calls that need no GPU: names of errors, and the version of the library.
_OWN_ANSWERS = {"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion"}
_MACHINE_CODE = (b"\x7fELF", b"\x50\xed\x55\xba")  # a cubin, a fatbin


def answer(patches, checks):
    """Replace the calls of cuda-python until patches.undo().

    checks  of launches outside emulator.use(checks=...)
    """
    if importlib.util.find_spec("cuda") is None:
        return
    calls = _Calls(checks)
    driver_library.answer(patches, calls)
    for name, (prefix, errors, success, former) in MODULES.items():
        if importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        status = getattr(getattr(module, errors), success)
        answers = {f"{prefix}{call}": function for call, function in calls.shared.items()}
        answers |= getattr(calls, prefix)
        for call, own in list(vars(module).items()):
            if not re.match(f"{prefix}[A-Z]", call) or isinstance(own, type) or not callable(own):
                continue
            if call in _OWN_ANSWERS:
                continue
            function = answers.get(call)
            patches.set(
                module,
                call,
                _unanswered(name, call) if function is None else _answered(call, function, status),
            )
        # cuda-python before version 13 has the same modules under these names.
        patches.set_item(sys.modules, former, module)
        patches.set(importlib.import_module("cuda"), former.rpartition(".")[2], module)


def _answered(call, function, status):
    """A call of cuda-python: a tuple of the status and what the call returns."""

    def answered(*args, **kwargs):
        value = function(*args, **kwargs)
        if value is None:
            return (status,)
        return (status, *value) if isinstance(value, tuple) else (status, value)

    answered.__name__ = call
    return answered


def _unanswered(module, call):
    def unanswered(*_, **__):
        raise EmulatorError(
            f"the program calls {module}.{call}, which the emulator does not answer; "
            "cute_fa4/emulator/host/cuda_python.py lists the calls that it answers"
        )

    unanswered.__name__ = call
    return unanswered


def _nothing(*_, **__):
    """No effect: earlier work has ended, and there is one device."""


def _address(value):
    """The address that cuda-python would take from an argument of type void*."""
    if hasattr(value, "ctypes"):  # NumPy
        return value.ctypes.data
    try:
        return int(value)
    except (TypeError, ValueError):
        return np.frombuffer(value, np.uint8).ctypes.data


class _Calls:
    """The answers, by name: of both libraries without their prefix, of the driver, of the runtime."""

    def __init__(self, checks):
        from cuda.bindings import driver

        self.driver, self.checks = driver, checks
        self.handles = itertools.count(1)
        self.memory = {}  # address of cuMemAlloc -> Allocation
        self.loaded = {}  # handle -> PTX library, or (library, entry)
        self.shared = self._shared()
        self.cu = self._of_the_driver()
        self.cuda = self._of_the_runtime()

    def _shared(self):
        silent = (
            "StreamDestroy", "StreamSynchronize", "StreamQuery", "StreamWaitEvent", "EventDestroy", "EventRecord",
            "EventRecordWithFlags", "EventSynchronize", "EventQuery", "ProfilerStart", "ProfilerStop",
        )  # fmt: skip
        return {
            **dict.fromkeys(silent, _nothing),
            "DriverGetVersion": lambda: self.driver.CUDA_VERSION,
            "StreamCreate": self.stream, "StreamCreateWithPriority": self.stream,
            "EventCreate": self.event, "EventElapsedTime": lambda *_: float("nan"),
            "MemGetInfo": lambda: (device.free_memory(), device.total_memory()),
            "MemcpyAsync": lambda target, source, nbytes, *_: self.copy(target, source, nbytes),
        }  # fmt: skip

    def _of_the_driver(self):
        silent = (
            "cuInit", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxDestroy", "cuCtxSynchronize",
            "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxSetFlags", "cuModuleUnload",
            "cuLibraryUnload", "cuFuncSetAttribute", "cuKernelSetAttribute", "cuFuncSetCacheConfig",
            "cuMemPoolSetAttribute",
        )  # fmt: skip
        context = dict.fromkeys(
            ("cuCtxGetCurrent", "cuCtxCreate", "cuCtxPopCurrent", "cuDevicePrimaryCtxRetain"),
            lambda *_: self.driver.CUcontext(1),
        )
        copies = {
            f"cuMemcpy{way}{late}": lambda target, source, nbytes, *_: self.copy(target, source, nbytes)
            for way in ("", "HtoD", "DtoH", "DtoD") for late in ("", "Async")
        }  # fmt: skip
        fills = {
            f"cuMemsetD{bits}{late}": lambda start, value, count, *_, bits=bits: self.fill(
                start, value, count, bits // 8
            )
            for bits in (8, 16, 32)
            for late in ("", "Async")
        }
        allocations = dict.fromkeys(
            ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemAllocFromPoolAsync"),
            lambda nbytes, *_: self.driver.CUdeviceptr(self.allocate(nbytes)),
        )
        host = dict.fromkeys(
            ("cuMemAllocHost", "cuMemHostAlloc"), lambda nbytes, *_: self.allocate(nbytes, "host")
        )
        return {
            **dict.fromkeys(silent, _nothing), **context, **copies, **fills, **allocations, **host,
            **dict.fromkeys(("cuMemFree", "cuMemFreeAsync", "cuMemFreeHost"), self.free),
            "cuGetErrorName": lambda error: self.driver.CUresult(error).name.encode(),
            "cuGetErrorString": lambda error: self.driver.CUresult(error).name.encode(),
            "cuDeviceGetCount": lambda: 1, "cuDeviceGet": lambda number: self.driver.CUdevice(_the_device(number)),
            **dict.fromkeys(("cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool"), lambda _: self.driver.CUmemoryPool(1)),
            "cuMemPoolGetAttribute": lambda *_: self.driver.cuuint64_t(0),
            "cuStreamGetCtx": lambda _: self.driver.CUcontext(1),
            "cuStreamGetDevice": lambda _: self.driver.CUdevice(0),
            "cuStreamGetPriority": lambda _: 0, "cuStreamGetFlags": lambda _: 0,
            "cuStreamIsCapturing": lambda _: self.driver.CUstreamCaptureStatus(0),
            "cuCtxGetStreamPriorityRange": lambda: (0, 0),  # the least and the greatest: all have the same
            "cuCtxGetDevice": lambda: self.driver.CUdevice(0),
            "cuDeviceGetName": lambda length, *_: device.NAME.encode()[: length - 1],
            "cuDeviceTotalMem": lambda *_: device.total_memory(), "cuDeviceGetAttribute": _attribute,
            "cuModuleLoadData": lambda image: self.driver.CUmodule(self.load(image)),
            "cuModuleGetFunction": lambda module, name: self.driver.CUfunction(self.entry(module, name)),
            "cuLibraryLoadData": lambda code, *_: self.driver.CUlibrary(self.load(code)),
            "cuLibraryGetKernel": lambda library, name: self.driver.CUkernel(self.entry(library, name)),
            "cuKernelGetFunction": lambda kernel: self.driver.CUfunction(int(kernel)),
            "cuLaunchKernel": self.launch, "cuLaunchKernelEx": self.launch_with_attributes,
            "cuTensorMapEncodeTiled": self.encode_tiled,
        }  # fmt: skip

    def _of_the_runtime(self):
        silent = ("cudaSetDevice", "cudaDeviceSynchronize", "cudaDeviceReset", "cudaGetLastError",
                  "cudaPeekAtLastError")  # fmt: skip
        allocations = dict.fromkeys(
            ("cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc"),
            lambda nbytes, *_: self.allocate(nbytes),
        )  # fmt: skip
        return {
            **dict.fromkeys(silent, _nothing), **allocations,
            **dict.fromkeys(("cudaFree", "cudaFreeAsync", "cudaFreeHost"), self.free),
            "cudaGetDeviceCount": lambda: 1, "cudaGetDevice": lambda: 0, "cudaDeviceGetAttribute": _attribute,
            "cudaGetDeviceProperties": lambda number: _the_device(number) or device.Properties(device.NAME.encode()),
            "cudaStreamCreateWithFlags": self.stream, "cudaEventCreateWithFlags": self.event,
            "cudaMemcpy": lambda target, source, nbytes, *_: self.copy(target, source, nbytes),
            **dict.fromkeys(
                ("cudaMemset", "cudaMemsetAsync"), lambda start, value, n, *_: self.fill(start, value, n, 1)
            ),
        }  # fmt: skip

    def stream(self, *_):
        return self.driver.CUstream(next(self.handles))

    def event(self, *_):
        return self.driver.CUevent(next(self.handles))

    # --- memory ---

    def allocate(self, nbytes, where="device"):
        call = "cuMemAlloc" if where == "device" else "cuMemAllocHost"
        allocation, memory = device.allocated(int(nbytes), f"{int(nbytes)} bytes of {call}")
        allocation.keep = memory
        driver_api.global_memory.add(allocation)
        self.memory[allocation.start] = allocation
        return allocation.start

    def free(self, address, *_):
        allocation = self.memory.pop(int(address), None)
        if allocation is None and int(address):
            raise EmulatorError(
                f"the program frees {int(address):#x}, which it has not allocated, or has freed before"
            )
        if allocation is not None:
            driver_api.global_memory.unregister(allocation)

    def copy(self, target, source, nbytes):
        to, from_ = _address(target), _address(source)
        for address, does in ((to, "writes"), (from_, "reads")):
            _check_inside(address, nbytes, f"a copy {does}")
        ctypes.memmove(to, from_, nbytes)

    def fill(self, start, value, count, itemsize):
        _check_inside(int(start), count * itemsize, "a memset writes")
        pattern = (int(value) & (1 << 8 * itemsize) - 1).to_bytes(itemsize, "little")
        ctypes.memmove(int(start), pattern * count, count * itemsize)

    # --- kernels ---

    def load(self, image):
        """The handle of a PTX text: bytes, a NumPy array, or an address."""
        text = bytes(image) if isinstance(image, (bytes, bytearray)) else None
        if text is None:
            text = ctypes.string_at(_address(image))
        if text.startswith(_MACHINE_CODE):
            raise EmulatorError(
                "the program loads machine code (a cubin or fatbin); the emulator executes PTX: load the PTX text"
            )
        handle = next(self.handles)
        self.loaded[handle] = driver_api.library(text.rstrip(b"\0").decode())
        return handle

    def entry(self, library, name):
        handle = next(self.handles)
        name = name.decode() if isinstance(name, bytes) else name
        self.loaded[handle] = (self.loaded[int(library)], name)
        driver_api.program_of(*self.loaded[handle])  # raises for a name that the PTX does not have
        return handle

    def launch(self, function, *sizes):
        """cuLaunchKernel(f, gridDimX, ..., blockDimX, ..., sharedMemBytes, hStream, kernelParams, extra)."""
        *dims, shared, _stream, params, extra = sizes
        self.execute(function, tuple(dims[:3]), tuple(dims[3:]), shared, (params, extra))

    def launch_with_attributes(self, config, function, params, extra):
        """cuLaunchKernelEx."""
        attributes = {int(each.id): _words(each.value) for each in config.attrs}
        self.execute(
            function,
            (config.gridDimX, config.gridDimY, config.gridDimZ),
            (config.blockDimX, config.blockDimY, config.blockDimZ),
            config.sharedMemBytes,
            (params, extra),
            attributes,
        )  # fmt: skip

    def execute(self, function, grid, block, shared, given, attributes=None):
        params, extra = given
        if extra:
            raise EmulatorError("the argument extra of a launch is not answered; pass kernelParams")
        library, name = self.loaded[int(function)]
        program = driver_api.program_of(library, name)
        driver_api.begin_call(self.checks)
        driver_api.execute(
            program,
            params=_parameters(program.kernel, params),
            grid=grid,
            block=block,
            dynamic_shared_bytes=shared,
            labels=library.labels,
            **driver_api.launch_options(attributes or {}, program.kernel, grid),
        )

    def encode_tiled(self, *parameters):
        """cuTensorMapEncodeTiled."""
        data = tensor_maps.encode_as_driver(*parameters)
        made = self.driver.CUtensorMap()
        made.opaque = [int(word) for word in np.frombuffer(data, np.uint64)]
        return made


def _words(value):
    """The 16 words of the union CUlaunchAttributeValue."""
    return (ctypes.c_uint32 * 16).from_address(value.getPtr())[:]


def _the_device(number):
    if int(number):
        raise EmulatorError(f"device {int(number)}: the emulator has one device, number 0")
    return 0


def _attribute(number, *_):
    return device.attribute(int(number))


def _check_inside(address, nbytes, what):
    """Raises IllegalAccess for memory that begins in an allocation and ends after it."""
    allocation = driver_api.global_memory.find(address, 1)
    if allocation is not None and driver_api.global_memory.find(address, nbytes) is None:
        raise IllegalAccess(
            f"{what} {nbytes} bytes at {address:#x}, beyond the end of {allocation.name}"
        )


def _parameters(kernel, given):
    """The bytes of the parameters: from cuda-python's (values, types), or from an array of pointers to them."""
    block = bytearray(kernel.param_bytes)
    if not kernel.params:
        return bytes(block)
    if isinstance(given, tuple):
        values, types = given
        if len(values) != len(kernel.params):
            names = ", ".join(f"{p.name} ({p.nbytes} bytes)" for p in kernel.params)
            raise EmulatorError(
                f"{kernel.name} takes {len(kernel.params)} arguments, {len(values)} were given; parameters: {names}"
            )
        parts = [_bytes(v, t, p) for v, t, p in zip(values, types, kernel.params, strict=True)]
    else:
        pointers = (ctypes.c_void_p * len(kernel.params)).from_address(_address(given))
        parts = [
            ctypes.string_at(at, p.nbytes) for at, p in zip(pointers, kernel.params, strict=True)
        ]
    for part, parameter in zip(parts, kernel.params, strict=True):
        block[parameter.offset : parameter.offset + parameter.nbytes] = part
    return bytes(block)


def _bytes(value, kind, parameter):
    if kind is None and hasattr(value, "getPtr"):
        return ctypes.string_at(value.getPtr(), parameter.nbytes)
    if isinstance(value, ctypes._SimpleCData):
        data = bytes(value)
    else:
        pointer = kind in (None, ctypes.c_void_p)
        data = bytes(ctypes.c_void_p(int(value)) if pointer else kind(value))
    if len(data) != parameter.nbytes:
        raise EmulatorError(
            f"{parameter.name}: {len(data)} bytes for a parameter of {parameter.nbytes}"
        )
    return data
