"""Scales of each token and head of 8-bit k and v (and q): calls against attention in float64 of what they mean.

Unused rows are NaN, and so are their scales. Lengths are 0, or end before, at and after a tile of 128 keys; scales
differ from token to token by factors of e, so that the scale of a neighbor shows.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import (
    capabilities,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from cute_fa4.reference import attention_float64
from cute_fa4.sm100.choose.config import FA4Config, Pair
from tests import pairwise
from tests.serving.batches import (
    FP8,
    Batch,
    assert_agrees,
    dense,
    int32,
    packed,
    paged_kv,
    run,
    storages,
)
from tests.serving.test_masks import MASKS

E4M3, E5M2 = FP8


def draw(batch: Batch, letters: str, seed: int = 0) -> dict:
    """name -> a scale (length, heads) for each sequence: e^N(0, 1), of v around 2^-9."""
    generator = torch.Generator().manual_seed(seed)
    rows = dict(q=batch.q, k=batch.k, v=batch.v)
    return {
        name: [
            torch.exp(torch.randn(x.shape[:2], generator=generator))
            * (2.0**-9 if name == "v" else 0.5)
            for x in rows[name]
        ]
        for name in letters
    }


def as_stored(name: str, scales: list, storage, layout: str, batch: Batch) -> torch.Tensor:
    """Of sequences' tokens -> as their tensor is stored, without head_dim, or of a packed one with 1."""
    with_depth = [x[..., None] for x in scales]
    if name == "q":
        return (
            dense(with_depth, max(batch.queries)) if storage == "dense" else packed(with_depth)
        ).squeeze(-1)
    if storage == "dense":
        return dense(with_depth, max(batch.keys) + 3).squeeze(-1)
    if storage == "packed":
        return packed(with_depth)
    pages = Batch(batch.q, with_depth, with_depth)
    return paged_kv(pages, storage, layout)["k"].squeeze(-1)


def called(batch: Batch, given: dict, storage, layout="NHD", **options) -> tuple:
    """The call with these scales -> (out, lse)."""
    names = {f"{x}_descale": as_stored(x, s, storage, layout, batch) for x, s in given.items()}
    return run(*storages(batch, storage, layout), names, **options)


OPTIONS = {
    "letters": ("k", "v", "qkv"),
    "storage": ("dense", "packed", (5, "NHD"), (16, "HND")),  # pages are gathered, or come in boxes
    "queries": ((200, 140), (20, 9), (1, 1)),  # two query tiles, one, a tile of few rows
    "mask": ("causal", "window or chunked"),
    "group": (1, 4),
    "tensors": ((E4M3, 128, 128), (E5M2, 80, 16), (E4M3, 64, 64)),
    "parts": (1, 2),
}
# Of these plain pytest runs one that has the ring of scales, and the merge of two units.
QUICK = dict(letters="qkv", storage="packed", queries=(20, 9), tensors=(E5M2, 80, 16))
CASES = pairwise.of_pairs(OPTIONS, QUICK)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(tuple(OPTIONS), CASES)
def test_options_together_agree_with_float64(
    letters, storage, queries, mask, group, tensors, parts
):
    options, visible = MASKS[mask]
    storage, layout = storage if isinstance(storage, tuple) else (storage, "NHD")
    dtype, depth, depth_v = tensors
    keys = [280, 129]
    batch = Batch.draw(
        queries, keys, heads=(2 * group, 2), depth=depth, depth_v=depth_v, dtype=dtype
    )
    given = draw(batch, letters)
    out, lse = called(
        batch, given, storage, layout, num_splits=parts, mode="hostile", seed=1, **options
    )
    meant = [given.get(name, [None] * 2) for name in "qkv"]
    assert_agrees(batch, out, lse, visible=visible, scales=meant)


def of_each_row(x: torch.Tensor) -> torch.Tensor:
    """What append divides the rows of a tensor (..., depth) by: float32, 1 for a row of zeros."""
    scale = x.float().abs().amax(-1) / 448
    return torch.where(scale == 0, 1.0, scale)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "queries, traced",
    [
        (3, False),
        pytest.param(40, False, marks=pytest.mark.sweep),
        pytest.param(3, True, marks=pytest.mark.sweep),
    ],
)
def test_new_rows_get_scales_of_their_own_that_the_call_writes(queries, traced):
    """Bit by bit, with a row of zeros; the other scales of the cache stay, and out is that of what was stored.

    Few queries of 16 bits run over the cache as they are (mhawiden), more are quantised. traced: in a graph
    """
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(2, queries, 2, 64, generator=generator).bfloat16() for _ in "kv"]
    rows[0][0, 1], rows[1][1] = 0, rows[1][1] * 100
    caches = torch.randn(2, 7, 16, 2, 64, generator=generator).to(E4M3)
    scales = torch.full((2, 7, 16, 2), 7.0)
    table = torch.randperm(7, generator=generator)[:6].view(2, 3).int()
    before, held = scales.clone(), torch.tensor([5, 0], dtype=torch.int32)
    stored_before = caches.clone()
    q = torch.randn(2, queries, 4, 64, generator=generator).bfloat16()
    call = flash_attn_with_kvcache
    if traced:
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    out = call(
        q, *caches, *rows, cache_seqlens=held, page_table=table, causal=True,
        k_descale=scales[0], v_descale=scales[1],
    )  # fmt: skip
    for cache, scale, old, old_scale, new in zip(
        caches, scales, stored_before, before, rows, strict=True
    ):
        expected, expected_scale = old.clone(), old_scale.clone()
        for b in range(2):
            for i in range(queries):
                page, inside = divmod(int(held[b]) + i, 16)
                own = of_each_row(new[b, i])
                expected_scale[table[b, page], inside] = own
                expected[table[b, page], inside] = (new[b, i].float() / own[:, None]).to(E4M3)
        assert torch.equal(scale, expected_scale)
        assert torch.equal(cache.view(torch.uint8), expected.view(torch.uint8))
    for b in range(2):
        n = int(held[b]) + queries
        k, v = (
            (c[table[b].long()].double() * s[table[b].long()].double()[..., None]).flatten(0, 1)[
                None, :n
            ]
            for c, s in zip(caches, scales, strict=True)
        )
        exact, _ = attention_float64(q[b : b + 1].double(), k, v, causal=True)
        size, _ = attention_float64(q[b : b + 1].double(), k, v.abs(), causal=True)
        bound = 2**-7 if queries == 3 else 2**-3
        assert (out[b].double() - exact[0]).norm() <= bound * size.norm(), b


def cache_of(sequences: int, keys: int, seed: int = 0) -> tuple:
    """k, v (sequences, keys, 2, 64) of e4m3 and their scales by token, which grow: units of parts differ."""
    generator = torch.Generator().manual_seed(seed)
    sizes = sequences, keys, 2
    rows = [torch.randn(*sizes, 64, generator=generator).to(E4M3) for _ in "kv"]
    growing = 2.0 ** (torch.arange(keys) / 200)[:, None]
    scales = [torch.exp(torch.randn(sizes, generator=generator)) * 2.0**-6 for _ in "kv"]
    return *rows, scales[0], scales[1] * growing


def assert_means(out, q, k, v, k_scale, v_scale, bound: float, causal: bool = False) -> None:
    """out is attention of what k and v mean, by its error in the norm."""
    k, v = (x.double() * s.double()[..., None] for x, s in ((k, k_scale), (v, v_scale)))
    exact, _ = attention_float64(q.double(), k, v, causal=causal)
    of_sizes, _ = attention_float64(q.double(), k, v.abs(), causal=causal)
    assert (out.double() - exact).norm() <= bound * of_sizes.norm()


@pytest.mark.sweep
@pytest.mark.parametrize("dtype, bound", [(E4M3, 2**-4), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize("parts", [0, 1, 3])
def test_parts_of_keys_have_units_of_their_own(dtype, bound, parts):
    """A query over 1100 keys: alone, in a cluster that merges in shared memory, and merged by a kernel."""
    k, v, k_scale, v_scale = cache_of(1, 1100)
    q = torch.randn(1, 1, 8, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = flash_attn_func(q, k, v, k_descale=k_scale, v_descale=v_scale, num_splits=parts)
    assert_means(out, q, k, v, k_scale, v_scale, bound)


@pytest.mark.sweep
def test_scales_lie_where_the_rows_of_a_cache_do():
    """Sequences by cache_batch_idx, after left padding: a key and its scale are found by the same rule."""
    k, v, k_scale, v_scale = cache_of(3, 300)
    k_scale[0, :130], v_scale[2, 290:] = torch.nan, torch.nan  # unused
    order, padding, held = [2, 0], [5, 130], [290, 280]
    q = torch.randn(2, 2, 8, 64, generator=torch.Generator().manual_seed(1)).to(E4M3)
    out = flash_attn_with_kvcache(
        q, k, v, cache_seqlens=int32(held), cache_batch_idx=int32(order), cache_leftpad=int32(padding),
        k_descale=k_scale, v_descale=v_scale, causal=True,
    )  # fmt: skip
    for b, (i, first, end) in enumerate(zip(order, padding, held, strict=True)):
        cut = [x[i : i + 1, first:end] for x in (k, v, k_scale, v_scale)]
        assert_means(out[b : b + 1], q[b : b + 1], *cut, 2**-4, causal=True)


@pytest.mark.sweep
@pytest.mark.parametrize("queries", [140, 1])
def test_scales_may_be_negative_zero_or_none(queries):
    """Of k of any sign; zeros of v give zeros; NaN takes the rows of its head and no others."""
    k, v, k_scale, v_scale = cache_of(1, 300)
    q = torch.randn(1, queries, 8, 64, generator=torch.Generator().manual_seed(1)).to(E4M3)

    def out_of(k_scale, v_scale):
        return flash_attn_func(q, k, v, k_descale=k_scale, v_descale=v_scale)

    assert_means(out_of(-k_scale, v_scale), q, k, v, -k_scale, v_scale, 2**-4)
    assert (out_of(k_scale, torch.zeros_like(v_scale)) == 0).all()
    v_scale[0, 77, 1] = torch.nan
    out = out_of(k_scale, v_scale)
    assert out[:, :, :4].isfinite().all() and out[:, :, 4:].isnan().all()


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_as_many_tokens_as_sequences_need_a_column_or_equal_numbers(name):
    """Two sequences, of two tokens and of none: numbers of (2, 2) may belong to tokens or to sequences."""
    q, k, v = (torch.randn(2, 2, 64).to(E4M3) for _ in "qkv")
    offsets = torch.tensor([0, 2, 2], dtype=torch.int32)
    scale = torch.tensor([[1.0, 1.0], [4.0, 4.0]])

    def attend(scale):
        return flash_attn_varlen_func(q, k, v, offsets, offsets, 2, 2, **{name: scale})

    with pytest.raises(ValueError, match=rf"{name}: shape \(2, 2\).*accepted: \(2, 2, 1\)"):
        attend(scale)
    of_tokens = {"q": q.double(), "k": k.double(), "v": v.double()}
    of_tokens[name[0]] = of_tokens[name[0]] * scale[..., None]
    exact, _ = attention_float64(*(x[None] for x in of_tokens.values()))
    error = (attend(scale[..., None]).double() - exact[0]).abs().max()
    assert error < 2**-4 * exact.abs().max()
    one = torch.full((1,), 0.5)
    assert attend(one.expand(2, 2)).equal(attend(one))


def test_capabilities_and_refusals_know_them():
    """By metadata: the family that runs, and by name what does not."""
    meta = {name: torch.empty(2, 300, 2, device="meta") for name in ("k_descale", "v_descale")}
    asked = dict(
        head_dim=64, heads_kv=2, group=4, batch=2, seqlen_k=300, return_lse=False, causal=True
    )
    asked |= dict(arch="sm_100a", cache_seqlens=True)

    def answer(**more):
        (row,) = capabilities(**asked | more)
        return row

    runs = [answer(dtype="e4m3", seqlen_q=n, **meta) for n in (1, 20, 300)]
    runs += [answer(dtype="bf16", kv_dtype="e4m3", seqlen_q=n, **meta) for n in (1, 300)]
    assert [row.families for row in runs] == [
        (f,) for f in ("mhaswap", "mha1q", "mha2q", "mhawiden", "mha2q")
    ]
    short = {"k_descale": torch.empty(2, 299, 2, device="meta")}
    (why,) = answer(dtype="e4m3", **short).reasons
    assert (
        "k_descale: shape (2, 299, 2); accepted: one number, or (2, 2)" in why
        and "(2, 300, 2)" in why
    )
    (why,) = answer(dtype="bf16", **meta).reasons
    assert "k_descale: given with q of torch.bfloat16" in why
    why = FA4Config(qkv_dtype="e4m3", descales="K", schedule=Pair()).refusals()
    assert any(
        "descales='K': scales of each key are for schedule=TwoTiles()" in reason for reason in why
    )
