"""The barrier table: its counts against hand-derived ones, its text against the documentation, its memory order."""

import pytest

from cute_fa4.sm100.blueprint.barriers import BarrierTable, reuse_text
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles import barriers

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of a warpgroup.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, row_scale=128, p_ready=256, p_last=128, s_free=128, pv_done=1, o_ready=1,
    kv_full=1, kv_empty=1, work_ready=1, work_read=256 + 128 + 32, work_claimed=1,
    work_checked=256,
)  # fmt: skip


OVER = choose_config(qkv_dtype="bf16", head_dim=128, maximum="exact")
BESIDE = choose_config(qkv_dtype="bf16", head_dim=64, order="p_beside_s")
RESTED = FA4Config(qk_depth=192, ov_depth=128)  # K of 192 columns has a remainder outside its slot


def test_arrival_counts():
    """Derived from the roles' threads; a hand count agrees."""
    assert {b.name: b.count for b in BESIDE.barriers.rows} == COUNTS


def test_counts_follow_the_roles():
    """A warp more in a role that arrives is 32 arrivals more."""
    warps = WarpRoles(softmax=range(0, 8), correction=range(8, 13), mma=range(13, 14))
    rows = {b.name: b for b in barriers.rows(warps)}
    assert rows["p_ready"].count == COUNTS["p_ready"] + 32
    assert rows["work_read"].count == COUNTS["work_read"] + 32
    assert rows["q_full"].count == COUNTS["q_full"]


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert OVER.barriers.text() in barriers.__doc__
    added = [row for row in BESIDE.barriers.rows if row.name not in OVER.barriers]
    only_added = BarrierTable(tuple(added), BESIDE.barriers.numbers)
    assert only_added.text() in barriers.__doc__
    assert reuse_text(BESIDE.barriers.rows) in barriers.__doc__


@pytest.mark.parametrize("cfg", [OVER, RESTED, BESIDE])
def test_barriers_lie_one_after_another_and_fill_their_region(cfg):
    listed = list(cfg.barriers.instances())
    assert [index for index, _, _ in listed] == list(range(cfg.barriers.total))
    assert len({name for _, name, _ in listed}) == cfg.barriers.total
    for barrier in cfg.barriers.rows:
        first = cfg.barriers.first_index(barrier.name)
        assert listed[first][2] is barrier and (first == 0 or listed[first - 1][2] is not barrier)
    assert cfg.smem.mbarriers.nbytes == 8 * len(listed)


def test_every_waiting_role_and_every_arriving_role_exists():
    roles = {"softmax", "correction", "mma", "load"}
    for barrier in BESIDE.barriers.rows:
        assert set(barrier.awaited_by.split(", ")) <= roles
        assert {arrivals.role for arrivals in barrier.raised_by} <= roles
        assert barrier.reuse


def test_an_unknown_barrier_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="p_gone.*p_ready"):
        OVER.barriers.first_index("p_gone")


@pytest.mark.parametrize("cfg", [OVER, BESIDE, RESTED])
def test_shared_memory_regions_follow_one_another_and_tiles_start_on_a_swizzle_period(cfg):
    regions = cfg.smem.regions
    assert regions[0].offset == 0 and regions[-1].end == cfg.smem.nbytes
    for before, after in zip(regions, regions[1:], strict=False):
        assert before.end == after.offset
    assert cfg.tiles.q_tile_bytes % 1024 == 0 and cfg.tiles.kv_slot_bytes % 1024 == 0
    assert cfg.smem.mbarriers.offset % 8 == 0
