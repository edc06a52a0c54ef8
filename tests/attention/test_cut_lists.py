"""Lists that are cut into parts: whatever the lists, layouts, rows and options are, a call gives what float64 gives.

Work tiles have up to two or three parts of one key block, so parts of full and of partial blocks, and lists that are
not cut, are side by side; one whose sequence has no such block has empty parts.
"""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from cute_fa4 import BlockSparseTensors, score_mods
from cute_fa4.calls import longest_first
from cute_fa4.calls.operands import blocks
from cute_fa4.sm100.blueprint import tuning
from tests.attention.listed import ABSENT, FULL, PARTIAL, SMALL, Listed, assert_right
from tests.attention.test_block_sparsity import LENGTHS, SIZES, drawn
from tests.attention.test_block_sparsity_8_bits import E4M3, blocks_of
from tests.attention.test_block_sparsity_8_bits import assert_right as assert_right_8_bits
from tests.attention.test_longest_first import packed_lists_over_padded_rows

SMS = 5


@contextmanager
def cutting(monkeypatch, sms: int = SMS):
    """On a chip with few SMs, so that a share of all lists is short and the merge has few rows to look at."""
    monkeypatch.setattr(longest_first, "num_sms", lambda device: sms)
    shipped = tuning.shipped()
    with tuning.using(shipped.changed(cut_lists=1000, cut_least_keys=1, cut_least_tiles=1)):
        yield


@pytest.fixture(autouse=True)
def cut_always(monkeypatch):
    with cutting(monkeypatch):
        yield


# One long list, and short ones.
SKEWED = torch.tensor([[FULL, PARTIAL, FULL, PARTIAL, FULL, PARTIAL], [ABSENT] * 5 + [FULL]])


def skewed(family, **more) -> Listed:
    """Two heads of a group; the lists of the second one are short."""
    size = (SIZES | SMALL)[family]
    queries, keys = 300, 6 * size[1] - 20
    call = Listed.draw((1, queries, keys), (2, 1), size, (0.0, 0.0), **more)
    call.kinds[0, 0, 0], call.kinds[0, 0, 1:], call.kinds[0, 1] = SKEWED[0], SKEWED[1], SKEWED[1]
    return call


@pytest.mark.parametrize("family", [*SIZES, "64 x 128"])
def test_one_long_list_among_short_ones(family, schedule):
    call = skewed(family)
    assert_right(call.run(schedule=schedule), call.expected())


@pytest.mark.parametrize("family", SIZES)
def test_any_pattern_is_that_of_float64(family):
    call = drawn(family)
    assert_right(call.run(), call.expected())


@pytest.mark.parametrize(
    "family, way", [("mha2q", "lengths"), ("mha1q", "lengths"), ("mha1q", "pages of 256")]
)
def test_sequences_of_different_lengths(family, way):
    sizes = len(LENGTHS), *(max(each) for each in zip(*LENGTHS, strict=True))
    call = Listed.draw(sizes, (2, 1), SIZES[family], (0.4, 0.9), lengths=LENGTHS)
    assert_right(call.run_as(way), call.expected())


def test_packed_lists_over_padded_rows():
    call = skewed("mha1q")
    assert_right(packed_lists_over_padded_rows(call), call.expected())


@pytest.mark.parametrize("family", SIZES)
def test_a_sink_counts_once(family):
    call, sink = skewed(family), torch.tensor([0.7, -1.2])
    found = call.run(learnable_sink=sink)
    assert_right(found, call.expected(sink=sink))


def test_scores_are_capped_in_every_part():
    call = skewed("mha1q")
    found = call.run(score_mod=score_mods.soft_cap(2.0))
    assert_right(found, call.expected(scores=lambda s: 2.0 * torch.tanh(s / 2.0)))


@pytest.mark.parametrize("family", SIZES)
def test_eight_bits_with_scales_of_keys(family):
    call = skewed(family, head_dim=128, dtype=E4M3)
    generator = torch.Generator().manual_seed(1)
    rows = call.q.shape[1], call.k.shape[1]
    scales = [
        torch.exp(torch.randn(1, n, heads, generator=generator)) / 2 * unit
        for n, heads, unit in ((rows[0], 2, 1), (rows[1], 1, 1), (rows[1], 1, 2.0**-9))
    ]
    found = call.run(**dict(zip(("q_descale", "k_descale", "v_descale"), scales, strict=True)))
    assert_right_8_bits(call, found, scales)


def test_eight_bits_with_scales_of_blocks():
    """MXFP8: the scales of q are copied for the first turn of a part, too."""
    call = skewed("mha2q", dtype=E4M3)
    given, meant = blocks_of(call)
    assert_right_8_bits(call, call.run(**given), meant)


def test_the_log_sum_exp_changes_no_bit_and_neither_does_another_run():
    call = skewed("mha2q")
    out, _ = call.run()
    assert torch.equal(call.run(return_lse=False), out) and torch.equal(call.run()[0], out)


def test_counts_beyond_a_list_make_parts_without_keys(monkeypatch):
    """As on CUDA, where contents are not read: the list is cut by its count, and its parts take what there is."""
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    call = Listed.draw((1, 256, 256), (1, 1), (128, 128), (0.0,))
    counts = torch.tensor([9, -3], dtype=torch.int32)[None, None]
    entries = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32)[None, None]
    call.kinds[0, 0] = torch.tensor([[FULL, FULL], [ABSENT, ABSENT]])
    lists = BlockSparseTensors(counts, entries, block_size=(128, 128))
    visible = call.visible(lambda *places: torch.tensor(True))
    assert_right(call.run(lists, mask_mod=None), call.expected(visible))


def beside_other_lists(family: str, dtype=torch.bfloat16, **options) -> list[tuple]:
    """The rows of the first query block of head 0 in two calls, whose other lists differ in every block.

    Tiles of 64 x 64 blocks are full beside full blocks, and partial, so in another place of a list, beside absent ones.
    """
    call, found = skewed(family, dtype=dtype), []
    rows = call.block_size[0]
    call.kinds[0, 0, 0] = torch.tensor([FULL, FULL, PARTIAL, PARTIAL, FULL, FULL])
    if dtype is E4M3:
        options |= blocks_of(call)[0]
    for kind in (ABSENT, FULL):
        kinds = torch.full_like(call.kinds, kind)
        kinds[0, 0, 0] = call.kinds[0, 0, 0]
        out, lse = replace(call, kinds=kinds).run(**options)
        found.append((out[:, :rows, 0], lse[:, 0, :rows]))
    return found


@pytest.mark.parametrize(
    "family, dtype",
    [*((family, torch.bfloat16) for family in (*SIZES, "64 x 64")), ("mha1q", E4M3)],
)
def test_rows_of_batch_invariant_calls_do_not_depend_on_other_lists(family, dtype):
    """Their lists are not cut, and those of other blocks in a tile (64 x 64, and MXFP8) do not move its key tiles."""
    first, second = beside_other_lists(family, dtype, batch_invariant=True)
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("num_splits", (None, 0, 1))
def test_other_calls_are_cut_whatever_num_splits_says(num_splits):
    """The list is cut beside short ones, and is whole beside longer ones: other sums of the same keys."""
    first, second = beside_other_lists("mha1q", num_splits=num_splits)
    assert not torch.equal(first[0], second[0])
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=2**-6)
