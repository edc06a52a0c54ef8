"""Which CTA runs a block changes no bit, and every block is run: of every family, by a call that reaches it.

Each call has at least three blocks of unequal lengths, one of them without keys where lengths can differ. A row that no
CTA writes stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import cute_fa4
from cute_fa4 import flash_mla_with_kvcache
from cute_fa4.calls.operands.latent_rows import rows_from
from cute_fa4.sm100.choose.choose_config import FAMILIES
from tests.attention.test_work_queue import assert_the_same_whoever_runs_it
from tests.calls.test_which_kernel import options_of, recorded
from tests.emulator.mutations.quick import quick_or_sweep

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
KEYS = (300, 0, 129)


def normal(*shape, dtype=BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(*shape, generator=generator).to(dtype)


def dense(
    queries: int, depth=128, heads=1, dtype=BF16, of_keys=BF16, has="nothing"
) -> tuple[Callable, tuple]:
    """Sequences of so many queries and of KEYS; under a rope, or scales of blocks, all have the most keys."""
    beside = 64 if has == "rope of 8" else 0
    depth_v = 128 if beside else depth
    q = normal(len(KEYS), queries, heads, depth, dtype=dtype)
    k = normal(len(KEYS), max(KEYS), 1, depth - beside, dtype=of_keys)
    v = normal(len(KEYS), max(KEYS), 1, depth_v, dtype=of_keys)
    more = options_of(q, k, has)
    for name, scale in more.items():
        more[name] = (
            normal(*scale.shape, dtype=scale.dtype) if name == "k_rope" else torch.ones_like(scale)
        )

    def call(out):
        if has != "nothing":
            return cute_fa4.flash_attn_func(q, k, v, causal=True, return_lse=True, out=out, **more)
        lengths = torch.tensor(KEYS, dtype=torch.int32)
        return cute_fa4.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=lengths, causal=True, return_lse=True, out=out, num_splits=1,
            q_quantize="never",
        )  # fmt: skip

    return call, (*q.shape[:-1], depth_v)


def latent(heads: int, row_bytes: int) -> tuple[Callable, tuple]:
    """Two queries of each sequence over rows of 1,152 or 656 bytes in pages of 64."""
    q = normal(len(KEYS), 2, heads, 576)
    pages = 5
    rows = normal(len(KEYS) * pages, 64, 1, 576)
    if row_bytes == 656:
        wide = rows.flatten(0, 2).float()
        rows = rows_from(wide[:, :512], wide[:, 512:]).view(-1, 64, 1, 656)
    table = torch.arange(len(KEYS) * pages, dtype=torch.int32).view(len(KEYS), pages)
    lengths = torch.tensor(KEYS, dtype=torch.int32)

    def call(out):
        return flash_mla_with_kvcache(
            q, rows, table, lengths, head_dim_v=512, causal=True, num_splits=1, out=out
        )

    return call, (*q.shape[:-1], 512)


CALLS = {
    "mha2q": lambda: dense(300),
    "mhamx": lambda: dense(300, dtype=E4M3, of_keys=E4M3, has="block scales"),
    "mhapair": lambda: dense(600),
    "mha1q": lambda: dense(100),
    "mhaswap": lambda: dense(4, heads=8),
    "mhawiden": lambda: dense(4, heads=8, of_keys=E4M3),
    "mhawiden2q": lambda: dense(300, of_keys=E4M3),
    "mhawide": lambda: dense(100, depth=256),
    "mhawidepair": lambda: dense(300, depth=256),
    "mharope": lambda: dense(300, depth=192, has="rope of 8"),
    "mhawidewiden": lambda: dense(100, depth=256, of_keys=E4M3),
    "mla_decode": lambda: latent(16, 1152),
    "mla_pair": lambda: latent(128, 1152),
    "mla_widen": lambda: latent(16, 656),
    "mla_widenpair": lambda: latent(128, 656),
}
ON_PAIRS = ("mhapair", "mhawidepair")  # short calls are on pairs only if asked
QUICK = ("mha2q", "mla_pair")


def test_every_family_has_a_call():
    assert set(CALLS) == set(FAMILIES)


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize("family", quick_or_sweep(CALLS, QUICK))
def test_whoever_runs_a_block_the_bits_are_the_same(family, monkeypatch):
    if family in ON_PAIRS:
        monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    call, shape = CALLS[family]()
    with pytest.MonkeyPatch.context() as patch:
        [config] = recorded(patch, lambda: call(torch.empty(shape, dtype=BF16)))
    assert config.schedule.family == family and config.schedule.claims
    assert_the_same_whoever_runs_it(call, torch.empty(shape, dtype=BF16))
