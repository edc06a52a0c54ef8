"""Mistakes planted in the kernels that convert lists are noticed: by plain loops, or by the emulator.

Mistakes in what the mask function reads of the units are at the end: calls with small blocks notice them.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from cute_fa4 import BlockSparseTensors, emulator
from cute_fa4.sm100.blueprint import small_blocks
from cute_fa4.sm100.work.lists import kernel, longest, order
from tests.attention.listed import ABSENT, FULL, PARTIAL, Listed, assert_right, numbers
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.sm100.backward.test_lists import drawn as drawn_tiles
from tests.sm100.backward.test_lists import expected_tiles, tiles_of
from tests.sm100.backward.test_planted import missed
from tests.sm100.work.lists import sorted_tiles
from tests.sm100.work.lists.conversions import drawn, in_order, is_right
from tests.sm100.work.planted import Edit

MODULES = {"kernel": kernel, "order": order, "longest": longest}

# --- subjects: whether a conversion is right

WRONG = drawn((260, 300), (64, 96), heads=1)
WRONG.kinds[:] = torch.tensor(
    [[FULL, ABSENT, PARTIAL, FULL]] + [[ABSENT, FULL, ABSENT, PARTIAL]] * 4
)
WRONG.kinds[0, 0, 2, 3] = ABSENT


def of_blocks() -> bool:
    """Blocks that do not divide tiles, ragged on both sides; one without a mask function."""
    call = drawn((300, 300), (48, 80))
    return is_right(call) and is_right(call, hides=False)


def of_ascending() -> bool:
    return is_right(drawn((300, 300), (48, 80)), ascends=True)


def of_wrong_contents() -> bool:
    """Entries that are no blocks, counts beyond the list and below 0, a block in both lists, which is full."""
    largest, smallest = 2**31 - 1, -(2**31)
    lists = BlockSparseTensors(
        numbers([[[largest, 1, smallest, 1, 1]]]),
        numbers([[[[2, -1, 4, 3], *[[3, 1, 0, 0]] * 4]]]),
        numbers([[[3, 4, 1, 1, 1]]]),
        numbers([[[[3, largest, 0, 1], [1, smallest, 4, 1], *[[1, 0, 0, 0]] * 3]]]),
        block_size=(64, 96),
    )
    return is_right(WRONG, lists)


def of_passes() -> bool:
    """More tiles of keys than a CTA has threads."""
    call = drawn((100, 17700), (128, 80), heads=1)
    call.kinds[..., 16384 // 80] = PARTIAL
    return is_right(call)


LENGTHS = ((260, 300), (200, 260), (130, 129), (0, 200))


def of_sequences(packed: bool = False) -> bool:
    """Kinds of tiles of sequences of different lengths."""
    call = drawn_tiles((128, 128), lengths=LENGTHS)
    lists = call.packed_lists() if packed else call.lists()
    return bool(tiles_of(call, lists, True).equal(expected_tiles(call).to(torch.int8)))


def of_pairs() -> bool:
    """Kinds of more tiles of keys than a CTA has threads."""
    call = Listed.draw((1, 100, 16700), (1, 1), (128, 128), (0.7,), 16)
    return bool(tiles_of(call, call.lists(), False).equal(call.kinds.to(torch.int8)))


def of_owners() -> bool:
    random = torch.Generator().manual_seed(0)
    kinds = torch.randint(ABSENT, FULL + 1, (1, 4, 3, 300), generator=random)
    return in_order(kinds.to(torch.int8), 2)


SUBJECTS = {
    "blocks": of_blocks,
    "ascending": of_ascending,
    "contents": of_wrong_contents,
    "passes": of_passes,
    "sequences": of_sequences,
    "packed": partial(of_sequences, True),
    "pairs": of_pairs,
    "owners": of_owners,
    "padded": sorted_tiles.PADDED.is_right,
    "sequences of packed lists": sorted_tiles.PACKED.is_right,
    "wrong counts": sorted_tiles.WRONG.is_right,
    "packed queries": sorted_tiles.QUERIES.is_right,
}


def is_noticed(subject: str) -> bool:
    try:
        return not SUBJECTS[subject]()
    except emulator.EmulatorError:
        return True


@dataclass(frozen=True)
class Defect:
    """In a file of the folder, `old` becomes `new`; the subject that shows it."""

    old: str
    new: str
    subject: str = "blocks"
    file: str = "kernel"

    def plant(self, monkeypatch, folder: Path) -> None:
        Edit(MODULES[self.file], self.old, self.new).plant(monkeypatch, folder)


DEFECTS = {
    "marks of one warp overwrite those of another": Defect(
        'cute.arch.red(row.iterator + at, marks, op="or", dtype="b32", sem="relaxed", scope="cta")',
        "row[at] = marks",
    ),
    "a block ends one unit early": Defect("minimum(first + sizes.units,", "minimum(first + sizes.units - 1,"),
    "a block across two words is marked in the first one": Defect(
        "(end + UNITS_OF_WORD - 1) >> WORD_BITS, unroll=1", "(begin >> WORD_BITS) + 1, unroll=1"
    ),
    "the last query block of a tile is left out": Defect(
        "minimum(last, sizes.blocks_q - 1) - first + 1", "maximum(minimum(last, sizes.blocks_q - 1) - first, 1)"
    ),
    "partial blocks are partial without a mask function": Defect("(sizes.hides & HIDES) != 0", "sizes.hides != 7"),
    "a tile is full where one query block is": Defect(
        "rest = some | found, rest | (full & ~found)", "rest = some | found, full & ~found"
    ),
    "tiles of ascending lists are full": Defect("sizes.hides < ALL_PARTIAL", "sizes.hides < 7", "ascending"),
    "partial blocks of ascending lists are full": Defect(
        "(sizes.hides & HIDES) != 0", "sizes.hides == HIDES", "ascending"
    ),
    "units beyond the last block count": Defect("sizes.blocks_k * sizes.units - key_tile", "1000 - key_tile"),
    "units of a block that another tile has, too, are not written": Defect(
        "(row > 0) | (block * sizes.q_block.divisor >= place.tile * sizes.tile_q)", "row == 0"
    ),
    "places in a list do not count other warps": Defect(
        "at = at + cutlass.select_(other < warp, of_warp, Int32(0))", "at = at + 0", "passes"
    ),
    "a list has a tile at the place of another": Defect("cute.arch.lanemask_lt()", "cute.arch.lanemask_le()"),
    "the others are written over the list": Defect("tiles - 1 - (key_tile - at)", "key_tile - at"),
    "the second pass begins anew": Defect("tiles = before[i], before[i]", "tiles = Int32(0), Int32(0)", "passes"),
    "the second pass marks the units of the first": Defect(
        "block * sizes.units - first_tile * UNITS_OF_TILE", "block * sizes.units", "passes"
    ),
    "marks of the first pass stay": Defect("words[row, thread] = Uint32(0)", "words[row, thread] = words[row, thread]"),
    "entries from the count on are read": Defect(
        "minimum(Int32(counts[(*of_counts, in_counts)]), room)", "room", "contents"
    ),
    "entries beyond the list are read": Defect(
        "minimum(Int32(counts[(*of_counts, in_counts)]), room)", "Int32(counts[(*of_counts, in_counts)])", "contents"
    ),
    "a count below 0 shortens the other list": Defect("room), 0)", "room), -9)", "contents"),
    "entries that are no blocks are marked": Defect(
        "if (entry >= 0) & (entry < sizes.blocks_k):", "if entry < sizes.blocks_k + 1:", "contents"
    ),
    "the list of full blocks is that of partial ones": Defect("given.entries[1][", "given.entries[0]["),
    "a unit in both lists is neither": Defect("found & ~((found & FULL_UNITS) >> 1)", "found", "contents"),
    "queries that do not exist have tiles": Defect(
        "(place.tile * sizes.tile_q < queries) & (key_tile * TILE < keys)", "key_tile * TILE < keys", "sequences"
    ),
    "keys that do not exist have tiles": Defect(
        "(place.tile * sizes.tile_q < queries) & (key_tile * TILE < keys)", "place.tile * sizes.tile_q < queries",
        "sequences",
    ),
    "packed counts are of the first sequence": Defect(
        "clipped(counts, 2, first + block)", "clipped(counts, 2, block)", "packed"
    ),
    "packed entries are of the first list": Defect("begin + block * each)", "begin)", "packed"),
    "packed entries are of the longest sequence": Defect(
        "keys = rows_of(given.keys, given.limit_k, place.batch, sizes.keys)\n            each",
        "keys = sizes.keys\n            each",
        "packed",
    ),
    "lists of the first head": Defect("clipped(entries, 1, place.head)", "Int32(0)", "sequences"),
    "lists of the first sequence": Defect("clipped(counts, 0, place.batch)", "Int32(0)", "sequences"),
    "partial pairs begin at the place of full ones": Defect(
        "full_at, partial_at = Int32(0), fulls", "full_at, partial_at = Int32(0), Int32(0)", "owners", "order"
    ),
    "full pairs are said to be partial": Defect(
        "entry | cutlass.select_(is_full, Int32(1), Int32(0))", "entry", "owners", "order"
    ),
    "kinds after the first ones of a warp are not counted": Defect("full_at += ", "full_at = ", "owners", "order"),
    "the head of a pair is left out": Defect(
        "(at // tiles << (1 + TILE_BITS)) | (at % tiles << 1)", "at % tiles << 1", "owners", "order"
    ),
    "the shortest lists begin first": Defect("(BINS - 1) - bin_of_length", "bin_of_length", "padded", "longest"),
    "lengths of an octave are alike": Defect(
        "(length))), 0)\n    return (octave << SUB_BITS) + (length >> octave)",
        "(length))), 0)\n    return octave << SUB_BITS", "padded", "longest",
    ),
    "full blocks are not counted": Defect("self.lists == 2", "self.lists == 3", "padded", "longest"),
    "counts below 0 shorten the other list": Defect(
        "maximum(minimum(found[i, k], MOST), 0)", "minimum(found[i, k], MOST)", "padded", "longest"
    ),
    "counts are added before they are clipped": Defect(
        "maximum(minimum(found[i, k], MOST), 0)", "maximum(found[i, k], 0)", "wrong counts", "longest"
    ),
    "tiles without rows are like others": Defect(
        "cutlass.select_(rows > 0, maximum(length, 1), Int32(0))", "length", "packed queries", "longest"
    ),
    "empty lists are like tiles without rows": Defect(
        "cutlass.select_(rows > 0, maximum(length, 1), Int32(0))", "cutlass.select_(rows > 0, length, Int32(0))",
        "packed queries", "longest",
    ),
    "all sequences are as long as the first one": Defect(
        "Int32(self.offsets[batch + 1]) - Int32(self.offsets[batch])",
        "Int32(self.offsets[1]) - Int32(self.offsets[0])", "packed queries", "longest",
    ),
    "numbers are written beyond the order": Defect(
        "if first + to < Int32(order.shape[0]):", "if first + to >= 0:", "packed queries", "longest"
    ),
    "a work tile has a list of its own": Defect("divmod(block, tiles.of_list)", "(block, 0)", "padded", "longest"),
    "packed lists are those of the first sequence": Defect(
        "at = at + Int32(self.first_blocks[batch])", "at = at + 0", "sequences of packed lists", "longest"
    ),
    "lists beyond the tensor": Defect(
        "maximum(minimum(index, Int32(x.shape[dim]) - 1), 0)", "index", "wrong counts", "longest"
    ),
    "warps count together": Defect(
        "places.iterator + (of_tile * WARPS + warp)", "places.iterator + of_tile * WARPS", "padded", "longest"
    ),
    "a bit of the bin is left out": Defect(
        "range_constexpr(BIN_BITS)", "range_constexpr(BIN_BITS - 1)", "padded", "longest"
    ),
    "tiles alike have one place": Defect(
        "Int32(cute.arch.popc(alike & cute.arch.lanemask_lt()))", "0", "padded", "longest"
    ),
    "the next tiles of a warp begin at the same place": Defect(
        "places[slot] + Int32(cute.arch.popc(alike))", "places[slot]", "padded", "longest"
    ),
    "warps before this one do not count": Defect(
        "cutlass.select_(lane < warp, sums[lane], Int32(0))", "Int32(0)", "padded", "longest"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, tmp_path, name):
    DEFECTS[name].plant(monkeypatch, tmp_path)
    assert is_noticed(DEFECTS[name].subject), "nothing noticed"


@pytest.mark.parametrize("name", SUBJECTS)
def test_without_a_mistake_the_subjects_are_right(name):
    assert SUBJECTS[name]()


@pytest.mark.parametrize("subject", ("passes", "pairs"))
def test_threads_that_do_not_meet_are_noticed(subject):
    """Each barrier that is deleted from the PTX, over two passes."""
    number, unnoticed = missed(
        r"\bbar(rier)?\.sync[^;]*;", SUBJECTS[subject], mode="hostile", seed=1
    )
    assert number == 3 and not unnoticed


# --- what the mask function reads of the units

CALL = Listed.draw((1, 140, 200), (2, 1), (48, 96), (0.5, 0.7))


def shifted(made):
    """The byte of the next 64 keys."""

    def byte(number, queries):
        found = made(number, queries)
        return type(found)("read", (*found.args[:-1], found.args[-1] + 1), "int")

    return byte


# name -> (an attribute of blueprint/small_blocks.py, what it becomes)
DEFECTS_OF_MASK = {
    "units have eight keys": ("UNIT", lambda made: 8),
    "partial units are full": ("FULL", lambda made: 3),
    "full units are hidden from the mask function": ("FULL", lambda made: 4),
    "partial units are hidden": ("PARTIAL", lambda made: 4),
    "the byte of the next keys": ("_byte", shifted),
    "query blocks of another size": ("_byte", lambda made: lambda number, queries: made(number, 64)),
}  # fmt: skip


def masks_right() -> bool:
    try:
        assert_right(CALL.run(), CALL.expected())
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_MASK, OF_SOURCES))
def test_a_mistake_of_the_mask_is_noticed(own_kernels, monkeypatch, name):
    attribute, change = DEFECTS_OF_MASK[name]
    monkeypatch.setattr(small_blocks, "_made", {})
    monkeypatch.setattr(small_blocks, attribute, change(getattr(small_blocks, attribute)))
    assert not masks_right(), "nothing noticed"


@pytest.mark.sweep
def test_without_a_mistake_the_mask_is_right():
    assert masks_right()
