"""PTX from other compilers: a file or a text with a kernel, launched on CPU tensors without host code.

    from cute_fa4.emulator import ptx_files

    kernel = ptx_files.load("gemm.ptx")                       # nvcc --ptx -arch=sm_100a gemm.cu -o gemm.ptx
    a_map = ptx_files.encode_tiled("bf16", a, (k, m), (2 * k,), box=(64, 128), swizzle=128)
    with ptx_files.reachable(a, b):                           # tensors that only maps refer to
        kernel.launch(a_map, b_map, c, m, 1.0, grid=(8, 4, 1), block=(128, 1, 1), cluster=(2, 1, 1), shared=98304)

    argument                     parameter of the kernel
    torch tensor, NumPy array    .u64: its address; the kernel may access its memory
    int, float, NumPy scalar     of the parameter's size and type
    bytes                        unchanged: structures, tensor maps (encode_tiled)
    None                         .u64 of zeros

The settings of emulator.use() apply to these launches, and its Run counts them.
"""

import contextlib
import struct
from pathlib import Path

import numpy as np

from cute_fa4.emulator.host.tensor_maps import encode_im2col, encode_tiled, memory_of
from cute_fa4.emulator.machine.multicast import Multicast

__all__ = [
    "Kernel", "aligned", "aligned_empty", "encode_im2col", "encode_tiled", "load", "multicast", "reachable",
]  # fmt: skip


def load(source, entry=None, labels=None, checks="hardware"):
    """A Kernel of PTX: the path of a file, or the text itself.

    entry   name of the .entry; None: the only one
    labels  KernelLabels for messages        checks  level of launches outside use(checks=...)
    Raises FileNotFoundError for a path that does not exist, UnknownInstruction for unreadable PTX, ValueError for
    an entry that does not exist.
    """
    from cute_fa4.emulator.ptx.parser import parse

    text = source if isinstance(source, str) and "\n" in source else Path(source).read_text()
    names = list(parse(text).kernels)
    if entry is None and len(names) == 1:
        entry = names[0]
    if entry not in names:
        raise ValueError(
            f"entry {entry!r}: the PTX has {', '.join(names) or 'no kernel'}; name one of them"
        )
    return Kernel(text, entry, labels, checks)


class Kernel:
    """One .entry of a PTX text; see the module."""

    def __init__(self, text, entry, labels=None, checks="hardware"):
        from cute_fa4.emulator.host import driver_api
        from cute_fa4.emulator.run.launch import split_checks

        split_checks(checks)  # raises for unknown checks
        self.entry, self.checks = entry, checks
        self._library = driver_api.library(text, labels)

    @property
    def parameters(self):
        """The parameters of the kernel, in order: name, nbytes, kind."""
        from cute_fa4.emulator.host import driver_api

        return driver_api.program_of(self._library, self.entry).kernel.params

    @property
    def directives(self):
        """Its performance directives: {".reqntid": (128, 1, 1), ...}."""
        from cute_fa4.emulator.host import driver_api

        return driver_api.program_of(self._library, self.entry).kernel.directives

    def launch(self, *arguments, grid, block, cluster=None, shared=0):
        """Execute the kernel on a grid of CTAs.

        arguments  one per parameter, see the module             shared  bytes of dynamic shared memory of a CTA
        cluster    CTAs of a cluster; None: .reqnctapercluster, else 1
        Raises TypeError and ValueError for arguments that do not match, EmulatorError for errors of the kernel.
        """
        from cute_fa4.emulator.host import driver_api

        program = driver_api.program_of(self._library, self.entry)
        kernel = program.kernel
        if len(arguments) != len(kernel.params):
            names = ", ".join(f"{p.name} ({p.nbytes} bytes)" for p in kernel.params) or "none"
            raise TypeError(
                f"{self.entry} takes {len(kernel.params)} arguments, {len(arguments)} were given; parameters: {names}"
            )
        block_bytes = bytearray(kernel.param_bytes)
        allocations = []
        for argument, parameter in zip(arguments, kernel.params, strict=True):
            data = _packed(argument, parameter, allocations)
            block_bytes[parameter.offset : parameter.offset + parameter.nbytes] = data
        if cluster is None:
            cluster = kernel.directives.get(".reqnctapercluster", ()) or (1, 1, 1)
        memory = driver_api.global_memory
        driver_api.begin_call(self.checks)
        try:
            for allocation in allocations:
                memory.add(allocation)
            driver_api.execute(
                program,
                params=bytes(block_bytes),
                grid=_three(grid),
                block=_three(block),
                cluster=_three(cluster),
                dynamic_shared_bytes=shared,
                labels=self._library.labels,
            )
        finally:
            for allocation in allocations:
                memory.unregister(allocation)


def _three(sizes):
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (*sizes, 1, 1)[:3]


def _packed(argument, parameter, allocations):
    """The bytes of an argument for its parameter; memory that it points to is appended to allocations."""
    name, nbytes = parameter.name, parameter.nbytes
    if isinstance(argument, (bytes, bytearray)):
        if len(argument) != nbytes:
            raise ValueError(f"{name}: {len(argument)} bytes for a parameter of {nbytes}")
        return bytes(argument)
    if argument is None:
        return bytes(nbytes)
    pointer = memory_of(argument, name)
    if pointer is not None:
        if nbytes != 8:
            raise TypeError(f"{name}: a tensor for a parameter of {nbytes} bytes; an address has 8")
        allocations.append(pointer)
        return struct.pack("<Q", pointer.start)
    if isinstance(argument, (bool, int, np.integer)) and not parameter.kind.startswith("f"):
        bits = 8 * nbytes
        if not -(1 << bits - 1) <= int(argument) < 1 << bits:
            raise ValueError(f"{name}: {argument} does not fit {nbytes} bytes")
        return (int(argument) & (1 << bits) - 1).to_bytes(nbytes, "little")
    if isinstance(argument, (int, float, np.floating)) and nbytes in (2, 4, 8):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[nbytes], float(argument))
    raise TypeError(
        f"{name}: {type(argument).__name__} for a parameter of {nbytes} bytes; accepted are CPU tensors, NumPy arrays, "
        "numbers, bytes and None"
    )


@contextlib.contextmanager
def reachable(*tensors):
    """Context in which kernels may access tensors that only tensor maps, or tables of addresses, refer to."""
    from cute_fa4.emulator.host.driver_api import global_memory

    allocations = [memory_of(tensor, "reachable") for tensor in tensors]
    if None in allocations:
        raise TypeError("reachable takes CPU tensors and NumPy arrays")
    try:
        for allocation in allocations:
            global_memory.add(allocation)
        yield
    finally:
        for allocation in allocations:
            global_memory.unregister(allocation)


@contextlib.contextmanager
def multicast(*tensors):
    """Context with a multimem address that maps to all of these tensors, like the memories of several GPUs.

    Yields the address, a number for a parameter of 8 bytes; only multimem instructions may use it. Raises ValueError
    for tensors of different sizes, or fewer than one.
    """
    from cute_fa4.emulator.host.driver_api import global_memory

    allocations = [memory_of(tensor, "multicast") for tensor in tensors]
    sizes = sorted({a.end - a.start for a in allocations if a is not None})
    if None in allocations or len(sizes) != 1:
        raise ValueError(
            f"multicast of {len(tensors)} tensors of {sizes} bytes; accepted: CPU tensors of one size"
        )
    window = aligned_empty(sizes[0], dtype=_bytes_type())  # otherwise unused addresses
    starts = tuple(a.start for a in allocations)
    mine = Multicast(window.data_ptr(), sizes[0], starts, (window, tensors))
    try:
        global_memory.multicasts = (*global_memory.multicasts, mine)
        with reachable(*tensors):
            yield mine.start
    finally:
        global_memory.multicasts = tuple(m for m in global_memory.multicasts if m is not mine)


def _bytes_type():
    import torch

    return torch.uint8


def aligned_empty(*shape, dtype, align=256):
    """torch.empty on the CPU at an address that is a multiple of ``align``, like those of CUDA's allocator (256).

    Kernels that were compiled for aligned pointers (assumed_align=128) need such tensors; torch's own CPU tensors
    are aligned to 64. Raises ValueError for an align that is not a power of two.
    """
    import torch

    if align < 1 or align & (align - 1):
        raise ValueError(f"align {align}; accepted are powers of two")
    shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    storage = torch.empty(nbytes + align, dtype=torch.uint8)
    start = -storage.data_ptr() % align
    return storage[start : start + nbytes].view(dtype).view(*shape)


def aligned(tensor, align=256):
    """A copy of a tensor in memory of aligned_empty; the tensor itself if it is already aligned and contiguous."""
    if tensor.is_contiguous() and tensor.data_ptr() % align == 0:
        return tensor
    return aligned_empty(tuple(tensor.shape), dtype=tensor.dtype, align=align).copy_(tensor)
