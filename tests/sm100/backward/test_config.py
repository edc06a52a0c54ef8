"""Where the tiles of the backward kernels are: laws of every pair of head dims."""

import pytest

from cute_fa4.sm100.backward.config import MOST_DEPTH, BackwardConfig
from cute_fa4.sm100.backward.owner import GRANULE, ROWS
from cute_fa4.sm100.blueprint.chip import F32_BYTES, SMEM_CAPACITY_BYTES, TMEM_COLUMNS

DEPTHS = range(GRANULE, MOST_DEPTH + 1, GRANULE)  # head dims are padded to these
OWNERS = [
    owner
    for depth in DEPTHS
    for depth_v in DEPTHS
    for pairs in (False, True)
    for config in [BackwardConfig("bf16", depth, depth_v, pairs=pairs)]
    for owner in (config.owner("queries"), *config.owners_of_keys)
]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda x: f"{x.name} {x.depths} {x.only} {x.ctas}")
def test_every_tile_has_its_place(owner):
    """Own tiles that move leave the first slot of their ring: the first products may need it before the move."""
    assert owner.smem.nbytes <= SMEM_CAPACITY_BYTES and owner.tmem_columns <= TMEM_COLUMNS
    results = ROWS * owner.result_columns * F32_BYTES
    assert results <= owner.smem.own.nbytes + owner.smem.ring.nbytes
    assert owner.moved and all(owner.first_over_own(i) >= 1 for i in owner.moved)
    for i in owner.moved:
        slots = owner.slots[i] - owner.first_over_own(i)
        assert owner.own_tiles[i].nbytes == slots * owner.slot_bytes(i)
