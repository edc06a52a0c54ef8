"""The uses of an mbarrier come after its initialization, and copies see it (docs/decisions/0043).

    a warp                             must be ordered after mbarrier.init, by any barrier
    a copy or commit of the same CTA   also needs a fence after mbarrier.init; at level "hardware" its absence is a note
    one of another CTA                 needs the fence at both levels

The fence is fence.mbarrier_init or fence.proxy.async. PTX ISA, "mbarrier.init", "membar/fence", "Async proxy".
"""

from cute_fa4.emulator.checks.clocks import BARRIERS, HAPPENED
from cute_fa4.emulator.checks.scopes import CTA
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.ptx.errors import BarrierError

_FENCE = (
    "its initialisation is not visible to asynchronous operations: fence.mbarrier_init (or fence.proxy.async) is "
    "missing after mbarrier.init"
)


def initialised(order, barrier, warp):
    """mbarrier.init: other threads must be ordered after it before they use the barrier."""
    strand = warp.order
    barrier.born = (
        strand.actor,
        order.number(strand.actor, strand.party, warp.ins, "mbarrier.init"),
    )


def check_initialised(order, barrier, strand, clock, fault, is_async=False):
    """``fault(message, kind)`` unless a user of a barrier, a warp or an asynchronous operation, may rely on it.

    strand  the user     clock  what it knew when it began
    """
    if barrier.born is None:
        return
    actor, number = barrier.born
    if actor == strand.actor and not is_async:
        return
    ordered = clock[HAPPENED, actor] >= number
    if clock[BARRIERS, actor] >= number or not is_async and ordered:
        return
    access = order.accesses[number]
    if not ordered:
        why = "nothing orders this use after its initialisation: a barrier is missing between them"
    elif order.ptx or access.party.distance(strand.party) != CTA:
        why = _FENCE
    else:
        _note(order, f"{barrier.name}: {_FENCE}\n  initialised by\n{access.where()}", access)
        return
    fault(f"{barrier.name}: {why}\n  initialised by\n{access.where()}\n  used by", BarrierError)


def _note(order, text, access):
    note = Note.of("unfenced_barrier", text)
    note.key = ("unfenced_barrier", id(access.ins))
    if note.key not in order.noted:
        order.noted.add(note.key)
        order.notes.append(note)
