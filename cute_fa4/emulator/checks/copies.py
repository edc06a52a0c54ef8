"""Copies in flight: their accesses of shared and global memory, checked at completion."""

import numpy as np

from cute_fa4.emulator.checks.clocks import ASYNC_GLOBAL, ASYNC_SHARED, HAPPENED
from cute_fa4.emulator.checks.initialised import check_initialised
from cute_fa4.emulator.checks.memory import race, touch, visible
from cute_fa4.emulator.checks.ordering import IN_FLIGHT
from cute_fa4.emulator.checks.reports import Access
from cute_fa4.emulator.checks.scopes import GPU

_ASYNC = (ASYNC_SHARED, ASYNC_GLOBAL)


class CopyChecks:
    """A copy in flight: it has the clock of its warp at issue; its accesses happen at completion.

    is_async  through the asynchronous proxy (bulk copies), else generic (cp.async, st.async)
    """

    __slots__ = (
        "ins",
        "is_async",
        "label",
        "order",
        "read_number",
        "strand",
        "tensor_map",
        "written_number",
    )

    def __init__(self, order, warp, label, is_async=True):
        self.order, self.label, self.ins, self.is_async = order, label, warp.ins, is_async
        self.strand = order.launch(warp, is_async)
        self.read_number = self.written_number = 0
        self.tensor_map = None

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

    def writes_global(self, address, nbytes, atomic=False, adds_floats=False):
        """The copy writes a range of global memory. atomic, adds_floats: of `_strength`."""
        strong = self._strength(atomic, adds_floats)
        self._global(np.array([address], np.int64), nbytes, True, strong)

    def _strength(self, atomic, adds_floats):
        """atomic: the copy combines, so it may meet others; adds_floats: and their order changes the sum."""
        return 1 + GPU if atomic and not (adds_floats and self.order.orders_additions) else 0

    def box(self, tensor_map, boxes, write, atomic=False, adds_floats=False):
        """The copy reads or writes boxes of a tensor. atomic, adds_floats: of `_strength`."""
        strong = self._strength(atomic, adds_floats)
        self.tensor_map = tensor_map
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
            self._global(starts, nbytes, write, strong)

    def signals(self, barrier):
        """The copy is complete and signals an mbarrier."""
        strand = self.strand
        check_initialised(
            self.order, barrier, strand, strand.clock, self._fault, is_async=self.is_async
        )
        self.order.release(barrier, strand.clock)
        self.order.completes[self.written_number] = barrier, barrier.phase, self.tensor_map

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
