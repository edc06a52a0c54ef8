"""The mbarrier object against its definition: phases, counts, bytes, and what it refuses."""

import random

import pytest

from cute_fa4.emulator.machine.mbarrier import MAX_COUNT, MAX_TX, MBarrier
from cute_fa4.emulator.ptx.errors import BarrierError


def test_a_fresh_barrier_is_in_phase_0():
    """wait(1) returns at once ("the phase before the first"), wait(0) waits for the first completion."""
    barrier = MBarrier(1)
    assert barrier.test(1)
    assert not barrier.test(0)


def test_phase_flips_when_arrivals_and_bytes_are_complete():
    barrier = MBarrier(2)
    barrier.arrive(expect_tx=64)
    barrier.arrive()
    assert barrier.phase == 0, "64 bytes are missing"
    barrier.complete_tx(64)
    assert barrier.phase == 1 and barrier.test(0) and not barrier.test(1)
    assert barrier.pending == 2


def test_bytes_may_come_before_they_are_expected():
    """PTX ISA, "tx-count": complete_tx before expect_tx leaves the count negative for a while."""
    barrier = MBarrier(1)
    barrier.complete_tx(64)
    assert barrier.phase == 0
    barrier.arrive(expect_tx=64)
    assert barrier.phase == 1


def test_more_arrivals_than_the_phase_lacks_raise_and_name_who_came():
    barrier = MBarrier(3, name="s_ready[0]")
    barrier.arrive(2)
    with pytest.raises(
        BarrierError, match=r"s_ready\[0\] phase 0.*arrives 2 times but only 1 of 3"
    ):
        barrier.arrive(2)


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_init_refuses_counts_out_of_range(count):
    with pytest.raises(BarrierError, match="accepted is 1 to"):
        MBarrier(count)


def test_tx_count_out_of_range_raises():
    barrier = MBarrier(1)
    barrier.expect_tx(MAX_TX)
    with pytest.raises(BarrierError, match="tx-count"):
        barrier.expect_tx(1)


def test_arrive_drop_lowers_later_phases():
    barrier = MBarrier(2)
    barrier.arrive(1, drop=True)
    barrier.arrive(1)
    assert (barrier.phase, barrier.pending) == (1, 1)


def test_a_phase_that_nobody_looked_at_is_noted():
    """A waiter of parity 0 that comes after two completions would wait for the third."""
    barrier = MBarrier(1, name="kv.full[0]")
    barrier.arrive()
    barrier.arrive()
    assert len(barrier.notes) == 1 and "kv.full[0]" in barrier.notes[0]
    assert barrier.test(1)
    barrier.arrive()
    assert len(barrier.notes) == 1, "this completion followed an observation"


@pytest.mark.parametrize("seed", range(8))
def test_phase_is_the_number_of_complete_rounds(seed):
    """Law: after any sequence of legal arrivals of one, phase = arrivals // count."""
    rng = random.Random(seed)
    count, total = rng.randint(1, 9), 0
    barrier = MBarrier(count)
    for _ in range(50):
        n = rng.randint(1, barrier.pending)
        barrier.arrive(n)
        total += n
        assert barrier.phase == total // count
        assert barrier.pending == count - total % count


class Arriver:
    """An issuer with a name."""

    def __init__(self, name):
        self.name = name

    def who(self):
        return self.name


def test_who_is_missing_follows_from_earlier_phases():
    """Without labels: earlier arrivers that have not arrived in this phase."""
    barrier = MBarrier(2)
    for name in ("warp 10", "warp 9", "warp 9"):
        barrier.arrive(1, Arriver(name))
    assert barrier.raised_by() == ("warp 10",)
    assert barrier.lacks() == "lacks 1 of 2 arrivals (warp 10)"
