"""Query tiles that see different key tiles: leaving out what the first one does not see changes no bit.

The same mask as a union of itself has no bands, so that every key tile is computed for both query tiles and masked. In
fp16, because without bands no reference lags.
"""

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func, masks
from cute_fa4.sm100.choose_config import choose_config
from cute_fa4.sm100.work.kv_range import TileRange, left_out

CHUNK = 384


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize("mode, seed", [("in_order", 0), ("random", 1)])
def test_the_bits_are_those_of_all_key_tiles(mode, seed):
    """Chunks of 384 keys, 760 queries and keys, 2 heads. The query tiles of a block see 3 and 3, 3 and 6, 3 and 3 key
    tiles: in the second one the leader has three alone, and the other warpgroup leads the next."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 760, 2, 128, generator=generator).half()
    k, v = torch.randn(2, 1, 760, 1, 128, generator=generator).half()
    chunks = masks.chunked(CHUNK)
    found = []
    for mask in (chunks, masks.either(chunks, chunks)):
        with emulator.use(mode=mode, seed=seed, claims=1):
            found.append(flash_attn_func(q, k, v, mask=mask, return_lse=True))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_is_left_out_is_seen_by_no_row_of_the_first_query_tile():
    """By the definition: of a block's rows from `first` on, those of query tile 0 see no key of what is left out."""
    cfg = choose_config(qkv_dtype="bf16", head_dim=128, causal=True)
    for keys, first in ((512, 256), (300, 0), (200, 100), (128, 0)):
        seen = -(-min(first + 256, keys) // 128)
        early = left_out(cfg, TileRange(0, seen, 0, 0), first + 127, keys, keys, ())
        needed = max(1, -(-min(first + 128, keys) // 128))
        assert seen - early == needed


def test_masks_that_do_not_end_leave_nothing_out():
    ends = {
        "full": masks.full(), "left": masks.window(100, None), "causal": masks.causal(), "both": masks.window(100, 0),
        "union": masks.either(masks.causal(), masks.chunked(64)),
    }  # fmt: skip
    configs = {
        name: choose_config(qkv_dtype="bf16", head_dim=64, mask=mask.mask)
        for name, mask in ends.items()
    }
    assert {name for name, cfg in configs.items() if cfg.ends_early} == {"causal", "both"}
