"""The grid of the cycle model: closed forms for makespans, tile orders and curves; the split of rows."""

from dataclasses import replace

import pytest

from benchmarks.cycle_model import calibration
from benchmarks.cycle_model.grid import CTACycles, Curve, launch_time
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import B200, MAX_FITTED, fitted_b200

# A CTA of n key tiles takes 1000 + 100 n cycles.
LINEAR = CTACycles(Curve(((1, 1100.0), (2, 1200.0), (4, 1400.0))))
CLOCK = B200["clock_ghz"].value * 1e3  # cycles a microsecond
# Such short CTAs would be bound by memory; here only the SMs are to count.
WITHOUT_MEMORY = {"hbm_tbs": 1e9, "kernel_start_us": 0.0, "cold_start_us": 0.0}
CHIP = B200 | {name: replace(B200[name], value=value) for name, value in WITHOUT_MEMORY.items()}


def cycles_of(time):
    """The makespan in cycles, without the launch."""
    return (time.us - B200["launch_us"].value) * CLOCK


def test_a_curve_is_linear_between_its_points_and_beyond():
    curve = Curve(((1, 10.0), (2, 30.0), (4, 50.0)))
    assert [curve(n) for n in (1, 2, 3, 4, 14)] == [10, 30, 40, 50, 150]
    assert curve.per_tile == 10


@pytest.mark.parametrize(("ctas", "waves"), [(1, 1), (148, 1), (149, 2), (296, 2)])
def test_equal_ctas_run_in_waves_of_148(ctas, waves):
    """flash-attn-4 under a causal mask: a CTA ends, and the next one begins after a gap."""
    problem = Problem(ctas, 1, 1, 256, 128, causal=True)
    time = launch_time(Variant(THEIRS, causal=True), problem, LINEAR, CHIP)
    each = 1200 + B200["cta_gap"].value
    assert cycles_of(time) == pytest.approx(waves * each)


@pytest.mark.parametrize(("blocks", "further"), [(1, 0), (148, 0), (149, 1), (3 * 148, 2)])
def test_a_cta_that_claims_blocks_pays_the_start_once(blocks, further):
    cycles = CTACycles(LINEAR.single, Curve(((1, 100.0), (2, 200.0))))
    problem = Problem(blocks, 1, 1, 256, 128, causal=False)
    time = launch_time(Variant(OURS), problem, cycles, CHIP)
    assert cycles_of(time) == pytest.approx(1200 + further * 200)


def test_a_claimed_block_goes_to_the_sm_that_is_free_first():
    """148 blocks of 4 key tiles, then 148 of 2 under a causal mask: every SM gets one of each, in whatever order."""
    cycles = CTACycles(LINEAR.single, Curve(((2, 200.0), (4, 400.0))))
    problem = Problem(148, 1, 1, 512, 128, causal=True)
    time = launch_time(Variant(OURS, causal=True), problem, cycles, CHIP)
    assert cycles_of(time) == pytest.approx(1400 + 200)
    assert time.busy == pytest.approx(1)


def test_a_persistent_kernel_pays_the_start_once():
    variant = Variant(THEIRS, 64)
    assert variant.persistent and not variant.pair
    problem = Problem(3 * 148, 1, 1, 256, 64, causal=False)
    cycles = CTACycles(LINEAR.single, Curve(((1, 100.0), (2, 200.0))))
    time = launch_time(variant, problem, cycles, CHIP)
    assert cycles_of(time) == pytest.approx(1200 + 2 * 200)


def test_bytes_bound_what_the_sms_do_not():
    """Time of the bytes, of the start of a kernel and its first copies, and of the host; no fixed cost."""
    constants = {**B200, "cold_memory": replace(B200["cold_memory"], value=0.5)}
    problem = Problem(148, 1, 1, 256, 128, causal=False)
    time = launch_time(Variant(OURS), problem, LINEAR, constants)
    assert time.bound_by_memory
    assert time.memory_us == pytest.approx(problem.bytes / (B200["hbm_tbs"].value * 1e6))
    starts = sum(B200[name].value for name in ("launch_us", "kernel_start_us", "cold_start_us"))
    assert time.us == pytest.approx(starts + time.memory_us)


def test_the_fixed_cost_delays_the_sms_and_not_the_memory():
    """The SMs' share of a launch that both take part in, from far below the memory's to far above it."""
    constants, problem = fitted_b200(), Problem(148, 1, 1, 256, 128, causal=False)
    start = sum(constants[name].value for name in ("kernel_start_us", "cold_start_us"))
    fixed = constants["cold_memory"].value * problem.bytes / (constants["hbm_tbs"].value * 1e6)
    delay = max(start, fixed)
    found = []
    for cycles in (500, 4000, 7000, 8000, 20_000):
        curve = CTACycles(Curve(((1, float(cycles)), (2, float(cycles)))))
        found.append(launch_time(Variant(OURS), problem, curve, constants))
    for time in found:
        beside_the_host = time.us - constants["launch_us"].value
        # Neither the memory nor the SMs can be outrun, and one of them has nothing more in its way.
        assert beside_the_host > max(time.memory_us, time.busy_us)
        slowest = max(start + time.memory_us, delay + time.busy_us)
        assert beside_the_host == pytest.approx(slowest)
    assert [time.us for time in found] == sorted(time.us for time in found)
    # 38.8 MB: 5.3 us after a start of 1.5, SMs after a fixed cost of 2.8: equal at 4.0 us, 7,480 cycles.
    assert [time.bound_by_memory for time in found] == [True, True, True, False, False]


def test_a_cta_without_work_costs_what_the_curve_says():
    """A grid that covers the longest of packed sequences for all of them."""
    problem = Problem.packed((512, 256) * 74, 1, 128, causal=True)
    single = Curve(((0, 300.0), (1, 1100.0), (16, 1100.0)))
    flat = CTACycles(single, Curve(((1, 700.0), (16, 700.0))))
    time = launch_time(Variant.of(OURS, problem), problem, flat, CHIP)
    # 222 blocks with work and 74 without on 148 SMs, each of which starts once.
    assert time.ctas == 2 * 148
    assert time.key_tiles == 74 * (2 + 4) + 74 * 2
    work = 148 * 1100 + (222 - 148) * 700 + 74 * 300
    assert time.busy * time.slot_cycles == pytest.approx(work)


def test_a_causal_mask_halves_the_published_flops():
    full, causal = (Problem(1, 1, 1, 1024, 128, c) for c in (False, True))
    assert full.flops == 2 * causal.flops == 4 * 1024**2 * 128


def test_the_rows_alternate_between_fit_and_check():
    rows = calibration.published_rows()
    assert [row.fitted for row in rows] == [i % 2 == 0 for i in range(len(rows))]
    # Depths and masks of both kernels, from 1K to 32K, as the calibration is to cover.
    assert {(r.head_dim, r.causal) for r in rows} == {
        (d, c) for d in (64, 128) for c in (False, True)
    }
    assert {r.seqlen for r in rows} >= {1024, 32768}


def test_few_constants_are_fitted_and_their_values_are_stored():
    constants = fitted_b200()
    fitted = [name for name, constant in constants.items() if constant.fitted]
    assert len(fitted) <= MAX_FITTED
    assert set(fitted) == {*calibration.SIMULATED, *calibration.LAUNCH}


def test_the_fit_finds_constants_that_made_the_rows():
    """Rows computed with known constants are fitted exactly, up to the step of the search."""
    rows = [row for row in calibration.published_rows() if row.variant == Variant(THEIRS, 64, True)]
    cycles = {rows[0].variant: LINEAR}
    true = {"cta_gap": 2000, "cold_memory": 0.25, "second_run_speed": 0.8}
    constants = calibration.with_values(B200, true)
    made = [
        calibration.Row(
            **{**vars(r), "tflops": calibration.modelled(r, cycles[r.variant], constants)}
        )
        for r in rows
    ]
    distance, values = calibration.fit_launch(made, cycles, B200)
    assert distance < 0.01
    # The factor on the clock scales everything; the other two separate by sequence length.
    assert values["second_run_speed"] == pytest.approx(0.8, abs=0.05)
