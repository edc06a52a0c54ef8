"""Law: no call of a model asks for a kernel that the list of its kernels lacks, whatever the call's lengths.

Random calls of real models go through the public functions and the adapter of vLLM, in
test_never_miss_flashinfer.py through FlashInfer's, on tensors without data (system/devices.py: asked_for), which plan,
check and "launch" as on a GPU and note every kernel that they would launch. Under CUTE_FA4_JIT=error each of them has
to be in configs_for_model's list, or for a service whose model's config.json was read in that of hf_config.models_of.
"""

import json
import random

import pytest
import torch

from cute_fa4 import (
    BlockSparseTensors,
    configs_for_model,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    indexer,
)
from cute_fa4.aot import entry, hf_config
from cute_fa4.calls import repeat
from cute_fa4.integrations import vllm
from cute_fa4.integrations.invariance import VLLM
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.launches import with_conversions
from cute_fa4.sm100.work.lists.config import BlockListsConfig
from cute_fa4.system.devices import asked_for

from .test_hf_config import PUBLISHED

CALLS = 5000  # of all models; planning one takes about a millisecond
TOKENS = 1 << 16  # of a step, at most
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
BLOCKS = {"e2m1": (16, E4M3), "mxe4m3": (32, torch.float8_e8m0fnu)}  # numbers of a scale, its dtype
# name -> (arguments of configs_for_model, arguments of every call). Shapes as the models' published configurations
# have them, divided by the GPUs they are served on.
DENSE = dict(calls=("packed", "paged", "kvcache", "cascade"))
CACHED = dict(
    head_dim=128, heads_q=32, heads_kv=8, page_sizes=(16,), calls=("kvcache",), descales="kv"
)
MODELS = {
    "Llama 3 8B": (DENSE | dict(head_dim=128, heads_q=32, heads_kv=8, page_sizes=(16,)), {}),
    "Llama 3 70B, 8 GPUs": (DENSE | dict(head_dim=128, heads_q=8, heads_kv=1, page_sizes=(16, 64)), {}),
    "Llama 3.1 405B, 8 GPUs": (DENSE | dict(head_dim=128, heads_q=16, heads_kv=1, page_sizes=(32,)), {}),
    "Llama 2 7B": (DENSE | dict(head_dim=128, heads_q=32, heads_kv=32, page_sizes=(16,)), {}),
    "Qwen2.5 7B": (DENSE | dict(head_dim=128, heads_q=28, heads_kv=4, page_sizes=(16,)), {}),
    "Gemma 2 9B": (
        DENSE
        | dict(head_dim=256, heads_q=16, heads_kv=8, page_sizes=(16,))
        | dict(windows=(None, (4095, 0)), softcap=50.0),
        dict(windows=([-1, -1], [4095, 0]), softcap=50.0),
    ),
    "GPT-OSS 20B": (
        DENSE
        | dict(head_dim=64, heads_q=64, heads_kv=8, page_sizes=(16,))
        | dict(windows=(None, (127, 0)), sink="bf16"),
        dict(windows=([-1, -1], [127, 0]), sink=True),
    ),
    "Llama 3 8B, FP8 cache": (
        DENSE | dict(head_dim=128, heads_q=32, heads_kv=8, page_sizes=(16,), kv_dtype="e4m3", descales="kv"),
        dict(descales="kv"),
    ),
    "Llama 3 8B, NVFP4 cache": (CACHED | dict(kv_dtype="e2m1"), dict(descales="kv")),
    "Llama 3 8B, MXFP8 cache": (CACHED | dict(kv_dtype="mxe4m3"), dict(descales="kv")),
    "Gemma 2 9B, NVFP4 cache of TensorRT-LLM": (
        dict(head_dim=256, heads_q=16, heads_kv=8, page_sizes=(16,), calls=("kvcache",), kv_dtype="e2m1",
             descales="kv", v_block_scale_layout="interleaved4", four_over_six=True),
        dict(descales="kv", v_block_scale_layout="interleaved4", four_over_six=True),
    ),
    "Gemma 2 9B, FP8 cache": (
        DENSE
        | dict(head_dim=256, heads_q=16, heads_kv=8, page_sizes=(16,), kv_dtype="e4m3", descales="kv")
        | dict(windows=(None, (4095, 0)), softcap=50.0),
        dict(descales="kv", windows=([-1, -1], [4095, 0]), softcap=50.0),
    ),
    "Llama 3 70B, all FP8": (
        DENSE | dict(head_dim=128, heads_q=64, heads_kv=8, page_sizes=(16,), dtype="e4m3"),
        dict(descales="qkv"),
    ),
    "DeepSeek V3, 8 GPUs": (
        dict(head_dim=576, heads_q=16, heads_kv=1, page_sizes=(64,), calls=("latent",)),
        {},
    ),
    "DeepSeek V3": (
        dict(head_dim=576, heads_q=128, heads_kv=1, page_sizes=(64,), calls=("latent",)),
        {},
    ),
    "DeepSeek V3, FP8 cache, queries of 16 bits": (
        dict(head_dim=576, heads_q=16, heads_kv=1, page_sizes=(64,), calls=("latent",),
             kv_dtype="e4m3", descales="kv", q_quantize="never"),
        dict(descales="k", q_quantize="never"),
    ),
    "DeepSeek V3.2 rows": (
        dict(head_dim=576, heads_q=16, heads_kv=1, page_sizes=(64,), calls=("latent_rows",)),
        {},
    ),
    "V3.2 lists": (dict(head_dim=576, heads_q=128, heads_kv=1, page_sizes=(1,), calls=("latent",), causal=False), {}),
    "DeepSeek V3.2 indexer": (
        dict(head_dim=128, heads_q=64, heads_kv=1, page_sizes=(64, 128), calls=("indexer",)),
        {},
    ),
    "Indexer of 24 heads": (
        dict(head_dim=128, heads_q=24, heads_kv=1, page_sizes=(8,), calls=("indexer",)),
        {},
    ),
    "Latent cache of 512 columns": (
        dict(head_dim=512, heads_q=128, heads_kv=1, page_sizes=(64,), calls=("latent",)),
        {},
    ),
    "DeepSeek V4 rows": (
        dict(head_dim=512, heads_q=128, heads_kv=1, page_sizes=(64,), calls=("latent_pages",)),
        {},
    ),
    "DeepSeek V4 lists": (
        dict(head_dim=512, heads_q=64, heads_kv=1, page_sizes=(64,), calls=("latent_pages",), causal=False, sink="f32"),
        dict(sink=True),
    ),
}  # fmt: skip

# Name in MODELS and in test_hf_config.PUBLISHED -> what vLLM's adapter calls for it without a cache and over one, and
# the calls that the list is asked for.
SERVICES = {
    "Llama 3 8B": ("packed", ("paged", "cascade"), ("packed", "paged", "cascade")),
    "GPT-OSS 20B": ("packed", ("paged", "cascade"), ("packed", "paged", "cascade")),
    "DeepSeek V3": ("prefill", ("latent",), None),
}
PREFILL = dict(heads_q=128, heads_kv=128, head_dim=192)  # of latent attention


def numbers(*shape, dtype=torch.int32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def lengths(draw) -> tuple[int, int, int]:
    """(sequences, queries of the longest, keys of the longest): decode, drafts, chunks of every length."""
    batch = draw.choice((1, 1, 2, 8, 33, 128, 256))
    few, chunk = draw.randint(1, 9), draw.choice((200, 256, 512, 1024, 2048))
    queries = draw.choice((1, few, draw.randint(1, 300), chunk, int(2 ** draw.uniform(0, 14))))
    queries = min(queries, TOKENS // batch)
    return batch, queries, queries + int(2 ** draw.uniform(0, 17)) * draw.randint(0, 1)


def splits(draw) -> dict:
    """As servers give them: chosen, none, a number, a fixed cut."""
    given = draw.choice(
        ({}, {"num_splits": 0}, {"num_splits": 1}, {"num_splits": 4}, {"fixed": 256})
    )
    return {"tokens_per_split": given["fixed"]} if "fixed" in given else given


def a_call(draw, model: dict, options: dict) -> None:
    """One call of one of the model's functions."""
    batch, queries, keys = lengths(draw)
    invariant = {"batch_invariant": options["batch_invariant"]}
    heads, heads_kv, depth = model["heads_q"], model["heads_kv"], model["head_dim"]
    page, of_8 = draw.choice(model["page_sizes"]), model.get("dtype") == "e4m3"
    wide = options.get("wide", BF16)  # of tensors of 16 bits
    dtype = E4M3 if of_8 else wide
    cache = E4M3 if "kv_dtype" in model else dtype
    table = numbers(batch, -(-keys // page) + draw.randint(0, 3))
    used, ends = numbers(batch), numbers(batch + 1)
    kind = draw.choice(model["calls"])
    if kind == "indexer":
        a_call_of_the_indexer(draw, heads, page, (batch, queries, keys))
        return
    if kind.startswith("latent"):
        rows = dict(dtype=torch.uint8) if kind == "latent_rows" else dict(dtype=cache)
        stored = numbers(table.numel(), page, 1, 656 if kind == "latent_rows" else depth, **rows)
        # rows of 576 bytes, then 8 for each, in pages a multiple of 576 apart
        if kind == "latent_pages":
            apart = -(-page * 584 // 576) * 576
            stored = numbers(table.numel(), apart, dtype=torch.uint8)[:, : page * 584]
            stored = stored.view(-1, page, 1, 584)
        q = numbers(min(batch, 64), queries, heads, depth, dtype=dtype)
        scales = {f"descale_{x}": numbers(1, dtype=torch.float32)
                  for x in "qk" if x in options.get("descales", "")}  # fmt: skip
        if of_8:
            vllm.flash_mla_with_kvcache_fp8(q, stored, table[:64], used[:64], 512, causal=True, **scales)  # fmt: skip
            return
        if page == 1:  # lists of keys
            invariant["return_max_logits"] = draw.random() < 0.5
            q, listed = q.flatten(0, 1), numbers(len(q) * queries, 1, 64)
            flash_mla_sparse_fwd(q, stored[:, 0], listed, 0.1, **invariant)
            return
        given = splits(draw) | invariant | scales
        given |= {"q_quantize": options["q_quantize"]} if "q_quantize" in options else {}
        if "sink" in options:  # lists of keys of one cache, or of two
            given |= dict(
                indices=numbers(len(q), queries, 64), attn_sink=numbers(heads, dtype=torch.float32)
            )
            if draw.random() < 0.5:
                given |= dict(extra_k_cache=stored, extra_indices_in_kvcache=given["indices"])
            flash_mla_with_kvcache(q, stored, None, None, **given)
            return
        flash_mla_with_kvcache(q, stored, table[:64], used[:64], causal=True, **given)
        return
    common = {name: numbers(1, dtype=torch.float32) for name in
              (f"{x}_descale" for x in options.get("descales", ""))}  # fmt: skip
    if "softcap" in options:
        common["softcap"] = options["softcap"]
    window = draw.choice(options.get("windows", ([-1, -1],)))
    sink = numbers(heads, dtype=wide) if "sink" in options else None
    # A mixed batch: one long sequence, and others of which most have one query.
    total = queries + sum(draw.choice((1, 1, draw.randint(1, queries))) for _ in range(batch - 1))
    if kind == "prefill":  # latent attention: new tokens, or a chunk of the context, which all see
        q, k, v = (numbers(total, heads, columns, dtype=wide) for columns in (depth, 128, 128))
        chunk = draw.random() < 0.5
        vllm.flash_attn_varlen_diff_headdims(
            q, vllm.concat_k_nope_k_pe(k, numbers(total, 1, 64, dtype=wide)), v,
            return_softmax_lse=chunk or draw.random() < 0.5, causal=not chunk,
            cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=queries, max_seqlen_k=queries,
        )  # fmt: skip
        return
    if kind == "kvcache":
        packed, new = draw.random() < 0.5, draw.random() < 0.5
        q_rows, new_rows = ((total,), (total,)) if packed else ((batch, queries),) * 2
        q = numbers(*q_rows, heads, depth, dtype=dtype)
        of_4, pages = model.get("kv_dtype") == "e2m1", (table.numel(), page, heads_kv)
        columns = dict(dtype=torch.uint8) if of_4 else dict(dtype=cache)
        k_cache, v_cache = (numbers(*pages, depth // (1 + of_4), **columns) for _ in "kv")
        given = dict(cu_seqlens_q=ends, max_seqlen_q=queries) if packed else {}
        block, powers = BLOCKS.get(model.get("kv_dtype"), (0, None))
        if block:
            given |= {
                f"{x}_block_scale": numbers(*pages, depth // block, dtype=powers) for x in "kv"
            }
            of_scales = "v_block_scale_layout", "four_over_six"
            given |= {name: options[name] for name in of_scales if name in options}
        if new:
            of_new = wide if block else draw.choice((cache, wide))
            given |= {x: numbers(*new_rows, heads_kv, depth, dtype=of_new) for x in "kv"}
            if packed:
                given["cu_seqlens_k_new"] = ends
        flash_attn_with_kvcache(
            q, k_cache, v_cache, cache_seqlens=used, page_table=table, causal=True,
            window_size=tuple(window), learnable_sink=sink, **given, **common, **splits(draw), **invariant,
        )  # fmt: skip
        return
    q = numbers(total, heads, depth, dtype=dtype)
    rows = (total,) if kind == "packed" else (table.numel(), page)
    k, v = (numbers(*rows, heads_kv, depth, dtype=cache) for _ in "kv")
    where = dict(cu_seqlens_k=ends) if kind == "packed" else dict(seqused_k=used, block_table=table)
    most = queries if kind == "packed" else keys
    out = numbers(*q.shape, dtype=wide)
    given = splits(draw)
    if kind == "cascade":  # a prefix that all queries see, as one sequence, or the keys after it
        given.pop("tokens_per_split", None)
        prefix = draw.random() < 0.5
        if prefix:
            ends, queries = numbers(2), total
            where = dict(seqused_k=used[:1], block_table=table[:1])
        vllm.flash_attn_varlen_func(
            q, k, v, queries, ends, most, **where, causal=not prefix, window_size=[-1, -1],
            s_aux=sink if prefix else None, return_softmax_lse=True, **common, **given,
        )  # fmt: skip
        return
    if "tokens_per_split" in given:  # which vLLM's signature has not
        flash_attn_varlen_func(
            q, k, v, ends, where.get("cu_seqlens_k"), queries, most,
            seqused_k=where.get("seqused_k"), page_table=where.get("block_table"), causal=True,
            window_size=tuple(window), learnable_sink=sink, out=out, **common, **given, **invariant,
        )  # fmt: skip
        return
    vllm.flash_attn_varlen_func(
        q, k, v, queries, ends, most, **where, causal=True, window_size=window, s_aux=sink,
        out=out, **common, **given,
    )  # fmt: skip


def a_call_of_the_indexer(draw, heads: int, page: int, sizes: tuple[int, int, int]) -> None:
    """Scores of a prefill or of a step over pages, or the keys with the highest ones."""
    batch, queries, keys = sizes
    clean, floats = {"clean_logits": draw.random() < 0.5}, dict(dtype=torch.float32)
    kind = draw.choice(("prefill", "pages", "top-k"))
    if kind == "top-k":
        rows, keys = draw.choice(((queries, keys), (2, 40000), (30, 40000), (60, 40000)))
        indexer.topk_indices(numbers(rows, keys, **floats), 2048, None, numbers(rows))
    elif kind == "prefill":
        q, k = numbers(queries, heads, 128, dtype=E4M3), numbers(keys, 128, dtype=E4M3)
        weights, ends = numbers(queries, heads, **floats), numbers(queries)
        indexer.fp8_mqa_logits(q, (k, numbers(keys, **floats)), weights, ends, ends, **clean)
    else:
        rows = (batch, min(queries, 40))
        lengths = numbers(*draw.choice((rows, rows[:1])))
        indexer.fp8_paged_mqa_logits(
            numbers(*rows, heads, 128, dtype=E4M3),
            numbers(99, page, 1, 132, dtype=torch.uint8),
            numbers(rows[0] * rows[1], heads, **floats),
            lengths,
            numbers(batch, -(-keys // page)),
            **clean,
        )


# Lists of blocks: fields of an entry, the layouts of its calls, options of these.
OF_LISTS = {
    "small": (dict(q_block=64, kv_block=96), {}, {}),
    "small, two query tiles": (dict(q_block=512, kv_block=16, score_mod="soft_cap(30.0)"), {}, dict(softcap=30.0)),
    "small, packed": (
        dict(q_block=16, kv_block=128),
        dict(q_layout="packed", kv_layout="packed"),
        dict(cu_seqlens_q=numbers(3), cu_seqlens_k=numbers(3), max_seqlen_q=200, max_seqlen_k=300),
    ),
    "small, lengths": (
        dict(q_block=48, kv_block=80), dict(seqused_k=True, seqused_q=True, fold_pages=False),
        dict(seqused_q=numbers(2), seqused_k=numbers(2)),
    ),
    "tiles": (dict(q_block=128, kv_block=256, full_blocks=True), {}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_LISTS)
def test_no_call_with_lists_asks_for_a_kernel_that_its_entry_lacks(name):
    """Nor its backward pass: kernels that convert lists are exported with those that read them."""
    fields, layouts, options = OF_LISTS[name]
    of_config = dict(head_dim=64, qkv_dtype="bf16", **fields, **layouts)
    backward = dict(head_dim=64, dtype="bf16", listed=True, packed=bool(layouts), dlse=True)
    backward |= dict(used="seqused_q" in layouts)
    listed = entry.configs_of("config", of_config, name)
    for config in listed:
        backward |= dict(score_mod=config.score_mod, mask_mod=config.mask_mod, aux=config.aux)
    listed += [BackwardConfig(backward.pop("dtype"), backward.pop("head_dim"), 64, **backward)]
    rows = (400,) if "cu_seqlens_q" in options else (2, 200)
    q, k = (numbers(*rows[:-1], n, 2, 64, dtype=BF16) for n in (200, 300))
    blocks = -(-200 // fields["q_block"]), -(-300 // fields["kv_block"])
    lists = (numbers(2, 1, blocks[0]), numbers(2, 1, *blocks)) * 2
    lists = BlockSparseTensors(*lists, block_size=(fields["q_block"], fields["kv_block"]))
    function = flash_attn_func if not layouts else flash_attn_varlen_func
    converts = {"tiles"} if "small" in name else set()
    sorts = {"longest"}
    cuts = {"cut"} if "cu_seqlens_q" not in options else set()
    for changes, makes in (
        (dict(longest_first=1), converts),  # work tiles for each SM
        (dict(longest_first=0), converts | sorts),
        (dict(cut_least_keys=1), converts | cuts),
    ):
        table = tuning.shipped().changed(**changes)
        with asked_for("sm_100a") as asked, tuning.using(table):
            function(q, k, k, block_sparse_tensors=lists, **options)
        assert asked and set(asked) <= set(with_conversions(listed))
        assert {c.makes for c in asked if isinstance(c, BlockListsConfig)} == makes
    of_backward = {
        c.makes for c in with_conversions(listed[-1:]) if isinstance(c, BlockListsConfig)
    }
    assert of_backward == {"kinds", "order", "longest"}


@pytest.mark.parametrize("of", ("batch-invariant", "scales of blocks"))
def test_entries_of_small_blocks_have_the_tiles_of_their_calls(of):
    """Of 256 queries where rows may not depend on other blocks of a tile, and where q and k have scales of blocks."""
    fields, options, dtype, size = {"batch_invariant": True}, {"batch_invariant": True}, BF16, 64
    if of == "scales of blocks":
        fields, dtype, size = {"qkv_dtype": "e4m3", "descales": "xy", "o_dtype": "bf16"}, E4M3, 128
        scales = numbers(2, 300, 2, 2, dtype=torch.float8_e8m0fnu)
        options = dict(q_descale=scales, k_descale=scales)
    of_config = dict(qkv_dtype="bf16", head_dim=64, q_block=size, kv_block=128) | fields
    listed = entry.configs_of("config", of_config, of)
    assert {config.q_block for config in listed} == {256}
    q = numbers(2, 300, 2, 64, dtype=dtype)
    blocks = -(-300 // size), 3
    lists = (numbers(2, 1, blocks[0]), numbers(2, 1, *blocks)) * 2
    with asked_for("sm_100a") as asked:
        given = BlockSparseTensors(*lists, block_size=(size, 128))
        flash_attn_func(q, q, q, block_sparse_tensors=given, **options)
    assert asked and set(asked) <= set(with_conversions(listed))


def missing(
    listed: set, calls: list, invariant: bool | None, monkeypatch, count: int, call=a_call
) -> dict:
    """-> {kernel that the list lacks: seed of a call of one of `calls` that asks for it}."""
    monkeypatch.setenv(VLLM, str(int(bool(invariant))))  # vLLM's adapter reads it
    repeat.clear()
    lacks = {}
    for seed in range(count):
        model, options = calls[seed % len(calls)]
        with asked_for("sm_100a") as asked:
            call(random.Random(seed), model, options | {"batch_invariant": invariant})
        assert asked
        lacks |= {config.name: seed for config in asked if config not in listed}
    return lacks


@pytest.mark.parametrize("invariant", [None, True])
@pytest.mark.parametrize("name", MODELS)
def test_no_call_asks_for_a_kernel_that_the_list_lacks(name, invariant, monkeypatch):
    """Also with batch_invariant=True, which chooses other kernels."""
    model, options = MODELS[name]
    listed = set(configs_for_model(**model, batch_invariant=invariant))
    assert not missing(listed, [(model, options)], invariant, monkeypatch, CALLS // len(MODELS))


@pytest.mark.parametrize("wide", [BF16, torch.float16])
@pytest.mark.parametrize("kv_dtype", [None, "e4m3"])
@pytest.mark.parametrize("name", SERVICES)
def test_no_call_of_a_service_asks_for_a_kernel_that_the_list_of_its_config_json_lacks(
    name, kv_dtype, wide, tmp_path, monkeypatch
):
    """With an FP8 cache q has 16 bits or, quantized by the service, 8; without a cache everything has 16."""
    model, options = MODELS[name]
    options = options | {"wide": wide}
    of_first, of_cached, asked = SERVICES[name]
    first, cached = {"calls": (of_first,)}, {"calls": of_cached}
    first |= PREFILL if of_first == "prefill" else {}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED[name][0] | {"torch_dtype": str(wide)}))
    page_size = model["page_sizes"][0]
    entries = hf_config.models_of(path, page_size=page_size, kv_dtype=kv_dtype, calls=asked)
    listed = {config for said in entries for config in entry.configs_of("model", said, name)}
    of_cache = [({}, {})]
    if kv_dtype is not None:
        of_cache = [
            ({"kv_dtype": kv_dtype}, {"descales": "kv"}),
            ({"dtype": kv_dtype}, {"descales": "qkv"}),
        ]
    calls = [(model | first, options)]
    calls += [(model | cached | dtypes, options | scales) for dtypes, scales in of_cache]
    assert not missing(listed, calls, None, monkeypatch, CALLS // len(MODELS))
