"""Where the tiles of the backward kernels are: laws of every pair of head dims."""

import pytest

from cute_fa4.sm100.backward.config import MOST_DEPTH, BackwardConfig
from cute_fa4.sm100.backward.owner import GRANULE, ROWS
from cute_fa4.sm100.blueprint.chip import F32_BYTES, SMEM_CAPACITY_BYTES, TMEM_COLUMNS

TMA_ALIGNMENT = 128  # of a copy's target in shared memory
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
    assert owner.moved or owner.tmem_columns + owner.own_columns(0) > TMEM_COLUMNS
    assert all(owner.first_over_own(i) >= 1 for i in owner.moved)
    for i in owner.moved:
        part = owner.made_part(i)
        slots = owner.slots[part] - owner.first_over_own(i)
        assert owner.own_tiles[i].nbytes == slots * owner.slot_bytes(part)


@pytest.mark.parametrize("owner", OWNERS, ids=lambda x: f"{x.name} {x.depths} {x.only} {x.ctas}")
def test_every_operand_has_one_part_of_the_ring(owner):
    """Each product finds what it reads, parts do not overlap, and those of one tile have all of its bytes."""
    for i in range(len(owner.own_tiles)):
        assert owner.parts[owner.made_part(i)].tile == i
    for i in owner.results:
        assert owner.parts[owner.summed_part(i)].tile == i
    assert sum(part.summed for part in owner.parts) == len(owner.results)
    assert owner.ring_offset(len(owner.parts)) == owner.smem.ring.nbytes
    assert len(owner.slots) == len(owner.parts)
    of_numbers = [owner.stats_of(j) * F32_BYTES for j in range(len(owner.parts))]
    assert (
        sum(n * x for n, x in zip(owner.slots, of_numbers, strict=True)) == owner.smem.stats.nbytes
    )
    assert all(n % TMA_ALIGNMENT == 0 for n in of_numbers)
