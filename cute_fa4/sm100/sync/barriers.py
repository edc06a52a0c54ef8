"""Every mbarrier of the forward kernel: who raises it, who waits for it, how many arrivals that takes.

This table is data. Shared-memory size, initialisation, the pipelines, the documentation and the emulator's
messages are all derived from it.

barrier       number  raised by                              awaited by                means
q_full        2       load 1 (+ bytes)                       mma                       the Q tile is in shared memory
q_free        2       mma 1 (commit)                         load                      the last S of this Q is made
s_ready       2       mma 1 (commit)                         softmax                   S is made; P over S: all P V too
row_scale     2       softmax 128                            correction                the factors, or last the row sums
p_ready       2       softmax 128 + correction 128           mma, softmax              P is stored in part, O rescaled
p_last        2       softmax 128                            mma                       the last part of P is stored
o_ready       2       mma 1 (commit)                         correction                O is complete
kv_full       4       load 1 (+ bytes)                       mma                       the K or V tile is there
kv_empty      4       mma 1 (commit)                         load                      the slot's MMAs have completed
work_ready    2       load 1                                 softmax, correction, mma  a work tile is announced
work_read     2       softmax 256 + correction 128 + mma 32  load                      the announcement has been read
work_claimed  1       load 1 (+ bytes)                       load                      the answer to a claim is there

row_scale brings a factor for each key tile but the first of a work tile, and the row sums after the last. At the first
key tile p_ready says that the old O has been read, not that it is rescaled. A kernel whose P has columns of its own
(FA4Config.p_apart, p_beside_s.py) has two more:

barrier  number  raised by       awaited by           means
s_free   2       softmax 128     mma                  S has been read, the next one may be made
pv_done  2       mma 1 (commit)  softmax, correction  O is complete up to here and P has been read

barrier       is not raised again too early because
q_full        q_free
q_free        q_full
s_ready       the next S waits until softmax has read this one: for P, stored afterwards, or s_free
row_scale     the next factor follows p_ready of this tile, the sums wait for p_ready of the last tile
p_ready       the next S, and so the next P, is issued after this wait
p_last        as p_ready
s_free        the next S is issued after this wait
pv_done       the next P V waits for p_ready, which both raise after this wait
o_ready       the next O begins after p_ready, which correction raises when it has read this one
kv_full       kv_empty
kv_empty      kv_full
work_ready    work_read
work_read     work_ready
work_claimed  one claim at a time

A ring has two barriers a slot: `full` lets the reader in, `empty` lets the writer in again; the places of Q and the
entries of the work queue have such a pair too. An event has one, because something else already keeps the writer from
running ahead; its `reuse` says what.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arrivals:
    """Who arrives on a barrier, and how often a phase: `threads` by name, or one hardware completion."""

    role: str
    count: int
    how: str = ""

    def __str__(self):
        return f"{self.role} {self.count}" + (f" ({self.how})" if self.how else "")


SOFTMAX = Arrivals("softmax", 128)  # every thread of one softmax warpgroup
CORRECTION = Arrivals("correction", 128)  # every thread
BOTH_SOFTMAX = Arrivals("softmax", 256)
MMA_WARP = Arrivals("mma", 32)
ANNOUNCING = Arrivals("load", 1)
LOAD = Arrivals("load", 1, "+ bytes")  # one thread announces the bytes, TMA counts them down
MMA = Arrivals("mma", 1, "commit")  # tcgen05.commit: when every MMA issued before it has completed


WORK_ENTRIES = 2  # of the work queue: work tiles that are announced and not read by every role yet

COUNTS = {
    "q_tile": lambda cfg: cfg.num_q,
    "work_entry": lambda cfg: WORK_ENTRIES,
    "cta": lambda cfg: 1,
}


@dataclass(frozen=True)
class Barrier:
    """One row of the table.

    name        what has happened when it fires
    per         "q_tile", "kv_slot", "work_entry" or "cta": how many there are of it
    raised_by   arrivals that complete a phase
    awaited_by  the role that waits
    means       the news, as a reader of the kernel would say it
    reuse       why the next phase cannot be raised before this one was seen
    only_if     property of FA4Config without which there is no such barrier; "": there always is
    """

    name: str
    per: str
    raised_by: tuple[Arrivals, ...]
    awaited_by: str
    means: str
    reuse: str
    only_if: str = ""

    @property
    def count(self) -> int:
        """Arrivals that complete a phase: the number for mbarrier.init."""
        return sum(arrivals.count for arrivals in self.raised_by)

    def number(self, cfg) -> int:
        """How many mbarriers of this kind a CTA has."""
        if self.only_if and not getattr(cfg, self.only_if):
            return 0
        if self.per in COUNTS:
            return COUNTS[self.per](cfg)
        return cfg.kv_slots * (cfg.qk_stages if self.name == "kv_full" else 1)

    def instance_name(self, cfg, index: int) -> str:
        if self.name == "kv_full" and cfg.qk_stages > 1:
            return f"{self.name}[{index // cfg.qk_stages}].stage{index % cfg.qk_stages}"
        return f"{self.name}[{index}]"


BARRIERS = (
    Barrier(
        "q_full",
        "q_tile",
        (LOAD,),
        "mma",
        "the Q tile is in shared memory",
        "q_free",
    ),
    Barrier(
        "q_free",
        "q_tile",
        (MMA,),
        "load",
        "the last S of this Q is made",
        "q_full",
    ),
    Barrier(
        "s_ready",
        "q_tile",
        (MMA,),
        "softmax",
        "S is made; P over S: all P V too",
        "the next S waits until softmax has read this one: for P, stored afterwards, or s_free",
    ),
    Barrier(
        "row_scale",
        "q_tile",
        (SOFTMAX,),
        "correction",
        "the factors, or last the row sums",
        "the next factor follows p_ready of this tile, the sums wait for p_ready of the last tile",
    ),
    Barrier(
        "p_ready",
        "q_tile",
        (SOFTMAX, CORRECTION),
        "mma, softmax",
        "P is stored in part, O rescaled",
        "the next S, and so the next P, is issued after this wait",
    ),
    Barrier("p_last", "q_tile", (SOFTMAX,), "mma", "the last part of P is stored", "as p_ready"),
    Barrier(
        "s_free",
        "q_tile",
        (SOFTMAX,),
        "mma",
        "S has been read, the next one may be made",
        "the next S is issued after this wait",
        only_if="p_apart",
    ),
    Barrier(
        "pv_done",
        "q_tile",
        (MMA,),
        "softmax, correction",
        "O is complete up to here and P has been read",
        "the next P V waits for p_ready, which both raise after this wait",
        only_if="p_apart",
    ),
    Barrier(
        "o_ready",
        "q_tile",
        (MMA,),
        "correction",
        "O is complete",
        "the next O begins after p_ready, which correction raises when it has read this one",
    ),
    Barrier("kv_full", "kv_slot", (LOAD,), "mma", "the K or V tile is there", "kv_empty"),
    Barrier(
        "kv_empty",
        "kv_slot",
        (MMA,),
        "load",
        "the slot's MMAs have completed",
        "kv_full",
    ),
    Barrier(
        "work_ready",
        "work_entry",
        (ANNOUNCING,),
        "softmax, correction, mma",
        "a work tile is announced",
        "work_read",
    ),
    Barrier(
        "work_read",
        "work_entry",
        (BOTH_SOFTMAX, CORRECTION, MMA_WARP),
        "load",
        "the announcement has been read",
        "work_ready",
    ),
    Barrier(
        "work_claimed",
        "cta",
        (LOAD,),
        "load",
        "the answer to a claim is there",
        "one claim at a time",
    ),
)
BY_NAME = {barrier.name: barrier for barrier in BARRIERS}


def fixed_mbarriers(cfg) -> int:
    """mbarriers that do not depend on the number of ring slots."""
    return sum(barrier.number(cfg) for barrier in BARRIERS if barrier.per != "kv_slot")


def mbarriers_per_kv_slot(cfg) -> int:
    """One `full` for each depth stage of K, one `empty`."""
    return cfg.qk_stages + 1


def first_index(cfg, name: str) -> int:
    """Position of the first mbarrier of a kind among all mbarriers of the CTA."""
    index = 0
    for barrier in BARRIERS:
        if barrier.name == name:
            return index
        index += barrier.number(cfg)
    raise KeyError(f"no barrier {name!r}: there are {', '.join(BY_NAME)}")


def instances(cfg):
    """Yield (index, name, barrier) for every mbarrier of the CTA, in memory order."""
    index = 0
    for barrier in BARRIERS:
        for i in range(barrier.number(cfg)):
            yield index, barrier.instance_name(cfg, i), barrier
            index += 1


def _columns(rows) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def table(cfg, only_optional: bool = False) -> str:
    """The table as text, for docstrings, documentation and messages; only_optional: what not every kernel has."""
    rows = [("barrier", "number", "raised by", "awaited by", "means")]
    for b in BARRIERS:
        if b.number(cfg) == 0 or (only_optional and not b.only_if):
            continue
        rows.append(
            (b.name, str(b.number(cfg)), " + ".join(map(str, b.raised_by)), b.awaited_by, b.means)
        )
    return _columns(rows)


def reuse_table() -> str:
    """Why no phase of a barrier is raised before the one before it was seen."""
    return _columns(
        [("barrier", "is not raised again too early because")]
        + [(b.name, b.reuse) for b in BARRIERS]
    )
