"""Bulk copies into shared memory, and prefetches: TMA tensor loads and plain ones, and the barriers that track them.

                                 completes by                          reads and writes
    cp.async.bulk.tensor load    complete_tx(bytes of the whole box)   at completion
    cp.async.bulk load           complete_tx(bytes)                    at completion

A clipped load still counts the bytes of the whole box. Cache hints and L2 prefetches have no effect; their
operands are checked. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

import numpy as np

from cute_fa4.emulator.checks.copies import copy_checks
from cute_fa4.emulator.instructions.bulk_operands import (
    BULK_ALIGNMENT,
    HINTS,
    MBARRIER_ALIGNMENT,
    TENSOR_SHARED_ALIGNMENT,
    boxes_of,
    bulk_size,
    global_address,
    im2col_offsets,
    resolve_shared,
    tensor_map_at,
    tensor_operand,
)
from cute_fa4.emulator.instructions.instruction_table import instruction, refuse
from cute_fa4.emulator.ptx.errors import IllegalAccess, UnknownInstruction

LOAD_MODIFIERS = r"((?:\.multicast::cluster|\.cta_group::[12]|\.L2::cache_hint)*)"


refuse(
    r"cp\.async\.bulk\..*ignore_oob.*", "bytes left out of a copy have no meaning in the emulator"
)
refuse(
    r"cp\.async\.bulk\..*im2col::w.*",
    "its tensor maps, which only the driver makes, are not known to the emulator",
)


def _targets(warp, modifiers, cta, barrier_cta, mask):
    """[(destination CTA, CTA of its mbarrier)] of a load.

    The mbarrier is in the destination's CTA; with .cta_group::2 it may be in the other CTA of the pair, and a
    multicast then signals the CTA of each pair that has the parity of the given one.
    """
    ctas = warp.cta.cluster.ctas
    pair = ".cta_group::2" in modifiers
    same = cta.rank >> 1 == barrier_cta.rank >> 1 if pair else cta is barrier_cta
    if mask is None:
        if not same:
            near = "of its CTA or of the other CTA of its pair" if pair else "of its CTA"
            warp.fault(
                f"load into CTA rank {cta.rank} that signals an mbarrier of rank {barrier_cta.rank}; "
                f"accepted: one {near}",
                IllegalAccess,
            )
        return [(cta, barrier_cta)]
    if not mask or mask >> len(ctas):
        warp.fault(
            f"multicast to the CTA mask 0x{mask:04x} in a cluster of {len(ctas)}; accepted: a non-empty "
            f"subset of 0x{(1 << len(ctas)) - 1:04x}",
            IllegalAccess,
        )
    ranks = [rank for rank in range(len(ctas)) if mask >> rank & 1]
    return [(ctas[r], ctas[r & ~1 | barrier_cta.rank & 1] if pair else ctas[r]) for r in ranks]


def _optional(warp, ins, first, modifiers, lane):
    """ctaMask of the operands from ``first`` on, or None; checks that their number fits the modifiers."""
    multicast, hint = ".multicast::cluster" in modifiers, ".L2::cache_hint" in modifiers
    if len(ins.operands) != first + multicast + hint:
        warp.fault(
            f"{len(ins.operands)} operands; {ins.opcode} takes {first + multicast + hint}",
            UnknownInstruction,
        )
    return int(warp.read32(ins.operands[first])[lane]) & 0xFFFF if multicast else None


def submit_load(
    warp, targets, offset, barrier_offset, nbytes, produce, label, after_fenced_reads=False
):
    """Put a load in flight: at completion, write produce(checks) to every target, then signal its barrier.

    targets  [(destination CTA, CTA of its mbarrier)]     after_fenced_reads  see CopyChecks.writes_shared
    """
    issuer, checks = warp.issuer(), copy_checks(warp, label)
    own = any(warp.cta in target for target in targets)

    def complete():
        data = produce(checks)
        for cta, barrier_cta in targets:
            for target in (cta, barrier_cta):
                if target.finished:
                    raise IllegalAccess(f"{label} for CTA {target.id}, which has ended")
            cta.shared.write(offset, data)
            checks.writes_shared(cta.shared, offset, len(data), own, after_fenced_reads)
            barrier = barrier_cta.mbarrier(barrier_offset)
            checks.signals(barrier)
            barrier.complete_tx(nbytes, issuer)

    warp.cta.machine.engine.submit(complete, label, issuer, outlives_cta=not own)


# --- loads ---------------------------------------------------------------------------------------------


@instruction(
    pattern=r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(cta|cluster)\.global(\.tile(?:::gather4)?|\.im2col)?"
    r"\.mbarrier::complete_tx::bytes" + LOAD_MODIFIERS
)
def tensor_load(warp, ins, match):
    """[dst], [map, {coordinates}], [mbarrier]{, {offsets}}{, ctaMask}{, cache policy}: a box -> shared memory."""
    rank, space, mode, modifiers = (
        int(match.group(1)),
        match.group(2),
        match.group(3) or "",
        match.group(4),
    )
    machine = warp.cta.machine
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, space, "TMA destination", TENSOR_SHARED_ALIGNMENT
        )
        tensor_map, coordinates = tensor_operand(warp, ins.operands[1], lane, rank)
        has_offsets = mode == ".im2col"
        offsets = im2col_offsets(warp, ins.operands[3], tensor_map, lane) if has_offsets else None
        boxes, nbytes = boxes_of(warp, tensor_map, coordinates, mode, offsets)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[2], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        mask = _optional(warp, ins, 3 + has_offsets, modifiers, lane)
        targets = _targets(warp, modifiers, cta, barrier_cta, mask)

        def produce(checks, tensor_map=tensor_map, boxes=boxes, offset=offset):
            checks.box(tensor_map, boxes, write=False)
            parts = [tensor_map.load(machine.memory, c, offset + at, box=b) for c, b, at in boxes]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        label = f"TMA load of {nbytes} bytes at {coordinates}"
        submit_load(warp, targets, offset, barrier_offset, nbytes, produce, label)


@instruction(
    pattern=r"cp\.async\.bulk\.shared::(cta|cluster)\.global\.mbarrier::complete_tx::bytes"
    + LOAD_MODIFIERS
)
def bulk_load(warp, ins, match):
    """[dst], [src], size, [mbarrier]{, ctaMask}{, cache policy}: bytes of global memory -> shared memory."""
    space, modifiers = match.group(1), match.group(2)
    machine = warp.cta.machine
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, space, "bulk copy destination", BULK_ALIGNMENT
        )
        source = global_address(warp, ins.operands[1], lane, BULK_ALIGNMENT, "bulk copy source")
        size = bulk_size(warp, ins.operands[2], lane)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[3], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        targets = _targets(
            warp, modifiers, cta, barrier_cta, _optional(warp, ins, 4, modifiers, lane)
        )

        def produce(checks, source=source, size=size):
            checks.reads_global(source, size)
            return machine.memory.read(source, size)

        label = f"bulk load of {size} bytes"
        submit_load(warp, targets, offset, barrier_offset, size, produce, label)


@instruction("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
def bulk_copy_to_cluster(warp, ins):
    """[dst], [src], size, [mbarrier]: own shared memory -> shared memory of a CTA of the cluster."""
    own = warp.cta
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, "cluster", "bulk copy destination", BULK_ALIGNMENT
        )
        _, source = resolve_shared(
            warp, ins.operands[1], lane, "cta", "bulk copy source", BULK_ALIGNMENT
        )
        size = bulk_size(warp, ins.operands[2], lane)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[3], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        targets = _targets(warp, "", cta, barrier_cta, None)

        def produce(checks, source=source, size=size):
            checks.reads_shared(own.shared, source, size)
            return own.shared.read(source, size)

        label = f"bulk copy of {size} bytes to CTA rank {cta.rank}"
        submit_load(warp, targets, offset, barrier_offset, size, produce, label)


# --- prefetches -----------------------------------------------------------------------------------------------


@instruction(
    pattern=r"cp\.async\.bulk\.prefetch\.tensor\.([1-5])d\.L2\.global(\.tile(?:::gather4)?|\.im2col)?"
    + HINTS
)
def tensor_prefetch(warp, ins, match):
    """[map, {coordinates}]: no effect; the tensor map and the coordinates are checked."""
    for lane in warp.lanes:
        tensor_map, coordinates = tensor_operand(warp, ins.operands[0], lane, int(match.group(1)))
        mode = match.group(2) or ""
        offsets = (
            im2col_offsets(warp, ins.operands[1], tensor_map, lane) if mode == ".im2col" else None
        )
        boxes_of(warp, tensor_map, coordinates, mode, offsets)


@instruction(pattern=r"cp\.async\.bulk\.prefetch\.L2\.global" + HINTS)
def bulk_prefetch(warp, ins, match):
    """[src], size: no effect; alignment, size and allocation are checked."""
    for lane in warp.lanes:
        source = global_address(warp, ins.operands[0], lane, BULK_ALIGNMENT, "bulk prefetch")
        warp.cta.machine.memory.read(source, bulk_size(warp, ins.operands[1], lane))


@instruction(pattern=r"prefetch(?:\.param|\.const)?\.tensormap")
def prefetch_tensormap(warp, ins, match):
    """[map]: no effect; the tensor map is decoded, so that a bad one is reported here."""
    for lane in warp.lanes:
        tensor_map_at(warp, int(warp.address(ins.operands[0])[lane]))
