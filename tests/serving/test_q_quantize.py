"""q_quantize: what becomes of queries of 16 bits over keys of 8, and on what the error of a row may depend.

A batch of decode and prefill: one query, 40 queries, one query. 40 queries of four heads on two are 80 rows a
key/value head, more than the 32 that "auto" takes as they are, so that it quantises all of them.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import (
    capabilities,
    configs_for_model,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
)
from cute_fa4.calls import repeat
from cute_fa4.calls.queries import Asked, quantised, stay_wide
from cute_fa4.integrations import vllm
from cute_fa4.sm100.choose.config import FA4Config
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    attention,
    packed_kv,
    packed_q,
    paged_kv,
    positions,
    run,
    split,
    storages,
)
from tests.suite import turns

QUERIES, KEYS = (1, 40, 1), (200, 150, 129)
BOUND = 4e-3  # of a row in the norm, with q, P and out of 16 bits
pytestmark = pytest.mark.filterwarnings("ignore")


def drawn(depth: int = 64, depth_v: int | None = None, **more) -> Batch:
    batch = Batch.draw(QUERIES, KEYS, heads=(4, 2), depth=depth, depth_v=depth_v, **more)
    return Batch(batch.q, *([x.to(FP8[0]) for x in xs] for xs in (batch.k, batch.v)))


BATCH = drawn()
DEPTHS = ((64, 64), (192, 128), (256, 256), (80, 224), (144, 32))  # of q and k, of v


def only(batch: Batch, number: int) -> Batch:
    return Batch(*([xs[number]] for xs in (batch.q, batch.k, batch.v)))


def errors(batch: Batch, out, lse) -> list[float]:
    """Of the worst row of each sequence: the norm of its error over its own."""
    found = []
    for b, (o, _) in enumerate(split(batch, out, lse)):
        p, j = positions(batch.queries[b], batch.keys[b])
        exact, _, _ = attention(batch.q[b], batch.k[b], batch.v[b], visible=j <= p)
        found.append(float(((o.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max()))
    return found


# --- entry points: each takes a batch in pages, and options


def _out(batch: Batch) -> torch.Tensor:
    shape = *packed_q(batch)["q"].shape[:-1], batch.v[0].shape[-1]
    return torch.full(shape, 7.0, dtype=batch.q[0].dtype)


def varlen(batch: Batch, **options):
    call = packed_q(batch) | paged_kv(batch, 16)
    return flash_attn_varlen_func(**call, causal=True, out=_out(batch), return_lse=True, **options)


def kvcache(batch: Batch, **options):
    call = packed_q(batch) | paged_kv(batch, 16)
    call |= {"k_cache": call.pop("k"), "v_cache": call.pop("v")}
    call["cache_seqlens"] = call.pop("seqused_k")
    return flash_attn_with_kvcache(**call, causal=True, out=_out(batch), return_lse=True, **options)


def compiled(batch: Batch, **options):
    torch.compiler.reset()
    call = packed_q(batch) | paged_kv(batch, 16) | {"out": _out(batch)}
    graph = torch.compile(flash_attn_varlen_func, backend="aot_eager", fullgraph=True)
    return graph(**call, causal=True, return_lse=True, **options)


def of_vllm(batch: Batch, **options):
    """Whose function has no such parameter: the environment says it."""
    call = packed_q(batch) | paged_kv(batch, 16)
    call["block_table"] = call.pop("page_table")
    del call["kv_layout"]
    named = dict(
        max_seqlen_k=max(batch.keys), num_splits=1, out=_out(batch), return_softmax_lse=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTE_FA4_FP8_QUERIES", options.pop("q_quantize"))
        repeat.clear()
        return vllm.flash_attn_varlen_func(**call, causal=True, **named, **options)


@pytest.mark.parametrize("entry", [varlen, kvcache, compiled, of_vllm])
def test_never_is_the_error_of_16_bits_in_every_row_and_auto_that_of_8_in_all(entry):
    """All make the same call, of one kernel."""
    never = errors(BATCH, *entry(BATCH, q_quantize="never"))
    assert max(never) <= BOUND
    if entry is varlen:
        auto = errors(BATCH, *entry(BATCH, q_quantize="auto"))
        assert min(auto) > 4 * BOUND
        assert (
            max(errors(only(BATCH, 0), *entry(only(BATCH, 0)))) <= BOUND
        )  # alone it is not quantised


@pytest.mark.parametrize("depth, depth_v", turns.by_turns(DEPTHS))
def test_never_is_the_error_of_16_bits_at_every_pair_of_head_dims(depth, depth_v):
    batch = drawn(depth, depth_v)
    assert max(errors(batch, *varlen(batch, q_quantize="never"))) <= BOUND


@pytest.mark.parametrize(
    "said, depths", [(None, (64, 64)), ("never", (64, 64)), (None, (192, 128))]
)
def test_fixed_parts_give_a_row_the_same_bits_beside_any_neighbours(said, depths):
    """By default: with tokens_per_split, "never" is the default."""
    batch = drawn(*depths)
    options = dict(tokens_per_split=128, q_quantize=said)
    together = split(batch, *varlen(batch, **options))
    assert max(errors(batch, *varlen(batch, **options))) <= BOUND
    for number, (out, lse) in enumerate(together):
        one = only(batch, number)
        [(alone, alone_lse)] = split(one, *varlen(one, **options))
        assert torch.equal(out, alone) and torch.equal(lse, alone_lse)


def is_kept(q, **given) -> bool:
    """The result of a call without q_quantize for 40 queries of four heads on two."""
    return stay_wide(q, Asked.of(2, given))


@pytest.mark.parametrize("depth", [64, 192, 256])
def test_nobody_asks_and_a_row_depends_on_no_other_sequence(depth, monkeypatch):
    """Where every sequence has as many queries, "auto" asks nothing of the others."""
    dense = torch.zeros(3, 40, 4, depth, dtype=torch.bfloat16)
    offsets, used = torch.tensor([0, 40, 80, 120]), torch.tensor([1, 40, 1])
    packed, cut = dense.flatten(0, 1), dict(tokens_per_split=128)
    assert [is_kept(dense), is_kept(dense, **cut)] == [False, True]
    assert is_kept(packed, cu_seqlens_q=offsets) and is_kept(dense, seqused_q=used)
    for said, kept in (("never", [True, True]), ("quantised", [False, False])):
        monkeypatch.setenv("CUTE_FA4_FP8_QUERIES", said)
        assert [is_kept(dense), is_kept(packed, cu_seqlens_q=offsets)] == kept


def test_what_no_kernel_keeps_is_quantised_where_nobody_asks():
    """Where lengths of queries differ; beyond 128 columns no kernel that dequantizes keys has their own scales."""
    offsets = dict(cu_seqlens_q=torch.tensor([0, 40, 80]))
    for depth, kept in ((128, True), (192, False)):
        q, of_keys = torch.zeros(80, 4, depth).bfloat16(), torch.ones(2, 64, 2)
        assert is_kept(q, **offsets, k_descale=of_keys) is kept
        assert is_kept(q, **offsets, k_descale=torch.ones(2, 2), v_descale=torch.ones(1))
    q = torch.zeros(80, 4, 192).bfloat16()
    kept = {
        64: True,
        48: False,
        128: False,
    }  # columns of k_rope, after a multiple of 64 columns of k or not
    for columns, expected in kept.items():
        k_rope = torch.zeros(2, 64, columns).to(FP8[0])
        assert stay_wide(q, Asked.of(2, offsets), k_rope) is expected


@pytest.mark.parametrize("said", [None, "never"])
def test_keys_with_scales_of_their_own_keep_the_accuracy_of_every_row(said):
    """Any number of rows in tiles of 32; the rows alone of a prefill are in the same batch as those of decode."""
    keys = [0.5 + torch.rand(n, 2, generator=torch.Generator().manual_seed(n)) for n in KEYS]
    of_q, of_k = packed_q(BATCH), packed_kv(BATCH)
    scale = torch.cat([*keys, torch.full((len(of_k["k"]) - sum(KEYS), 2), torch.nan)])
    out, lse = run(of_q, of_k, causal=True, q_quantize=said, k_descale=scale, v_descale=scale)
    assert_agrees(BATCH, out, lse, visible=lambda p, j: j <= p, scales=[None, keys, keys])


def test_quantising_gives_the_bits_of_its_formula_in_few_operations():
    """Rows of zeros, with an infinity, whose quotients are 0 and NaN, and of numbers whose scale would be a subnormal.
    With a NaN a row is NaN."""
    q = torch.randn(1, 7, 2, 64, generator=torch.Generator().manual_seed(0)).bfloat16() * 100
    q[0, 1], q[0, 2, 0, 5], q[0, 3, 1, 7], q[0, 4] = 0, torch.nan, torch.inf, 2.0**-130
    for dtype in FP8:
        k = torch.empty(1, 1, 2, 64, dtype=dtype)
        largest = torch.finfo(dtype).max
        q8, scale, _ = quantised(q, k, k, None, None)
        wide = q.float()
        expected = wide.abs().amax(-1, keepdim=True) / largest
        expected = torch.where(expected > 0, expected, 1.0)
        codes = (wide / expected).clamp(-largest, largest).to(dtype)
        usual = [0, 1, 3, 5, 6]
        assert torch.equal(
            q8[0, usual].float().nan_to_num(1e9), codes[0, usual].float().nan_to_num(1e9)
        )
        assert q8[0, 2, 0].float().isnan().all() and q8[0, 2, 1].float().isfinite().all()
        found = q8[0, 4].float() * scale[0, 4]
        assert torch.allclose(found, wide[0, 4], rtol=2**-3, atol=2.0**-133)


@pytest.mark.parametrize("kind", ["dense", "packed"])
def test_rows_of_other_storages_and_a_dense_call(kind):
    of_q, of_k = storages(BATCH, kind)
    out = torch.full(of_q["q"].shape, 7.0, dtype=of_q["q"].dtype)
    named = dict(causal=True, out=out, return_lse=True, q_quantize="never")
    out, lse = flash_attn_varlen_func(**of_q, **of_k, **named)
    assert max(errors(BATCH, out, lse)) <= BOUND
    if kind == "dense":
        one = only(BATCH, 1)
        q, k, v = (x[0][None] for x in (one.q, one.k, one.v))
        out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True, q_quantize="never")
        p, j = positions(QUERIES[1], KEYS[1])
        exact, _, _ = attention(q[0], k[0], v[0], visible=j <= p)
        assert ((out[0].double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max() <= BOUND


def tensors(head_dim: int = 64) -> tuple:
    q = torch.zeros(1, 40, 4, head_dim, dtype=torch.bfloat16)
    k, v = (torch.zeros(1, 64, 2, head_dim, dtype=FP8[0]) for _ in "kv")
    return q, k, v


ONE_ROW = dict(dtype="bf16", kv_dtype="e4m3", causal=True, return_lse=False, arch="sm_100a")
NEVER = dict(q_quantize="never")
REFUSED = {
    "another word": (64, dict(q_quantize="always"), "'always'; accepted: 'auto', 'never', or None"),
    "wider heads": (
        264, NEVER,
        r"'never' with a head_dim of 264 \(kernels: a multiple of 16 up to 256\).*accepted: None or 'auto'.*or k and v",
    ),
    "a gap before k_rope": (
        128, NEVER | dict(k_rope=torch.zeros(1, 64, 48).to(FP8[0])),
        "'never' with k_rope .*48 of 128 columns .*after a multiple of 64",
    ),
    "k_rope of another dtype": (
        128, NEVER | dict(k_rope=torch.zeros(1, 64, 64).half()),
        "'never' with k_rope of torch.float16 .*of 8 bits or torch.bfloat16",
    ),
    "scales of keys": (
        192, NEVER | dict(k_descale=torch.ones(1, 64, 2)), "'never' with a scale for each key .*up to 128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_stay_is_refused_and_capabilities_says_so(name):
    head_dim, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"q_quantize: {message}"):
        flash_attn_func(*tensors(head_dim), **options)
    sizes = dict(group=2, heads_kv=2, batch=1, seqlen_q=40, seqlen_k=64)
    [row] = capabilities(head_dim=head_dim, head_dim_v=64, **sizes, **ONE_ROW, **options)
    assert not row.runs and row.reasons[0].startswith("q_quantize: ")


def test_the_value_is_checked_where_nothing_would_be_quantised():
    q = torch.zeros(1, 4, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="q_quantize: 8; accepted"):
        flash_attn_func(q, q, q, q_quantize=8)


@pytest.mark.parametrize("group", [1, 8, 64])
@pytest.mark.parametrize("depth", [128, 192, 256])
def test_lists_of_a_model_have_the_kernels_of_queries_that_stay(group, depth):
    of = dict(head_dim=depth, descales="", calls=("packed",))
    found = configs_for_model(heads_q=group, heads_kv=1, kv_dtype="e4m3", **of)
    dequantized = [c for c in found if isinstance(c, FA4Config) and c.kv_dtype]
    few = ["mhawiden"] * (group <= 32 and depth <= 128)  # a tile of 32 rows holds whole groups
    many = "mhawiden2q" if depth <= 128 else "mhawidewiden"
    assert sorted({c.schedule.family for c in dequantized}) == [*few, many]
    assert all(c.kv_dtype for c in found if isinstance(c, FA4Config))  # nothing is quantised
    [row] = capabilities(head_dim=depth, group=group, seqlen_q=400, **ONE_ROW, **NEVER)
    assert row.families == (many,)


# --- a latent cache of 8-bit columns, whose function quantises unless it is told otherwise


LATENT = dict(head_dim=576, heads_q=16, heads_kv=1, kv_dtype="e4m3", calls=("latent",))


def of_latent(**options) -> float:
    """The error of the worst row of a call of 16 heads."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1, 16, 576, generator=generator).bfloat16()
    cache = torch.randn(2, 64, 1, 576, generator=generator).to(FP8[0])
    table, used = torch.tensor([[1, 0]], dtype=torch.int32), torch.tensor([70], dtype=torch.int32)
    out, _ = flash_mla_with_kvcache(q, cache, table, used, num_splits=1, **options)
    k = cache[[1, 0], :, 0].flatten(0, 1)[:70].double()
    exact = (q[0, 0].double() @ k.T * 576**-0.5).softmax(-1) @ k[:, :512]
    return float(((out[0, 0].double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max())


@pytest.mark.parametrize("said, variable, stays", [
    ("never", "auto", True), (None, "never", True), ("auto", "never", False), (None, "auto", False),
])  # fmt: skip
def test_over_a_latent_cache_calls_and_lists_decide_alike(said, variable, stays, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_FP8_QUERIES", variable)
    repeat.clear()
    found = configs_for_model(**LATENT, q_quantize=said)
    families = {c.schedule.family for c in found if isinstance(c, FA4Config)}
    assert families == ({"mla_widen", "mla_widenpair"} if stays else {"mla_decode", "mla_pair"})
    of_one = dict(latent=True, group=16) | ONE_ROW
    [row] = capabilities(**of_one, q_quantize=said)
    assert row.families == ("mla_widen" if stays else "mla_decode",)
    error = of_latent(q_quantize=said)
    assert error <= BOUND if stays else error > 4 * BOUND


def test_under_torch_compile_a_latent_cache_is_dequantised():
    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch:
        graph = torch.compile(flash_mla_with_kvcache, backend="aot_eager", fullgraph=True)
        patch.setitem(globals(), "flash_mla_with_kvcache", graph)
        assert of_latent(q_quantize="never") <= BOUND


def test_over_a_latent_cache_another_word_is_refused():
    with pytest.raises(
        ValueError, match="q_quantize: 'always'; accepted: 'auto', 'never', or None"
    ):
        of_latent(q_quantize="always")
    with pytest.raises(ValueError, match="q_quantize: 'always'"):
        capabilities(latent=True, q_quantize="always")
