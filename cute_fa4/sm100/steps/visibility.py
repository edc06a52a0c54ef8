"""Apply a mask to one row of scores in registers: 32 columns at a time, through a 32-bit visibility word.

Bit i of the word says whether column col0 + i is visible. The compiler moves a byte of the word into seven
predicates with one instruction, so that a column costs about one select. A band lo <= column < hi is
low_bits(hi) & ~low_bits(lo); a union of bands is the union of their words.
"""

from cutlass import Float32, Int32, select_
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ...layouts.scalars import maximum, minimum

MASKED = float("-inf")
WORD = 32


def low_bits(n):
    """A word with the low n bits set; n is clamped to [0, 32]."""
    n = minimum(maximum(n, 0), WORD)
    return Int32(
        llvm.inline_asm(  # shl.b32 gives 0 for a shift by 32, where LLVM's shift is undefined
            T.i32(),
            [Int32(n).ir_value()],
            "{\n.reg .b32 bit;\nshl.b32 bit, 1, $1;\nadd.s32 $0, bit, -1;\n}",
            "=r,r",
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def visibility(bands: list, col0: int):
    """Word of columns [col0, col0 + 32). bands: [(lo or None, hi or None)] in columns of the tile; None: no bound."""
    word = None
    for lo, hi in bands:
        seen = Int32(-1) if hi is None else low_bits(hi - col0)
        if lo is not None:
            seen = seen & (low_bits(lo - col0) ^ -1)
        word = seen if word is None else word | seen
    return word


def keep_visible_parts(parts, bands: list):
    """The same for (first column, scores), part by part."""
    for first, scores in parts:
        inside = [(lo if lo is None else lo - first, hi - first) for lo, hi in bands]
        yield first, keep_visible(scores, inside)


def keep_visible(scores: list, bands: list) -> list:
    """Scores with -inf where no band sees the column; bands count from the first score."""
    out = []
    for col0 in range(0, len(scores), WORD):
        out += selected(scores[col0 : col0 + WORD], visibility(bands, col0))
    return out


def selected(scores: list, word, hidden: float = MASKED) -> list:
    """At most a word of scores, with `hidden` where the bit is clear."""
    return [
        select_((word & (1 << i)) != 0, score, Float32(hidden)) for i, score in enumerate(scores)
    ]
