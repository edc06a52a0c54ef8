"""The cases of `hopper driver`: each is a function that returns a text, and the text that it must contain."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import tvm_ffi

from cute_fa4.emulator import as_cuda
from cute_fa4.hopper.driver_calls import (
    FOLDER,
    Append,
    Functions,
    Value,
    active,
    configs,
    cuda_driver,
    current,
    free_bytes,
    in_thread,
    message,
)
from cute_fa4.hopper.guarded import Memory


@dataclass(frozen=True)
class Case:
    """run(functions) -> a text; functions(i) is the exported function of configs()[i]."""

    name: str
    run: Callable
    expect: str
    gpus: int = 1


CASES: list[Case] = []


def case(name: str, expect: str, gpus: int = 1):
    def add(function):
        CASES.append(Case(name, function, expect, gpus))
        return function

    return add


@case("first call of a process without any context; no rows, so nothing is launched", "loaded")
def no_context(functions: Functions) -> str:
    function = functions(0)
    append = Append("cpu")
    append.new = [torch.zeros(2, 0, 2, 64).bfloat16() for _ in "kv"]
    arguments = [as_cuda(x) if isinstance(x, torch.Tensor) else x for x in append.arguments()]
    said = message(lambda: function(*arguments))
    loaded = said == "no error" or "cuLaunchKernelEx" in said
    return (
        f"{'loaded' if loaded else 'not loaded'}; {said}; primary context of device 0 "
        f"{'active' if active(0) else 'inactive'}, {'left current' if current() else 'none left current'}"
    )


@case("first call of a thread without context, tensors on device 0", "0 wrong rows, left current")
def second_thread(functions: Functions) -> str:
    append, function = Append(), functions(0)

    def run():
        before = current()
        append.run(function)
        return before, current()

    before, after = in_thread(run)
    found = "left current" if after else "no context left current"
    return f"{append.wrong()} wrong rows, {found}{', had one before' if before else ''}"


@case("eight threads call at once, the first call of each", "0 wrong rows")
def eight_threads(functions: Functions) -> str:
    appends, function = [Append() for _ in range(8)], functions(0)
    threads = [threading.Thread(target=append.run, args=(function,)) for append in appends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{sum(append.wrong() for append in appends)} wrong rows"


@case("first call on device 1, then device 0, then device 1", "0, 0, 0 wrong rows", gpus=2)
def device_1(functions: Functions) -> str:
    function, first = functions(0), Append("cuda:1")
    torch.cuda.synchronize(1)
    before = active(0)
    first.run(function)
    wrong, after = [first.wrong()], active(0)
    for device in ("cuda:0", "cuda:1"):
        append = Append(device)
        append.run(function)
        wrong.append(append.wrong())
    return (
        f"{wrong[0]}, {wrong[1]}, {wrong[2]} wrong rows; context of device 0: "
        f"{'active' if before else 'inactive'} before the first call, {'active' if after else 'inactive'} after it; "
        f"torch's current device is still {torch.cuda.current_device()}"
    )


@case(
    "first call in a thread without context, tensors on device 1",
    "0 wrong rows, no context left current",
    gpus=2,
)
def thread_device_1(functions: Functions) -> str:
    append, function = Append("cuda:1"), functions(0)

    def run():
        append.run(function)
        return current()

    left = in_thread(run)
    return f"{append.wrong()} wrong rows, {'left current' if left else 'no context left current'}"


@case("a side stream that is busy", "not done when the call returns, 0 wrong rows")
def side_stream(functions: Functions) -> str:
    warm, append, function = Append(), Append(), functions(0)
    warm.run(function)
    stream, done = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1 << 30)
        append.run(function)
        done.record()
    busy = not done.query()
    return f"{'not done' if busy else 'done'} when the call returns, {append.wrong()} wrong rows"


@case(
    "captured in a CUDA graph after a first call, replayed three times with other rows",
    "0, 0, 0 wrong rows",
)
def graph(functions: Functions) -> str:
    append, function, wrong = Append(), functions(0), []
    append.run(function)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        append.run(function)
    for _ in range(3):
        for new, cache in zip(append.new, append.cache, strict=True):
            new.normal_()
            cache.zero_()
        captured.replay()
        wrong.append(append.wrong())
    return ", ".join(map(str, wrong)) + " wrong rows"


@case("the first call of all is captured in a CUDA graph", "")
def graph_first(functions: Functions) -> str:
    append, function = Append(), functions(0)
    captured = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(captured):
            append.run(function)

    said = message(capture)
    if said != "no error":
        return said
    for cache in append.cache:
        cache.zero_()
    captured.replay()
    return f"{said}, {append.wrong()} wrong rows after the replay"


@case("two libraries in one process, in turn", "0, 0, 0, 0 wrong rows")
def two_libraries(functions: Functions) -> str:
    wrong = []
    for number in (0, 1, 0, 1):
        append = Append(paged=number == 0)
        append.run(functions(number))
        wrong.append(append.wrong())
    return ", ".join(map(str, wrong)) + " wrong rows"


@case("the plain C entry, in a thread without context, on a side stream", "status 0, 0 wrong rows")
def plain_c(functions: Functions) -> str:
    name, append, stream = configs()[0].name, Append(), torch.cuda.Stream()
    library = ctypes.CDLL(str(Path(sys.argv[2]) / FOLDER / f"{name}_c.so"))
    use_stream, last_error = (getattr(library, f"{name}_{f}") for f in ("use_stream", "last_error"))
    last_error.restype = ctypes.c_char_p
    given = [Value.of(argument) for argument in append.arguments()]
    values, result = (Value * len(given))(*given), Value()

    def call():
        use_stream(ctypes.c_void_p(stream.cuda_stream))
        return getattr(library, f"__tvm_ffi_{name}")(
            None, values, len(given), ctypes.byref(result)
        ), last_error()

    status, said = in_thread(call)
    return f"status {status}, {append.wrong()} wrong rows{', ' + said.decode() if said else ''}"


@case("opened, called and closed 200 times", "0 wrong rows")
def unload(functions: Functions) -> str:
    directory = Path(sys.argv[2]) / FOLDER
    path, symbol = directory / f"{configs()[0].name}.so", f"__tvm_ffi_{configs()[0].name}"
    close, wrong, free = ctypes.CDLL(None).dlclose, 0, []
    close.argtypes = [ctypes.c_void_p]
    for _ in range(200):
        append, library = Append(), ctypes.CDLL(str(path))
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
        function = tvm_ffi.Function.__from_extern_c__(address)
        append.run(function)
        wrong += append.wrong()
        del function
        gc.collect()
        close(library._handle)
        free.append(free_bytes())
    mapped = path.name in Path("/proc/self/maps").read_text()
    return (
        f"{wrong} wrong rows; device memory that each opening kept: {(free[9] - free[-1]) / 190 / 1024:.1f} KiB; "
        f"the library is {'still mapped' if mapped else 'unmapped'}"
    )


@case(
    "the first call when device memory is full, and again when it is not",
    "then no error, 0 wrong rows",
)
def out_of_memory(functions: Functions) -> str:
    append, function, cuda, held = Append(), functions(0), cuda_driver(), []
    torch.cuda.synchronize()
    size = 64 << 30
    while size >= 4096:
        pointer = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size //= 2
        else:
            held.append(pointer)
    full = message(lambda: append.run(function))
    left = free_bytes()
    for pointer in held:
        cuda.cuMemFree_v2(pointer)
    again = message(lambda: append.run(function))
    return f"{left >> 10} KiB free: {full}; then {again}, {append.wrong()} wrong rows"


@case("a kernel for sm_100a, and then one for this GPU", "exported for sm_100a")
def wrong_architecture(functions: Functions) -> str:
    append, good = Append(paged=False), Append()
    append.new, append.cache = ([t.half() for t in ts] for ts in (append.new, append.cache))
    said = message(lambda: append.run(functions(2)))
    good.run(functions(0))
    return f"{said}; then {good.wrong()} wrong rows"


@case("a context that is not the primary one is current", "")
def other_context(functions: Functions) -> str:
    append, function, cuda = Append(), functions(0), cuda_driver()
    context, now = ctypes.c_void_p(), ctypes.c_void_p()
    status = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    said = message(lambda: append.run(function))
    cuda.cuCtxGetCurrent(ctypes.byref(now))
    kept = now.value == context.value
    cuda.cuCtxPopCurrent_v2(ctypes.byref(now))
    return f"cuCtxCreate {status}: {said}, {'still' if kept else 'no longer'} current, {append.wrong()} wrong rows"


@case("the neighbours of guarded memory (guarded.py) are not mapped", "inside 0, before 1, after 1")
def guarded_memory(functions: Functions) -> str:
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    memory, cuda = Memory(1), cuda_driver()

    def write(address: int) -> int:
        return cuda.cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(16))

    begin, end = memory.begin, memory.begin + memory.size
    inside = write(begin) or write(end - 16)
    return f"CUresult of writing 16 bytes inside {inside}, before {write(begin - 16)}, after {write(end)}"
