"""Defects of work tiles whose query tiles leave key tiles out (two_tiles/uneven/): what is announced, the half turn.

The MMA warp makes a key tile for both query tiles, or for the leader alone, the query tile that sees more; with P
beside S, V of the previous key tile comes after it. Under a window it begins with a key tile of one query tile, next to
the last V of the work tile before. Waits and commits of the MMA warp are named below in the order of the text.
"""

from tests.emulator.mutations.attention_places import CAUSAL, WINDOW, commit, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, delete, lines, replace
from tests.emulator.mutations.mutant import ASYNCHRONY, COUNTS, HANG, WRONG_NUMBERS, Mutant

EARLY_OR_HANG = (*ASYNCHRONY, *COUNTS, *HANG)
WRONG_OR_HANG = (*EARLY_OR_HANG, WRONG_NUMBERS)

ANNOUNCED = lines(
    "load", r"(st\.shared\.v4\.b32\s+\[\S+\], \{%?\w+, %?\w+, %?\w+), (%r\d+)\};"
).last
V_BEFORE = "the last V of the work tile before"
AT_THE_BEGINNING = ("the first K", V_BEFORE)
AT_THE_END = ("K of both", "V of both", "K of one", "V beside K of one", "the last V")
O_BEFORE = "the other O of the work tile before"
O_AT_THE_BEGINNING = ("one O of the work tile before", O_BEFORE)
O_AT_THE_END = (
    "O of the leader", "O of the other", "the shorter O", "the last O of the leader", "the last O of the other",
)  # fmt: skip


def of_causal(place, names=AT_THE_END):
    """Name -> place in the kernel that leaves nothing out at the beginning."""
    return place.named(*names)


def of_window(place, first=AT_THE_BEGINNING, then=AT_THE_END):
    """Name -> place in the kernel that leaves out at both ends."""
    return place.named(*first, *then)


def read(role):
    """A role's last read of a further work tile: the number of skipped tiles, and in the last bit the leader."""
    return lines(role, r"(ld\.shared\S*\s+\{?(?:%r\d+, )*(%r\d+)\}?, \[%r\d+\+\d+\];)").last


def mutants():
    """Every defect of uneven query tiles."""
    yield from at_the_end()
    yield from at_the_beginning()


def at_the_end():
    """Of what query tile 0 leaves out."""
    full, freed = of_causal(wait("mma", "kv_full")), of_causal(commit("kv_empty"))
    complete = of_causal(commit("o_ready"), O_AT_THE_END)
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
        ("mma does not wait for K of one query tile", replace(full["K of one"], ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not wait for V of one query tile", replace(full["V beside K of one"], ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not release K of one query tile", delete(freed["K of one"]), HANG),
        ("mma does not say that the shorter O is complete", delete(complete["the shorter O"]), HANG),
    ):  # fmt: skip
        yield Mutant(f"uneven: {name}", CAUSAL, edit, meant)


def at_the_beginning():
    """Of what query tile 1 leaves out under a window: bits 16 and up of what is announced."""
    full, freed = of_window(wait("mma", "kv_full")), of_window(commit("kv_empty"))
    complete = of_window(commit("o_ready"), O_AT_THE_BEGINNING, O_AT_THE_END)
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
        ("mma does not wait for the first K", replace(full["the first K"], ALWAYS_TRUE), EARLY_OR_HANG),
        (f"mma does not wait for {V_BEFORE}", replace(full[V_BEFORE], ALWAYS_TRUE), EARLY_OR_HANG),
        ("mma does not release the first K", delete(freed["the first K"]), HANG),
        (f"mma does not release {V_BEFORE}", delete(freed[V_BEFORE]), HANG),
        ("mma does not say that O of the work tile before is complete", delete(complete[O_BEFORE]), HANG),
    ):  # fmt: skip
        yield Mutant(f"window: {name}", WINDOW, edit, meant)
