"""What follows from the schedule of scales of blocks: barriers as documented, columns that do not overlap unasked."""

from __future__ import annotations

import pytest

from cute_fa4.layouts.block_scales import COLUMNS, COPY_BYTES, scale_offset, words_of
from cute_fa4.sm100.blueprint.barriers import BarrierTable, reuse_text
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import BlockScaled, FA4Config
from cute_fa4.sm100.two_tiles.block_scaled import barriers

ASKED = dict(qkv_dtype="e4m3", descales="xy")


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = FA4Config(**ASKED, schedule=BlockScaled()).barriers
    rows = tuple(row for row in table.rows if row.name.startswith("scales"))
    assert BarrierTable(rows, table.numbers).text() in barriers.__doc__
    assert reuse_text(rows) in barriers.__doc__


def test_scales_of_a_copy_have_a_byte_each():
    """128 rows of four blocks fill 512 bytes."""
    found = {scale_offset(row, block) for row in range(128) for block in range(4)}
    assert found == set(range(COPY_BYTES))


@pytest.mark.parametrize("depth", (32, 64, 96, 128, 192, 256))
def test_nothing_lies_over_scales_and_p_over_the_other_s_alone(depth):
    config = choose_config(**ASKED, head_dim=depth)
    tmem, tiles = config.tmem, config.tiles
    assert config.refusals() == [] and tmem.used <= 512
    of_o = [range(at, at + tiles.padded_ov_depth) for at in tmem.o]
    of_scales = [range(at, at + COLUMNS * words_of(depth)) for at in tmem.scales]
    of_s = [range(at, at + tiles.BN) for at in tmem.s]
    apart = [set(x) for x in (*of_o, *of_scales)] + [set(of_s[0]) | set(of_s[1])]
    assert sum(map(len, apart)) == len(set.union(*apart))
    for i, p in enumerate(tmem.p):
        own, other = set(of_s[i]), set(of_s[1 - i])
        columns = set(range(p, p + tiles.p_columns))
        assert columns <= other and not columns & own
    assert tmem.s_meet == bool(set(of_s[0]) & set(of_s[1]))
