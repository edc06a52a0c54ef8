"""The number of a thread, read a second time."""

from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

MOST_THREADS = 1024  # of a CTA


def number_again() -> Int32:
    """The thread's number in its CTA, as a value that neither LLVM nor ptxas merges with an earlier one.

    What follows from it is computed here and not kept in registers since an earlier use.
    """
    number = llvm.inline_asm(
        T.i32(),
        [],
        "mov.u32 $0, %tid.x;",
        "=r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return Int32(number) & (MOST_THREADS - 1)  # LLVM knows no range of the register
