"""Prompts that come in chunks over caches whose blocks have scales: each call appends a chunk, then attends.

That is what the tests of FlashInfer (prefill over NVFP4 pages, after an append) and vLLM (chunked prefill with
kv_cache_dtype="nvfp4") check of their kernels, here at the head dims of both families: 64 and 128 in tiles of 256
rows, 192 with v of 128 in units. The oracle is attention in float64 over the values that the quantizers give.

Two sequences. The chunks of the first, 70, 58 and 59 rows, end inside a key tile of 128 keys, at its end, and in the
next one. The other has 1 row at first, in the same call, then 33, more than a tile of few rows has, and 40.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import flash_attn_with_kvcache, mxfp8, nvfp4
from cute_fa4.dtypes import DTYPES
from tests.serving.batches import Batch, assert_agrees, int32, offsets

PAGE = 16
CHUNKS = ([70, 1], [58, 33], [59, 40])
HEADS = (4, 2)
FACTORS = {"k": 0.25, "v": 3.0}  # global scales
QUANTIZED = {
    "e2m1": lambda x, factor: nvfp4.dequantize(*nvfp4.quantize(x, factor)),
    "mxe4m3": lambda x, factor: mxfp8.dequantise(*mxfp8.quantise(x / factor)) * factor,
}


def empty(name: str, pages: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages of numbers and of scales, all of unused bytes: 0x7f as a scale is NaN, or large."""
    row = DTYPES[name]
    of = lambda n: torch.full((pages, PAGE, HEADS[1], n), 0x7F, dtype=torch.uint8)
    return of(depth // row.in_byte).view(DTYPES[row.element].torch), of(depth // row.block).view(
        row.cache_scales.torch
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("depths", [(64, 64), (128, 128), (192, 128)], ids=str)
@pytest.mark.parametrize("name", QUANTIZED)
def test_chunks_agree_with_attention_over_what_they_have_written(name, depths):
    totals = [sum(chunk[b] for chunk in CHUNKS) for b in range(2)]
    drawn = Batch.draw(totals, totals, heads=HEADS, depth=depths[0], depth_v=depths[1])
    columns = -(-max(totals) // PAGE)
    table = torch.randperm(2 * columns + 1, generator=torch.Generator().manual_seed(0))
    table = table[: 2 * columns].view(2, columns).int()
    stored = {x: empty(name, 2 * columns + 1, n) for x, n in zip("kv", depths, strict=True)}
    meant = {x: [QUANTIZED[name](rows, FACTORS[x]) for rows in getattr(drawn, x)] for x in "kv"}
    before = [0, 0]
    for lengths in CHUNKS:
        after = [a + n for a, n in zip(before, lengths, strict=True)]
        parts = {
            x: torch.cat(
                [rows[a:b] for rows, a, b in zip(getattr(drawn, x), before, after, strict=True)]
            )
            for x in "qkv"
        }
        out, lse = flash_attn_with_kvcache(
            parts["q"], stored["k"][0], stored["v"][0], parts["k"], parts["v"],
            cache_seqlens=int32(before), page_table=table, causal=True, return_softmax_lse=True,
            cu_seqlens_q=offsets(lengths), cu_seqlens_k_new=offsets(lengths), max_seqlen_q=max(lengths),
            k_block_scale=stored["k"][1], v_block_scale=stored["v"][1],
            k_descale=torch.tensor(FACTORS["k"]), v_descale=torch.tensor(FACTORS["v"]),
        )  # fmt: skip
        seen = Batch(
            [rows[a:b] for rows, a, b in zip(drawn.q, before, after, strict=True)],
            *([rows[:b] for rows, b in zip(meant[x], after, strict=True)] for x in "kv"),
        )
        assert_agrees(seen, out, lse, visible=lambda p, j: j <= p)
        before = after
