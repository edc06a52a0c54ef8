"""Host time of a repeated call, compared with the compiled function and flash-attn-4's interface. Needs no GPU.

    python benchmarks/host_overhead.py                  two minutes, most of them compiling
    python benchmarks/host_overhead.py --seconds 30     measures each case longer: for a machine that is not idle

bare       the compiled function (both of them, for an append) with prepared arguments: TVM-FFI converts these, the host
           code checks them, encodes TMA descriptors and calls the driver
ours       the public function, which contains the former
calls      functions of Python that a call runs
operators  torch operators of a call, including nested ones

Included is everything from the call to the driver's launch function and back, and the release of the results. Not
included are the driver, which is examples/aot_cpp/recording_driver.c and returns immediately, and torch's CUDA
allocator. The tensors are CPU tensors that TVM-FFI treats as CUDA tensors (claim_cuda.c), so `out` comes from the
CPU's allocator. Both packages are told that they are CUDA tensors; nothing else is changed.

The garbage collector is off. The calls of a case alternate, five at a time after five uncounted ones, so that all
see the same machine. The minimum is the time of an idle core; the median and the 90th percentile show how idle it
was.

flash-attn-4 (the extra `compare`) is called through flash_attn_func and flash_attn_varlen_func, and through
_flash_attn_fwd, which serving engines call, and which alone has `out`. It has no append.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CALLS_PER_ROUND = 5
BAR_US = 8.0


# --- a machine with a GPU, as far as the host can tell


def load_stubs(scratch: Path) -> None:
    """A driver that returns at once, and CPU tensors that TVM-FFI takes for CUDA tensors."""
    import torch
    import tvm_ffi.libinfo

    from cute_fa4.system import c_compiler

    def library(source: Path, name: str) -> ctypes.CDLL:
        flags = [f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}", f"-Wl,-soname,{name}"]
        command = [c_compiler.find_compiler(), "-O2", "-shared", "-fPIC", str(source), *flags]
        subprocess.run([*command, "-o", str(scratch / name)], check=True)
        return ctypes.CDLL(str(scratch / name), mode=ctypes.RTLD_GLOBAL)

    library(ROOT / "examples" / "aot_cpp" / "recording_driver.c", "libcuda.so.1")
    claim = library(HERE / "claim_cuda.c", "claim_cuda.so").claim_cuda
    claim.restype, claim.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    pointer, capsule = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"dlpack_exchange_api"
    api = claim(pointer(torch.Tensor.__dlpack_c_exchange_api__, name))
    torch.Tensor.__dlpack_c_exchange_api__ = capsule(api, name, None)


def pretend_cuda() -> None:
    """cute_fa4 launches CPU tensors as it launches CUDA tensors."""
    from cute_fa4.calls import append, attention
    from cute_fa4.calls.operands import lengths
    from cute_fa4.system.devices import Target

    attention.target_of = append.target_of = lambda device: Target("cuda", "sm_100a")
    attention._decided_by_contents = lambda device, where: False
    lengths.check_contents = append._check_append_contents = lambda *arguments: None


# --- what is called


def cases() -> dict[str, tuple[Callable, dict]]:
    """case -> (function, arguments); 8 query heads on 2 key/value heads of 128, pages of 16."""
    import torch

    from cute_fa4 import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

    def rows(*shape):
        return torch.zeros(shape, dtype=torch.bfloat16)

    batch, used = 4, torch.tensor([100, 7, 64, 31], dtype=torch.int32)
    pages = dict(k=rows(64, 16, 2, 128), v=rows(64, 16, 2, 128))
    table = torch.arange(batch * 8, dtype=torch.int32).view(batch, 8)
    dense = dict(q=rows(1, 32, 8, 128), k=rows(1, 32, 2, 128), v=rows(1, 32, 2, 128), causal=True)
    decode = dict(
        q=rows(batch, 8, 128),
        **pages,
        cu_seqlens_q=torch.arange(batch + 1, dtype=torch.int32),
        max_seqlen_q=1,
        seqused_k=used,
        page_table=table,
        causal=True,
    )
    append = dict(
        q=rows(batch, 1, 8, 128),
        k_cache=pages["k"],
        v_cache=pages["v"],
        k=rows(batch, 1, 2, 128),
        v=rows(batch, 1, 2, 128),
        cache_seqlens=used,
        page_table=table,
        causal=True,
    )
    return {
        "dense": (flash_attn_func, dense),
        "dense, out": (flash_attn_func, dense | dict(out=torch.empty_like(dense["q"]))),
        "paged decode": (flash_attn_varlen_func, decode),
        "append": (flash_attn_with_kvcache, append),
    }


def ours(scratch: Path) -> dict[str, tuple[Callable, Callable]]:
    """case -> (the public call, the compiled functions alone). Exports the kernels and loads them."""
    from cute_fa4 import aot, compile_cache
    from cute_fa4.calls import repeat

    pretend_cuda()
    function_for = compile_cache.function_for
    asked = []

    def ask(config, executor):
        asked.append(config)
        return lambda *arguments: None

    compile_cache.function_for = ask
    for function, arguments in cases().values():
        function(**arguments)
    compile_cache.function_for = function_for
    aot.load(aot.export(asked, scratch / "kernels"), executors=("cuda",))

    contestants = {}
    for name, (function, arguments) in cases().items():
        launches = []

        def record(config, executor, launches=launches):
            compiled = function_for(config, executor)

            def launch(*launched):
                launches.append((compiled, launched))
                compiled(*launched)

            return launch

        repeat.clear()
        compile_cache.function_for = record
        function(**arguments)
        repeat.clear()
        compile_cache.function_for = function_for
        contestants[name] = (bound(function, arguments), bare(launches))
    return contestants


def bound(function: Callable, arguments: dict) -> Callable:
    """The call as a user writes it: names and values, no dictionary."""
    names = ", ".join(f"{name}={name}" for name in arguments)
    return eval(f"lambda: function({names})", {"function": function, **arguments})


def bare(launches: list) -> Callable:
    """The compiled functions with their arguments, the same way."""
    calls, scope = [], {}
    for i, (function, arguments) in enumerate(launches):
        scope |= {f"f{i}": function} | {f"a{i}_{j}": a for j, a in enumerate(arguments)}
        calls.append(f"f{i}({', '.join(f'a{i}_{j}' for j in range(len(arguments)))})")
    return eval(f"lambda: ({', '.join(calls)})", scope)


# --- flash-attn-4


def theirs(scratch: Path) -> dict[str, dict[str, Callable]]:
    """case -> {function: the same call of flash-attn-4}; its kernels are linked as ours are."""
    import cutlass.utils
    import cutlass.utils.hardware_info
    import torch
    from cutlass.cutlass_dsl import tvm_ffi_provider

    from benchmarks.sass.flash_attn_4 import HardwareWithoutDriver

    cutlass.utils.HardwareInfo = HardwareWithoutDriver
    cutlass.utils.hardware_info.HardwareInfo = HardwareWithoutDriver
    link_to_stub(tvm_ffi_provider, scratch)
    from flash_attn.cute import interface

    torch.Tensor.is_cuda = True  # what its interface asserts
    every = cases()
    dense, decode = every["dense"][1], every["paged decode"][1]
    with_out = every["dense, out"][1]
    return {
        "dense": {
            "flash_attn_func": bound(interface.flash_attn_func, dense),
            "_flash_attn_fwd": bound(interface._flash_attn_fwd, dense),
        },
        "dense, out": {"_flash_attn_fwd": bound(interface._flash_attn_fwd, with_out)},
        "paged decode": {
            "flash_attn_varlen_func": bound(interface.flash_attn_varlen_func, decode),
            "_flash_attn_fwd": bound(interface._flash_attn_fwd, decode),
        },
        "append": {},
    }


def link_to_stub(tvm_ffi_provider, scratch: Path) -> None:
    """From here on compiled functions call the stubbed driver, through the runtime of exports."""
    import tvm_ffi

    from cute_fa4.aot import link

    def create(self):
        name = f"flash_attn_4_{len(list(scratch.glob('flash_attn_4_*.o')))}"
        host_object = scratch / f"{name}.o"
        host_object.write_bytes(
            tvm_ffi_provider._aot_support.export_module_to_bytes(
                self.ir_module, format="o", opt_level=3, enable_pic=True
            )
        )
        library = ctypes.CDLL(str(link.link(host_object, scratch / f"{name}.so", "sm_100a")))
        self.engine = library
        entry = getattr(library, f"__tvm_ffi_{self.function_name}")
        address = ctypes.cast(entry, ctypes.c_void_p).value
        return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=library)

    tvm_ffi_provider.TVMFFIJitCompiledFunctionBase._create_tvm_ffi_function = create


# --- measuring


def measure(calls: dict[str, Callable], seconds: float) -> dict[str, list[float]]:
    """Microseconds of each call, sorted; the calls take turns."""
    clock, turns, found = time.perf_counter_ns, range(CALLS_PER_ROUND), {name: [] for name in calls}
    for call in calls.values():
        for _ in range(50):
            call()
    gc.collect()
    gc.disable()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, call in calls.items():
            for times in ([], found[name]):  # once to have its code in the caches
                begin = clock()
                for _ in turns:
                    call()
                times.append((clock() - begin) / CALLS_PER_ROUND / 1000)
    gc.enable()
    return {name: sorted(times) for name, times in found.items()}


def count(call: Callable) -> tuple[int, int]:
    """(functions of Python, operators of torch) of a call."""
    import torch

    python = 0

    def each(frame, event, argument):
        nonlocal python
        python += event == "call"

    call()
    before = sys.getprofile()
    sys.setprofile(each)
    try:
        call()
    finally:
        sys.setprofile(before)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    operators = sum(event.name.startswith("aten::") for event in profile.events())
    return python - 1, operators  # without the lambda


def report(case: str, times: dict[str, list[float]], counts: dict[str, tuple[int, int]]) -> None:
    least = {name: values[0] for name, values in times.items()}
    beyond = least["ours"] - least["bare"]
    print(f"\n{case:28} {'us: least':>9} {'median':>7} {'90 %':>7} {'calls':>6} {'operators':>9}")
    for name, values in times.items():
        at = [values[int(share * (len(values) - 1))] for share in (0, 0.5, 0.9)]
        calls, operators = counts.get(name, ("", ""))
        print(f"  {name:26} {at[0]:9.2f} {at[1]:7.2f} {at[2]:7.2f} {calls:>6} {operators:>9}")
    print(f"  ours beyond bare           {beyond:9.2f}   at most {BAR_US:.0f}")
    for name in list(least)[2:]:
        print(f"  ours / {name:22} {least['ours'] / least[name]:6.2f}   at most 0.50")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, for each case")
    seconds = parser.parse_args().seconds
    os.environ |= dict(CUTE_DSL_ARCH="sm_100a", CUTE_FA4_CACHE="off")
    os.environ |= dict(FLASH_ATTENTION_ARCH="sm_100", FLASH_ATTENTION_NUM_SMS="148")
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        load_stubs(Path(scratch))
        contestants = ours(Path(scratch))
        others = {}
        if importlib.util.find_spec("flash_attn") is None:
            print("flash-attn-4 is not installed: pip install -e '.[compare]'")
        else:
            others = theirs(Path(scratch))
        for case, (call, alone) in contestants.items():
            calls = {"bare": alone, "ours": call} | others.get(case, {})
            times = measure(calls, seconds)
            report(case, times, {name: count(calls[name]) for name in calls if name != "bare"})


if __name__ == "__main__":
    main()
