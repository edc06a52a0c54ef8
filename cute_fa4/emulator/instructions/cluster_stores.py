"""Stores and reductions into the shared memory of another CTA of the cluster, which signal an mbarrier there.

PTX ISA, "st.async", "red.async". They are in flight after they are issued, as copies are.
"""

import numpy as np

from cute_fa4.emulator.checks.copies import copy_checks
from cute_fa4.emulator.instructions.atomics import applied
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.mbarrier import shared_addresses
from cute_fa4.emulator.instructions.memory import SIZED
from cute_fa4.emulator.ptx.errors import IllegalAccess
from cute_fa4.emulator.ptx.parser import Vec

_ASYNC = r"(?:\.shared::cluster)?\.mbarrier::complete_tx::bytes"


@instruction(
    pattern=rf"red\.async(?:\.relaxed)?(?:\.cluster)?{_ASYNC}\.(inc|dec|min|max|add|and|or|xor)\.([bus])(32|64)"
)
def red_async(warp, ins, match):
    """[a] = op([a], b) in another CTA's shared memory; the mbarrier there receives the bytes at completion."""
    size = int(match[3]) // 8
    dtype = np.dtype(f"{'i' if match[2] == 's' else 'u'}{size}")

    def combined(cta, offset, data):
        old, new = cta.shared.read(offset, size).view(dtype)[0], data.view(dtype)[0]
        with np.errstate(over="ignore"):
            return np.array([applied(match[1], old, new, None)], dtype).view(np.uint8)

    _to_cluster(warp, ins, size, combined)


@instruction(
    pattern=rf"st\.async(?:\.weak|\.relaxed\.cluster)?{_ASYNC}(?:\.v([24]))?\.([busf])(32|64)"
)
def store_async(warp, ins, match):
    """[a] = b in another CTA's shared memory; the mbarrier there receives the bytes at completion."""
    _to_cluster(warp, ins, int(match[3]) // 8)


def _to_cluster(warp, ins, size, combined=None):
    """[a], b, [mbarrier]: in flight; combined(cta, offset, data) is what is written, None: the data.

    Adjacent stores of neighboring lanes with the same mbarrier are one operation in flight. The mbarrier counts
    each lane's bytes separately, so that a phase that expects fewer of them can end between lanes.
    """
    address, source, mbar = ins.operands
    sources = source.items if isinstance(source, Vec) else (source,)
    resolve = warp.cta.cluster.resolve
    addresses, barriers = (shared_addresses(warp, o, ins.opcode) for o in (address, mbar))
    columns = [warp.read64(s) if size == 8 else warp.read32(s) for s in sources]
    name = ".".join(ins.opcode.split(".")[:2])
    runs = []  # [CTA, first byte, bytes, mbarrier]
    for lane, at, barrier_at in zip(warp.lanes, addresses, barriers, strict=True):
        data = np.array([column[lane] for column in columns], SIZED[size]).tobytes()
        cta, offset = resolve(at)
        barrier_cta, barrier = resolve(barrier_at)
        if barrier_cta is not cta:
            warp.fault(f"{name}: data and mbarrier must be in the same CTA", IllegalAccess)
        last = runs[-1] if runs and combined is None else None
        if last and last[0] is cta and last[1] + len(last[2]) == offset and last[3] == barrier:
            last[2] += data
        else:
            runs.append([cta, offset, data, barrier])
    for cta, offset, data, barrier in runs:
        counted = [size * len(sources)] * (len(data) // (size * len(sources)))
        _send(warp, name, cta, offset, np.frombuffer(data, np.uint8), barrier, counted, combined)


def _send(warp, name, cta, offset, data, barrier_offset, counted, combined):
    """Put data for another CTA in flight; its mbarrier is signaled at completion, with this many bytes each time."""
    issuer = warp.issuer()
    label = f"{name} of {len(data)} bytes to CTA rank {cta.rank}"
    checked = copy_checks(warp, label, is_async=False)

    def action():
        new = data if combined is None else combined(cta, offset, data)
        cta.shared.write(offset, new, issuer)
        checked.writes_shared(
            cta.shared, offset, len(data), awaited=False, atomic=combined is not None
        )
        barrier = cta.mbarrier(barrier_offset)
        checked.signals(barrier)
        for nbytes in counted:
            barrier.complete_tx(nbytes, issuer)

    warp.cta.machine.engine.submit(action, label, issuer, outlives_cta=True)
