"""Pairs of CTAs over a latent cache: calls against attention in float64, and laws.

Rows of pages that belong to no sequence are NaN, and table entries beyond a sequence are no page.
"""

from __future__ import annotations

import re

import pytest
import torch

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import masks
from cute_fa4.calls.split_keys import split
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.sm100.choose.config import FA4Config, LatentPair
from tests.sm100.latent.latent_batches import agree, draw, run, stored

# heads, queries, page size, keys, options of the call, mode of the emulator: what each is for
FURTHER = {
    "half of the heads in each CTA, keys around two tiles": (
        *(128, 1, 64, (127, 128, 129, 0, 1), {}, "in_order"),
    ),
    "half of the queries in each CTA; rows gathered, parts of which some are empty, fp16": (
        *(16, 8, 5, (300, 4), {"causal": True, "num_splits": 3, "dtype": torch.float16}, "random"),
    ),
    "two tiles of 96 heads, pages of 128": (192, 1, 128, (260,), {}, "hostile"),
    "40 heads padded to 64 rows, three queries in two tiles; fixed parts": (
        *(40, 3, 48, (400, 129), {"causal": True, "tokens_per_split": 256}, "hostile"),
    ),
}


def check_call(heads, queries, page_size, keys, options, mode):
    options = {"num_splits": 1, "causal": False, "dtype": torch.bfloat16} | options
    batch = draw(queries, keys, heads=heads, dtype=options.pop("dtype"))
    out, lse = run(stored(batch, page_size), mode=mode, seed=1, **options)
    agree(batch, out, lse, options["causal"])


def test_work_tiles_of_two_pairs_and_rows_that_rescale(monkeypatch):
    """On four SMs two pairs share the nine tiles of four blocks: pieces begin and end within blocks, and a pair goes
    from one to the next. 48 heads leave unused rows in 64, of each of two queries, which the two CTAs have; later
    keys score higher by far more than 2^8. A query of NaN spoils its own row only."""
    monkeypatch.setattr(split, "num_sms", lambda device: 4)
    batch = draw(2, [560, 0, 129, 40], heads=48)
    for k in batch.k:
        k *= torch.linspace(0.1, 12.0, max(len(k), 1))[: len(k), None, None].bfloat16()
    call = stored(batch, 16)
    out, lse = run(call, causal=True, mode="hostile")
    agree(batch, out, lse, True)
    call["q"][0, 1, 40] = float("nan")
    spoilt, _ = run(call, causal=True, mode="random", seed=2)
    assert spoilt[0, 1, 40].isnan().all()
    spoilt[0, 1, 40] = out[0, 1, 40]
    assert torch.equal(spoilt, out)


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check_call(*FURTHER[name])


@pytest.mark.sweep
def test_where_pages_lie_changes_no_bit():
    """Pages shuffled otherwise; smaller than a unit; rows that are gathered: the same numbers in the same order."""
    batch = draw(1, [150, 33], heads=128)
    expected, lse = run(stored(batch, 64), num_splits=1)
    for page_size, seed in ((64, 1), (16, 0), (3, 0)):
        out, other = run(stored(batch, page_size, seed=seed), num_splits=1)
        assert torch.equal(out, expected) and torch.equal(lse, other), page_size


@pytest.mark.sweep
@pytest.mark.parametrize("arch, split_keys", [("sm_100a", False), ("sm_103a", True)])
def test_code_has_no_spills(arch, split_keys):
    cfg = FA4Config(
        qk_depth=576, ov_depth=512, latent=True, group=128, pack_gqa=True, kv_layout="paged", page_size=16,
        seqused_k=True, write_lse=True, mask=masks.Causal(), split_keys=split_keys, share_keys=split_keys,
        o_dtype="f32" if split_keys else None, arch=arch, schedule=LatentPair(),
    )  # fmt: skip
    ptx, cubin = compile_artifacts(cfg)
    assert not re.search(r"\.local\b", ptx)
    resources = nvdisasm.resources(cubin)
    assert resources.stack_bytes == 0 and resources.registers <= 255
    # Per key tile: 36 steps of 16 columns; two outputs, 8 steps of 16 keys, in the loop and after it.
    assert len(re.findall(r"tcgen05\.mma\.", ptx)) == 36 + 2 * 2 * 8
