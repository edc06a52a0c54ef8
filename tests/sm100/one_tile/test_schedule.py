"""OneTile: the design's numbers, what fits the chip, and which calls it runs."""

import pytest

from cute_fa4.sm100.blueprint.chip import SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from cute_fa4.sm100.blueprint.reach import DEPTHS
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.one_tile.schedule import OneTile
from cute_fa4.sm100.two_tiles.schedule import TwoTiles

NEEDED_IN_FLIGHT = (
    64 * 1024
)  # bytes an SM, of which HBM delivers at 7 TB/s (measured and published for B200)


@pytest.mark.parametrize("head_dim", DEPTHS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_it_fits_the_chip_and_wastes_less_than_a_slot(head_dim, dtype):
    cfg = choose_config(qkv_dtype=dtype, head_dim=head_dim, family="mha1q")
    assert cfg.refusals() == []
    assert cfg.smem.nbytes <= SMEM_CAPACITY_BYTES < cfg.smem.nbytes + cfg.tiles.kv_slot_bytes + 16
    spans = [range(c, c + cfg.tiles.BN) for c in cfg.tmem.s]
    spans += [range(c, c + cfg.tiles.pv_mma_shape[1]) for c in cfg.tmem.o]
    columns = [column for span in spans for column in span]
    assert len(columns) == len(set(columns)) and max(columns) < cfg.tmem.used <= TMEM_COLUMNS


@pytest.mark.parametrize("head_dim", DEPTHS)
def test_the_ring_keeps_enough_in_flight_while_two_tiles_are_in_use(head_dim):
    """A V tile waits for softmax and the next K tile is multiplied; the other slots are on their way."""
    one, two = (
        choose_config(qkv_dtype="bf16", head_dim=head_dim, family=f) for f in ("mha1q", "mha2q")
    )
    assert (one.barriers.kv_slots - 2) * one.tiles.kv_slot_bytes >= NEEDED_IN_FLIGHT
    assert one.barriers.kv_slots > two.barriers.kv_slots


def test_choices_of_another_family_are_refused_by_name():
    with pytest.raises(ValueError, match="family='mha1q' with order: choices of another"):
        choose_config(qkv_dtype="bf16", head_dim=128, family="mha1q", order="p_over_s")
    with pytest.raises(
        ValueError, match="family: 'mha3q'; accepted: mha2q, mhamx, mhapair, mha1q, mhaswap"
    ):
        choose_config(qkv_dtype="bf16", head_dim=128, family="mha3q")


def test_the_two_families_refuse_the_same_problems():
    """So that a call which one family runs is never refused because it is short."""
    for choices in (
        dict(qkv_dtype="e4m3"), dict(qk_depth=48), dict(qk_depth=192), dict(qk_depth=128, ov_depth=64),
        dict(pack_gqa=True, group=3), dict(kv_layout="paged", page_size=24, seqused_k=True),
        dict(rope_dtype="bf16"), dict(o_dtype="f32"), dict(kv_layout="paged", page_size=16, seqused_k=True),
    ):  # fmt: skip
        two, one = (FA4Config(schedule=cls(), **choices).refusals() for cls in (TwoTiles, OneTile))
        assert bool(one) == bool(two), choices
