"""WideTile: what fits the chip, for every pair of head dims, and what is refused."""

import itertools

import pytest

from cute_fa4.sm100.blueprint.chip import MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from cute_fa4.sm100.blueprint.reach import WIDE_DEPTHS
from cute_fa4.sm100.choose.choose_config import ALL_DEPTHS, choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.rows_of_tiles import is_wide
from cute_fa4.sm100.wide.schedule import LEAST_SLOTS, WideTile
from cute_fa4.sm100.wide.warp_roles import WideWarpRoles

UNIT_BYTES = 128 * 64 * 2
REGISTERS_AT_LAUNCH = 65536 // 384 // 8 * 8  # of a thread, in steps of 8


def test_every_pair_of_head_dims_fits_and_wastes_less_than_a_slot():
    """The last unit of K or V may be narrower than 64 columns: together they have the depth, in steps of 16."""
    for depth, depth_v in itertools.product(ALL_DEPTHS, WIDE_DEPTHS):
        cfg = FA4Config(qk_depth=depth, ov_depth=depth_v, schedule=WideTile())
        assert cfg.refusals() == []
        slot = UNIT_BYTES + 2 * MBARRIER_BYTES
        assert cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + slot
        # Up to 256 columns a whole key tile has room; beyond, copies are at least two units ahead of two products.
        units = cfg.tiles.k_units + cfg.tiles.v_units
        assert cfg.barriers.kv_slots >= (units if depth <= 256 else LEAST_SLOTS)
        assert cfg.tmem.used == 2 * 128 + cfg.tiles.padded_ov_depth <= TMEM_COLUMNS
        tiles = cfg.tiles
        assert sum(map(tiles.k_columns, range(tiles.k_units))) == -(-depth // 16) * 16
        assert sum(map(tiles.v_columns, range(tiles.v_units))) == -(-depth_v // 16) * 16


def test_the_registers_of_the_warpgroups_are_those_of_the_launch():
    """setmaxnreg waits for registers that others gave up: more than there were at launch would never come."""
    warps = WideWarpRoles()
    groups = (warps.softmax_registers, warps.correction_registers, warps.other_registers)
    assert warps.threads == 384 and sum(groups) == 3 * REGISTERS_AT_LAUNCH
    assert warps.correction_registers <= REGISTERS_AT_LAUNCH <= warps.softmax_registers


@pytest.mark.parametrize("depths", [(200, 128), (64, 136), (256, 256), (512, 512)])
def test_head_dims_that_no_other_family_runs_have_this_one(depths):
    depth, depth_v = depths
    cfg = choose_config(qkv_dtype="bf16", head_dim=depth, head_dim_v=depth_v)
    assert is_wide(*depths) and cfg.schedule.family == "mhawide"
    for family in ("mha2q", "mha1q"):
        other = choose_config(qkv_dtype="bf16", head_dim=depth, head_dim_v=depth_v, family=family)
        assert other.refusals()


@pytest.mark.parametrize(
    "choices, schedule, value, remedy",
    [
        (dict(qk_depth=264, ov_depth=256), {}, "qk_depth=264", "of 16 up to 512"),
        (dict(qk_depth=64, ov_depth=320), {}, "ov_depth=320", "up to 256"),
    ],
)
def test_a_refusal_names_the_value_and_the_remedy(choices, schedule, value, remedy):
    why = FA4Config(**choices, schedule=WideTile(**schedule)).refusals()
    assert any(value in reason and remedy in reason for reason in why), why
