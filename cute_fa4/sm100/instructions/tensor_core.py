"""The tcgen05.mma and tcgen05.commit instructions, one function each.

All K steps of one contraction are one block of straight-line PTX: one elected thread issues them, and the
descriptors of the steps differ by constants from the first, so that they live in uniform registers.

PTX ISA: "Tcgen05 mma instructions", "tcgen05.commit".
"""

from cutlass import Boolean, Int32
from cutlass._mlir.dialects import llvm

from ...layouts.umma_descriptors import InstructionDescriptor


def _asm(text: str, operands, constraints: str):
    llvm.inline_asm(
        None,
        operands,
        text,
        constraints,
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def _accumulate_operand(accumulate):
    """-> (value, PTX predicate of the first step): a constant costs no register."""
    if isinstance(accumulate, Boolean):
        return Int32(accumulate), "accumulate"
    return Int32(int(accumulate)), "1" if accumulate else "0"


def _mma(computes: InstructionDescriptor) -> str:
    return f"tcgen05.mma.cta_group::{computes.cta_group}.kind::{computes.kind}"


def mma_ss(
    d_tmem,
    a_start,
    b_start,
    steps,
    computes: InstructionDescriptor,
    a_high: int,
    b_high: int,
    accumulate,
):
    """D (+)= A B with both operands in shared memory.

    d_tmem       first column of D (Int32 tensor-memory address)
    a_start      low word of A's shared-memory descriptor at the first step (Int32), `a_high` its constant high word
    b_start      as `a_start`, for B
    steps        (offset of A, offset of B) of every K step, in 16-byte units from the first
    computes     shapes, formats, kind and cta_group of one step
    accumulate   bool or Boolean: whether the first step adds to D; later steps always do
    """
    flag, first = _accumulate_operand(accumulate)
    instruction = f"{_mma(computes)} [$0], a, b, {computes.encode():#x}"
    text = _text_of_ss([instruction] * len(steps), steps, a_high, b_high, first)
    _asm(text, [Int32(v).ir_value() for v in (d_tmem, a_start, b_start, flag)], "r,r,r,r")


def _text_of_ss(instructions: list[str], steps, a_high: int, b_high: int, first: str) -> str:
    """PTX of K steps with both operands in shared memory: an MMA each, without its predicate, of descriptors a and b.

    $1, $2: low words of the first descriptors; $3: whether the first step adds to D, with the predicate `first`
    """
    text = "{\n.reg .pred leader_thread, accumulate;\n.reg .b32 a_low, b_low;\n.reg .b64 a, b;\n"
    text += "elect.sync _|leader_thread, 0xffffffff;\nsetp.ne.b32 accumulate, $3, 0;\n"
    for step, (a_offset, b_offset) in enumerate(steps):
        text += f"add.s32 a_low, $1, {a_offset};\nadd.s32 b_low, $2, {b_offset};\n"
        text += f"mov.b64 a, {{a_low, {a_high:#x}}};\nmov.b64 b, {{b_low, {b_high:#x}}};\n"
        predicate = first if step == 0 else "1"
        text += f"@leader_thread {instructions[step]}, {predicate};\n"
    return text + "}"


def mma_ts(
    d_tmem,
    a_tmem,
    b_start,
    steps,
    computes: InstructionDescriptor,
    b_high: int,
    accumulate,
):
    """D (+)= A B with A in tensor memory and B in shared memory.

    steps   (columns of A, offset of B in 16-byte units) of every K step, from the first
    Other arguments as in mma_ss; a_tmem is the first column of A.
    """
    flag, first = _accumulate_operand(accumulate)
    text = "{\n.reg .pred leader_thread, accumulate;\n.reg .b32 a, b_low;\n.reg .b64 b;\n"
    text += "elect.sync _|leader_thread, 0xffffffff;\nsetp.ne.b32 accumulate, $3, 0;\n"
    for step, (a_offset, b_offset) in enumerate(steps):
        text += f"add.s32 a, $1, {a_offset};\nadd.s32 b_low, $2, {b_offset};\nmov.b64 b, {{b_low, {b_high:#x}}};\n"
        predicate = first if step == 0 else "1"
        text += (
            f"@leader_thread {_mma(computes)} [$0], [a], b, {computes.encode():#x}, {predicate};\n"
        )
    text += "}"
    _asm(text, [Int32(v).ir_value() for v in (d_tmem, a_tmem, b_start, flag)], "r,r,r,r")


def commit(mbarrier, cta_group: int = 1):
    """Arrive on an mbarrier (Int32 shared address) when every MMA that this thread issued has completed.

    The thread is the elected one: the same that issued the MMAs. With cta_group 2 on the same mbarrier of both CTAs.
    """
    multicast = cta_group > 1
    to = ".multicast::cluster" if multicast else ""
    both = ", both_ctas" if multicast else ""
    text = "{\n.reg .pred leader_thread;\nelect.sync _|leader_thread, 0xffffffff;\n"
    if both:
        text += f".reg .b16 both_ctas;\nmov.b16 both_ctas, {(1 << cta_group) - 1};\n"
    text += (
        f"@leader_thread tcgen05.commit.cta_group::{cta_group}.mbarrier::arrive::one.shared::cluster{to}.b64 "
        f"[$0]{both};\n}}"
    )
    _asm(text, [Int32(mbarrier).ir_value()], "r")
