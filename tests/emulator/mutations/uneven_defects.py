"""Defects of work tiles whose query tiles leave key tiles out (mha2q/uneven/): what is announced, the half turn.

The MMA warp makes a key tile for both query tiles, or for query tile 1 alone: the third of each kind of wait and commit
is of the latter, where one waits for K, and with P beside S for the S before. Under a window the first of each kind is
of the key tiles that query tile 0 has alone.
"""

from tests.emulator.mutations.attention_places import CAUSAL, WINDOW, commit, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, WRONG_NUMBERS, Mutant

EARLY_OR_HANG = (*ASYNCHRONY, *COUNTS, *HANG)
WRONG_OR_HANG = (*EARLY_OR_HANG, WRONG_NUMBERS)

ANNOUNCED = lines(
    "load", r"(st\.shared\.v4\.b32\s+\[\S+\], \{%?\w+, %?\w+, %?\w+), (%r\d+)\};"
).last
K_FIRST, V_FIRST, K_ALONE, V_ALONE = (wait("mma", "kv_full").number(n) for n in (0, 1, 2, 3))


def read(role):
    """What a role reads of a further work tile, last: how much is left out, and in the last bit who leads."""
    return lines(role, r"(ld\.shared\S*\s+\{?(?:%r\d+, )*(%r\d+)\}?, \[%r\d+\+\d+\];)").last


def mutants():
    """Every defect of uneven query tiles."""
    yield from at_the_end()
    yield from at_the_beginning()


def at_the_end():
    """Of what query tile 0 leaves out."""
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


def at_the_beginning():
    """Of what query tile 1 leaves out under a window: bits 16 and up of what is announced."""
    announce = r"{{.reg .b32 word; {} \1, word}};}}"
    not_late = r"\1 and.b32 \2, \2, 65535;"
    for name, edit, meant in (
        (
            "load announces that query tile 1 begins later than it does",
            replace(ANNOUNCED, announce.format(r"add.s32 word, \2, 65536;")),
            WRONG_OR_HANG,
        ),
        (
            "load announces the warpgroup as the leader that goes first",
            replace(ANNOUNCED, announce.format(r"xor.b32 word, \2, 1;")),
            WRONG_OR_HANG,
        ),
        ("mma begins with both", replace(read("mma"), not_late), EARLY_OR_HANG),
        ("softmax begins with both", replace(read("softmax"), not_late), EARLY_OR_HANG),
        ("correction begins with both", replace(read("correction"), not_late), EARLY_OR_HANG),
        ("mma does not wait for the first K", replace(K_FIRST, ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not wait for the last V of the work tile before", replace(V_FIRST, ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not release the first K", delete(commit("kv_empty").number(0)), HANG),
        ("mma does not release the last V of the work tile before", delete(commit("kv_empty").number(1)), HANG),
        ("mma does not say that O of the work tile before is complete", delete(commit("o_ready").number(1)), HANG),
    ):  # fmt: skip
        yield Mutant(f"window: {name}", WINDOW, edit, meant)
