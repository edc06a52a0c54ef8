"""The modelled cycles of our kernel's headline configurations, held in headline_cycles.json.

Compiles, emulates, aligns and simulates each: a few seconds a configuration.
"""

import functools
import json
from pathlib import Path

import pytest

from benchmarks.cycle_model import instruction_cache
from benchmarks.cycle_model.evaluate import AlignedKernel, cta_cycles, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import PERSISTENT_WORK_TILES, ROWS_A_CTA, Workload
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.emulator.model.constants import fitted_b200

EXPECTED = json.loads(Path(__file__).with_name("headline_cycles.json").read_text())
# Growth that fails. Smaller changes happen when warps merely meet in another order.
TOLERANCE = 0.02
# The steady state is the difference of CTAs with this many key tiles.
TILES = (8, 16)
# The cost of a further claimed block: of four key tiles, a sequence of 512.
CLAIMED_TILES = 4


def of_tiles(head_dim: int, causal: bool) -> list[Workload]:
    """CTAs of one work tile, for the steady state."""
    return [Workload(head_dim, causal, 1, 1, ROWS_A_CTA, tiles) for tiles in TILES]


@functools.cache
def aligned(head_dim: int, causal: bool) -> AlignedKernel:
    """The kernel with the traces of all that is asked of it here."""
    claimed = [
        Workload(head_dim, causal, n, n, ROWS_A_CTA, CLAIMED_TILES, n)
        for n in (1, PERSISTENT_WORK_TILES)
    ]
    works = of_tiles(head_dim, causal) + claimed
    return AlignedKernel.of(traced(Variant(OURS, head_dim, causal), works))


def cycles(head_dim: int, causal: bool):
    """(steady state, cycles of a claimed work tile)."""
    results = aligned(head_dim, causal).simulate(fitted_b200())
    return steady_state(results), cta_cycles(results).added(CLAIMED_TILES)


@pytest.fixture(autouse=True)
def need_nvdisasm():
    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("row", EXPECTED["rows"], ids=lambda r: r["name"])
def test_cycles_do_not_grow(row):
    steady, claimed = cycles(row["head_dim"], row["causal"])
    for name, value in (("cycles", steady.cycles), ("claimed", claimed)):
        print(f"{row['name']}: {name} {value:.0f}, expected {row[name]} ({row['reason']})")
        assert value <= row[name] * (1 + TOLERANCE)
        # A large gain means that the expected value no longer guards anything: write the new one down.
        assert value >= row[name] * (1 - 2 * TOLERANCE)


def test_the_same_cubin_gives_the_same_number():
    """For every configuration, as nothing in the simulation asks which one it has."""
    assert cycles(128, True) == cycles(128, True)


@pytest.mark.parametrize("row", EXPECTED["rows"], ids=lambda r: r["name"])
def test_the_loop_over_key_tiles_fits_the_instruction_caches(row):
    """An instruction a cycle on each scheduler, as the model has it, needs the loop in the first cache."""
    code = instruction_cache.code_of(aligned(row["head_dim"], row["causal"]))
    print(f"{row['name']}: {code}")
    assert 0 < code.sub_loop <= code.loop <= min(code.whole, instruction_cache.L1_BYTES)
    assert code.sub_loop <= instruction_cache.L0_BYTES


# The published FlashAttention-4 (4.0.0b36) has 220 in its loop.
MMA_INSTRUCTIONS_OF_A_KEY_TILE = 260
MMA_WARP = 12


def test_the_mma_warp_executes_few_instructions_a_key_tile():
    """On its path through the machine code, d=128 causal; the warp's loop also has code between work tiles."""
    runs = aligned(128, True).runs
    short, long = (len(runs[work][0][0, MMA_WARP]) for work in of_tiles(128, True))
    assert (long - short) / (TILES[1] - TILES[0]) <= MMA_INSTRUCTIONS_OF_A_KEY_TILE


def test_every_expected_value_has_a_reason():
    assert {r["name"] for r in EXPECTED["rows"]} == {
        "d128 full",
        "d128 causal",
        "d64 full",
        "d64 causal",
    }
    assert all(len(r["reason"]) > 20 for r in EXPECTED["rows"])
