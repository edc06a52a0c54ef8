"""Parts of the keys in a cluster (few_rows/cluster.py): against float64, under other schedules, with planted defects.

keys     0    1    127    128    129    5000       parts of eight
tiles    0    1    1      1      2      40         five each, or parts without any: these weigh nothing

Dense queries look up the pages of a CTA's first turn before its length is known (steps/loads.py: guess): beyond a
sequence the table holds pages that do not exist, and under a window the first turn is another one.
"""

import re
from functools import cache

import cutlass
import cutlass.cute as cute
import pytest
import torch

from cute_fa4.calls.split_keys import split
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.steps import loads
from cute_fa4.sm100.sync.kernel_args import KernelArgs
from cute_fa4.sm100.work.tile import Work
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import assert_caught
from tests.serving.batches import (
    Batch,
    assert_agrees,
    dense_q,
    packed_q,
    paged_kv,
    run,
)
from tests.serving.batches import split as by_sequence
from tests.sm100.few_rows import cluster_defects
from tests.tuned import changed

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def causal(p, j):
    return j <= p


@pytest.fixture
def chosen(monkeypatch):
    """What was chosen; room for a cluster of eight for each block, whatever the keys are."""
    found, asked = [], split.cluster_parts

    def spy(blocks, seen, sms, device):
        found.append(asked(blocks, seen, 10_000, device))
        return found[-1]

    monkeypatch.setattr(split, "cluster_parts", spy)
    changed(monkeypatch, cluster_tiles=[[1, 16]])
    return found


def window(p, j):
    return (p - 600 <= j) & (j <= p)


# Unused rows, a sequence without queries: no CTA of its cluster has work. 32 rows, padded heads. The
# window shows the keys of 2,100 from tile 11 on, and all of 700 and fewer.
WINDOW = (
    [3, 0, 1, 4],
    [700, 300, 0, 2100],
    (7, 1),
    64,
    dense_q,
    torch.linspace(-2, 2, 7),
    window,
    16,
)


@pytest.mark.parametrize(
    "queries, keys, heads, depth, store, sink, visible, page",
    [
        ([1] * 6, [0, 1, 127, 128, 129, 5000], (8, 1), 128, packed_q, None, causal, 16),
        # Rows that are gathered, whose pages are guessed too; a separate warp copies V and joins the cluster barrier.
        ([1] * 6, [0, 1, 127, 128, 129, 1500], (8, 1), 64, dense_q, None, causal, 3),
        WINDOW,
    ],
)
def test_parts_merge_to_attention_over_all_keys(
    chosen, queries, keys, heads, depth, store, sink, visible, page
):
    """Reading unwritten memory is an error: shared memory starts unwritten, tensor memory as NaN."""
    batch = Batch.draw(queries, keys, heads=heads, depth=depth)
    more = {} if sink is None else dict(learnable_sink=sink)
    more |= dict(window_size=(600, None)) if visible is window else {}
    storages = store(batch), paged_kv(batch, page)
    out, lse = run(*storages, causal=True, num_splits=0, **more)
    assert_agrees(batch, out, lse, visible=visible, sink=sink)
    again = run(*storages, causal=True, num_splits=0, mode="hostile", **more)
    for found, expected in zip(
        by_sequence(batch, *again), by_sequence(batch, out, lse), strict=True
    ):
        assert all(map(torch.equal, found, expected))
    assert set(chosen) == {8}


@cute.jit
def guessed_always(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    entries: cutlass.Int32,
    turn: cutlass.Int32,
):
    return entries


def test_pages_of_another_turn_are_noticed(chosen, own_kernels, monkeypatch):
    """The defect: pages that were looked up with the length are taken for those of a window that begins later."""
    monkeypatch.setattr(loads, "look_up_guessed", guessed_always)
    with pytest.raises(AssertionError):
        test_parts_merge_to_attention_over_all_keys(chosen, *WINDOW)


def test_what_no_cluster_is_made_of():
    for cluster_parts, problem, said in (
        (3, {}, "cluster_parts=3: .*use 1, 2, 4, 8"),
        (16, {}, "cluster_parts=16"),
        (4, dict(split_keys=True), "cluster_parts=4 with split_keys=True"),
    ):
        config = FA4Config(schedule=SwappedTile(rows=8, cluster_parts=cluster_parts), **problem)
        assert any(re.match(said, reason) for reason in config.refusals()), config.refusals()
    shared = FA4Config(schedule=SwappedTile(cluster_parts=2, claims=True))
    assert not shared.refusals() and not shared.schedule.claims


@cache
def subject():
    return cluster_defects.subject(LEVEL)


@pytest.mark.parametrize("mutant", cluster_defects.mutants(), ids=lambda m: m.name)
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())
