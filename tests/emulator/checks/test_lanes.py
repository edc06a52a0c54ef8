"""Lanes of a warp that share memory: what bar.warp.sync orders, and what is reported without it."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import RaceError
from tests.emulator.core.ptx_bench import run_ptx, store

CHECKS = ("ptx", "lanes")
# Each lane writes its word, and reads that of the next one: %r4 its own address, %r5 the other.
START = """
    mov.u32 %r1, %tid.x; mov.b32 %r3, dyn; shl.b32 %r4, %r1, 2; add.s32 %r4, %r4, %r3;
    add.s32 %r5, %r1, 1; and.b32 %r5, %r5, 31; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;
"""
WRITE, READ = "st.shared.b32 [%r4], %r1;", "ld.shared.b32 %r2, [%r5];"
SYNC = "bar.warp.sync -1;"


def run(*parts, checks=CHECKS, **launch):
    out = np.zeros(32, np.uint32)
    run_ptx(START + "\n".join(parts) + store("%r2"), out, shared=512, checks=checks, **launch)
    return out.tolist()


def test_a_barrier_of_the_warp_orders_its_lanes():
    assert run(WRITE, SYNC, READ) == [*range(1, 32), 0]


@pytest.mark.parametrize("order", ["bar.sync 0;", "barrier.sync.aligned 1, 32;"])
def test_a_barrier_of_the_cta_does_so_too(order):
    assert run(WRITE, order, READ) == [*range(1, 32), 0]


@pytest.mark.parametrize(
    "between", ["", "fence.acq_rel.cta;", "shfl.sync.idx.b32 %r6, %r1, 0, 31, -1;"]
)
def test_what_is_no_barrier_is_a_race(between):
    with pytest.raises(
        RaceError, match=r"a read of it by lane 0 after the access of lane 1, which wrote it"
    ):
        run(WRITE, between, READ)


def test_a_write_after_the_read_of_another_lane_is_a_race():
    with pytest.raises(
        RaceError, match=r"a write to it by lane 0 after the access of lane 31, which read it"
    ):
        run(WRITE, SYNC, READ, WRITE)
    run(WRITE, SYNC, READ, SYNC, WRITE)


def test_many_readers_of_a_byte_are_kept_as_several():
    every = "ld.shared.b32 %r2, [%r3];"
    with pytest.raises(RaceError, match="after the access of several lanes, which read it"):
        run(WRITE, SYNC, every, WRITE)


def test_a_lane_may_read_what_it_wrote():
    run(WRITE, "ld.shared.b32 %r2, [%r4];", WRITE)


def test_nobody_is_asked_without_the_name_of_the_check():
    assert run(WRITE, READ, checks="ptx") == [*range(1, 32), 0]


ARRIVE = "mbarrier.arrive.shared.b64 _, [%r3 + 256];"
WAIT = "{ W: mbarrier.try_wait.parity.shared.b64 %p1, [%r3 + 256], 0; @!%p1 bra W; }"
INIT = "setp.eq.u32 %p2, %r1, 0; @%p2 mbarrier.init.shared.b64 [%r3 + 256], 32; bar.sync 0;"


def test_an_mbarrier_orders_what_its_lanes_did_before_they_arrived():
    assert run(INIT, WRITE, ARRIVE, WAIT, READ) == [*range(1, 32), 0]
    with pytest.raises(RaceError, match="between lanes of a warp"):
        run(INIT, ARRIVE, WRITE, WAIT, READ)
