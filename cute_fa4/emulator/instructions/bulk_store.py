"""Bulk copies out of shared memory: TMA tensor stores and reductions, and plain ones.

                                 completes by    reads and writes
    cp.async.bulk.tensor store   bulk group      reads at its first, writes at its second step
    cp.async.bulk store          bulk group      in two steps

PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

import numpy as np

from cute_fa4.emulator.checks.copies import copy_checks
from cute_fa4.emulator.instructions.bulk_operands import (
    BULK_ALIGNMENT,
    HINTS,
    TENSOR_SHARED_ALIGNMENT,
    boxes_of,
    bulk_size,
    global_address,
    resolve_shared,
    tensor_operand,
)
from cute_fa4.emulator.instructions.copy_groups import BULK, Copy, groups_of
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.tensor_map import FLOATS
from cute_fa4.emulator.ptx.errors import TensorMapError


def shared_source(cta, offset, size):
    """The argument `read` of submit_store: this many bytes of the CTA's shared memory."""

    def read(checks):
        checks.reads_shared(cta.shared, offset, size, store=True)
        return cta.shared.read(offset, size)

    return read


def submit_store(warp, lanes, read, write, label):
    """Put a store in flight, in two steps: read(checks) the source, later write(data, checks).

    The store belongs to the open group of every lane in ``lanes``. If several lanes of a warp issue a store
    together with the same operands (kernels do not always elect one), it is one copy.
    """
    issuer, engine = warp.issuer(), warp.cta.machine.engine
    checks = copy_checks(warp, label)
    copy = Copy(checks)
    for lane in lanes:
        groups_of(BULK, warp)[lane].open.append(copy)

    def first():
        data = read(checks)
        copy.read = True

        def second():
            write(data, checks)
            copy.finish()

        # Global memory outlives the CTA: a kernel may end with a store that is read but not yet written.
        engine.submit(second, f"{label}: write", issuer, outlives_cta=True)

    # PTX requires a wait before the CTA exits; hardware keeps its shared memory (DeepGEMM, flash-attn-4's backward).
    engine.submit(first, f"{label}: read", issuer, kept_for=True)


@instruction(
    pattern=r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(\.tile(?:::scatter4)?|\.im2col_no_offs)?\.bulk_group"
    + HINTS
)
def tensor_store(warp, ins, match):
    """[map, {coordinates}], [src]{, cache policy}: shared memory -> a box of a tensor, clipped."""
    _tensor_store(warp, ins, int(match.group(1)), match.group(2) or "", None)


@instruction(
    pattern=r"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.(add|min|max|inc|dec|and|or|xor)"
    r"(\.tile|\.im2col_no_offs)?\.bulk_group" + HINTS
)
def tensor_reduce(warp, ins, match):
    """[map, {coordinates}], [src]{, cache policy}: combine a box of a tensor with shared memory, clipped."""
    _tensor_store(warp, ins, int(match.group(1)), match.group(3) or "", match.group(2))


def _tensor_store(warp, ins, rank, mode, reduce):
    memory, own = warp.cta.machine.memory, warp.cta
    stores = {}  # operands -> lanes
    for lane in warp.lanes:
        tensor_map, coordinates = tensor_operand(warp, ins.operands[0], lane, rank)
        if reduce in ("inc", "dec") and tensor_map.dtype != "u32":
            warp.fault(f"{ins.opcode} of a {tensor_map}; accepted: u32", TensorMapError)
        _, offset = resolve_shared(
            warp, ins.operands[1], lane, "cta", "TMA source", TENSOR_SHARED_ALIGNMENT
        )
        key = (tensor_map, coordinates, offset, lane if reduce else None)
        stores.setdefault(key, []).append(lane)
    for (tensor_map, coordinates, offset, _), lanes in stores.items():
        boxes, nbytes = boxes_of(warp, tensor_map, coordinates, mode)

        def read(checks, offset=offset, nbytes=nbytes):
            checks.reads_shared(own.shared, offset, nbytes, store=True)
            return own.shared.read(offset, nbytes)

        def write(data, checks, tensor_map=tensor_map, boxes=boxes, offset=offset):
            floats = reduce == "add" and tensor_map.dtype in FLOATS
            checks.box(tensor_map, boxes, write=True, atomic=reduce is not None, adds_floats=floats)
            for c, box, at in boxes:
                part = data[at : at + tensor_map.box_bytes]
                tensor_map.store(memory, c, offset + at, part, box=box, reduce=reduce)

        label = f"TMA {reduce or 'store'} of {nbytes} bytes at {coordinates}"
        submit_store(warp, lanes, read, write, label)


def plain_operands(warp, ins, lane, what):
    """[dst], [src], size -> (global address, offset in the CTA's shared memory, bytes)."""
    place = warp, ins.operands[0], lane, BULK_ALIGNMENT
    target = global_address(*place, f"{what} destination")
    source = warp, ins.operands[1], lane, "cta", f"{what} source"
    _, offset = resolve_shared(*source, BULK_ALIGNMENT)
    return target, offset, bulk_size(warp, ins.operands[2], lane)


@instruction(pattern=r"cp\.async\.bulk\.global\.shared::cta\.bulk_group" + HINTS + r"(\.cp_mask)?")
def bulk_store(warp, ins, match):
    """[dst], [src], size{, cache policy}{, byteMask}: own shared memory -> global memory.

    With .cp_mask bit i of the mask says whether byte i of each 16 bytes is written. PTX ISA, "cp.async.bulk".
    """
    memory, own = warp.cta.machine.memory, warp.cta
    masks = warp.read32(ins.operands[-1]) if match[1] else None
    stores = {}  # operands -> lanes
    for lane in warp.lanes:
        target, offset, size = plain_operands(warp, ins, lane, "bulk copy")
        mask = None if masks is None else int(masks[lane]) & 0xFFFF
        stores.setdefault((target, offset, size, mask), []).append(lane)
    for (target, offset, size, mask), lanes in stores.items():

        def write(data, checks, target=target, mask=mask):
            for first, end in masked_runs(mask, len(data)):
                checks.writes_global(target + first, end - first)
                memory.write(target + first, data[first:end])

        read = shared_source(own, offset, size)
        submit_store(warp, lanes, read, write, f"bulk store of {size} bytes")


def masked_runs(mask, size):
    """[(first, end)] of the bytes that are written: all, or those of a 16-bit mask in each 16 bytes."""
    if mask is None:
        return [(0, size)]
    written = np.zeros(size + 2, np.int8)
    written[1:-1] = np.resize([mask >> i & 1 for i in range(BULK_ALIGNMENT)], size)
    edges = np.flatnonzero(np.diff(written))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
