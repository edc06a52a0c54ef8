"""Names of a CuTe DSL kernel, noted while the DSL traces it: shared memory, mbarriers, tensor memory, warp roles.

    storage = smem.allocate(Storage)                    fields of the struct: "tmem_holding_buf"
    sA = smem.allocate_tensor(...)                      the variable that is assigned: "sA"
    kv_pipeline = PipelineTmaUmma.create(...)           "kv.full[0]", "kv.empty[0]", ...
    acc = cute.make_tensor(tmem_pointer + 128, ...)     columns of tensor memory: "acc"
    if warp == self.mma_warp_id:                        "mma", as source_names.py reads it

    with recording() as found:
        compiled = cute.compile(...)
    found["kernel_name"]        KernelLabels

The DSL's functions are wrapped inside the context. They return what they return without it, and no operation is added
to the kernel. A pointer's offset is the sum of the constants on its way from the allocation; a pointer without such a
way gets no name.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from unittest import mock

from cute_fa4.emulator.machine.tensor_memory import COLUMNS
from cute_fa4.emulator.ptx import source_names
from cute_fa4.emulator.ptx.labels import MBARRIER_BYTES, KernelLabels

_COLUMN_BITS = 32
_LANE_STRIDE = 1 << 16
"""In layouts of tensor memory lanes are so far apart, columns less."""


@dataclass
class _Allocation:
    """operation: of the compiler's IR; reserved: in the part before all others."""

    operation: object
    nbytes: int
    align: int
    reserved: bool
    name: str
    fields: tuple  # (name, nbytes, offset)


@dataclass
class _Kernel:
    allocations: list[_Allocation] = field(default_factory=list)
    barriers: list = field(default_factory=list)  # (allocation, byte offset, count, name)
    tmem: list = field(default_factory=list)  # (first column, columns, name)
    roles: list = field(default_factory=list)
    read: set = field(default_factory=set)  # lines whose function has been read for roles

    def labels(self) -> KernelLabels:
        """Offsets as the DSL's allocator assigns them: in order, reserved ones first."""
        start, offsets = 0, {}
        for one in sorted(self.allocations, key=lambda one: not one.reserved):
            start = -(-start // one.align) * one.align
            offsets[id(one)] = start
            start += one.nbytes
        shared = []
        for one in self.allocations:
            at = offsets[id(one)]
            shared += [(at + offset, nbytes, name) for name, nbytes, offset in one.fields if nbytes]
            if one.name and not one.fields:
                shared.append((at, one.nbytes, one.name))
        barriers = [
            (offsets[id(one)] + offset + MBARRIER_BYTES * i, f"{name}[{i}]" if count > 1 else name)
            for one, offset, count, name in self.barriers
            for i in range(count)
        ]
        return KernelLabels(
            tuple(self.roles), tuple(shared), tuple(self.tmem), tuple(barriers), dynamic_bytes=start
        )


@contextlib.contextmanager
def recording() -> Iterator[dict[str, KernelLabels]]:
    """Context that yields the labels of each kernel that is traced inside, by the name of its entry."""
    import cutlass.cute as cute
    from cutlass.memory.smem import SmemAllocator
    from cutlass.pipeline.helpers import MbarrierArray

    traces = _Traces()
    found: dict[str, KernelLabels] = {}
    allocate, make_tensor = SmemAllocator._smem_alloca, cute.make_tensor
    warp_idx, barrier_array = cute.arch.warp_idx, MbarrierArray.__init__

    def _smem_alloca(self, layout, dtype, byte_alignment, *args, **kwargs):
        made = allocate(self, layout, dtype, byte_alignment, *args, **kwargs)
        with _optional():
            origin, _ = _origin(made)
            kernel, frames = traces.kernel(origin), _user_frames()
            kernel.allocations.append(
                _Allocation(
                    origin,
                    _extent(layout) * max(8, dtype.width) // 8,
                    max(byte_alignment, dtype.width // 8),
                    kwargs.get("partition") == 0,
                    _assigned(frames),
                    tuple(kwargs.get("struct_fields") or ()),
                )
            )
            _read_roles(kernel, frames)
        return made

    def __init__(self, *args, **kwargs):
        barrier_array(self, *args, **kwargs)
        with _optional():
            origin, offset = _origin(self.barrier_storage)
            kernel, frames = traces.kernel(origin), _user_frames()
            one = next((a for a in kernel.allocations if a.operation == origin), None)
            name = _pipeline_name(frames, one, offset)
            if one is not None and name:
                kernel.barriers.append((one, offset, self.num_stages, name))

    def make_tensor_here(iterator, *args, **kwargs):
        made = make_tensor(iterator, *args, **kwargs)
        with _optional():
            if str(getattr(iterator, "memspace", "")).endswith("tmem"):
                origin, offset = _origin(iterator)
                columns = -(-_extent(made.layout) * iterator.dtype.width // _COLUMN_BITS)
                entry = 8 * offset // _COLUMN_BITS, columns, _assigned(_user_frames())
                named = traces.kernel(origin).tmem
                known = entry[2] and origin.name in _TMEM_BASES and sum(entry[:2]) <= COLUMNS
                if known and _called_by_the_program() and entry not in named:
                    named.append(entry)
        return made

    def warp_idx_here(*args, **kwargs):
        made = warp_idx(*args, **kwargs)
        with _optional():
            _read_roles(traces.kernel(_operation(made.value)), _user_frames())
        return made

    with (
        mock.patch.object(SmemAllocator, "_smem_alloca", _smem_alloca),
        mock.patch.object(MbarrierArray, "__init__", __init__),
        mock.patch.object(cute, "make_tensor", make_tensor_here),
        mock.patch.object(cute.arch, "warp_idx", warp_idx_here),
    ):
        try:
            yield found
        finally:
            source_names.forget()
    found.update({name: kernel.labels() for name, (_, kernel) in traces.kernels.items()})


class _NoName(Exception):
    """The name or the place of something cannot be found: it stays without a name."""


@contextlib.contextmanager
def _optional():
    """A name that cannot be found is no error of the kernel, also if a later DSL differs from what is read here."""
    with contextlib.suppress(Exception):
        yield


# --- the compiler's IR -------------------------------------------------------------------------------------


def _operation(value):
    """The operation that defines a value of the IR. _NoName for an argument of a block."""
    while not hasattr(value, "owner"):
        value = value.value
    owner = value.owner
    owner = getattr(owner, "operation", owner)
    if not hasattr(owner, "operands"):
        raise _NoName
    return owner


def _origin(pointer):
    """(operation, bytes): what allocates a pointer's memory, and the pointer's distance from its beginning."""
    total, operation = 0, _operation(pointer)
    while operation.name in _STEPS:
        if operation.name == "cute.add_offset":
            constant = re.fullmatch(r'!cute\.int_tuple<"(\d+)">', str(operation.operands[1].type))
            if not constant:
                raise _NoName
            total += int(constant[1]) * _element_bits(operation.operands[0]) // 8
        operation = _operation(operation.operands[0])
    return operation, total


_STEPS = ("cute.add_offset", "cute.recast_iter", "cute.get_iter", "cute.make_view")
_TMEM_BASES = ("cute_nvgpu.arch.sm100.retrieve_tmem_ptr", "cute.mma.make_fragment")
"""Column 0: of what was allocated, and of an accumulator's fragment before it gets a place."""


def _element_bits(pointer) -> int:
    while not hasattr(pointer, "owner"):
        pointer = pointer.value
    width = re.match(r"!cute\.ptr<[a-z]+(\d+)", str(pointer.type))
    if not width:
        raise _NoName
    return int(width[1])


class _Traces:
    """The kernels that are traced: name of the entry -> (operation, _Kernel). A second trace replaces the first."""

    def __init__(self):
        self.kernels = {}

    def kernel(self, operation) -> _Kernel:
        """The kernel that an operation is part of. _NoName outside of kernels."""
        while operation is not None and operation.name != "cuda.kernel":
            operation = operation.parent
            operation = getattr(operation, "operation", operation)
        if operation is None:
            raise _NoName
        name = str(operation.attributes["sym_name"]).strip('"')
        if name not in self.kernels or self.kernels[name][0] != operation:
            self.kernels[name] = operation, _Kernel()
        return self.kernels[name][1]


def _extent(layout) -> int:
    """Elements between the first and the last one of a layout, lanes of tensor memory not counted.

    >>> _extent("((128,128),1,1,2):((65536,1),0,0,128)"), _extent("144:1")
    (256, 144)
    """
    shape, _, stride = str(layout).partition(":")
    sizes, strides = (re.findall(r"[^(),\s]+", part) for part in (shape, stride))
    if len(sizes) != len(strides) or not all(map(str.isdigit, [*sizes, *strides])):
        raise _NoName
    pairs = [(int(n), int(s)) for n, s in zip(sizes, strides, strict=True)]
    return 1 + sum((n - 1) * s for n, s in pairs if s < _LANE_STRIDE)


# --- the Python code that is traced ------------------------------------------------------------------------


def _user_frames() -> list:
    """Frames of the traced program, the innermost first: neither those of the DSL nor these."""
    import cutlass

    own = (os.path.dirname(cutlass.__file__), __file__, contextlib.__file__)
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(own):
            frames.append(frame)
        frame = frame.f_back
    if not frames:
        raise _NoName
    return frames


def _called_by_the_program() -> bool:
    """Is the wrapped function called by the program or its allocators, not by other helpers of the DSL?"""
    import cutlass

    package, caller = os.path.dirname(cutlass.__file__), sys._getframe(2).f_code.co_filename
    return not caller.startswith(package) or caller.startswith(os.path.join(package, "memory"))


def _assigned(frames) -> str:
    """The variable that a call is assigned to: in its statement, or, if that returns it, in the caller's.

    Functions named create return what they make.
    """
    for frame, outer in zip(frames, [*frames[1:], None], strict=True):
        if frame.f_code.co_name == "create":
            continue
        name = source_names.assigned(frame.f_code.co_filename, frame.f_lineno)
        if name is not None or frame.f_back is not outer:  # the DSL is between them
            return name or ""
    return ""


def _pipeline_name(frames, allocation, offset) -> str:
    """ "kv.full" of an array of mbarriers: its pipeline, and its end in it; else the field that it is in."""
    frame: FrameType | None = sys._getframe(1)
    end = ""
    while frame is not None and frame is not frames[0]:
        if frame.f_code.co_name == "create":
            end = source_names.assigned(frame.f_code.co_filename, frame.f_lineno) or ""
        frame = frame.f_back
    pipeline = _assigned(frames)
    if not pipeline:
        return ""
    pipeline = re.sub(r"^pipeline_|_pipeline$|^mbar_|_mbar(_ptr)?$", "", pipeline)
    end = end.rsplit("_", 1)[-1]
    return f"{pipeline}.{end}" if end in ("full", "empty") else pipeline


def _read_roles(kernel: _Kernel, frames) -> None:
    file, line = frames[0].f_code.co_filename, frames[0].f_lineno
    if (file, line) in kernel.read:
        return
    kernel.read.add((file, line))
    here = [frame for frame in frames if frame.f_code.co_filename == file]

    def look_up(name):
        for frame in here:
            for scope in (frame.f_locals, frame.f_globals):
                if name in scope:
                    return scope[name]
        raise KeyError(name)

    for role in source_names.python_roles(file, line, look_up):
        if role not in kernel.roles:
            kernel.roles.append(role)
