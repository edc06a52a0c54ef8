"""Global memory: its allocations with their accesses.

Global memory that a launch has not written only keeps a list of its reads; the first write processes the list.
"""

from bisect import bisect_right

import numpy as np

from cute_fa4.emulator.checks.clocks import ROWS, Strand
from cute_fa4.emulator.checks.equal_writes import Written
from cute_fa4.emulator.checks.memory import race, touch
from cute_fa4.emulator.checks.reports import Party
from cute_fa4.emulator.checks.shadow import ByteShadow

_LOG_LIMIT = 100_000
_GRID_BEFORE = Party("of the launch before", 0, 1, "any", "the grid before")


class Region:
    """A range of global memory: one allocation, or several that overlap."""

    def __init__(self, start, end, name):
        self.start, self.end, self.name = start, end, name
        self.shadow = None
        self._reads = []  # (actor, number, parts) until the first write
        self.noted = 0  # accesses up to this number belong to earlier launches

    def access(self, order, strand, number, write, parts, known, happened, strong=0, change=None):
        """Check and record an access; parts: ("items", offsets, nbytes) or ("rows", starts, nbytes).

        change  (function that gives the old items, new items) of a write by threads
        """
        if self.shadow is None:
            if not write:
                self._reads.append((strand.actor, number, parts))
                if len(self._reads) < _LOG_LIMIT:
                    return
                self._replay(order)
                return
            self._replay(order)
        where = self._parts(parts)
        written = None if change is None else Written(self.shadow, *parts[1:], *change)
        found = touch(order, where, strand, number, write, known, happened, strong, written)
        if found:
            earlier, part, numbers, was_write = found
            offset = self.shadow.offset(part, numbers, earlier)
            place = f"byte {offset} of {self.name}"
            race(order, earlier, was_write, order.accesses[number], happened, place, "global")

    def _parts(self, parts):
        kind, offsets, nbytes = parts
        return getattr(self.shadow, kind)(offsets, nbytes)

    def _replay(self, order):
        self.shadow = ByteShadow(self.end - self.start)
        for actor, number, parts in self._reads:
            actor = int(order.actor_of[number])  # 0 when the cluster has ended
            for shadow, at, _ in self._parts(parts):
                shadow.read(actor, at, number)
        self._reads.clear()

    def written(self):
        """(first byte, bytes) of every range that the launch wrote, as addresses."""
        return [] if self.shadow is None else self._ranges(self.shadow.written(self.noted))

    def read(self):
        """The same for the ranges that it read."""
        if self.shadow is not None:
            return self._ranges(self.shadow.read(self.noted))
        own = [parts for _, number, parts in self._reads if number > self.noted]
        if not own:
            return []
        touched = np.zeros(self.end - self.start, bool)
        for _, offsets, nbytes in own:
            for offset in np.unique(offsets).tolist():
                touched[max(offset, 0) : offset + nbytes] = True
        return self._ranges(touched)

    def _ranges(self, touched):
        edges = np.flatnonzero(np.diff(touched.astype(np.int8), prepend=0, append=0))
        return [(self.start + int(a), int(b - a)) for a, b in edges.reshape(-1, 2)]

    def last_write(self, order, offset, nbytes):
        """The Access that wrote bytes last, None where this launch has not written."""
        if self.shadow is None:
            return None
        parts = self._parts(("items", np.array([offset]), nbytes))
        number = max(int(shadow.writer[at].max()) for shadow, at, *_ in parts)
        return order.accesses[number] if number > self.noted else None

    def end_cluster(self):
        """Reads belong to an earlier cluster from now on."""
        if self.shadow is not None:
            self.shadow.forget_readers()


class GlobalRegions:
    """The registered allocations at the start of a launch, overlapping ones joined."""

    def __init__(self, memory):
        self.regions = []
        for allocation in sorted(memory.allocations, key=lambda a: a.start):
            last = self.regions[-1] if self.regions else None
            if last is not None and allocation.start < last.end:
                last.end = max(last.end, allocation.end)
            else:
                self.regions.append(Region(allocation.start, allocation.end, allocation.name))
        self._starts = [region.start for region in self.regions]

    def note_grid_before(self, order, regions, unwaited=()):
        """Reads and writes of the previous launch, which may still be running: two incomplete accesses.

        Those of `unwaited`, still unknown after a wait, are a third access.
        """
        read = [each for region in regions for each in region.read()]
        written = [each for region in regions for each in region.written()]
        order.reads_before = self._note(order, read, write=False)
        order.grid_before = self._note(order, written, write=True) or order.reads_before
        written = [each for region in unwaited for each in region.written()]
        order.unwaited = self._note(order, written, write=True)
        for region in self.regions:
            region.noted = order.now

    def _note(self, order, ranges, write) -> int:
        """An access of earlier launches; its number, or 0 if there is none."""
        if not ranges:
            return 0
        strand = Strand(0, np.zeros((ROWS, order.capacity), np.int32), _GRID_BEFORE)
        what = "a write to global memory" if write else "a read of global memory"
        number = order.number(0, _GRID_BEFORE, None, what)
        known = np.zeros(order.capacity, np.int32)
        known[0] = number  # launches are in order among themselves
        for start, nbytes in ranges:
            region = self.find(start)
            if region is None:  # freed since
                continue
            parts = ("rows", np.array([start - region.start]), min(nbytes, region.end - start))
            region.access(order, strand, number, write, parts, known, known)
        return number

    def find(self, address):
        """The region of an address, which has passed the bounds check already; None for a later allocation."""
        at = bisect_right(self._starts, address) - 1
        region = self.regions[at] if at >= 0 else None
        return region if region is not None and address < region.end else None

    def last_write(self, order, address, nbytes):
        """The Access that wrote bytes last, None where this launch has not written."""
        region = self.find(address)
        return None if region is None else region.last_write(order, address - region.start, nbytes)

    def split(self, addresses):
        """[(region, index of the addresses in it)]."""
        low, high = int(addresses.min()), int(addresses.max())
        region = self.find(low)
        if region is not None and high < region.end:
            return [(region, slice(None))]
        found = {}
        for i, address in enumerate(addresses.tolist()):
            region = self.find(address)
            if region is not None:
                found.setdefault(id(region), (region, []))[1].append(i)
        return list(found.values())

    def end_cluster(self):
        for region in self.regions:
            region.end_cluster()
