"""One kernel for all gradients, with five products: against float64, against the two owners, and in every schedule.

dK and dV add the same products of 16 values as those of the two owners, but those of the last queries first, of all
heads of a group. So without groups they have the bits that two owners have for tiles of queries in the opposite order.
"""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from cute_fa4 import emulator, masks
from cute_fa4.calls.backward import Scores
from cute_fa4.emulator.ptx.errors import RaceError
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from cute_fa4.sm100.backward import work
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.joint import JointOwner
from cute_fa4.sm100.backward.work import (
    HEADS_SIDE_BY_SIDE,
    DescendingPlace,
    heads_side_by_side,
    side_by_side,
)
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.chip import REGISTERS_PER_SM, WARP_SIZE
from cute_fa4.system import devices
from tests.sm100.backward.problems import Problem, of_kernels, packed, run
from tests.suite import turns

CAUSAL = (None, 0)

PROBLEMS = {
    "one tile of queries, a pair of keys": Problem(128, 256),
    # CTA 1 of the last pair has no keys, and no queries of the last tile
    "ragged ends of both sides": Problem(300, 320, heads=(2, 1)),
    "one row and one key": Problem(1, 1),
    # every place is used five times, by three pairs that take turns
    "many tiles": Problem(400, 600, window=CAUSAL),
    "causal, more keys": Problem(140, 400, window=CAUSAL),
    "causal, more queries: the first 130 see nothing": Problem(330, 200, window=CAUSAL),
    "two groups, batch of two": Problem(130, 270, heads=(4, 2), batch=2, window=CAUSAL),
    "fp16": Problem(200, 300, dtype=torch.float16, window=CAUSAL),
    "head dims that are padded": Problem(130, 300, depths=(72, 104)),
}  # fmt: skip


def gradients(problem: Problem, tensors, joint: bool = True, **options) -> tuple:
    of_call = dict(mask=masks.causal() if problem.window == CAUSAL else masks.full())
    with tuning.using(tuning.shipped().changed(backward_joint=joint)):
        return run(*tensors, problem.window, scores=of_call, **options)


def with_kernels(call) -> list[str]:
    """Names of the kernels that a call launches."""
    names: list[str] = []

    def seen(name, ptx):
        names.append(name)
        return ptx

    with emulator.use(transform=seen):
        call()
    return names


@pytest.mark.parametrize("name", turns.by_turns(PROBLEMS))
def test_gradients_are_those_of_float64_within_their_roundings(name):
    problem = PROBLEMS[name]
    tensors = problem.tensors()
    exact = gradients_float64(*tensors, window_size=problem.window)
    allowed = allowed_gradient_errors(*tensors, window_size=problem.window)
    for which, found, wanted, most in zip(
        ("dq", "dk", "dv"), gradients(problem, tensors), exact, allowed, strict=True
    ):
        assert max_error(found, wanted) <= most, which


OPPOSITE = {
    "three tiles of queries, ragged keys": Problem(384, 320, heads=(2, 2)),
    "head dims that are padded": Problem(256, 300, depths=(72, 104)),
}


@pytest.mark.parametrize("name", OPPOSITE)
def test_dk_and_dv_have_the_bits_of_two_owners_in_the_opposite_order(name):
    problem = OPPOSITE[name]
    q, k, v, dout = tensors = problem.tensors()
    joint = gradients(problem, tensors)
    apart = gradients(problem, (opposite(q), k, v, opposite(dout)), joint=False)
    assert all(a.equal(b) for a, b in zip(joint[1:], apart[1:], strict=True))


def opposite(x: torch.Tensor) -> torch.Tensor:
    """Tiles of 128 rows from the last to the first."""
    return torch.cat(x.split(128, dim=1)[::-1], dim=1)


@pytest.mark.parametrize("mode", ["hostile", "random", "together"])
def test_no_schedule_changes_a_bit(mode):
    """Three pairs add to the dQ of the last queries, of two heads each."""
    problem = Problem(280, 600, heads=(2, 1), window=CAUSAL)
    tensors = problem.tensors()
    first = gradients(problem, tensors)
    with emulator.use(mode=mode, seed=7, checks=("ptx", "ordered_additions")):
        again = gradients(problem, tensors)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))


def test_a_sequence_has_the_gradients_that_it_has_alone():
    problem = Problem(150, 300, heads=(2, 1), batch=3, window=CAUSAL)
    tensors = problem.tensors()
    together = gradients(problem, tensors)
    alone = gradients(replace(problem, batch=1), [x[1:2] for x in tensors])
    assert all(a[1:2].equal(b) for a, b in zip(together, alone, strict=True))


def test_gradients_in_float32_are_those_before_they_are_rounded():
    problem = Problem(200, 300, heads=(2, 1), window=CAUSAL)
    tensors = problem.tensors()
    rounded = gradients(problem, tensors)
    for found, expected in zip(gradients(problem, tensors, sums=0.0), rounded, strict=True):
        assert found.dtype is torch.float32 and found.to(problem.dtype).equal(expected)
        assert not found.equal(expected.float())


def test_gradients_are_added_to_float32():
    problem = Problem(130, 280, window=CAUSAL)
    tensors = problem.tensors()
    exact = gradients_float64(*tensors, window_size=CAUSAL)
    allowed = allowed_gradient_errors(*tensors, window_size=CAUSAL)
    found = gradients(problem, tensors, sums=1.0)
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def test_the_gradient_of_the_log_sum_exp_is_part_of_it():
    problem = Problem(200, 150, heads=(2, 1), window=CAUSAL)
    tensors = problem.tensors()
    dlse = torch.randn(1, 2, 200, generator=torch.Generator().manual_seed(1))
    exact = gradients_float64(*tensors, dlse, window_size=CAUSAL)
    allowed = allowed_gradient_errors(*tensors, dlse, window_size=CAUSAL)
    found = gradients(problem, tensors, dlse=dlse)
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


LENGTHS = (100, 90), (300, 260), (30, 270)  # of queries and keys: pairs end in each of their CTAs


@pytest.mark.parametrize("padding", [0, 7])
def test_packed_sequences_have_the_bits_that_they_have_alone(padding):
    """padding: rows of NaN after each sequence, which lengths of their own leave out."""
    parts = [Problem(*lengths, heads=(2, 1)).tensors(n) for n, lengths in enumerate(LENGTHS)]
    options = [dict(window_size=CAUSAL)] * len(parts)
    of, dout, _ = packed(parts, options, padding, hidden=11 if padding else 0)
    scores = Scores(of.q.shape[-1] ** -0.5, masks.causal())
    joint, apart = [], []
    for out, on in ((joint, True), (apart, False)):
        with tuning.using(tuning.shipped().changed(backward_joint=on)):
            out += of_kernels(of, dout, None, scores)[:3]
    for found, expected in zip(joint, apart, strict=True):
        assert not found.isnan().any()
        torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-8)
    if not padding:
        (first_q, first_k), (rows_q, rows_k) = LENGTHS[:2]
        alone = gradients(Problem(*LENGTHS[1], heads=(2, 1), window=CAUSAL), parts[1])
        for found, expected, first, rows in zip(
            joint, alone, (first_q, first_k, first_k), (rows_q, rows_k, rows_k), strict=True
        ):
            assert expected[0].equal(found[first : first + rows])


def test_rows_of_no_sequence_keep_what_they_hold():
    """Results of 16 bits in place, packed. Rows of a sequence without keys become zeros: its first pair stores them."""
    parts = [Problem(*lengths, heads=(2, 1)).tensors(n) for n, lengths in enumerate(LENGTHS)]
    of, dout, _ = packed(parts, [{}] * 3, 7, hidden=0)
    (rows, _), (first_unseen, _) = LENGTHS[0], LENGTHS[2]
    of.used_k[2] = of.limit_k[2] = 0
    unseen = slice(of.q.shape[0] - first_unseen - 7, of.q.shape[0] - 7)
    of.lse[:, unseen], of.out[unseen] = -math.inf, 0.0
    from cute_fa4.calls import backward

    written = tuple(torch.full_like(x, 5.0) for x in of[:3])
    scores = Scores(of.q.shape[-1] ** -0.5, masks.full())
    with tuning.using(tuning.shipped().changed(backward_joint=True)):
        names = with_kernels(lambda: backward.gradients(of, dout, None, scores, written))
    assert any("five_products" in name for name in names)
    assert (written[0][rows : rows + 7] == 5.0).all() and (written[0][-7:] == 5.0).all()
    assert (written[0][unseen] == 0.0).all()
    alone = gradients(Problem(*LENGTHS[0], heads=(2, 1)), parts[0])
    assert written[0][:rows].equal(alone[0][0])


@pytest.mark.parametrize("mode", ["in_order", "hostile"])
def test_sums_of_three_pairs_have_the_bits_of_a_copy(mode):
    """The first pair stores, the second adds, the last rounds its sum: as additions to float32 zeros, then rounded."""
    problem = Problem(40, 520)
    tensors = problem.tensors()
    sums = gradients(problem, tensors, sums=0.0)
    with emulator.use(mode=mode, checks=("ptx", "ordered_additions")):
        found = gradients(problem, tensors)
    assert all(a.equal(b.to(a.dtype)) for a, b in zip(found, sums, strict=True))


UNWRITTEN = {
    "a tile of queries that see nothing": Problem(140, 10, window=CAUSAL),
    "two pairs": Problem(40, 300, heads=(2, 1)),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_each_number_is_written_before_it_is_read(name, monkeypatch):
    """New tensors hold NaN: no pair adds to what no pair has stored, and each row of dQ is stored."""
    problem = UNWRITTEN[name]
    tensors = problem.tensors()
    expected = gradients(problem, tensors)
    for function in ("empty", "empty_like"):
        make = getattr(torch, function)

        def of_nans(*sizes, make=make, **options):
            new = make(*sizes, **options)
            return new.fill_(math.nan) if new.is_floating_point() else new

        monkeypatch.setattr(torch, function, of_nans)
    found = gradients(problem, tensors)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


MISSING = {
    "the turn is not awaited": (r"(?s)ld\.acquire\.gpu.*?@!reached bra TRY_AGAIN;", ""),
    "the wait does not acquire": (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
    "the end does not release": (r"red\.release\.gpu", "red.relaxed.gpu"),
    "a sum is read, not complete": (r"cp\.async\.bulk\.wait_group\s+0", "cp.async.bulk.wait_group.read 0"),
}  # fmt: skip


@pytest.mark.parametrize("level", ["ptx", "hardware"])
@pytest.mark.parametrize("name", MISSING)
def test_loads_of_the_sum_without_an_order_are_refused(name, level):
    """Two pairs: the first stores, the last loads. All places of the text are damaged."""
    problem, (pattern, by) = Problem(40, 300), MISSING[name]
    tensors = problem.tensors()

    def damaged(kernel, ptx):
        if "joint" not in kernel:
            return ptx
        broken, number = re.subn(pattern, by, ptx)
        assert number
        return broken

    mode = (
        "hostile" if "complete" in name else "together"
    )  # copies that complete late; pairs side by side
    with emulator.use(mode, seed=1, checks=level, transform=damaged):
        with pytest.raises(RaceError):
            gradients(problem, tensors)


def test_keys_that_do_not_exist_have_no_weight():
    """Every score is -181, so P of a key of zeros would be 2^261, infinite: NaN times zero in dQ."""
    problem = Problem(40, 100)
    tensors = problem.tensors()
    tensors[0][:], tensors[1][:] = 4.0, -4.0
    exact, allowed = gradients_float64(*tensors), allowed_gradient_errors(*tensors)
    found = gradients(problem, tensors)
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def test_another_call_finds_counters_at_zero():
    """Counters and the float32 sum belong to a call: the second one has the bits of the first."""
    problem = Problem(130, 300)
    tensors = problem.tensors()
    first, second = (gradients(problem, tensors) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))


def test_a_number_is_a_pair_of_each_head_once():
    """The numbers of a grid are all (tile, head), and a tile comes after the tiles before it of its head."""
    side = HEADS_SIDE_BY_SIDE
    for tiles in (1, 3):
        for heads in (1, side, 2 * side + 3):
            seen = [side_by_side(n, tiles, heads, side) for n in range(tiles * heads)]
            assert sorted(seen) == [(tile, head) for tile in range(tiles) for head in range(heads)]
            for head in range(heads):
                assert [tile for tile, of in seen if of == head] == list(range(tiles))


def test_a_b300_that_asks_for_it_has_the_bits_of_a_b200(monkeypatch):
    problem = Problem(140, 300, window=CAUSAL)
    tensors = problem.tensors()
    expected = gradients(problem, tensors)
    monkeypatch.setattr(devices, "EMULATED_ARCH", "sm_103a")
    found: list[torch.Tensor] = []
    names = with_kernels(lambda: found.extend(gradients(problem, tensors)))
    assert any("five_products_sm_103a" in name for name in names)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


def test_more_heads_than_are_side_by_side(own_kernels, monkeypatch):
    """Two of three at a time, in place of 16 or more: the third one's pairs come after those of the first two."""
    monkeypatch.setattr(work, "ROWS_SIDE_BY_SIDE", 0)
    monkeypatch.setattr(work, "HEADS_SIDE_BY_SIDE", 2)
    problem = Problem(40, 260, heads=(3, 3))
    tensors = problem.tensors()
    exact, allowed = gradients_float64(*tensors), allowed_gradient_errors(*tensors)
    found = gradients(problem, tensors)
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def test_a_tile_of_all_heads_comes_before_the_next_tile():
    """So pairs with fewer tiles of a head are at the same one. From the last tile on, three heads of a group."""
    work, place, seen = SimpleNamespace(first=1, end=3, turns=3), DescendingPlace(2, 0), []
    for _ in range(6):
        seen.append((place.tile, place.turn))
        place = place.next(work)
    assert seen == [(2, 0), (2, 1), (2, 2), (1, 0), (1, 1), (1, 2)]


def test_short_heads_are_side_by_side_in_larger_numbers():
    """As many as have 128K keys, and at least 16."""
    assert [heads_side_by_side(n) for n in (1, 2048, 8192, 65536)] == [131072, 64, 16, 16]


def test_warps_have_the_registers_of_an_sm():
    warps = JointOwner(dtype="bf16").warps
    groups = len(warps.compute), len(warps.dq), warps.threads // WARP_SIZE - warps.dq.stop
    used = zip(
        groups, (warps.compute_registers, warps.dq_registers, warps.other_registers), strict=True
    )
    assert sum(n * registers for n, registers in used) * WARP_SIZE <= REGISTERS_PER_SM


def test_which_calls_have_one_kernel():
    """Head dims of 65 to 128 without functions, lists, windows: on sm_100a, and where a table asks."""
    causal, window = masks.causal().mask, masks.window(64, 0).mask
    for depths in ((128, 128), (72, 128), (128, 65 + 7)):
        assert BackwardConfig("bf16", *depths, mask=causal).joint
    assert BackwardConfig("bf16", 128, 128, pairs=True).joint
    others = (
        dict(depth=64), dict(depth_v=64), dict(depth=136), dict(mask=window), dict(listed=True), dict(pairs=False),
        dict(arch="sm_103a"),
    )  # fmt: skip
    for other in others:
        assert not BackwardConfig(**{"dtype": "bf16", "depth": 128, "depth_v": 128, **other}).joint
    with tuning.using(tuning.shipped().changed(backward_joint=True)):
        assert BackwardConfig("bf16", 128, 128, arch="sm_103a").joint
    assert BackwardConfig("bf16", 256, 256, joint=True) == BackwardConfig("bf16", 256, 256)
