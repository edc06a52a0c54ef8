"""Bulk reductions: own shared memory combined into global memory, or into the shared memory of a CTA of the cluster.

    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [dst], [src], size           by a bulk group
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
                                                   [dst], [src], size, [mbar]               by bytes of an mbarrier

Reductions are elementwise and atomic, so two of them may target the same address; floating-point sums then depend
on their order. Sums of f16 and bf16 are rounded once, to nearest even. PTX ISA, "cp.reduce.async.bulk".
"""

import numpy as np

from cute_fa4.emulator.checks.copies import copy_checks
from cute_fa4.emulator.instructions.bulk_operands import (
    BULK_ALIGNMENT,
    HINTS,
    MBARRIER_ALIGNMENT,
    bulk_size,
    resolve_shared,
)
from cute_fa4.emulator.instructions.bulk_store import plain_operands, shared_source, submit_store
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.rounding import BF16, decode, encode
from cute_fa4.emulator.ptx.errors import IllegalAccess

_NUMBERS = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
FLOATS = "f16", "bf16", "f32", "f64"
_OPERATIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}  # fmt: skip

# PTX ISA, the tables of types by operation and destination.
GLOBAL_OPERATIONS = (
    r"(?:(add)(?:\.noftz)?\.(u32|s32|u64|f16|bf16|f32|f64)|(min|max)\.(u32|s32|u64|s64|f16|bf16)"
    r"|(inc|dec)\.(u32)|(and|or|xor)\.(b32|b64))"
)
_CLUSTER = r"(?:(add)\.(u32|s32|u64)|(min|max)\.(u32|s32)|(inc|dec)\.(u32)|(and|or|xor)\.(b32))"


def combine(operation, kind, old, new):
    """Bytes of ``old`` after the operation with the bytes ``new``, as uint8."""
    with np.errstate(all="ignore"):
        if kind == "bf16":
            values = _OPERATIONS[operation](
                *(decode(x.view(np.uint16), BF16).astype(np.float64) for x in (old, new))
            )
            return np.ascontiguousarray(encode(values, BF16).astype(np.uint16)).view(np.uint8)
        number = _NUMBERS[kind]
        result = _OPERATIONS[operation](old.view(number), new.view(number))
        return np.ascontiguousarray(result.astype(number)).view(np.uint8)


def _what(match):
    operation, kind = (group for group in match.groups() if group)
    return operation, kind


@instruction(
    pattern=rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{HINTS}\.{GLOBAL_OPERATIONS}"
)
def reduce_to_global(warp, ins, match):
    """[dst], [src], size{, cache policy}: global memory = op(global memory, own shared memory)."""
    operation, kind = _what(match)
    memory, own = warp.cta.machine.memory, warp.cta
    for lane in warp.lanes:
        target, offset, size = plain_operands(warp, ins, lane, "bulk reduction")

        def write(data, checks, target=target):
            floats = operation == "add" and kind in FLOATS
            checks.writes_global(target, len(data), atomic=True, adds_floats=floats)
            memory.write(target, combine(operation, kind, memory.read(target, len(data)), data))

        read = shared_source(own, offset, size)
        submit_store(warp, [lane], read, write, f"bulk {operation}.{kind} of {size} bytes")


@instruction(
    pattern=r"cp\.reduce\.async\.bulk\.shared::cluster\.shared::cta\.mbarrier::complete_tx::bytes\."
    + _CLUSTER
)
def reduce_to_cluster(warp, ins, match):
    """[dst], [src], size, [mbarrier]: shared memory of a CTA of the cluster = op(it, own shared memory)."""
    operation, kind = _what(match)
    own, issuer, engine = warp.cta, warp.issuer(), warp.cta.machine.engine
    for lane in warp.lanes:
        cta, target = resolve_shared(
            warp, ins.operands[0], lane, "cluster", "bulk reduction destination", BULK_ALIGNMENT
        )
        _, source = resolve_shared(
            warp, ins.operands[1], lane, "cta", "bulk reduction source", BULK_ALIGNMENT
        )
        size = bulk_size(warp, ins.operands[2], lane)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[3], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        if barrier_cta is not cta:
            warp.fault(
                f"{ins.opcode}: destination in CTA rank {cta.rank}, mbarrier in rank {barrier_cta.rank}; they "
                "must be in one CTA",
                IllegalAccess,
            )
        label = f"bulk {operation}.{kind} of {size} bytes to CTA rank {cta.rank}"
        checks = copy_checks(warp, label)

        def complete(
            cta=cta, target=target, source=source, size=size, at=barrier_offset, checks=checks
        ):
            checks.reads_shared(own.shared, source, size)
            data = own.shared.read(source, size)
            old = cta.shared.read(target, size)
            checks.writes_shared(cta.shared, target, size, awaited=False, atomic=True)
            cta.shared.write(target, combine(operation, kind, old, data))
            barrier = cta.mbarrier(at)
            checks.signals(barrier)
            barrier.complete_tx(size, issuer)

        engine.submit(complete, label, issuer)
