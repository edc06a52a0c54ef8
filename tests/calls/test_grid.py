"""CTAs of a call, family by family: what refuses a call must count what the kernel launches."""

import pytest

from cute_fa4.calls.grid import ctas_of
from cute_fa4.sm100.choose.choose_config import choose_config

# Around one and two tiles of 128 rows; 8 heads of groups of 4 on 3 sequences: 24 rows of CTAs, 6 where a group shares.
HEADS, BATCH = 8, 3
LATENT = {
    "latent": True,
    "pack_gqa": True,
    "group": 8,
    "head_dim": 576,
    "head_dim_v": 512,
    "kv_layout": "paged",
    "page_size": 64,
    "seqused_k": True,
}


@pytest.mark.parametrize(
    "choices, rows, ctas",
    [
        ({}, (256, 257), (24, 48)),
        ({"head_dim": 256}, (128, 129), (24, 48)),  # mhawide: a query tile
        ({"family": "mha1q"}, (128, 129), (24, 48)),
        ({"family": "mhapair"}, (129, 512, 513), (48, 48, 96)),  # two CTAs for 512 rows
        ({"pack_gqa": True}, (64, 65), (6, 12)),  # four heads share 256 rows
        ({"pack_gqa": True, "rows": 8}, (2, 3), (6, 12)),  # mhaswap: four heads share 8 rows
        ({**LATENT, "rows": 64}, (8, 9), (3, 6)),  # mla_decode: all heads share 64 rows
    ],
)
def test_as_many_as_the_rows_of_the_family_take(choices, rows, ctas):
    config = choose_config(**{"qkv_dtype": "bf16", "head_dim": 128, "group": 4, **choices})
    assert not config.refusals()
    for seqlen, expected in zip(rows, ctas, strict=True):
        assert ctas_of(config, BATCH * seqlen, seqlen, HEADS, BATCH) == expected


def test_packed_sequences_take_no_more_than_their_rows():
    config = choose_config(qkv_dtype="bf16", head_dim=128, q_layout="packed", kv_layout="packed")
    assert ctas_of(config, 1000, 512, 1, 1000) == 1000 // 256 + 1000
    assert ctas_of(config, 512, 512, 1, 1) == 2
