"""Columns of K in a separate tensor, for prefill of multi-head latent attention.

Against the definition, and bit for bit against the call whose K has all columns.

The rows of k_rope lie in a latent cache whose other columns are NaN, and so is what belongs to no sequence.
"""

import math

import pytest
import torch

from cute_fa4 import capabilities, compile_cache, flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import repeat
from cute_fa4.commands import trials
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.system import devices
from tests.docs import definition
from tests.serving.batches import (
    NO_PAGE,
    Batch,
    assert_agrees,
    dense,
    dense_kv,
    int32,
    packed,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

LATENT = 512  # columns of a cache before those that all heads share


def causal(p, j):
    return j <= p


def draw(queries, keys, *, depths=(128, 64, 128), heads=2, dtype=torch.bfloat16) -> Batch:
    """Keys of every head whose last columns are those of head 0."""
    own, shared, of_v = depths
    batch = Batch.draw(
        queries, keys, heads=(heads, heads), depth=own + shared, depth_v=of_v, dtype=dtype
    )
    for k in batch.k:
        k[:, :, own:] = k[:, :1, own:]
    return batch


def latent_rows(batch: Batch, own: int) -> list:
    """(keys, LATENT + shared) of each sequence, NaN where k_rope must not be read."""
    return [
        torch.cat([k.new_full((len(k), LATENT), math.nan), k[:, 0, own:]], dim=-1) for k in batch.k
    ]


def pages_of(rows: list, page_size: int) -> dict:
    """k_rope in pages that lie in no order, with a table whose further entries are no page."""
    counts = [-(-len(x) // page_size) for x in rows]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(1)).tolist()
    pages = rows[0].new_full((len(order), page_size, rows[0].shape[-1]), math.nan)
    table = torch.full((len(rows), max(counts) + 1), NO_PAGE, dtype=torch.int32)
    for b, x in enumerate(rows):
        for place in range(counts[b]):
            page = table[b, place] = order.pop()
            part = x[place * page_size : (place + 1) * page_size]
            pages[page, : len(part)] = part
    return dict(k_rope=pages[..., LATENT:], k_rope_page_table=table)


def stored(batch: Batch, own: int, layout: str, rope_page: int) -> list[dict]:
    """The keys of a call with k_rope, and those of the call without."""
    keys = {"packed": packed_kv, "dense": dense_kv, "paged": lambda b: paged_kv(b, 32)}
    whole = keys[layout](batch)
    rows = latent_rows(batch, own)
    if rope_page:
        rope = pages_of(rows, rope_page)
    elif layout == "packed":
        rope = {"k_rope": packed(rows)[:, LATENT:]}
    else:
        rope = {"k_rope": dense(rows, max(batch.keys) + 3)[..., LATENT:]}
    return [whole | {"k": whole["k"][..., :own]} | rope, whole]


# Each: queries and keys of the sequences, depths, layout of K, rows of a page of k_rope, and why.
CASES = {
    "packed, pages of 48": ([300, 1], [310, 129], (128, 64, 128), "packed", 48),
    "packed rows": ([140, 70], [200, 131], (128, 64, 128), "packed", 0),
    "lengths on the device": ([130, 9], [260, 40], (128, 64, 128), "dense", 0),
    "pages of three rows": ([33, 2], [150, 129], (64, 32, 64), "packed", 3),
    "both in pages": ([40, 5], [130, 33], (128, 64, 128), "paged", 64),
    "V of 256": ([200], [300], (128, 64, 256), "packed", 16),
    "few queries, V of 256": ([5], [150], (192, 64, 256), "packed", 0),
    "128 columns": ([140], [260], (64, 64, 128), "packed", 128),
}
KEPT = ("packed, pages of 48", "pages of three rows")


@pytest.mark.parametrize(
    "name", [n if n in KEPT else pytest.param(n, marks=pytest.mark.sweep) for n in CASES]
)
def test_a_call_agrees_with_the_definition_and_with_the_call_of_all_columns(name):
    queries, keys, depths, layout, rope_page = CASES[name]
    batch = draw(queries, keys, depths=depths)
    apart, whole = stored(batch, depths[0], layout, rope_page)
    found = run(packed_q(batch), apart, causal=True)
    assert_agrees(batch, *found, visible=causal)
    if name not in KEPT:
        for a, b in zip(found, run(packed_q(batch), whole, causal=True), strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.sweep
@pytest.mark.parametrize("depths", [(128, 64, 128), (64, 64, 128), (64, 32, 64)])
@pytest.mark.parametrize("rope_page", [0, 48, 6])
def test_pairs_of_ctas(depths, rope_page, monkeypatch):
    """Each CTA loads half of the rows, of pages whose box is smaller than that half, too."""
    monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    batch = draw([300], [290], depths=depths, heads=1)
    apart, whole = stored(batch, depths[0], "packed", rope_page)
    found, expected = (run(packed_q(batch), keys, causal=True) for keys in (apart, whole))
    assert_agrees(batch, *found, visible=causal)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.sweep
@pytest.mark.parametrize(
    "arch, dtype, options",
    [
        ("sm_103a", torch.bfloat16, {}),
        ("sm_100a", torch.float16, dict(window_size=(70, 0), learnable_sink=torch.tensor([0.5, 2.0]))),
        ("sm_100a", torch.bfloat16, dict(num_splits=2)),
        ("sm_100a", torch.bfloat16, dict(softcap=20.0, mode="hostile", seed=3)),
    ],
    ids=["sm_103a", "window and sink", "split keys", "soft cap"],
)  # fmt: skip
def test_options_are_those_of_any_call(arch, dtype, options, monkeypatch):
    """The same bits as the call with all columns, whose options are tested elsewhere."""
    monkeypatch.setattr(devices, "EMULATED_ARCH", arch)
    repeat.clear()
    batch = draw([150, 20], [300, 40], dtype=dtype)
    apart, whole = stored(batch, 128, "packed", 48)
    found, expected = (
        run(packed_q(batch), keys, causal=True, **options) for keys in (apart, whole)
    )
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
    repeat.clear()


# --- what a call is, without its kernel


def qkv(keys=40, own=128, shared=64, batch=2):
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, 7, 3, own + shared), (batch, keys, 3, own), (batch, keys, 3, 128)
    q, k, v = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return q, k, v, torch.randn(batch, keys, shared, generator=generator).bfloat16()


REFUSED = {
    "columns": (dict(k_rope=qkv()[3][..., :32]), "k_rope: 32 columns after 128 of k while q has 192"),
    "span": (dict(zip(("q", "k", "v", "k_rope"), qkv(own=72, shared=56), strict=True)), "a multiple of 64"),
    "no columns": (dict(zip(("q", "k", "v", "k_rope"), qkv(own=0, shared=64), strict=True)), "after 0 of k"),
    "rows": (dict(k_rope=qkv(keys=39)[3]), r"k_rope: shape \(2, 39, 64\) with k of"),
    "two heads": (dict(k_rope=qkv()[3][:, :, None].expand(2, 40, 2, 64)), "or with one head"),
    "dtype": (dict(k_rope=qkv()[3].half()), "k_rope: dtype torch.float16 with q of"),
    "stride": (dict(k_rope=qkv()[3].mT.contiguous().mT), "k_rope: strides"),
    "gradient": (dict(k_rope=qkv()[3].requires_grad_()), "k_rope: requires_grad"),
    "no tensor": (dict(k_rope=[1.0]), "k_rope: a list"),
    "out in it": ("out", "k_rope: shares memory with out"),
    "scale of 16 bits": (dict(k_rope_descale=torch.ones(())), "k_rope_descale: given with k_rope of torch.bfloat16"),
    "scale of nothing": (dict(k_rope=None, k_rope_descale=torch.ones(())), "k_rope_descale: given without k_rope"),
    "scale of rows": (
        dict(k_rope=qkv()[3].to(torch.float8_e4m3fn), k_rope_descale=torch.ones(2, 39)),
        r"k_rope_descale: shape \(2, 39\) with k_rope of \(2, 40\) rows",
    ),
    "dtype of a scale": (
        dict(k_rope=qkv()[3].to(torch.float8_e4m3fn), k_rope_descale=torch.ones(2, 40).half()),
        "k_rope_descale: dtype torch.float16",
    ),
    "gradient of a scale": (
        dict(k_rope=qkv()[3].to(torch.float8_e4m3fn), k_rope_descale=torch.ones(2, 40, requires_grad=True)),
        "k_rope_descale: requires_grad",
    ),
    "no scale": (
        dict(k_rope=qkv()[3].to(torch.float8_e4m3fn), k_rope_descale=0.5), "k_rope_descale: a float",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_k_rope_and_what_is_accepted(case):
    given, text = REFUSED[case]
    call = dict(zip(("q", "k", "v", "k_rope"), qkv(), strict=True))
    if given == "out":
        memory = torch.zeros(2, 40, 3, 128).bfloat16()
        given = dict(out=memory[:, :7], k_rope=memory[:, :, 0, 64:])
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=text):
        flash_attn_func(**call | given)


TABLE = int32([0, 1, 1, 0]).view(2, 2)
PAGES = torch.zeros(2, 32, 64).bfloat16()
REFUSED_PAGES = {
    "no k_rope": (dict(k_rope=None), "k_rope_page_table: given without k_rope"),
    "batch": (dict(k_rope_page_table=TABLE[:1]), "the first dimension is 2, the sequences"),
    "room": (dict(k_rope_page_table=TABLE[:, :1]), "1 pages of 32 rows while sequence 0 has 40 keys"),
    "entry": (dict(k_rope_page_table=TABLE + 1), r"k_rope_page_table: entry \[0, 1\] is 2"),
    "dtype": (dict(k_rope_page_table=TABLE.long()), "k_rope_page_table: dtype torch.int64"),
    "pages": (dict(k_rope=PAGES[0]), r"k_rope: shape \(32, 64\); accepted: \(num_pages, rows, columns\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_PAGES)
def test_a_refusal_names_the_pages_of_k_rope(case):
    given, text = REFUSED_PAGES[case]
    call = dict(zip(("q", "k", "v"), qkv()[:3], strict=True))
    call |= dict(k_rope=PAGES, k_rope_page_table=TABLE)
    with pytest.raises((TypeError, ValueError), match=text):
        flash_attn_varlen_func(**call | given)


def test_keys_in_pages_need_pages_of_k_rope():
    q, k, v, rope = qkv()
    with pytest.raises(ValueError, match="k_rope_page_table: None with k in pages"):
        flash_attn_varlen_func(
            q, k, v, page_table=TABLE[:, :1], seqused_k=int32([3, 4]), k_rope=rope
        )


def test_capabilities_and_operators_know_it():
    """Fakes have the checks and the configuration of the real call: 192/128 runs, 8 bits too, no columns do not."""
    asked = dict(head_dim=192, head_dim_v=128, causal=True, return_lse=True, arch="sm_100a")
    for more in (dict(), dict(k_rope_page_table=True, page_size=1), dict(cu_seqlens_k=True)):
        [row] = capabilities(dtype="bf16", **asked, k_rope=True, seqlen_q=300, **more)
        assert row.runs and row.families == ("mha2q",), row
    [row] = capabilities(dtype="e4m3", **asked | dict(head_dim=128), k_rope=True)
    assert row.runs and row.families == ("mha1q",), row
    for head_dim in (32, 64):  # k would have no column of its own
        [row] = capabilities(dtype="bf16", **asked | dict(head_dim=head_dim), k_rope=True)
        assert f"k_rope: 64 columns of head_dim={head_dim}; accepted" in row.reasons[0]

    def called(q, k, v, k_rope):
        return flash_attn_func(q, k, v, k_rope=k_rope, causal=True, return_lse=True)

    q, k, v, rope = (x.to("meta") for x in qkv())
    out, lse = torch.ops.cute_fa4.flash_attn(q, k, v, k_rope=rope, return_lse=True)
    assert out.shape == (2, 7, 3, 128) and lse.shape == (2, 3, 7)
    with pytest.raises(ValueError, match="k_rope: 64 columns"):
        torch.ops.cute_fa4.flash_attn(q, k[..., :64], v, k_rope=rope)
    exported = torch.export.export(Called(called), qkv())
    assert [str(n.target) for n in exported.graph.nodes if "cute_fa4" in str(n.target)] == [
        "cute_fa4.flash_attn.default"
    ]


@pytest.mark.parametrize(
    "dtype, kv_dtype, rope_depth, rope_dtype",
    [
        ("bf16", None, 0, None),
        ("bf16", None, 64, None),
        ("e4m3", None, 64, "bf16"),
        ("bf16", "e4m3", 64, None),
        ("bf16", "e4m3", 64, "bf16"),
    ],
)
def test_a_loaded_kernel_is_tried_with_v_of_its_depth_and_with_k_rope(
    dtype, kv_dtype, rope_depth, rope_dtype, monkeypatch
):
    """What python -m cute_fa4 check calls it with; kernels are replaced by the definition."""
    asked = []

    def function_for(config, executor):
        asked.append(config)
        return definition.compiled(config, executor)

    monkeypatch.setattr(compile_cache, "function_for", function_for)
    config = choose_config(
        qkv_dtype=dtype, head_dim=192, head_dim_v=128, causal=True, q_layout="packed", kv_layout="packed",
        rope_depth=rope_depth, rope_dtype=rope_dtype, kv_dtype=kv_dtype, family=kv_dtype and "mhawidewiden",
    )  # fmt: skip
    error, allowed = trials._attention(config, "cpu", False)
    assert error <= allowed and asked == [config]


class Called(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)
