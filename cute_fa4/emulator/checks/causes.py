"""Causes of a symptom: waits that were over before they began, bytes that were not announced.

    symptom                         cause that the report names
    a race, a read of old bytes     the wait before it asked for a phase that was already past, and who completed that
    a race with a copy              the mbarrier on which the copy completes, and the latest wait for that
    bytes without an announcement   what was announced and what came, both with their lines
    too many arrivals or phases     what came in the phase

A past phase alone is no error: a kernel may wait for one phase as often as it likes. So the causes are looked for
when something has gone wrong, and only where they explain it.
"""

from cute_fa4.emulator.checks.memory import who
from cute_fa4.emulator.machine.deadlock import events_table, phase_report
from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    EmulatorError,
    InFlightError,
    RaceError,
    UninitializedRead,
)
from cute_fa4.emulator.ptx.syntax import place

AGAIN, FRESH = "again", "fresh"
MOST_LINES = 24


def note_wait(barrier, warp, parity):
    """A wait for a parity has succeeded. Kept: whether its phase was past, as (why, parity, phase, issuer)."""
    known = barrier.waited.get(warp)
    why = FRESH if barrier.phase == 0 else None
    if known is not None and known[2] == barrier.phase and known[3].ins is warp.ins:
        # Lanes that have diverged come one group after the other.
        why = AGAIN if len(warp.groups) == 1 else why
    barrier.waited[warp] = (why, parity, barrier.phase, warp.issuer())


def explained(error, machine):
    """The causes of an error as lines to append; "" when none is known. error.warp: who raised it, if anybody."""
    if machine.cluster is None or machine.ordering is None:
        return ""
    lines = []
    for cta in machine.cluster.ctas:
        for barrier in cta.shared.mbarriers.values():
            lines += _past_waits(error, barrier)
    lines += _unannounced(error, machine)
    lines = lines or _not_awaited(error) or _miscounted(error)
    return "".join(f"\n  {line}" for line in lines[:MOST_LINES])


def _past_waits(error, barrier):
    raiser = getattr(error, "warp", None)
    missed = type(error) is BarrierError and "completed before this wait looked" in str(error)
    reads = isinstance(error, UninitializedRead) or (
        isinstance(error, RaceError | InFlightError) and ", a read of" in str(error)
    )
    found = []
    for warp, (why, parity, phase, issuer) in barrier.waited.items():
        raced = warp.order.party in getattr(error, "parties", ())
        explains = why == AGAIN and (warp is raiser or missed or raced)
        if not explains and not (why == FRESH and warp is raiser and reads):
            continue
        head = (
            f"cause? {issuer.who()} waited for {barrier.name} with parity {parity} at {_at(issuer)}"
        )
        head += ", which passed at once:"
        if phase == 0:
            found.append(f"{head} no phase of it had completed; the first phase has parity 0")
            continue
        found += [
            f"{head} phase {phase - 1} was past, and the same wait had seen it before; the next phase has parity "
            f"{phase & 1}. In phase {phase - 1}:",
            *(f"  {line.strip()}" for line in _events_of(barrier, phase)),
        ]
    return found


def _not_awaited(error):
    """The mbarrier on which a copy completes that a read races with, and the reader's latest wait for that."""
    barrier, phase, _ = getattr(error, "completes", None) or (None, 0, None)
    if barrier is None:
        return []
    head = f"cause? the earlier access completes on {barrier.name} in phase {phase}"
    for warp, (_, parity, past, issuer) in barrier.waited.items():
        if warp.order.party == error.parties[0]:
            wait = (
                f"the latest wait of {issuer.who()} for it, with parity {parity} at {_at(issuer)},"
            )
            if past > phase:
                return [f"{head}; {wait} came after this access was issued, or is relaxed"]
            return [f"{head}; {wait} saw " + (f"phase {past - 1} at most" if past else "no phase")]
    return [f"{head}, for which {who(error.parties[0])} has not waited"]


def _miscounted(error):
    """What came in a phase: for an arrival that is too many, or a phase that ended before its wait looked."""
    raiser = getattr(error, "warp", None)
    if type(error) is not BarrierError or raiser is None:
        return []
    for barrier in raiser.cta.shared.mbarriers.values():
        if str(error).startswith((f"{barrier.name}: phases ", f"{barrier.name} phase ")):
            first, *rest = phase_report(barrier)
            return [f"cause? {first}", *rest]
    return []


def _events_of(barrier, phase):
    """Who completed the phase before a number, as far as that is kept: of the latest complete phase."""
    if barrier.phase == phase and barrier.previous:
        return events_table(barrier.previous)
    return ["what came in it is no longer known"]


def _at(issuer):
    source = issuer.ins.role_source or issuer.ins.source
    return place(source) if source else f"PTX line {issuer.ins.line}"


def _unannounced(error, machine):
    """Announced and received bytes of barriers where these differ, and the lines of both."""
    if not isinstance(error, RaceError | InFlightError | UninitializedRead) and (
        "in flight" not in str(error)
    ):
        return []
    for cta in machine.cluster.ctas:
        cta.finished = False  # one that has ended takes no more arrivals
    try:
        machine.engine.drain()  # what is on its way would have come
    except (EmulatorError, ArithmeticError, LookupError, TypeError, ValueError):
        pass
    found = []
    for cta in machine.cluster.ctas:
        for barrier in cta.shared.mbarriers.values():
            if barrier.tx >= 0 or not barrier.previous:
                continue
            announced = sum(n for what, n, _ in barrier.previous if what == "expect_tx")
            came = sum(
                n for what, n, _ in (*barrier.previous, *barrier.events) if what == "complete_tx"
            )
            found += [
                f"cause? {barrier.name}: {announced} bytes were announced for phase {barrier.phase - 1}, and {came} "
                "bytes came, so it completed too early:",
                *(f"  {line.strip()}" for line in events_table(barrier.previous + barrier.events)),
            ]
    return found
