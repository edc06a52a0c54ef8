"""The driver's C functions, for libraries that call cuda.bindings from C: cuda.core.

    cuda.core -> cuda.bindings.cydriver -> cuGetProcAddress of driver_library.c -> a C callback for each call
                                                                                -> its answer in cuda_python.py

SIGNATURES lists the calls that are answered. A call that is not, or whose answer raises, returns an error; the text of
that error, which cuda.core puts into its exception, is the message of the emulator.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib
import importlib.util
from pathlib import Path

from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.system.c_compiler import build_shared_library

_BINDINGS = "cuda.bindings._internal.driver"
# CUresult. cuda.core explains the errors of CUDA that it knows, so the emulator's has another number.
_SUCCESS, _INVALID_VALUE, _ERROR_OF_THE_EMULATOR = 0, 1, 998

# name -> "outputs <- inputs": i int, u unsigned, p a pointer, handle or size, f float, s text. An output is written
# through a pointer that comes before the inputs; "inputs -> outputs": after them.
SIGNATURES = {
    "cuInit": "<- u", "cuDriverGetVersion": "i <-", "cuGetErrorName": "i -> p", "cuGetErrorString": "i -> p",
    "cuDeviceGetCount": "i <-", "cuDeviceGet": "i <- i", "cuDeviceGetAttribute": "i <- i i",
    "cuDeviceTotalMem": "p <- i", "cuDeviceGetName": "<- p i i",
    "cuDevicePrimaryCtxRetain": "p <- i", "cuDevicePrimaryCtxRelease": "<- i", "cuCtxGetCurrent": "p <-",
    "cuCtxSetCurrent": "<- p", "cuCtxPushCurrent": "<- p", "cuCtxPopCurrent": "p <-", "cuCtxGetDevice": "i <-",
    "cuCtxSynchronize": "<-", "cuCtxGetStreamPriorityRange": "i i <-",
    "cuStreamCreate": "p <- u", "cuStreamCreateWithPriority": "p <- u i", "cuStreamDestroy": "<- p",
    "cuStreamSynchronize": "<- p", "cuStreamQuery": "<- p", "cuStreamWaitEvent": "<- p p u",
    "cuStreamGetCtx": "p -> p", "cuStreamGetDevice": "p -> i", "cuStreamGetPriority": "p -> i",
    "cuStreamGetFlags": "p -> u", "cuStreamIsCapturing": "p -> i",
    "cuEventCreate": "p <- u", "cuEventDestroy": "<- p", "cuEventRecord": "<- p p", "cuEventQuery": "<- p",
    "cuEventSynchronize": "<- p", "cuEventElapsedTime": "f <- p p",
    "cuMemAlloc": "p <- p", "cuMemAllocAsync": "p <- p p", "cuMemAllocFromPoolAsync": "p <- p p p",
    "cuMemAllocHost": "p <- p", "cuMemAllocManaged": "p <- p u", "cuMemFree": "<- p", "cuMemFreeAsync": "<- p p",
    "cuMemFreeHost": "<- p", "cuDeviceGetMemPool": "p <- i", "cuDeviceGetDefaultMemPool": "p <- i",
    "cuMemPoolGetAttribute": "p i -> p", "cuMemPoolSetAttribute": "<- p i p",
    "cuPointerGetAttributes": "<- u p p p",
    "cuMemcpy": "<- p p p", "cuMemcpyAsync": "<- p p p p", "cuMemcpyHtoDAsync": "<- p p p p",
    "cuMemcpyDtoHAsync": "<- p p p p", "cuMemcpyDtoDAsync": "<- p p p p", "cuMemsetD8Async": "<- p u p p",
    "cuMemsetD16Async": "<- p u p p", "cuMemsetD32Async": "<- p u p p",
    "cuModuleUnload": "<- p", "cuLibraryUnload": "<- p", "cuLibraryLoadData": "p <- p",
    "cuLinkCreate": "u p p -> p", "cuLinkAddData": "<- p i p p s u p p", "cuLinkComplete": "p -> p p",
    "cuLinkDestroy": "<- p", "cuKernelGetParamInfo": "p p -> p p", "cuLibraryGetKernel": "p <- p s",
    "cuKernelGetFunction": "p <- p", "cuLaunchKernel": "<- p u u u u u u u p p p",
    "cuLaunchKernelEx": "<- p p p p",
}  # fmt: skip
_REPORTED = ctypes.create_string_buffer(b"reported by the emulator")
_INPUT_IS_PTX = 1  # of CUjitInputType
_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL = 2, 8, 9  # of CUpointer_attribute
_C_TYPES = {
    "i": ctypes.c_int, "u": ctypes.c_uint, "p": ctypes.c_size_t, "f": ctypes.c_float, "s": ctypes.c_char_p,
}  # fmt: skip


def answer(patches, calls):
    """Have cuda.bindings.cydriver call the answers of cuda_python.py until patches.undo().

    cuda.core is refused by EmulatorError where it would call the driver of the machine: a process that has loaded that
    before, and a cuda-bindings that finds the driver in another way.
    """
    if importlib.util.find_spec("cuda.core") is None:
        return
    bindings = _bindings()
    if bindings is None:
        _refuse_devices(patches, _OTHER_BINDINGS)
        return
    library = _library()
    library.answers = {
        **{f"cu{call}": function for call, function in calls.shared.items()},
        **calls.cu,
        **_FromC(calls).answers,
    }
    patches.set(bindings, "load_nvidia_dynamic_lib", lambda _: library)
    if bindings._inspect_function_pointer("__cuInit") != library.address("cuInit"):
        _refuse_devices(patches, _LOADED_BEFORE)


_LOADED_BEFORE = (
    "the program uses cuda.core, which calls the driver that this process has loaded before; "
    "use the emulator in a process of its own: python -m cute_fa4.emulator run SCRIPT"
)
_OTHER_BINDINGS = (
    "the program uses cuda.core, and the installed cuda-bindings has no "
    f"{_BINDINGS} that loads the driver; accepted: cuda-bindings 13.4"
)


def _bindings():
    """The module that loads the driver for cuda.bindings; None where there is none that is known here."""
    try:
        found = importlib.import_module(_BINDINGS)
    except ImportError:
        return None
    known = all(hasattr(found, n) for n in ("load_nvidia_dynamic_lib", "_inspect_function_pointer"))
    return found if known else None


def _refuse_devices(patches, message):
    """Have cuda.core.Device raise EmulatorError, where there is one."""

    def refuse(*_, **__):
        raise EmulatorError(message)

    with contextlib.suppress(ImportError):
        core = importlib.import_module("cuda.core")
        if hasattr(core, "Device"):
            patches.set(core, "Device", refuse)


@functools.cache
def _library():
    return _Library()


class _Library:
    """What cuda.pathfinder returns for libcuda. It is loaded once: cuda.bindings keeps the addresses of its calls."""

    def __init__(self):
        self.answers = {}
        self._message = ctypes.create_string_buffer(b"success")
        self._callbacks = {}
        source = Path(__file__).with_name("driver_library.c").read_text()
        self._loaded = ctypes.CDLL(str(build_shared_library("driver_library", source)))
        slots, stubs = ((ctypes.c_void_p * 100).in_dll(self._loaded, n) for n in ("slots", "stubs"))
        self._stubs = dict(zip(SIGNATURES, stubs, strict=False))
        for number, name in enumerate(SIGNATURES):
            slots[number] = ctypes.cast(self._callback(name), ctypes.c_void_p).value
        resolver = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
        self._resolver = resolver(self._resolve)
        resolve = ctypes.c_void_p.in_dll(self._loaded, "resolve")
        resolve.value = ctypes.cast(self._resolver, ctypes.c_void_p).value
        self._handle_uint = self._loaded._handle
        ended = ctypes.c_int.in_dll(self._loaded, "ended")
        atexit.register(setattr, ended, "value", 1)

    def address(self, name):
        """The address of a call's C function."""
        if name in self._stubs:
            return self._stubs[name]
        return ctypes.cast(self._callback(name), ctypes.c_void_p).value

    def _resolve(self, name, function):
        function[0] = self.address(name.decode())
        return _SUCCESS

    def _callback(self, name):
        if name not in self._callbacks:
            self._callbacks[name] = self._made(name)
        return self._callbacks[name]

    def _made(self, name):
        """The C function that calls the answer."""
        signature = SIGNATURES.get(name, "<-")
        before = "<-" in signature
        left, right = (side.split() for side in signature.split("<-" if before else "->"))
        outputs, inputs = (left, right) if before else (right, left)
        pointers = [ctypes.POINTER(_C_TYPES[letter]) for letter in outputs]
        values = [_C_TYPES[letter] for letter in inputs]
        kinds = pointers + values if before else values + pointers
        at = slice(len(pointers)) if before else slice(len(values), None)

        def call(*arguments):
            targets = arguments[at]
            given = arguments[len(targets) :] if before else arguments[: len(values)]
            try:
                found = self._answer(name)(*given)
                found = found if isinstance(found, tuple) else (found,)
                for target, letter, value in zip(targets, outputs, found, strict=False):
                    target[0] = value if letter == "f" else int(value)
            except IndexError:  # of a parameter: how cuda.core finds their number
                return _INVALID_VALUE
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
                self._message = ctypes.create_string_buffer(text.encode())
                return _ERROR_OF_THE_EMULATOR
            return _SUCCESS

        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(call)

    def _answer(self, name):
        if name not in SIGNATURES:
            raise EmulatorError(
                f"the program calls the driver's {name}, which the emulator does not answer; "
                "cute_fa4/emulator/host/driver_library.py lists the calls that it answers"
            )
        if name == "cuGetErrorName":
            return lambda _: ctypes.addressof(self._message)
        if name == "cuGetErrorString":
            return lambda _: ctypes.addressof(_REPORTED)
        return self.answers[name]


# --- calls whose parameters in C are not those in Python --------------------------------------------------


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(driver_api.LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


class _FromC:
    """The answers to calls from C that take or return structures, arrays and text; numbers are addresses or sizes."""

    def __init__(self, calls):
        self.calls = calls
        self.linked = {}  # handle of cuLinkCreate -> PTX text
        self.answers = {
            "cuDeviceGetName": self.device_name, "cuPointerGetAttributes": self.pointer_attributes,
            "cuKernelGetParamInfo": self.parameter, "cuLaunchKernelEx": self.launch, "cuLinkCreate": self.link,
            "cuLinkAddData": self.add_to_link, "cuLinkComplete": self.link_result,
            "cuLinkDestroy": lambda handle: self.linked.pop(handle),
        }  # fmt: skip

    def device_name(self, target, length, device):
        text = self.calls.cu["cuDeviceGetName"](length, device) + b"\0"
        ctypes.memmove(target, text, len(text))

    def pointer_attributes(self, count, numbers, targets, address):
        """Attributes of the allocation of an address; without one they are those of the host's memory."""
        allocation = driver_api.global_memory.find(address, 1)
        on_host = allocation is None or allocation.name.endswith("cuMemAllocHost")
        known = {_MEMORY_TYPE: 1 if on_host else 2, _IS_MANAGED: 0, _DEVICE_ORDINAL: 0}
        for number, target in zip(
            (ctypes.c_int * count).from_address(numbers),
            (ctypes.c_void_p * count).from_address(targets),
            strict=True,
        ):
            if number not in known:
                raise EmulatorError(
                    f"the program asks for attribute {number} of a pointer; known are {sorted(known)}"
                )
            ctypes.c_int.from_address(target).value = known[number]

    def parameter(self, kernel, index):
        """Offset and bytes. Raises IndexError beyond the last parameter."""
        one = driver_api.program_of(*self.calls.loaded[kernel]).kernel.params[index]
        return one.offset, one.nbytes

    def link(self, *_):
        """A link takes one PTX text and returns it."""
        handle = next(self.calls.handles)
        self.linked[handle] = b""
        return handle

    def add_to_link(self, handle, kind, address, nbytes, *_):
        if kind != _INPUT_IS_PTX or self.linked[handle]:
            raise EmulatorError(
                "the program links several inputs, or one that is not PTX; load one PTX text"
            )
        self.linked[handle] = ctypes.string_at(address, nbytes).rstrip(b"\0") + b"\0"

    def link_result(self, handle):
        text = self.linked[handle]
        return ctypes.cast(text, ctypes.c_void_p).value, len(text)

    def launch(self, config, function, params, extra):
        config = _LaunchConfig.from_address(config)
        given = config.attributes[: config.attribute_count]
        attributes = {each.id: each.value[:] for each in given}
        sizes = tuple(config.grid), tuple(config.block), config.shared
        self.calls.execute(function, *sizes, (params, extra), attributes)
