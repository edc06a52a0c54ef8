"""Counters in global memory by which CTAs take turns: bulk additions of a turn come after those of the turns before.

A waiter reads with acquire, the one before it adds with release, both in the scope of the GPU, after it has waited for
its own additions, not only for their reads of shared memory. Additions are made in the async proxy. Whether a completed
one comes before another CTA's without a proxy fence, the PTX ISA does not say, so both sides have one.

PTX ISA: "ld" with .acquire, "red" with .release, "fence.proxy.async", "cp.async.bulk.wait_group".
"""

from cutlass import Int32
from cutlass._mlir.dialects import llvm


def await_turn(counter, turn):
    """The warp waits until the counter (Int32 in global memory) is `turn`, which it stays until this turn ends."""
    text = "{\n.reg .pred reached, one_thread;\n.reg .b32 count;\nelect.sync _|one_thread, 0xffffffff;\n"
    text += "@!one_thread bra REACHED;\nTRY_AGAIN:\nld.acquire.gpu.global.b32 count, [$0];\n"
    text += "setp.eq.s32 reached, count, $1;\n@!reached bra TRY_AGAIN;\nfence.proxy.async.global;\n"
    text += "REACHED:\nbar.warp.sync 0xffffffff;\n}"
    _asm(text, counter, turn)


def end_turn(counter):
    """One thread of the warp adds one to the counter, after the bulk additions that the warp has waited for."""
    text = "{\n.reg .pred one_thread;\nbar.warp.sync 0xffffffff;\nelect.sync _|one_thread, 0xffffffff;\n"
    text += "@one_thread fence.proxy.async.global;\n"
    text += "@one_thread red.release.gpu.global.add.s32 [$0], $1;\n}"
    _asm(text, counter, 1)


def _asm(text: str, pointer, number):
    llvm.inline_asm(
        None,
        [pointer.toint().ir_value(), Int32(number).ir_value()],
        text,
        "l,r,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
