"""One mbarrier: a counter of pending arrivals, a counter of pending bytes, and a phase that only grows.

    phase k        pending arrivals: expected .. 0      pending bytes: any .. 0
    both zero  ->  phase k + 1, pending = expected

    wait(parity p) returns true if the phase of parity p is complete, that is if (phase - 1) & 1 == p;
    on a fresh barrier (phase 0) a wait for parity 1 returns immediately.

Stricter than hardware: too many arrivals, bytes out of range and a second initialization raise errors, and a phase
that completes before the previous one was observed is noted (machine.notes). PTX ISA, "Parallel Synchronization and
Communication Instructions: mbarrier".
"""

from cute_fa4.emulator.ptx.errors import BarrierError

# PTX ISA, "Contents of the mbarrier object": valid range of the arrival counts and of the tx-count.
MAX_COUNT = (1 << 20) - 1
MAX_TX = (1 << 20) - 1


class Note(str):
    """A remark about a run; ``check`` names the entry of launch.CHECKS that makes it an error."""

    check = ""

    @classmethod
    def of(cls, check, text):
        """A note of a check."""
        note = cls(text)
        note.check = check
        return note


class MBarrier:
    """An initialised mbarrier object.

    phase     number of completed phases (hardware keeps its lowest bit)
    pending   pending arrivals of the current phase
    tx        pending bytes of the current phase; negative if data arrived before its expect_tx
    events    events of the current phase, and ``previous`` of the last one: [(what, amount, issuer), ...];
              what: "arrive", "expect_tx", "complete_tx"
    """

    __slots__ = (
        "acquirable", "born", "count", "cta", "events", "label", "name", "notes", "observed", "observer", "offset",
        "past_arrivers", "pending", "phase", "previous", "released", "seen", "tx",
        "waited",
    )  # fmt: skip

    def __init__(
        self, count, *, name="mbarrier", offset=0, cta=None, label=None, notes=None, issuer=None
    ):
        """count: arrivals per phase, 1 to 2**20 - 1. Raises BarrierError outside of it."""
        if not 1 <= count <= MAX_COUNT:
            raise BarrierError(
                f"{name}: mbarrier.init with count {count}; accepted is 1 to {MAX_COUNT}{_where(issuer)}"
            )
        self.count = count
        self.pending = count
        self.phase = 0
        self.tx = 0
        self.observed = 0
        self.name = name
        self.offset = offset
        self.cta = cta
        self.label = label
        self.notes = notes if notes is not None else []
        self.events, self.previous = [], []
        self.past_arrivers = set()
        # State of checks/ordering.py: clocks of the arrivals (all so far; of complete phases), the initialization,
        # and the observed phase of each actor.
        self.released = self.acquirable = self.born = None
        self.seen = {}
        self.waited = {}  # warp -> its latest wait that succeeded, see checks/causes.py
        self.observer = None if cta is None else cta.machine.observer

    def arrive(self, count=1, issuer=None, expect_tx=0, drop=False):
        """Count arrivals, after adding expect_tx to the pending bytes. Returns the phase before.

        drop  also lowers the expected arrivals of all later phases (mbarrier.arrive_drop).
        Raises BarrierError for more arrivals than are pending.
        """
        phase = self.phase
        if expect_tx:
            self.expect_tx(expect_tx, issuer)
        if count < 1 or count > self.pending:
            before = ", ".join(f"{who} ({n})" for who, n in self._arrivers()) or "nobody"
            raise BarrierError(
                f"{self.name} phase {self.phase}: {_who(issuer)} arrives {count} times but only "
                f"{self.pending} of {self.count} arrivals are left (arrived in this phase: {before}); "
                f"initialise it with the number of its arrivals, or find the arrival that is too many"
                f"{_where(issuer)}"
            )
        self.pending -= count
        if self.observer is not None:
            self.observer.arrive(self, count, issuer)
        self.events.append(("arrive", count, issuer))
        if drop:
            self.count -= count
        self._advance(issuer)
        return phase

    def expect_tx(self, nbytes, issuer=None):
        """The current phase also waits for nbytes of asynchronous copies."""
        self._add_tx(nbytes, issuer, "expect_tx")

    def complete_tx(self, nbytes, issuer=None):
        """nbytes of an asynchronous copy have arrived."""
        self._add_tx(-nbytes, issuer, "complete_tx")
        self._advance(issuer)

    def test(self, parity):
        """Has the phase of this parity completed? If so, this counts as an observation."""
        if (self.phase - 1) & 1 == parity & 1:
            self.observed = self.phase
            return True
        return False

    def test_phase(self, phase):
        """Has this phase (as returned by arrive) completed?"""
        if self.phase > phase:
            self.observed = self.phase
            return True
        return False

    def lacks(self):
        """The pending arrivals and bytes of the current phase, as text: "1 of 1 arrivals (load), 16384 bytes"."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.count} arrivals")
        if self.tx > 0:
            parts.append(f"{self.tx} bytes")
        elif self.tx < 0:
            parts.append(f"an expect_tx of the {-self.tx} bytes that came already")
        text = "lacks " + (" and ".join(parts) or "nothing")
        who = self.raised_by()
        if not who:
            return text
        return f"{text} ({', '.join(who[:3])}{', ...' if len(who) > 3 else ''})"

    def raised_by(self):
        """Names of the missing arrivers: from the labels, else from earlier phases."""
        if self.label is not None and self.label.raised_by_role:
            return tuple(name.strip() for name in self.label.raised_by_role.split(","))
        now = {who for who, _ in self._arrivers()}
        return tuple(sorted(self.past_arrivers - now, key=lambda who: (len(who), who)))

    def _arrivers(self):
        """[(who, count), ...] of the current phase."""
        return [(_who(issuer), n) for what, n, issuer in self.events if what == "arrive"]

    def _add_tx(self, nbytes, issuer, what):
        self.tx += nbytes
        self.events.append((what, abs(nbytes), issuer))
        if self.observer is not None:
            self.observer.bytes(self, nbytes, issuer)
        if not -MAX_TX <= self.tx <= MAX_TX:
            raise BarrierError(
                f"{self.name} phase {self.phase}: {what} of {abs(nbytes)} bytes by {_who(issuer)} brings the "
                f"pending bytes to {self.tx}; the tx-count holds -{MAX_TX} to {MAX_TX}{_where(issuer)}"
            )

    def _advance(self, issuer):
        if self.pending or self.tx:
            return
        if self.observed < self.phase:
            text = (
                f"{self.name}: phase {self.phase} completed (by {_who(issuer)}) before anybody looked "
                f"at the completion of phase {self.phase - 1}: a waiter of that parity would miss it"
            )
            self.notes.append(Note.of("phase_passed_twice", text))
        self.past_arrivers.update(who for who, _ in self._arrivers())
        self.previous, self.events = self.events, []
        if self.released is not None:
            self.acquirable = self.released.copy()
        self.phase += 1
        self.pending = self.count
        if self.observer is not None:
            self.observer.phase(self, issuer)


def _who(issuer):
    return issuer.who() if issuer is not None else "somebody"


def _where(issuer):
    return f"\n{issuer.where()}" if issuer is not None else ""
