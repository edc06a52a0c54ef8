"""The host library of exported kernels (aot/cuda_runtime.c) on a real CUDA driver.

The kernel that appends rows to a cache has no tensor core instruction: compiled for sm_90a it is exported, loaded and
launched on a Hopper GPU exactly as attention is on a Blackwell one. Each case below runs in a process of its own and
returns what it saw; `expect` is what has to be in it.

    python -m cute_fa4 hopper driver DIR       after `hopper build`, which exports the kernels to DIR/append
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = "append"
SECONDS = 120


def configs() -> list:
    """What DIR/append holds: two kernels for Hopper, and one that Hopper has to refuse."""
    from cute_fa4.sm100.append.config import AppendConfig

    paged = AppendConfig("bf16", 64, 64, page_size=16, arch="sm_90a")
    return [paged, AppendConfig("bf16", 64, 64, arch="sm_90a"), AppendConfig("fp16", 64, 64)]


@dataclass(frozen=True)
class Case:
    """run(functions) -> what was seen; functions(i) is the exported function of configs()[i]."""

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


class Functions:
    """The exported functions of a directory, opened when first asked for."""

    def __init__(self, directory):
        from cute_fa4 import aot

        self._configs = aot.load(directory, executors=("cuda",))

    def __call__(self, number: int):
        from cute_fa4 import compile_cache

        wanted = configs()[number]
        assert wanted in self._configs, "the directory was built by another version"
        return compile_cache.function_for(wanted, "cuda")


class Append:
    """New rows for two sequences of a cache in pages of 16, and what the cache must be afterwards."""

    def __init__(self, device="cuda:0", paged: bool = True):
        import torch

        self.paged, shape = paged, ((8, 16) if paged else (2, 48))
        self.new = [torch.randn(2, 3, 2, 64, device=device).bfloat16() for _ in "kv"]
        self.cache = [torch.zeros(*shape, 2, 64, device=device).bfloat16() for _ in "kv"]
        self.lengths = torch.tensor([5, 20], dtype=torch.int32, device=device)
        self.table = torch.tensor([[3, 1, 7], [0, 6, 2]], dtype=torch.int32, device=device)

    def run(self, function) -> None:
        table = self.table if self.paged else None
        function(*self.new, *self.cache, self.lengths, None, table, 2, None, None)

    def wrong(self) -> int:
        """Rows that are not what they should be, of all rows of the cache."""
        import torch

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


class _Value(ctypes.Structure):
    """cute_fa4_value of aot/kernel.h."""

    _fields_ = (("type", ctypes.c_int32), ("zero", ctypes.c_uint32), ("value", ctypes.c_int64))

    @classmethod
    def of(cls, thing) -> _Value:
        if thing is None:
            return cls(0, 0, 0)
        if isinstance(thing, int):
            return cls(1, 0, thing)
        from cute_fa4.emulator.dlpack import _CODES, _DLDataType, _DLDevice, _DLTensor

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
    """What it raises, or "no error"."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def active(device: int) -> bool:
    """Whether a device has an active primary context."""
    flags, state = ctypes.c_uint(), ctypes.c_int()
    _cuda().cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(state))
    return bool(state.value)


def current() -> bool:
    """Whether the calling thread has a current context."""
    context = ctypes.c_void_p()
    _cuda().cuCtxGetCurrent(ctypes.byref(context))
    return bool(context.value)


def _cuda():
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


# --- the cases


@case("first call of a process without any context; no rows, so nothing is launched", "loaded")
def no_context(functions: Functions) -> str:
    import torch

    from cute_fa4.emulator import as_cuda

    function = functions(0)
    append = Append("cpu")
    append.new = [torch.zeros(2, 0, 2, 64).bfloat16() for _ in "kv"]
    tensors = [as_cuda(t) for t in (*append.new, *append.cache, append.lengths)]
    said = message(lambda: function(*tensors, None, as_cuda(append.table), 2, None, None))
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
    import torch

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
    import torch

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
    import torch

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
    import torch

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
    import torch

    name, append, stream = configs()[0].name, Append(), torch.cuda.Stream()
    library = ctypes.CDLL(str(Path(sys.argv[2]) / FOLDER / f"{name}_c.so"))
    use_stream, last_error = (getattr(library, f"{name}_{f}") for f in ("use_stream", "last_error"))
    last_error.restype = ctypes.c_char_p
    tensors = [*append.new, *append.cache, append.lengths, None, append.table]
    values, result = (_Value * 8)(*map(_Value.of, tensors), _Value.of(2)), _Value()

    def call():
        use_stream(ctypes.c_void_p(stream.cuda_stream))
        return getattr(library, f"__tvm_ffi_{name}")(
            None, values, 8, ctypes.byref(result)
        ), last_error()

    status, said = in_thread(call)
    return f"status {status}, {append.wrong()} wrong rows{', ' + said.decode() if said else ''}"


@case("opened, called and closed 200 times", "0 wrong rows")
def unload(functions: Functions) -> str:
    import tvm_ffi

    directory = Path(sys.argv[2]) / FOLDER
    path, symbol = directory / f"{configs()[0].name}.so", f"__tvm_ffi_{configs()[0].name}"
    close, wrong, free = ctypes.CDLL(None).dlclose, 0, []
    close.argtypes = [ctypes.c_void_p]
    for _ in range(200):
        append, library = Append(), ctypes.CDLL(str(path))
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        function = tvm_ffi.Function.__from_extern_c__(address)
        append.run(function)
        wrong += append.wrong()
        del function
        gc.collect()
        close(library._handle)
        free.append(_free_bytes())
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
    import torch

    append, function, cuda, held = Append(), functions(0), _cuda(), []
    torch.cuda.synchronize()
    size = 64 << 30
    while size >= 4096:
        pointer = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size //= 2
        else:
            held.append(pointer)
    full = message(lambda: append.run(function))
    left = _free_bytes()
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
    append, function, cuda = Append(), functions(0), _cuda()
    context, now = ctypes.c_void_p(), ctypes.c_void_p()
    status = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    said = message(lambda: append.run(function))
    cuda.cuCtxGetCurrent(ctypes.byref(now))
    kept = now.value == context.value
    cuda.cuCtxPopCurrent_v2(ctypes.byref(now))
    return f"cuCtxCreate {status}: {said}, {'still' if kept else 'no longer'} current, {append.wrong()} wrong rows"


@case(
    "the neighbours of guarded memory (guarded.py) are not mapped", "inside 0, before 1, behind 1"
)
def guarded_memory(functions: Functions) -> str:
    import torch

    from cute_fa4.hopper.guarded import Memory

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    memory, cuda = Memory(1), _cuda()

    def write(address: int) -> int:
        return cuda.cuMemsetD8_v2(ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(16))

    begin, end = memory.begin, memory.begin + memory.size
    inside = write(begin) or write(end - 16)
    return f"CUresult of writing 16 bytes inside {inside}, before {write(begin - 16)}, behind {write(end)}"


def _free_bytes() -> int:
    import torch

    return torch.cuda.mem_get_info()[0]


# --- running them


def run(directory) -> list[dict]:
    """Every case that the machine has the GPUs for, each in a process of its own: {name, seen, ok, seconds}."""
    import torch

    rows = []
    for one in CASES:
        if one.gpus <= torch.cuda.device_count():
            rows.append(run_one(one, directory))
    return rows


def run_one(one: Case, directory) -> dict:
    command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, one.name, str(directory)], capture_output=True, text=True, timeout=SECONDS
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("seen: ")]
        seen = lines[-1].removeprefix("seen: ") if lines else done.stderr.strip()[-500:]
        good = done.returncode == 0 and bool(lines) and one.expect in seen
        seen += f" (exit status {done.returncode})" * (done.returncode != 0)
    except subprocess.TimeoutExpired:
        seen, good = f"no end within {SECONDS} s", False
    return dict(name=one.name, seen=seen, ok=good, seconds=time.perf_counter() - begin)


def main() -> None:
    """python -m cute_fa4.hopper.driver CASE DIR: one case."""
    name, directory = sys.argv[1:3]
    (one,) = [c for c in CASES if c.name == name]
    print("seen:", one.run(Functions(Path(directory) / FOLDER)).replace("\n", " "), flush=True)


def table(rows: list[dict]) -> str:
    """Markdown."""
    lines = ["| case | seen |", "|---|---|"]
    return "\n".join(
        lines + [f"| {r['name']} | {'' if r['ok'] else '**wrong:** '}{r['seen']} |" for r in rows]
    )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(run(sys.argv[1]), indent=1))
    else:
        main()
