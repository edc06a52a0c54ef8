"""Small kernels, each around one mechanism: subjects of planted defects (small_defects.py).

handover   two warps hand a buffer to each other through two mbarriers, four times
bulk       bulk copy in, change in shared memory, proxy fence, bulk copy out
cluster    two CTAs write to each other's shared memory and raise each other's mbarrier
product    operands written by threads, one tcgen05.mma, result read back from tensor memory
staged     cp.async of both operands of a sum, two groups
"""

import numpy as np

from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.ptx.parser import parse
from cute_fa4.emulator.run.launch import execute_grid
from cute_fa4.emulator.run.program import Program
from tests.emulator.core.ptx_bench import module_text
from tests.emulator.mutations.mutant import Subject

# Byte addresses in dynamic shared memory, which begins at dyn.
POINTERS = """
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, dyn;
    ld.param.b64 %rd1, [p0];
    ld.param.b64 %rd2, [p1];
    shl.b32 %r3, %r1, 2;
    cvt.u64.u32 %rd3, %r3;
"""


def wait(label, address, parity):
    return f"""
    {label}:
    mbarrier.try_wait.parity.shared.b64 %p9, [{address}], {parity};
    @!%p9 bra {label};"""


# Warp 0 writes round r of the input, warp 1 reads it. full: dyn+0, empty: dyn+8, buffer: dyn+128.
HANDOVER = f"""{POINTERS}
    and.b32 %r4, %r1, 31;
    shl.b32 %r5, %r4, 2;
    cvt.u64.u32 %rd3, %r5;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    add.s32 %r6, %r2, %r5;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [%r2], 32;
    mbarrier.init.shared.b64 [%r2+8], 32;
    ready:
    bar.sync 0;
    mov.u32 %r10, 0;
    setp.gt.u32 %p2, %r1, 31;
    @%p2 bra reader;
    writer:
    and.b32 %r11, %r10, 1;
    xor.b32 %r12, %r11, 1;
    {wait("writable", "%r2+8", "%r12")}
    ld.global.b32 %r13, [%rd4];
    st.shared.b32 [%r6+128], %r13;
    mbarrier.arrive.shared.b64 _, [%r2], 1;
    add.s64 %rd4, %rd4, 128;
    add.s32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 4;
    @%p3 bra writer;
    bra done;
    reader:
    and.b32 %r11, %r10, 1;
    {wait("readable", "%r2", "%r11")}
    ld.shared.b32 %r13, [%r6+128];
    mbarrier.arrive.shared.b64 _, [%r2+8], 1;
    add.s32 %r13, %r13, 1;
    st.global.b32 [%rd5], %r13;
    add.s64 %rd5, %rd5, 128;
    add.s32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 4;
    @%p3 bra reader;
    done:
"""

# 64 threads; 256 bytes in, every number plus one, 256 bytes out. mbarrier: dyn+0, buffer: dyn+128.
BULK = f"""{POINTERS}
    add.s32 %r4, %r2, %r3;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    ready:
    bar.sync 0;
    @%p1 bra loaded;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+128], [%rd1], 256, [%r2];
    loaded:
    {wait("landed", "%r2", "0")}
    ld.shared.b32 %r5, [%r4+128];
    add.s32 %r5, %r5, 1;
    st.shared.b32 [%r4+128], %r5;
    fence.proxy.async.shared::cta;
    bar.sync 1, 64;
    @%p1 bra stored;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2+128], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    stored:
"""

# Two CTAs of one warp. mbarrier: dyn+0, buffer: dyn+128. Thread t of CTA c gets thread t's number of CTA 1-c.
CLUSTER = f"""{POINTERS}
    mov.u32 %r4, %cluster_ctarank;
    xor.b32 %r5, %r4, 1;
    shl.b32 %r6, %r4, 7;
    add.s32 %r6, %r6, %r3;
    cvt.u64.u32 %rd4, %r6;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s32 %r7, %r2, %r3;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra ready;
    mbarrier.init.shared.b64 [%r2], 32;
    fence.mbarrier_init.release.cluster;
    ready:
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    ld.global.b32 %r8, [%rd5];
    mapa.shared::cluster.u32 %r9, %r7, %r5;
    mapa.shared::cluster.u32 %r10, %r2, %r5;
    st.shared::cluster.b32 [%r9+128], %r8;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10], 1;
    arrived:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p9, [%r2], 0;
    @!%p9 bra arrived;
    ld.shared.b32 %r11, [%r7+128];
    st.global.b32 [%rd6], %r11;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
"""

# 128 threads. A is 128 x 16, B 32 x 16, bf16, K-major without swizzle: 16-byte chunk c of row r at
# c * rows * 16 + r * 16. A[r, :] = 1 + r / 128, B[n, :] = 1 + 2 n / 128, D = 16 A[r] B[n] exactly.
# mbarrier: dyn+0, address of tensor memory: dyn+16, A: dyn+1024, B: dyn+5120.
PRODUCT = f"""{POINTERS}
    setp.ne.u32 %p1, %r1, 0;
    setp.gt.u32 %p2, %r1, 31;
    @%p1 bra initialised;
    mbarrier.init.shared.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    initialised:
    @%p2 bra allocated;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2+16], 32;
    allocated:
    add.s32 %r4, %r1, 16256;
    shl.b32 %r5, %r4, 16;
    or.b32 %r4, %r4, %r5;
    shl.b32 %r6, %r1, 4;
    add.s32 %r6, %r6, %r2;
    st.shared.v4.b32 [%r6+1024], {{%r4, %r4, %r4, %r4}};
    st.shared.v4.b32 [%r6+3072], {{%r4, %r4, %r4, %r4}};
    @%p2 bra written;
    shl.b32 %r7, %r1, 1;
    add.s32 %r7, %r7, 16256;
    shl.b32 %r5, %r7, 16;
    or.b32 %r7, %r7, %r5;
    st.shared.v4.b32 [%r6+5120], {{%r7, %r7, %r7, %r7}};
    st.shared.v4.b32 [%r6+5632], {{%r7, %r7, %r7, %r7}};
    written:
    fence.proxy.async.shared::cta;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %r8, [%r2+16];
    @%p1 bra issued;
    add.s32 %r9, %r2, 1024;
    shr.u32 %r9, %r9, 4;
    or.b32 %r9, %r9, 8388608;
    mov.b64 %rd4, {{%r9, 0x4008}};
    add.s32 %r10, %r2, 5120;
    shr.u32 %r10, %r10, 4;
    or.b32 %r10, %r10, 2097152;
    mov.b64 %rd5, {{%r10, 0x4008}};
    setp.ne.u32 %p3, %r1, %r1;
    mov.u32 %r14, 0x8080490;
    tcgen05.mma.cta_group::1.kind::f16 [%r8], %rd4, %rd5, %r14, %p3;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];
    issued:
    {wait("multiplied", "%r2", "0")}
    tcgen05.fence::after_thread_sync;
    shr.u32 %r11, %r1, 5;
    shl.b32 %r11, %r11, 21;
    add.s32 %r11, %r11, %r8;
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r16, %r17, %r18, %r19}}, [%r11];
    tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r20, %r21, %r22, %r23}}, [%r11+28];
    tcgen05.wait::ld.sync.aligned;
    shl.b32 %r12, %r1, 5;
    cvt.u64.u32 %rd6, %r12;
    add.s64 %rd6, %rd2, %rd6;
    st.global.v4.b32 [%rd6], {{%r16, %r17, %r18, %r19}};
    st.global.v4.b32 [%rd6+16], {{%r20, %r21, %r22, %r23}};
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    @%p2 bra freed;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r8, 32;
    freed:
"""

# 64 threads; y[t] = x[63 - t] + x[64 + 63 - t], copied by cp.async in two groups. Buffers: dyn+0, dyn+256.
STAGED = f"""{POINTERS}
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    add.s32 %r4, %r2, %r3;
    sub.s32 %r5, 63, %r1;
    shl.b32 %r5, %r5, 2;
    add.s32 %r5, %r5, %r2;
    cp.async.ca.shared.global [%r4], [%rd4], 4;
    cp.async.commit_group;
    cp.async.ca.shared.global [%r4+256], [%rd4+256], 4;
    cp.async.commit_group;
    cp.async.wait_group 1;
    bar.sync 0;
    ld.shared.b32 %r6, [%r5];
    cp.async.wait_group 0;
    bar.sync 0;
    ld.shared.b32 %r7, [%r5+256];
    add.s32 %r6, %r6, %r7;
    st.global.b32 [%rd5], %r6;
"""


def run(body, threads, words_in, words_out, cluster, level):
    """The run function of a Subject: results are the bytes of the output array."""

    def execute(edit, mode, seed, budget):
        text = module_text(body, 2)
        text = text if edit is None else edit(text)
        program = Program(parse(text).kernels["bench"])
        # 16-byte alignment for bulk copies, and unused bytes between the arrays.
        storage = np.zeros(words_in + words_out + 12, np.uint32)
        start = -storage.ctypes.data % 16 // 4
        x = storage[start : start + words_in]
        y = storage[start + words_in + 4 :][:words_out]
        x[:] = np.arange(1000, 1000 + words_in)
        memory = GlobalMemory()
        for array, name in ((x, "x"), (y, "y")):
            memory.register(array.ctypes.data, array.nbytes, name, keep=storage)
        result = execute_grid(
            program,
            params=np.array([x.ctypes.data, y.ctypes.data], np.uint64).tobytes(),
            grid=(cluster, 1, 1),
            cluster=(cluster, 1, 1),
            block=(threads, 1, 1),
            dynamic_shared_bytes=8192,
            memory=memory,
            mode=mode,
            seed=seed,
            budget=budget,
            checks=level,
        )
        return y.tobytes(), result.instructions

    return execute


def subjects(level):
    """Subject by name."""
    return {
        name: Subject(name, run(*arguments, level))
        for name, arguments in (
            ("handover", (HANDOVER, 64, 128, 128, 1)),
            ("bulk", (BULK, 64, 64, 64, 1)),
            ("cluster", (CLUSTER, 32, 64, 64, 2)),
            ("product", (PRODUCT, 128, 4, 1024, 1)),
            ("staged", (STAGED, 64, 128, 64, 1)),
        )
    }
