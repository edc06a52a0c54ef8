"""cp.async (LDGSTS): every thread copies 4, 8 or 16 bytes from global to shared memory, asynchronously.

    cp.async  cp.async  commit_group | cp.async  commit_group | wait_group 1      waits for the first group
    cp.async  mbarrier.arrive                                                     arrives when all are complete

PTX ISA, "Data Movement and Conversion Instructions: cp.async".
"""

import numpy as np

from cute_fa4.emulator.checks.copies import copy_checks
from cute_fa4.emulator.instructions.bulk_operands import (
    MBARRIER_ALIGNMENT,
    global_address,
    resolve_shared,
)
from cute_fa4.emulator.instructions.copy_groups import Copy, groups_of, wait_for_groups
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.ptx.errors import IllegalAccess
from cute_fa4.emulator.ptx.parser import Pred

ASYNC = "cp.async"  # the kind of copy (copy_groups.groups_of)


@instruction(
    pattern=r"cp\.async\.(ca|cg)\.shared(?:::cta)?\.global((?:\.L2::(?:cache_hint|64B|128B|256B))*)"
)
def cp_async(warp, ins, match):
    """[dst], [src], size{, bytes to read | ignore-src}{, cache policy}: 4, 8 or 16 bytes; the rest becomes 0."""
    cta, lanes = warp.cta, np.array(warp.lanes)
    size = ins.operands[2].value
    accepted = (16,) if match.group(1) == "cg" else (4, 8, 16)
    if size not in accepted:
        warp.fault(f"{ins.opcode} of {size} bytes; accepted: {accepted}", IllegalAccess)
    extra = list(ins.operands[3:])
    if ".L2::cache_hint" in match.group(2):
        extra.pop()
    offsets = np.array(
        [
            resolve_shared(warp, ins.operands[0], lane, "cta", "cp.async destination", size)[1]
            for lane in lanes
        ]
    )
    sources = np.array(
        [global_address(warp, ins.operands[1], lane, size, "cp.async source") for lane in lanes],
        np.uint64,
    )
    counts = _bytes_to_read(warp, extra[0] if extra else None, lanes, size)

    label = f"cp.async of {len(lanes)} x {size} bytes"
    copy = Copy(copy_checks(warp, label, is_async=False))
    for lane in warp.lanes:
        groups_of(ASYNC, warp)[lane].open.append(copy)

    def complete():
        data = np.zeros((len(lanes), size), np.uint8)
        whole = counts == size
        if whole.any():
            items = cta.machine.memory.gather(sources[whole], size)
            data[whole] = np.ascontiguousarray(items).reshape(len(items), -1).view(np.uint8)
        for i in np.flatnonzero(~whole & (counts > 0)):
            data[i, : counts[i]] = cta.machine.memory.read(int(sources[i]), int(counts[i]))
        for at, count in zip(sources.tolist(), counts.tolist(), strict=True):
            if count:
                copy.checks.reads_global(at, count)
        for offset, row in zip(offsets.tolist(), data, strict=True):
            cta.shared.write(offset, row)
            copy.checks.writes_shared(cta.shared, offset, size)
        copy.finish()

    cta.machine.engine.submit(complete, label, warp.issuer())


def _bytes_to_read(warp, operand, lanes, size):
    """The number of the ``size`` bytes that each lane reads; the others are filled with zeros."""
    if operand is None:
        return np.full(len(lanes), size)
    if isinstance(operand, Pred):
        ignored = warp.read_pred(operand) >> lanes & 1
        return np.where(ignored, 0, size)
    counts = warp.read32(operand)[lanes].astype(np.int64)
    if (counts > size).any():
        warp.fault(f"src-size {int(counts.max())} of a cp.async of {size} bytes", IllegalAccess)
    return counts


@instruction("cp.async.commit_group")
def cp_async_commit_group(warp, ins):
    """The cp.async that this thread issued since the last commit become a group."""
    for lane in warp.lanes:
        groups_of(ASYNC, warp)[lane].commit()


@instruction("cp.async.wait_group")
def cp_async_wait_group(warp, ins):
    """Wait until at most N of this thread's newest cp.async groups are pending."""
    newest = ins.operands[0].value
    return wait_for_groups(ASYNC, warp, newest, f"cp.async.wait_group {newest}")


@instruction("cp.async.wait_all")
def cp_async_wait_all(warp, ins):
    """Commit the open group, then wait until every cp.async of this thread is complete."""
    for lane in warp.lanes:
        groups = groups_of(ASYNC, warp)[lane]
        if groups.open:
            groups.commit()
    return wait_for_groups(ASYNC, warp, 0, "cp.async.wait_all")


@instruction(pattern=r"cp\.async\.mbarrier\.arrive(\.noinc)?(\.shared(?:::cta)?)?\.b64")
def cp_async_mbarrier_arrive(warp, ins, match):
    """[mbarrier]: arrive when all earlier cp.async of this thread are complete.

    Without .noinc the pending count is first incremented, so that the expected count is unchanged.
    """
    issuer, engine = warp.issuer(), warp.cta.machine.engine
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp,
            ins.operands[0],
            lane,
            "cta",
            "mbarrier",
            MBARRIER_ALIGNMENT,
            generic=not match.group(2),
        )
        barrier = cta.mbarrier(offset)
        if not match.group(1):
            barrier.pending += 1
        groups = groups_of(ASYNC, warp)[lane]
        copies = [c for group in (*groups.history, groups.open) for c in group]
        pending = [c for c in copies if not c.written]
        left = [len(pending)]

        def arrive(barrier=barrier, copies=copies):
            for copy in copies:
                copy.checks.signals(barrier)
            barrier.arrive(1, issuer)

        def one_less(left=left, arrive=arrive):
            left[0] -= 1
            if left[0] == 0:
                arrive()

        for copy in pending:
            copy.when_written.append(one_less)
        if not pending:
            engine.submit(arrive, "cp.async.mbarrier.arrive", issuer)
