"""An order holds among the threads that both scopes name: a message passed to a warp, a CTA, a cluster away."""

import itertools

import numpy as np
import pytest

from cute_fa4.emulator.checks.scopes import written_scope
from cute_fa4.emulator.ptx.errors import RaceError
from tests.emulator.core.ptx_bench import run_ptx

SCOPES = ("cta", "cluster", "gpu", "sys")  # each includes those before it
# How far the reader is from the writer -> the launch that puts it there, the smallest scope that includes both.
DISTANCES = {
    "in the CTA": (dict(threads=64), "cta"),
    "in the cluster": (dict(threads=32, grid=(2, 1, 1), cluster=(2, 1, 1)), "cluster"),
    "in another cluster": (dict(threads=32, grid=(2, 1, 1)), "gpu"),
}

# p0: the message, p1: the flag, p2: what the reader found. The first warp of the grid writes, the second reads.
WHO = """
    ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1]; ld.param.b64 %rd3, [p2];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; or.b32 %r3, %r1, %r2;
    setp.eq.u32 %p1, %r3, 0;
    and.b32 %r4, %r1, 31; setp.eq.u32 %p2, %r4, 0;
    @!%p2 bra DONE;
    @!%p1 bra READ;
"""
MESSAGE = (
    WHO
    + """
    mov.b32 %r5, 7;
    st.global.b32 [%rd1], %r5;
    {before}
    mov.b32 %r5, 1;
    st.{release}.global.b32 [%rd2], %r5;
    bra DONE;
    READ: ld.{acquire}.global.b32 %r6, [%rd2];
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bra READ;
    {after}
    ld.global.b32 %r7, [%rd1];
    st.global.b32 [%rd3], %r7;
    DONE:
"""
)
COUNTER = WHO + "READ: red.relaxed.{scope}.global.add.u32 [%rd2], 1; DONE:"


def passes(body, launch, level="ptx"):
    """The message arrives, or None when the checks report a race."""
    message, flag, found = (np.zeros(4, np.uint32) for _ in range(3))
    try:
        run_ptx(body, message, flag, found, checks=level, **launch)
    except RaceError:
        return None
    return int(found[0]), int(flag[0])


def includes(scope, needed):
    return SCOPES.index(scope) >= SCOPES.index(needed)


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_release_and_an_acquire_order_when_both_scopes_reach(distance):
    launch, needed = DISTANCES[distance]
    for release, acquire in itertools.product(SCOPES, SCOPES):
        body = MESSAGE.format(
            before="", after="", release=f"release.{release}", acquire=f"acquire.{acquire}"
        )
        reaches = includes(release, needed) and includes(acquire, needed)
        assert passes(body, launch) == ((7, 1) if reaches else None), (release, acquire)


@pytest.mark.parametrize("distance", DISTANCES)
def test_fences_around_relaxed_accesses_order_when_both_scopes_reach(distance):
    launch, needed = DISTANCES[distance]
    for before, after in itertools.product(SCOPES, SCOPES):
        body = MESSAGE.format(
            before=f"fence.acq_rel.{before};",
            after=f"fence.acq_rel.{after};",
            release="relaxed.gpu",
            acquire="relaxed.gpu",
        )
        reaches = includes(before, needed) and includes(after, needed)
        assert passes(body, launch) == ((7, 1) if reaches else None), (before, after)


def test_a_fence_of_one_direction_orders_that_way_alone():
    """PTX ISA, "membar/fence": fence.release and fence.acquire with .sync_restrict have the cluster's scope."""
    launch, _ = DISTANCES["in the cluster"]
    release = "fence.release.sync_restrict::shared::cta.cluster;"
    acquire = "fence.acquire.sync_restrict::shared::cluster.cluster;"
    for before, after in itertools.product((release, acquire), repeat=2):
        relaxed = dict(release="relaxed.cluster", acquire="relaxed.cluster")
        body = MESSAGE.format(before=before, after=after, **relaxed)
        arrives = before == release and after == acquire
        assert passes(body, launch) == ((7, 1) if arrives else None), (before, after)


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_relaxed_access_reaches_no_further_than_its_own_scope(distance):
    launch, needed = DISTANCES[distance]
    for scope in SCOPES:
        body = MESSAGE.format(
            before="fence.acq_rel.sys;",
            after="fence.acq_rel.sys;",
            release=f"relaxed.{scope}",
            acquire="relaxed.sys",
        )
        assert passes(body, launch) == ((7, 1) if includes(scope, needed) else None), scope


@pytest.mark.parametrize("distance", DISTANCES)
def test_atomics_meet_within_their_scopes(distance):
    launch, needed = DISTANCES[distance]
    for scope in SCOPES:
        counted = passes(COUNTER.format(scope=scope), launch)
        assert (counted is not None) == includes(scope, needed), scope


def test_a_scope_is_a_word_of_its_own():
    assert written_scope("mbarrier.arrive.release.cluster.shared::cta.b64") == 1
    assert written_scope("fence.proxy.async.shared::cta") is None
    assert written_scope("membar.gl") == written_scope("atom.relaxed.sys.global.add.u32") == 2
