"""The cost of batch invariance in the cycle model: which calls it compares, and the arithmetic of its parts."""

from dataclasses import replace

import pytest

from benchmarks.cycle_model import invariance, schedules
from benchmarks.cycle_model.decode import kernels
from benchmarks.cycle_model.decode.call import call_of
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.grid import CTACycles, Curve
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.report import Modelled
from cute_fa4.compiler import policy
from cute_fa4.emulator.model.constants import fitted_b200


def test_decode_compares_the_calls_of_the_package():
    """8,192 keys of 8 key heads: 8 parts in a cluster by default, else parts of so many keys as the call says."""
    problem = DecodeProblem.even(1, invariance.KEYS)
    default, *invariant = (
        call_of(problem),
        *(call_of(problem, 0, True, n) for n in invariance.TOKENS),
    )
    assert default.cluster and default.config.schedule.family == "mhaswap"
    for call, tokens in zip(invariant, invariance.TOKENS, strict=True):
        assert call.config.schedule.family == "mha2q"
        assert call.parts == invariance.KEYS // tokens
        assert len(call.queues) == 8 * call.parts


def test_prefill_takes_the_choices_of_the_policy():
    assert dict(invariance.CHOICES).items() <= policy.of_schedules(True).items()


def test_parts_of_all_keys_are_no_parts_and_merges_add_their_bytes():
    """A kernel of one cycle a key tile: cutting changes no sum, so what is added is the merge."""
    problem = Problem(2, 16, 16, invariance.KEYS, 128, False)
    variant = Variant(OURS)
    curve = Curve(((1, 1.0), (2, 2.0)))
    kernel = Modelled(variant, CTACycles(curve, curve), None, {}, None)
    constants = fitted_b200()
    whole, halves = (invariance.in_memory(kernel, problem, n, constants) for n in (8192, 4096))
    rows = 2 * 16 * invariance.KEYS
    bytes_of_merge = rows * (2 * 4 * 129 + 2 * 128)
    merge = constants["kernel_start_us"].value + bytes_of_merge / constants["hbm_tbs"].value * 1e-6
    assert sum(schedules.work_tiles(variant, problem)) == 2 * 16 * 32 * 64
    assert halves - whole == pytest.approx(merge, rel=0.01)


def test_recorded_sources_of_decode_exist():
    assert all(path.is_file() for path in kernels._recorder("our_decode.py"))


def test_each_part_after_the_second_costs_the_same():
    """Blocks of 8 and 16 key tiles of one part, and of two and three parts of four: measured where they are given."""
    cycles = {(8, 1): 800.0, (16, 1): 1600.0, (8, 2): 850.0, (12, 3): 1270.0}
    curve = invariance.PartCurve.of(cycles)
    cut = replace(curve, each=4)
    assert curve(12) == 1200 and [cut(n) for n in (4, 8, 12)] == [400, 850, 1270]
    assert cut(13) == 1300 + 50 + 2 * 20
