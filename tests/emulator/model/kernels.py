"""Small kernels for the model, as PTX: exponentials in a loop, loads in a branch, two warps that share a buffer."""

import torch

from cute_fa4.emulator import KernelLabels, ptx_files

EXPONENTIALS = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry exponentials(.param .u64 y, .param .u32 n) {
    .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<4>; .reg .pred %p<3>;
    ld.param.b64 %rd1, [y]; ld.param.b32 %r2, [n]; mov.b32 %r1, 0;
    mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f3F800000; mov.f32 %f4, 0f3F800000;
  L:
    ex2.approx.ftz.f32 %f1, %f1; ex2.approx.ftz.f32 %f2, %f2; ex2.approx.ftz.f32 %f3, %f3; ex2.approx.ftz.f32 %f4, %f4;
    add.s32 %r1, %r1, 1; setp.lt.s32 %p1, %r1, %r2;
    @%p1 bra L;
    add.f32 %f1, %f1, %f2; add.f32 %f1, %f1, %f3; add.f32 %f1, %f1, %f4; st.global.f32 [%rd1], %f1;
    ret;
}
"""
A_TURN = 4  # exponentials

# In every turn a warp waits at a barrier, and loads where its pointer is not null.
GUARDED_LOADS = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry guarded_loads(.param .u64 y, .param .u64 x, .param .u32 n) {
    .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
    ld.param.b64 %rd1, [y]; ld.param.b64 %rd2, [x]; ld.param.b32 %r2, [n]; mov.b32 %r1, 0; mov.b32 %r4, 0;
    setp.eq.s64 %p1, %rd2, 0;
  L:
    bar.sync 0;
    @%p1 bra N;
    ld.volatile.global.b32 %r3, [%rd2]; ld.volatile.global.b32 %r5, [%rd2+4];
    BODY
  N:
    add.s32 %r1, %r1, 1; setp.lt.s32 %p2, %r1, %r2;
    @%p2 bra L;
    st.global.b32 [%rd1], %r4;
    ret;
}
""".replace("BODY", "mad.lo.s32 %r4, %r4, %r5, %r3; " * 40)  # more than ptxas predicates

# Warp 0 fills the buffer and raises "full", warp 1 reads it and raises "empty".
HANDED_OVER = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry handed_over(.param .u64 y, .param .u32 n) {
    .reg .b32 %r<16>; .reg .b64 %rd<9>; .reg .pred %p<9>;
    ld.param.b64 %rd1, [y]; ld.param.b32 %r2, [n]; mov.b32 %r3, dyn; mov.u32 %r1, %tid.x; mov.b32 %r9, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 32;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 32;
    bar.sync 0;
    mov.b32 %r4, 0; mov.b32 %r8, 0; and.b32 %r5, %r1, 31; shl.b32 %r5, %r5, 2; add.s32 %r5, %r5, %r3;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra CONSUMER;
  FILL:
    xor.b32 %r6, %r8, 1;
  W0: mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], %r6;
    @!%p3 bra W0;
    st.shared.b32 [%r5+1024], %r4;
    mbarrier.arrive.shared.b64 _, [%r3];
    xor.b32 %r8, %r8, 1; add.s32 %r4, %r4, 1; setp.lt.s32 %p4, %r4, %r2;
    @%p4 bra FILL;
    bra END;
  CONSUMER:
  W1: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], %r8;
    @!%p3 bra W1;
    ld.shared.b32 %r7, [%r5+1024]; add.s32 %r9, %r9, %r7;
    mbarrier.arrive.shared.b64 _, [%r3+8];
    xor.b32 %r8, %r8, 1; add.s32 %r4, %r4, 1; setp.lt.s32 %p4, %r4, %r2;
    @%p4 bra CONSUMER;
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.b32 [%rd1], %r9;
  END:
    ret;
}
"""
NAMES = KernelLabels(
    roles=((range(0, 1), "fill"), (range(1, 2), "read")),
    barriers=((0, "full", "read", "fill"), (8, "empty", "fill", "read")),
)


def exponentials(turns: int, threads: int = 32) -> None:
    """Launch EXPONENTIALS with so many turns of its loop."""
    y = torch.empty(1)
    ptx_files.load(EXPONENTIALS).launch(y, turns, grid=1, block=threads)


def guarded_loads(turns: int) -> None:
    """Launch GUARDED_LOADS with two loads in each of so many turns."""
    y, x = torch.zeros(1, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    ptx_files.load(GUARDED_LOADS).launch(y, x, turns, grid=1, block=32)


def handed_over(turns: int, labels: KernelLabels | None = NAMES) -> None:
    """Launch HANDED_OVER: each of 32 threads adds up 0, 1, ... turns - 1."""
    y = torch.zeros(64, dtype=torch.int32)
    kernel = ptx_files.load(HANDED_OVER, labels=labels)
    kernel.launch(y, turns, grid=1, block=64, shared=2048)
    assert y[32:].tolist() == [turns * (turns - 1) // 2] * 32
