"""Launches that pages quote from records: appends, conversions of lists, and calls that skip key tiles."""

import pytest

from benchmarks.cycle_model import append, converted_lists, profiled, skipped_tiles
from benchmarks.cycle_model.records import records
from cute_fa4.emulator.model.constants import fitted_b200

CONSTANTS = fitted_b200()


def known(names) -> None:
    missing = sorted(set(names) - set(records()))
    assert not missing, f"not recorded: {missing}; python benchmarks/model.py --record"


def test_the_bytes_of_an_append_are_those_of_rows_numbers_and_scales():
    """K and V of 128 numbers: read in 2 bytes; NVFP4 writes half a byte and a scale for 16, MXFP8 one for 32."""
    of = append.Cta(1000, 5000, 96)
    for kind, written in ((append.Kind("e2m1"), 64 + 8), (append.Kind("mxe4m3"), 128 + 4)):
        by_bytes, *_ = append.launch_us(kind.config, of, CONSTANTS)
        rows = append.ROWS * append.HEADS
        assert by_bytes == pytest.approx(2 * rows * (256 + written) / append.BYTES_PER_US)


def test_two_scales_cost_instructions_and_no_bytes():
    subjects = [append.subject(kind, CONSTANTS) for kind in append.KINDS]
    known(one.name for one in subjects)
    costs = [append.Cta(**records()[one.name]["cta"]) for one in subjects]
    times = [
        append.launch_us(kind.config, cost, CONSTANTS)
        for kind, cost in zip(append.KINDS, costs, strict=True)
    ]
    one, _, both = times
    assert one[0] == both[0] < both[1] and one[1] < both[1]


@pytest.mark.parametrize("row", converted_lists.ROWS, ids=lambda row: row.launch.name)
def test_a_conversion_lists_its_share_of_the_key_blocks_once(row):
    """Of random numbers: within a third of the density, for the fewest blocks of a list."""
    given = []
    row.run(lambda *arguments: given.extend(arguments))
    (partial, full), (partial_entries, full_entries), *_, sizes, results = given
    assert sizes[:2] == row.block and sizes[4] == row.keys
    listed = []
    for query_block in range(partial.shape[-1]):
        found = []
        for counts, entries in ((partial, partial_entries), (full, full_entries)):
            found += entries[0, 0, query_block, : counts[0, 0, query_block]].tolist()
        assert len(set(found)) == len(found)
        listed += found
    share = len(listed) / partial.shape[-1] / (row.keys // row.block[1])
    assert share == pytest.approx(row.density, rel=1 / 3)
    assert results[1].shape[-1] * 128 == row.keys


def test_a_call_is_faster_the_more_it_skips():
    launches = list(skipped_tiles.launches())
    known(launch.name for launch in launches)
    cycles = [profiled.recorded(launch).cycles for launch in launches]
    steady = [many - few for few, many in zip(cycles[::2], cycles[1::2], strict=True)]
    assert steady == sorted(steady, reverse=True)
