"""Tensor memory of a pair of CTAs: who may allocate it when, and who may free it.

Both mistakes have been made by others' kernels, and found on chips: NVIDIA/cutlass#3316 (compute-sanitizer) and
NVIDIA/cutlass#3435 (a B300 ends the launch every time).
"""

import pytest

from cute_fa4.emulator.ptx.errors import TensorMemoryError
from tests.emulator.core.ptx_bench import run_ptx

MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
ALLOC = (
    "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [dyn], 128; ld.shared.b32 %r1, [dyn];"
)
GIVE_UP = "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;"
FREE = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, 128;"
SCHEDULES = [
    ("in_order", 0),
    *((mode, seed) for mode in ("random", "hostile") for seed in range(3)),
]


def run(body, mode="in_order", seed=0, checks="ptx"):
    return run_ptx(
        body, shared=1024, grid=(4, 1, 1), cluster=(2, 1, 1), mode=mode, seed=seed, checks=checks
    )


@pytest.mark.parametrize("checks", [None, "hardware", "ptx"])
@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_a_pair_meets_before_it_allocates_and_before_it_frees(mode, seed, checks):
    run(MEET + ALLOC + GIVE_UP + MEET + FREE, mode, seed, checks)


@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_a_pair_that_has_not_met_does_not_allocate(mode, seed):
    """The peer may not have been launched yet. Hardware usually has launched it: level "hardware" accepts this."""
    body = ALLOC + GIVE_UP + MEET + FREE
    with pytest.raises(TensorMemoryError, match=r"nothing says that the other CTA .* launched"):
        run(body, mode, seed)
    run(body, mode, seed, "hardware")


@pytest.mark.parametrize("checks", ["hardware", "ptx"])
@pytest.mark.parametrize("mode, seed", SCHEDULES)
def test_a_cta_that_frees_knows_that_the_other_has_allocated(mode, seed, checks):
    """Without ordering checks it depends on the schedule."""
    with pytest.raises(TensorMemoryError, match=r"the tcgen05.alloc of the other CTA"):
        run(MEET + ALLOC + GIVE_UP + FREE + MEET, mode, seed, checks)


def test_news_by_an_mbarrier_of_the_other_cta_are_enough():
    """An arrival shows that the peer is running, and one after its allocation that it may be freed."""
    arrive = (
        "mapa.shared::cluster.u32 %r3, %r2, %r5; "
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3], 1; "
    )
    wait = "{0}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], {1}; @!%p2 bra {0};"
    body = (
        "mov.b32 %r2, dyn; add.u32 %r2, %r2, 64; mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1; "
        "elect.sync _|%p1, 0xffffffff; @%p1 mbarrier.init.shared.b64 [%r2], 1; "
        "@%p1 fence.mbarrier_init.release.cluster; "
        + MEET + ALLOC + GIVE_UP
        + "@!%p1 bra SENT; " + arrive + "SENT: " + wait.format("HERE", 0) + FREE + MEET
    )  # fmt: skip
    for mode, seed in SCHEDULES:
        run(body, mode, seed)
