"""Skip-softmax of calls with lists of key blocks: every list follows the rule of the oracle, turn by turn.

300 queries are a tile of 256 and a ragged one, 1,100 keys are nine key tiles: a list of five of them skips some.
"""

from dataclasses import replace

import pytest
import torch

from cute_fa4 import EmulatorWarning, flash_attn_func
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.attention import skipping
from tests.attention.listed import ABSENT, FULL, Listed, every_third_hidden
from tests.attention.skipping import CTA_ROWS, KEYS, Rule
from tests.attention.test_skip_softmax import ERROR, SCALES, SLACK

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

THRESHOLD = 0.2
SHARE = 3  # key tiles of a part, at least
# Blocks that the kernel has, blocks of one query tile, which share a CTA's list, and smaller ones.
SIZES = {f"{q} x {k}": (q, k) for q, k in ((256, 128), (128, 128), (64, 64))}
FACTOR = "skip_softmax_threshold_scale_factor"


def drawn(size, lengths=((300, 1100),), depth: int = 128) -> Listed:
    """Keys whose scores differ from tile to tile, as in test_skip_softmax.py."""
    sizes = len(lengths), *(max(each) for each in zip(*lengths, strict=True))
    call = Listed.draw(sizes, (1, 1), size, (0.7,), depth, lengths=lengths)
    of_tiles = torch.tensor(SCALES).repeat_interleave(KEYS).repeat(2)[: call.k.shape[1]]
    of_rows = torch.where(torch.arange(call.q.shape[1]) < 150, 2.0, 1.0)
    q, k = (x * s[:, None, None].to(x.dtype) for x, s in ((call.q, of_rows), (call.k, of_tiles)))
    return replace(call, q=q, k=k)


def turns_of(kinds: torch.Tensor, size: tuple[int, int], rows: int, keys: int):
    """The key tiles of a CTA by its first query: full ones, then the others. kinds: of blocks of a sequence."""
    units = kinds.repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1] // 16, 1)

    def turns(row: int) -> list[int]:
        tiles = units[row : row + CTA_ROWS].split(KEYS // 16, 1)[: -(-keys // KEYS)]
        full = [n for n, tile in enumerate(tiles) if (tile == FULL).all()]
        listed = [n for n, tile in enumerate(tiles) if (tile != ABSENT).any()]
        return full + [n for n in listed if n not in full]

    return turns


def assert_follows_the_rule(call: Listed, found, share: int = 0) -> list[int]:
    """found: out, lse of padded sequences. -> the counts that the call must have."""
    skipped, tiles = 0, 0
    visible = call.visible()
    for b, (queries, keys) in enumerate(call.lengths):
        rule = Rule(
            factor_of(call), call.q.shape[-1] ** -0.5, False,
            lambda i, j, b=b: visible[b, 0, : len(i), : j.shape[1]], share=share,
            turns=turns_of(call.kinds[b, 0], call.block_size, queries, keys),
        )  # fmt: skip
        q, k, v = (x[b, :n] for x, n in ((call.q, queries), (call.k, keys), (call.v, keys)))
        expected = skipping.attention(q, k, v, rule)
        error = (found[0][b, :queries].double() - expected.out).abs()
        assert (error <= SLACK * ERROR[q.dtype] * expected.weighed + 1e-5).all(), error.max()
        of_lse = found[1][b, :, :queries].double()
        torch.testing.assert_close(of_lse, expected.lse, atol=1e-3, rtol=0)
        skipped, tiles = skipped + expected.tiles, tiles + expected.all_tiles
    assert skipped > 0, "the case skips nothing"
    return [skipped, tiles]


def factor_of(call: Listed) -> float:
    return THRESHOLD * max(keys for _, keys in call.lengths)


def cutting():
    """Calls that cut lists into parts of SHARE key tiles at most, however small they are."""
    changes = dict(cut_lists=1000, cut_least_keys=1, cut_least_tiles=SHARE)
    return tuning.using(tuning.shipped().changed(**changes))


def run(call: Listed, way=None) -> tuple:
    """-> (out, lse), counts."""
    counts = torch.zeros(2, dtype=torch.int32)
    options = {FACTOR: factor_of(call), "skipped_tiles": counts}
    return call.run(**options) if way is None else call.run_as(way, **options), counts.tolist()


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_list_follows_the_rule(size):
    call = drawn(size)
    found, counts = run(call)
    assert counts == assert_follows_the_rule(call, found)


@pytest.mark.parametrize("way", ("lengths", "packed"))
def test_lists_of_sequences_follow_the_rule(way):
    call = drawn((256, 128), ((300, 1100), (37, 700)), depth=64)
    found, counts = run(call, way)
    assert counts == assert_follows_the_rule(call, found)


def test_the_order_of_work_tiles_changes_no_bit_and_no_count():
    call = drawn((256, 128))
    in_grid, counts = run(call)
    with tuning.using(tuning.shipped().changed(longest_first=0)):
        found, of_sorted = run(call)
    assert of_sorted == counts and all(a.equal(b) for a, b in zip(found, in_grid, strict=True))


def test_parts_of_a_list_have_maxima_of_their_own():
    """As parts of split keys: the first tile of a part is computed, and its counts add up."""
    call = drawn((256, 128))
    whole = run(call)[1]
    with cutting():
        found, counts = run(call)
    assert counts == assert_follows_the_rule(call, found, SHARE)
    assert counts[0] < whole[0] and counts[1] == whole[1]


def test_a_threshold_below_every_weight_changes_no_bit(monkeypatch):
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    call = drawn((256, 128))
    for found, expected in zip(call.run(**{FACTOR: 1e-30}), call.run(), strict=True):
        assert torch.equal(found, expected)


def test_one_graph_of_small_blocks():
    call = drawn((64, 64))
    q, k, v = call.q, call.k, call.v
    options = dict(mask_mod=ScoreMod.of(every_third_hidden), block_sparse_tensors=call.lists())
    options[FACTOR] = factor_of(call)
    compiled = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, **options), flash_attn_func(q, k, v, **options))
    torch._dynamo.reset()
