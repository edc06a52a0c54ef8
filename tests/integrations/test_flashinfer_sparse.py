"""FlashInfer's test of sparse MLA decode, ported: its lists, its reference in float32 and its tolerances.

flashinfer-ai/flashinfer, tests/attention/test_trtllm_gen_mla.py: trtllm_batch_decode_mla_sparse. Keys are listed by
their rows of the cache, in the order of the sequence or in none, with -1 where a sequence is shorter than a list.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4.integrations import flashinfer

pytestmark = pytest.mark.filterwarnings("ignore")
LATENT, ROPE, NOPE = 512, 64, 128
SCALE = (NOPE + ROPE) ** -0.5


def reference(q, rows, listed) -> torch.Tensor:
    """float32: q (batch, queries, heads, 576), rows (keys, 576), listed (batch, queries, top-k)."""
    found = torch.zeros(*q.shape[:-1], LATENT)
    for place in torch.cartesian_prod(*map(torch.arange, q.shape[:2])).tolist():
        keys = listed[tuple(place)]
        keys = rows[keys[keys >= 0].long()].float()
        if len(keys):
            scores = q[tuple(place)].float() @ keys.t() * SCALE
            found[tuple(place)] = scores.softmax(-1) @ keys[:, :LATENT]
    return found


@pytest.mark.parametrize(
    "dtype, heads, queries, page, width, in_order",
    [
        (torch.bfloat16, 128, 1, 32, 128, True),
        (torch.bfloat16, 96, 2, 64, 128, False),
        (torch.float8_e4m3fn, 64, 2, 64, 128, True),
        (torch.float8_e4m3fn, 128, 1, 32, 64, False),
    ],
)
def test_sparse_decode_agrees_with_the_reference(dtype, heads, queries, page, width, in_order):
    generator = torch.Generator().manual_seed(heads + width)
    lengths, pages = [200, width // 2], 8
    table = torch.randperm(2 * pages, generator=generator).view(2, pages)
    q = torch.randn(2, queries, heads, LATENT + ROPE, generator=generator)
    cache = torch.randn(2 * pages, page, LATENT + ROPE, generator=generator)
    q, cache = (x.clamp(-1, 1).to(dtype) for x in (q, cache))
    listed = torch.full((2, queries, width), -1, dtype=torch.int32)
    for b, length in enumerate(lengths):
        for i in range(queries):
            keys = torch.arange(length) if in_order else torch.randperm(length, generator=generator)
            keys = keys[:width]
            listed[b, i, : len(keys)] = (table[b, keys // page] * page + keys % page).int()
    out = flashinfer.trtllm_batch_decode_with_kv_cache_mla(
        query=q, kv_cache=cache.unsqueeze(1), workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8),
        qk_nope_head_dim=NOPE, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, block_tables=listed,
        seq_lens=torch.tensor(lengths, dtype=torch.int32), max_seq_len=max(lengths), sparse_mla_top_k=width,
        bmm1_scale=SCALE, bmm2_scale=1.0,
    )  # fmt: skip
    assert out.shape == (2, queries, heads, LATENT) and not out.isnan().any()
    of_8_bits = dtype is torch.float8_e4m3fn
    bound = dict(rtol=1e-1, atol=1e-1) if of_8_bits else dict(rtol=2e-2, atol=8e-4)
    torch.testing.assert_close(out.float(), reference(q, cache.flatten(0, 1), listed), **bound)
