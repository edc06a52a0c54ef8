"""Names of a Triton kernel's memory: the Python variables of its buffers, read from its IR.

    left = source.load([m, k])           shared memory: "left", the buffers that the pipelined load fills
    acc = tl.dot(left, right, acc)       tensor memory: "acc"
                                         mbarriers: "left+right.full[i]" of copies, "acc.done[i]" of MMAs
    ready = gl.allocate_shared_memory()  Gluon: "ready", also for mbarriers, which are variables there

TTGIR has the variables as locations. The next stage of the compiler assigns the offsets, so its passes run here once
more on the text of the compiled kernel. Where they cannot read it, the kernel gets no names.
"""

import re
import tempfile
from collections import defaultdict
from math import prod
from pathlib import Path

from cute_fa4.emulator.ptx.labels import MBARRIER_BYTES, NO_LABELS, KernelLabels

_LANES, _COLUMN_BITS = 128, 32
_LOCATION = re.compile(r'^(#loc\d*) = loc\("([^"]+)"\(#loc\d*\)\)', re.M)
_ALLOCATION = re.compile(
    r"(%\w+) = (ttg\.local|ttng\.tmem)_alloc\b.*?"
    r"(?:allocation\.offset|tensor_memory_col_offset) = (\d+) : i32"
    r".*-> !ttg\.memdesc<((?:\d+x)+)([a-z]+)(\d+)\w*, .*loc\((#loc\d*)\)"
)
_VIEW = re.compile(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)")
_COPY = re.compile(r"ttng\.async_tma_(?:copy_global_to_local|gather)\b[^:]*?\] (%\w+), (%\w+)")
_MMA = re.compile(r"ttng\.tc_gen5_mma(?:_scaled)? %\w+, %\w+, (%\w+)\b[^:]*?, (%\w+)\[%\w+\]")
_PTX_VERSION = 88
"""Only decides how some layouts are converted; any version that has tcgen05 gives the same offsets."""


def found(compiled) -> KernelLabels:
    """Labels of Triton's CompiledKernel; NO_LABELS where its IR is missing or is not understood."""
    text = compiled.asm.get("ttgir")
    if not text:
        return NO_LABELS
    try:
        allocated = _with_offsets(text, compiled.metadata.target)
    except (ImportError, RuntimeError, AttributeError, TypeError):  # another compiler
        return NO_LABELS
    return labels(allocated, compiled.metadata.shared, own_barriers="ttir" not in compiled.asm)


def _with_offsets(ttgir: str, target) -> str:
    """The text after the passes that give every allocation its place."""
    from triton._C.libtriton import ir, nvidia, passes
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    make_backend(target).load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ttgir"
        path.write_text(ttgir)
        module = ir.parse_mlir_module(str(path), context)
    module.context = context
    manager = ir.pass_manager(context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager, False)
    passes.convert.add_scf_to_cf(manager)
    passes.gluon.add_inliner(manager)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, target.arch, _PTX_VERSION)
    nvidia.passes.ttnvgpuir.add_allocate_tensor_memory(manager)
    manager.run(module, "names")
    return module.str()


def labels(ttgir: str, shared_bytes: int, own_barriers: bool = False) -> KernelLabels:
    """Labels from IR whose allocations have offsets, for launches with so many bytes of shared memory.

    own_barriers: the program allocates its mbarriers itself, so their variables name them
    """
    variables = dict(_LOCATION.findall(ttgir))
    names, shared, tmem, rings = {}, [], [], []
    for value, memory, offset, shape, kind, bits, place in _ALLOCATION.findall(ttgir):
        names[value] = name = variables.get(place, "")
        sizes = [int(size) for size in shape.split("x")[:-1]]
        nbits = prod(sizes) * int(bits)
        if memory == "ttng.tmem":
            tmem.append((int(offset), max(1, nbits // (_LANES * _COLUMN_BITS)), name))
        elif kind + bits == "i64":
            rings.append((value, int(offset), nbits // 8 // MBARRIER_BYTES))
        else:
            shared.append((int(offset), nbits // 8, name))
    ends = {} if own_barriers else _ends(ttgir, names)
    barriers = [
        (offset + MBARRIER_BYTES * i, f"{name}[{i}]" if count > 1 else name)
        for value, offset, count in rings
        if (name := ends.get(value) or (names[value] if own_barriers else ""))
        for i in range(count)
    ]
    return KernelLabels(
        (), _named(shared), _named(tmem), tuple(barriers), dynamic_bytes=shared_bytes
    )


def _named(places: list[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Those with a name; what shares bytes with others, at other times, has the names of all.

    >>> _named([(0, 64, "left"), (0, 32, "out"), (64, 8, "")])
    ((0, 64, 'left or out'), (0, 32, 'out or left'))
    """
    return tuple(
        (start, size, " or ".join(dict.fromkeys([name, *(
            other for at, n, other in places if other and at < start + size and start < at + n
        )])))
        for start, size, name in places
        if name
    )  # fmt: skip


def _ends(ttgir: str, names: dict[str, str]) -> dict[str, str]:
    """Allocation of mbarriers -> what completes them: copies into buffers, or the MMAs of an accumulator."""
    origin = {value: value for value in names}
    for view, whole in _VIEW.findall(ttgir):
        origin[view] = origin.get(whole, whole)
    ends: dict[str, str] = {}
    for pattern, end in ((_COPY, "full"), (_MMA, "done")):
        written = defaultdict(list)
        for target, barrier in pattern.findall(ttgir):
            written[origin.get(barrier, barrier)].append(names.get(origin.get(target, target), ""))
        for barrier, targets in written.items():
            together = "+".join(dict.fromkeys(name for name in targets if name))
            if together:
                ends.setdefault(barrier, f"{together}.{end}")
    return ends
