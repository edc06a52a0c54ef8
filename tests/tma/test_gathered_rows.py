"""Rows gathered by fours: the look-up as a pure function, and defects planted in the gathers, which are all caught."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from cute_fa4 import flash_attn_varlen_func
from cute_fa4.tma.gathered_rows import ROWS, pages_of_four, place_in_pages
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import delete, lines, replace
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    WRONG_NUMBERS,
    Mutant,
    Subject,
    assert_caught,
)
from tests.serving.batches import Batch, int32, paged_kv


@pytest.mark.parametrize("anywhere", [False, True])
def test_four_rows_are_where_their_pages_are(anywhere):
    # Sizes around four and their multiples, up to one beyond a tile; rows up to two pages of the largest.
    for size in (*range(1, 14), 33, 48, 130):
        most = 0
        for first in range(0, 2 * size + 8, 1 if anywhere else ROWS):
            places = [place_in_pages(size, first, i) for i in range(ROWS)]
            found = [(first // size + page) * size + inside for page, inside in places]
            assert found == [first + i for i in range(ROWS)]
            assert all(0 <= inside < size for _, inside in places)
            most = max(most, *(page + 1 for page, _ in places))
        assert most == pages_of_four(
            size, anywhere
        )  # as many entries as are ever needed, and no more


# --- planted defects: two key/value heads, pages of three keys, a tile and a part; two depth chunks

GATHER = (
    r"@leader_thread (cp\.async\.bulk\.tensor\.2d\S+gather4\S+) \[at\], \[(%rd\d+), "
    r"\{column, (%r\d+), (%r\d+), (%r\d+), (%r\d+)\}\], (\[%r\d+\]);"
)
GATHERS = lines("kernel", GATHER, "gathers")
COLUMN = lines("kernel", r"add\.s32 column, (%r\d+), 64;", "columns of the second chunk")
PLACE = lines("kernel", r"add\.s32 at, (%r\d+), 16384;", "places of the second chunk")
NO_ROW = lines(
    "kernel", r"selp\.b32 (\s*%r\d+), (%r\d+), -[1-4], (%p\d+);", "rows that do not exist"
)
OF_HEAD = lines("kernel", r"mad\.lo\.s32 (\s*%r\d+), (%r\d+), (%r\d+), %r\d+;", "sums of rows")
FROM_LANE = lines(
    "kernel", r"shfl\.sync\.idx\.b32 (\s*%r\d+), (%r\d+), (%r\d+), 31, -1;", "shuffles"
)
# The first operation of the V warp, whose role is last in the text: it waits for the first work tile.
OF_V = lines("kernel", r"mbarrier\.try_wait\.parity\S* P1, \[\S+\], 0, \d+;", "the first wait").last
BYTES = lines("kernel", r"mov\.b32 (\s*%r\d+), 32768;", "bytes announced")


def gather(rows: str, predicate: str = "@leader_thread ") -> str:
    return rf"{predicate}\1 [at], [\2, {{column, {rows}}}], \7;"


NUMBERS = (WRONG_NUMBERS,)
TOO_EARLY = (
    *ASYNCHRONY,
    *COUNTS,
    *HANG,
)  # the barrier fires before the last bytes arrive, or never
PLANTED = {
    "two rows of four change places": (replace(GATHERS, gather(r"\3, \5, \4, \6")), NUMBERS),
    "the third row comes twice": (replace(GATHERS, gather(r"\3, \4, \5, \5")), NUMBERS),
    "each row is the one after it": (replace(GATHERS, gather(r"\4, \5, \6, \3")), NUMBERS),
    "every lane gathers": (replace(GATHERS, gather(r"\3, \4, \5, \6", predicate="")), TOO_EARLY),
    "a gather is left out": (delete(GATHERS.first), HANG),
    "the second chunk has the columns of the first": (replace(COLUMN, r"add.s32 column, \1, 0;"), NUMBERS),
    "the second chunk begins amid 16 bytes": (replace(COLUMN, r"add.s32 column, \1, 60;"), ("TensorMapError",)),
    "the second chunk lies a row too far": (replace(PLACE, r"add.s32 at, \1, 16512;"), (*NUMBERS, *ASYNCHRONY)),
    "rows of V that do not exist are row 0": (replace(NO_ROW.after(OF_V), r"selp.b32 \1, \2, 0, \3;"), NUMBERS),
    "place in the page and head are left out": (replace(OF_HEAD, r"mul.lo.s32 \1, \2, \3;"), NUMBERS),
    "a row is that of the first gather": (
        replace(FROM_LANE.after(OF_V).first, r"shfl.sync.idx.b32 \1, \2, 0, 31, -1;"), NUMBERS,
    ),
    "the bytes of a gather are not announced": (replace(BYTES, r"mov.b32 \1, 32256;"), TOO_EARLY),
}  # fmt: skip
MUTANTS = [Mutant(name, "pages of three", *planted) for name, planted in PLANTED.items()]


@cache
def subject() -> Subject:
    batch = Batch.draw([3], [150], heads=(4, 2), depth=128)
    # Page 0 is no sequence's, so it is NaN: what is taken from there by mistake shows.
    drawn = (paged_kv(batch, 3, seed=seed) for seed in range(1000))
    storage = next(pages for pages in drawn if 0 not in pages["page_table"])

    q = torch.cat(batch.q)
    of = dict(**storage, cu_seqlens_q=int32([0, 3]), max_seqlen_q=3)

    def call(out):
        return flash_attn_varlen_func(q, **of, return_lse=True, out=out)

    return Subject("pages of three", executes(call, q, LEVEL), LEVEL)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())
