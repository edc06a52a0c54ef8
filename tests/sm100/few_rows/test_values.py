"""Gathered rows, with V copied by a separate warp (roles/values.py): copies per warp, and defects of that warp.

Sequences of 600 keys in pages of three: five key tiles, an odd number, so that slots and parities differ from work
tile to work tile, and three sequences, which one CTA claims in order: more than the queue has entries, and twice as
many tiles of K and V as the ring has slots (13).
"""

from functools import cache

import pytest
import torch

from cute_fa4 import flash_attn_varlen_func
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.one_tile.schedule import OneTile
from cute_fa4.sm100.two_tiles.pair.schedule import Pair
from cute_fa4.sm100.two_tiles.schedule import TwoTiles
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import arrival, expect, wait
from tests.emulator.mutations.edits import ALWAYS_TRUE, FLIPPED_PARITY, delete, lines, replace
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    WRONG_NUMBERS,
    Mutant,
    Subject,
    assert_caught,
)
from tests.serving.batches import Batch, assert_agrees, int32, packed_q, paged_kv, run

NUMBERS = (WRONG_NUMBERS,)
PAGE = 3
CONFIG = choose_config(
    qkv_dtype="bf16", head_dim=64, group=8, pack_gqa=True, q_layout="packed", kv_layout="paged", page_size=PAGE,
    seqused_k=True, write_lse=True, rows=8,
)  # fmt: skip
attention_places.KNOWN[CONFIG.name] = CONFIG


@cache
def subject() -> Subject:
    batch = Batch.draw([1] * 3, [600] * 3, heads=(8, 1), depth=64)
    q, storage = torch.cat(batch.q), paged_kv(batch, PAGE)
    of = dict(**storage, cu_seqlens_q=int32([0, 1, 2, 3]), max_seqlen_q=1, return_lse=True)

    def call(out):
        return flash_attn_varlen_func(q, **of, out=out)

    return Subject("pages of three", executes(call, q, LEVEL), LEVEL)


# Of the roles after the MMAs only this one waits for work tiles, and its text is the last.
TOLD, TOLD_NEXT = wait("load", "work_ready").first, wait("load", "work_ready").last
FREE = wait("load", "kv_empty").after(TOLD)
ANNOUNCED = expect("kv_full").after(TOLD)
STEP = (
    lines("load", r"add\.s32 \s*(%r\d+), (%r\d+), 1;")
    .between(FREE.first, TOLD_NEXT)
    .named("a page", "a row", "the slot after K", "the slot after V", "the key tile")
)
COPIED = lines("load", r"mov\.b32 \s*(%r\d+), (%r\d+);")
READERS = lines("prologue", r"selp\.b32 \s*(%r\d+), 192, 1, (%p\d+);", "the count of readers")

EARLY = (*ASYNCHRONY, *COUNTS)
PLANTED = {
    "V is copied before its work tile is known": (replace(TOLD, ALWAYS_TRUE), ASYNCHRONY),
    "the next work tile is read before it is announced": (replace(TOLD_NEXT, ALWAYS_TRUE), ASYNCHRONY),
    "an announcement is not said to be read": (delete(arrival("load", "work_read").after(TOLD).first), HANG),
    "announcements count without this reader": (replace(READERS, r"selp.b32 \1, 160, 1, \2;"), EARLY),
    "V is copied into a slot that is read": (replace(FREE, ALWAYS_TRUE), EARLY),
    "V waits for the other phase of its slot": (replace(FREE, FLIPPED_PARITY), (*EARLY, *HANG)),
    "V goes to the slot after its own": (
        replace(STEP["the slot after V"], r"mov.b32 \1, \2;"), (*EARLY, *HANG)),
    "V begins in a slot of K": (replace(COPIED.between(TOLD, FREE.first).first, r"mov.b32 \1, 0;"), (*EARLY, *HANG)),
    "pages are those of the tile before": (delete(COPIED.between(FREE.first, TOLD_NEXT).last), NUMBERS),
    "half of the bytes are announced": (
        replace(ANNOUNCED, r"mbarrier.arrive.expect_tx.shared.b64 \1, \2, 8192;"), (*EARLY, *HANG)),
    "V is not announced": (delete(ANNOUNCED), (*EARLY, *HANG)),
}  # fmt: skip
MUTANTS = [Mutant(name, "pages of three", *planted) for name, planted in PLANTED.items()]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject())


def causal(p, j):
    return j <= p


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
def test_one_query_tile_has_the_warp_too():
    """mha1q, of whose 16 warps one is idle: 128 rows; none, one and two key tiles, and unused rows."""
    batch = Batch.draw([8, 0, 8], [0, 5, 140], heads=(16, 1), depth=64)
    out, lse = run(
        packed_q(batch), paged_kv(batch, PAGE), causal=True, num_splits=1, mode="hostile", seed=3
    )
    assert_agrees(batch, out, lse, visible=causal)


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize("queries", [60, 200], ids=["mha1q", "mha2q"])
def test_in_a_ring_of_three_v_waits_for_its_turn(queries):
    """Head dims 192 and 128 have three slots. With five key tiles V comes back to its first slot, two rounds later."""
    batch = Batch.draw([queries], [600], heads=(2, 2), depth=192, depth_v=128)
    out, lse = run(
        packed_q(batch), paged_kv(batch, PAGE), causal=True, num_splits=1, mode="hostile", seed=3
    )
    assert_agrees(batch, out, lse, visible=causal)


def test_who_copies_v():
    """A warp more where rows are gathered, whose reading of work tiles counts; elsewhere and in other families none."""

    def roles(schedule, **problem):
        cfg = FA4Config(schedule=schedule, kv_layout="paged", seqused_k=True, **problem)
        [read] = [barrier.count for barrier in cfg.barriers.rows if barrier.name == "work_read"]
        return len(cfg.warps.values), cfg.warps.threads, read

    for page, more in ((1, 1), (7, 1), (12, 1), (8, 0), (16, 0), (128, 0)):
        assert roles(SwappedTile(), page_size=page) == (more, 192 + 32 * more, 160 + 32 * more)
    # Of two softmax warpgroups: the warp that is idle otherwise.
    for schedule in (OneTile(), TwoTiles()):
        found = [roles(schedule, page_size=page) for page in (1, 16)]
        assert found == [(1, 512, found[1][2] + 32), (0, 512, found[1][2])]
    assert roles(Pair(), page_size=1)[0] == 0
    for page in (1, 16):  # where K and V are dequantized, a warp has V alone
        assert roles(DequantizedTile(), kv_dtype="e4m3", page_size=page)[0] == 1
