"""Keys of a latent cache by index, by one CTA and by pairs, against float64 over the keys that are listed."""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import emulator
from tests.serving.batches import CANARY
from tests.sm100.latent.latent_batches import LATENT, call_of

PAGES, PAGE = 8, 64

# heads, queries, sequences, keys of a list, options, mode: what each is for
CALLS = {
    "one CTA; a first tile without keys": (16, 1, 2, 300, {"num_splits": 1}, "hostile"),
    "pairs; several queries": (128, 2, 1, 140, {"num_splits": 1}, "random"),
}
FURTHER = {
    "64 rows, shared out": (64, 3, 2, 450, {}, "hostile"),
    "pairs, shared out": (96, 1, 3, 450, {}, "random"),
    "more keys than a query lists": (16, 1, 1, 3, {}, "in_order"),
}


def lists_of(sequences: int, queries: int, number: int, generator) -> torch.Tensor:
    """Keys in no order, with none among them: a first tile of nothing, numbers beyond the cache, a list of nothing."""
    drawn = [torch.randperm(PAGES * PAGE, generator=generator) for _ in range(sequences * queries)]
    lists = torch.stack([keys[:number] for keys in drawn]).int().view(sequences, queries, number)
    lists[torch.rand(lists.shape, generator=generator) < 0.4] = -1
    lists[0, 0, : min(140, number - 2)] = -1
    lists[0, 0, 0] = PAGES * PAGE
    lists[-1, -1] = -1
    return lists


def check(heads, queries, sequences, number, options, mode):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(sequences, queries, heads, 576, generator=generator).bfloat16()
    cache = torch.randn(PAGES, PAGE, 1, 576, generator=generator).bfloat16()
    lists, rows = lists_of(sequences, queries, number, generator), cache.view(-1, 576)
    real = (lists >= 0) & (lists < len(rows))
    unlisted = torch.ones(len(rows), dtype=torch.bool)
    unlisted[lists[real].long()] = False
    rows[unlisted] = torch.nan  # never read
    out = q.new_full((*q.shape[:-1], LATENT), CANARY)
    call = dict(q=q, k_cache=cache, block_table=None, cache_seqlens=None, indices=lists, out=out)
    with emulator.use(mode=mode, seed=1, checks=("ptx", "phase_passed_twice")):
        returned, lse = call_of(call, **options)
    assert returned is out and lse.shape == (sequences, heads, queries)
    for b, j in torch.cartesian_prod(torch.arange(sequences), torch.arange(queries)).tolist():
        keys = rows[lists[b, j][real[b, j]].long()].double()
        if len(keys) == 0:
            assert (out[b, j] == 0).all() and (lse[b, :, j] == -torch.inf).all()
            continue
        scores = q[b, j].double() @ keys.T * 576**-0.5
        exact = scores.softmax(-1) @ keys[:, :LATENT]
        # P and out are rounded to eight bits of mantissa: 2^-9 / sqrt(3) each, at random.
        assert (out[b, j].double() - exact).norm() < 2**-8 * exact.norm()
        assert (lse[b, :, j].double() - scores.logsumexp(-1)).abs().max() < 1e-2


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check(*CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check(*FURTHER[name])
