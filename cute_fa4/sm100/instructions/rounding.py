"""Float32 operations that are each rounded: with .rn neither LLVM nor ptxas fuses a product and a sum (PTX ISA, "mul").

For results that are defined bit by bit elsewhere.
"""

from cutlass import Float32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T


def product(a, b) -> Float32:
    """a * b, rounded to nearest even."""
    return _rounded("mul", a, b)


def total(a, b) -> Float32:
    """a + b, likewise."""
    return _rounded("add", a, b)


def difference(a, b) -> Float32:
    """a - b, likewise."""
    return _rounded("sub", a, b)


def _rounded(operation: str, a, b) -> Float32:
    found = llvm.inline_asm(
        T.f32(),
        [Float32(a).ir_value(), Float32(b).ir_value()],
        f"{operation}.rn.f32 $0, $1, $2;",
        "=f,f,f",
        has_side_effects=False,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return Float32(found)
