"""Batches over a latent cache: drawn once, stored in shuffled pages with NaN in rows that belong to no sequence."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch

from cute_fa4 import EmulatorWarning, configs_for_model, emulator, flash_mla_with_kvcache
from cute_fa4.sm100.choose.config import FA4Config
from tests.serving.batches import CANARY, Batch, assert_agrees, dense, paged_kv

LATENT, ROPE = 512, 64


def config_of(family: str, **model) -> FA4Config:
    """Of a latent model: the configuration of that family for the fewest query rows, keys not split, pages of 64."""
    named = dict(head_dim=576, heads_kv=1, causal=False, page_sizes=(64,)) | model
    found = [
        config
        for config in configs_for_model(**named)
        if isinstance(config, FA4Config)
        and config.schedule.family == family
        and not config.split_keys
    ]
    return min(found, key=lambda config: getattr(config.schedule, "rows", 0))


def draw(queries: int, keys, *, heads: int, dtype=torch.bfloat16, seed=0) -> Batch:
    """As many queries for every sequence; v are the first columns of k."""
    batch = Batch.draw(
        [queries] * len(keys), keys, heads=(heads, 1), depth=LATENT + ROPE, dtype=dtype, seed=seed
    )
    return replace(batch, v=[k[..., :LATENT] for k in batch.k])


def stored(batch: Batch, page_size: int, seed=0) -> dict:
    """The arguments of a call."""
    pages = paged_kv(batch, page_size, seed=seed)
    return dict(
        q=dense(batch.q, batch.queries[0]),
        k_cache=pages["k"],
        block_table=pages["page_table"],
        cache_seqlens=pages["seqused_k"],
    )


def call_of(call: dict, **options):
    """flash_mla_with_kvcache without its first warning, that the emulator executes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return flash_mla_with_kvcache(**call, **options)


def run(call: dict, *, mode="in_order", seed=0, claims=None, **options):
    """flash_mla_with_kvcache with an out of canaries -> (out, lse)."""
    out = call["q"].new_full((*call["q"].shape[:-1], LATENT), CANARY)
    checks = emulator.use(mode=mode, seed=seed, claims=claims, checks=("ptx", "phase_passed_twice"))
    with checks:
        returned, lse = call_of(call, **options, out=out)
    assert returned is out
    return out, lse


def causal(p, j):
    return j <= p


def agree(batch: Batch, out, lse, is_causal: bool, **options) -> None:
    assert_agrees(batch, out, lse, visible=causal if is_causal else None, **options)
