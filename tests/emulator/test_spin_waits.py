"""CTAs that wait for CTAs of other clusters by looking at global memory: what a chip that holds them all would do.

A grid barrier, a semaphore that a later CTA raises, a chain from the last CTA to the first, a lock: each waits for
clusters that have not started when the wait begins, because the emulator begins them in order.
"""

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.run import launch
from cute_fa4.emulator.run.schedules import MODES

# Thread 0 of each CTA writes 100 + its number, announces it, waits, and copies what a neighbour wrote.
HEAD = """
.version 8.7
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 flags, .param .u64 out, .param .u32 number)
.reqntid 32
{
.reg .b64 %rd<9>; .reg .b32 %r<12>; .reg .pred %p<4>;
ld.param.u64 %rd1, [flags];
ld.param.u64 %rd2, [out];
ld.param.u32 %r1, [number];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %tid.x;
mul.wide.u32 %rd3, %r2, 4;
add.u64 %rd4, %rd2, %rd3;
setp.ne.u32 %p1, %r3, 0;
@%p1 bra END;
"""
WRITE = """
add.u32 %r4, %r2, 100;
st.global.u32 [%rd4], %r4;
"""
# %r8: the number of the CTA whose value is copied, after the values of all CTAs.
COPY = """
mul.wide.u32 %rd5, %r8, 4;
add.u64 %rd5, %rd2, %rd5;
ld.global.u32 %r7, [%rd5];
mul.wide.u32 %rd6, %r1, 4;
add.u64 %rd6, %rd4, %rd6;
st.global.u32 [%rd6], %r7;
"""
END = "END: ret; }\n"
NEXT = "add.u32 %r8, %r2, 1; rem.u32 %r8, %r8, %r1;\n"
OWN_FLAG = "add.u64 %rd7, %rd1, %rd3;\n"
BARRIER = (
    HEAD + WRITE + NEXT +
    """
fence.acq_rel.gpu;
red.relaxed.gpu.global.add.u32 [%rd1], 1;
SPIN:
ld.acquire.gpu.global.u32 %r5, [%rd1];
setp.lt.u32 %p2, %r5, %r1;
@%p2 bra SPIN;
""" + COPY + END
)  # fmt: skip
# The last CTA does not wait; each other one waits for the flag of the next CTA before it raises its own.
CHAIN = (
    HEAD + NEXT + OWN_FLAG +
    """
setp.eq.u32 %p3, %r8, 0;
@%p3 bra FREE;
SPIN:
ld.relaxed.gpu.u32 %r5, [%rd7+4];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra SPIN;
fence.acq_rel.gpu;
FREE:
""" + WRITE +
    """
st.release.gpu.global.u32 [%rd7], 1;
@%p3 bra END;
""" + COPY + END
)  # fmt: skip
# The first CTA takes a lock that the last one opens; the others do nothing.
LOCK = (
    HEAD + WRITE +
    """
sub.u32 %r8, %r1, 1;
setp.eq.u32 %p3, %r2, %r8;
@%p3 bra OPEN;
setp.ne.u32 %p3, %r2, 0;
@%p3 bra END;
SPIN:
atom.acquire.gpu.global.cas.b32 %r5, [%rd1], 1, 2;
setp.ne.u32 %p2, %r5, 1;
@%p2 bra SPIN;
""" + COPY +
    """
bra END;
OPEN:
st.release.gpu.global.u32 [%rd1], 1;
""" + END
)  # fmt: skip
NEVER_RAISED = """
.shared .align 8 .b64 raised;
mbarrier.init.shared::cta.b64 [raised], 1;
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [raised], 0;
@!%p2 bra WAIT;
"""
# Whose value each CTA copies; -1: none.
KERNELS = {
    "barrier": (BARRIER, lambda i, n: (i + 1) % n),
    "chain": (CHAIN, lambda i, n: i + 1 if i + 1 < n else -1),
    "lock": (LOCK, lambda i, n: n - 1 if i == 0 else -1),
}


def run(ptx, ctas, cluster=1, number=None, **how):
    """(flags, what the CTAs copied), -1 where a CTA copies nothing; checks at level "ptx"."""
    flags, out = torch.zeros(ctas + 1, dtype=torch.int32), torch.full((2 * ctas + 1,), -1).int()
    with emulator.use(checks="ptx", **how):
        ptx_files.load(ptx).launch(
            flags, out, ctas if number is None else number,
            grid=(ctas, 1, 1), block=(32, 1, 1), cluster=(cluster, 1, 1),
        )  # fmt: skip
    return flags, out[ctas : 2 * ctas].tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", KERNELS)
def test_ctas_that_wait_for_each_other_end(name, mode):
    """Six CTAs, alone and in clusters of two: the wait goes beyond the cluster."""
    ptx, copied = KERNELS[name]
    expected = [100 + copied(i, 6) if copied(i, 6) >= 0 else -1 for i in range(6)]
    for cluster in (1, 2):
        assert run(ptx, 6, cluster, mode=mode, seed=2)[1] == expected


def test_the_second_half_on_another_core_is_let_in():
    assert run(BARRIER, 6, cores=2)[1] == run(BARRIER, 6)[1]


@pytest.mark.parametrize(
    "ptx, right, wrong",
    [
        (BARRIER, "ld.acquire.gpu", "ld.relaxed.gpu"),  # nothing is learned
        (BARRIER, "ld.acquire.gpu", "ld.acquire.cta"),  # not from another CTA
        (BARRIER, "fence.acq_rel.gpu;", ""),  # nothing is told
        (CHAIN, "st.release.gpu", "st.release.cluster"),  # not to another cluster
        (LOCK, "st.release.gpu", "st.relaxed.gpu"),
    ],
)
def test_an_order_that_does_not_reach_another_cluster_is_a_race(ptx, right, wrong):
    assert right in ptx
    with pytest.raises(emulator.RaceError, match="race on byte"):
        run(ptx.replace(right, wrong), 4)


def test_a_scope_of_the_cluster_is_enough_within_one():
    narrow = CHAIN.replace("release.gpu", "release.cluster").replace(
        "acq_rel.gpu", "acq_rel.cluster"
    )
    narrow = narrow.replace("relaxed.gpu", "relaxed.cluster")
    assert run(narrow, 2, cluster=2)[1] == [101, -1]


def test_a_spin_that_cannot_end_says_who_spins_where_and_who_wrote_last():
    """A barrier of four that waits for five."""
    with pytest.raises(emulator.Deadlock) as report:
        run(BARRIER, 4, number=5)
    text = str(report.value)
    assert "every warp that can run spins, and nothing changes" in text
    for cta in range(4):
        assert f"CTA ({cta}, 0, 0) warp 0" in text
    assert text.count("4 bytes, which hold 0x4") == 4
    last = text[text.index("(byte 0 of the tensor") :]
    assert "holds 0x4, written last by\n  CTA (3, 0, 0)" in last
    assert "red.relaxed.gpu.global.add.u32" in last and "have not started" not in last


def test_more_ctas_than_the_chip_holds_cannot_all_wait(monkeypatch):
    """A chip of one SM holds 32 CTAs of a warp; the 33rd never comes."""
    monkeypatch.setattr(launch, "SMS", 1)
    assert run(BARRIER, 32)[1][0] == 101
    with pytest.raises(
        emulator.Deadlock, match="1 clusters of the grid have not started: .* 32 of"
    ):
        run(BARRIER, 33)


def test_a_wait_that_is_no_spin_says_nothing_of_clusters_after_it(monkeypatch):
    """On an mbarrier that is never raised."""
    monkeypatch.setattr(launch, "SMS", 0)  # room for one cluster
    with pytest.raises(emulator.Deadlock) as report:
        run(HEAD + NEVER_RAISED + END, 4)
    assert "have not started" not in str(report.value)


@pytest.mark.parametrize(
    "shared, threads, ctas, most", [(0, 32, 1, 4736), (200 << 10, 128, 1, 148), (0, 1024, 4, 74)]
)
def test_how_many_clusters_a_chip_holds(shared, threads, ctas, most):
    """32 CTAs an SM, 228 KiB, 2,048 threads."""
    kernel = type("Kernel", (), {"directives": {}})
    assert launch.resident_clusters(kernel, threads, shared, ctas) == most
