"""Accesses of 16 and 8 bytes of global memory by the threads that a condition admits.

PTX ISA, "ld", "st". They are weak, so the emulator refuses them where nothing orders them.
"""

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

FLOATS = 4


def load_floats(pointer, wanted) -> list:
    """Four float32 at an address that is a multiple of 16; zeros where not wanted."""
    text = "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, $5, 0;\n"
    text += "".join(f"mov.b32 ${i}, 0;\n" for i in range(FLOATS))
    text += "@wanted ld.global.v4.b32 {$0, $1, $2, $3}, [$4];\n}"
    found = llvm.inline_asm(
        llvm.StructType.get_literal([T.f32()] * FLOATS),
        [pointer.toint().ir_value(), Int32(wanted).ir_value()],
        text,
        "=&f,=&f,=&f,=&f,l,r,~{memory}",  # not before a wait
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return [Float32(llvm.extractvalue(T.f32(), found, [i])) for i in range(FLOATS)]


def store_words(pointer, words: list, wanted):
    """Two words to an address that is a multiple of 8, where wanted."""
    low, high = words
    llvm.inline_asm(
        None,
        [pointer.toint().ir_value(), *(Int32(x).ir_value() for x in (low, high, wanted))],
        "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, $3, 0;\n@wanted st.global.v2.b32 [$0], {$1, $2};\n}",
        "l,r,r,r,~{memory}",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
