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
    fake_combine_arguments,
)
from cute_fa4.compiler.arguments_of_lists import (
    fake_block_lists_arguments,
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


_OF_LISTS = {
    "order": "work.lists.order OrderKernel",
    "longest": "work.lists.longest LongestKernel",
    "cut": "work.lists.cut CutKernel",
}
# Configuration of a kernel without a schedule -> its module and class in sm100/, and its fake arguments by name.
_KERNELS: dict[type, tuple[Callable, Callable]] = {
    AppendConfig: (lambda _: "append.kernel AppendKernel", fake_append_arguments),
    CombineConfig: (lambda _: "combine.kernel CombineKernel", fake_combine_arguments),
    BackwardConfig: (
        lambda config: f"backward.kernel {'Aux' if config.wanted else 'Backward'}Kernel",
        fake_backward_arguments,
    ),
    IndexerConfig: (lambda _: "indexer.kernel IndexerKernel", fake_indexer_arguments),
    TopKConfig: (lambda _: "indexer.topk TopKKernel", fake_topk_arguments),
    BlockListsConfig: (
        lambda config: _OF_LISTS.get(config.makes, "work.lists.kernel ListsKernel"),
        fake_block_lists_arguments,
    ),
}


def kernel_and_arguments(config: Config) -> tuple:
    """-> (kernel object, fake arguments, the emulator's names for what is in it, or None)."""
    if isinstance(config, FA4Config):
        from cute_fa4.compiler.labels import kernel_labels

        kernel = kernel_class(type(config.schedule))(config)
        return kernel, in_order(kernel, fake_arguments(config)), kernel_labels(config)
    place, arguments = _KERNELS[type(config)]
    module, name = place(config).split()
    kernel = getattr(import_module(f"cute_fa4.sm100.{module}"), name)(config)
    return kernel, in_order(kernel, arguments(config)), None


def kernel_class(schedule: type) -> type:
    """The kernel of a schedule's class, from the same folder."""
    folder = schedule.__module__.removeprefix("cute_fa4.sm100.").removesuffix(".schedule")
    return import_module(f"cute_fa4.sm100.{folder}.kernel").KERNEL


def in_order(kernel, by_name: dict) -> tuple:
    """Arguments in the order of the kernel's __call__, which is the only place where it is written.

    TypeError for a name that is missing or unknown.
    """
    return signature(kernel.__call__).bind(**by_name).args
