"""Keys of 8 bits whose rotary columns have 16, or 8 as well: calls against attention in float64 of what they mean.

The score of a query and a key is q_descale * k_descale * (q k + q_rope k_rope). The rows of k_rope lie in a latent
cache whose other columns are NaN, and so is what belongs to no sequence. The definition sees q and k of 8 bits, and the
product of columns of 16 as a function of the score.

Columns of K of its own fill a line of 128 bytes, or leave a gap in it before those of k_rope: 128 and 64 of them. V of
more than 128 columns comes in two launches.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_fa4 import capabilities, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.sm100.choose.config import FA4Config, SwappedTile
from cute_fa4.system import devices
from tests.serving.batches import FP8, Batch, assert_agrees, dense_q, packed_q, run
from tests.serving.test_k_rope import Called, causal, draw, stored
from tests.serving.test_masks import MASKS
from tests.serving.test_token_scales import as_stored
from tests.serving.test_token_scales import draw as draw_scales

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

E4M3, E5M2 = FP8
BF16, FP16 = torch.bfloat16, torch.float16
WIDE = {FP16: FP16}  # what a batch is drawn in, where it is not bf16
OWN = 128
LONG, SHORT = (OWN, 64, 128), (64, 32, 64)  # columns of K of its own, of k_rope, of V


def of_8_bits(batch: Batch, dtype, own: int | None = OWN) -> Batch:
    """The columns that have 8 bits, as tensors of sequences; own: so many, None: all."""
    q, k = ([x[..., :own].to(dtype) for x in rows] for rows in (batch.q, batch.k))
    return Batch(q, k, [v.to(dtype) for v in batch.v])


def call_of(batch: Batch, own: int, layout: str, rope_page: int, dtypes, scales: dict) -> dict:
    """What such a call has; batch: of all columns; dtypes: of q, k and v, and of k_rope."""
    keys, _ = stored(batch, own, layout, rope_page)
    queries = dense_q(batch) if layout == "dense" else packed_q(batch)
    q, (dtype, of_rope) = queries["q"], dtypes
    apart = dict(q=q[..., :own].to(dtype), q_rope=q[..., own:].to(of_rope))
    given = queries | keys | (dict(q=q.to(dtype)) if of_rope is dtype else apart)
    given |= {name: keys[name].to(dtype) for name in "kv"}
    given["k_rope"] = keys["k_rope"].to(of_rope)
    storage = 32 if layout == "paged" else layout
    named = {f"{x}_descale": as_stored(x, s, storage, "NHD", batch) for x, s in scales.items()}
    return given | named


def rope_scores(batch: Batch, scales: dict, own: int = OWN) -> list:
    """The contribution of the 16-bit columns to the scaled scores of each sequence, (heads, m, n)."""

    def rows(name, b):
        x = getattr(batch, name)[b][..., own:].double()
        return x * scales[name][b].double()[..., None] if name in scales else x

    parts = []
    for b in range(len(batch.q)):
        q, k = rows("q", b), rows("k", b)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        parts.append(torch.einsum("mhd,nhd->hmn", q, k) * batch.q[b].shape[-1] ** -0.5)
    return parts


# queries and keys of the sequences, columns, layout of K, rows of a page of k_rope, dtypes, tensors with scales of
# tokens, mask. Up to 128 queries are one query tile.
CASES = {
    "packed, pages of 48, scales": ([140, 3], [150, 131], SHORT, "packed", 48, (E4M3, BF16), "qkv", "causal"),
    "packed rows": ([300, 20], [280, 129], LONG, "packed", 0, (E4M3, BF16), "qk", "full"),
    "no scales": ([300, 70], [310, 131], LONG, "packed", 0, (E4M3, FP16), "", "causal"),
    "lengths on the device": ([130, 9], [260, 40], SHORT, "dense", 0, (E5M2, BF16), "k", "window or chunked"),
    "one tile, pages of three rows": ([33, 2], [290, 129], SHORT, "packed", 3, (E4M3, BF16), "q", "causal"),
    "one tile, both in pages": ([40, 5], [130, 33], LONG, "paged", 64, (E4M3, BF16), "qkv", "causal"),
    "one dtype": ([140, 3], [270, 131], LONG, "packed", 48, (E4M3, E4M3), "qkv", "causal"),
    "one dtype, columns apart": ([140, 3], [150, 131], SHORT, "paged", 6, (E4M3, E4M3), "", "causal"),
    "one dtype, one tile": ([40, 5], [290, 33], (64, 32, 160), "dense", 0, (E5M2, E5M2), "q", "causal"),
    "V of 256": ([140, 3], [150, 131], (128, 64, 256), "packed", 48, (E4M3, BF16), "qkv", "causal"),
    "V of 256, one tile": ([40, 3], [150, 131], (128, 64, 256), "paged", 16, (E4M3, E4M3), "qkv", "causal"),
    "16 and 16 columns": ([9], [150], (16, 16, 16), "packed", 0, (E4M3, E4M3), "", "full"),
    "112 and 8 columns": ([140], [150], (112, 8, 96), "packed", 16, (E4M3, BF16), "k", "causal"),
}  # fmt: skip
KEPT = ("packed, pages of 48, scales", "one dtype, one tile")
ONE_TILE = ("one tile, pages of three rows", "one dtype, one tile")


def found(name, heads=2, **options):
    queries, keys, depths, layout, rope_page, dtypes, letters, mask = CASES[name]
    batch = draw(queries, keys, depths=depths, heads=heads, dtype=WIDE.get(dtypes[1], BF16))
    scales = draw_scales(batch, letters)
    options = dict(MASKS[mask][0]) | options if mask in MASKS else options
    return (
        batch,
        scales,
        run(call_of(batch, depths[0], layout, rope_page, dtypes, scales), **options),
    )


def assert_is_right(name, batch, scales, results):
    (own, _, _), (dtype, of_rope), mask = (CASES[name][at] for at in (2, 5, 7))
    of_two = {"own": own if of_rope is not dtype else None}
    parts = rope_scores(batch, scales, own)
    assert_agrees(
        of_8_bits(batch, dtype, **of_two), *results,
        visible=MASKS[mask][1] if mask in MASKS else None,
        score_mod=(lambda s, b: s + parts[b]) if of_two["own"] else None,
        scale=batch.q[0].shape[-1] ** -0.5,
        scales=[scales.get(x, [None] * len(batch.q)) for x in "qkv"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n in KEPT else pytest.param(n, marks=pytest.mark.sweep) for n in CASES]
)
def test_a_call_agrees_with_the_definition(name):
    assert_is_right(name, *found(name))


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("name", ["no scales", "packed rows", *ONE_TILE])
@pytest.mark.parametrize("mode, seed", [("hostile", 1), ("random", 2)])
def test_the_order_of_warps_does_not_matter(arch, name, mode, seed, monkeypatch):
    """Without scales, lengths give single-tile work, and causal tiles visible to one query tile only."""
    monkeypatch.setattr(devices, "EMULATED_ARCH", arch)
    repeat.clear()
    assert_is_right(name, *found(name, mode=mode, seed=seed))
    repeat.clear()


@pytest.mark.sweep
@pytest.mark.parametrize("queries", [150, 60])
@pytest.mark.parametrize(
    "options", [dict(num_splits=2), dict(softcap=20.0), dict(window_size=(70, 0))]
)
def test_options_are_those_of_any_call(options, queries):
    """Zeros in the columns of 16 bits leave the call of 128 columns, whose options have tests of their own."""
    batch = draw([queries, 20], [300, 40])
    for x in (*batch.q, *batch.k):
        x[..., OWN:] = 0
    call = call_of(batch, OWN, "packed", 0, (E4M3, BF16), {})
    plain = {name: x for name, x in call.items() if not name.endswith("rope")}
    of_both = [run(given, options, softmax_scale=0.1) for given in (call, plain)]
    for a, b in zip(*of_both, strict=True):
        torch.testing.assert_close(a.nan_to_num(), b.nan_to_num(), rtol=2e-2, atol=2e-2)


# --- queries of 16 bits, of which the call makes both


@pytest.mark.sweep
def test_queries_of_16_bits_keep_their_rotary_columns():
    """A score is off by what e4m3 leaves of 128 columns of q, and by two roundings of bf16 of the others."""
    batch = draw([140], [150])
    given = call_of(batch, OWN, "packed", 0, (E4M3, BF16), {})
    del given["q_rope"]
    out, lse = run(given | packed_q(batch), causal=True)
    q = batch.q[0]
    scale = q[..., :OWN].float().abs().amax(-1, keepdim=True) / 448
    quantised = [(q[..., :OWN].float() / scale).to(E4M3).float() * scale]
    parts = rope_scores(batch, {})
    assert_agrees(
        replace(of_8_bits(batch, E4M3), q=[(quantised[0] / scale).to(E4M3)]), out, lse, visible=causal,
        score_mod=lambda s, b: s + parts[b], scale=192**-0.5, scales=[[scale[..., 0]], [None], [None]],
    )  # fmt: skip


# --- what a call is, without its kernel


def qkv(dtype=E4M3, wide=BF16):
    generator = torch.Generator().manual_seed(0)
    shapes = dict(q=(2, 7, 3, OWN), k=(2, 40, 3, OWN), v=(2, 40, 3, 128))
    given = {name: torch.randn(s, generator=generator).to(dtype) for name, s in shapes.items()}
    shapes = dict(q_rope=(2, 7, 3, 64), k_rope=(2, 40, 64))
    return given | {
        name: torch.randn(s, generator=generator).to(wide) for name, s in shapes.items()
    }


REFUSED = {
    "no q_rope": (dict(q_rope=None), r"q_rope: None with q and k of .*accepted: .* \(2, 7, 3, 64\)"),
    "no k_rope": (dict(k_rope=None), "q_rope: given without k_rope"),
    "k_rope of other 8 bits": (dict(k_rope=qkv()["k_rope"].to(E5M2)), "k_rope: dtype torch.float8_e5m2 with q and k"),
    "k_rope as k": (dict(k_rope=qkv()["k_rope"].to(E4M3)), "q_rope: given with k_rope of torch.float8_e4m3fn"),
    "k_rope as k, columns": (
        dict(k_rope=qkv()["k_rope"].to(E4M3), q_rope=None), "k_rope: 64 columns after 128 of k while q has 128",
    ),
    "two dtypes": (dict(q_rope=qkv()["q_rope"].half()), "q_rope: dtype torch.float16 while k_rope is torch.bfloat16"),
    "q of all columns": (dict(q=torch.zeros(2, 7, 3, 192).to(E4M3)), "q: 192 columns while k has 128"),
    "more than a span of 8 bits": (
        {x: torch.zeros(*qkv()[x].shape[:-1], 144).to(E4M3) for x in "qk"},
        "k_rope: 64 columns of 16 bits after 144 of k of 8 bits; accepted: up to 64 after a multiple of 16 up to 128",
    ),
    "more than a span of one dtype": (
        dict(q=torch.zeros(2, 7, 3, 192).to(E4M3), k=torch.zeros(2, 40, 3, 144).to(E4M3), q_rope=None,
             k_rope=torch.zeros(2, 40, 48).to(E4M3)),
        "k_rope: 48 columns after 144 of k, of 8 bits; accepted: up to 128 after a multiple of 16 up to 128",
    ),
    "a scale of its own": (dict(k_rope_descale=torch.ones(())), "k_rope_descale: .*k_descale is of these columns, too"),
    "rows": (dict(q_rope=qkv()["q_rope"][:, :6]), r"q_rope: shape \(2, 6, 3, 64\) with q of"),
    "rank": (dict(q_rope=qkv()["q_rope"][0]), r"q_rope: shape \(7, 3, 64\) has 3 dimensions"),
    "columns": (dict(q_rope=qkv()["q_rope"][..., :32]), r"q_rope: shape \(2, 7, 3, 32\) with q of"),
    "stride": (dict(q_rope=qkv()["q_rope"].mT.contiguous().mT), "q_rope: strides"),
    "gradient": (dict(q_rope=qkv()["q_rope"].requires_grad_()), "q_rope: requires_grad"),
    "no tensor": (dict(q_rope=[1.0]), "q_rope: a list"),
    "device": (dict(q_rope=qkv()["q_rope"].to("meta")), "q_rope: on meta while q is on cpu"),
    "out in it": ("out", "q_rope: shares memory with out"),
    "all of 16 bits": (
        {x: t.to(BF16) for x, t in qkv().items()} | dict(q=torch.zeros(2, 7, 3, 192).bfloat16()),
        "q_rope: given with q of torch.bfloat16, which has these columns",
    ),
    "q of 16 bits": (dict(q=torch.zeros(2, 7, 3, 192).bfloat16()), "q_rope: given with q of torch.bfloat16"),
    "q of 16 bits, k_rope of other 8": (
        dict(q=torch.zeros(2, 7, 3, 192).bfloat16(), q_rope=None, k_rope=qkv()["k_rope"].to(E5M2)),
        "k_rope: dtype torch.float8_e5m2 beside k of",
    ),
    "q of 16 bits, too few": (
        dict(q=torch.zeros(2, 7, 3, 160).bfloat16(), q_rope=None), "64 columns after 128 of k while q has 160",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_tensor_and_what_is_accepted(case):
    given, text = REFUSED[case]
    if given == "out":
        memory = torch.zeros(2, 7, 3, 128).bfloat16()
        given = dict(out=memory[..., :128], q_rope=memory[..., 64:128])
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=text):
        flash_attn_func(**qkv() | given)


def test_configurations_and_capabilities_know_it():
    asked = dict(head_dim=192, head_dim_v=128, causal=True, return_lse=True, arch="sm_100a")
    short = asked | dict(
        head_dim=96, head_dim_v=64, dtype="e4m3", k_rope=torch.empty(1, 300, 32).bfloat16()
    )
    for queries, family in ((300, "mha2q"), (128, "mha1q"), (1, "mha1q")):
        given = dict(
            q_rope=torch.empty(1, queries, 1, 32).bfloat16(), seqlen_q=queries, seqlen_k=300
        )
        [row] = capabilities(**short, **given)
        assert row.runs and row.families == (family,), row
    for more in (
        dict(dtype="e4m3", q_rope=True),
        dict(dtype="e4m3"),
        dict(
            dtype="e4m3", q_rope=True, cu_seqlens_q=True, cu_seqlens_k=True, k_rope_page_table=True
        ),
        dict(dtype="bf16", kv_dtype="e4m3"),
    ):
        [row] = capabilities(**asked, k_rope=True, seqlen_q=300, **more)
        assert row.runs and row.families == ("mha2q",), row
    of_two = dict(qkv_dtype="e4m3", qk_depth=192, ov_depth=128, rope_depth=64, rope_dtype="bf16")
    config = FA4Config(**of_two, descales="QKV")
    # 128 columns of 8 bits and 64 of 16 are two spans of 128 bytes, as 256 columns of 8 bits would be.
    assert (
        config.refusals() == [] and config.tiles.padded_qk_depth == 256 and config.tiles.BN == 128
    )
    assert config.barriers.kv_slots == 4  # K0 V0 K1 V1, as at depth 128 of 16 bits
    for changes, text in (
        (dict(rope_dtype="e5m2"), "rope_dtype='e5m2' is not supported"),
        (dict(schedule=SwappedTile()), "schedule=OneTile()"),
        (dict(qk_depth=216, rope_depth=64), "after a multiple of 16 up to 128"),
        (dict(qk_depth=72, rope_depth=64), "after a multiple of 16 up to 128"),
        (dict(qk_depth=224, rope_depth=96), "use up to 64 after"),
    ):
        why = FA4Config(**of_two | changes).refusals()
        assert any(text in reason for reason in why), why


def test_operators_know_it():
    given = {name: x.to("meta") for name, x in qkv().items()}
    out, lse = torch.ops.cute_fa4.flash_attn(**given, return_lse=True)
    assert out.shape == (2, 7, 3, 128) and out.dtype == BF16 and lse.shape == (2, 3, 7)
    with pytest.raises(TypeError, match="q_rope: dtype"):
        torch.ops.cute_fa4.flash_attn(**given | dict(q_rope=given["q_rope"].half()))

    def called(q, k, v, q_rope, k_rope):
        return flash_attn_func(q, k, v, q_rope=q_rope, k_rope=k_rope, causal=True)

    exported = torch.export.export(Called(called), tuple(qkv().values()))
    assert "cute_fa4.flash_attn.default" in map(str, (n.target for n in exported.graph.nodes))
