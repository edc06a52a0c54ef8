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
"""

import functools
import re

import numpy as np

from cute_fa4.emulator.checks.clocks import HAPPENED
from cute_fa4.emulator.checks.equal_writes import Written, are_equal
from cute_fa4.emulator.checks.ordering import IN_FLIGHT
from cute_fa4.emulator.checks.reports import report
from cute_fa4.emulator.checks.scopes import GPU, written_scope
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.ptx.errors import ProxyError, RaceError

_INDEX = np.dtype(np.int64)


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
                f"{place}: {access.what} comes after the generic {what} of {who(before.party)}, but no "
                f"fence.proxy.async {missing} the asynchronous proxy; put one between the {what} and the barrier "
                f"(fence.proxy.async.{space})",
                access,
                before,
            )
        )
    error = RaceError(
        report(
            f"race on {place}: nothing orders {access.what} after the access of {who(before.party)}, which {verb} it"
            f"{where}",
            access,
            before,
        )
    )
    error.parties = access.party, before.party
    error.completes = None if "writes" in access.what else order.completes.get(earlier)
    raise error


def who(party):
    """The name of a warp in a sentence."""
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
