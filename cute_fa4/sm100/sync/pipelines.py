"""Positions in the K/V ring, its two ends, and the one-barrier events between the roles.

A pipeline is immutable; the position in it is a value that the caller rebinds. The compiler's
staged loops can carry such a value, the host can test it, and a reader can follow it.

    slot          0  1  2  3  4  0  1  2        a ring of five, in use K0 V0 K1 V1 K2 V2 K3 V3
    writer waits  1  1  1  1  1  0  0  0        on empty: parity 1 passes on a fresh barrier, every slot is free
    reader waits  0  0  0  0  0  1  1  1        on full: parity 0 blocks on a fresh barrier, nothing is loaded

The order of p_over_s.py, with the position in parentheses; V of a tile is held while K of the next one is used:

    wait K0(0) release K0(0) wait V0(1) | wait K1(2) release V0(1) release K1(2) wait V1(3) | wait K2(4) ...
"""

from dataclasses import dataclass, field

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose
from ..blueprint.barriers import SLOTS_BESIDE_A_REST
from ..instructions import tensor_core


def initialise(mbarriers, counts: list[int]):
    """mbarrier.init of all mbarriers by one warp, a lane each; the warp may use them when this returns.

    Other warps may use them after the next barrier between them and it.
    """
    lane = cute.arch.lane_idx()
    for first in range(0, len(counts), 32):
        part = counts[first : first + 32]
        count = Int32(part[0])
        for i in range(1, len(part)):
            if part[i] != part[i - 1]:
                count = choose(lane >= i, part[i], count)
        initialise_part(mbarriers + first, count, lane < len(part))
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_warp()


@cute.jit
def initialise_part(mbarriers, count: Int32, mine: cutlass.Boolean):
    if mine:
        cute.arch.mbarrier_init(mbarriers + cute.arch.lane_idx(), count)


@dataclass(frozen=True)
class Slot:
    """A position in a ring: which slot, and the parity that this side waits for there."""

    index: Int32
    phase: Int32

    def next(self, slots: int) -> "Slot":
        last = self.index == slots - 1
        return Slot(choose(last, 0, self.index + 1), self.phase ^ choose(last, 1, 0))

    def after_next(self, slots: int) -> "Slot":
        """next().next(), of a ring with at least two slots, in one step.

        >>> [Slot(i, 0).after_next(5) == Slot(i, 0).next(5).next(5) for i in range(5)]
        [True, True, True, True, True]
        """
        index = self.index + 2
        wraps = index >= slots
        return Slot(choose(wraps, index - slots, index), self.phase ^ choose(wraps, 1, 0))

    def previous(self, slots: int) -> "Slot":
        """The inverse of next().

        >>> Slot(0, 1).previous(3), Slot(2, 1).previous(3).next(3)
        (Slot(index=2, phase=0), Slot(index=2, phase=1))
        """
        first = self.index == 0
        return Slot(choose(first, slots - 1, self.index - 1), self.phase ^ choose(first, 1, 0))

    @property
    def rest(self) -> int:
        """Which rest K has, in a ring that has one for all."""
        return 0

    @property
    def raw(self) -> tuple:
        """-> (which barrier says that rows to be dequantized have arrived, the parity that their reader waits for)."""
        return self.index, self.phase


@dataclass(frozen=True)
class SlotBesideRests(Slot):
    """The same in a ring beside two places for the rest of K, which take turns; K and V alternate.

    turn: the number of the position, of eight

    >>> at, of_k = SlotBesideRests(0, 0, 0), []
    >>> for _ in range(5):
    ...     of_k.append((at.index, at.rest, at.rest_phase))
    ...     at = at.next(3).next(3)
    >>> of_k
    [(0, 0, 0), (2, 1, 0), (1, 0, 1), (0, 1, 1), (2, 0, 0)]
    """

    turn: Int32

    def next(self, slots: int) -> "SlotBesideRests":
        following = super().next(slots)
        return SlotBesideRests(following.index, following.phase, (self.turn + 1) & 7)

    @property
    def rest(self):
        return self.turn >> 1 & 1

    @property
    def rest_phase(self):
        """The parity that the reader of the rest waits for."""
        return self.turn >> 2

    @property
    def raw(self) -> tuple:
        """Not those of the slot: where all of K arrives in the rest, a slot has rows of every second tile alone."""
        return self.turn & 3, self.turn >> 2


def first_slot(phase: int, rests: int) -> Slot:
    """The first position of a ring, which waits for this parity. rests: places for those of K, mostly one."""
    at = Int32(0), Int32(phase)
    return Slot(*at) if rests == 1 else SlotBesideRests(*at, Int32(0))


@dataclass(frozen=True)
class Event:
    """One mbarrier for each query tile, raised by some roles and awaited by another (barriers.py says which)."""

    mbarriers: cute.Pointer

    def wait(self, i, phase):
        cute.arch.mbarrier_wait(self.mbarriers + i, phase)

    def arrive(self, i):
        """Every thread of the raising role calls it."""
        cute.arch.mbarrier_arrive(self.mbarriers + i)

    def commit(self, i):
        """Raised by the hardware when every MMA issued so far has completed."""
        tensor_core.commit((self.mbarriers + i).toint())

    def arrive_and_expect(self, i, nbytes):
        """One thread announces the bytes that TMA will count down."""
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(self.mbarriers + i, nbytes)
        return self.mbarriers + i


@dataclass(frozen=True)
class Ring:
    """The `full` and `empty` mbarriers of the slots; a slot has one `full` for each depth stage of K.

    rests: places for the rest of K, where it has one
    """

    full: cute.Pointer
    empty: cute.Pointer
    slots: cutlass.Constexpr
    qk_stages: cutlass.Constexpr
    rests: cutlass.Constexpr = field(default=1, kw_only=True)


@dataclass(frozen=True)
class TMAProducerPipeline(Ring):
    """The load warp's end: K staged along depth, V whole.

    A slot is acquired once. Then each stage of K announces its own bytes on its own barrier, so that the first MMA
    starts when the first depth chunk has arrived. V announces all its bytes on stage 0; the other stages of the slot
    get an arrival without bytes, which keeps their parities in step.
    """

    k_bytes: cutlass.Constexpr  # of each stage
    v_bytes: cutlass.Constexpr

    def first(self) -> Slot:
        return first_slot(1, self.rests)

    def acquire(self, slot: Slot):
        """Wait until the MMAs that read the slot's last tile have completed."""
        cute.arch.mbarrier_wait(self.empty + slot.index, slot.phase)

    def acquire_rest(self, slot: Slot):
        """Wait until the rest of the K before the one in `slot` has been read: in a ring of three its slot is next.

        Then that rest needs neither its own slot nor its own barrier. V, which comes next, waits for the same.
        """
        assert self.slots == SLOTS_BESIDE_A_REST
        self.acquire(slot.next(self.slots))

    def skip(self, slot: Slot) -> Slot:
        """The position after a K that another warp loads, for the warp that loads V.

        S is made one key tile ahead of P V. In a ring of three, V could come back to a slot before its V of two rounds
        ago was read, and the parity that it waits for would be that of the round before. There it waits for the K's
        slot, too, as one warp does that loads both. A longer ring has a later K's wait in between.
        """
        if self.slots == SLOTS_BESIDE_A_REST:
            self.acquire(slot)
        return self.commit_step(slot)

    def get_k(self, slot: Slot, qk_stage: int):
        """Announce one depth chunk of K; returns the mbarrier for its copies."""
        return self._announce(slot, qk_stage, self.k_bytes[qk_stage])

    def get_v(self, slot: Slot):
        """Announce V; returns the mbarrier for its copies."""
        for stage in range(1, self.qk_stages):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(self._full(slot, stage))
        return self._announce(slot, 0, self.v_bytes)

    def of_v(self, slot: Slot):
        """The same mbarrier, for a warp that copies a part of the bytes which another one announces."""
        return self._full(slot, 0)

    def drain(self, slot: Slot):
        """After the last tile: if another CTA raises `empty`, wait until it has raised the last of them."""

    def commit_step(self, slot: Slot) -> Slot:
        """The next position. The hardware itself arrives on the barrier, when the bytes have landed."""
        return slot.next(self.slots)

    def _full(self, slot: Slot, stage: int):
        return self.full + (slot.index * self.qk_stages + stage)

    def _announce(self, slot: Slot, stage: int, nbytes: int):
        mbarrier = self._full(slot, stage)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(mbarrier, nbytes)
        return mbarrier


@dataclass(frozen=True)
class ProducerBesideRests(TMAProducerPipeline):
    """The same beside two places for the rest of K, whose bytes count on barriers of their own.

    Order p_over_s. The slot of V of a key tile was that of K of the one before. So where it is free, all S of that key
    tile are made, and the place of its rest is free for the next key tile: nothing else has to be awaited.
    """

    rest_full: cute.Pointer = field(kw_only=True)
    rest_bytes: cutlass.Constexpr = field(kw_only=True)

    def _full(self, slot: SlotBesideRests, stage: int):
        which, _ = slot.raw
        return self.full + which

    def get_rest(self, slot: SlotBesideRests):
        """Announce the rest of K; returns the mbarrier for its copies."""
        mbarrier = self.rest_full + slot.rest
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(mbarrier, self.rest_bytes)
        return mbarrier


@dataclass(frozen=True)
class KVPosition:
    """Where the consumer is: the current slot, and the slot of the V that is still in use."""

    slot: Slot
    held_v: Int32


@dataclass(frozen=True)
class KVConsumerPipeline(Ring):
    """The MMA warp's end; p_over_s.py and p_beside_s.py are its two orders.

    A slot is released by tcgen05.commit on its own `empty` barrier: the MMAs that read it are asynchronous, and an
    ordinary arrive by the thread that issued them would hand the slot back while it is being read.
    """

    def first(self) -> KVPosition:
        return KVPosition(first_slot(0, self.rests), Int32(0))

    def advance_to_k(self, at: KVPosition) -> KVPosition:
        """From V of a tile, which stays held, to K of the next one."""
        return KVPosition(at.slot.next(self.slots), at.slot.index)

    def wait_k(self, at: KVPosition, qk_stage: int):
        """Wait for one depth chunk of K; returns the slot index."""
        cute.arch.mbarrier_wait(
            self.full + (at.slot.index * self.qk_stages + qk_stage), at.slot.phase
        )
        return at.slot.index

    def wait_v(self, at: KVPosition):
        """Wait for V; returns the slot index. Does not step: release_v needs the index later."""
        for stage in range(self.qk_stages):
            cute.arch.mbarrier_wait(
                self.full + (at.slot.index * self.qk_stages + stage), at.slot.phase
            )
        return at.slot.index

    def release_v(self, at: KVPosition):
        """Hand the held V's slot back once every MMA issued so far has completed. Does not step."""
        self._commit(at.held_v)

    def advance_to_v(self, at: KVPosition) -> KVPosition:
        """From K of a tile to V of the same tile; in an even ring K has the even slots, and this never wraps."""
        if self.slots % 2 == 0:
            return KVPosition(Slot(at.slot.index + 1, at.slot.phase), at.held_v)
        return KVPosition(at.slot.next(self.slots), at.held_v)

    def step_tile(self, at: KVPosition) -> KVPosition:
        """From K (or V) of a tile to K (or V) of the next tile, for a reader that alternates between both."""
        return KVPosition(at.slot.next(self.slots).next(self.slots), at.held_v)

    def step(self, at: KVPosition) -> KVPosition:
        """The next position, for a reader that takes K and V in the order in which they are loaded."""
        return KVPosition(at.slot.next(self.slots), at.held_v)

    def wait(self, slot: Slot):
        """Wait for a slot of a ring in which every tile has one barrier."""
        cute.arch.mbarrier_wait(self.full + slot.index, slot.phase)

    def wait_empty(self, slot: Slot):
        """Wait until the slot has been read, for a role that writes a tile which arrived elsewhere."""
        cute.arch.mbarrier_wait(self.empty + slot.index, slot.phase ^ 1)

    def release_slot(self, slot: Slot):
        """Hand a slot back once every MMA issued so far has completed."""
        self._commit(slot.index)

    def release(self, at: KVPosition):
        """Hand the slot back once every MMA issued so far has completed. Does not step."""
        self._commit(at.slot.index)

    def _commit(self, index):
        tensor_core.commit((self.empty + index).toint())


@dataclass(frozen=True)
class ConsumerBesideRests(KVConsumerPipeline):
    """The same beside two places for the rest of K. rest_ready: None: a rest is handed over with its slot."""

    rest_ready: cute.Pointer | None = field(kw_only=True)

    def wait_k(self, at: KVPosition, qk_stage: int):
        if qk_stage == 0:
            return super().wait_k(at, 0)
        if self.rest_ready is not None:
            cute.arch.mbarrier_wait(self.rest_ready + at.slot.rest, at.slot.rest_phase)
        return at.slot.index
