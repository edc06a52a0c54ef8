"""Tables of mbarriers: who raises each, who waits for it, how many arrivals that takes.

A table is data. Shared-memory size, initialisation, the pipelines, the documentation and the emulator's messages are
all derived from it. Each family has its own (two_tiles/barriers.py). A count is not written by hand: it is the number
of threads of the role that arrives, from the family's WarpRoles, or one where the hardware arrives.

A ring has two barriers a slot: `full` lets the reader in, `empty` lets the writer in again; the places of Q and the
entries of the work queue have such a pair too. An event has one, because something else already keeps the writer from
running ahead; its `reuse` says what.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from .warp_roles import WarpRoles

KV_SLOT, KV_STAGE = "kv_slot", "kv_stage"  # places of the ring
SLOTS_BESIDE_A_REST = 3  # V of a key tile then has the slot of the K before, whose rest was in the one place for rests
Q_TILE, SOFTMAX, WORK_ENTRY, CTA = "q_tile", "softmax", "work_entry", "cta"
SCALE_SLOT, K_REST = "scale_slot", "k_rest"
KV_TURN = "kv_turn"  # K and V of as many key tiles as there are rests
QUEUE_READERS = ("softmax", "correction", "mma")  # roles besides load, in families with correction
SCALE_SLOTS = (
    4  # key tiles whose scales are in shared memory: a power of two, two for each of two warpgroups
)


@dataclass(frozen=True)
class Arrivals:
    """Who arrives on a barrier, and how often a phase: `threads` by name, or one hardware completion."""

    role: str
    count: int
    how: str = ""

    def __str__(self):
        return f"{self.role} {self.count}" + (f" ({self.how})" if self.how else "")


def one_thread(role: str) -> Arrivals:
    return Arrivals(role, 1)


def announced_bytes(role: str) -> Arrivals:
    """One thread of `role` announces the bytes, TMA (or a claim's answer) counts them down."""
    return Arrivals(role, 1, "+ bytes")


def commit_by(role: str) -> Arrivals:
    """tcgen05.commit: the hardware arrives when every MMA that `role` issued before has completed."""
    return Arrivals(role, 1, "commit")


@dataclass(frozen=True)
class Barrier:
    """One row of a table.

    name        what has happened when it fires
    per         what it is a barrier of: "q_tile", "softmax" (a warpgroup), "kv_slot", "kv_stage", "work_entry",
                "scale_slot", "k_rest", "kv_turn" or "cta"; there is one of each
    raised_by   arrivals that complete a phase
    awaited_by  the roles that wait
    means       the news, as a reader of the kernel would say it
    reuse       why the next phase cannot be raised before this one was seen
    """

    name: str
    per: str
    raised_by: tuple[Arrivals, ...]
    awaited_by: str
    means: str
    reuse: str

    @property
    def count(self) -> int:
        """Arrivals that complete a phase: the number for mbarrier.init."""
        return sum(arrivals.count for arrivals in self.raised_by)


@dataclass(frozen=True)
class BarrierTable:
    """The barriers of a kernel in memory order. `numbers`: how many there are of each thing a barrier can be per."""

    rows: tuple[Barrier, ...]
    numbers: Mapping[str, int]

    @staticmethod
    def of(
        rows,
        *,
        q_tiles: int,
        warps: WarpRoles,
        work_entries: int,
        kv_slots: int,
        qk_stages: int,
        k_rests: int = 1,
    ):
        """qk_stages: of each slot of the ring; k_rests: places beside it for the rest of K."""
        numbers = {
            Q_TILE: q_tiles,
            SOFTMAX: warps.softmax_groups,
            WORK_ENTRY: work_entries,
            CTA: 1,
            SCALE_SLOT: SCALE_SLOTS,
            KV_SLOT: kv_slots,
            KV_STAGE: kv_slots * qk_stages,
            K_REST: k_rests,
            KV_TURN: 2 * k_rests,
        }
        return BarrierTable(tuple(rows), numbers)

    def number(self, barrier: Barrier) -> int:
        """How many mbarriers of this kind a CTA has."""
        return self.numbers[barrier.per]

    @property
    def kv_slots(self) -> int:
        """Slots of the ring that K and V share."""
        return self.numbers[KV_SLOT]

    @property
    def total(self) -> int:
        """mbarriers of a CTA."""
        return sum(self.number(barrier) for barrier in self.rows)

    def ring(self, mbarriers, name: str, slot: str, qk_stages: int = 1) -> dict:
        """What both ends of a ring of slots take (pipelines.py); its mbarriers are NAME_full and NAME_empty."""
        return dict(
            full=mbarriers + self.first_index(f"{name}_full"),
            empty=mbarriers + self.first_index(f"{name}_empty"),
            slots=self.numbers[slot],
            qk_stages=qk_stages,
        )

    def first_index(self, name: str) -> int:
        """Position of the first mbarrier of a kind among all mbarriers of the CTA."""
        index = 0
        for barrier in self.rows:
            if barrier.name == name:
                return index
            index += self.number(barrier)
        names = ", ".join(barrier.name for barrier in self.rows)
        raise KeyError(f"no barrier {name!r}: there are {names}")

    def __contains__(self, name: str) -> bool:
        return any(barrier.name == name for barrier in self.rows)

    def instances(self) -> Iterator[tuple[int, str, Barrier]]:
        """Yield (index, name, barrier) for every mbarrier of the CTA, in memory order."""
        index = 0
        for barrier in self.rows:
            for i in range(self.number(barrier)):
                yield index, self._instance_name(barrier, i), barrier
                index += 1

    def _instance_name(self, barrier: Barrier, index: int) -> str:
        if barrier.per == KV_STAGE and self.numbers[KV_STAGE] > self.numbers[KV_SLOT]:
            stages = self.numbers[KV_STAGE] // self.numbers[KV_SLOT]
            return f"{barrier.name}[{index // stages}].stage{index % stages}"
        return f"{barrier.name}[{index}]"

    def text(self) -> str:
        """The table as text, for docstrings, documentation and messages."""
        rows = [("barrier", "number", "raised by", "awaited by", "means")]
        for b in self.rows:
            raised = " + ".join(map(str, b.raised_by))
            rows.append((b.name, str(self.number(b)), raised, b.awaited_by, b.means))
        return _columns(rows)


def one_softmax(warps: WarpRoles) -> Arrivals:
    """Every thread of one softmax warpgroup."""
    return Arrivals("softmax", warps.threads_of("softmax") // warps.softmax_groups)


def every_thread(warps: WarpRoles, role: str) -> Arrivals:
    return Arrivals(role, warps.threads_of(role))


def ring_rows() -> tuple[Barrier, ...]:
    """The barriers of the ring of K and V: every family's."""
    load, mma = announced_bytes("load"), commit_by("mma")
    return (
        Barrier("kv_full", KV_STAGE, (load,), "mma", "the K or V tile is ready", "kv_empty"),
        Barrier("kv_empty", KV_SLOT, (mma,), "load", "the slot's MMAs have completed", "kv_full"),
    )


def raw_row() -> Barrier:
    """The barrier for 8-bit rows that become 16-bit in their slot (raw_rows.py); it comes before kv_full."""
    return Barrier(
        "raw_full",
        KV_SLOT,
        (announced_bytes("load"),),
        "dequantize",
        "8-bit K or V is ready",
        "kv_empty of the slot, whose MMAs wait for kv_full, raised after this wait",
    )


def scale_rows(warps: WarpRoles, readers: Arrivals) -> tuple[Barrier, ...]:
    """The barriers of a ring of scales of keys (roles/token_scales.py). readers: the threads that read an entry."""
    full, empty = "scales_full", "scales_empty"
    return (
        Barrier(
            *(full, SCALE_SLOT, (every_thread(warps, "scales"),), readers.role),
            *("the scales of a key tile are ready", empty),
        ),
        Barrier(*(empty, SCALE_SLOT, (readers,), "scales", "they have been read", full)),
    )


def queue_rows(warps: WarpRoles, roles: tuple[str, ...] = QUEUE_READERS) -> tuple[Barrier, ...]:
    """The barriers of the work queue (work/queue.py): every family's.

    roles: its readers other than load and the V warp, if any
    """
    roles += ("values",) * bool(warps.values)
    readers = tuple(every_thread(warps, role) for role in roles)
    return (
        Barrier(
            "work_ready",
            WORK_ENTRY,
            (one_thread("load"),),
            ", ".join(roles),
            "a work tile is announced",
            "work_read",
        ),
        Barrier(
            "work_read", WORK_ENTRY, readers, "load", "the announcement has been read", "work_ready"
        ),
        Barrier(
            "work_claimed",
            CTA,
            (announced_bytes("load"),),
            "load",
            "the answer to a claim is ready",
            "one claim at a time",
        ),
    )


def mixed_rows(mixes: bool) -> tuple[Barrier, ...]:
    """The barrier between MMAs of two kinds into one S (steps/products.py); mixes: whether S is made of both.

    Its even phases end with the columns of one kind, its odd ones with S, so that its reader keeps no parity.
    """
    done = Barrier(
        "kind_done",
        CTA,
        (commit_by("mma"),),
        "mma",
        "the MMAs into S so far are done",
        "each is awaited",
    )
    return (done,) if mixes else ()


def checked_rows(warps: WarpRoles, checker: str = "softmax") -> tuple[Barrier, ...]:
    """The barrier of a queue whose work tiles a role checks (`work/checked.py`)."""
    return (
        Barrier(
            "work_checked",
            WORK_ENTRY,
            (every_thread(warps, checker),),
            "load",
            "whether a work tile is run again",
            "work_ready",
        ),
    )


def changed_rows(
    rows: tuple[Barrier, ...],
    fields: Mapping[str, Mapping] = {},
    after: Mapping[str, tuple[Barrier, ...]] = {},
) -> tuple[Barrier, ...]:
    """Rows of another family, with changed fields in some and more rows after some; a row's name selects both.

    >>> after = {"kv_full": checked_rows(WarpRoles())}
    >>> ring = changed_rows(ring_rows(), {"kv_full": {"awaited_by": "dequantize"}}, after)
    >>> [(row.name, row.awaited_by) for row in ring]
    [('kv_full', 'dequantize'), ('work_checked', 'load'), ('kv_empty', 'load')]

    A name that no row has is an error in the caller's table:

    >>> changed_rows(ring_rows(), {"kv_ful": {"awaited_by": "dequantize"}})
    Traceback (most recent call last):
    KeyError: "no barrier 'kv_ful': there are kv_full, kv_empty"
    """
    names = [row.name for row in rows]
    for name in (*fields, *after):
        if name not in names:
            raise KeyError(f"no barrier {name!r}: there are {', '.join(names)}")
    out = []
    for row in rows:
        out += (replace(row, **fields.get(row.name, {})), *after.get(row.name, ()))
    return tuple(out)


def reuse_text(rows) -> str:
    """Why no phase of a barrier is raised before the previous one was seen."""
    head = ("barrier", "is not raised again too early because")
    return _columns([head, *((b.name, b.reuse) for b in rows)])


def _columns(rows) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
