"""Ten-line kernels, each with one ordering bug that its marked lines repair.

A line that ends in //FIX is left out of the bug and part of the corrected twin; one that ends in //BUG the
other way round. p0 points at 256 words of output, p1 at as many of input. Most kernels give the right result
in either form on a machine that executes one thing after another: only the order is wrong.
"""

from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    InFlightError,
    ProxyError,
    RaceError,
    RegisterHazard,
    TensorOrderError,
)
from tests.emulator.core.ptx_bench import run_ptx

BOTH, PTX = ("ptx", "hardware"), ("ptx",)

# %r1 thread, %r2 dyn, %r3 dyn + 4 * lane, %p1 warp 0, %p2 thread 0, %rd1 output + 4 * thread, %rd2 input
START = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn;
    and.b32 %r3, %r1, 31; shl.b32 %r3, %r3, 2; add.s32 %r3, %r2, %r3;
    setp.lt.u32 %p1, %r1, 32; setp.eq.u32 %p2, %r1, 0;
    ld.param.b64 %rd1, [p0]; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd1, %rd1, %rd3;
    ld.param.b64 %rd2, [p1];
"""
INIT = """
    @%p2 mbarrier.init.shared.b64 [%r2+1024], {count};
    @%p2 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
WAIT = """
    W{name}: mbarrier.try_wait.parity.shared.b64 %p9, [%r2+1024], {parity};
    @!%p9 bra W{name};
"""
ALLOCATE = """
    @!%p1 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+1032], 32;
    ALLOCATED: bar.sync 0;
    ld.shared.b32 %r20, [%r2+1032];
"""
FREE = """
    bar.sync 0;
    @!%p1 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;
    FREED:
"""
# 128 rows of 16 bytes at %r2 + 2048, one by each thread; twice to tensor memory, as columns 0 to 3 and 4 to 7.
ROWS = """
    shl.b32 %r6, %r1, 4; add.s32 %r6, %r6, %r2; st.shared.v4.b32 [%r6+2048], {%r1, %r1, %r1, %r1};
    add.s32 %r7, %r2, 2048; shr.u32 %r7, %r7, 4; cvt.u64.u32 %rd9, %r7; or.b64 %rd9, %rd9, 0x400800080000;
"""
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
COPY = """
    add.s32 %r8, %r20, 4;
    @%p2 tcgen05.cp.cta_group::1.128x128b [%r20], %rd9;
    @%p2 tcgen05.cp.cta_group::1.128x128b [%r8], %rd9;
"""
COMMIT = """
    @%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2+1024];
"""
COPIED = WAIT + "tcgen05.fence::after_thread_sync;"
LOAD = """
    and.b32 %r9, %r1, 96; shl.b32 %r9, %r9, 16; add.s32 %r9, %r9, %r20;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 %r21, [%r9]; tcgen05.wait::ld.sync.aligned;
    tcgen05.fence::before_thread_sync;
"""

# A product of 16 bits, M 128, N 16, and a second; every 16 bytes of K are the same, and no number is a NaN.
TWO_PRODUCTS = (
    INIT.format(count=1)
    + ALLOCATE
    + "and.b32 %r5, %r1, 63;"
    + ROWS.replace("{%r1, %r1, %r1, %r1}", "{{%r5, %r5, %r5, %r5}}")
    + FENCE
    + "tcgen05.fence::after_thread_sync;"
    + """
    xor.b64 %rd10, %rd9, 0x80000;
    mov.b32 %r13, 0x8040010; mov.b32 %r14, 0x8020010;
    setp.eq.b32 %p4, %r13, %r13; setp.ne.b32 %p3, %r13, %r13; add.s32 %r12, %r20, 8;
    @%p2 tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd10, %rd10, %r13, %p3;
    """
    + COMMIT.replace(";\n", "; //FIX\n")
    + COPIED.format(name=0, parity=0).replace(";\n", "; //FIX\n").replace("sync;", "sync; //FIX\n")
    + "@%p2 {second};"
    + COMMIT
    + "bar.sync 0; //FIX\n"
    + COPIED.format(name=1, parity=1).replace(";\n", "; //FIX\n").replace("sync;", "sync; //FIX\n")
    + COPIED.format(name=2, parity=0).replace(";\n", "; //BUG\n").replace("sync;", "sync; //BUG\n")
    + FREE
)


@dataclass(frozen=True)
class Bug:
    """One kernel: the error of the bug, the levels that report it, and how it is launched."""

    name: str
    body: str
    error: type
    message: str
    levels: tuple = BOTH
    threads: int = 64
    ctas: int = 1
    cluster: int = 1

    def text(self, fixed):
        """The kernel's body with (fixed) or without its repair."""
        dropped = "//BUG" if fixed else "//FIX"
        lines = [line for line in (START + self.body).split("\n") if dropped not in line]
        return "\n".join(line.split("//")[0] for line in lines)

    def run(self, fixed, checks, **schedule):
        """Execute it; returns the output."""
        return self.launch(fixed, checks, **schedule)[0]

    def launch(self, fixed, checks, **schedule):
        """Execute it; returns the output and the GridResult."""
        out, source = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
        result = run_ptx(
            self.text(fixed),
            out,
            source,
            threads=self.threads,
            shared=16384,
            grid=(self.ctas, 1, 1),
            cluster=(self.cluster, 1, 1),
            checks=checks,
            **schedule,
        )
        return out, result


BUGS = (
    Bug(
        "read without barrier",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        bar.sync 0; //FIX
        @!%p1 ld.shared.b32 %r4, [%r3];
        """,
        RaceError,
        "nothing orders a read of shared memory after the access of warp 0, which wrote it",
    ),
    Bug(
        "overwritten while read",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        bar.sync 0;
        @%p1 ld.shared.b32 %r4, [%r3];
        bar.sync 0; //FIX
        @!%p1 st.shared.b32 [%r3], %r1;
        """,
        RaceError,
        "nothing orders",
    ),
    Bug(
        "named barrier of the others",
        """
        @%p1 bra FIRST;
        barrier.sync 2, 64; //FIX
        st.shared.b32 [%r3], %r1; bra.uni END;
        FIRST: st.shared.b32 [%r3], %r1;
        barrier.arrive 2, 64; //FIX
        END:
        """,
        RaceError,
        "write to shared memory",
    ),
    Bug(
        "relaxed arrival",
        INIT.format(count=32)
        + """
        @!%p1 bra READER;
        st.shared.b32 [%r3], %r1;
        mbarrier.arrive.relaxed.cta.shared.b64 _, [%r2+1024], 1; //BUG
        mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //FIX
        bra.uni END;
        """
        + "READER:"
        + WAIT.format(name=0, parity=0)
        + """
        ld.shared.b32 %r4, [%r3];
        END:
        """,
        RaceError,
        "read of shared memory",
    ),
    Bug(
        "barrier used before its initialisation is known",
        """
        @%p2 mbarrier.init.shared.b64 [%r2+1024], 32;
        bar.sync 0; //FIX
        @!%p1 mbarrier.arrive.shared.b64 _, [%r2+1024], 1;
        """,
        BarrierError,
        "nothing orders this use after its initialisation",
    ),
    Bug(
        "phase passed while nobody looked",
        INIT.format(count=32)
        + """
        @%p1 mbarrier.arrive.shared.b64 _, [%r2+1024], 1;
        @%p1 mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //BUG
        bar.sync 0;
        @%p1 bra END;
        """
        + WAIT.format(name=0, parity=0)
        + "END:",
        BarrierError,
        "phases 0 to 1 completed before this wait looked",
    ),
    # Who arrives in a phase knows which one it is, without having waited for those before.
    Bug(
        "phase passed by a warp that does not arrive in it",
        INIT.format(count=64)
        + """
        @!%p1 bra LATE;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 2;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 2;
        bar.sync 1, 64;
        bar.sync 2, 64;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //FIX
        mbarrier.arrive.shared.b64 _, [%r2+1024], 2; //BUG
        bra.uni END;
        LATE: bar.sync 1, 64;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //FIX
        mbarrier.test_wait.parity.shared.b64 %p9, [%r2+1024], 0;
        bar.sync 2, 64;
        """
        + WAIT.format(name=0, parity=0)
        + "END:",
        BarrierError,
        "phases 0 to 1 completed before this wait looked",
    ),
    Bug(
        "phases passed since a warp arrived",
        INIT.format(count=64)
        + """
        @!%p1 bra LATE;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 2;
        bar.sync 1, 64;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 1;
        bar.sync 2, 64;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 2; //BUG
        bar.sync 3, 64;
        bra.uni END;
        LATE: bar.sync 1, 64;
        mbarrier.arrive.shared.b64 _, [%r2+1024], 1;
        bar.sync 2, 64;
        bar.sync 3, 64;
        """
        + WAIT.format(name=0, parity=1)
        + "END:",
        BarrierError,
        "phases 1 to 2 completed before this wait looked",
    ),
    Bug(
        "half of the arrivals at the end",
        INIT.format(count=64)
        + """
        @%p1 mbarrier.arrive.shared.b64 _, [%r2+1024], 1;
        @!%p1 mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //FIX
        """,
        BarrierError,
        "lacks 32 of 64 arrivals",
        PTX,
    ),
    Bug(
        "bytes that never come",
        INIT.format(count=1)
        + """
        @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 128; //BUG
        @%p2 mbarrier.arrive.shared.b64 _, [%r2+1024], 1; //FIX
        """,
        BarrierError,
        "lacks 128 bytes",
        PTX,
    ),
    Bug(
        "copy reads what no proxy fence published",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        @%p1 fence.proxy.async.shared::cta; //FIX
        bar.sync 0;
        @!%p2 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END:
        """,
        ProxyError,
        "no fence.proxy.async",
    ),
    Bug(
        "fence of the other address space",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        @%p1 fence.proxy.async.global; //BUG
        @%p1 fence.proxy.async; //FIX
        bar.sync 0;
        @!%p2 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        END:
        """,
        ProxyError,
        "no fence.proxy.async",
    ),
    Bug(
        "source overwritten while a copy reads it",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        fence.proxy.async;
        bar.sync 0;
        @!%p2 bra END;
        cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0; //FIX
        st.shared.b32 [%r2], 7;
        cp.async.bulk.wait_group.read 0;
        END:
        """,
        RaceError,
        "bulk store",
    ),
    Bug(
        "nobody waits for a store",
        """
        @%p1 st.shared.b32 [%r3], %r1;
        fence.proxy.async; bar.sync 0;
        @%p2 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
        @%p2 cp.async.bulk.commit_group;
        @%p2 cp.async.bulk.wait_group.read 0; //FIX
        bar.sync 0;
        """,
        InFlightError,
        "nobody has waited for: the bulk store of 128 bytes",
        PTX,
    ),
    Bug(
        "copy not waited for by its reader",
        INIT.format(count=1)
        + """
        @%p1 bra READ;
        setp.eq.u32 %p4, %r1, 32;
        @%p4 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 128;
        @%p4 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 128, [%r2+1024];
        """
        + WAIT.format(name=0, parity=0)
        + """
        READ:
        bar.sync 0; //FIX
        @%p1 ld.shared.b32 %r4, [%r3];
        """,
        RaceError,
        "after the access of warp 1, which wrote it",
    ),
    Bug(
        "barrier not published to copies",
        """
        @%p2 mbarrier.init.shared.b64 [%r2+1024], 1;
        @%p2 fence.mbarrier_init.release.cluster; //FIX
        bar.sync 0;
        @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], 128;
        @%p2 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 128, [%r2+1024];
        """
        + WAIT.format(name=0, parity=0),
        BarrierError,
        "not visible to asynchronous operations",
        PTX,
    ),
    Bug(
        "cp.async not waited for",
        """
        mul.wide.u32 %rd4, %r1, 4; add.s64 %rd4, %rd2, %rd4;
        @%p1 cp.async.ca.shared.global [%r3], [%rd4], 4;
        @%p1 cp.async.wait_all; //FIX
        bar.sync 0;
        @!%p1 ld.shared.b32 %r4, [%r3];
        cp.async.wait_all;
        """,
        RaceError,
        "cp.async",
    ),
    Bug(
        "write to the peer without cluster barrier",
        """
        mov.u32 %r5, %cluster_ctarank; xor.b32 %r5, %r5, 1;
        mapa.shared::cluster.u32 %r6, %r3, %r5;
        @%p1 st.shared::cluster.b32 [%r6], %r1;
        barrier.cluster.arrive.relaxed; //BUG
        barrier.cluster.arrive; //FIX
        barrier.cluster.wait;
        @%p1 ld.shared.b32 %r4, [%r3];
        barrier.cluster.arrive; barrier.cluster.wait;
        """,
        RaceError,
        "read of shared memory",
        ctas=2,
        cluster=2,
    ),
    Bug(
        "two CTAs write one element",
        """
        mov.u32 %r5, %ctaid.x; add.s32 %r6, %r1, %r5;
        mul.lo.u32 %r5, %r5, 256; cvt.u64.u32 %rd5, %r5; add.s64 %rd1, %rd1, %rd5; //FIX
        st.global.b32 [%rd1], %r6;
        """,
        RaceError,
        "which wrote it in another cluster",
        ctas=2,
    ),
    Bug(
        "flag without release",
        """
        mov.u32 %r5, %ctaid.x; setp.ne.u32 %p3, %r5, 0; ld.param.b64 %rd6, [p0];
        @%p3 bra SECOND;
        @%p2 st.global.b32 [%rd6], 7;
        @%p2 st.relaxed.gpu.global.b32 [%rd6+128], 1; //BUG
        @%p2 st.release.gpu.global.b32 [%rd6+128], 1; //FIX
        bra.uni END;
        SECOND:
        @%p2 ld.acquire.gpu.global.b32 %r6, [%rd6+128];
        @%p2 ld.global.b32 %r7, [%rd6];
        END:
        """,
        RaceError,
        "which wrote it in another cluster",
        ctas=2,
    ),
    Bug(
        "registers used before wait::ld",
        ALLOCATE
        + """
        @!%p1 bra DONE;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1}; tcgen05.wait::st.sync.aligned;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20];
        tcgen05.wait::ld.sync.aligned; //FIX
        add.s32 %r22, %r21, 1;
        tcgen05.wait::ld.sync.aligned;
        DONE:
        """
        + FREE,
        RegisterHazard,
        "before tcgen05.wait::ld",
        PTX,
    ),
    Bug(
        "load before wait::st",
        ALLOCATE
        + """
        @!%p1 bra DONE;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1}; tcgen05.wait::st.sync.aligned;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r2};
        tcgen05.wait::st.sync.aligned; //FIX
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20]; tcgen05.wait::ld.sync.aligned;
        tcgen05.wait::st.sync.aligned;
        DONE:
        """
        + FREE,
        RaceError,
        "race on tensor memory column 0",
    ),
    Bug(
        "no tcgen05.fence before the barrier",
        ALLOCATE
        + """
        @!%p1 bra OTHERS;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1}; tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync; //FIX
        OTHERS: bar.sync 0;
        setp.lt.u32 %p3, %r1, 128; @%p3 bra DONE;
        tcgen05.fence::after_thread_sync;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20]; tcgen05.wait::ld.sync.aligned;
        DONE:
        """
        + FREE,
        TensorOrderError,
        "tcgen05.fence::before_thread_sync",
        PTX,
        threads=160,
    ),
    Bug(
        "no tcgen05.fence after the barrier",
        ALLOCATE
        + """
        @!%p1 bra OTHERS;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1}; tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync;
        OTHERS: bar.sync 0;
        setp.lt.u32 %p3, %r1, 128; @%p3 bra DONE;
        tcgen05.fence::after_thread_sync; //FIX
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20]; tcgen05.wait::ld.sync.aligned;
        DONE:
        """
        + FREE,
        TensorOrderError,
        "after_thread_sync",
        PTX,
        threads=160,
    ),
    Bug(
        "freed while others read it",
        ALLOCATE
        + """
        @!%p1 bra OTHERS;
        tcgen05.st.sync.aligned.32x32b.x1.b32 [%r20], {%r1}; tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync;
        OTHERS: bar.sync 0;
        setp.lt.u32 %p3, %r1, 128; @%p3 bra READER;
        bar.sync 1, 64; //FIX
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;
        READER: @!%p1 bra END;
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r20]; tcgen05.wait::ld.sync.aligned;
        bar.arrive 1, 64;
        END:
        """,
        RaceError,
        "tcgen05.dealloc",
        threads=160,
    ),
    Bug(
        "copied to tensor memory without a proxy fence",
        INIT.format(count=1)
        + ALLOCATE
        + ROWS
        + "fence.proxy.async.shared::cta; //FIX\n bar.sync 0;"
        + COPY
        + COMMIT
        + COPIED.format(name=0, parity=0)
        + FREE,
        ProxyError,
        "fence.proxy.async",
        threads=128,
    ),
    Bug(
        "read before the commit that covers a copy",
        INIT.format(count=1)
        + ALLOCATE
        + ROWS
        + FENCE
        + COPY
        + COMMIT
        + COPIED.format(name=0, parity=0)
        + LOAD
        + "bar.sync 0; tcgen05.fence::after_thread_sync;"
        + COPY
        + COMMIT
        + WAIT.format(name=1, parity=1).replace(";\n", "; //FIX\n")
        + "tcgen05.fence::after_thread_sync;"
        + LOAD
        + WAIT.format(name=2, parity=1)
        + FREE,
        RaceError,
        "race on tensor memory column 0: nothing orders",
        threads=128,
    ),
    Bug(
        "rows shifted while others read them",
        INIT.format(count=1)
        + ALLOCATE
        + ROWS
        + FENCE
        + COPY
        + COMMIT
        + COPIED.format(name=0, parity=0)
        + LOAD
        + """
        bar.sync 0; //FIX
        tcgen05.fence::after_thread_sync;
        @%p2 tcgen05.shift.cta_group::1.down [%r20];
        """
        + COMMIT
        + COPIED.format(name=1, parity=1)
        + FREE,
        RaceError,
        "tcgen05.shift",
        threads=128,
    ),
    Bug(
        "metadata of a sparse product stored again without a barrier",
        INIT.format(count=1)
        + ALLOCATE
        + ROWS
        + FENCE
        + """
        and.b32 %r10, %r1, 96; shl.b32 %r10, %r10, 16; add.s32 %r10, %r10, %r20; mov.b32 %r11, 0x44444444;
        tcgen05.st.sync.aligned.32x32b.x2.b32 [%r10], {%r11, %r11}; tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
        mov.b32 %r11, 0xeeeeeeee;
        tcgen05.st.sync.aligned.32x32b.x2.b32 [%r10], {%r11, %r11}; tcgen05.wait::st.sync.aligned;
        tcgen05.fence::before_thread_sync;
        bar.sync 0; //FIX
        tcgen05.fence::after_thread_sync;
        xor.b64 %rd10, %rd9, 0x80000; // every 16 bytes of K are the same
        add.s32 %r12, %r20, 8; mov.b32 %r13, 0x8020014; setp.ne.b32 %p3, %r13, %r13;
        @%p2 tcgen05.mma.sp.cta_group::1.kind::f16 [%r12], %rd10, %rd10, [%r20], %r13, %p3;
        """
        + COMMIT
        + COPIED.format(name=0, parity=0)
        + FREE,
        RaceError,
        "race on tensor memory column 0: nothing orders",
        threads=128,
    ),
    Bug(
        "two kinds of products into one accumulator",
        TWO_PRODUCTS.format(
            second="tcgen05.mma.cta_group::1.kind::f8f6f4 [%r20], %rd10, %rd10, %r13, %p4"
        ),
        TensorOrderError,
        "kind::f16 128x16x16 and kind::f8f6f4 128x16x32, into one accumulator",
        PTX,
        threads=128,
    ),
    Bug(
        "two shapes of products into one accumulator",
        TWO_PRODUCTS.format(
            second="tcgen05.mma.cta_group::1.kind::f16 [%r20], %rd10, %rd10, %r14, %p4"
        ),
        TensorOrderError,
        "kind::f16 128x16x16 and kind::f16 128x8x16, into one accumulator",
        PTX,
        threads=128,
    ),
    Bug(
        "a product into columns that another accumulator has",
        TWO_PRODUCTS.format(
            second="tcgen05.mma.cta_group::1.kind::f16 [%r12], %rd10, %rd10, %r13, %p3"
        ),
        TensorOrderError,
        "into one accumulator",
        PTX,
        threads=128,
    ),
)
