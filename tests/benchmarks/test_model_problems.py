"""Key tiles, FLOPs and orders of the model's problems, against counting every pair of query and key."""

import pytest
import torch

from benchmarks.cycle_model import b300, depths, our_kernel, schedules
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant
from benchmarks.cycle_model.problems import RAGGED, TOKENS, Problem, visible_pairs
from benchmarks.cycle_model.workloads import (
    EMPTY_BLOCKS,
    PERSISTENT_TILES,
    PERSISTENT_WORK_TILES,
    TILES,
    WINDOW_STEADY_TILES,
    workloads_of,
)
from cute_fa4 import compile_cache, flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import repeat

ROWS, KEYS = 256, 128


def visible(problem, query, key):
    if not problem.causal:
        return True
    return key <= query and (not problem.window or key > query - problem.window)


def counted_tiles(problem, sequence, first, rows):
    """From the first to the last key tile in which one of the rows sees a key."""
    length = problem.sequences[sequence]
    seen = {
        key // KEYS
        for query in range(first, min(first + rows, length))
        for key in range(length)
        if visible(problem, query, key)
    }
    return max(seen) - min(seen) + 1 if seen else 0


# Lengths below, at and beyond a block of 256 rows, some not multiples of a key tile; windows of one
# and of more tiles, and one that a sequence does not fill.
PROBLEMS = [
    Problem(1, 1, 1, 700, 64, causal=False),
    Problem(1, 1, 1, 700, 64, causal=True),
    Problem(1, 1, 1, 1024, 64, causal=True, window=128),
    Problem(1, 1, 1, 1100, 64, causal=True, window=512),
    Problem(1, 1, 1, 300, 64, causal=True, window=1024),
    Problem.packed((1, 256, 300, 513), heads=1, head_dim=64, causal=True),
    Problem.packed((1, 256, 300, 513), heads=1, head_dim=64, causal=False),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_key_tiles_are_those_in_which_a_row_sees_a_key(problem):
    for sequence, length in enumerate(problem.sequences):
        # 32 rows: a block whose rows are eight heads of 32 positions.
        for rows in (ROWS, 32):
            for first in range(0, problem.seqlen + ROWS, rows):
                expected = counted_tiles(problem, sequence, first, rows)
                assert problem.key_tiles(sequence, first, rows) == expected, (length, first)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_key_tiles_are_those_that_the_kernel_walks(problem):
    """kv_range.py of the kernel with Python numbers, sequence by sequence."""
    from cute_fa4.sm100.work import kv_range

    config = our_kernel.config(Variant.of(OURS, problem))
    sizes = (problem.window - 1, 0) if problem.window else ()
    for sequence, length in enumerate(problem.sequences):
        for first in range(0, length, ROWS):
            last = min(first + ROWS, length) - 1
            walked = kv_range.tile_range(config, first, last, length, length, sizes)
            assert problem.key_tiles(sequence, first, ROWS) == walked.count


def test_flops_of_a_window_count_the_visible_pairs():
    for seqlen, window in ((5, 2), (4, 4), (3, 9), (1, 1)):
        pairs = sum(1 for q in range(seqlen) for k in range(seqlen) if q - window < k <= q)
        assert visible_pairs(seqlen, window) == pairs
    problem = Problem(3, 2, 1, 5, 64, causal=True, window=2)
    assert problem.flops == 4 * 3 * 2 * 64 * visible_pairs(5, 2)


def test_flops_and_bytes_of_a_packed_batch_are_those_of_its_sequences():
    packed = Problem.packed((100, 300), 2, 64, causal=True)
    alone = [Problem(1, 2, 2, n, 64, causal=True) for n in (100, 300)]
    assert packed.flops == sum(p.flops for p in alone)
    assert packed.bytes == sum(p.bytes for p in alone)


def test_ragged_batches_hold_as_many_tokens_as_the_other_rows():
    for lengths in RAGGED.values():
        assert sum(lengths) == TOKENS
        # Not sorted, so that an order by length would show.
        assert list(lengths) not in (sorted(lengths), sorted(lengths, reverse=True))


# The shapes of the table's kinds, small; heads that fit L2 in more than one section, and a last
# section that is not full, need long sequences: 50 MiB hold 6 heads of 32K keys at d=64, rounded to 4.
SCHEDULED = [
    *PROBLEMS,
    Problem(2, 4, 4, 1024, 128, causal=True),
    Problem(1, 6, 6, 32768, 64, causal=True),
    Problem(2, 16, 2, 512, 128, causal=True),
    Problem.packed(RAGGED["geometric"], 4, 128, causal=True),
    Problem.packed(RAGGED["short"], 4, 128, causal=False),
]


@pytest.mark.parametrize("maker", [OURS, THEIRS])
@pytest.mark.parametrize("problem", SCHEDULED, ids=lambda p: str(p)[:80])
def test_every_order_has_every_block_of_every_head_once(problem, maker):
    variant = Variant.of(maker, problem)
    heads = problem.heads_q // (variant.group if variant.packed else 1)
    positions = variant.rows // (variant.group if variant.packed else 1)
    blocks = [
        problem.key_tiles(sequence, first, positions)
        for sequence, length in enumerate(problem.sequences)
        for first in range(0, length, positions)
    ]
    found = schedules.work_tiles(variant, problem)
    assert sorted(n for n in found if n) == sorted(blocks * heads)
    # CTAs without work exist only where lengths are on the device.
    assert found.count(0) == 0 or problem.lengths


def test_our_order_is_that_of_the_kernels_tile_scheduler():
    from cute_fa4.sm100.work import tile_order

    problem = Problem(2, 2, 2, 1024, 128, causal=True)
    config = our_kernel.config(Variant.of(OURS, problem))
    order = tile_order.tile_order(config, 1024, 1024, heads=2, batch=2)
    walked = [tile_order.work_tile(config, cta, order).first_position for cta in range(16)]
    expected = [(first + ROWS) // KEYS for first in walked]
    assert schedules.work_tiles(Variant.of(OURS, problem), problem) == expected


def test_flash_attn_4_takes_a_section_of_heads_block_by_block():
    problem = Problem(1, 2, 2, 1024, 128, causal=True)
    found = schedules.work_tiles(Variant.of(THEIRS, problem), problem)
    assert found == [8, 8, 6, 6, 4, 4, 2, 2]
    # 50 MiB hold 3 heads of 32K keys at d=128, rounded to 2: sections of 2, 2 and 1 heads.
    long = Problem(1, 5, 5, 32768, 128, causal=True)
    found = schedules.work_tiles(Variant.of(THEIRS, long), long)
    assert found[:3] == [256, 256, 254] and found[-2:] == [4, 2]


def test_flash_attn_4_launches_an_upper_bound_of_ctas_for_packed_sequences():
    problem = Problem.packed((1, 300), 2, 128, causal=True)
    # (301 + 2 x 255) // 256 blocks a head, of which 1 + 2 have work.
    assert schedules.work_tiles(Variant.of(THEIRS, problem), problem) == [1, 1, 3, 3, 2, 2]
    problem = Problem.packed((1, 1), 2, 128, causal=False)
    assert schedules.work_tiles(Variant.of(THEIRS, problem), problem) == [1, 1, 1, 1]


def test_a_window_is_traced_at_the_beginning_between_two_masked_ends_and_longer():
    tiles = {w.tiles: w.window for w in workloads_of(Variant(OURS, causal=True, window=512))}
    steady = WINDOW_STEADY_TILES
    assert tiles == {2: 512, 4: 512, 6: 512, 6 + steady: 512 + steady * KEYS}
    # The tiles of every block of a long sequence are among the traced ones.
    problem = Problem(1, 1, 1, 8192, 128, causal=True, window=512)
    walked = set(schedules.work_tiles(Variant.of(OURS, problem), problem))
    assert walked == {2, 4, 6}
    with pytest.raises(ValueError, match="multiples of 128"):
        workloads_of(Variant(OURS, causal=True, window=200))


def test_packed_kernels_are_traced_without_work_and_with_half_a_last_tile():
    full, causal = (workloads_of(Variant(OURS, causal=c, ragged=True)) for c in (False, True))
    for works in (full, causal):
        assert [w.tiles for w in works if w.work_tiles == 1 or not w.tiles] == [0, *TILES]
    assert {w.tiles * KEYS - w.seqlen_k for w in full if w.tiles} == {KEYS // 2}
    assert {w.tiles * KEYS - w.seqlen_k for w in causal} == {0}


def test_our_kernels_are_also_traced_over_several_work_tiles():
    """The cost of a further block; a claiming CTA skips several without rows before it finds one."""
    works = workloads_of(Variant(OURS, causal=True, ragged=True))
    several = {w.tiles: w.work_tiles for w in works if w.work_tiles > 1}
    assert several == {
        0: EMPTY_BLOCKS + 1,
        **dict.fromkeys(PERSISTENT_TILES, PERSISTENT_WORK_TILES),
    }


TRACED = [
    Variant(OURS, 64, causal=True, window=128),
    Variant(OURS, 64, causal=True, ragged=True),
]


@pytest.mark.parametrize("variant", TRACED, ids=str)
def test_a_traced_cta_walks_as_many_key_tiles_as_its_workload_says(variant):
    """Compiled, and emulated at the beginning and after a window, or without work and with one tile."""
    works = [work for work in workloads_of(variant) if work.tiles <= (3 if work.window else 1)]
    assert {work.work_tiles for work in works} >= {1, 3}
    _, traces = our_kernel.trace_kernel(variant, works)
    # S = Q K^T in steps of 16 of the depth, O = P V in steps of 16 keys, for two query tiles.
    a_tile = 2 * (variant.head_dim // 16 + KEYS // 16)
    for work, trace in traces.items():
        kinds = [event.kind for events in trace.warps.values() for event in events]
        tiles = work.tiles * work.work_tiles or 1  # of no tiles: the last one has one
        # The last tile of a window is seen by the second query tile alone, and where it has left the beginning the
        # first tile by the first one (two_tiles/uneven).
        ends = [work.tiles > 1, work.tiles > work.window // KEYS + 1] if variant.window else []
        left_out = work.work_tiles * sum(ends)
        assert kinds.count("mma") == tiles * a_tile - left_out * a_tile // 2
        assert kinds.count("claim") == work.work_tiles, "the last one is refused"


def test_pages_that_flash_attn_4_copies_by_thread_are_not_modelled():
    assert [bool(Variant(THEIRS, page_size=n).not_modelled) for n in (0, 16, 64, 128)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not Variant(OURS, page_size=16).not_modelled


def test_tensors_of_eight_bits_are_half_of_the_bytes_read_and_the_output_is_not():
    """Q, K and V of one byte, O of two: 5 / 8 of the bytes of bf16, and the same products."""
    wide, narrow = (Problem(2, 16, 16, 1024, 128, False, dtype=dtype) for dtype in ("bf16", "e4m3"))
    assert narrow.bytes == wide.bytes * 5 / 8 and narrow.flops == wide.flops


# Of each rule of sm100/choose/which_kernel.py that a modelled row meets, one on either side; fp16 is not modelled.
CHOSEN = [
    (Problem(4, 16, 16, 8192, 128, causal=False), "mha2q"),
    (Problem(32, 16, 16, 1024, 128, causal=True), "mha2q"),
    (Problem(4, 16, 2, 8192, 128, causal=True), "mha2q"),
    (Problem(1, 16, 16, 32768, 64, causal=False), "mha2q"),
    (Problem(1, 16, 16, 32768, 128, causal=True, window=1024), "mha2q"),
    (Problem.packed(RAGGED["geometric"], 16, 128, causal=False), "mha2q"),
    (Problem.packed(RAGGED["short"], 16, 128, causal=False), "mha2q"),
    (Problem(4, 16, 16, 8192, 192, causal=True, head_dim_v=128), "mha2q"),
    (Problem(4, 32, 2, 8192, 256, causal=True), "mhawidepair"),
    (Problem(4, 16, 16, 8192, 128, causal=False, dtype="e4m3"), "mha2q"),
]


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize("problem, family", CHOSEN, ids=lambda value: str(value)[:80])
def test_the_modelled_kernel_is_the_one_that_a_call_gets(monkeypatch, problem, family):
    """The call uses memory that is not accessed, and nothing is executed."""
    asked = []

    def record(config, executor):
        asked.append(config.schedule.family)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    repeat.clear()
    dtype = our_kernel.torch_dtype(problem.dtype)
    rows = (TOKENS,) if problem.lengths else (problem.batch, problem.seqlen)
    sizes = [
        (problem.heads_q, problem.head_dim),
        (problem.heads_kv, problem.head_dim),
        (problem.heads_kv, problem.head_dim_v or problem.head_dim),
    ]
    tensors = [torch.empty(*rows, *size, dtype=dtype) for size in sizes]
    call = dict(causal=problem.causal)
    if problem.window:
        call["window_size"] = (problem.window - 1, 0)
    if problem.lengths:
        starts = torch.tensor([0, *problem.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        call |= dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=problem.seqlen)
        flash_attn_varlen_func(*tensors, **call, max_seqlen_k=problem.seqlen)
    else:
        flash_attn_func(*tensors, **call)
    repeat.clear()
    modelled = our_kernel.config(Variant.of(OURS, problem)).schedule.family
    assert [modelled] == asked == [family]


# Rounding of what was published, to a microsecond and a TFLOPS: the shortest took 100 us.
ROUNDED = 0.006


def published_beside() -> list:
    """(problem, published TFLOPS, published microseconds) of what the tables set beside modelled rows."""
    found = []
    data = b300.published()["cudnn"]
    for problem in b300.problems():
        if problem.group > 1:
            name = b300.name_of(problem)
            found.append((problem, dict(data["rows"][name]), dict(data["us of"][name])))
    data = depths.published()
    for problem in depths.latent_problems():
        mask = "causal" if problem.causal else "full"
        found.append((problem, dict(data[mask]), dict(data["us of"][mask])))
    return [(problem, speeds[problem.seqlen], us[problem.seqlen]) for problem, speeds, us in found]


def test_modelled_problems_are_as_large_as_the_published_ones_beside_them():
    """Published speed times published time are the FLOPs of the run: of two sequences, not of one."""
    found = published_beside()
    assert len(found) == 2 * 5 + 2 * 5
    for problem, tflops, us in found:
        assert problem.flops * 1e-6 == pytest.approx(tflops * us, rel=ROUNDED)
