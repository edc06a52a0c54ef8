"""mbarrier instructions: initialise, arrive, expect bytes, wait.

    own CTA             immediately
    another CTA         (shared::cluster address of another rank) through the asynchronous engine

An arrival state (the .b64 result of arrive) holds the phase, which test_wait and try_wait accept, and the count.
PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

import functools
import itertools

import numpy as np

from cute_fa4.emulator.checks import causes
from cute_fa4.emulator.checks import memory as memory_checks
from cute_fa4.emulator.checks.clocks import merged
from cute_fa4.emulator.checks.initialised import check_initialised, initialised
from cute_fa4.emulator.checks.scopes import CTA, GPU, written_scope
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.machine.mbarrier import MBarrier
from cute_fa4.emulator.machine.warp import FULL, SHARED_BASE, Wait
from cute_fa4.emulator.ptx.errors import BarrierError, IllegalAccess
from cute_fa4.emulator.ptx.parser import Addr, Imm, Reg, Sink

_SPACE = r"(?:\.shared(?:::cta|::cluster)?)?"
_ORDER = r"(?:\.(?:release|relaxed|acquire))?(?:\.(?:cta|cluster))?"

TRY_WAIT_TIMEOUT = 1
"""Any value: try_wait may return false after "a system-dependent time limit". Here this is when nothing
else can progress, and immediately in some of the calls of the modes "random" and "hostile"."""


def shared_addresses(warp, operand, opcode):
    """32-bit shared::cluster addresses of the executing lanes, as ints; generic addresses are converted."""
    addresses = warp.address(operand)
    lanes = warp.lanes
    chosen = addresses.tolist() if len(lanes) == 32 else addresses[lanes].tolist()
    if ".shared" not in opcode:
        chosen = [a - SHARED_BASE if a >= SHARED_BASE else -1 for a in chosen]
        if min(chosen) < 0 or max(chosen) > FULL:
            warp.fault(f"{opcode} with a generic address outside of shared memory", IllegalAccess)
    return chosen


def _by_address(warp, operand, opcode):
    """[(CTA, offset, lanes)] of the executing lanes, one entry per different barrier."""
    lanes, resolve = warp.lanes, warp.cta.cluster.resolve
    if type(operand) is Addr and type(operand.base) is Reg and operand.base.bits == 32:
        if ".shared" in opcode:
            same = fast.uniform(warp.R, operand.base.row, warp.mask, operand.offset & FULL)
            if same >= 0:  # the common case
                return [(*resolve(same), lanes)]
    addresses = shared_addresses(warp, operand, opcode)
    first = addresses[0]
    if addresses.count(first) == len(addresses):
        return [(*resolve(first), lanes)]
    groups = {}
    for lane, address in zip(lanes, addresses, strict=True):
        groups.setdefault(address, []).append(lane)
    return [(*resolve(address), lanes) for address, lanes in groups.items()]


def _own(warp, operand, ins):
    """Like _by_address, but every barrier must be in the own CTA."""
    found = _by_address(warp, operand, ins.opcode)
    for cta, offset, _ in found:
        if cta is not warp.cta:
            warp.fault(
                f"{ins.opcode} on the mbarrier at offset 0x{offset:x} of CTA rank {cta.rank}: only the CTA that "
                f"holds it (rank {warp.cta.rank} executes) may do this",
                BarrierError,
            )
    return found


@instruction(pattern=rf"mbarrier\.init{_SPACE}\.b64")
def init(warp, ins, match):
    """A fresh barrier of ``count`` arrivals in phase 0; its 8 bytes belong to it until mbarrier.inval.

    If several lanes execute it together, each but the first initializes a live barrier, which PTX leaves undefined.
    Hardware behaves as if one lane executes it, and FlashInfer's prefill relies on this. Level "ptx" refuses it.
    """
    counts = warp.read32(ins.operands[1])
    issuer = warp.issuer()
    for cta, offset, lanes in _own(warp, ins.operands[0], ins):
        name, label = cta.barrier_name(offset)
        if offset % 8:
            warp.fault(
                f"mbarrier.init at shared offset 0x{offset:x}: not aligned to 8 bytes",
                IllegalAccess,
            )
        live = cta.shared.mbarriers.get(offset)
        if live is not None:
            warp.fault(
                f"mbarrier.init of {name}, which is live in phase {live.phase}; mbarrier.inval first",
                BarrierError,
            )
        order = cta.machine.ordering
        if len(lanes) > 1 and (
            len({*counts[lanes].tolist()}) > 1 or order is not None and order.ptx
        ):
            warp.fault(
                f"mbarrier.init of {name} by lanes {lanes}; one thread must do it", BarrierError
            )
        cta.shared.write(offset, np.zeros(8, np.uint8), issuer)  # checks the bounds
        barrier = MBarrier(
            int(counts[lanes[0]]),
            name=name,
            offset=offset,
            cta=cta,
            label=label,
            notes=cta.machine.notes,
            issuer=issuer,
        )
        cta.shared.own(offset, barrier)
        if order is not None:
            memory_checks.shared_span(order, warp, cta.shared, offset, 8, "mbarrier.init")
            initialised(order, barrier, warp)
    warp.note_progress()


@instruction(pattern=rf"mbarrier\.inval{_SPACE}\.b64")
def inval(warp, ins, match):
    """The barrier's bytes are ordinary memory again."""
    for cta, offset, _ in _own(warp, ins.operands[0], ins):
        cta.mbarrier(offset)
        cta.shared.disown(offset)
    warp.note_progress()


@instruction(pattern=rf"mbarrier\.arrive(_drop)?(\.expect_tx)?{_ORDER}{_SPACE}\.b64")
def arrive(warp, ins, match):
    """[state,] address [, count]; with .expect_tx the last operand is a number of bytes and the count is 1."""
    drop, expects = bool(match[1]), bool(match[2])
    operands = ins.operands
    # The state may be omitted for shared::cluster barriers.
    state = operands[0] if isinstance(operands[0], (Reg, Sink)) else None
    rest = operands[1:] if state is not None else operands
    values = warp.read32(rest[1]) if len(rest) > 1 else None
    issuer = warp.issuer()
    wanted = type(state) is Reg
    phases = np.zeros(32, np.uint64) if wanted else None
    for cta, offset, lanes in _by_address(warp, rest[0], ins.opcode):
        amount = _ONES[: len(lanes)] if values is None else values[lanes].tolist()
        if cta is not warp.cta:
            if state is not None and not isinstance(state, Sink):
                warp.fault(
                    f"{ins.opcode} on a barrier of another CTA cannot return a state; use _",
                    BarrierError,
                )
            _arrive_remotely(warp, cta, offset, amount, expects, drop, issuer)
            continue
        barrier = cta.mbarrier(offset)
        _release(warp, barrier)
        if wanted:
            phases[lanes] = _states(barrier, _ONES[: len(lanes)] if expects else amount)
        if expects:
            for nbytes in amount:
                barrier.arrive(1, issuer, nbytes, drop)
        elif drop:
            for count in amount:
                barrier.arrive(count, issuer, drop=True)
        else:
            # One instruction that completes a phase and starts on the next is a wrong count.
            barrier.arrive(sum(amount), issuer)
        warp.note_progress()
    if wanted:
        warp.write64(state, phases)


_PHASE_BITS = 40
_PHASE = np.uint64((1 << _PHASE_BITS) - 1)


_ONES = [1] * 32
_LANES = np.arange(32)


def _states(barrier, amounts):
    """Arrival states of lanes that arrive this many times: the phase, and its pending arrivals before each."""
    if amounts == _ONES:
        lacked = np.maximum(barrier.pending - _LANES, 0)
    else:
        before = itertools.accumulate(amounts[:-1], initial=0)
        lacked = np.array([max(barrier.pending - n, 0) for n in before])
    return (lacked << _PHASE_BITS | barrier.phase).astype(np.uint64)


def _release(warp, barrier):
    """The following arrival publishes the warp's clock."""
    order = warp.cta.machine.ordering
    if order is not None:
        _check_initialised(order, warp, barrier)
        order.publish(barrier, _outgoing(order, warp))
        order.arrived(barrier, warp)


def _outgoing(order, warp):
    opcode = warp.ins.opcode
    return order.outgoing(warp, _scope(order, opcode), _is_relaxed(opcode))


@functools.cache
def _is_relaxed(opcode):
    return ".relaxed" in opcode


def _scope(order, opcode):
    """PTX ISA: the default is .cta. Published kernels use it for other CTAs' mbarriers, by default or explicitly."""
    written = written_scope(opcode)
    if written in (None, CTA):
        return CTA if order.ptx else GPU
    return written


def _check_initialised(order, warp, barrier):
    check_initialised(order, barrier, warp.order, warp.order.clock, warp.fault)


def _arrive_remotely(warp, cta, offset, amount, expects, drop, issuer):
    order = cta.machine.ordering
    if order is not None:
        releases = [(*source, clock.copy()) for *source, clock in _outgoing(order, warp)]
        clock = functools.reduce(merged, (clock for *_, clock in releases), None)

    def action():
        barrier = cta.mbarrier(offset)
        if order is not None:
            check_initialised(order, barrier, warp.order, clock, _fault_of(issuer))
            order.publish(barrier, releases)
        for value in amount:
            barrier.arrive(1 if expects else value, issuer, value if expects else 0, drop)

    what = "arrive.expect_tx" if expects else "arrive"
    label = f"mbarrier.{what} on CTA rank {cta.rank} offset 0x{offset:x}"
    # The barrier must exist until then; the arriving CTA may exit. Arrivals from CTA to CTA stay in order: an
    # arrival that releases must not overtake an earlier one that its own CTA has ordered before it.
    queue = ("remote arrivals", issuer.cta, cta)
    cta.machine.engine.submit(action, label, issuer, queue=queue, outlives_cta=True)


def _fault_of(issuer):
    """fault(message, kind) of an instruction that was issued earlier."""

    def fault(message, kind):
        raise kind(f"{message}\n{issuer.where()}")

    return fault


@instruction(pattern=rf"mbarrier\.arrive(_drop)?(\.expect_tx)?\.noComplete{_ORDER}{_SPACE}\.b64")
def arrive_no_complete(warp, ins, match):
    """An arrival that promises not to complete the phase."""
    issuer = warp.issuer()
    state, address, count = ins.operands
    counts = warp.read32(count)
    for cta, offset, lanes in _own(warp, address, ins):
        barrier = cta.mbarrier(offset)
        _release(warp, barrier)
        for lane in lanes:
            if int(counts[lane]) >= barrier.pending:
                warp.fault(
                    f"{barrier.name}: arrive.noComplete would complete phase {barrier.phase}",
                    BarrierError,
                )
            token = _states(barrier, [0])[0]
            barrier.arrive(int(counts[lane]), issuer, drop=bool(match[1]))
        warp.write64(state, np.uint64(token))
    warp.note_progress()


@instruction(pattern=rf"mbarrier\.(expect|complete)_tx{_ORDER}{_SPACE}\.b64")
def change_tx(warp, ins, match):
    """Add (expect) or subtract (complete) pending bytes of the current phase, without an arrival."""
    values, issuer = warp.read32(ins.operands[1]), warp.issuer()
    for cta, offset, lanes in _by_address(warp, ins.operands[0], ins.opcode):
        nbytes = sum(int(values[lane]) for lane in lanes)

        def action(cta=cta, offset=offset, nbytes=nbytes):
            barrier = cta.mbarrier(offset)
            (barrier.expect_tx if match[1] == "expect" else barrier.complete_tx)(nbytes, issuer)

        if cta is warp.cta:
            action()
        else:
            label = f"mbarrier.{match[1]}_tx of {nbytes} bytes on CTA rank {cta.rank}"
            cta.machine.engine.submit(action, label, issuer, outlives_cta=True)
    warp.note_progress()


@instruction("mbarrier.pending_count.b64")
def pending_count(warp, ins):
    """The pending arrivals of the phase before the arrive that returned the state."""
    warp.write32(
        ins.operands[0],
        (warp.read64(ins.operands[1]) >> np.uint64(_PHASE_BITS)).astype(np.uint32),
    )


def _by_value(warp, token, tokens, lanes):
    """[(value, mask of the lanes that have it)]; token: the operand, tokens: its values."""
    if type(token) is Imm:
        return [(int(tokens[0]), mask_of_lanes(lanes))]
    if type(token) is Reg and token.bits == 32 and len(lanes) == warp.mask.bit_count():
        same = fast.uniform(warp.R, token.row, warp.mask, 0)
        if same >= 0:
            return [(same, warp.mask)]
    values = tokens[lanes].tolist()
    masks = {}
    if values.count(values[0]) == len(values):
        return [(values[0], mask_of_lanes(lanes))]
    for value, lane in zip(values, lanes, strict=True):
        masks[value] = masks.get(value, 0) | 1 << lane
    return list(masks.items())


def mask_of_lanes(lanes):
    """Bitmask of lane numbers."""
    return FULL if len(lanes) == 32 else sum(1 << lane for lane in lanes)


@instruction(pattern=rf"mbarrier\.(test|try)_wait(\.parity)?{_ORDER}{_SPACE}\.b64")
def wait(warp, ins, match):
    """p = has the phase completed; try_wait may block before it returns false."""
    predicate, address, token = ins.operands[:3]
    by_parity = match[2] is not None
    tokens = warp.read32(token) if by_parity else warp.read64(token) & _PHASE
    true, waits_for = 0, None
    order = warp.cta.machine.ordering
    for cta, offset, lanes in _own(warp, address, ins):
        barrier = cta.mbarrier(offset)
        if barrier.observer is not None:
            barrier.observer.tested(barrier, warp.issuer())
        before = true
        for value, mask in _by_value(warp, token, tokens, lanes):
            if by_parity:
                value &= 1
            if barrier.test(value) if by_parity else barrier.test_phase(value):
                true |= mask
            elif waits_for is None:
                waits_for = barrier, value
        if order is not None:
            _check_initialised(order, warp, barrier)
            succeeded = true != before
            if succeeded:
                order.acquire(barrier, warp, _scope(order, ins.opcode), ".relaxed" in ins.opcode)
            if by_parity:
                order.looked(barrier, warp, succeeded, warp.fault)
                if succeeded:
                    causes.note_wait(barrier, warp, value & 1)
    if (
        waits_for is None
        or match[1] == "test"
        or (warp.resumed is None and warp.cta.machine.gives_up())
        or (warp.resumed is not None and warp.resumed.timed_out)
    ):
        warp.write_pred(predicate, true)
        if waits_for is not None:
            warp.yield_slice = True
        return None
    barrier, value = waits_for
    if by_parity:
        return Wait(
            lambda: (barrier.phase - 1) & 1 == value, barrier.name, barrier, value, TRY_WAIT_TIMEOUT
        )
    return Wait(lambda: barrier.phase > value, barrier.name, barrier, value, TRY_WAIT_TIMEOUT)
