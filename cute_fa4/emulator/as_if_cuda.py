"""Runs programs written for a Blackwell GPU unmodified on the emulator: torch and the DSL report a GPU.

    with as_if_cuda():
        import their_example                      imports also happen inside the context
        their_example.run(512, 512, 64)           tensors "on cuda" are CPU tensors; launches execute here

    torch      .cuda(), device="cuda": CPU memory, aligned like CUDA's; is_cuda: True
               streams, events, synchronize: no effect, and NaN between two events
    cutlass    HardwareInfo of a B200; cute.compile and calls of @cute.jit functions: compiled for the emulator
               from_dlpack: a tensor that claims to be on a GPU; testing.benchmark: NaN, nothing is timed

Only one such context may be open per process. Direct driver calls of a program (cuda.bindings) are not supported:
call its functions instead of its main.
"""

import contextlib
import functools
import inspect
import threading
import types
import weakref

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from cute_fa4.emulator.host.driver_api import global_memory
from cute_fa4.emulator.machine.memory import Allocation

SM_COUNT = 148  # B200
ALIGNMENT = 256  # of CUDA allocations

_compiling = threading.local()


class HardwareInfo:
    """Replaces cutlass.utils.HardwareInfo, which queries a driver."""

    def __init__(self, *_):
        pass

    def get_device_multiprocessor_count(self):
        return SM_COUNT

    def get_max_active_clusters(self, cluster_size, *_):
        return SM_COUNT // cluster_size

    def get_l2_cache_size_in_bytes(self):
        return 126 << 20


def _is_cuda(device):
    return device is not None and str(device).startswith("cuda") or type(device) is int


_IS_CUDA = vars(torch._C.TensorBase)["is_cuda"].__get__


class _OnTheCPU(TorchFunctionMode):
    """Replaces device="cuda" in every call of torch; tensors report that device."""

    def __torch_function__(self, function, types_, args=(), kwargs=None):
        if function == _IS_CUDA:
            return True
        kwargs, here = dict(kwargs or {}), False
        if _is_cuda(kwargs.get("device")):
            kwargs["device"], here = "cpu", True
        name = getattr(function, "__name__", "")
        if name == "cuda":
            return _aligned(args[0])
        if name == "to":
            wanted = [a for a in args[1:] if isinstance(a, (str, torch.device)) and _is_cuda(a)]
            args = tuple("cpu" if any(a is w for w in wanted) else a for a in args)
            here = here or bool(wanted)
        made = function(*args, **kwargs)
        return _aligned(made) if here and isinstance(made, torch.Tensor) else made


def _aligned(tensor):
    """A copy at a multiple of 256 bytes, like CUDA's, which kernels may access by address."""
    if not tensor.numel():
        return tensor.clone()
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    nbytes = span * tensor.element_size()
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    name = f"the tensor {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    allocation = Allocation(memory.ctypes.data + start, nbytes, name)
    global_memory.add(allocation)
    weakref.finalize(memory, global_memory.unregister, allocation)
    # torch keeps the array while the memory is in use.
    flat = torch.from_numpy(memory)[start : start + nbytes].view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


class _Event:
    """Replaces torch.cuda.Event: nothing is timed."""

    def __init__(self, **_):
        pass

    def record(self, *_):
        """No effect: earlier launches have ended."""

    synchronize = wait = record

    def query(self):
        return True

    def elapsed_time(self, _):
        return float("nan")


class _Graph:
    """Replaces torch.cuda.CUDAGraph: a capture executes immediately, as if it were replayed once."""

    def __init__(self, *_, **__):
        self._replayed = False

    def replay(self):
        """No effect the first time. Raises NotImplementedError for a second replay."""
        if self._replayed:
            raise NotImplementedError(
                "a graph is executed as it is captured, here, and can be replayed once; call what it captures instead"
            )
        self._replayed = True


@contextlib.contextmanager
def _capturing(*_, **__):
    yield


def _torch_patches():
    stream = types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    properties = types.SimpleNamespace(
        multi_processor_count=SM_COUNT, major=10, minor=0, name="emulator", L2_cache_size=126 << 20
    )
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "synchronize": lambda *_: None,
        "Event": _Event,
        "CUDAGraph": _Graph,
        "graph": _capturing,
        "stream": _capturing,
        "Stream": lambda *_, **__: stream,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "get_device_capability": lambda *_: (10, 0),
        "get_device_properties": lambda *_: properties,
        "empty_cache": lambda: None,
        "manual_seed": lambda _: None,
    }


@contextlib.contextmanager
def as_if_cuda(checks="hardware", arch="sm_100a"):
    """See the module. checks: of launches outside emulator.use(checks=...)."""
    import cutlass.cute as cute
    import cutlass.cute.runtime as runtime
    import cutlass.utils
    from cutlass.cute import testing
    from cutlass.utils import hardware_info

    from cute_fa4.emulator.host.dlpack import as_cuda

    patches = _Patches()
    original_compile, original_jit = cute.compile, cute.jit
    original_tensor = runtime._Tensor.__init__

    def compile_here(function, *args, options="", **kwargs):
        from cute_fa4 import emulator

        _compiling.now = True
        try:
            compiled = emulator.bind(
                original_compile, _original(function), *args,
                options=options or "", arch=arch, checks=checks, **kwargs,
            )  # fmt: skip
        finally:
            _compiling.now = False
        return compiled

    def jit(*arguments, **options):
        if not (len(arguments) == 1 and callable(arguments[0]) and not options):
            return lambda function: wrap(original_jit(*arguments, **options)(function))
        return wrap(original_jit(arguments[0]))

    def wrap(decorated):
        @functools.wraps(decorated)
        def call(*args, **kwargs):
            if getattr(_compiling, "now", False):
                return decorated(*args, **kwargs)
            kwargs.pop("no_cache", None)
            compiled = compile_here(call, *args, **kwargs)
            return compiled(*_runtime_arguments(decorated, args))

        call.cute_fa4_original = decorated
        return call

    def tensor_of(self, tensor, *args, **kwargs):
        if isinstance(tensor, torch.Tensor):
            kwargs["enable_tvm_ffi"] = True
            tensor = as_cuda(tensor.detach())
        original_tensor(self, tensor, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(patches.undo)
        for name, value in _torch_patches().items():
            patches.set(torch.cuda, name, value)
        patches.set(cutlass.utils, "HardwareInfo", HardwareInfo)
        patches.set(hardware_info, "HardwareInfo", HardwareInfo)
        patches.set(cute, "compile", compile_here)
        patches.set(cute, "jit", jit)
        # The DSL's own conversions are decorated already.
        patches.set(testing, "_convert", wrap(testing._convert))
        # The emulator's time is not a GPU's time, so benchmarked functions are not run.
        patches.set(testing, "benchmark", lambda *_, **__: float("nan"))
        patches.set(runtime._Tensor, "__init__", tensor_of)
        stack.enter_context(_OnTheCPU())
        yield


def _original(function):
    """The DSL's decorated function inside a wrapper; bound if the wrapper was bound."""
    original = getattr(function, "cute_fa4_original", None)
    if original is None:
        return function
    owner = getattr(function, "__self__", None)
    return original if owner is None else original.__get__(owner)


def _runtime_arguments(function, args):
    """Arguments of the call, without those for the compiler."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return [
        arg
        for arg, parameter in zip(args, parameters, strict=False)
        if "Constexpr" not in str(parameter.annotation)
    ]


class _Patches:
    """Attributes that are restored afterwards."""

    def __init__(self):
        self._before = []

    def set(self, owner, name, value):
        self._before.append((owner, name, getattr(owner, name, None), hasattr(owner, name)))
        setattr(owner, name, value)

    def undo(self):
        while self._before:
            owner, name, value, was = self._before.pop()
            setattr(owner, name, value) if was else delattr(owner, name)
