"""Bulk copies: TMA tensor copies and plain ones, and the groups and barriers that track them.

                                 completes by                          reads and writes
    cp.async.bulk.tensor load    complete_tx(bytes of the whole box)   at completion
    cp.async.bulk.tensor store   bulk group                            reads at its first, writes at its second step
    cp.async.bulk load           complete_tx(bytes)                    at completion
    cp.async.bulk store          bulk group                            in two steps

    thread:  store  store  commit_group | store  commit_group | wait_group 1     waits for the first group
             \\_____ group 1 _________/   \\____ group 2 ____/  wait_group.read 0  waits until both were read

A clipped load still counts the bytes of the whole box. Cache hints and L2 prefetches have no effect; their
operands are checked. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

from collections import defaultdict

import numpy as np

from cute_fa4.emulator.checks import tensor_maps
from cute_fa4.emulator.checks.memory import copy_checks
from cute_fa4.emulator.errors import IllegalAccess, TensorMapError, UnknownInstruction
from cute_fa4.emulator.instruction_table import instruction, refuse
from cute_fa4.emulator.machine.tensor_map import TENSOR_MAP_BYTES, decode_tensor_map
from cute_fa4.emulator.machine.warp import FULL, SHARED_BASE, Wait

# PTX ISA, "Tensors: shared memory": boxes are aligned to 128 bytes; mbarrier objects to 8.
TENSOR_SHARED_ALIGNMENT = 128
BULK_ALIGNMENT = 16
MBARRIER_ALIGNMENT = 8

HINTS = r"(?:\.L2::cache_hint)?"
LOAD_MODIFIERS = r"((?:\.multicast::cluster|\.cta_group::[12]|\.L2::cache_hint)*)"

refuse(
    r"cp\.async\.bulk\..*ignore_oob.*", "bytes left out of a copy have no meaning in the emulator"
)
refuse(
    r"cp\.async\.bulk\..*im2col::w.*",
    "its tensor maps, which only the driver makes, are not known to the emulator",
)


# --- tensor maps and coordinates --------------------------------------------------------------------


def tensor_map_at(warp, address):
    """TensorMap at a generic address, in parameters or global memory. Raises TensorMapError."""
    if address % 64:
        warp.fault(
            f"tensor map at address 0x{address:x}; accepted: multiples of 64", TensorMapError
        )
    space, *place = warp.cta.machine.resolve_generic(address)
    memory = {"param": warp.cta.machine.params, "global": warp.cta.machine.memory}.get(space)
    if memory is None:
        warp.fault(f"tensor map in {space} memory; accepted: parameters, global", TensorMapError)
    if space == "global" and warp.cta.machine.tensor_maps:
        tensor_maps.check(warp, *place)
    return decode_tensor_map(memory.read(*place, TENSOR_MAP_BYTES).tobytes())


def _tensor_operand(warp, operand, lane, rank):
    """(TensorMap, signed coordinates) of an operand [map, {c0, c1}] in one lane."""
    tensor_map = tensor_map_at(warp, int(warp.address(operand)[lane]))
    coordinates = tuple(int(warp.read32(c).view(np.int32)[lane]) for c in operand.coords)
    if tensor_map.per_byte != 1:
        first, *rest = coordinates
        if first % tensor_map.per_byte:
            warp.fault(f"coordinate {first} of packed elements; accepted: even", TensorMapError)
        coordinates = (first // tensor_map.per_byte, *rest)
    if tensor_map.rank != rank:
        warp.fault(
            f"a {rank}d copy with the tensor map of a {tensor_map} of rank {tensor_map.rank}",
            TensorMapError,
        )
    return tensor_map, coordinates


def _check_rank(warp, coordinates, needed):
    if len(coordinates) != needed:
        warp.fault(f"{len(coordinates)} coordinates; the copy needs {needed}", UnknownInstruction)


def _boxes(warp, tensor_map, coordinates, mode, offsets=None):
    """[(coordinates, dense box, byte offset in shared memory)] of one copy: one box, four rows, or pixels.

    offsets  of the filter in an im2col load, for W, H, D

    tile::gather4 and scatter4 take {column, row0, row1, row2, row3} of a 2d tensor. Rows that do not exist are zeros
    for a gather and dropped by a scatter, and count as bytes. The instruction is illegal where the column is no
    multiple of 16 bytes, and a scatter where a coordinate is negative (Triton's tutorial "Native TMA Gather and
    Scatter", written for Blackwell GPUs).
    """
    if bool(tensor_map.im2col) != mode.startswith(".im2col"):
        kinds = ("a tiled", "an im2col")
        warp.fault(
            f"{warp.ins.opcode} with the tensor map of {kinds[bool(tensor_map.im2col)]} {tensor_map}; accepted: maps "
            "of the mode of the copy",
            TensorMapError,
        )
    if tensor_map.im2col:
        _check_rank(warp, coordinates, tensor_map.rank)
        offsets = offsets or (0,) * (tensor_map.rank - 2)
        places = tensor_map.im2col.places(tensor_map, coordinates, offsets)
        row_bytes = tensor_map.box_bytes
        boxes = [(place, None, i * row_bytes) for i, place in enumerate(places)]
        return boxes, len(places) * row_bytes
    if "4" not in mode:
        _check_rank(warp, coordinates, tensor_map.rank)
        return [(coordinates, None, 0)], tensor_map.box_bytes
    _check_rank(warp, coordinates, 5)
    if tensor_map.rank != 2 or tensor_map.box[1] != 1:
        warp.fault(
            f"{mode} needs a 2d tensor and a box of one row, not a {tensor_map}", TensorMapError
        )
    column, *rows = coordinates
    if column * tensor_map.itemsize % BULK_ALIGNMENT:
        warp.fault(
            f"{mode} at column {column} of a {tensor_map}, {column * tensor_map.itemsize} bytes; accepted: "
            f"multiples of {BULK_ALIGNMENT} bytes",
            TensorMapError,
        )
    if "scatter4" in mode and min(coordinates) < 0:
        warp.fault(
            f"{mode} to {coordinates} of a {tensor_map}; accepted: no negative coordinate",
            TensorMapError,
        )
    row_bytes = tensor_map.box_bytes
    boxes = [((column, row), None, i * row_bytes) for i, row in enumerate(rows)]
    return boxes, 4 * row_bytes


def _im2col_offsets(warp, operand, tensor_map, lane):
    """Offsets of the filter, for W, H, D. Faults where one does not fit: 16, 8 or 5 bits for rank 3, 4, 5."""
    offsets = [int(warp.read32(item)[lane]) & 0xFFFF for item in operand.items]
    if len(offsets) != tensor_map.rank - 2:
        warp.fault(
            f"{len(offsets)} im2col offsets; the copy needs {tensor_map.rank - 2}",
            UnknownInstruction,
        )
    most = (1 << 16 // len(offsets)) - 1
    if max(offsets) > most:
        warp.fault(
            f"im2col offset {max(offsets)} of a {tensor_map}; accepted: 0 to {most}", TensorMapError
        )
    return offsets


def _aligned(warp, value, alignment, what):
    if value % alignment:
        warp.fault(f"{what} 0x{value:x} is not aligned to {alignment} bytes", IllegalAccess)


def resolve_shared(warp, operand, lane, space, what, alignment, generic=False):
    """(CTA, offset) of a shared address; with space "cta" it must be the executing CTA's own.

    generic  the opcode names no state space: the address is generic and must lie in shared memory
    """
    address = int(warp.address(operand)[lane])
    if generic:
        if not SHARED_BASE <= address <= SHARED_BASE + FULL:
            warp.fault(
                f"{what}: generic address 0x{address:x} is not in shared memory", IllegalAccess
            )
        address -= SHARED_BASE
    cta, offset = warp.cta.cluster.resolve(address)
    if space == "cta" and cta is not warp.cta:
        warp.fault(f"{what} is a .shared::cta address of CTA rank {cta.rank}", IllegalAccess)
    _aligned(warp, offset, alignment, f"{what}: shared offset")
    return cta, offset


def global_address(warp, operand, lane, alignment, what):
    address = int(warp.address(operand)[lane])
    space, *place = warp.cta.machine.resolve_generic(address)
    if space != "global":
        warp.fault(f"{what}: address 0x{address:x} lies in {space} memory", IllegalAccess)
    _aligned(warp, place[0], alignment, f"{what}: global address")
    return place[0]


def bulk_size(warp, operand, lane):
    size = int(warp.read32(operand)[lane])
    if size == 0 or size % BULK_ALIGNMENT:
        warp.fault(f"bulk copy of {size} bytes; accepted: multiples of 16, not 0", IllegalAccess)
    return size


def _targets(warp, modifiers, cta, barrier_cta, mask):
    """[(destination CTA, CTA of its mbarrier)] of a load.

    The mbarrier is in the destination's CTA; with .cta_group::2 it may be in the other CTA of the pair, and a
    multicast then signals the CTA of each pair that has the parity of the given one.
    """
    ctas = warp.cta.cluster.ctas
    pair = ".cta_group::2" in modifiers
    same = cta.rank >> 1 == barrier_cta.rank >> 1 if pair else cta is barrier_cta
    if mask is None:
        if not same:
            near = "of its CTA or of the other CTA of its pair" if pair else "of its CTA"
            warp.fault(
                f"load into CTA rank {cta.rank} that signals an mbarrier of rank {barrier_cta.rank}; "
                f"accepted: one {near}",
                IllegalAccess,
            )
        return [(cta, barrier_cta)]
    if not mask or mask >> len(ctas):
        warp.fault(
            f"multicast to the CTA mask 0x{mask:04x} in a cluster of {len(ctas)}; accepted: a non-empty "
            f"subset of 0x{(1 << len(ctas)) - 1:04x}",
            IllegalAccess,
        )
    ranks = [rank for rank in range(len(ctas)) if mask >> rank & 1]
    return [(ctas[r], ctas[r & ~1 | barrier_cta.rank & 1] if pair else ctas[r]) for r in ranks]


def _optional(warp, ins, first, modifiers, lane):
    """ctaMask of the operands from ``first`` on, or None; checks that their number fits the modifiers."""
    multicast, hint = ".multicast::cluster" in modifiers, ".L2::cache_hint" in modifiers
    if len(ins.operands) != first + multicast + hint:
        warp.fault(
            f"{len(ins.operands)} operands; {ins.opcode} takes {first + multicast + hint}",
            UnknownInstruction,
        )
    return int(warp.read32(ins.operands[first])[lane]) & 0xFFFF if multicast else None


def submit_load(
    warp, targets, offset, barrier_offset, nbytes, produce, label, after_fenced_reads=False
):
    """Put a load in flight: at completion, produce(checks) -> bytes go to every target, then its barrier is told.

    targets  [(destination CTA, CTA of its mbarrier)]     after_fenced_reads  see CopyChecks.writes_shared
    """
    issuer, checks = warp.issuer(), copy_checks(warp, label)
    own = any(warp.cta in target for target in targets)

    def complete():
        data = produce(checks)
        for cta, barrier_cta in targets:
            for target in (cta, barrier_cta):
                if target.finished:
                    raise IllegalAccess(f"{label} for CTA {target.id}, which has ended")
            cta.shared.write(offset, data)
            checks.writes_shared(cta.shared, offset, len(data), own, after_fenced_reads)
            barrier = barrier_cta.mbarrier(barrier_offset)
            checks.signals(barrier)
            barrier.complete_tx(nbytes, issuer)

    warp.cta.machine.engine.submit(complete, label, issuer, outlives_cta=not own)


# --- loads ---------------------------------------------------------------------------------------------


@instruction(
    pattern=r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(cta|cluster)\.global(\.tile(?:::gather4)?|\.im2col)?"
    r"\.mbarrier::complete_tx::bytes" + LOAD_MODIFIERS
)
def tensor_load(warp, ins, match):
    """[dst], [map, {coordinates}], [mbarrier]{, {offsets}}{, ctaMask}{, cache policy}: a box -> shared memory."""
    rank, space, mode, modifiers = (
        int(match.group(1)),
        match.group(2),
        match.group(3) or "",
        match.group(4),
    )
    machine = warp.cta.machine
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, space, "TMA destination", TENSOR_SHARED_ALIGNMENT
        )
        tensor_map, coordinates = _tensor_operand(warp, ins.operands[1], lane, rank)
        has_offsets = mode == ".im2col"
        offsets = _im2col_offsets(warp, ins.operands[3], tensor_map, lane) if has_offsets else None
        boxes, nbytes = _boxes(warp, tensor_map, coordinates, mode, offsets)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[2], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        mask = _optional(warp, ins, 3 + has_offsets, modifiers, lane)
        targets = _targets(warp, modifiers, cta, barrier_cta, mask)

        def produce(checks, tensor_map=tensor_map, boxes=boxes, offset=offset):
            checks.box(tensor_map, boxes, write=False)
            parts = [tensor_map.load(machine.memory, c, offset + at, box=b) for c, b, at in boxes]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        label = f"TMA load of {nbytes} bytes at {coordinates}"
        submit_load(warp, targets, offset, barrier_offset, nbytes, produce, label)


@instruction(
    pattern=r"cp\.async\.bulk\.shared::(cta|cluster)\.global\.mbarrier::complete_tx::bytes"
    + LOAD_MODIFIERS
)
def bulk_load(warp, ins, match):
    """[dst], [src], size, [mbarrier]{, ctaMask}{, cache policy}: bytes of global memory -> shared memory."""
    space, modifiers = match.group(1), match.group(2)
    machine = warp.cta.machine
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, space, "bulk copy destination", BULK_ALIGNMENT
        )
        source = global_address(warp, ins.operands[1], lane, BULK_ALIGNMENT, "bulk copy source")
        size = bulk_size(warp, ins.operands[2], lane)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[3], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        targets = _targets(
            warp, modifiers, cta, barrier_cta, _optional(warp, ins, 4, modifiers, lane)
        )

        def produce(checks, source=source, size=size):
            checks.reads_global(source, size)
            return machine.memory.read(source, size)

        label = f"bulk load of {size} bytes"
        submit_load(warp, targets, offset, barrier_offset, size, produce, label)


@instruction("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
def bulk_copy_to_cluster(warp, ins):
    """[dst], [src], size, [mbarrier]: own shared memory -> shared memory of a CTA of the cluster."""
    own = warp.cta
    for lane in warp.lanes:
        cta, offset = resolve_shared(
            warp, ins.operands[0], lane, "cluster", "bulk copy destination", BULK_ALIGNMENT
        )
        _, source = resolve_shared(
            warp, ins.operands[1], lane, "cta", "bulk copy source", BULK_ALIGNMENT
        )
        size = bulk_size(warp, ins.operands[2], lane)
        barrier_cta, barrier_offset = resolve_shared(
            warp, ins.operands[3], lane, "cluster", "mbarrier", MBARRIER_ALIGNMENT
        )
        targets = _targets(warp, "", cta, barrier_cta, None)

        def produce(checks, source=source, size=size):
            checks.reads_shared(own.shared, source, size)
            return own.shared.read(source, size)

        label = f"bulk copy of {size} bytes to CTA rank {cta.rank}"
        submit_load(warp, targets, offset, barrier_offset, size, produce, label)


# --- groups -----------------------------------------------------------------------------------------------


class Copy:
    """A copy in flight: was its source read, was its destination written; checks: CopyChecks or NoChecks."""

    __slots__ = ("checks", "read", "when_written", "written")

    def __init__(self, checks):
        self.checks = checks
        self.read = self.written = False
        self.when_written = []

    def finish(self):
        self.read = self.written = True
        for action in self.when_written:
            action()


class CopyGroups:
    """Copies of one thread: those of the open group, and the committed groups, oldest first.

    history  the committed groups that no wait has covered yet, whether they have finished or not
    known    how many of them a wait for their sources has covered
    """

    __slots__ = ("committed", "history", "known", "open")

    def __init__(self):
        self.open = []
        self.committed = []
        self.history = []
        self.known = 0

    def commit(self):
        self.committed.append(self.open)
        self.history.append(self.open)
        self.open = []

    def all_but(self, newest):
        """The copies of all committed groups but the newest ones. Forgets the oldest finished groups."""
        while self.committed and all(copy.written for copy in self.committed[0]):
            del self.committed[0]
        old = self.committed[: max(0, len(self.committed) - newest)]
        return [copy for group in old for copy in group]

    def waited(self, newest, only_read):
        """A wait for all but the newest groups has succeeded: the copies that it covers, and no wait like it did."""
        count = max(0, len(self.history) - newest)
        if only_read:
            covered = self.history[self.known : count]
            self.known = max(self.known, count)
        else:
            covered = self.history[:count]
            del self.history[:count]
            self.known = max(0, self.known - count)
        return [copy for group in covered for copy in group]


BULK = "cp.async.bulk"


def groups_of(kind, warp):
    """lane -> CopyGroups of a warp, for one kind of copy."""
    return warp.copy_groups.setdefault(kind, defaultdict(CopyGroups))


def wait_for_groups(kind, warp, newest, what, only_read=False):
    """Wait until all but the ``newest`` committed groups of every executing lane are read (and written)."""
    lanes = groups_of(kind, warp)
    copies = [copy for lane in warp.lanes for copy in lanes[lane].all_but(newest)]

    def ready():
        return all(copy.read if only_read else copy.written for copy in copies)

    if not ready():
        return Wait(ready, what)
    for lane in warp.lanes:
        for copy in lanes[lane].waited(newest, only_read):
            copy.checks.waited_by(warp, only_read)
    return None


@instruction("cp.async.bulk.commit_group")
def bulk_commit_group(warp, ins):
    """The bulk stores that this thread issued since the last commit become a group."""
    for lane in warp.lanes:
        groups_of(BULK, warp)[lane].commit()


@instruction(pattern=r"cp\.async\.bulk\.wait_group(\.read)?")
def bulk_wait_group(warp, ins, match):
    """Until at most N of this thread's newest bulk groups are pending; with .read: are still to be read."""
    newest = ins.operands[0].value
    what = f"{ins.opcode} {newest}"
    return wait_for_groups(BULK, warp, newest, what, bool(match.group(1)))


# --- stores -------------------------------------------------------------------------------------------------


def shared_source(cta, offset, size):
    """read of submit_store: so many bytes of the CTA's shared memory."""

    def read(checks):
        checks.reads_shared(cta.shared, offset, size, store=True)
        return cta.shared.read(offset, size)

    return read


def submit_store(warp, lanes, read, write, label):
    """Put a store in flight, in two steps: read(checks) the source, later write(data, checks).

    It belongs to the open group of every lane in ``lanes``. A store that several lanes of a warp issue
    together with the same operands (kernels do not always elect one) is one copy.
    """
    issuer, engine = warp.issuer(), warp.cta.machine.engine
    checks = copy_checks(warp, label)
    copy = Copy(checks)
    for lane in lanes:
        groups_of(BULK, warp)[lane].open.append(copy)

    def first():
        data = read(checks)
        copy.read = True

        def second():
            write(data, checks)
            copy.finish()

        # Global memory outlives the CTA: a kernel may end with a store that is read but not yet written.
        engine.submit(second, f"{label}: write", issuer, outlives_cta=True)

    # PTX asks for a wait before the CTA ends; hardware keeps its shared memory (DeepGEMM, flash-attn-4's backward).
    engine.submit(first, f"{label}: read", issuer, kept_for=True)


@instruction(
    pattern=r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(\.tile(?:::scatter4)?|\.im2col_no_offs)?\.bulk_group"
    + HINTS
)
def tensor_store(warp, ins, match):
    """[map, {coordinates}], [src]{, cache policy}: shared memory -> a box of a tensor, clipped."""
    _tensor_store(warp, ins, int(match.group(1)), match.group(2) or "", None)


@instruction(
    pattern=r"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.(add|min|max|inc|dec|and|or|xor)"
    r"(\.tile|\.im2col_no_offs)?\.bulk_group" + HINTS
)
def tensor_reduce(warp, ins, match):
    """[map, {coordinates}], [src]{, cache policy}: combine a box of a tensor with shared memory, clipped."""
    _tensor_store(warp, ins, int(match.group(1)), match.group(3) or "", match.group(2))


def _tensor_store(warp, ins, rank, mode, reduce):
    memory, own = warp.cta.machine.memory, warp.cta
    stores = {}  # operands -> lanes
    for lane in warp.lanes:
        tensor_map, coordinates = _tensor_operand(warp, ins.operands[0], lane, rank)
        if reduce in ("inc", "dec") and tensor_map.dtype != "u32":
            warp.fault(f"{ins.opcode} of a {tensor_map}; accepted: u32", TensorMapError)
        _, offset = resolve_shared(
            warp, ins.operands[1], lane, "cta", "TMA source", TENSOR_SHARED_ALIGNMENT
        )
        key = (tensor_map, coordinates, offset, lane if reduce else None)
        stores.setdefault(key, []).append(lane)
    for (tensor_map, coordinates, offset, _), lanes in stores.items():
        boxes, nbytes = _boxes(warp, tensor_map, coordinates, mode)

        def read(checks, offset=offset, nbytes=nbytes):
            checks.reads_shared(own.shared, offset, nbytes, store=True)
            return own.shared.read(offset, nbytes)

        def write(data, checks, tensor_map=tensor_map, boxes=boxes, offset=offset):
            checks.box(tensor_map, boxes, write=True, atomic=reduce is not None)
            for c, box, at in boxes:
                part = data[at : at + tensor_map.box_bytes]
                tensor_map.store(memory, c, offset + at, part, box=box, reduce=reduce)

        label = f"TMA {reduce or 'store'} of {nbytes} bytes at {coordinates}"
        submit_store(warp, lanes, read, write, label)


@instruction(pattern=r"cp\.async\.bulk\.global\.shared::cta\.bulk_group" + HINTS + r"(\.cp_mask)?")
def bulk_store(warp, ins, match):
    """[dst], [src], size{, cache policy}{, byteMask}: own shared memory -> global memory.

    With .cp_mask bit i of the mask says whether byte i of each 16 bytes is written. PTX ISA, "cp.async.bulk".
    """
    memory, own = warp.cta.machine.memory, warp.cta
    masks = warp.read32(ins.operands[-1]) if match[1] else None
    stores = {}  # operands -> lanes
    for lane in warp.lanes:
        target = global_address(
            warp, ins.operands[0], lane, BULK_ALIGNMENT, "bulk copy destination"
        )
        _, offset = resolve_shared(
            warp, ins.operands[1], lane, "cta", "bulk copy source", BULK_ALIGNMENT
        )
        size = bulk_size(warp, ins.operands[2], lane)
        mask = None if masks is None else int(masks[lane]) & 0xFFFF
        stores.setdefault((target, offset, size, mask), []).append(lane)
    for (target, offset, size, mask), lanes in stores.items():

        def write(data, checks, target=target, mask=mask):
            for first, end in masked_runs(mask, len(data)):
                checks.writes_global(target + first, end - first)
                memory.write(target + first, data[first:end])

        read = shared_source(own, offset, size)
        submit_store(warp, lanes, read, write, f"bulk store of {size} bytes")


def masked_runs(mask, size):
    """[(first, end)] of the bytes that are written: all, or those of a 16-bit mask in each 16 bytes."""
    if mask is None:
        return [(0, size)]
    written = np.zeros(size + 2, np.int8)
    written[1:-1] = np.resize([mask >> i & 1 for i in range(BULK_ALIGNMENT)], size)
    edges = np.flatnonzero(np.diff(written))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


# --- prefetches -----------------------------------------------------------------------------------------------


@instruction(
    pattern=r"cp\.async\.bulk\.prefetch\.tensor\.([1-5])d\.L2\.global(\.tile(?:::gather4)?|\.im2col)?"
    + HINTS
)
def tensor_prefetch(warp, ins, match):
    """[map, {coordinates}]: no effect; the tensor map and the coordinates are checked."""
    for lane in warp.lanes:
        tensor_map, coordinates = _tensor_operand(warp, ins.operands[0], lane, int(match.group(1)))
        mode = match.group(2) or ""
        offsets = (
            _im2col_offsets(warp, ins.operands[1], tensor_map, lane) if mode == ".im2col" else None
        )
        _boxes(warp, tensor_map, coordinates, mode, offsets)


@instruction(pattern=r"cp\.async\.bulk\.prefetch\.L2\.global" + HINTS)
def bulk_prefetch(warp, ins, match):
    """[src], size: no effect; alignment, size and allocation are checked."""
    for lane in warp.lanes:
        source = global_address(warp, ins.operands[0], lane, BULK_ALIGNMENT, "bulk prefetch")
        warp.cta.machine.memory.read(source, bulk_size(warp, ins.operands[1], lane))


@instruction(pattern=r"prefetch(?:\.param|\.const)?\.tensormap")
def prefetch_tensormap(warp, ins, match):
    """[map]: no effect; the tensor map is decoded, so that a bad one is reported here."""
    for lane in warp.lanes:
        tensor_map_at(warp, int(warp.address(ins.operands[0])[lane]))
