"""Tensor memory handed on by a relaxed arrival: tcgen05.wait, tcgen05.fence, at both levels (docs/decisions/0045)."""

import re

import pytest

from cute_fa4.emulator.ptx.errors import RaceError
from tests.emulator.core.ptx_bench import run_ptx

FENCE = "tcgen05.fence::before_thread_sync;"
# %r1 thread, %r2 dyn, %r3 rank, %p1 warp 0, %p2 warp 4 (the same lanes of tensor memory), %p3 thread 0.
# Mbarriers: dyn + 16 for warp 4, dyn + 24 for the relay.
START = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn; mov.u32 %r3, %cluster_ctarank;
    setp.lt.u32 %p1, %r1, 32; setp.ge.u32 %p2, %r1, 128; setp.eq.u32 %p3, %r1, 0;
    @%p3 mbarrier.init.shared.b64 [%r2+16], {count}; @%p3 mbarrier.init.shared.b64 [%r2+24], 32;
    @%p3 fence.mbarrier_init.release.cluster;
    @!%p1 bra ALLOCATED; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; ALLOCATED:
    bar.sync 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ld.shared.b32 %r20, [%r2];
    @!%p1 bra FILLED;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {{%r1}}; tcgen05.wait::st.sync.aligned;
    tcgen05.fence::before_thread_sync;
    FILLED: bar.sync 0; tcgen05.fence::after_thread_sync;
    @%p1 bra FIRST; @%p2 bra SECOND; {relay} bra.uni END;
    FIRST:
"""
WAIT = "{name}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p4, [%r2+{at}], 0; @!%p4 bra {name};"
END = """
    bra.uni END;
    SECOND: {wait} tcgen05.fence::after_thread_sync;
    {second}
    END: bar.sync 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    @!%p1 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32; FREED:
"""
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1};"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20];"
WAITS = {STORE: "tcgen05.wait::st.sync.aligned;", LOAD: "tcgen05.wait::ld.sync.aligned;"}
OWN = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r2+16];"
# Each CTA signals the other's relay, and that the CTA that has the tensor memory.
PEER = "xor.b32 %r4, %r3, 1; add.u32 %r5, %r2, {at}; mapa.shared::cluster.u32 %r5, %r5, %r4; "
TO_THE_RELAY = PEER.format(at=24) + "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r5];"
RELAY = (
    "setp.ge.u32 %p5, %r1, 64; @%p5 bra END; "
    + WAIT.format(name="RELAYED", at=24)
    + PEER.format(at=16)
    + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];"
)


def run(before, access, arrive, checks):
    """Warp 0 accesses, does what stands in before, arrives; warp 4 then makes the other access. Returns its notes."""
    second = LOAD if access == STORE else STORE
    peer = arrive == TO_THE_RELAY
    body = START.format(count=32, relay=RELAY if peer else "") + access + before + arrive
    body += END.format(wait=WAIT.format(name="ARRIVED", at=16), second=second + WAITS[second])
    cluster = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
    return run_ptx(body, threads=160, shared=256, checks=checks, **cluster).notes


ACCESSES = pytest.mark.parametrize("access", [STORE, LOAD], ids=["st", "ld"])
ARRIVALS = pytest.mark.parametrize("arrive", [OWN, TO_THE_RELAY], ids=["own", "peer"])


@ACCESSES
@ARRIVALS
@pytest.mark.parametrize("checks", ["ptx", "hardware"])
def test_with_wait_and_fence_it_is_ordered_at_both_levels(access, arrive, checks):
    assert not run(WAITS[access] + FENCE, access, arrive, checks)


@ACCESSES
@ARRIVALS
def test_the_wait_alone_is_what_published_kernels_rely_on(access, arrive):
    assert not run(WAITS[access], access, arrive, "hardware")
    with pytest.raises(RaceError, match="race on tensor memory column 0"):
        run(WAITS[access], access, arrive, "ptx")


@ACCESSES
@ARRIVALS
@pytest.mark.parametrize("checks", ["ptx", "hardware"])
def test_without_a_wait_it_is_refused_at_both_levels(access, arrive, checks):
    missing = re.search(r"tcgen05\.wait::(ld|st)", WAITS[access])[0]
    with pytest.raises(RaceError, match=f"missing is a barrier, with {missing} before it"):
        run("", access, arrive, checks)


@ACCESSES
@ARRIVALS
def test_a_wait_before_the_access_does_not_count(access, arrive):
    """The second of two accesses has none."""
    with pytest.raises(RaceError, match="race on tensor memory column 0"):
        run(WAITS[access] + access, access, arrive, "hardware")


@ARRIVALS
def test_shared_memory_needs_a_releasing_arrival(arrive):
    """A tcgen05.wait orders tensor memory alone."""
    body = (
        START.format(count=32, relay=RELAY if arrive == TO_THE_RELAY else "")
        + STORE + WAITS[STORE] + "st.shared.b32 [%r2+32], %r1;" + WAITS[STORE] + arrive
        + END.format(wait=WAIT.format(name="ARRIVED", at=16), second="ld.shared.b32 %r21, [%r2+32];")
    )  # fmt: skip
    cluster = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
    with pytest.raises(RaceError, match="shared"):
        run_ptx(body, threads=160, shared=256, checks="hardware", **cluster)
