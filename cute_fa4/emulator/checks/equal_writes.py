"""Two warps that write the same bytes to the same place, unordered: a note, not a race.

    warp 0   st.shared [flag], 1                 the bytes are the same in either order, so no
    warp 1   st.shared [flag], 1                 reader can tell, unless it reads between them

Rule: a write that nothing orders after an earlier write is a note (``equal_writes`` in launch.CHECKS makes it an
error), if

    both are stores or atomics of threads                          copies and MMAs remain races
    every byte that both write is the same before and after        compared when the second one is executed
    no unordered read comes between them                             such a read is reported as a race

The earlier write is kept: the next writer must come after both. A reader that comes after either of them reads the
right bytes. PTX's rules ("Memory Consistency Model": data races) have no such exception. Published kernels rely on
it, and no hardware can show a difference.
"""

import numpy as np

from cute_fa4.emulator.checks.reports import report
from cute_fa4.emulator.machine.mbarrier import Note

_THREADS = ("a write to shared memory", "a write to global memory")


class Written:
    """A pending write: the bytes of the shadow's range that it changes.

    shadow  ByteShadow        starts  byte offset of each item in it
    old()   the items as they are        new  what they become, as an array of as many bytes
    """

    def __init__(self, shadow, starts, nbytes, old, new):
        self.shadow, self._starts, self._nbytes = shadow, starts, nbytes
        self._old, self._new = old, new

    def changes(self, offsets, size):
        """Does the write change one of the granules of ``size`` bytes at ``offsets``?"""
        old, new = (
            np.ascontiguousarray(x).view(np.uint8).ravel() for x in (self._old(), self._new)
        )
        at = (self._starts.ravel()[:, None] + np.arange(self._nbytes)).ravel()
        changed = at[old != new]
        return bool(np.isin(changed // size, offsets // size).any())


def are_equal(order, part, numbers, strand, number, known, strong, written):
    """Whether all writes that this write is not ordered after wrote the same bytes. If so, they are noted and kept."""
    shadow, at, fine = part
    flat = numbers.ravel()
    if len(known) < order.capacity:
        known = np.concatenate((known, np.zeros(order.capacity - len(known), np.int32)))
    late = flat > known[order.actor_of[flat]]
    earlier = {n for n in set(flat[late].tolist()) if not order.may_meet(n, strong, strand.party)}
    accesses = [order.accesses[n] for n in earlier]
    if any(a.ins is None or a.what not in _THREADS for a in accesses):
        return False
    unordered = np.isin(flat, list(earlier))
    granules = np.arange(at.start, at.stop) if isinstance(at, slice) else at.ravel()
    offsets = written.shadow.offsets_of(granules[unordered], fine)
    if written.changes(offsets, 1 if fine else written.shadow.CHUNK):
        return False
    for n in earlier:
        places = granules[flat == n]
        column = shadow.column(int(order.actor_of[n]), of="equal")
        column[places] = np.maximum(column[places], n)
        _note(order, order.accesses[n], order.accesses[number])
    return True


def _note(order, earlier, access):
    key = (id(earlier.ins), id(access.ins))
    if key in order.noted:
        return
    order.noted.add(key)
    headline = "two warps write the same bytes to the same place and nothing orders them: harmless while they are equal"
    note = Note.of("equal_writes", report(headline, access, earlier))
    note.key = key
    order.notes.append(note)
