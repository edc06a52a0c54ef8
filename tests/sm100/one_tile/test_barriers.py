"""The barrier table of the one-tile kernel: counts against hand-derived ones, text against the documentation."""

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.one_tile import barriers
from cute_fa4.sm100.one_tile.schedule import OneTile

# Number of barriers and arrivals of each, by hand: one Q, a barrier of each softmax warpgroup, five slots.
NUMBERS_AND_COUNTS = dict(
    q_full=(1, 1), q_free=(1, 1), s_ready=(2, 1), row_scale=(2, 128), p_ready=(2, 256), p_last=(2, 128),
    o_ready=(1, 1), kv_full=(5, 1), kv_empty=(5, 1), work_ready=(2, 1), work_read=(2, 416), work_claimed=(1, 1),
)  # fmt: skip


def test_numbers_and_arrival_counts():
    table = FA4Config(schedule=OneTile()).barriers
    assert {b.name: (table.number(b), b.count) for b in table.rows} == NUMBERS_AND_COUNTS
    assert table.total == sum(number for number, _ in NUMBERS_AND_COUNTS.values())


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = FA4Config(schedule=OneTile()).barriers
    assert table.text() in barriers.__doc__
    assert reuse_text(table.rows) in barriers.__doc__
