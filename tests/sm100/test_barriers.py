"""The barrier table: its counts against hand-derived ones, its text against the documentation, its memory order."""

import pytest

from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.config import FA4Config
from cute_fa4.sm100.mha2q import smem_map
from cute_fa4.sm100.sync import barriers

# Derived by hand from who calls what: one announcing thread, one commit, or every thread of a warpgroup.
COUNTS = dict(
    q_full=1, q_free=1, s_ready=1, row_scale=128, p_ready=256, p_last=128, s_free=128, pv_done=1, o_ready=1,
    kv_full=1, kv_empty=1, work_ready=1, work_read=256 + 128 + 32, work_claimed=1,
)  # fmt: skip


def test_arrival_counts():
    assert {b.name: b.count for b in barriers.BARRIERS} == COUNTS


def test_the_table_in_the_docstring_is_the_table_in_the_code():
    assert barriers.table(FA4Config()) in barriers.__doc__
    assert (
        barriers.table(choose_config(qkv_dtype="bf16", head_dim=64), only_optional=True)
        in barriers.__doc__
    )
    assert barriers.reuse_table() in barriers.__doc__


@pytest.mark.parametrize(
    "cfg", [FA4Config(), FA4Config(num_qk_stages=2), FA4Config(qk_depth=64, bn_cap=128)]
)
def test_barriers_lie_one_after_another_and_fill_their_region(cfg):
    listed = list(barriers.instances(cfg))
    assert [index for index, _, _ in listed] == list(range(cfg.num_mbarriers))
    assert len({name for _, name, _ in listed}) == cfg.num_mbarriers
    for barrier in barriers.BARRIERS:
        if not barrier.number(cfg):
            assert barrier.only_if and not getattr(cfg, barrier.only_if)
            continue
        first = barriers.first_index(cfg, barrier.name)
        assert listed[first][2] is barrier and (first == 0 or listed[first - 1][2] is not barrier)
    assert smem_map.regions(cfg)["mbarriers"].nbytes == 8 * len(listed)


def test_every_waiting_role_and_every_arriving_role_exists():
    roles = {"softmax", "correction", "mma", "load"}
    for barrier in barriers.BARRIERS:
        assert set(barrier.awaited_by.split(", ")) <= roles
        assert {arrivals.role for arrivals in barrier.raised_by} <= roles
        assert barrier.reuse


def test_an_unknown_barrier_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="p_gone.*p_ready"):
        barriers.first_index(FA4Config(), "p_gone")


@pytest.mark.parametrize(
    "cfg", [FA4Config(), FA4Config(qk_depth=64, bn_cap=128), FA4Config(num_qk_stages=2)]
)
def test_shared_memory_regions_follow_one_another_and_tiles_start_on_a_swizzle_period(cfg):
    regions = list(smem_map.regions(cfg).values())
    assert regions[0].offset == 0 and regions[-1].end == cfg.smem_bytes
    for before, after in zip(regions, regions[1:], strict=False):
        assert before.end == after.offset
    assert cfg.q_tile_bytes % 1024 == 0 and cfg.kv_slot_bytes % 1024 == 0
    assert smem_map.regions(cfg)["mbarriers"].offset % 8 == 0
