"""Decode in the cycle model: memory and launches against closed forms, and all of it against an H200.

The sizes are the smallest that tell the cases apart: one CTA, as many as SMs, one more.
"""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cycle_model import memory_bound
from benchmarks.cycle_model.decode import latent, narrow, report, sparse_latent
from benchmarks.cycle_model.decode.call import call_of
from benchmarks.cycle_model.decode.check import Check
from benchmarks.cycle_model.decode.launch import Chip, Streaming
from benchmarks.cycle_model.decode.memory import Memory
from benchmarks.cycle_model.decode.problems import (
    ELEMENT_BYTES,
    RAGGED,
    ROWS,
    DecodeProblem,
    problems,
    published,
)
from benchmarks.cycle_model.decode.time import merge_us, time_of
from benchmarks.cycle_model.decode.variants import TILES, their_queues, works
from benchmarks.cycle_model.grid import CTACycles, Curve, launch_time
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.modelled import MARK
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import B200, fitted_b200
from cute_fa4.system.gains import AS_FAST, LEAST_GAIN

ALLOWED = 0.10
DOCS = Path(__file__).parents[2] / "docs"
# TB/s of TMA reads on a B200 against KiB in flight an SM, published (SemiAnalysis microbench-blackwell), as a range.
PUBLISHED_READS = {
    4: (1.10, 1.10),
    8: (2.1, 2.1),
    16: (3.6, 3.8),
    32: (5.4, 5.9),
    64: (7.06, 7.22),
    128: (7.0, 7.26),
}


@pytest.mark.parametrize(("kib", "read"), PUBLISHED_READS.items())
def test_bytes_in_flight_give_what_was_published(kib, read):
    memory, gigahertz = Memory.of(B200), B200["clock_ghz"].value
    modelled = memory.given(148 * kib * 1024) * gigahertz * 1e-3
    assert read[0] * (1 - ALLOWED) < modelled < read[1] * (1 + ALLOWED)


def test_the_latency_under_load_is_that_of_the_bytes_in_flight():
    """Little's law, both ways: bytes in flight -> given -> latency -> the same bytes in flight."""
    memory = Memory(latency=1000, ceiling=4000, knee=2.2)
    for in_flight in (1e5, 3e6, 4e6, 1e7):
        given = memory.given(in_flight)
        latency = memory.loaded_latency(given / memory.ceiling)
        assert latency * given == pytest.approx(in_flight, rel=1e-9)
    share = memory.share(lambda latency: 2e6 / latency)
    assert share == pytest.approx(memory.given(2e6) / memory.ceiling, rel=1e-6)


def streaming(tile: float, in_flight_tiles: float = math.inf, set_up: float = 100.0) -> Streaming:
    """A tile of 1000 bytes takes `tile` cycles, or its share of the latency."""
    latencies = (1000.0, 2000.0, 8000.0)

    def curve(at):
        each = max(tile, at / in_flight_tiles)
        return Curve(((1, set_up + each), (2, set_up + 2 * each)))

    curves = tuple(curve(at) for at in latencies)
    return Streaming(latencies, curves, curves, curves, 1000.0)


FAST = Memory(latency=1000, ceiling=1e9, knee=2.2)


@pytest.mark.parametrize(("ctas", "waves"), [(1, 1), (4, 1), (5, 2), (8, 2)])
def test_ctas_that_memory_does_not_bound_run_in_waves(ctas, waves):
    found = Chip(FAST, 4, streaming(tile=50)).run([[8]] * ctas, False)
    assert found.cycles == pytest.approx(waves * (100 + 8 * 50))
    assert found.bytes == pytest.approx(ctas * 8 * 1000)


def test_a_chip_that_memory_bounds_takes_bytes_over_the_ceiling():
    memory = Memory(latency=1000, ceiling=100.0, knee=2.2)
    kernel = streaming(tile=5, in_flight_tiles=100, set_up=0)  # asks for four times the ceiling
    found = Chip(memory, 4, kernel).run([[1000]] * 4, False)
    assert found.cycles == pytest.approx(4 * 1000 * 1000 / 100, rel=0.05)
    assert found.peak_share > 0.95


def test_a_sequence_that_is_left_over_runs_as_fast_as_it_can_alone():
    """Four CTAs share the memory until three end; the fourth then has its own bytes in flight to itself."""
    memory = Memory(latency=1000, ceiling=10.0, knee=2.2)
    kernel = streaming(tile=50, in_flight_tiles=4, set_up=0)
    chip = Chip(memory, 4, kernel)
    together, alone = (kernel.per_tile(chip.shared_by(n)[1]) for n in (4, 1))
    assert alone < 0.7 * together
    found = chip.run([[10], [10], [10], [100]], False)
    assert found.cycles == pytest.approx(10 * together + 90 * alone)
    assert found.tail == pytest.approx(90 * alone)


def test_pieces_of_a_cta_follow_one_another():
    found = Chip(FAST, 2, streaming(tile=50)).run([[4, 4], [8]], False)
    assert found.cycles == pytest.approx(2 * 100 + 8 * 50)


def test_the_h200_is_predicted_within_ten_percent():
    """All rows that gave no constant, but those that the page names as not explained."""
    check = Check()
    rows = [*check.streams(), *check.decodes()]
    off = {row.what: row.error for row in rows if row.explained and abs(row.error) > ALLOWED}
    assert not off
    unexplained = [row for row in rows if not row.explained]
    assert len(unexplained) == 4 and all("dependent" in row.what for row in unexplained)
    assert sum(row.used for row in rows) <= 6


def test_a_call_reads_every_key_once_whatever_its_parts_are():
    """Key tiles of all CTAs are those of the sequences, for each key head; short batches of unequal lengths.

    24 blocks in clusters of four: 5,000 keys are few enough, 20,000 get a stream-K split and a merge kernel.
    """
    for longest, chosen in ((20_000, False), (5000, True)):
        problem = DecodeProblem((longest, 130, 1))
        tiles = 8 * sum(-(-keys // 128) for keys in problem.lengths)
        for num_splits in (0, 1, 3):
            call = call_of(problem, num_splits)
            assert sum(map(sum, call.queues)) == tiles
            assert call.cluster == (chosen and num_splits == 0)
            assert (call.merge is None) == (num_splits == 1 or call.cluster)
    for split in (True, False):
        _, queues = their_queues(problem, split, 148)
        assert sum(map(sum, queues)) == tiles


def test_every_row_of_the_tables_is_a_call():
    """Half an hour of modelling ends with latent and narrow caches: no call of theirs may be refused only then."""
    narrow_rows = [
        replace(DecodeProblem.even(*row), dtype=dtype, kv_dtype=kv_dtype)
        for row in narrow.ROWS[:1]
        for dtype, kv_dtype in narrow.KINDS.values()
    ]
    for row in latent.ROWS:
        problem = latent.problem_of(*row)
        assert call_of(problem).config.qkv_dtype == problem.dtype
    for problem in narrow_rows:
        config = call_of(problem).config
        stored = config.kv_dtype or config.qkv_dtype
        assert (config.qkv_dtype, stored) == (problem.dtype, problem.kv_dtype)


def test_the_longest_trace_is_the_first():
    """align.py takes the order of PTX lines from the first of those traces that have most: not from a short one."""
    keys = [work.tiles * work.blocks for work in works(goes_on=True)]
    assert keys == sorted(keys, reverse=True) and max(TILES) in keys


def test_published_times_belong_to_the_shapes_that_were_published():
    assert published(DecodeProblem.even(1, 1024))["FlashInfer cute-dsl"] == 4.862
    assert published(DecodeProblem.even(64, 4096, 4)) == {
        "trtllm-gen": 162.0,
        "FlashInfer cute-dsl": 180.057,
    }
    assert not published(DecodeProblem.even(1, 1024, head_dim=64))
    assert not published(DecodeProblem(RAGGED))


def table_of(name: str, page: str) -> str:
    text = (DOCS / page).read_text()
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)[1].rstrip()


def test_the_pages_say_what_was_measured():
    check = Check()
    assert table_of("decode_check", "performance/decode_method.md") == report.check_table(check)
    assert table_of("decode_merging", "performance/decode.md") == report.merging_table(check)


def test_the_table_has_a_row_for_every_problem():
    rows = table_of("decode_modelled", "performance/decode.md").splitlines()
    assert sum(line.startswith(("| 64 |", "| 128 |")) for line in rows) == len(problems())


def test_a_merge_takes_what_was_measured_at_least_and_a_cluster_what_its_parts_take():
    """Published times have no host's part of a launch, so neither has ours; clusters as the table of the page says."""
    constants = fitted_b200()
    value = {name: constant.value for name, constant in constants.items()}
    cycles = 10_000
    launch = value["kernel_start_us"] + cycles / value["clock_ghz"] * 1e-3
    assert merge_us(cycles, False, constants) == pytest.approx(launch)
    assert merge_us(cycles, True, constants) == pytest.approx(launch - value["dependent_saves_us"])
    assert merge_us(0, True, constants) == value["dependent_least_us"]
    merging = [costs for batch, _, costs in Check().merging() if batch == 1]
    for parts, costs in zip((2, 4, 8), merging, strict=False):
        assert value[f"cluster_merge_{parts}_us"] == pytest.approx(costs["push"], abs=0.01)
    assert value["dependent_least_us"] == pytest.approx(merging[0]["dependent"], abs=0.05)


def test_constants_of_decode_have_their_sources():
    of_launches = ("kernel_start_us", "cold_start_us", "dependent_saves_us", "dependent_least_us")
    for name in ("dram_latency_ns", "dram_knee", "lat_l2", *of_launches):
        assert len(fitted_b200()[name].source) > 10


def test_operations_of_sparse_prefill_are_counted_as_flashmla_counts_them():
    """The largest speed of its README is that of its published times: 512 queries of 128 heads."""
    data = json.loads(sparse_latent.PUBLISHED_FILE.read_text())
    heads, queries, us, _ = data["rows"][0]
    tflops = sparse_latent.operations(heads, queries) / us * 1e-6
    assert abs(tflops / data["largest"]["tflops"] - 1) < 0.01


@pytest.mark.parametrize(
    ("queries", "keys", "splits"),
    [(512, 2048, False), (75, 2048, True), (512, 4096, True)],
    ids=["blocks fill the pairs", "a second wave is nearly idle", "longer than lists"],
)
def test_lists_of_many_queries_are_not_split(queries, keys, splits):
    """74 pairs; 512 blocks leave 6 places of seven waves idle, 75 leave 73 of two."""
    problem = replace(sparse_latent.problem_of(128, queries), lengths=(keys,) * queries)
    assert (call_of(problem).merge is not None) == splits


def test_latent_rows_are_read_once_and_the_page_has_the_published_times():
    """Keys and values are one row of 576 columns; times beside ours are those of the file, speeds their ratio."""
    problem = latent.problem_of(1, 128, 64)
    assert problem.bytes == 64 * 8192 * 576 * 2 == 2 * latent.problem_of(1, 128, 64, "e4m3").bytes
    assert latent.problem_of(1, 16, 64, ROWS).bytes == 64 * 8192 * 656
    rows = [
        line.split("|")[1:-1]
        for line in table_of("latent_decode", "performance/decode.md").splitlines()
    ]
    rows = [
        [cell.strip() for cell in row]
        for row in rows
        if row and row[0].strip() in (*ELEMENT_BYTES, ROWS)
    ]
    keys = [(int(q), int(heads), int(batch), dtype) for dtype, heads, q, batch, *_ in rows]
    assert keys == list(latent.ROWS)
    known = latent.published()
    for key, (*_, ours, _, _, _, _, _, by, over) in zip(keys, rows, strict=True):
        us, kernel = known.get(key, (None, None))
        assert by == (f"{us} ({kernel})" if us else "")
        if us:  # both are rounded: to the digit shown, and to two decimals
            shown = ours.removesuffix(MARK)
            half = 0.5 / 10 ** len(shown.partition(".")[2])
            least, most = us / (float(shown) + half), us / (float(shown) - half)
            if over == AS_FAST:
                assert least < 1 + LEAST_GAIN and most > 1 - LEAST_GAIN
            else:
                assert least - 0.005 <= float(over) <= most + 0.005


def test_a_latent_cache_of_8_bits_is_called_with_its_scales():
    """As mla.py passes them on; rows of 656 bytes have theirs with them."""
    of = {dtype: call_of(latent.problem_of(1, 128, 64, dtype)).config for dtype in ("e4m3", ROWS)}
    assert (of["e4m3"].descales.letters, of[ROWS].descales.letters) == ("qkv", "")
    families = [config.schedule.family for config in of.values()]
    assert families == ["mla_pair", "mla_widenpair"]


# What launches that memory alone bounds may take beyond prefill's form of it. Decode's has the knee below the ceiling,
# 1.3 % with 128 KiB in flight an SM, and published ones have prologue, epilogue and the merging of parts.
KNEE, BESIDES = 0.02, 0.04
# Bytes from which those parts are less than BESIDES of the time.
MANY_BYTES = 5e8


def prefill_us(num_bytes: float) -> float:
    """A launch of so many bytes whose SMs have hardly anything to do, without the host's part."""
    constants, problem = fitted_b200(), Problem(1, 1, 1, 128, 128, causal=False)
    idle = CTACycles(Curve(((1, 1.0), (2, 1.0))))
    constants = constants | {
        "hbm_tbs": replace(
            constants["hbm_tbs"], value=constants["hbm_tbs"].value * problem.bytes / num_bytes
        )
    }
    return launch_time(Variant(OURS), problem, idle, constants).us - constants["launch_us"].value


@pytest.mark.parametrize("megabytes", [134, 537, 4295])
def test_decode_and_prefill_agree_on_a_launch_that_is_memory_alone(megabytes):
    """148 CTAs, each with 128 KiB in flight, read so many bytes and do nothing else."""
    constants = fitted_b200()
    idle, tile_bytes, in_flight = Memory.of(constants).latency, 32768.0, 131072.0
    latencies = tuple(idle * factor for factor in (1, 2, 4, 8, 16))
    curves = tuple(
        Curve(((1, each), (2, 2 * each)))
        for each in (at * tile_bytes / in_flight for at in latencies)
    )
    tiles = megabytes * 1e6 / 148 / tile_bytes
    kernel = Streaming(latencies, curves, curves, curves, tile_bytes)
    decode = time_of(kernel, [[tiles]] * 148, False, 0.0, 1, constants)
    assert 1 < decode.us / prefill_us(megabytes * 1e6) < 1 + KNEE


def test_prefills_form_meets_published_decodes_that_memory_bounds():
    """One of them reads 537 MB, as many as every published prefill moves; half as much again would miss them all."""
    compared = 0
    for problem in problems():
        if published(problem) and problem.seqlen_q == 1 and problem.bytes > MANY_BYTES:
            compared += 1
            assert 1 < min(published(problem).values()) / prefill_us(problem.bytes) < 1 + BESIDES
    assert compared == 3


def test_attention_that_memory_bounds_takes_microseconds_more_than_a_stream():
    """Measured on an H200, whichever way it was timed: no share of the bytes, of which the fitted one is half."""
    found = memory_bound.measured()
    for way in memory_bound.WAYS:
        stream, attention = (
            [found[kind, tokens][way] for tokens in memory_bound.TOKENS]
            for kind in ("stream", "attention")
        )
        more = [one - other for one, other in zip(attention, stream, strict=True)]
        assert 4 < more[0] < more[-1] < 12
        assert (more[-1] - more[0]) / (stream[-1] - stream[0]) < 0.02
    assert table_of("memory_bound", "performance/calibration.md") == memory_bound.table()
