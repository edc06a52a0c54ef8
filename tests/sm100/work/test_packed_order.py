"""The order of packed blocks: every one once, the longest first in a section, grids that are large enough."""

import itertools
import random

import pytest

from cute_fa4 import masks
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.work import packed_order
from cute_fa4.sm100.work.tile_order import L2_BYTES_FOR_KEYS

FULL, CAUSAL, WINDOW = masks.Full(), masks.Causal(), masks.Window()


def config(mask, **choices):
    return FA4Config(mask=mask, q_layout="packed", kv_layout="packed", **choices)


def walk(cfg, num_blocks, heads, num_keys):
    return [
        packed_order.block_of(cfg, inside, num_blocks, heads, num_keys)
        for inside in range(num_blocks * heads)
    ]


# 1 and 5 heads: no power of two; 40: more than one section of 32. Keys: all heads fit, one does, in 50 MiB of 512 bytes
# a key (102,400) two do, and one more than that.
@pytest.mark.parametrize("mask", [FULL, CAUSAL, WINDOW], ids=repr)
@pytest.mark.parametrize("heads", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("num_blocks", [1, 2, 7])
@pytest.mark.parametrize("num_keys", [0, 1000, 51_200, 51_201, 1 << 30])
def test_every_block_of_every_head_is_taken_once(mask, heads, num_blocks, num_keys):
    found = walk(config(mask), num_blocks, heads, num_keys)
    assert sorted(found) == sorted(itertools.product(range(heads), range(num_blocks)))


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW], ids=repr)
@pytest.mark.parametrize(
    "num_keys, group, pack", [(0, 1, False), (3000, 1, False), (9000, 4, False), (9000, 4, True)]
)
def test_a_section_starts_with_the_last_blocks_and_its_keys_fit_in_l2(mask, num_keys, group, pack):
    cfg, heads, num_blocks = config(mask, group=group, pack_gqa=pack), 37, 3
    found = walk(cfg, num_blocks, heads, num_keys)
    begins = [0]  # a section begins where a shorter block is followed by a longer one
    begins += [i for i in range(1, len(found)) if found[i][1] > found[i - 1][1]]
    sections = [found[a:b] for a, b in itertools.pairwise([*begins, len(found)])]
    widths = [len(section) // num_blocks for section in sections]
    head_bytes = num_keys * 512 // (1 if pack else group)
    fitting = min(128, L2_BYTES_FOR_KEYS // max(head_bytes, 1))
    expected = 1 << fitting.bit_length() - 1  # the largest power of two that fits
    assert widths == [expected] * (heads // expected) + [heads % expected] * bool(heads % expected)
    for section in sections:
        blocks = [block for _, block in section]
        assert blocks == sorted(blocks, reverse=True)


def test_without_a_mask_the_blocks_of_a_head_follow_one_another():
    assert walk(config(FULL), 3, 2, 600) == list(itertools.product(range(2), range(3)))


def test_the_picture_is_the_order():
    for mask in (FULL, CAUSAL, WINDOW):
        cfg, rows = config(mask), []
        for sequence, length in ((2, 600), (0, 100), (1, 0)):  # the most keys first
            blocks = -(-length // cfg.tiles.positions_per_cta)
            rows += [(sequence, *place) for place in walk(cfg, blocks, 2, length)]
        columns = zip(*rows, strict=True)
        for name, values in zip(("sequence", "head", "block"), columns, strict=True):
            line = f"    {name:<11}" + "".join(f"{value:>4}" for value in values)
            assert line in packed_order.__doc__, line


def checked(name):
    def operation(self, other):
        found = getattr(int, name)(self, other)
        assert -(2**31) <= found < 2**31, f"{int(self)} {name} {int(other)}"
        return Int32(found)

    return operation


class Int32(int):
    """A number whose sums and products must fit 32 bits, as in the launch code."""

    __add__, __radd__, __sub__ = checked("__add__"), checked("__radd__"), checked("__sub__")
    __mul__, __floordiv__ = checked("__mul__"), checked("__floordiv__")


@pytest.mark.parametrize("batch", [0, 1, 70_000, 1 << 22])
@pytest.mark.parametrize("longest", [0, 1, 300, 1 << 30])
def test_the_grid_of_the_largest_tensors_is_counted_in_32_bits(batch, longest):
    cfg, total = (
        config(FULL),
        (1 << 31) - 1024,
    )  # the most rows that a call takes; 1 << 30 in one sequence
    found = packed_order.grid_size(cfg, Int32(total), Int32(batch), Int32(longest), 1)
    assert found == min(total // 256 + batch, batch * -(-longest // 256))


@pytest.mark.parametrize("pack", [False, True])
def test_the_grid_has_a_cta_for_every_block(pack):
    """Lengths around multiples of the 256 (packed: 64) positions of a CTA, where rounding up adds the most."""
    cfg = config(FULL, group=4, pack_gqa=pack)
    positions, heads = cfg.tiles.positions_per_cta, 8
    edges = [0, 1, positions - 1, positions, positions + 1, 5 * positions, 5 * positions + 1]
    draw = random.Random(0)
    for number in (1, 2, 3, 17):
        for _ in range(20):
            lengths = [draw.choice(edges) for _ in range(number)]
            blocks = sum(-(-length // positions) for length in lengths)
            sizes = (sum(lengths), number, max(lengths))
            found = packed_order.grid_size(cfg, *sizes, heads)
            assert found >= blocks * heads // cfg.heads_per_tile
            assert found <= (blocks + number) * heads // cfg.heads_per_tile
    # Sequences of one length launch no CTA without rows, however many there are.
    assert (
        packed_order.grid_size(cfg, 40 * positions, 20, 2 * positions, 4)
        == 40 * 4 // cfg.heads_per_tile
    )
