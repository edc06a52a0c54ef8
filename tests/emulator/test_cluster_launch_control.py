"""Cluster launch control: who does which tile, on every schedule; what requests and responses must not do.

The law of a kernel that asks for clusters: every tile of the grid is done once, by whichever CTA.
"""

import re

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator
from cute_fa4.emulator.ptx.errors import (
    EmulatorError,
    IllegalAccess,
    InFlightError,
    ProxyError,
    RaceError,
)
from tests.emulator.core.ptx_bench import run_ptx

TRY = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
QUERY = "clusterlaunchcontrol.query_cancel"
POISON = 0x7FFFFFFF

# %r1 thread, %r2 dyn: the response, and the mbarrier after it, %p2 thread 0; %r3 %r4 %r5 the tile, %r7 its parity
START = """
    mov.u32 %r1, %tid.x; setp.eq.u32 %p2, %r1, 0; mov.b32 %r2, dyn;
    mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.z; mov.b32 %r7, 0;
    @%p2 mbarrier.init.shared.b64 [%r2+64], 1;
    @%p2 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
# Thread 0 counts the tile in p0 and leaves 1 + the number of this CTA in p1.
DO_TILE = """
    mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y;
    mad.lo.u32 %r12, %r5, %r11, %r4; mad.lo.u32 %r12, %r12, %r10, %r3;
    mov.u32 %r13, %ctaid.z; mov.u32 %r14, %ctaid.y; mov.u32 %r15, %ctaid.x;
    mad.lo.u32 %r13, %r13, %r11, %r14; mad.lo.u32 %r13, %r13, %r10, %r15; add.u32 %r13, %r13, 1;
    mul.wide.u32 %rd1, %r12, 4;
    ld.param.b64 %rd2, [p0]; add.s64 %rd2, %rd2, %rd1;
    ld.param.b64 %rd3, [p1]; add.s64 %rd3, %rd3, %rd1;
    @%p2 red.global.add.u32 [%rd2], 1;
    @%p2 st.global.b32 [%rd3], %r13;
"""
ASK = f"""
    @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+64], 16;
    @%p2 {TRY}.b128 [%r2], [%r2+64];
"""
WAIT = """
    WAIT: mbarrier.try_wait.parity.shared.b64 %p9, [%r2+64], %r7;
    @!%p9 bra WAIT;
    xor.b32 %r7, %r7, 1;
"""
READ = f"""
    ld.shared.v2.b64 {{%rd4, %rd5}}, [%r2];
    {{ .reg .b128 %h; mov.b128 %h, {{%rd4, %rd5}}; {QUERY}.is_canceled.pred.b128 %p3, %h; }}
    {{ .reg .b128 %h; mov.b128 %h, {{%rd4, %rd5}}; {QUERY}.get_first_ctaid::x.b32.b128 %r3, %h; }}
    {{ .reg .b128 %h; mov.b128 %h, {{%rd4, %rd5}}; {QUERY}.get_first_ctaid::y.b32.b128 %r4, %h;
      {QUERY}.get_first_ctaid::z.b32.b128 %r5, %h; }}
"""
FENCE = "fence.proxy.async.shared::cta;"
AGAIN = "bar.sync 0; @%p3 bra LOOP;"
PERSISTENT = START + "LOOP:" + DO_TILE + ASK + WAIT + READ + FENCE + AGAIN

GENERIC = "cvt.u64.u32 %rd9, %r2; cvta.shared.u64 %rd9, %rd9;"
SCHEDULES = [
    ("in_order", 0),
    *((mode, seed) for mode in ("random", "hostile") for seed in range(5)),
]


def run(body, grid=(7, 1, 1), **launch):
    """(times each tile was done, who did it, GridResult). Seven tiles: a prime, and more than a CTA usually gets."""
    times, who = np.zeros((2, *grid[::-1]), np.uint32)
    # Two warps: one that asks, and one that only reads.
    launch = {"threads": 64, "shared": 1024, "checks": "ptx"} | launch
    result = run_ptx(body, times, who, grid=grid, **launch)
    return times, who.astype(int) - 1, result


# --- every tile once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode, seed", SCHEDULES)
@pytest.mark.parametrize("claims", [None, 0, 1, 3])
def test_every_tile_is_done_once(mode, seed, claims):
    times, who, result = run(PERSISTENT, mode=mode, seed=seed, claims=claims)
    assert (times == 1).all()
    # A CTA that runs does its own tile; all others were cancelled.
    running = set(who.flat)
    assert all(who[0, 0, cta] == cta for cta in running)
    assert result.counters["clusters cancelled"] == 7 - len(running)


def test_in_order_one_cta_does_everything():
    _, who, result = run(PERSISTENT)
    assert (who == 0).all() and result.counters["clusters cancelled"] == 6


@pytest.mark.parametrize("claims, expected", [(0, [0, 1, 2, 3, 4, 5, 6]), (1, [0, 0, 2, 2, 4, 4, 6]),
                                              (3, [0, 0, 0, 0, 4, 4, 4]), (9, [0] * 7)])  # fmt: skip
def test_claims_limit_what_a_cta_gets(claims, expected):
    """In launch order: each CTA takes its own tile and the next ``claims``."""
    _, who, result = run(PERSISTENT, claims=claims)
    assert who[0, 0].tolist() == expected
    assert result.counters["clusters cancelled"] == 7 - len(set(expected))


def test_schedules_refuse_some_and_hostile_picks_any():
    """Over the seeds of SCHEDULES: more than one CTA runs, some with several tiles, and in hostile not in a row."""
    owners = {
        (mode, seed): run(PERSISTENT, mode=mode, seed=seed)[1][0, 0] for mode, seed in SCHEDULES
    }
    assert {len(set(who)) for who in owners.values()} - {1, 7}
    in_a_row = {mode: all((np.diff(who) >= 0).all() for (m, _), who in owners.items() if m == mode)
                for mode in ("random", "hostile")}  # fmt: skip
    assert in_a_row == {"random": True, "hostile": False}
    again = run(PERSISTENT, mode="hostile", seed=3)[1][0, 0]
    assert np.array_equal(again, owners["hostile", 3]), "a seed replays"


@pytest.mark.parametrize("mode, seed", SCHEDULES[::5])
def test_three_dimensions(mode, seed):
    """Three different extents, so that no two axes can be taken for each other."""
    times, who, _ = run(PERSISTENT, grid=(2, 3, 4), mode=mode, seed=seed)
    assert times.shape == (4, 3, 2) and (times == 1).all()
    assert (who.ravel() <= np.arange(24)).all() or mode == "hostile"


@pytest.mark.parametrize("mode, seed", SCHEDULES[::5])
def test_the_words_are_those_that_ptxas_reads(mode, seed):
    """cuDNN's open kernels have no query_cancel: x, the halves of the second word, bit 0 of the third."""
    words = """
        ld.shared.v4.b32 {%r3, %r16, %r17, %r18}, [%r2];
        and.b32 %r4, %r16, 0xffff; shr.u32 %r5, %r16, 16; and.b32 %r17, %r17, 1; setp.ne.u32 %p3, %r17, 0;
    """
    body = PERSISTENT.replace(READ, words)
    times, *_ = run(body, grid=(2, 3, 4), mode=mode, seed=seed)
    assert times.shape == (4, 3, 2) and (times == 1).all()


def test_ctaid_as_a_vector_and_128_bit_registers():
    """The other forms, in the same kernel: each thread takes the response through 16 bytes of its own."""
    others = f"""
        {{ .reg .b128 %g, %h, %k; ld.shared.b128 %g, [%r2]; mov.b128 {{%rd4, %rd5}}, %g; mov.b128 %h, {{%rd4, %rd5}};
          shl.b32 %r6, %r1, 4; add.u32 %r6, %r6, %r2; st.shared.b128 [%r6+128], %h; ld.shared.b128 %g, [%r6+128];
          mov.b128 %k, %g; {QUERY}.is_canceled.pred.b128 %p3, %k;
          {QUERY}.get_first_ctaid.v4.b32.b128 {{%r3, %r4, %r5, _}}, %k; }}
    """
    times, who, _ = run(PERSISTENT.replace(READ, others), grid=(2, 3, 2), shared=2048)
    assert (times == 1).all() and (who == 0).all()


PAIR = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
MULTICAST = (
    START
    + PAIR
    + "mov.u32 %r20, %cluster_ctarank; setp.eq.u32 %p4, %r20, 0; and.pred %p4, %p4, %p2; LOOP:"
    + DO_TILE
    + f"""
    @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+64], 16;
    @%p4 {TRY}.multicast::cluster::all.b128 [%r2], [%r2+64];
    """
    + WAIT
    + READ
    + f"add.u32 %r3, %r3, %r20; {FENCE} {PAIR} @%p3 bra LOOP;"
)


@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_multicast_to_a_pair(mode, seed):
    """Both CTAs read the response of one request, and each does the tile of its rank."""
    times, who, result = run(MULTICAST, grid=(6, 2, 1), cluster=(2, 1, 1), mode=mode, seed=seed)
    assert (times == 1).all()
    assert np.array_equal(who[..., 1::2], who[..., ::2] + 1)
    assert result.counters["clusters cancelled"] == 6 - len(set(who.flat)) // 2


# --- refusals -----------------------------------------------------------------------------------------------

# To p0 and p1, at the number of this CTA: what is_canceled and get_first_ctaid say.
ANSWER = """
    selp.b32 %r8, 1, 0, %p3;
    mov.u32 %r9, %ctaid.x; mul.wide.u32 %rd1, %r9, 4;
    ld.param.b64 %rd2, [p0]; add.s64 %rd2, %rd2, %rd1; ld.param.b64 %rd3, [p1]; add.s64 %rd3, %rd3, %rd1;
    @%p2 st.global.b32 [%rd2], %r8; @%p2 st.global.b32 [%rd3], %r3;
"""
ASK_TWICE = f"""
    @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+64], 32;
    @%p2 {TRY}.b128 [%r2], [%r2+64];
    @%p2 {TRY}.b128 [%r2+16], [%r2+64];
"""
READ_SECOND = READ.replace("[%r2]", "[%r2+16]")


def test_a_refusal_is_no_cancellation_and_its_ctaid_is_poison():
    granted, ctaid, _ = run(START + ASK + WAIT + READ + ANSWER, grid=(1, 1, 1))
    assert granted.item() == 0 and ctaid.item() + 1 == POISON


def test_no_request_after_a_refusal_that_was_seen():
    """One grant for two requests that are in flight together, which is allowed; then a third."""
    twice = START + ASK_TWICE + WAIT
    granted, ctaid, result = run(twice + READ + ANSWER, grid=(2, 1, 1), claims=1)
    assert granted[0, 0].tolist() == [1, 0] and ctaid[0, 0, 0] + 1 == 1
    assert result.counters["clusters cancelled"] == 1
    third = FENCE + "bar.sync 0;" + ASK
    # Until is_canceled of the second response has been read, the third request is like the second.
    run(twice + READ + third + WAIT.replace("WAIT", "LAST"), grid=(2, 1, 1), claims=1)
    with pytest.raises(EmulatorError, match="has seen that a request failed.*undefined") as error:
        run(twice + READ_SECOND + third, grid=(2, 1, 1), claims=1)
    assert TRY in str(error.value) and "PTX line" in str(error.value)


def test_a_cta_that_was_refused_gets_no_more():
    """Two requests in flight, 20 seeds: the second is granted only if the first is."""
    body = START + ASK_TWICE + WAIT + READ + "selp.b32 %r9, 1, 0, %p3;" + READ_SECOND
    body += "mov.b32 %r3, %r9;" + ANSWER.replace("%r9", "%r10")
    answers = set()
    for seed in range(20):
        second, first, _ = run(body, grid=(4, 1, 1), mode="random", seed=seed)
        answers.add((int(first[0, 0, 0]) + 1, int(second[0, 0, 0])))
    assert answers == {(0, 0), (1, 0), (1, 1)}


# --- errors -------------------------------------------------------------------------------------------------


def test_the_response_is_aligned():
    with pytest.raises(IllegalAccess, match="response of try_cancel.*not aligned to 16 bytes"):
        run(START + ASK.replace("[%r2],", "[%r2+8],"))


def test_other_bytes_are_no_response():
    body = START + "mov.b64 %rd8, 0; @%p2 st.shared.v2.b64 [%r2], {%rd8, %rd8}; bar.sync 0;" + READ
    with pytest.raises(EmulatorError, match="no response of try_cancel"):
        run(body)


def test_addresses_without_a_state_space_are_generic():
    body = PERSISTENT.replace(".async.shared::cta.", ".async.").replace("LOOP:", GENERIC + "LOOP:")
    times, _, _ = run(
        re.sub(
            r"(clusterlaunchcontrol.try_cancel.*?) \[%r2\], \[%r2\+64\]",
            r"\1 [%rd9], [%rd9+64]",
            body,
        )
    )
    assert (times == 1).all()
    with pytest.raises(IllegalAccess, match="generic address 0x400 is not in shared memory"):
        run(PERSISTENT.replace(".async.shared::cta.", ".async."))


@pytest.mark.parametrize("checks", ["ptx", "hardware"])
def test_the_response_is_read_after_the_wait(checks):
    """bar.sync is no substitute: in order, the response is there already, and the read is a race."""
    with pytest.raises(RaceError, match="nothing orders a read of shared memory after") as error:
        run(START + ASK + "bar.sync 0; bar.sync 0;" + READ + WAIT, checks=checks)
    assert "response of try_cancel (writes its destination)" in str(error.value)


def test_a_second_request_comes_after_the_readers():
    """Without the bar.sync of the loop, thread 0 asks again while the other warp may still read."""
    with pytest.raises(RaceError, match="response of try_cancel.*which read it"):
        run(PERSISTENT.replace(AGAIN, "@%p3 bra LOOP;"))


def test_a_second_request_comes_after_a_proxy_fence():
    """The writer is the asynchronous proxy and the readers are not. Level "hardware" does not ask for it."""
    body = PERSISTENT.replace(FENCE, "")
    with pytest.raises(
        ProxyError, match=r"comes after the generic read of warp [01], but no fence\.proxy\.async"
    ):
        run(body)
    times, _, _ = run(body, checks="hardware")
    assert (times == 1).all()


@pytest.mark.parametrize(
    "mode, checks, error", [("in_order", "ptx", InFlightError), ("hostile", None, EmulatorError)]
)
def test_a_request_must_be_over_when_its_cta_ends(mode, checks, error):
    """Hostile leaves it in flight; in order it is complete, but without a wait."""
    with pytest.raises(error, match="response of try_cancel"):
        run(START + ASK, mode=mode, checks=checks)


def test_claims_are_checked():
    with pytest.raises(ValueError, match="claims -1; accepted are None and integers from 0"):
        emulator.use(claims=-1)


# --- as the compiler writes it --------------------------------------------------------------------------


@cute.kernel
def persistent_kernel(times: cute.Tensor, who: cute.Tensor):
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
    response = cute.recast_ptr(base, dtype=cutlass.Int32)
    barrier = cute.recast_ptr(base + 16, dtype=cutlass.Int64)
    thread, _, _ = cute.arch.thread_idx()
    own, _, _ = cute.arch.block_idx()
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    tile, left, parity = own, cutlass.Int32(1), cutlass.Int32(0)
    while left != 0:
        if thread == 0:
            times[tile] += 1
            who[tile] = own
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 16)
            cute.arch.issue_clc_query(barrier, response, multicast=False)
        cute.arch.mbarrier_wait(barrier, parity)
        tile, _, _, left = cute.arch.clc_response(response)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        parity ^= 1


@cute.jit
def persistent(times: cute.Tensor, who: cute.Tensor):
    persistent_kernel(times, who).launch(grid=[cute.size(times), 1, 1], block=[64, 1, 1], smem=1024)


def test_a_compiled_kernel():
    """Through emulator.use: claims and the counter."""
    fake = [make_fake_compact_tensor(cutlass.Int32, (cute.sym_int(),)) for _ in range(2)]
    compiled = emulator.compile(persistent, *fake, checks="ptx")
    for claims, running in ((None, 1), (1, 4), (0, 7)):
        times, who = torch.zeros(2, 7, dtype=torch.int32)
        with emulator.use(claims=claims) as counted:
            compiled(times, who)
        assert (times == 1).all() and len(set(who.tolist())) == running
        assert counted.counters["clusters cancelled"] == 7 - running
