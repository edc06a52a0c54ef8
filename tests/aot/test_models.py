"""configs_for_model lists what the public functions ask for: recorded from calls, not written down twice."""

import itertools
from random import Random

import pytest
import torch

from cute_fa4 import (
    compile_cache,
    configs_for_model,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
)
from cute_fa4.compiler.policy import PAIR_VARIABLE
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint.bands import mask_fact

# name -> (arguments of configs_for_model, arguments of every call)
MODELS = {
    "grouped": (dict(heads_q=8, heads_kv=2), dict(causal=True)),
    "one group": (dict(heads_q=2, heads_kv=2), dict(causal=True)),
    "group 7": (dict(heads_q=7, heads_kv=1), dict(causal=True)),
    "window and sink": (
        dict(heads_q=4, heads_kv=2, windows=(None, (15, 0)), sink="bf16", return_lse=(True,)),
        dict(causal=True, window_size=(15, 0), learnable_sink=True, return_lse=True),
    ),
    "soft cap, no mask": (
        dict(heads_q=4, heads_kv=2, causal=False, softcap=50.0),
        dict(softcap=50.0),
    ),
    "latent, K concatenated": (
        dict(heads_q=2, heads_kv=2, head_dim=192, head_dim_v=128),
        dict(causal=True),
    ),
    "queries of 16 bits, a cache of 8": (
        dict(heads_q=8, heads_kv=2, kv_dtype="e4m3", descales=""),
        dict(causal=True),
    ),
    "the same of 256 columns": (
        dict(heads_q=8, heads_kv=2, head_dim=256, head_dim_v=256, kv_dtype="e4m3", descales=""),
        dict(causal=True),
    ),
}


def calls(
    heads_q, heads_kv, page, table_width, seqlen_q, depth=64, depth_v=64, of_cache=torch.bfloat16
):
    """Every public function on tensors of a model, as generators of (function, arguments)."""
    batch, dtype = 2, torch.bfloat16
    dense_q = torch.zeros(batch, seqlen_q, heads_q, depth, dtype=dtype)
    packed_q = torch.zeros(batch * seqlen_q, heads_q, depth, dtype=dtype)

    def k_and_v(*rows, dtype=of_cache):
        return [torch.zeros(*rows, heads_kv, d, dtype=dtype) for d in (depth, depth_v)]

    cu_q = torch.tensor([0, seqlen_q, 2 * seqlen_q], dtype=torch.int32)
    cu_k = torch.tensor([0, 40, 80], dtype=torch.int32)
    pages = k_and_v(batch * table_width, page)
    table = torch.arange(batch * table_width, dtype=torch.int32).view(batch, table_width)
    used = torch.full((batch,), seqlen_q, dtype=torch.int32)
    new = k_and_v(batch, 1, dtype=dtype)
    paged = dict(page_table=table, seqused_k=used)
    yield flash_attn_func, (dense_q, *k_and_v(batch, 40)), {}
    yield (
        flash_attn_varlen_func,
        (packed_q, *k_and_v(80)),
        dict(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k),
    )
    yield flash_attn_varlen_func, (packed_q, *pages), dict(cu_seqlens_q=cu_q, **paged)
    cached = dict(page_table=table, cache_seqlens=used)
    yield flash_attn_with_kvcache, (dense_q, *pages), cached
    if seqlen_q == 1:
        yield flash_attn_with_kvcache, (dense_q, *pages, *new), cached
        yield flash_attn_with_kvcache, (dense_q, *pages), cached | dict(num_splits=3)
        split = dict(cu_seqlens_q=cu_q, max_seqlen_q=1, tokens_per_split=128)
        yield flash_attn_varlen_func, (packed_q, *pages), split | paged
        wide = torch.zeros(
            batch, 1024 // page, dtype=torch.int32
        )  # enough keys for a stream-K split
        yield (
            flash_attn_with_kvcache,
            (dense_q, *pages),
            cached | dict(page_table=wide, num_splits=0),
        )


@pytest.mark.parametrize("name", MODELS)
def test_every_configuration_that_calls_ask_for_is_listed(name, monkeypatch):
    shape, options = MODELS[name]
    listed = configs_for_model(**{"head_dim": 64, "page_sizes": (16, 64), **shape})
    assert len(set(listed)) == len(listed)
    asked = set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    heads = shape["heads_q"], shape["heads_kv"]
    depths = shape.get("head_dim", 64), shape.get("head_dim_v", 64)
    depths += (torch.float8_e4m3fn if "kv_dtype" in shape else torch.bfloat16,)
    if options.get("learnable_sink"):
        options = {**options, "learnable_sink": torch.zeros(heads[0], dtype=torch.bfloat16)}
    # Pages of both sizes; table rows aligned to 16, 8 and 4 bytes; a decode step and a longer prefill.
    for page in (16, 64):
        for width in (4, 6, 5):
            for seqlen_q in (1, 300):
                if seqlen_q > page * width:
                    continue
                for function, tensors, more in calls(*heads, page, width, seqlen_q, *depths):
                    function(*tensors, **more, **options)
    assert len(asked) > 5
    assert asked <= set(listed)


def test_every_configuration_of_latent_calls_is_listed(monkeypatch):
    model = dict(head_dim=576, heads_q=24, heads_kv=1, calls=("latent",), page_sizes=(64, 16))
    listed, asked = configs_for_model(**model), set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    used = torch.full((2,), 9, dtype=torch.int32)
    for page, width, queries in itertools.product((64, 16), (1, 96), (1, 2, 8)):
        cache = torch.zeros(2 * width, page, 1, 576, dtype=torch.bfloat16)
        table = torch.arange(2 * width, dtype=torch.int32).view(2, width)
        q = torch.zeros(2, queries, 24, 576, dtype=torch.bfloat16)
        for splits in ({}, {"num_splits": 3}):
            flash_mla_with_kvcache(q, cache, table, used, causal=True, **splits)
            out = torch.empty(2, queries, 24, 512)  # a result that is merged with others
            flash_mla_with_kvcache(q, cache, table, used, causal=True, out=out, **splits)
    # Two page sizes, tiles of 32, 64 and 128 rows, whole, in parts and stream-K split, and merge kernels of two dtypes.
    assert asked == set(listed) and len(listed) == 2 * 3 * 3 + 4
    asked.clear()  # 8 bits, and keys by index
    e4m3, one = torch.zeros_like(cache, dtype=torch.float8_e4m3fn), torch.ones(1)
    q = torch.zeros(2, 1, 24, 576, dtype=torch.float8_e4m3fn)
    indices = torch.zeros(2, 1, 2048, dtype=torch.int32)
    flash_mla_with_kvcache(
        q, e4m3, None, None, descale_q=one, descale_k=one, indices=indices, num_splits=1
    )
    picked = configs_for_model(**model | {"page_sizes": (1,), "dtype": "e4m3", "causal": False})
    assert asked and asked <= set(picked)
    asked.clear()  # two caches
    q = q.bfloat16()
    flash_mla_with_kvcache(
        q, cache, None, None, indices=indices, extra_k_cache=cache, extra_indices_in_kvcache=indices
    )
    assert asked and asked <= set(configs_for_model(**model | dict(page_sizes=(1,), causal=False)))
    asked.clear()  # a scale for each row: 8 x 24 rows in tiles of 64, where others are pairs
    scales = dict(descale_q=one, descale_k=torch.ones(cache.shape[:2]))
    for queries in (1, 8):
        of_8 = torch.zeros(2, queries, 24, 576, dtype=torch.float8_e4m3fn)
        flash_mla_with_kvcache(of_8, e4m3, table, used, **scales, causal=True)
    of_rows = configs_for_model(**model | {"page_sizes": (16,), "dtype": "e4m3", "descales": "qKV"})
    assert len(asked) == 3 and asked <= set(of_rows)
    asked.clear()  # rows of 656 bytes, by index
    rows = torch.zeros(8, 64, 1, 656, dtype=torch.uint8)
    flash_mla_with_kvcache(q.bfloat16(), rows, None, None, indices=indices, is_fp8_kvcache=True)
    picked = configs_for_model(
        **model | dict(calls=("latent_rows",), page_sizes=(1,), causal=False)
    )
    assert asked and asked <= set(picked)
    with pytest.raises(ValueError, match="calls: 'latent' with head_dim 128, heads_kv 1"):
        configs_for_model(**model | {"head_dim": 128})


def test_a_sink_over_latent_pages_lists_what_calls_ask_for_and_no_more(monkeypatch):
    """Results of two caches are merged without it: of keys by index alone, for which each key is a page."""
    model = dict(head_dim=576, heads_q=24, heads_kv=1, calls=("latent",), sink="f32")
    listed, asked = configs_for_model(**model, page_sizes=(64,)), set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    sink, used = torch.zeros(24), torch.full((2,), 9, dtype=torch.int32)
    # Tiles of 32, 64 and 128 rows; few keys, and enough for a stream-K split; rounded results and those to be merged.
    for width, queries, splits in itertools.product((1, 96), (1, 2, 8), ({}, {"num_splits": 3})):
        cache = torch.zeros(2 * width, 64, 1, 576, dtype=torch.bfloat16)
        table = torch.arange(2 * width, dtype=torch.int32).view(2, width)
        q = torch.zeros(2, queries, 24, 576, dtype=torch.bfloat16)
        call = dict(causal=True, learnable_sink=sink, **splits)
        for out in (None, torch.empty(2, queries, 24, 512)):
            flash_mla_with_kvcache(q, cache, table, used, out=out, **call)
    assert asked == set(listed)
    asked.clear()
    by_index = dict(indices=torch.zeros(2, 1, 2048, dtype=torch.int32), learnable_sink=sink)
    second = dict(extra_k_cache=cache, extra_indices_in_kvcache=by_index["indices"])
    flash_mla_with_kvcache(q[:, :1], cache, None, None, **by_index, **second)
    assert asked and asked <= set(configs_for_model(**model, page_sizes=(1,), causal=False))


def test_what_no_kernel_runs_is_refused_with_the_reasons():
    with pytest.raises(ValueError, match="qk_depth=50"):
        configs_for_model(head_dim=50, heads_q=2, heads_kv=2)
    with pytest.raises(ValueError, match="heads_q: 3 with heads_kv 2"):
        configs_for_model(head_dim=64, heads_q=3, heads_kv=2)
    with pytest.raises(ValueError, match="calls: .*training.*accepted: dense"):
        configs_for_model(head_dim=64, heads_q=2, heads_kv=2, calls=("training",))
    with pytest.raises(ValueError, match="'cascade' with windows=.*accepted: None among them"):
        configs_for_model(
            head_dim=64, heads_q=2, heads_kv=2, calls=("cascade",), windows=((4095, 0),)
        )


def test_calls_with_scales_of_blocks_are_listed(monkeypatch):
    """Prefill and one query, dense, packed and in pages, all of one family; never under queries of 16 bits."""
    model = dict(head_dim=128, heads_q=8, heads_kv=2, descales="xyv")
    listed = set(configs_for_model(**model, dtype="e4m3"))
    asked = set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    of_8 = {"dtype": torch.float8_e4m3fn}
    for rows in (1, 300):
        q, k = torch.zeros(2, rows, 8, 128, **of_8), torch.zeros(2, rows, 2, 128, **of_8)
        pages = torch.zeros(40, 16, 2, 128, **of_8)
        table = torch.arange(40, dtype=torch.int32).view(2, 20)
        used, ends = (torch.tensor(x, dtype=torch.int32) for x in ([rows] * 2, [0, rows, 2 * rows]))

        def scales(q, k):
            sizes = ((*x.shape[:-1], 4) for x in (q, k))
            of_q, of_k = (torch.zeros(size, dtype=torch.float8_e8m0fnu) for size in sizes)
            return dict(causal=True, q_descale=of_q, k_descale=of_k, v_descale=torch.ones(1))

        flash_attn_func(q, k, k, **scales(q, k))
        flash_attn_varlen_func(
            *(x.flatten(0, 1) for x in (q, k, k)), ends, ends, rows, rows,
            **scales(q.flatten(0, 1), k.flatten(0, 1)),
        )  # fmt: skip
        cached = dict(cache_seqlens=used, page_table=table)
        flash_attn_with_kvcache(q, pages, pages, **cached, **scales(q, pages))
    kernels = {config for config in asked if hasattr(config, "schedule")}
    assert asked <= listed and {config.schedule.family for config in kernels} == {"mhamx"}
    with pytest.raises(ValueError, match="descales: 'xyv' with kv_dtype='e4m3'"):
        configs_for_model(**model, kv_dtype="e4m3")


def test_prefill_with_columns_that_all_heads_share_is_listed(monkeypatch):
    """DeepSeek's 128 + 64: rows and pages of k_rope, few queries and many; caches of keys are refused."""
    model = dict(head_dim=192, head_dim_v=128, heads_q=2, heads_kv=2, rope_depth=64)
    listed = configs_for_model(**model, calls=("dense", "packed"), rope_page_sizes=(64,))
    asked = set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    for rows in (4, 300):
        q, k = (torch.zeros(1, rows, 2, d, dtype=torch.bfloat16) for d in (192, 128))
        flash_attn_func(q, k, k, k_rope=k[:, :, 0, :64], causal=True)
        ends = torch.tensor([0, rows], dtype=torch.int32)
        table = torch.zeros(1, 5, dtype=torch.int32)
        pages = dict(k_rope=k.new_zeros(1, 64, 64), k_rope_page_table=table)
        for rope in (dict(k_rope=k[0, :, 0, :64]), pages):
            flash_attn_varlen_func(q[0], k[0], k[0], ends, ends, rows, rows, causal=True, **rope)
    assert len(asked) == 6 and asked <= set(listed)
    narrow = set(configs_for_model(**model, calls=("dense",), rope_dtype="e4m3"))
    asked.clear()
    flash_attn_func(q, k, k, k_rope=k[:, :, 0, :64].to(torch.float8_e4m3fn), causal=True)
    assert len(asked) == 1 and asked <= narrow
    narrow = configs_for_model(**model, calls=("dense",), rope_dtype="e4m3", scale_dtype="f32")
    asked.clear()
    rope = dict(k_rope=k[:, :, 0, :64].to(torch.float8_e4m3fn), k_rope_descale=torch.ones(1, rows))
    flash_attn_func(q, k, k, **rope, causal=True)
    assert len(asked) == 1 and asked <= set(narrow)
    # 16 bits beside e4m3, as two tensors of q and as one that the call takes apart
    of_8, rope = {"dtype": torch.float8_e4m3fn}, k[:, :, 0, :64]
    k8, scale = k.to(**of_8), torch.ones(1, rows, 2)
    for apart, of_model in ((True, dict(dtype="e4m3")), (False, dict(kv_dtype="e4m3"))):
        beside = set(
            configs_for_model(
                **model, **of_model, calls=("dense",), rope_dtype="bf16", descales="QK"
            )
        )
        asked.clear()
        given = dict(q=k8, q_rope=q[..., :64], q_descale=scale) if apart else dict(q=q)
        flash_attn_func(**given, k=k8, v=k8, k_rope=rope, k_descale=scale, causal=True)
        assert len(asked) == 1 and asked <= beside
    # the same, with all columns of q in 16 bits, and k_rope of either width
    for rope_dtype in (None, "bf16"):
        of_model = dict(kv_dtype="e4m3", rope_dtype=rope_dtype, q_quantize="never", descales="k")
        beside = set(configs_for_model(**model, **of_model, calls=("dense",)))
        given = dict(k_rope=rope if rope_dtype else rope.to(**of_8), k_descale=scale[0, :1, :1])
        asked.clear()
        flash_attn_func(q, k8, k8, **given, causal=True, q_quantize="never")
        assert [c.schedule.family for c in asked] == ["mhawidewiden"] and asked <= beside
    with pytest.raises(ValueError, match="'dense', 'packed'"):
        configs_for_model(**model)


def training_calls(draw, heads_q, heads_kv, options: dict) -> None:
    """One call that wants gradients, and its backward pass: any lengths, dense or packed."""
    queries, keys = draw.randint(1, 400), draw.randint(1, 400)
    batch, of_batch = draw.randint(1, 3), {}
    shapes = [
        (batch, queries, heads_q, 64),
        (batch, keys, heads_kv, 64),
        (batch, keys, heads_kv, 64),
    ]
    function = flash_attn_func
    if draw.random() < 0.5:
        function = flash_attn_varlen_func
        shapes = [(rows * number, *rest) for number, rows, *rest in shapes]
        for name, rows in (("q", queries), ("k", keys)):
            of_batch[f"cu_seqlens_{name}"] = torch.arange(batch + 1, dtype=torch.int32) * rows
            of_batch[f"max_seqlen_{name}"] = rows
    q, k, v = (torch.zeros(s, dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    found = function(q, k, v, **of_batch, **options)
    results = found if isinstance(found, tuple) else (found,)
    used = draw.choice((results, results[:1]))  # a log-sum-exp need not have a gradient
    torch.autograd.grad([x.sum() for x in used], (q, k, v))


@pytest.mark.parametrize("name", ["grouped", "window and sink", "soft cap, no mask"])
def test_every_configuration_that_training_asks_for_is_listed(name, monkeypatch):
    """CUTE_FA4_JIT=error would refuse any other. Thirty calls: each of both layouts, with and without dlse, often."""
    shape, options = MODELS[name]
    listed = configs_for_model(
        **{"head_dim": 64, "calls": ("dense", "packed"), "training": True, **shape}
    )
    asked = set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    if options.get("learnable_sink"):
        options = {**options, "learnable_sink": torch.zeros(shape["heads_q"], dtype=torch.bfloat16)}
    for seed in range(30):
        training_calls(Random(seed), shape["heads_q"], shape["heads_kv"], options)
    assert asked <= set(listed)
    backward = [config for config in asked if isinstance(config, BackwardConfig)]
    assert {config.packed for config in backward} == {False, True}
    assert {config.dlse for config in backward} == {False, *shape.get("return_lse", ())}


@pytest.mark.parametrize("word", ["auto", "on", "off"])
def test_training_has_the_pairs_of_ctas_that_calls_ask_for(word, monkeypatch):
    """Head dim 256, and one kernel of all gradients at 128, by default; windows where asked."""
    monkeypatch.setenv(PAIR_VARIABLE, word)
    asked = set()

    def record(config, executor):
        asked.add(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    listed = set()
    for head_dim in (128, 256):
        shape = dict(head_dim=head_dim, heads_q=1, heads_kv=1, calls=("dense",), training=True)
        for given in (dict(causal=False), dict(windows=(None, (8, 0)))):
            listed |= {*configs_for_model(**shape, **given)}
        for options in (dict(), dict(causal=True), dict(causal=True, window_size=(8, 0))):
            q, k, v = torch.zeros(3, 1, 2, 1, head_dim, dtype=torch.bfloat16).unbind()
            q.requires_grad_()
            flash_attn_func(q, k, v, **options).sum().backward()
    found = {config for config in asked if isinstance(config, BackwardConfig)}
    assert found <= listed
    by_mask = {
        (config.depth, mask_fact(config.mask)): (config.pairs, config.joint) for config in found
    }
    wide, narrow, others = (
        [(256, "Full"), (256, "Causal")],
        [(128, "Full"), (128, "Causal")],
        [(256, "other"), (128, "other")],
    )
    on_pairs = dict.fromkeys(wide, word != "off") | dict.fromkeys(others, word == "on")
    expected = {problem: (pairs, False) for problem, pairs in on_pairs.items()}
    assert by_mask == expected | dict.fromkeys(narrow, (False, word != "off"))


def test_queries_that_are_quantized_before_the_call_have_the_dtype_of_the_cache():
    shape = dict(head_dim=64, heads_q=8, heads_kv=2, calls=("paged", "kvcache"))
    before = configs_for_model(**shape, dtype="fp16", kv_dtype="e4m3", q_quantize="before")
    assert before == configs_for_model(**shape, dtype="e4m3", o_dtype="fp16")
    with pytest.raises(ValueError, match="q_quantize: 'now'; accepted: 'auto', 'never', 'before'"):
        configs_for_model(**shape, kv_dtype="e4m3", q_quantize="now")
    for kv_dtype in (None, "e2m1"):
        with pytest.raises(
            ValueError, match="'before' with kv_dtype=.*accepted: kv_dtype e4m3 or e5m2"
        ):
            configs_for_model(**shape, kv_dtype=kv_dtype, q_quantize="before")


def test_a_model_without_a_backward_pass_is_refused_by_name():
    model = dict(head_dim=64, heads_q=2, heads_kv=2, training=True)
    for wrong, text in (
        (dict(head_dim=272), "depth=272: use a multiple of 8"),
        (dict(dtype="e4m3"), "dtype='e4m3': use 'bf16'"),
        (dict(calls=("paged",)), "accepted: 'dense', 'packed'"),
    ):
        with pytest.raises(ValueError, match=f"^training: True and .*{text}"):
            configs_for_model(**model | wrong)
