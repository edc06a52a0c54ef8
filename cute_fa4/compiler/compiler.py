"""Configuration -> compiled function: the only place that runs the compiler for a call."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature

from cute_fa4.compiler import requirement
from cute_fa4.compiler.arguments import (
    fake_append_arguments,
    fake_arguments,
    fake_backward_arguments,
    fake_block_lists_arguments,
    fake_combine_arguments,
    fake_indexer_arguments,
    fake_topk_arguments,
)
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig
from cute_fa4.sm100.work.lists.config import BlockListsConfig
from cute_fa4.system.frames import with_room

Config = (
    FA4Config
    | AppendConfig
    | CombineConfig
    | BackwardConfig
    | IndexerConfig
    | TopKConfig
    | BlockListsConfig
)

# How strictly the emulator checks this package's kernels, compiled here or opened from a file.
EMULATOR_CHECKS = "ptx"


@with_room
def compile_function(config: Config, executor: str) -> Callable:
    """Compile, whatever the policy: a function that launches CUDA tensors or emulates CPU tensors."""
    requirement.check()
    import cutlass.cute as cute

    kernel, arguments, labels = kernel_and_arguments(config)
    if executor == "emulator":
        from cute_fa4 import emulator

        options = dict(arch=config.arch, labels=labels, checks=EMULATOR_CHECKS)
        return emulator.compile(kernel, *arguments, **options)
    flags = f"--enable-tvm-ffi --gpu-arch {config.arch}"
    return cute.compile(kernel, *arguments, options=flags)


def kernel_and_arguments(config: Config) -> tuple:
    """-> (kernel object, fake arguments, the emulator's names for what is in it, or None)."""
    if isinstance(config, AppendConfig):
        from cute_fa4.sm100.append.kernel import AppendKernel

        append = AppendKernel(config)
        return append, in_order(append, fake_append_arguments(config)), None
    if isinstance(config, CombineConfig):
        from cute_fa4.sm100.combine.kernel import CombineKernel

        combine = CombineKernel(config)
        return combine, in_order(combine, fake_combine_arguments(config)), None
    if isinstance(config, BackwardConfig):
        from cute_fa4.sm100.backward.kernel import AuxKernel, BackwardKernel

        backward = (AuxKernel if config.wanted else BackwardKernel)(config)
        return backward, in_order(backward, fake_backward_arguments(config)), None
    if isinstance(config, IndexerConfig):
        from cute_fa4.sm100.indexer.kernel import IndexerKernel

        indexer = IndexerKernel(config)
        return indexer, in_order(indexer, fake_indexer_arguments(config)), None
    if isinstance(config, TopKConfig):
        from cute_fa4.sm100.indexer.topk import TopKKernel

        topk = TopKKernel(config)
        return topk, in_order(topk, fake_topk_arguments()), None
    if isinstance(config, BlockListsConfig):
        from cute_fa4.sm100.work.lists.kernel import ListsKernel
        from cute_fa4.sm100.work.lists.order import OrderKernel

        lists = (OrderKernel if config.makes == "order" else ListsKernel)(config)
        return lists, in_order(lists, fake_block_lists_arguments(config)), None
    from cute_fa4.compiler.labels import kernel_labels

    kernel = kernel_class(type(config.schedule))(config)
    return kernel, in_order(kernel, fake_arguments(config)), kernel_labels(config)


def kernel_class(schedule: type) -> type:
    """The kernel of a schedule's class, from the same folder."""
    folder = schedule.__module__.removeprefix("cute_fa4.sm100.").removesuffix(".schedule")
    return import_module(f"cute_fa4.sm100.{folder}.kernel").KERNEL


def in_order(kernel, by_name: dict) -> tuple:
    """Arguments in the order of the kernel's __call__, which is the only place where it is written.

    TypeError for a name that is missing or unknown.
    """
    return signature(kernel.__call__).bind(**by_name).args
