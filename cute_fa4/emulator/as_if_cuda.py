"""Runs programs written for a Blackwell GPU unmodified on the emulator: torch and the DSL report a GPU.

    with as_if_cuda():
        import their_example                      imports also happen inside the context
        their_example.run(512, 512, 64)           tensors "on cuda" are CPU tensors; launches execute here

    torch      .cuda(), device="cuda": CPU memory, aligned like CUDA's; is_cuda: True
               streams, events, synchronize: no effect, and NaN between two events
    cutlass    HardwareInfo of a B200; cute.compile and calls of @cute.jit functions: compiled for the emulator
               from_dlpack: a tensor that claims to be on a GPU; testing.benchmark: NaN, nothing is timed
    cuda       cuda-python's driver and runtime calls: host/cuda_python.py; cuda.core: host/driver_library.py
    processes  those that it starts have a GPU, too: host/processes.py
    triton     kernels launched on the emulator: host/triton_driver.py

Only one such context may be open per process.
"""

import atexit
import contextlib
import functools
import inspect
import itertools
import threading
import weakref

import torch
from torch.overrides import TorchFunctionMode

from cute_fa4.emulator.host import cuda_python, device, processes, triton_driver
from cute_fa4.emulator.host.driver_api import global_memory
from cute_fa4.emulator.host.session import use

_compiling = threading.local()


def _is_cuda(where):
    return where is not None and str(where).startswith("cuda") or type(where) is int


_IS_CUDA = vars(torch._C.TensorBase)["is_cuda"].__get__


class _OnTheCPU(TorchFunctionMode):
    """Replaces device="cuda" in every call of torch; tensors report that device."""

    def __torch_function__(self, function, types_, args=(), kwargs=None):
        if function == _IS_CUDA:
            return True
        kwargs, here = dict(kwargs or {}), False
        if _is_cuda(kwargs.get("device")):
            kwargs["device"], here = "cpu", True
        kwargs.pop("pin_memory", None)
        name = getattr(function, "__name__", "")
        if name == "pin_memory":
            return args[0]
        if name == "cuda":
            return _aligned(args[0])
        if name == "to":
            wanted = [
                a for a in args[1:] if isinstance(a, (str, int, torch.device)) and _is_cuda(a)
            ]
            args = tuple("cpu" if any(a is w for w in wanted) else a for a in args)
            here = here or bool(wanted)
        here = here or name.endswith("_like")
        made = function(*args, **kwargs)
        if not (here and isinstance(made, torch.Tensor)):
            return made
        if made.is_leaf and made.requires_grad and name != "to":  # a parameter stays one
            return _aligned(made.detach()).requires_grad_()
        return _aligned(made)


def _aligned(tensor):
    """A copy at a multiple of 256 bytes, like CUDA's, which kernels may access by address."""
    if not tensor.numel():
        return tensor.clone()
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    nbytes = span * tensor.element_size()
    name = f"the tensor {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    allocation, memory = device.allocated(nbytes, name)
    global_memory.add(allocation)
    weakref.finalize(memory, global_memory.unregister, allocation)
    # torch keeps the array while the memory is in use.
    flat = torch.from_numpy(memory).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


class _Event:
    """Replaces torch.cuda.Event: nothing is timed."""

    _handles = itertools.count(1)

    def __init__(self, *_, **__):
        self.cuda_event = next(self._handles)

    def record(self, *_):
        """No effect: earlier launches have ended."""

    synchronize = wait = record

    def query(self):
        return True

    def elapsed_time(self, _):
        return float("nan")


class _Stream:
    """Replaces torch.cuda.Stream: a launch has ended when the call returns, so there is nothing to wait for."""

    _handles = itertools.count(1)
    device_index, priority = 0, 0

    def __init__(self, *_, **__):
        self.cuda_stream = next(self._handles)

    def synchronize(self, *_):
        """No effect."""

    wait_stream = wait_event = synchronize

    def query(self):
        return True

    def record_event(self, event=None):
        return _Event() if event is None else event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """No effect: work of all streams is in one order."""


class _ExternalStream(_Stream):
    """Replaces torch.cuda.ExternalStream."""

    def __init__(self, stream_ptr, *_, **__):
        self.cuda_stream = stream_ptr


class _Generator(torch.Generator):
    """Replaces torch.Generator: that of a GPU is a CPU's."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu" if _is_cuda(device) else device)


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


def _nothing(*_, **__):
    """No effect."""


def _torch_patches():
    """(owner, name) -> its replacement."""
    device_of_cpu = torch.set_default_device
    return {
        **{(torch.cuda, name): value for name, value in _torch_cuda_patches().items()},
        (torch, "Generator"): _Generator,
        (torch, "set_default_device"): lambda where: device_of_cpu(
            None if _is_cuda(where) else where
        ),
        **{(torch.cuda.nvtx, name): _nothing for name in ("range_push", "range_pop", "mark")},
        (torch.cuda.nvtx, "range"): _capturing,
        **{(torch.cuda.profiler, name): _nothing for name in ("start", "stop")},
    }


def _torch_cuda_patches():
    stream = _Stream()
    stream.cuda_stream = 0  # the default stream
    capability = device.ATTRIBUTES[75], device.ATTRIBUTES[76]
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
        "Stream": _Stream,
        "ExternalStream": _ExternalStream,
        "init": lambda: None,
        **dict.fromkeys(
            ("reset_peak_memory_stats", "reset_max_memory_allocated", "ipc_collect"), _nothing
        ),
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "device": _capturing,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: device.NAME,
        "get_device_properties": lambda *_: device.Properties(),
        "mem_get_info": lambda *_: (device.free_memory(), device.total_memory()),
        "empty_cache": lambda: None,
        "manual_seed": lambda _: None,
        "manual_seed_all": lambda _: None,
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
    original_tensor = runtime._Tensor.__init__

    def tensor_of(self, tensor, *args, **kwargs):
        if isinstance(tensor, torch.Tensor):
            kwargs["enable_tvm_ffi"] = True
            tensor = as_cuda(tensor.detach())
        original_tensor(self, tensor, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.callback(patches.undo)
        for (owner, name), value in _torch_patches().items():
            patches.set(owner, name, value)
        cuda_python.answer(patches, checks)
        processes.answer(patches, checks, arch)
        patches.set(cutlass.utils, "HardwareInfo", device.HardwareInfo)
        patches.set(hardware_info, "HardwareInfo", device.HardwareInfo)
        for namespace in (cute, *_experimental()):
            compile_here = _Compile(namespace.compile, arch, checks)
            patches.set(namespace, "jit", _Jit(namespace.jit, compile_here))
            patches.set(namespace, "compile", compile_here)
        # The DSL's own conversions are decorated already.
        patches.set(testing, "_convert", cute.jit.wrap(testing._convert))
        # The emulator's time is not a GPU's time, so benchmarked functions are not run.
        patches.set(testing, "benchmark", lambda *_, **__: float("nan"))
        patches.set(runtime._Tensor, "__init__", tensor_of)
        stack.enter_context(triton_driver.active(patches, checks))
        stack.enter_context(_OnTheCPU())
        yield


_until_the_end = contextlib.ExitStack()


def start(checks, arch, settings):
    """The beginning of a spawned process (host/processes.py): as if there were a GPU until it ends."""
    atexit.register(_until_the_end.close)
    for context in (as_if_cuda(checks, arch), use(**settings)):
        _until_the_end.enter_context(context)


def _experimental():
    """cute.experimental, which has its own jit and compile, where this version of the DSL has it."""
    try:
        from cutlass.cute import experimental
    except ImportError:
        return ()
    return (experimental,)


class _Jit:
    """Replaces cute.jit: a call outside a compilation compiles for the emulator, and calls."""

    def __init__(self, original, compile_here):
        self._decorate, self._compile = original, compile_here

    def __call__(self, *arguments, **options):
        if not (len(arguments) == 1 and callable(arguments[0]) and not options):
            return lambda function: self.wrap(self._decorate(*arguments, **options)(function))
        return self.wrap(self._decorate(arguments[0]))

    def wrap(self, decorated):
        @functools.wraps(decorated)
        def call(*args, **kwargs):
            if getattr(_compiling, "now", False):
                return decorated(*args, **kwargs)
            kwargs.pop("no_cache", None)
            compiled = self._compile(call, *args, **kwargs)
            return compiled(*_runtime_arguments(decorated, args))

        call.cute_fa4_original = decorated
        return call


class _Compile:
    """Replaces cute.compile: compiles for the emulator. compile[options] likewise."""

    def __init__(self, original, arch, checks):
        self._compiler, self._arch, self._checks = original, arch, checks

    def __getitem__(self, options):
        return _Compile(self._compiler[options], self._arch, self._checks)

    def __call__(self, function, *args, options="", **kwargs):
        from cute_fa4 import emulator

        args = [_as_tensor(arg) for arg in args]
        kwargs = {name: _as_tensor(arg) for name, arg in kwargs.items()}
        _compiling.now = True
        try:
            return emulator.bind(
                self._compiler, _original(function), *args,
                options=options or "", arch=self._arch, checks=self._checks, **kwargs,
            )  # fmt: skip
        finally:
            _compiling.now = False


def _as_tensor(value):
    """A tensor of torch as the DSL's own adapter converts it (runtime.TensorAdapter), which TVM-FFI does not use."""
    if not isinstance(value, torch.Tensor):
        return value
    from cutlass.cute import runtime

    return runtime.from_dlpack(value).mark_layout_dynamic()


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
    """Attributes, and items of dictionaries, that are restored afterwards."""

    def __init__(self):
        self._undo = []

    def set(self, owner, name, value):
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def set_item(self, owner, name, value):
        if name in owner:
            self._undo.append(functools.partial(owner.__setitem__, name, owner[name]))
        else:
            self._undo.append(functools.partial(owner.pop, name, None))
        owner[name] = value

    def undo(self):
        while self._undo:
            self._undo.pop()()
