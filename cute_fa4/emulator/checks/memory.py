"""Every access of shared, tensor and global memory, checked against the accesses before it.

    access                      must come after                              known by
    generic read                the last write                               HAPPENED
    generic write               the last write and all reads since           HAPPENED
    copy, tensor core: read     the last write; if that was generic,         ASYNC_SHARED, ASYNC_GLOBAL
                                with fence.proxy.async in between
    copy, tensor core: write    the same, and all reads since
    response of try_cancel      the same; "ptx": fence.proxy.async after
                                generic reads, too
    tensor memory ("ptx")       as generic, with tcgen05.fence around        TENSOR
                                every barrier in between

Global memory that a launch has not written only keeps a list of its reads; the first write processes the list.
"""

import functools
import re
from bisect import bisect_right

import numpy as np

from cute_fa4.emulator.checks.clocks import ASYNC_GLOBAL, ASYNC_SHARED, HAPPENED, ROWS, Strand
from cute_fa4.emulator.checks.equal_writes import Written, are_equal
from cute_fa4.emulator.checks.ordering import IN_FLIGHT
from cute_fa4.emulator.checks.reports import Access, Party, report
from cute_fa4.emulator.checks.scopes import GPU, written_scope
from cute_fa4.emulator.checks.shadow import ByteShadow
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.ptx.errors import ProxyError, RaceError

_INDEX = np.dtype(np.int64)
_LOG_LIMIT = 100_000
_ASYNC = (ASYNC_SHARED, ASYNC_GLOBAL)
_GRID_BEFORE = Party("of the launch before", 0, 1, "any", "the grid before")


@functools.cache
def _strength(opcode):
    """(strong, acquires, releases) of a load, store or atomic, from its qualifiers; strong: 0, or 1 + its scope."""
    words = re.split(r"\.|::", opcode)
    words = words[words[0] == "multimem" :]
    atomic = words[0] in ("atom", "red")
    strong = atomic or any(
        w in ("volatile", "relaxed", "acquire", "release", "mmio", "acq_rel") for w in words
    )
    # PTX ISA: an atom or red without a scope has .gpu, a volatile access .sys.
    scope = written_scope(opcode)
    return (
        (1 + (GPU if scope is None else scope)) if strong else 0,
        "acquire" in words or "acq_rel" in words,
        "release" in words or "acq_rel" in words,
    )


# --- the check ------------------------------------------------------------------------------------------


def touch(order, parts, strand, number, write, known, happened, strong=0, written=None):
    """Check an access of granules and record it. Returns None, or (earlier number, part, its numbers, was a write).

    known     ordered numbers of writers, by actor; own accesses included
    happened  the same for readers
    written   equal_writes.Written of a write by threads
    """
    for part in parts:
        shadow, at = part[0], part[1]
        if not (write and shadow.equal) and _touch_in_c(
            order, shadow, at, strand, number, write, known, happened
        ):
            continue
        if write:
            # Readers first: an access not ordered after them is often not ordered after the previous write, either.
            actors = len(happened)
            for actor, column in shadow.readers.items():
                before = happened[actor] if actor < actors else 0
                if actor == strand.actor or shadow.latest[actor] <= before:
                    continue
                numbers = column[at]
                latest = int(numbers.max()) if numbers.size else 0
                if latest > before:
                    if not order.may_meet(latest, strong, strand.party):
                        return latest, part, numbers, False
        writers = (shadow.writer,)
        if write and shadow.equal:
            writers += tuple(shadow.equal.values())
        for column in writers:
            numbers = column[at]
            earlier = order.unordered(numbers, known, strong, strand.party)
            if earlier and not (
                written is not None
                and are_equal(order, part, numbers, strand, number, known, strong, written)
            ):
                return earlier, part, numbers, True
        if write:
            shadow.writer[at] = number
        else:
            shadow.read(strand.actor, at, number)
    return None


def _touch_in_c(order, shadow, at, strand, number, write, known, happened):
    """touch for one part by fast_paths.c: True if there is nothing to report; the access is then recorded."""
    me = (
        write, strand.actor, known, len(known), happened, len(happened), order.actor_of, number,
    )  # fmt: skip
    if type(at) is slice:
        return fast.touch_block(shadow.in_c, at.start, 1, 0, at.stop - at.start, *me)
    if type(at) is tuple:
        (columns, quarters), stride = at, shadow.writer.shape[1]
        first, rows = columns.start * stride + quarters.start, columns.stop - columns.start
        return fast.touch_block(
            shadow.in_c, first, rows, stride, quarters.stop - quarters.start, *me
        )
    return at.dtype is _INDEX and fast.touch_index(shadow.in_c, at, at.size, *me)


def visible(order, clock, actor, row):
    """By actor: the number up to which its writes are visible to a copy or the tensor core."""
    size = clock.shape[1]
    known = np.where(order.is_async[:size], clock[HAPPENED], clock[row])
    known[actor] = IN_FLIGHT
    return known


def race(order, earlier, was_write, access, happened, place, space):
    """Raise the error for an access that an earlier one is not ordered before."""
    before = order.accesses[earlier]
    actor = order.actor_of[earlier]
    verb = "wrote" if was_write else "read"
    apart = before.party.distance(access.party) == GPU
    where = " in another cluster" if actor == 0 or apart else ""
    if earlier in (order.reads_before, order.grid_before):
        where = "; it may still run: griddepcontrol.wait must come first"
    elif earlier == order.unwaited and actor == 0:
        where = (
            "; it may still run: nobody executed griddepcontrol.wait in a dependent launch after it, so that whoever "
            "waits for that launch does not wait for this one"
        )
    if actor < len(happened) and earlier <= happened[actor]:
        what, missing = (
            ("write", "makes that visible to") if was_write else ("read", "orders that before")
        )
        raise ProxyError(
            report(
                f"{place}: {access.what} comes after the generic {what} of {_who(before)}, but no fence.proxy.async "
                f"{missing} the asynchronous proxy; put one between the {what} and the barrier "
                f"(fence.proxy.async.{space})",
                access,
                before,
            )
        )
    raise RaceError(
        report(
            f"race on {place}: nothing orders {access.what} after the access of {_who(before)}, which {verb} it{where}",
            access,
            before,
        )
    )


def _who(access):
    party = access.party
    name = party.role or f"warp {party.warp}"
    return f"{name} of CTA rank {party.rank}" if party.cluster_size > 1 else name


# --- threads -----------------------------------------------------------------------------------------------


def shared_items(order, warp, shared, offsets, nbytes, values=None):
    """The executing lanes read one item of nbytes each, or will write values: offsets int64 array.

    values  may be a function that returns them
    """
    strand, ins, write = warp.order, warp.ins, values is not None
    strong, acquires, releases = _strength(ins.opcode)
    if order.lanes is not None and not strong:
        order.lanes_of(warp).access(warp, shared, offsets, nbytes, write, order.now + 1)
    what = "a write to shared memory" if write else "a read of shared memory"
    number = strand.last = order.number(strand.actor, strand.party, ins, what, strong)
    happened = strand.known(HAPPENED, number)
    if not strong and shared.shadow.touch_items(
        order, strand, offsets, nbytes, number, write, happened
    ):
        return
    parts = shared.shadow.items(offsets, nbytes)
    written = None
    if write:
        values = values() if callable(values) else values
        written = Written(
            shared.shadow, offsets, nbytes, functools.partial(shared.peek, offsets, nbytes), values
        )
    found = touch(order, parts, strand, number, write, happened, happened, strong, written)
    if found:
        earlier, part, numbers, was_write = found
        place = f"shared offset {shared.describe(shared.shadow.offset(part, numbers, earlier))}"
        race(order, earlier, was_write, order.accesses[number], happened, place, "shared::cta")
    if strong:
        for offset in np.unique(offsets).tolist():
            order.strong_access(warp, (shared, offset), releases, acquires, write, strong - 1)


def shared_span(order, warp, shared, offset, nbytes, what):
    """The warp writes a range itself (mbarrier.init, tcgen05.alloc)."""
    strand = warp.order
    number = strand.last = order.number(strand.actor, strand.party, warp.ins, what)
    happened = strand.known(HAPPENED, number)
    parts = shared.shadow.span(offset, nbytes)
    found = touch(order, parts, strand, number, True, happened, happened)
    if found:
        earlier, part, numbers, was_write = found
        place = f"shared offset {shared.describe(shared.shadow.offset(part, numbers, earlier))}"
        race(order, earlier, was_write, order.accesses[number], happened, place, "shared::cta")


def global_items(order, warp, addresses, nbytes, values=None):
    """The executing lanes read one item of nbytes each at global addresses, or will write values."""
    strand, ins, write = warp.order, warp.ins, values is not None
    strong, acquires, releases = _strength(ins.opcode)
    what = "a write to global memory" if write else "a read of global memory"
    number = strand.last = order.number(strand.actor, strand.party, ins, what, strong)
    happened = strand.known(HAPPENED, number)
    for region, chosen in order.global_regions.split(addresses):
        offsets = addresses[chosen].astype(np.int64) - region.start
        change = None
        if write:
            memory = warp.cta.machine.memory
            change = (functools.partial(memory.gather, addresses[chosen], nbytes), values[chosen])
        region.access(
            order, strand, number, write, ("items", offsets, nbytes), happened, happened, strong,
            change,
        )  # fmt: skip
    if strong:
        for address in np.unique(addresses).tolist():
            order.strong_access(warp, ("global", address), releases, acquires, write, strong - 1)


# --- global memory -----------------------------------------------------------------------------------------


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


# --- copies ------------------------------------------------------------------------------------------------


class CopyChecks:
    """A copy in flight: it has the clock of its warp at issue; its accesses happen at completion.

    is_async  through the asynchronous proxy (bulk copies), else generic (cp.async, st.async)
    """

    __slots__ = ("ins", "is_async", "label", "order", "read_number", "strand", "written_number")

    def __init__(self, order, warp, label, is_async=True):
        self.order, self.label, self.ins, self.is_async = order, label, warp.ins, is_async
        self.strand = order.launch(warp, is_async)
        self.read_number = self.written_number = 0

    def reads_shared(self, shared, offset, nbytes, awaited=True, store=False):
        """The copy reads a range of shared memory; store: a copy to global memory."""
        self.read_number = self._shared(shared, offset, nbytes, False, "reads its source")
        self.order.landed(self.strand, self._awaited(awaited), store)

    def writes_shared(
        self, shared, offset, nbytes, awaited=True, after_fenced_reads=False, atomic=False
    ):
        """The copy writes a range of shared memory; atomic: it combines (reductions may meet).

        after_fenced_reads  at level "ptx", fence.proxy.async must follow the earlier generic reads
        """
        fenced = after_fenced_reads and self.order.ptx
        doing = "writes its destination"
        strong = 1 + GPU if atomic else 0
        self.written_number = self._shared(shared, offset, nbytes, True, doing, fenced, strong)
        self.order.landed(self.strand, self._awaited(awaited))

    def reads_global(self, address, nbytes):
        """The copy reads a range of global memory."""
        self._global(np.array([address], np.int64), nbytes, False)

    def writes_global(self, address, nbytes, atomic=False):
        """The copy writes a range of global memory; atomic: it combines (reductions may meet)."""
        self._global(np.array([address], np.int64), nbytes, True, 1 + GPU if atomic else 0)

    def box(self, tensor_map, boxes, write, atomic=False):
        """The copy reads or writes boxes of a tensor; atomic: it combines (reductions may meet)."""
        for coordinates, box, _ in boxes:
            clipped = tensor_map.clip(coordinates, box)
            if clipped is None:
                continue
            _, address, extents, strides = clipped
            starts = np.array([address], np.int64)
            for extent, stride in zip(extents[:-1], strides[:-1], strict=True):
                starts = (starts[:, None] + np.arange(extent) * stride).ravel()
            if strides[-1] != tensor_map.itemsize:
                starts = (starts[:, None] + np.arange(extents[-1]) * strides[-1]).ravel()
                nbytes = tensor_map.itemsize
            else:
                nbytes = extents[-1] * tensor_map.itemsize
            self._global(starts, nbytes, write, 1 + GPU if atomic else 0)

    def signals(self, barrier):
        """The copy is complete and signals an mbarrier."""
        strand = self.strand
        self.order.check_initialised(
            barrier, strand.actor, strand.clock, self.is_async, self._fault
        )
        self.order.release(barrier, strand.clock)

    def waited_by(self, warp, only_read):
        """The warp has waited for the copy's bulk group: its source is read, or the copy is complete."""
        number = self.read_number if only_read else max(self.read_number, self.written_number)
        self.order.learn_number(warp, self.strand.actor, number, (HAPPENED, *_ASYNC))

    def _awaited(self, awaited):
        return self.order.accesses[self.order.now] if awaited else None

    def _access(self, doing, strong=0):
        strand, what = self.strand, f"the {self.label} ({doing})"
        return self.order.number(strand.actor, strand.party, self.ins, what, strong)

    def _known(self, row):
        if self.is_async:
            return visible(self.order, self.strand.clock, self.strand.actor, row)
        known = self.strand.clock[HAPPENED].copy()
        known[self.strand.actor] = IN_FLIGHT
        return known

    def _shared(self, shared, offset, nbytes, write, doing, fenced_reads=False, strong=0):
        order, strand = self.order, self.strand
        number = self._access(doing, strong)
        happened = strand.clock[HAPPENED]
        known = self._known(ASYNC_SHARED)
        parts = shared.shadow.span(offset, nbytes)
        readers = known if fenced_reads else happened
        found = touch(order, parts, strand, number, write, known, readers, strong)
        if found:
            earlier, part, numbers, was_write = found
            at = shared.shadow.offset(part, numbers, earlier)
            place = f"shared offset {shared.describe(at)}"
            race(order, earlier, was_write, order.accesses[number], happened, place, "shared::cta")
        return number

    def _global(self, starts, nbytes, write, strong=0):
        order, strand = self.order, self.strand
        number = self._access("writes global memory" if write else "reads global memory", strong)
        region = order.global_regions.find(int(starts[0]))
        if region is not None:
            happened = strand.clock[HAPPENED]
            known = self._known(ASYNC_GLOBAL)
            parts = ("rows", starts - region.start, nbytes)
            region.access(order, strand, number, write, parts, known, happened, strong)
        if write:
            self.written_number = number
        order.landed(strand)

    def _fault(self, message, kind):
        raise kind(f"{message}\n{Access(self.strand.party, self.ins, self.label).where('    ')}")


class NoChecks:
    """Replaces CopyChecks in a launch without ordering checks."""

    def _nothing(self, *_, **__):
        """No check."""

    reads_shared = writes_shared = reads_global = writes_global = box = signals = waited_by = (
        _nothing
    )


_NONE = NoChecks()


def copy_checks(warp, label, is_async=True):
    """CopyChecks of a copy that the warp issues now, or NoChecks."""
    order = warp.cta.machine.ordering
    return _NONE if order is None else CopyChecks(order, warp, label, is_async)
