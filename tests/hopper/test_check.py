"""`hopper check` itself, on the emulator: its oracle and its laws."""

from dataclasses import replace

import pytest
import torch

from cute_fa4.hopper import cases, check, load
from cute_fa4.hopper.calls import CANARY, SPARE_ROWS, call
from cute_fa4.hopper.variant import Problem, Variant, decode, dense, latent
from cute_fa4.sm100.choose.config import SCHEDULES, FA4Config, TwoTiles
from cute_fa4.sm100.combine.config import CombineConfig

pytestmark = pytest.mark.filterwarnings("ignore")


class Kernel:
    """A StandIn that ran the blocks as it is told."""

    def __init__(self, clusters):
        self._clusters = clusters

    def clusters(self):
        return self._clusters


def row():
    return check.Row({}, "", "", {})


# Between them: packed queries, pages, lengths, a window, chunks, sinks, a soft cap, scales of 8 bits, listed keys,
# rows of 656 bytes, columns of K that heads share, those of 16 bits beside 8, scales of blocks, 4 bits, block lists.
@pytest.mark.parametrize(
    "variant, problem",
    [
        (Variant(64, keys="pages", page_size=16, window=(3, 1), causal=False), Problem((5, 0), (9, 4))),
        (Variant(64, keys="lengths", sink=True, chunk=8), dense(2, 9, 20)),
        (Variant(64, keys="packed", softcap=2.0), Problem((9, 0, 1), (30, 4, 9))),
        (decode(head_dim=64, cache="e4m3", group=2), Problem((2, 0), (9, 4))),
        (Variant(dtype="e4m3", out="e4m3", lse=False), dense(1, 9, 20)),
        (latent(listed=5, causal=False), dense(2, 2, 9, 16)),
        (latent(cache="rows"), dense(2, 1, 70, 16)),
        (latent(cache="row pages", head_dim=512), dense(2, 1, 70, 16)),
        (Variant(64, "e4m3", of_tokens=True, keys="pages", page_size=16), Problem((5, 3), (9, 40))),
        (Variant(96, head_dim_v=64, rope=32, keys="pages", page_size=16), Problem((5, 3), (9, 40))),
        (Variant(64, "e4m3", of_blocks=True, keys="pages", page_size=16), Problem((5, 3), (9, 40))),
        (Variant(96, "e4m3", head_dim_v=64, rope=32, rope_dtype="bf16"), dense(1, 9, 20)),
        (decode(head_dim=64, cache="nvfp4", group=2), Problem((2, 0), (9, 4))),
        (Variant(64, causal=False, blocks=(128, 128)), dense(1, 130, 400)),
    ],
    ids=lambda value: value.title,
)  # fmt: skip
def test_the_kernel_agrees_with_the_definition(variant, problem):
    made = call(variant, problem, "cpu")
    found = row()
    check.measure(made, *made.launch(), found)
    assert 0 < found.relative_error < check.LARGEST_RELATIVE_ERROR[variant.dtype]


@pytest.fixture(scope="module")
def packed():
    """A call whose launch returns the definition, rounded: a kernel that is right."""
    made = call(Variant(64, keys="packed"), Problem((40, 0, 7), (60, 5, 7)), "cpu")
    q, total = made.sequences[0][0], 47
    out = torch.full((total + SPARE_ROWS, 2, 64), CANARY, dtype=torch.bfloat16)
    lse = torch.zeros(2, total + SPARE_ROWS)
    for q, k, v, at_out, at_lse in made.sequences:
        for head in range(2):
            exact = check.attention(made.variant, q, k, v, head, None)
            out[at_out][:, head], lse[at_lse][head] = exact[0].bfloat16(), exact[1].float()
    return made, out, lse


def test_a_right_result_passes(packed):
    made, out, lse = packed
    check.measure(made, out, lse, row())


@pytest.mark.parametrize(
    "place, value, said",
    [
        ((5, 1, 7), float("nan"), "1 elements of out and 0 of lse are NaN"),
        ((46, 0), 3.0, "relative error"),  # a row of the last sequence
        ((47, 1, 2), 0.0, "1 elements after the last sequence were written"),
    ],
)
def test_a_wrong_result_is_seen(packed, place, value, said):
    made, out, lse = packed
    out = out.clone()
    out[place] = value
    with pytest.raises(check.WrongResult, match=said):
        check.measure(made, out, lse, row())


def test_blocks_are_counted():
    found = row()
    check.launched(Kernel([-1, 0, 0, 1]), found)
    check.launched(Kernel([-1, -1, -1, 2]), found)
    assert (found.launches, found.blocks, found.claimed, found.most_by_one) == (2, 4, 4, 2)
    with pytest.raises(check.WrongResult, match="1 of 3 blocks did not run"):
        check.launched(Kernel([-1, -2, 0]), found)


class Launches:
    """Results of one launch after the other, of a kernel whose claims, if it makes any, may be disturbed."""

    def __init__(self, *results, takes_over=True):
        self._results, self.settings, self.takes_over = list(results), [], takes_over

    def __call__(self):
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]

    def claims(self, **settings):
        import contextlib

        self.settings.append(settings)
        return contextlib.nullcontext()

    def clusters(self):
        return [-1] * 4


def test_every_further_launch_is_compared(packed):
    made, out, lse = packed
    unlike = lse.clone()
    unlike[0, 3] = torch.nextafter(unlike[0, 3], torch.tensor(9.0))
    after = lse.clone()
    after[:, 47:] = 5.0  # belongs to no sequence
    good = Launches((out, lse), (out, after))
    assert check.check(replace(made, launch=good), lambda: good).launches == 6
    # 4 blocks: as they come, with refusals, and with one and with three that claim the others
    claims = [{}, {}, dict(refused=0.25, seed=4), dict(greedy=1), dict(greedy=3)]
    assert good.settings == claims
    # Greedy clusters of a kernel without claims would make the others wait for nothing.
    alone = Launches((out, lse), takes_over=False)
    assert check.check(replace(made, launch=alone), lambda: alone).launches == 3
    assert alone.settings == [{}, {}]
    bad = Launches((out, lse), (out, lse), (out, unlike))
    with pytest.raises(check.WrongResult, match="1 elements of lse differ"):
        check.check(replace(made, launch=bad), lambda: bad)


def test_kernels_that_share_keys_and_those_that_merge_claim_no_blocks():
    assert [load.takes_over(FA4Config(schedule=TwoTiles(claims=c))) for c in (True, False)] == [
        True,
        False,
    ]
    for schedule in SCHEDULES.values():
        assert not load.takes_over(FA4Config(split_keys=True, share_keys=True, schedule=schedule()))
    assert not load.takes_over(CombineConfig("bf16", 128))


def test_one_cluster_gets_no_more_than_seconds_of_work():
    for variant in cases.VARIANTS:
        for problem in cases.problems(variant, "all"):
            tiles = check.key_tiles(problem)
            for settings in check.variations(600, tiles)[1:]:
                assert tiles / settings["greedy"] < 1000
    assert check.key_tiles(dense(2, 257, 129)) == 2 * 2 * 2 * 2
