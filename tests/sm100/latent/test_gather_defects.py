"""Mistakes in how three warps share the gathers of latent rows (sm100/latent/gathers.py), of a pair and of a CTA alone.

The subject: two queries that list 300 of 400 rows in any order: three key tiles, so that each ring goes round, and the
last one has 44 keys, whose last gather is full and the ones after it have no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cute_fa4 import emulator, flash_mla_sparse_fwd
from cute_fa4.calls import repeat
from cute_fa4.sm100.latent import gathers
from cute_fa4.tma.gathered_rows import GatheredRows
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.steps.raw_row_defects import is_noticed

HEADS = {"a pair": 128, "a CTA alone": 64}


def is_right(heads: int, mode: str, seed: int) -> bool:
    """Whether a call agrees with float64, as closely as out in bf16 does."""
    repeat.clear()
    generator = torch.Generator().manual_seed(0)
    q, kv = (
        torch.randn(n, h, 576, generator=generator).bfloat16() for n, h in ((2, heads), (400, 1))
    )
    lists = torch.stack([torch.randperm(400, generator=generator)[:300] for _ in q])
    scale = 576**-0.5
    try:
        with emulator.use(mode=mode, seed=seed):
            out, _, lse = flash_mla_sparse_fwd(q, kv, lists.int().unsqueeze(1), scale)
    except emulator.EmulatorError:
        return False
    rows = kv[lists, 0].double()
    scores = torch.einsum("qhd,qkd->qhk", q.double(), rows) * scale
    exact = scores.softmax(-1) @ rows[..., :512]
    near = (out.double() - exact).abs().max() < 2**-6 and (
        lse - scores.logsumexp(-1)
    ).abs().max() < 2**-9
    return bool(near)


def shares(change: Callable) -> Callable:
    """A change of the shares of both gather warps."""
    return lambda made: (made[0], *(change(share) for share in made[1:]))


DEFECTS = {
    "gather warps copy what the load warp copies": (
        gathers, "SHARES", shares(lambda share: replace(share, begin=0, end=share.end - share.begin)),
    ),
    "gather warps leave out a gather": (gathers, "SHARES", shares(lambda share: replace(share, end=share.end - 1))),
    "gather warps announce bytes, too": (gathers, "SHARES", shares(lambda share: replace(share, announces=True))),
    "nobody announces the bytes": (
        gathers, "of_load", lambda made: lambda cfg: replace(made(cfg), announces=not cfg.warps.values),
    ),
    "a gather takes the rows of the next": (
        GatheredRows, "of_gather", lambda made: lambda self, p: made(self, p ^ 1),
    ),
}  # fmt: skip
CASES = {f"{name}, {of}": (name, heads) for name in DEFECTS for of, heads in HEADS.items()}
QUICK = ("gather warps leave out a gather, a pair", "nobody announces the bytes, a CTA alone")


@pytest.mark.parametrize("case", quick_or_sweep(CASES, QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, case):
    name, heads = CASES[case]
    is_noticed(monkeypatch, DEFECTS[name], name, lambda *schedule: is_right(heads, *schedule))


@pytest.mark.parametrize("heads", HEADS.values())
def test_calls_agree_with_float64(heads):
    assert is_right(heads, "hostile", 1)
