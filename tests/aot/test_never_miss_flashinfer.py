"""The law of test_never_miss.py for FlashInfer's functions, whose scales decide which descales a list needs."""

import pytest
import torch

from cute_fa4 import configs_for_model
from cute_fa4.integrations import flashinfer

from .test_never_miss import BF16, E4M3, MODELS, lengths, missing, numbers

# Dtypes of q and of the cache, and whether scales are tensors -> the letters of docs/integrations.md, bmm2_scale not 1.
FLASHINFER = {
    (BF16, BF16, False): ("", ""),
    (BF16, E4M3, False): ("v", "kv"),
    (BF16, E4M3, True): ("kv", None),  # a latent cache takes no tensors with 16 bits
    (E4M3, E4M3, False): ("v", "kv"),
    (E4M3, E4M3, True): ("qv", "qkv"),
}


def a_call_of_flashinfer(draw, model: dict, options: dict) -> None:
    """One call of a function that servers call on Blackwell: decode with drafts, a context, or a latent cache."""
    batch, queries, keys = lengths(draw)
    heads, heads_kv, depth = model["heads_q"], model["heads_kv"], model["head_dim"]
    (of_q, of_cache, tensors), page = options["case"], draw.choice(model["page_sizes"])
    table, used = numbers(batch, -(-keys // page)), numbers(batch)
    one = numbers(1, dtype=torch.float32)
    bmm1, bmm2 = (one, one) if tensors else (0.1, 1.0 if of_cache is BF16 else 0.5)
    if model["calls"] == ("latent",):
        queries = min(queries, 512)
        flashinfer.trtllm_batch_decode_with_kv_cache_mla(
            numbers(min(batch, 64), queries, heads, depth, dtype=of_q), numbers(99, page, depth, dtype=of_cache),
            block_tables=table[:64], seq_lens=used[:64], bmm1_scale=bmm1, bmm2_scale=bmm2,
            return_lse=draw.random() < 0.5,
        )  # fmt: skip
        return
    layout = draw.choice(("HND", "NHD"))
    rows = (heads_kv, page) if layout == "HND" else (page, heads_kv)
    sinks = numbers(heads, dtype=torch.float32) if "sink" in options else None
    given = dict(
        out_dtype=BF16, kv_layout=layout, sinks=sinks, window_left=draw.choice(options.get("windows", ([-1],)))[0]
    )  # fmt: skip
    cache = numbers(99, 2, *rows, depth, dtype=of_cache)
    q = numbers(batch * queries, heads, depth, dtype=of_q)
    if draw.random() < 0.5:
        flashinfer.trtllm_batch_decode_with_kv_cache(
            q, cache, None, table, used, keys, bmm1, bmm2, q_len_per_req=queries, **given
        )
        return
    ends = numbers(batch + 1)
    flashinfer.trtllm_batch_context_with_kv_cache(
        q, cache, None, table, used, queries, keys, bmm1, bmm2, batch, ends, ends, **given
    )


@pytest.mark.parametrize("case", FLASHINFER, ids=str)
@pytest.mark.parametrize("name", ["Llama 3 70B, 8 GPUs", "GPT-OSS 20B", "DeepSeek V3, 8 GPUs"])
def test_no_call_of_flashinfer_asks_for_a_kernel_that_the_list_lacks(name, case, monkeypatch):
    """With the descales that docs/integrations.md says for it."""
    model, options = MODELS[name]
    latent = model["calls"] == ("latent",)
    descales = FLASHINFER[case][latent]
    if descales is None:
        return
    of_q, of_cache, _ = case
    if "sink" in model:
        model = model | {"sink": "f32"}
    calls = model["calls"] if latent else ("paged", "kvcache")
    dtypes = (
        dict(dtype="e4m3") if of_q is E4M3 else dict(kv_dtype="e4m3") if of_cache is E4M3 else {}
    )
    listed = set(configs_for_model(**model | dtypes | {"descales": descales, "calls": calls}))
    asked = [(model, options | {"case": case})]
    assert not missing(listed, asked, None, monkeypatch, 200, a_call_of_flashinfer)
