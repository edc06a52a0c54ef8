"""A fence between mbarrier.init and a copy that signals the mbarrier: an error, or in the same CTA a note."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import BarrierError
from tests.emulator.core.ptx_bench import run_ptx

FENCES = [
    "fence.mbarrier_init.release.cluster;",
    "fence.proxy.async;",
    "fence.proxy.async.shared::cta;",
]
INIT = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn; setp.eq.u32 %p1, %r1, 0; ld.param.b64 %rd1, [p0];
    @!%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r2], 1; {fence}
READY:
    {sync}
"""
WAIT = "\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0; @!%p3 bra WAIT;\n"
COPY = (
    INIT.replace("{sync}", "bar.sync 0;")
    + """
    @!%p1 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2+64], [%rd1], 16, [%r2];
    """
    + WAIT
)
# CTA 0 copies into both CTAs, and signals the mbarriers of both.
MULTICAST = (
    INIT.replace("{sync}", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;")
    + """
    mov.u32 %r3, %cluster_ctarank; mov.b16 %rs1, 3;
    @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.eq.and.u32 %p2, %r3, 0, %p1; @!%p2 bra WAIT;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r2+64], [%rd1], 16, [%r2], %rs1;
    """
    + WAIT
    + "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
)


def run(body, fence, checks, ctas=1):
    storage = np.zeros(32, np.uint8)
    data = storage[-storage.ctypes.data % 16 :][:16]
    cluster = {"grid": (ctas, 1, 1), "cluster": (ctas, 1, 1)}
    return run_ptx(body.replace("{fence}", fence), data, shared=256, checks=checks, **cluster)


@pytest.mark.parametrize("checks", ["ptx", "hardware", ("hardware", "unfenced_barrier")], ids=str)
@pytest.mark.parametrize("fence", FENCES)
def test_with_a_fence_there_is_nothing_to_report(fence, checks):
    assert not run(COPY, fence, checks).notes


@pytest.mark.parametrize("checks", ["ptx", ("hardware", "unfenced_barrier")], ids=str)
def test_without_a_fence_it_is_an_error_of_the_written_rules(checks):
    with pytest.raises(
        Exception, match=r"fence\.mbarrier_init \(or fence\.proxy\.async\) is missing"
    ) as error:
        run(COPY, "", checks)
    assert "mbarrier.init.shared::cta.b64 [%r2], 1" in str(error.value)


def test_what_published_kernels_rely_on_is_a_note_once():
    [note] = run(COPY, "", "hardware").notes
    assert note.check == "unfenced_barrier" and "mbarrier.init.shared::cta.b64 [%r2], 1" in note
    assert not run(COPY, "", None).notes


@pytest.mark.parametrize("checks", ["ptx", "hardware"])
def test_a_copy_from_another_cta_needs_the_fence_at_every_level(checks):
    assert not run(MULTICAST, FENCES[0], checks, ctas=2).notes
    with pytest.raises(BarrierError, match=r"fence\.mbarrier_init"):
        run(MULTICAST, "", checks, ctas=2)


@pytest.mark.parametrize("checks", ["ptx", "hardware"])
def test_an_initialization_that_nothing_orders_is_an_error_at_every_level(checks):
    unordered = COPY.replace("bar.sync 0;", "").replace(
        "setp.eq.u32 %p1, %r1, 0;", "setp.eq.u32 %p1, %r1, 0;"
    )
    body = (
        unordered.replace("@!%p1 bra WAIT;", "setp.eq.u32 %p1, %r1, 32; @!%p1 bra END;", 1) + "END:"
    )
    storage = np.zeros(32, np.uint8)
    data = storage[-storage.ctypes.data % 16 :][:16]
    with pytest.raises(BarrierError, match="nothing orders this use after its initialisation"):
        run_ptx(body.replace("{fence}", FENCES[0]), data, threads=64, shared=256, checks=checks)
