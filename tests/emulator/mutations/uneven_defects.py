"""Defects of work tiles whose first query tile leaves key tiles out (mha2q/uneven/): what is announced, the half turn.

The MMA warp makes a key tile for both query tiles, or for query tile 1 alone: the third of each kind of wait and commit
is of the latter, where one waits for K, and with P beside S for the S before.
"""

from tests.emulator.mutations.attention_places import CAUSAL, commit, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, WRONG_NUMBERS, Mutant

EARLY_OR_HANG = (*ASYNCHRONY, *COUNTS, *HANG)
WRONG_OR_HANG = (*EARLY_OR_HANG, WRONG_NUMBERS)

ANNOUNCED = lines(
    "load", r"(st\.shared\.v4\.b32\s+\[\S+\], \{%?\w+, %?\w+, %?\w+), (%r\d+)\};"
).last
K_ALONE, V_ALONE = (wait("mma", "kv_full").number(n) for n in (2, 3))


def read(role):
    """What a role reads of a further work tile, last: how much is left out, and in the last bit who leads."""
    return lines(role, r"(ld\.shared\S*\s+\{?(?:%r\d+, )*(%r\d+)\}?, \[%r\d+\+\d+\];)").last


def mutants():
    """Every defect of uneven query tiles."""
    only = r"\1 and.b32 \2, \2, 1;"
    for name, edit, meant in (
        (
            "load announces the same leader again",
            replace(ANNOUNCED, r"{.reg .b32 word; and.b32 word, \2, -2; \1, word};}"),
            WRONG_OR_HANG,
        ),
        ("mma leaves nothing out", replace(read("mma"), only), EARLY_OR_HANG),
        ("softmax leaves nothing out", replace(read("softmax"), only), EARLY_OR_HANG),
        ("correction leaves nothing out", replace(read("correction"), only), EARLY_OR_HANG),
        ("correction takes the other warpgroup", replace(read("correction"), r"\1 xor.b32 \2, \2, 1;"), WRONG_OR_HANG),
        ("mma does not wait for K of one query tile", replace(K_ALONE, ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not wait for V of one query tile", replace(V_ALONE, ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not release K of one query tile", delete(commit("kv_empty").number(2)), HANG),
        ("mma does not say that the shorter O is complete", delete(commit("o_ready").number(2)), HANG),
    ):  # fmt: skip
        yield Mutant(f"uneven: {name}", CAUSAL, edit, meant)
