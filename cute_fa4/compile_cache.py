"""Configuration and executor -> compiled function: one compile per configuration and process.

Sizes and strides are not part of the key: batch, lengths and head counts are symbols bound at each
call, so a call with other lengths finds the function of the first. A serving process fills the
cache before its first request with

    for config in configs:
        compile_cache.function_for(config, executor="cuda")

and then asserts that compile_cache.statistics().compiles no longer grows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cute_fa4.sm100.append_config import AppendConfig
from cute_fa4.sm100.config import FA4Config

# TMA needs base addresses and strides that are multiples of 16 bytes, which is 8 elements of 16
# bits.
ALIGNMENT_BYTES = 16

Config = FA4Config | AppendConfig

_functions: dict[tuple[Config, str], Callable] = {}
_seconds: dict[tuple[Config, str], float] = {}
# Functions that exist already, compiled ahead of time: opened when they are first asked for.
_registered: dict[tuple[Config, str], Callable[[], Callable]] = {}
# One lock for all keys: the DSL traces into module-level state, so two compiles at a time are not
# safe even for different keys. A call that finds its function never takes the lock.
_compile_lock = threading.Lock()
# What else holds functions: called by clear().
_forget: list[Callable[[], None]] = []


@dataclass(frozen=True)
class Statistics:
    """compiles: functions compiled since the process began or clear(); seconds: their sum."""

    compiles: int
    seconds: float


def function_for(config: Config, executor: str) -> Callable:
    """The compiled function of a configuration; its parameters are those of the kernel's __call__.

    SM100MHA2Q.__call__ (sm100/forward_kernel.py) for an FA4Config, AppendKernel.__call__
    (sm100/append_kernel.py) for an AppendConfig, without the stream.

    executor is "cuda" (takes CUDA tensors, launches on torch's current stream) or "emulator" (takes
    CPU tensors, one call at a time). The first call for a key compiles, about two seconds; calls of
    other threads for the same key wait for it.
    """
    key = (config, executor)
    function = _functions.get(key)
    if function is not None:
        return function
    with _compile_lock:
        if key not in _functions:
            make = _registered.get(key)
            _functions[key] = make() if make else _from_disk_or_compiler(config, executor)
        return _functions[key]


def register(config: Config, executor: str, make: Callable[[], Callable]) -> None:
    """Have function_for call make() instead of compiling; a function that is there already stays."""
    _registered[config, executor] = make


def has(config: Config, executor: str) -> bool:
    """Whether function_for would return without compiling and without the disk."""
    return (config, executor) in _functions or (config, executor) in _registered


def _from_disk_or_compiler(config: Config, executor: str) -> Callable:
    from cute_fa4 import disk_cache, jit_policy

    def compile_it() -> Callable:
        jit_policy.check(config, executor)
        return _compile(config, executor)

    begin = time.perf_counter()
    function, compiled = disk_cache.function_for(config, executor, compile_it)
    if compiled:
        _seconds[config, executor] = time.perf_counter() - begin
    return function


def statistics() -> Statistics:
    return Statistics(compiles=len(_seconds), seconds=sum(_seconds.values()))


def clear() -> None:
    """Forget every function, compiled or registered; what is on disk stays."""
    with _compile_lock:
        _functions.clear()
        _registered.clear()
        _seconds.clear()
    for forget in _forget:
        forget()


def on_clear(forget: Callable[[], None]) -> None:
    """Have clear() call forget() after it."""
    _forget.append(forget)


def _compile(config: Config, executor: str) -> Callable:
    import cutlass.cute as cute

    kernel, arguments, labels = _kernel(config)
    if executor == "emulator":
        from cute_fa4 import emulator

        return emulator.compile(kernel, *arguments, arch=config.arch, labels=labels, checks="ptx")
    options = f"--enable-tvm-ffi --gpu-arch {config.arch}"
    return cute.compile(kernel, *arguments, options=options)


def _kernel(config: Config) -> tuple:
    """-> (kernel, fake arguments, the emulator's names for what is in it, or None)."""
    if isinstance(config, AppendConfig):
        from cute_fa4.sm100.append_kernel import AppendKernel

        return AppendKernel(config), fake_append_arguments(config), None
    from cute_fa4.sm100.forward_kernel import SM100MHA2Q
    from cute_fa4.sm100.labels import kernel_labels

    return SM100MHA2Q(config), fake_arguments(config), kernel_labels(config)


def fake_arguments(config: FA4Config) -> tuple:
    """Arguments that carry types and symbols instead of data, in the order of SM100MHA2Q.__call__.

    Sizes are 32-bit symbols, shared where two tensors must agree, so that the compiled function
    checks the agreement by itself. Strides are 64-bit symbols divisible by what TMA needs; the head
    dim is a number.
    """
    from cutlass import Float32, Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    batch, total_q, seqlen_q, heads_q, heads_kv = (
        sym_int(symbol=name) for name in ("batch", "total_q", "seqlen_q", "heads_q", "heads_kv")
    )
    packed_q = config.q_layout == "packed"
    rows_q = (total_q,) if packed_q else (batch, seqlen_q)
    keys = _key_sizes(config, batch, heads_kv)

    def values(sizes, depth, dtype=config.qkv_dtype):
        return _fake_rows(dtype, (*sizes, depth))

    def lengths(wanted):
        # (batch,) or (batch + 1,): a sum of symbols has no spelling, so the caller checks these.
        return _fake("i32", (sym_int(),)) if wanted else None

    lse = None
    if config.write_lse:
        lse = _fake("f32", (heads_q, total_q) if packed_q else (batch, heads_q, seqlen_q))
    return (
        values((*rows_q, heads_q), config.qk_depth),
        values(keys, config.qk_depth),
        values(keys, config.ov_depth),
        values((*rows_q, heads_q), config.ov_depth, config.o_dtype),
        lse,
        Float32(1.0),
        lengths(packed_q),
        lengths(config.kv_layout == "packed"),
        lengths(config.seqused_q),
        lengths(config.seqused_k),
        lengths(config.padded_keys),
        _fake("i32", (sym_int(), sym_int())) if config.kv_layout == "paged" else None,
        Int32(1),
        tuple(Int32(1) for _ in range(config.mask.num_sizes)) or None,
        _fake(config.sink_dtype, (heads_q,)) if config.sink else None,
        tuple(_fake(dtype, (None,) * rank, free_last=True) for dtype, rank in config.aux) or None,
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def fake_append_arguments(config: AppendConfig) -> tuple:
    """The same for AppendKernel.__call__: one cache and one set of new rows for K and for V each."""
    from cutlass import Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    heads = sym_int(symbol="heads_kv")
    new = (sym_int(symbol="total_new"), heads) if config.packed else (sym_int(), sym_int(), heads)
    cache = (sym_int(symbol="blocks"), sym_int(symbol="rows_of_block"), heads)

    def values(sizes, depth):
        return _fake_rows(config.dtype, (*sizes, depth))

    return (
        values(new, config.depth),
        values(new, config.depth_v),
        values(cache, config.depth),
        values(cache, config.depth_v),
        _fake("i32", (sym_int(),)),
        _fake("i32", (sym_int(),)) if config.packed else None,
        _fake("i32", (sym_int(), sym_int())) if config.paged else None,
        Int32(1),
        make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _key_sizes(config: FA4Config, batch, heads_kv) -> tuple:
    """Sizes of K and V before the depth."""
    from cutlass.cute import sym_int

    if config.kv_layout == "dense":
        return (batch, sym_int(symbol="seqlen_k"), heads_kv)
    if config.kv_layout == "packed":
        return (sym_int(symbol="total_k"), heads_kv)
    pages = sym_int(symbol="num_pages")
    if config.page_heads_first:
        return (pages, heads_kv, config.page_size)
    return (pages, config.page_size, heads_kv)


def _dtype(name: str):
    import cutlass

    return {
        "bf16": cutlass.BFloat16,
        "fp16": cutlass.Float16,
        "f32": cutlass.Float32,
        "i32": cutlass.Int32,
        "i64": cutlass.Int64,
        "u8": cutlass.Uint8,
    }[name]


def _fake_rows(dtype: str, shape: tuple):
    """What TMA and 16-byte accesses take: a contiguous depth, the rest at multiples of 16 bytes."""
    from cutlass.cute import sym_int64
    from cutlass.cute.runtime import make_fake_tensor

    per_alignment = ALIGNMENT_BYTES * 8 // _dtype(dtype).width
    strides = [sym_int64(divisibility=per_alignment) for _ in shape[:-1]]
    return make_fake_tensor(_dtype(dtype), shape, (*strides, 1), assumed_align=ALIGNMENT_BYTES)


def _fake(dtype: str, shape: tuple, free_last: bool = False):
    """A tensor read element by element; its last dimension is contiguous unless free_last."""
    from cutlass.cute import sym_int, sym_int64
    from cutlass.cute.runtime import make_fake_tensor

    sizes = tuple(sym_int() if size is None else size for size in shape)
    strides = [sym_int64() for _ in shape[:-1]] + [sym_int64() if free_last else 1]
    width = _dtype(dtype).width // 8
    return make_fake_tensor(_dtype(dtype), sizes, tuple(strides), assumed_align=width)
