"""Mistakes planted where long lists are cut: in the kernel that cuts them, and in those that compute and merge parts.

The first is compared with Python's own sort and parts, the others with float64. The emulator notices the rest.
"""

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.combine import kernel as combine
from cute_fa4.sm100.combine import parts
from cute_fa4.sm100.work import block_lists, list_parts
from cute_fa4.sm100.work.lists import cut
from tests.attention.listed import ABSENT, FULL, PARTIAL, Listed, assert_right
from tests.attention.test_cut_lists import cutting
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.sm100.backward.test_planted import missed
from tests.sm100.work.lists import sorted_tiles
from tests.sm100.work.lists.sorted_tiles import cuts_right
from tests.sm100.work.planted import Edit


def of_cuts() -> bool:
    """Half of 1,440 lists are cut, in stretches of two turns for each warp; then those that `least` lets be cut; none,
    so that parts are longest and all bits of a bin count."""
    shares = (3000, 8), (3000, 150), (148, 8)
    return all(cuts_right(sorted_tiles.PADDED, *each) for each in shares)


# Three of eight lists have keys, those of other query blocks in either head. On five SMs a share is three key blocks,
# so each of the three has a part of three and one of two. A launch has warps for two lists at a time.
CALL = Listed.draw((1, 400, 600), (2, 1), (128, 128), (0.0, 0.0))
CALL.kinds[0, 0, 1] = CALL.kinds[0, 1, 0] = torch.tensor([FULL, PARTIAL, FULL, PARTIAL, FULL])
CALL.kinds[0, 1, 3] = PARTIAL
SINK = torch.tensor([0.7, -1.2])


def of_parts() -> bool:
    assert (CALL.kinds != ABSENT).sum() == 3 * 5
    repeat.clear()
    try:
        assert_right(CALL.run(learnable_sink=SINK), CALL.expected(sink=SINK))
    except AssertionError:
        return False
    return True


def of_cut(old: str, new: str) -> tuple:
    return of_cuts, Edit(cut, old, new)


def of_list_parts(old: str, new: str) -> tuple:
    return of_parts, Edit(list_parts, old, new)


def of_merge(old: str, new: str) -> tuple:
    return of_parts, Edit(parts, old, new, users=(combine,))


DEFECTS = {
    "a share is rounded down": of_cut("quotient(total + number - 1, number)", "quotient(total, number)"),
    "parts are shorter than they may be": of_cut(
        "maximum(quotient(total + number - 1, number), least)", "quotient(total + number - 1, number)"
    ),
    "the share is that of one warp": of_cut("shared.lengths[cute.arch.lane_idx()]", "shared.lengths[0]"),
    "the share counts the last lists alone": of_cut("total = total + of_tile", "total = of_tile"),
    "every list that is longer than a share is cut": of_cut("2 * keys > 3 * share", "keys > share"),
    "a list has a part less": of_cut("quotient(keys + share - 1, share)", "quotient(keys, share)"),
    "parts are sorted by their whole lists": of_cut("quotient(keys + number - 1, number)", "keys"),
    "the shortest parts begin first": of_cut("(BINS - 1) - bin_of_length(of_part)", "bin_of_length(of_part)"),
    "a list counts as one part of its bin": of_cut(
        "places.iterator + (of_tile * WARPS + warp), number,", "places.iterator + (of_tile * WARPS + warp), Int32(1),"
    ),
    "warps count together": of_cut(
        "places.iterator + (of_tile * WARPS + warp), number,", "places.iterator + of_tile * WARPS, number,"
    ),
    "slots of a warp are those of its lists": of_cut("taken = taken + number + CUT", "taken = taken + 1 + CUT"),
    "lists of a warp are not counted": of_cut("taken = taken + number + CUT", "taken = taken + number"),
    "slots begin anew in each warp": of_cut("cutlass.select_(lane < warp, slots[lane], Int32(0))", "Int32(0)"),
    "slots begin after the list": of_cut("mine = taken + until - own", "mine = taken + until"),
    "slots begin anew in each turn": of_cut('taken + cute.arch.warp_redux_sync(own, "add")', "taken"),
    "lanes count for one part each": of_cut("counts & (other < lane), of_other", "counts & (other < lane), Int32(1)"),
    "lanes count for lists of any bin": of_cut("counts & (other < lane)", "other < lane"),
    "lanes count for themselves": of_cut("counts & (other < lane)", "counts & (other <= lane)"),
    "a bit of the bin is left out": of_cut("range_constexpr(BIN_BITS)", "range_constexpr(BIN_BITS - 1)"),
    "the next lists of a warp begin at the same place": of_cut(
        "places.iterator + slot,\n                    number,",
        "places.iterator + slot,\n                    number * 0,",
    ),
    "parts of a list have one place": of_cut("order[to + part, 0] = tile", "order[to, 0] = tile"),
    "the first part is named twice": of_cut("order[to + part, 1] = part", "order[to + part, 1] = part // 2"),
    "slots have the number of lists in them": of_cut("first = mine % CUT", "first = mine"),
    "entries that are left over have work": of_cut("slots - lists + thread", "slots + thread"),
    "lists that are left over have parts": of_cut("range(lists + thread, cut", "range(lists + 1 + thread, cut"),
    "counts begin with what is in memory": of_cut(
        "shared.places[i * SORTING + thread] = Int32(0)", "shared.places[0] = Int32(0)"
    ),
    "parts overlap where they are not even": of_list_parts("part * each + minimum(part, more)", "part * each"),
    "the rest of a list is left out": of_list_parts("each + choose(part < more, 1, 0)", "each"),
    "parts of a list share a slot": of_list_parts("2 * (self.slot + part)", "2 * self.slot"),
    "slots are those of the next part": of_list_parts("part // 2 - 1", "part // 2"),
    "a sink counts in every part": of_list_parts("choose(part == 0, 2, 3)", "2"),
    "a sink counts in none": of_list_parts("choose(part == 0, 2, 3)", "3"),
    "the first part is the result": of_list_parts("return part > 0", "return part > 3"),
    "turns end as those of a whole list that is as short": (
        of_parts,
        Edit(block_lists, "return work.tiles.first + work.tiles.count if", "return work.tiles.count if"),
    ),
    "the last part is not merged": of_merge("self.slot + self.parts\n", "self.slot + self.parts - 1\n"),
    "the parts of the next list": of_merge("begin, end = self.slot,", "begin, end = self.slot + 1,"),
    "rows of every query block are those of the first": of_merge("block * rows + inside, head", "inside, head"),
    "heads are sequences": of_merge("sequence, head = divmod(rest", "head, sequence = divmod(rest"),
    "lists for which a launch has no warps are left out": of_merge(
        "return lists * rows, (lists + TURNS - 1)", "return (lists + TURNS - 1) // TURNS * rows, (lists + TURNS - 1)"
    ),
}  # fmt: skip


def is_noticed(subject) -> bool:
    try:
        return not subject()
    except emulator.EmulatorError:
        return True


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, tmp_path, name):
    subject, edit = DEFECTS[name]
    edit.plant(monkeypatch, tmp_path)
    with cutting(monkeypatch):
        assert is_noticed(subject), "nothing noticed"


@pytest.mark.parametrize("subject", (of_cuts, of_parts))
def test_without_a_mistake_the_subjects_are_right(monkeypatch, subject):
    with cutting(monkeypatch):
        assert subject()


def test_warps_that_do_not_meet_are_noticed():
    """Each barrier that is deleted from the PTX of the kernel that cuts."""
    number, unnoticed = missed(r"\bbar(rier)?\.sync[^;]*;", of_cuts, mode="hostile", seed=1)
    assert number == 4 and not unnoticed
