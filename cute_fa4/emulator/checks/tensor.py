"""Tensor memory and the tensor core: the order that accesses to the results of an MMA or a tcgen05.st need.

    tcgen05.mma      an access of the warp's tensor-core strand, in the order of issue; visible to others by commit
    tcgen05.ld       "ptx": an access of the warp's load strand, complete at tcgen05.wait::ld; "hardware": immediately
    tcgen05.st       an access of the warp's store strand, complete at tcgen05.wait::st
    between warps    "ptx": tcgen05.fence::before_thread_sync, barrier, ::after_thread_sync; "hardware": barrier

    two products     into one accumulator: in issue order only if kind and shape are the same; otherwise a commit
                     and a wait for it must come between them

Granules are (column, quarter of 32 lanes): what one warp of a warpgroup may access.
PTX ISA, "tcgen05 Memory Consistency Model Considerations"; for products, "Pipelined tcgen05 Instructions", which lists
tcgen05.mma after tcgen05.mma of the same .cta_group "and accumulator and shape". Kinds differ in the K of their shape.
"""

from typing import NamedTuple

import numpy as np

from cute_fa4.emulator.checks import operand_boxes
from cute_fa4.emulator.checks.clocks import ASYNC_SHARED, HAPPENED, SEALED, TENSOR
from cute_fa4.emulator.checks.initialised import check_initialised
from cute_fa4.emulator.checks.memory import race, touch, visible
from cute_fa4.emulator.checks.ordering import IN_FLIGHT
from cute_fa4.emulator.checks.reports import report
from cute_fa4.emulator.checks.shadow import Shadow
from cute_fa4.emulator.machine.matrix_descriptors import K_BYTES, chunk_numbers
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.machine.tensor_memory import COLUMNS, split_address
from cute_fa4.emulator.ptx.errors import RaceError, TensorOrderError

QUARTERS = 4


class TensorShadow(Shadow):
    """The Shadow of one CTA's tensor memory.

    user     the actor of the latest access; turns: number of changes of user
    checked  (actor, first column, columns) -> turns when the actor was last found to be free to write that block
    made     first column of D -> Made: the latest MMA there
    """

    __slots__ = ("checked", "made", "turns", "user")

    def __init__(self):
        super().__init__((COLUMNS, QUARTERS))
        self.user, self.turns, self.checked, self.made = None, 0, {}, {}


class Made(NamedTuple):
    """An MMA into an accumulator: columns of D, the properties that pipelined MMAs must share, its access."""

    columns: int
    kind: tuple
    actor: int
    number: int


def new_shadow():
    """The Shadow of one CTA's tensor memory."""
    return TensorShadow()


def _block(order, tmem, at, strand, number, write, clock):
    """Check one block of tensor memory: at = (columns, quarters), two slices."""
    shadow = tmem.shadow
    if shadow.user != strand.actor:
        shadow.user, shadow.turns = strand.actor, shadow.turns + 1
    # The MMAs of one contraction write the same block; it stays free until another actor accesses it.
    block = (strand.actor, at[0].start, at[0].stop, at[1].start)
    if write and shadow.checked.get(block) == shadow.turns:
        shadow.writer[at] = number
        return
    row = clock[TENSOR].copy() if order.ptx else np.maximum(clock[HAPPENED], clock[SEALED])
    if strand.actor >= len(row):  # snapshot from before the number of actors grew
        row = np.concatenate((row, np.zeros(order.capacity - len(row), np.int32)))
    row[strand.actor] = IN_FLIGHT
    found = touch(order, ((shadow, at, False),), strand, number, write, row, row)
    if found:
        _report(order, tmem, at, found, number, clock)
    if write:
        shadow.checked[block] = shadow.turns


def _report(order, tmem, at, found, number, clock):
    earlier, _, numbers, was_write = found
    columns = np.arange(COLUMNS)[at[0]].ravel()
    column = int(
        columns[int(np.argmax((numbers == earlier).reshape(len(columns), -1).any(axis=1)))]
    )
    name = tmem.labels.tmem_name(column)
    place = f"tensor memory column {column}" + (f" ({name})" if name else "")
    access, before = order.accesses[number], order.accesses[earlier]
    actor = order.actor_of[earlier]
    verb = "wrote" if was_write else "read"
    if order.ptx and actor < clock.shape[1] and earlier <= clock[HAPPENED, actor]:
        raise TensorOrderError(
            report(
                f"{place}: a barrier orders {access.what} after the access that {verb} it, but PTX asks for "
                "tcgen05.fence::before_thread_sync ahead of the barrier (tcgen05.commit has it built in) and "
                "tcgen05.fence::after_thread_sync after it",
                access,
                before,
            )
        )
    hint = {
        "tcgen05.ld": "a barrier, with tcgen05.wait::ld before it",
        "tcgen05.st": "a barrier, with tcgen05.wait::st before it",
    }.get(before.what, "a wait for the mbarrier of a tcgen05.commit after it")
    error = RaceError(
        report(
            f"race on {place}: nothing orders {access.what} after what {verb} it, {before.what}; missing is {hint}",
            access,
            before,
        )
    )
    error.parties = access.party, before.party
    raise error


def load(order, warp, tmem, column, columns, lane):
    """tcgen05.ld of the executing warp: a block of columns in its quarter."""
    strand = warp.order
    reader = order.strand_of(warp, "ld") if order.ptx else strand
    number = order.number(reader.actor, strand.party, warp.ins, "tcgen05.ld")
    if not order.ptx:
        strand.last = number
    strand.clock[HAPPENED, strand.actor] = order.now
    at = (slice(column, column + columns), slice(lane // 32, lane // 32 + 1))
    _block(order, tmem, at, reader, number, False, strand.clock)


def store(order, warp, tmem, column, columns, lane):
    """tcgen05.st is issued; returns the function to call when it completes."""
    strand, writer, ins = warp.order, order.strand_of(warp, "st"), warp.ins
    snapshot = strand.snapshot(order.now)
    at = (slice(column, column + columns), slice(lane // 32, lane // 32 + 1))

    def complete():
        number = order.number(writer.actor, strand.party, ins, "tcgen05.st")
        _block(order, tmem, at, writer, number, True, snapshot)
        order.must_wait(writer, order.accesses[number])

    return complete


def deallocate(order, warp, tmem, column, columns):
    """tcgen05.dealloc: all accesses to the block must be complete; a barrier is enough."""
    strand = warp.order
    number = strand.last = order.number(strand.actor, strand.party, warp.ins, "tcgen05.dealloc")
    happened = strand.known(HAPPENED, number).copy()
    if order.ptx:
        loads = order.strand_of(warp, "ld")
        happened[loads.actor : loads.actor + 1] = IN_FLIGHT
    at = (slice(column, column + columns), slice(0, QUARTERS))
    shadow = tmem.shadow
    found = touch(order, ((shadow, at, False),), strand, number, True, happened, happened)
    if found:
        _report(order, tmem, at, found, number, np.zeros_like(strand.clock))
    # The next allocation starts without a history.
    shadow.checked.clear()
    shadow.made.clear()
    shadow.writer[at] = 0
    for column_of in shadow.readers.values():
        column_of[at] = 0


def multiply(order, warp, product):
    """tcgen05.mma is issued; returns the function to call when it executes, before the data moves."""
    strand, ins = order.strand_of(warp, "mma"), warp.ins
    snapshot = warp.order.snapshot(order.now)

    def execute():
        _learn(order, strand, snapshot)
        _operands(order, strand, ins, product)
        _result(order, strand, ins, product, snapshot)

    return execute


def _learn(order, strand, snapshot):
    """The tensor core is ordered after the warp's clock at issue."""
    if strand.learned is snapshot:
        return
    clock = strand.clock
    if clock.shape[1] < snapshot.shape[1]:
        clock = np.pad(clock, ((0, 0), (0, snapshot.shape[1] - clock.shape[1])))
    np.maximum(clock[:, : snapshot.shape[1]], snapshot, out=clock[:, : snapshot.shape[1]])
    strand.clock, strand.learned = clock, snapshot
    strand.async_known = visible(order, clock, strand.actor, ASYNC_SHARED)


def copy(order, warp, ctas, chunks, column, columns):
    """tcgen05.cp is issued; returns the function to call when it executes: chunks of shared memory -> columns."""

    def reads(strand):
        number = order.number(strand.actor, strand.party, ins, "tcgen05.cp (reads its source)")
        for cta in ctas:
            _reads(order, strand, cta.shared, chunks, number, "source")

    ins = warp.ins
    what = "tcgen05.cp (writes its destination)"
    return _rewrite(order, warp, ctas, column, columns, what, reads)


def shift(order, warp, ctas, column, columns):
    """tcgen05.shift is issued; returns the function to call when it executes: it reads and writes the columns."""
    return _rewrite(order, warp, ctas, column, columns, "tcgen05.shift")


def _rewrite(order, warp, ctas, column, columns, what, before=lambda strand: None):
    strand, ins = order.strand_of(warp, "mma"), warp.ins
    snapshot = warp.order.snapshot(order.now)
    at = (slice(column, column + columns), slice(0, QUARTERS))

    def execute():
        _learn(order, strand, snapshot)
        before(strand)
        number = order.number(strand.actor, strand.party, ins, what)
        for cta in ctas:
            _block(order, cta.tmem, at, strand, number, True, strand.clock)
        order.must_wait(strand, order.accesses[number])

    return execute


def _reads(order, strand, shared, chunks, number, name):
    """The tensor core reads chunks of shared memory."""
    parts = shared.shadow.chunks(chunks)
    happened = strand.clock[HAPPENED]
    found = touch(order, parts, strand, number, False, strand.async_known, happened)
    if found:
        earlier, part, numbers, was_write = found
        at = shared.shadow.offset(part, numbers, earlier)
        place = f"shared offset {shared.describe(at)} ({name})"
        access = order.accesses[number]
        race(order, earlier, was_write, access, happened, place, "shared::cta")


def _operands(order, strand, ins, product):
    shape, pair = product.descriptor, len(product.ctas)
    operands = [("B", product.b, shape.b, shape.b_mn_major, shape.n // pair, product.b_k_bytes)]
    if not product.a_in_tensor_memory:
        operands.append(("A", product.a, shape.a, shape.a_mn_major, shape.m // pair, K_BYTES))
    number = order.number(strand.actor, strand.party, ins, shape.accesses[0])
    for name, bits, element, mn_major, rows, k_bytes in operands:
        chunks, end = chunk_numbers(bits, mn_major, element.itemsize, rows, k_bytes)
        for cta in product.ctas:
            shared = cta.shared
            if end > shared.bytes.size:
                continue  # read_shared_operand refuses it
            _reads(order, strand, shared, chunks, number, f"operand {name}")
            access, operand = order.accesses[number], (name, bits, element)
            operand_boxes.compare(order, shared, access, operand, chunks)
    for _, address, columns in product.tensor_blocks:
        column = split_address(address)[1]
        at = (slice(column, column + columns), slice(0, QUARTERS))
        for cta in product.ctas:
            _block(order, cta.tmem, at, strand, number, False, strand.clock)
    if product.a_in_tensor_memory:
        column = split_address(product.a)[1]
        at = (slice(column, column + 8), slice(0, QUARTERS))  # 32 bytes of K
        for cta in product.ctas:
            _block(order, cta.tmem, at, strand, number, False, strand.clock)


def _result(order, strand, ins, product, issued):
    """issued: the clock of the warp when it issued the MMA."""
    column, shape = split_address(product.d)[1], product.descriptor
    at = (slice(column, column + product._d_columns), slice(0, QUARTERS))
    number = order.number(strand.actor, strand.party, ins, shape.accesses[1])
    kind = shape.cta_group, shape.kind, shape.m, shape.n, shape.k
    made = Made(product._d_columns, kind, strand.actor, number)
    for cta in product.ctas:
        _pipelined(order, cta.tmem, column, made, issued)
        _block(order, cta.tmem, at, strand, number, True, strand.clock)
    order.must_wait(strand, order.accesses[number])


def _pipelined(order, tmem, column, made, issued):
    """Refuse an MMA whose accumulator an MMA of another kind, shape or place may still be writing."""
    latest, known = tmem.shadow.made, issued[TENSOR if order.ptx else HAPPENED]
    for first, before in list(latest.items()):
        apart = first >= column + made.columns or column >= first + before.columns
        if apart or (first == column and before.kind == made.kind) or before.actor != made.actor:
            continue
        if before.actor >= len(known) or before.number > known[before.actor]:
            _refuse_unpipelined(order, tmem, column, before, made)
        if first != column:
            del latest[first]  # complete and overwritten
    latest[column] = made


def _refuse_unpipelined(order, tmem, column, before, made):
    name = tmem.labels.tmem_name(column)
    place = f"tensor memory column {column}" + (f" ({name})" if name else "")
    kinds = " and ".join(
        f"kind::{kind} {m}x{n}x{k}" for _, kind, m, n, k in (before.kind, made.kind)
    )
    text = report(
        f"{place}: two products, {kinds}, into one accumulator, and the first may not have completed: PTX orders "
        "products of one kind and shape only; missing is a wait for a tcgen05.commit between them",
        order.accesses[made.number],
        order.accesses[before.number],
    )
    if order.ptx:
        raise TensorOrderError(text)
    note = Note.of("mixed_products", text)
    note.key = (
        "mixed_products",
        id(order.accesses[before.number].ins),
        id(order.accesses[made.number].ins),
    )
    if note.key not in order.noted:
        order.noted.add(note.key)
        order.notes.append(note)


def committed(order, warp):
    """tcgen05.commit is issued; returns the function to call, with each mbarrier, when it passes the queue."""
    strand, snapshot = order.strand_of(warp, "mma"), warp.order.snapshot(order.now)
    issuer = warp.issuer()

    def fault(message, kind):
        raise kind(f"{message}\n{issuer.where()}")

    def signal(barrier):
        order.commit(strand)
        check_initialised(order, barrier, strand, snapshot, fault, is_async=True)
        order.release(barrier, strand.clock)

    return signal
