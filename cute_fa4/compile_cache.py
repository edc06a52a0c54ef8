"""Configuration and executor -> compiled function: one compile per configuration and process.

Sizes and strides are not part of the key: batch, lengths and head counts are bound at each call, so a call with
other lengths uses the same function. A serving process fills the cache before its first request with

    compile_cache.warmup(configs)

and then asserts that compile_cache.statistics().compiles no longer grows.

    compiler/functions.py    this process: functions that were compiled, loaded or registered
    aot/disk_cache.py        other processes of this machine
    compiler/compiler.py     everything else
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from cute_fa4.aot import disk_cache, missing
from cute_fa4.aot.loader import EXECUTORS
from cute_fa4.compiler import compiler, functions, policy
from cute_fa4.compiler.compiler import Config
from cute_fa4.compiler.functions import Statistics, clear, statistics
from cute_fa4.sm100.choose.launches import with_conversions
from cute_fa4.system import progress
from cute_fa4.system.messages import shown

__all__ = ["Config", "Statistics", "clear", "function_for", "statistics", "warmup"]


def function_for(config: Config, executor: str) -> Callable:
    """The compiled function of a configuration; its parameters are those of the kernel's __call__.

    SM100MHA2Q.__call__ (sm100/two_tiles/kernel.py) for an FA4Config, AppendKernel.__call__
    (sm100/append/kernel.py) for an AppendConfig, without the stream.

    executor is "cuda" (takes CUDA tensors, launches on torch's current stream) or "emulator" (takes
    CPU tensors, one call at a time). The first call for a key compiles, about two seconds; calls of
    other threads for the same key wait for it.
    """
    function = functions.existing(config, executor)
    if function is not None:
        return function
    return functions.existing_or_made(config, executor, _from_disk_or_compiler)


def _from_disk_or_compiler(config: Config, executor: str) -> Callable:
    def compile_it() -> Callable:
        missing.check(config, executor)
        return compiler.compile_function(config, executor)

    begin = time.perf_counter()
    function, compiled = disk_cache.function_for(config, executor, compile_it)
    if compiled:
        functions.count_compile(config, executor, time.perf_counter() - begin)
    return function


def warmup(configs: Iterable, executor: str = "cuda") -> int:
    """Make every configuration ready: loaded, from disk, or compiled now. Returns the number compiled.

    executor is "cuda" (loads the kernel without using a GPU) or "emulator". CUTE_FA4_JIT does not apply.
    cute_fa4.aot.configs_for_model lists the configurations of a model. If many processes start together, one of
    them compiles each kernel and the others wait for it.
    """
    if executor not in EXECUTORS:
        raise ValueError(
            f"executor: {shown(executor)}; accepted: {' or '.join(map(repr, EXECUTORS))}"
        )
    before = statistics().compiles
    configs = _checked(configs)
    with policy.warming_up(), progress.bar(len(configs), "kernels", "kernel") as step:
        for config in configs:
            function_for(config, executor)
            step()
    return statistics().compiles - before


def _checked(configs) -> list:
    """Configurations that run and the conversions that they need, without duplicates."""
    from cute_fa4.aot.config_data import CONFIG_CLASSES

    kinds = tuple(CONFIG_CLASSES.values())
    accepted = f"a list of {', '.join(CONFIG_CLASSES)}, such as aot.configs_for_model(...)"
    if isinstance(configs, kinds):
        one = type(configs).__name__
        raise TypeError(f"configs: one {one}; accepted: {accepted}; pass [config]")
    if not isinstance(configs, Iterable):
        raise TypeError(f"configs: {shown(configs)}; accepted: {accepted}")
    found = []
    for number, config in enumerate(configs):
        if not isinstance(config, kinds):
            raise TypeError(f"configs[{number}]: {shown(config)}; accepted: {accepted}")
        refusals = config.refusals() if hasattr(config, "refusals") else []
        if refusals:
            raise ValueError(f"configs[{number}]: cannot run: {'; '.join(refusals)}")
        found.append(config)
    return with_conversions(found, policy.dependent_launch())
