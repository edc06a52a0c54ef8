"""tcgen05: allocation of tensor memory, whose columns a CTA or a pair of CTAs takes and frees in blocks."""

import numpy as np

from cute_fa4.emulator.checks import memory as memory_checks
from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.checks.clocks import HAPPENED
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.tcgen05 import GROUP, pair_of, shared_address
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.machine.warp import Wait
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMemoryError


@instruction(pattern=rf"tcgen05\.alloc{GROUP}\.sync\.aligned(\.shared::cta)?\.b32", aligned=True)
def alloc(warp, ins, match):
    """[shared address] <- address of a new block of columns; waits until columns are free.

    With .cta_group::2 one warp of each CTA of the pair executes it, and both wait for each other.
    """
    group, tmem = int(match.group(1)), warp.cta.tmem
    columns = warp.uniform(warp.read32(ins.operands[1]))
    if warp.index not in tmem.half_done:
        tmem.use_cta_group(group)
        tmem.check_allocation(columns)
        if tmem.find(columns) is None:
            return Wait(
                lambda: tmem.find(columns) is not None, f"{columns} free tensor memory columns"
            )
        if group == 2:
            _check_peer_is_there(warp)
        tmem.half_done[warp.index] = tmem.allocate(columns, warp.issuer()), tmem.allocations
        tmem.allocations += 1
        warp.note_progress()
    start, number = tmem.half_done[warp.index]
    if group == 2:
        peer = pair_of(warp)[warp.cta.rank & 1 ^ 1].tmem
        if peer.allocations <= number:
            return Wait(
                lambda: peer.allocations > number, "tcgen05.alloc in the other CTA of the pair"
            )
        if peer.blocks.get(start) not in (columns, None):
            raise TensorMemoryError(
                f"tcgen05.alloc with .cta_group::2: {columns} columns from column {start} here, "
                f"{peer.blocks[start]} in the other CTA of the pair; both must ask for the same"
            )
    del tmem.half_done[warp.index]
    cta, offset = shared_address(warp, ins.operands[0], bool(match.group(2)))
    if cta is not warp.cta:
        warp.fault(
            "tcgen05.alloc writes the address to shared memory of its own CTA", IllegalAccess
        )
    cta.shared.write(offset, np.array([start], np.uint32).view(np.uint8))
    if cta.machine.ordering is not None:
        memory_checks.shared_span(
            cta.machine.ordering, warp, cta.shared, offset, 4, "tcgen05.alloc"
        )
        tmem.allocated_by = warp.order.actor, warp.order.last
    return None


def _check_peer_is_there(warp):
    """An allocation for a pair must come after the launch of the other CTA (PTX ISA, "tcgen05.alloc").

    The CTAs of a cluster do not start at the same instant (NVIDIA/cutlass#3316). Level "ptx" checks this.
    """
    order, cluster = warp.cta.machine.ordering, warp.cta.cluster
    if order is None or not order.ptx or cluster.barrier.generation:
        return
    peer, happened = pair_of(warp)[warp.cta.rank & 1 ^ 1], warp.order.clock[HAPPENED]
    if not any(happened[other.order.actor] for other in peer.warps):
        raise TensorMemoryError(
            "tcgen05.alloc with .cta_group::2, but nothing says that the other CTA of the pair has been launched: "
            "barrier.cluster.arrive and wait before it"
        )


@instruction(pattern=rf"tcgen05\.dealloc{GROUP}\.sync\.aligned\.b32", aligned=True)
def dealloc(warp, ins, match):
    """Free the block at an address; both operands must match its tcgen05.alloc."""
    tmem, group = warp.cta.tmem, int(match.group(1))
    tmem.use_cta_group(group)
    address, columns = (warp.uniform(warp.read32(op)) for op in ins.operands)
    if group == 2:
        _check_peer_has_allocated(warp)
    tmem.deallocate(address, columns)
    if tmem.shadow is not None:
        column = split_address(address)[1]
        tensor_checks.deallocate(warp.cta.machine.ordering, warp, tmem, column, columns)
    warp.note_progress()


def _check_peer_has_allocated(warp):
    """A pair may free only after the tcgen05.alloc of both CTAs has completed.

    A B300 ends the launch otherwise (NVIDIA/cutlass#3435).
    """
    peer = pair_of(warp)[warp.cta.rank & 1 ^ 1].tmem
    known = not peer.half_done
    if known and peer.allocated_by is not None:
        actor, number = peer.allocated_by
        known = number <= warp.order.clock[HAPPENED, actor]
    if not known:
        raise TensorMemoryError(
            "tcgen05.dealloc with .cta_group::2, but nothing says that the tcgen05.alloc of the other CTA of the pair "
            "has completed: barrier.cluster.arrive and wait between them"
        )


@instruction(pattern=rf"tcgen05\.relinquish_alloc_permit{GROUP}\.sync\.aligned", aligned=True)
def relinquish_alloc_permit(warp, ins, match):
    """The CTA allocates no more."""
    warp.cta.tmem.use_cta_group(int(match.group(1)))
    warp.cta.tmem.relinquish()
