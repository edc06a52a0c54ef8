"""Barriers between warps and CTAs, the deadlock report, and the limits on endless loops."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    Deadlock,
    DivergenceError,
    EmulatorError,
    IllegalAccess,
)
from cute_fa4.emulator.ptx.labels import KernelLabels
from tests.emulator.core.ptx_bench import run_ptx, store

MODES = ("in_order", "random", "hostile")
WAIT = """{{ .reg .pred P1;
    WAIT: mbarrier.try_wait.parity.shared.b64 P1, [{address}], {parity}, 10000000;
    @P1 bra.uni DONE; bra.uni WAIT;
    DONE: }}"""


@pytest.mark.parametrize("mode", MODES)
def test_bar_sync_orders_shared_memory(mode):
    """Thread t reads what thread 127 - t, of another warp, wrote before the barrier."""
    out = np.zeros(128, np.uint32)
    body = """
        mov.u32 %r2, %tid.x; mov.b32 %r3, dyn; shl.b32 %r4, %r2, 2; add.s32 %r4, %r3, %r4;
        st.shared.b32 [%r4], %r2;
        bar.sync 0;
        sub.s32 %r5, 127, %r2; shl.b32 %r5, %r5, 2; add.s32 %r5, %r3, %r5;
        ld.shared.b32 %r1, [%r5];
    """
    run_ptx(body + store("%r1"), out, threads=128, shared=512, mode=mode, seed=1)
    assert (out == 127 - np.arange(128)).all()


def test_bar_arrive_and_sync_meet_at_the_count():
    """Warp 0 produces and arrives, warp 1 waits: 64 threads. Warp 2 takes no part."""
    out = np.zeros(96, np.uint32)
    body = """
        mov.u32 %r2, %tid.x; shr.u32 %r3, %r2, 5; mov.b32 %r4, dyn; mov.b32 %r1, 0;
        setp.eq.b32 %p1, %r3, 1; @%p1 bra CONSUMER;
        setp.eq.b32 %p1, %r3, 2; @%p1 bra END;
        mov.b32 %r5, 77; st.shared.b32 [%r4], %r5; barrier.arrive 3, 64; bra.uni END;
        CONSUMER: barrier.sync 3, 64; ld.shared.b32 %r1, [%r4];
        END:
    """
    run_ptx(body + store("%r1"), out, threads=96, shared=64, mode="hostile")
    assert out.tolist() == [0] * 32 + [77] * 32 + [0] * 32


def test_bar_red_counts_predicates():
    out = np.zeros(64, np.uint32)
    body = (
        "mov.u32 %r2, %tid.x; setp.lt.u32 %p1, %r2, 40; barrier.red.popc.aligned.u32 %r1, 0, %p1;"
    )
    run_ptx(body + store("%r1"), out, threads=64)
    assert (out == 40).all()


def test_threads_that_disagree_about_the_count_are_an_error():
    body = """
        mov.u32 %r2, %tid.x; shr.u32 %r3, %r2, 5; setp.eq.b32 %p1, %r3, 1;
        @%p1 bra B; bar.sync 1, 64; bra.uni END; B: bar.sync 1, 96; END:
    """
    with pytest.raises(BarrierError, match="same"):
        run_ptx(body, threads=96)


def test_bar_sync_inside_of_divergent_code_is_an_error():
    """PTX ISA: .aligned needs all threads of the warp; half of it cannot get there."""
    body = "mov.u32 %r2, %laneid; setp.lt.u32 %p1, %r2, 16; @%p1 bra A; bar.sync 0; ret; A: bar.sync 0;"
    with pytest.raises(DivergenceError, match="aligned"):
        run_ptx(body)


PING_PONG = f"""
    mov.u32 %r2, %tid.x; shr.u32 %r3, %r2, 5; mov.b32 %r4, dyn;
    setp.ne.b32 %p1, %r2, 0; @%p1 bra READY;
    mov.b32 %r5, 32;
    mbarrier.init.shared.b64 [%r4], %r5;
    mbarrier.init.shared.b64 [%r4+8], %r5;
    READY: bar.sync 0;
    mov.b32 %r6, 0; mov.b32 %r7, 0;
    setp.eq.b32 %p2, %r3, 1; @%p2 bra CONSUMER;
    PRODUCER: xor.b32 %r8, %r7, 1; add.s32 %r13, %r4, 8;
    {WAIT.format(address="%r13", parity="%r8")}
    shl.b32 %r9, %r2, 2; add.s32 %r9, %r4, %r9; st.shared.b32 [%r9+64], %r6;
    mbarrier.arrive.shared.b64 %rd1, [%r4];
    xor.b32 %r7, %r7, 1; add.s32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 10; @%p3 bra PRODUCER;
    bra.uni END;
    CONSUMER: mov.b32 %r1, 0; and.b32 %r10, %r2, 31; shl.b32 %r9, %r10, 2; add.s32 %r9, %r4, %r9;
    AGAIN:
    {WAIT.format(address="%r4", parity="%r7")}
    ld.shared.b32 %r11, [%r9+64]; add.s32 %r1, %r1, %r11;
    mbarrier.arrive.shared.b64 _, [%r4+8];
    xor.b32 %r7, %r7, 1; add.s32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 10; @%p3 bra AGAIN;
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_ping_pong_over_two_mbarriers(mode, seed):
    """Warp 0 fills one slot 10 times, warp 1 adds it up: 0 + 1 + ... + 9, under every schedule."""
    out = np.zeros(64, np.uint32)
    result = run_ptx(
        PING_PONG + store("%r1") + "END:", out, threads=64, shared=512, mode=mode, seed=seed
    )
    assert (out[32:] == 45).all()
    assert not result.notes


def test_the_same_seed_replays_the_same_run():
    counts = []
    for seed in (5, 5, 6):
        out = np.zeros(64, np.uint32)
        result = run_ptx(
            PING_PONG + store("%r1") + "END:", out, threads=64, shared=512, mode="random", seed=seed
        )
        counts.append(result.instructions)
    assert counts[0] == counts[1]


LABELS = KernelLabels(
    roles=((range(0, 1), "load"), (range(1, 2), "mma")),
    barriers=((0, "kv.full[0]", "mma", "load"), (8, "kv.empty[0]", "load", "mma")),
)


def test_deadlock_report_names_roles_barriers_and_the_circle():
    """The producer waits for a release first, which the consumer gives only after the first tile."""
    broken = PING_PONG.replace("xor.b32 %r8, %r7, 1;", "mov.b32 %r8, %r7;")
    with pytest.raises(Deadlock) as error:
        run_ptx(broken + "END:", threads=64, shared=512, labels=LABELS)
    text = str(error.value)
    lines = text.split("\n")
    assert lines[0].startswith("deadlock in CTA (0, 0, 0) after")
    assert "warp 0" in lines[1] and "load" in lines[1] and "kv.empty[0]" in lines[1]
    assert "lacks 32 of 32 arrivals (mma)" in lines[1]
    assert "cycle: load waits for mma on kv.empty[0]; mma waits for load on kv.full[0]" in text


def test_over_arrival_names_the_culprit():
    body = """
        mov.b32 %r4, dyn; mov.u32 %r2, %laneid; setp.ne.b32 %p1, %r2, 0; @%p1 bra READY;
        mov.b32 %r5, 31; mbarrier.init.shared.b64 [%r4], %r5; mbarrier.init.shared.b64 [%r4+8], %r5;
        READY: bar.warp.sync -1;
        mov.b32 %r6, 32; @!%p1 mbarrier.arrive.shared.b64 _, [%r4], %r6;
    """
    with pytest.raises(
        BarrierError, match=r"kv.full\[0\] phase 0: load arrives 32 times but only 31 of 31"
    ):
        run_ptx(body, shared=64, labels=LABELS)


@pytest.mark.parametrize(
    "body, reason",
    [
        ("mbarrier.arrive.shared.b64 _, [%r4];", "no mbarrier is initialised"),
        ("mbarrier.init.shared.b64 [%r4], 1; mbarrier.init.shared.b64 [%r4], 1;", "live"),
        ("mbarrier.init.shared.b64 [%r4], 0;", "count 0"),
        ("mbarrier.init.shared.b64 [%r4], 1; ld.shared.b64 %rd1, [%r4];", "live mbarrier"),
    ],
)
def test_misused_mbarriers(body, reason):
    with pytest.raises(BarrierError, match=reason):
        run_ptx(
            "mov.u32 %r2, %laneid; setp.ne.b32 %p1, %r2, 0; @%p1 ret; mov.b32 %r4, dyn;" + body,
            shared=64,
        )


def test_a_misaligned_mbarrier_is_refused():
    with pytest.raises(IllegalAccess, match="aligned to 8"):
        run_ptx("mov.u32 %r2, %laneid; setp.ne.b32 %p1, %r2, 0; @%p1 ret; mov.b32 %r4, dyn;"
                "mbarrier.init.shared.b64 [%r4+4], 1;", shared=64)  # fmt: skip


def test_test_wait_does_not_block_and_others_go_on():
    """Warp 1 polls with test_wait; warp 0 gets its turns and arrives."""
    out = np.zeros(64, np.uint32)
    body = """
        mov.u32 %r2, %tid.x; mov.b32 %r4, dyn; setp.ne.b32 %p1, %r2, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r4], 32; READY: bar.sync 0;
        mov.b32 %r1, 5; setp.ge.u32 %p2, %r2, 32; @%p2 bra POLL;
        mbarrier.arrive.shared.b64 _, [%r4]; bra.uni END;
        POLL: mbarrier.test_wait.parity.shared.b64 %p3, [%r4], 0; @!%p3 bra POLL;
        mov.b32 %r1, 6;
        END:
    """
    run_ptx(body + store("%r1"), out, threads=64, shared=64)
    assert out.tolist() == [5] * 32 + [6] * 32


def test_polling_for_what_never_comes_is_an_endless_loop():
    body = "mov.b32 %r4, dyn; mov.b32 %r5, 0; st.shared.b32 [%r4], %r5; LOOP: ld.shared.b32 %r5, [%r4];"
    body += "setp.eq.b32 %p1, %r5, 0; @%p1 bra LOOP;"
    with pytest.raises(Deadlock, match="budget of 10,000 warp instructions"):
        run_ptx(body, shared=64, budget=10_000)


@pytest.mark.parametrize("mode", MODES)
def test_cluster_neighbours_exchange_through_distributed_shared_memory(mode):
    """Each CTA of a pair stores its rank into the other's shared memory and reads its own after the barrier."""
    out = np.zeros(8, np.uint32)
    body = """
        mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; mov.b32 %r4, dyn; add.s32 %r7, %r2, 10;
        mapa.shared::cluster.u32 %r5, %r4, %r3;
        barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
        st.shared::cluster.b32 [%r5], %r7;
        barrier.cluster.arrive.release; barrier.cluster.wait;
        ld.shared.b32 %r1, [%r4];
    """
    run_ptx(
        body + store("%r1", index="%ctaid.x"),
        out,
        shared=64,
        grid=(8, 1, 1),
        cluster=(2, 1, 1),
        mode=mode,
    )
    assert out.tolist() == [11, 10] * 4


TWO_ARRIVALS = """
    mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1; mov.b32 %r4, dyn;
    mapa.shared::cluster.u32 %r5, %r4, %r3; add.s32 %r7, %r2, 10; add.s32 %r8, %r2, 20;
    st.shared::cluster.b32 [%r5], %r7; barrier.cluster.arrive;
    st.shared::cluster.b32 [%r5 + 4], %r8; barrier.cluster.arrive;
    barrier.cluster.wait; ld.shared.b32 %r1, [%r4];
    barrier.cluster.wait; ld.shared.b32 %r6, [%r4 + 4]; add.s32 %r1, %r1, %r6;
"""


@pytest.mark.parametrize("mode", MODES)
def test_an_arrival_before_the_wait_counts_for_the_next_generation(mode):
    """Each wait sees what came before the arrival that it matches; counted as two of 64 threads, the arrivals of one
    CTA would open the barrier for the other. PTX forbids it, published kernels do it: a note, and an error at "ptx".
    """
    out = np.zeros(8, np.uint32)
    launch = dict(shared=64, grid=(8, 1, 1), cluster=(2, 1, 1), mode=mode)
    result = run_ptx(
        TWO_ARRIVALS + store("%r1", index="%ctaid.x"), out, checks="hardware", **launch
    )
    assert out.tolist() == [32, 30] * 4
    assert [note.check for note in result.notes] == ["cluster_barrier"] * 4  # one of each cluster
    with pytest.raises(BarrierError, match="arrive twice"):
        run_ptx(TWO_ARRIVALS, checks="ptx", **launch)


def test_in_short_turns_a_race_may_stay_hidden():
    """Warp 0 reads after the barrier, warp 1 writes some 60 instructions after it: which one is first is up to them."""
    late = "add.s32 %r5, %r5, 1;" * 60
    body = f"""
        mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, 32; mov.b32 %r3, dyn; mov.b32 %r5, 0; mov.b32 %r6, 7;
        @%p1 st.shared.b32 [%r3], %r6;
        bar.sync 0;
        @%p1 bra LATE;
        ld.shared.b32 %r1, [%r3]; {store("%r1")} bra.uni END;
        LATE: {late} st.shared.b32 [%r3], %r5;
        END:
    """
    seen = {}
    for mode in ("in_order", "together"):
        out = np.zeros(32, np.uint32)
        run_ptx(body, out, threads=64, shared=64, mode=mode)
        seen[mode] = set(out.tolist())
    assert seen == {"in_order": {60}, "together": {7}}


REMOTE_ARRIVE = """
    mov.u32 %r2, %cluster_ctarank; mov.b32 %r4, dyn; mov.u32 %r3, %tid.x; setp.ne.b32 %p1, %r3, 0;
    @!%p1 mbarrier.init.shared.b64 [%r4], 1;
    fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive; barrier.cluster.wait;
    setp.eq.b32 %p2, %r2, 1; @%p2 bra WAITER;
    mapa.shared::cluster.u32 %r5, %r4, 1;
    @!%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
    bra.uni END;
    WAITER: {wait}
    END:
"""


@pytest.mark.parametrize("mode", MODES)
def test_an_arrival_on_the_other_ctas_barrier_releases_its_waiter(mode):
    body = REMOTE_ARRIVE.format(wait=WAIT.format(address="%r4", parity="0"))
    run_ptx(body, shared=64, grid=(2, 1, 1), cluster=(2, 1, 1), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_polling_does_not_hold_back_what_it_polls_for(mode):
    """test_wait never blocks; the remote arrival, as late as possible, still completes."""
    poll = "POLL: mbarrier.test_wait.parity.shared.b64 %p3, [%r4], 0; @!%p3 bra POLL;"
    run_ptx(
        REMOTE_ARRIVE.format(wait=poll), shared=64, grid=(2, 1, 1), cluster=(2, 1, 1), mode=mode
    )


def test_a_remote_arrival_after_the_end_of_its_target_is_an_error():
    """CTA 1 returns without waiting: the arrival, late, finds no barrier any more."""
    with pytest.raises((BarrierError, IllegalAccess), match="has ended"):
        run_ptx(
            REMOTE_ARRIVE.format(wait=""),
            shared=64,
            grid=(2, 1, 1),
            cluster=(2, 1, 1),
            mode="hostile",
        )


def test_notes_become_errors_when_asked_for():
    """Two consecutive unobserved completions; and bytes that never arrive."""
    start = "mov.u32 %r2, %laneid; setp.ne.b32 %p1, %r2, 0; @%p1 ret; mov.b32 %r4, dyn;"
    twice = (
        start + "mbarrier.init.shared.b64 [%r4], 1;" + "mbarrier.arrive.shared.b64 _, [%r4];" * 2
    )
    bytes_missing = (
        start
        + "mbarrier.init.shared.b64 [%r4], 2; mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 64;"
    )
    for check, body in (("phase_passed_twice", twice), ("bytes_missing_at_end", bytes_missing)):
        assert [note.check for note in run_ptx(body, shared=64).notes] == [check]
        with pytest.raises(BarrierError):
            run_ptx(body, shared=64, checks={check})
    with pytest.raises(ValueError, match="accepted are"):
        run_ptx(twice, shared=64, checks={"no_such_check"})


def test_setmaxnreg_waits_for_registers_that_others_give_up():
    """64 registers x 64 threads: one warp may grow to 96 once the other has shrunk to 32."""
    body = """
        mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, 32; @%p1 bra SMALL;
        setmaxnreg.inc.sync.aligned.u32 96; bra.uni END;
        SMALL: {small} END:
    """
    options = {"threads": 64, "directives": ".maxnreg 64"}
    run_ptx(body.format(small="setmaxnreg.dec.sync.aligned.u32 32;"), **options)
    with pytest.raises(Deadlock, match="setmaxnreg.inc 64 -> 96"):
        run_ptx(body.format(small=""), **options)


def test_setmaxnreg_inc_to_fewer_changes_nothing_and_is_a_note():
    """Had it given up registers, the second inc would find them: 64 of each of 1024 threads are all there are."""
    less = "setmaxnreg.inc.sync.aligned.u32 32;"
    result = run_ptx(less, threads=1024, checks="hardware")
    assert {note.check for note in result.notes} == {"fewer_registers"}
    with pytest.raises(Deadlock, match="setmaxnreg.inc 64 -> 72"):
        run_ptx(less + "setmaxnreg.inc.sync.aligned.u32 72;", threads=1024)
    with pytest.raises(EmulatorError, match="has 64 registers per thread"):
        run_ptx(less, threads=1024, checks="ptx")


@pytest.mark.parametrize("count", [20, 28, 264])
def test_setmaxnreg_refuses(count):
    with pytest.raises(EmulatorError, match="multiples of 8 from 24 to 256"):
        run_ptx(f"setmaxnreg.dec.sync.aligned.u32 {count};")
