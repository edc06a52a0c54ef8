"""The barrier table of the wide kernel: counts against hand-derived ones, text against the documentation."""

from cute_fa4.sm100.blueprint.barriers import reuse_text
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.wide import barriers
from cute_fa4.sm100.wide.schedule import WideTile

# Number of barriers and arrivals of each, by hand: one Q, two buffers of S, nine slots, 128 threads a warpgroup.
NUMBERS_AND_COUNTS = dict(
    q_full=(1, 1), q_free=(1, 1), s_ready=(2, 1), row_scale=(2, 128), p_ready=(2, 256), p_last=(2, 128),
    pv_done=(1, 1), kv_full=(9, 1), kv_empty=(9, 1), work_ready=(2, 1), work_read=(2, 288), work_claimed=(1, 1),
)  # fmt: skip


def test_numbers_and_arrival_counts():
    table = FA4Config(qk_depth=256, schedule=WideTile()).barriers
    assert {b.name: (table.number(b), b.count) for b in table.rows} == NUMBERS_AND_COUNTS


def test_the_tables_in_the_docstring_are_those_in_the_code():
    table = FA4Config(qk_depth=256, schedule=WideTile()).barriers
    assert table.text() in barriers.__doc__
    assert reuse_text(table.rows) in barriers.__doc__
