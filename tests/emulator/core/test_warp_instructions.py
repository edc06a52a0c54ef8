"""Divergence, reconvergence and the exchanges between lanes, from PTX, against NumPy."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import DivergenceError, EmulatorError
from tests.emulator.core.ptx_bench import run_lanes, run_ptx, store

LANES = np.arange(32)


def test_both_sides_of_a_branch_run_and_meet_again():
    out = run_lanes("""
        mov.u32 %r2, %laneid;
        setp.lt.u32 %p1, %r2, 10;
        @%p1 bra LOW;
        add.s32 %r1, %r2, 100;
        bra.uni MEET;
        LOW: add.s32 %r1, %r2, 1000;
        MEET: activemask.b32 %r3;
        setp.ne.b32 %p2, %r3, -1;
        @%p2 trap;
    """)
    assert (out == LANES + np.where(LANES < 10, 1000, 100)).all()


def test_lanes_leave_a_loop_one_after_the_other():
    """Lane l goes l + 1 times around: r1 = sum of 0..l."""
    out = run_lanes("""
        mov.u32 %r2, %laneid;
        mov.b32 %r1, 0;
        mov.b32 %r3, 0;
        LOOP: add.s32 %r1, %r1, %r3;
        add.s32 %r3, %r3, 1;
        setp.le.u32 %p1, %r3, %r2;
        @%p1 bra LOOP;
    """)
    assert (out == LANES * (LANES + 1) // 2).all()


@pytest.mark.parametrize("seed", [8, 9])  # a slice ends with the elect of lane 0
def test_lanes_that_come_around_a_loop_meet_those_that_wait_ahead(seed):
    """Lane 0 returns from after the loop; slices of a few instructions end where it meets the others."""
    out = run_lanes(
        """
        mov.b32 %r1, 0;
        LOOP: elect.sync %r2|%p2, -1;
        @%p2 bra MORE;
        BACK: add.s32 %r1, %r1, 1;
        setp.lt.u32 %p1, %r1, 8;
        @%p1 bra LOOP;
        bra.uni END;
        MORE: add.s32 %r3, %r1, 1;
        bra.uni BACK;
        END:
        """,
        mode="random",
        seed=seed,
    )
    assert (out == 8).all()


def test_exited_lanes_store_nothing():
    out = np.full(32, 7, np.uint32)
    run_ptx("mov.u32 %r1, %laneid; setp.ge.u32 %p1, %r1, 5; @%p1 ret;" + store("%r1"), out)
    assert out.tolist() == [0, 1, 2, 3, 4] + [7] * 27


def test_brx_jumps_by_table():
    out = run_lanes("""
        mov.u32 %r2, %laneid;
        and.b32 %r3, %r2, 1;
        TABLE: .branchtargets EVEN, ODD;
        brx.idx %r3, TABLE;
        EVEN: mov.b32 %r1, 10; bra.uni END;
        ODD: mov.b32 %r1, 20;
        END:
    """)
    assert (out == np.where(LANES % 2, 20, 10)).all()


def test_elect_picks_one_lane_of_those_that_live():
    """Lanes 0 to 3 have exited: lane 4 is elected, and all lanes receive it."""
    out = np.zeros(32, np.uint32)
    run_ptx(
        "mov.u32 %r1, %laneid; setp.lt.u32 %p1, %r1, 4; @%p1 ret;"
        "elect.sync %r2|%p2, -1; add.s32 %r2, %r2, 100; @%p2 add.s32 %r2, %r2, 1000;"
        + store("%r2"),
        out,
    )
    assert out.tolist() == [0] * 4 + [1104] + [104] * 27


SHUFFLES = {
    "idx": lambda b, lo, hi: lo | (b & 31),
    "up": lambda b, lo, hi: LANES - b,
    "down": lambda b, lo, hi: LANES + b,
    "bfly": lambda b, lo, hi: LANES ^ b,
}


@pytest.mark.parametrize("width", [32, 8])  # the whole warp, and segments
@pytest.mark.parametrize("b", [0, 1, 5])
@pytest.mark.parametrize("mode", SHUFFLES)
def test_shfl(mode, b, width):
    """CUDA C++ Programming Guide, "Warp Shuffle Functions": c = (32 - width) << 8 | 31, up: clamp 0."""
    c = (32 - width) << 8 | (0 if mode == "up" else 31)
    out = run_lanes(f"""
        mov.u32 %r2, %laneid;
        add.s32 %r2, %r2, 50;
        shfl.sync.{mode}.b32 %r1|%p1, %r2, {b}, {c}, -1;
        @!%p1 add.s32 %r1, %r1, 1000;
    """)
    low = LANES // width * width
    high = low + width - 1
    source = low + b % width if mode == "idx" else SHUFFLES[mode](b, low, high)
    valid = (source >= low) if mode == "up" else (source <= high)
    expected = np.where(valid, source + 50, LANES + 1050)
    assert (out == expected).all()


def test_vote():
    out = run_lanes("""
        mov.u32 %r2, %laneid;
        setp.lt.u32 %p1, %r2, 3;
        vote.sync.ballot.b32 %r1, %p1, -1;
        vote.sync.any.pred %p2, %p1, -1;
        vote.sync.all.pred %p3, %p1, -1;
        vote.sync.uni.pred %p4, !%p3, -1;
        @%p2 add.s32 %r1, %r1, 16;
        @%p3 add.s32 %r1, %r1, 32;
        @%p4 add.s32 %r1, %r1, 64;
    """)
    assert (out == 7 + 16 + 64).all()


@pytest.mark.parametrize(
    "operation, expected",
    [
        ("add.s32", LANES.sum() - 320),
        ("max.s32", 21),
        ("min.s32", -10),
        ("max.u32", 2**32 - 1),
        ("and.b32", np.bitwise_and.reduce(LANES - 10)),
        ("or.b32", np.bitwise_or.reduce(LANES - 10)),
        ("xor.b32", np.bitwise_xor.reduce(LANES - 10)),
    ],
)
def test_redux(operation, expected):
    """Values -10 to 21: both signs, so that signed and unsigned order differ."""
    body = f"mov.u32 %r2, %laneid; add.s32 %r2, %r2, -10; redux.sync.{operation} %r1, %r2, -1;"
    assert (run_lanes(body) == np.uint32(int(expected) & 0xFFFFFFFF)).all()


def test_lanes_wait_for_each_other_at_a_sync_instruction():
    """Lane 0 spins in a longer path first; the shuffle still sees all 32 lanes."""
    out = run_lanes("""
        mov.u32 %r2, %laneid;
        mov.b32 %r3, 0;
        setp.ne.b32 %p1, %r2, 0;
        @%p1 bra AT;
        LOOP: add.s32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 50; @%p2 bra LOOP;
        AT: shfl.sync.idx.b32 %r1, %r3, 0, 31, -1;
    """)
    assert (out == 50).all()


def test_a_sync_mask_that_names_a_lane_elsewhere_is_a_divergence_error():
    with pytest.raises(DivergenceError, match="lanes 0x00000001"):
        run_lanes("""
            mov.u32 %r2, %laneid;
            setp.eq.b32 %p1, %r2, 0;
            @%p1 bra OTHER;
            shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;
            bra.uni END;
            OTHER: bar.warp.sync -1;
            END:
        """)


def test_executing_a_sync_instruction_outside_of_its_mask_is_an_error():
    with pytest.raises(DivergenceError, match="not in its mask"):
        run_lanes("vote.sync.ballot.b32 %r1, %p1, 1;")


def test_trap_stops_the_launch_and_says_where():
    with pytest.raises(EmulatorError, match="trap") as error:
        run_ptx("mov.u32 %r1, %laneid; setp.eq.b32 %p1, %r1, 3; @%p1 trap;")
    assert "CTA (0, 0, 0)" in str(error.value) and "[3]" in str(error.value)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("%tid.x", lambda t: t % 8),
        ("%tid.y", lambda t: t // 8 % 4),
        ("%tid.z", lambda t: t // 32),
        ("%ntid.y", lambda t: 4 + 0 * t),
        ("%laneid", lambda t: t % 32),
        ("%warpid", lambda t: t // 32),
        ("%nctaid.x", lambda t: 1 + 0 * t),
    ],
)
def test_special_registers_of_a_block_of_8_by_4_by_2(name, expected):
    from cute_fa4.emulator.machine.memory import GlobalMemory
    from cute_fa4.emulator.run.launch import execute_grid
    from tests.emulator.core.ptx_bench import program_of

    out, threads = np.zeros(64, np.uint32), np.arange(64)
    body = "mov.u32 %r9, %tid.z; mov.u32 %r8, %tid.y; mov.u32 %r7, %tid.x; shl.b32 %r9, %r9, 5;"
    body += (
        f"shl.b32 %r8, %r8, 3; add.s32 %r9, %r9, %r8; add.s32 %r9, %r9, %r7; mov.u32 %r1, {name};"
    )
    memory = GlobalMemory()
    memory.register(out.ctypes.data, out.nbytes, "out")
    params = np.array([out.ctypes.data], np.uint64).tobytes()
    program = program_of(body + store("%r1", index="%r9"), 1)
    execute_grid(program, params=params, block=(8, 4, 2), memory=memory)
    assert (out == expected(threads)).all()
