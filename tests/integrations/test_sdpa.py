"""scaled_dot_product_attention against torch's own in float64, and what it refuses."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torchs

import cute_fa4
from cute_fa4 import EmulatorWarning
from cute_fa4.integrations import sdpa
from cute_fa4.reference import EXP2_RELATIVE_ERROR, FLOAT32_NOISE

BF16_MIN = torch.finfo(torch.bfloat16).min


def draw(seqlen_q, seqlen_k, *, batch=2, heads=(4, 2), depth=64, depth_v=None):
    """query, key, value as a projection leaves them: (batch, seqlen, heads, depth) in memory."""

    def normal(seqlen, num_heads, columns):
        return torch.randn(batch, seqlen, num_heads, columns).bfloat16().transpose(1, 2)

    return (
        normal(seqlen_q, heads[0], depth),
        normal(seqlen_k, heads[1], depth),
        normal(seqlen_k, heads[1], depth_v or depth),
    )


def assert_agrees(query, key, value, **options) -> torch.Tensor:
    """Every number within the bound of rounding P and out, and of 2^x: sum(w |v|) is the definition on |v|."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out = cute_fa4.scaled_dot_product_attention(query, key, value, **options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options = {**options, "attn_mask": mask.double()}
    exact = torchs(query.double(), key.double(), value.double(), **options)
    of_absolute = torchs(query.double(), key.double(), value.double().abs(), **options)
    half_ulp = torch.finfo(query.dtype).eps / 2
    allowed = (half_ulp + 2 * EXP2_RELATIVE_ERROR) * of_absolute + half_ulp * exact.abs()
    assert out.shape == exact.shape and out.dtype == query.dtype
    error = (out.double() - exact).abs()
    assert (error <= allowed + FLOAT32_NOISE).all(), f"off by {float(error.max()):.2e}"
    return out


# More keys than queries, as many, fewer: torch counts from the top left corner. 150 is two tiles.
@pytest.mark.parametrize("seqlen_q, seqlen_k", [(20, 150), (40, 40), (150, 20)])
def test_is_causal_is_aligned_to_the_top_left(seqlen_q, seqlen_k):
    assert_agrees(*draw(seqlen_q, seqlen_k), is_causal=True, enable_gqa=True)


MASKS = {
    "of keys": (2, 1, 1, 150),
    "of queries and keys": (20, 150),
    "of heads": (1, 4, 20, 150),
    "of queries": (20, 1),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_boolean_masks_broadcast_and_hide(shape):
    attn_mask = torch.rand(shape) < 0.7
    attn_mask[..., 0, :] = True
    assert_agrees(*draw(20, 150), attn_mask=attn_mask, enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_float_masks_broadcast_and_are_added(shape, dtype):
    assert_agrees(*draw(20, 150), attn_mask=torch.randn(shape).to(dtype), enable_gqa=True)


@pytest.mark.parametrize("low", [-math.inf, BF16_MIN, -1e9, -1e4])
def test_keys_hidden_by_a_low_bias_have_no_weight(low):
    # Row 1: the first tile of keys is hidden whole, so that its maximum is given up for one far above.
    attn_mask = torch.zeros(4, 150)
    attn_mask[0, 50:], attn_mask[1, :140] = low, low
    query, key, value = draw(4, 150)
    value[:, :, 50:140] += 1000  # a weight of 1e-4 would show
    assert_agrees(query, key, value, attn_mask=attn_mask, enable_gqa=True)


def test_a_query_that_sees_no_key_has_zero_or_as_torch_the_mean():
    query, key, value = draw(3, 150)
    hidden = torch.ones(3, 150, dtype=torch.bool)
    hidden[1] = False
    out = assert_agrees(query, key, value, attn_mask=hidden, enable_gqa=True)
    assert (out[:, :, 1] == 0).all()
    for low in (-math.inf, BF16_MIN):  # what is finite weighs every key alike
        bias = torch.zeros(3, 150).masked_fill(~hidden, low)
        out = assert_agrees(query, key, value, attn_mask=bias, enable_gqa=True)
        assert (out[:, :, 1] == 0).all() == math.isinf(low)


@pytest.mark.parametrize("depth, depth_v", [(36, 20), (64, 80)])
def test_head_dims_without_a_kernel_are_padded(depth, depth_v):
    out = assert_agrees(*draw(20, 30, depth=depth, depth_v=depth_v), enable_gqa=True)
    assert out.shape[-1] == depth_v


def test_heads_without_enable_gqa_and_a_scale():
    assert_agrees(*draw(20, 30, heads=(2, 2)), scale=0.3)
    assert_agrees(*draw(20, 30, heads=(4, 1)))  # one head serves all, as it broadcasts


# Sizes before seqlen and head_dim, of query, key and value, and of the mask before (20, 30).
BROADCAST = {
    "three dimensions": ((4,), (4,), (4,), None),
    "two dimensions": ((), (), (), ()),
    "one batch of keys": ((2, 4), (1, 4), (1, 4), (2, 1)),
    "keys without a batch": ((2, 4), (4,), (1,), (4,)),
    "one head of queries": ((2, 1), (2, 4), (2, 4), (2, 4)),
    "one head of values": ((2, 4), (2, 4), (2, 1), None),
    "one batch of queries": ((1, 4), (2, 1), (2, 1), None),
    "five dimensions": ((2, 3, 2), (2, 1, 2), (3, 2), (3, 1)),
}


@pytest.mark.parametrize("sizes", BROADCAST.values(), ids=BROADCAST)
def test_sizes_before_the_rows_broadcast_as_in_torch(sizes):
    lengths = (20, 64), (30, 64), (30, 64), (20, 30)
    drawn = [
        None if size is None else torch.randn(*size, *rest).bfloat16()
        for size, rest in zip(sizes, lengths, strict=True)
    ]
    assert_agrees(*drawn[:3], attn_mask=drawn[3])


@pytest.mark.parametrize("sizes", [((4,), (2,)), ((2, 2, 4), (1, 2, 2))], ids=["3", "5"])
def test_grouped_heads_of_other_ranks(sizes):
    of_q, of_k = sizes
    query = torch.randn(*of_q, 20, 64).bfloat16()
    key, value = (torch.randn(*of_k, 20, 64).bfloat16() for _ in "kv")
    of_all = (x.repeat_interleave(2, -3).double() for x in (key, value))
    exact = torchs(query.double(), *of_all, is_causal=True)
    out = cute_fa4.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert out.shape == exact.shape
    # Two ulps of numbers below 4: what rounding P and out may cost where one key has most of the weight.
    assert (out.double() - exact).abs().max() < 2 * 2.0**-7 * 2


def test_nothing_is_copied(monkeypatch):
    calls = []

    def record(q, k, v, **options):
        calls.append((q, k, v, *options.get("aux_tensors", ())))
        return q

    monkeypatch.setattr(sdpa, "flash_attn_func", record)
    query, key, value = draw(20, 150)
    attn_mask = torch.ones(2, 1, 1, 150, dtype=torch.bool)
    cute_fa4.scaled_dot_product_attention(query, key, value, attn_mask, enable_gqa=True)
    cute_fa4.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    inputs = (query, key, value, attn_mask)
    for call in calls:
        for given, passed in zip(inputs, call, strict=False):
            assert passed.data_ptr() == given.data_ptr()
    assert len(calls) == 2 and calls[0][3].shape == (2, 4, 20, 150)


QUERY, KEY, VALUE = (torch.zeros(2, heads, 8, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
ONES = torch.ones(8, 8, dtype=torch.bool)

REFUSED = {
    "one dimension": (dict(query=QUERY[0, 0, 0]), ValueError, "query: shape (64,); accepted: two dim"),
    "batches that differ": (dict(query=QUERY[:1].expand(3, 4, 8, 64)), ValueError, "query (3, 4, 8, 64), key (2, 2, 8"),
    "heads that differ": (dict(value=VALUE[0, :1].expand(3, 8, 64)), ValueError, "v: heads 3 while k has 2"),
    "heads that differ, three dimensions": (
        dict(query=QUERY[0], key=KEY[0], value=VALUE[0], enable_gqa=False),
        ValueError,
        "heads of query (4, 8, 64), key (2, 8, 64)",
    ),
    "mask of five of five": (
        {"query": QUERY[None], "key": KEY[None], "value": VALUE[None], "attn_mask": ONES[:, :7]},
        ValueError,
        "2 to 5 dimensions",
    ),
    "no tensor": (dict(value=None), TypeError, "value: a NoneType"),
    "dropout": (dict(dropout_p=0.1), NotImplementedError, "dropout_p: 0.1"),
    "float32": (
        dict(query=QUERY.float(), key=KEY.float(), value=VALUE.float()),
        TypeError,
        "q: dtype torch.float32 has no kernel",
    ),
    "two masks": (dict(is_causal=True, attn_mask=ONES), ValueError, "is_causal: True with attn_mask"),
    "mask of numbers": (dict(attn_mask=ONES.int()), TypeError, "attn_mask: dtype torch.int32"),
    "mask of another dtype": (dict(attn_mask=ONES.half()), TypeError, "attn_mask: dtype torch.float16"),
    "mask of keys alone": (dict(attn_mask=ONES[0]), ValueError, "attn_mask: shape (8,)"),
    "mask too short": (dict(attn_mask=ONES[:, :7]), ValueError, "here (2, 4, 8, 8)"),
    "mask of five": (dict(attn_mask=ONES[None, None, None]), ValueError, "accepted: 2 to 4 dimensions"),
    "grouped heads": (dict(enable_gqa=False), ValueError, "pass enable_gqa=True"),
    "key of another depth": (dict(key=KEY[..., :40]), ValueError, "key: head_dim 40 while query has 64"),
    "wide heads": (
        {n: torch.zeros(1, 2, 8, 520, dtype=torch.bfloat16) for n in ("query", "key", "value")},
        ValueError,
        "q: head_dim 520",
    ),
    "negative scale": (dict(scale=-1.0), ValueError, "softmax_scale: -1.0"),
}  # fmt: skip


@pytest.mark.parametrize("arguments, error, text", REFUSED.values(), ids=REFUSED)
def test_refusal_names_argument_value_and_what_is_accepted(arguments, error, text):
    call = {"query": QUERY, "key": KEY, "value": VALUE, "enable_gqa": True, **arguments}
    with pytest.raises(error) as refused:
        cute_fa4.scaled_dot_product_attention(**call)
    assert text in str(refused.value)


def test_the_signature_is_torchs():
    import inspect

    *names, last = inspect.signature(cute_fa4.scaled_dot_product_attention).parameters.values()
    theirs = "query key value attn_mask dropout_p is_causal scale enable_gqa"
    assert [each.name for each in names] == theirs.split()
    assert (last.name, last.kind) == ("batch_invariant", last.KEYWORD_ONLY)


def test_a_layer_of_torch_trains_through_it():
    """is_causal of torch is aligned to the top left: with 20 queries on 30 keys it is not that of the other functions.

    Beside torch's own in bf16, whose P, dS and out are rounded likewise: at most twice its error, and the rounding.
    """
    given = [x.requires_grad_() for x in draw(20, 30, heads=(2, 2))]
    options = dict(is_causal=True)
    exact = torch.autograd.grad(torchs(*(x.double() for x in given), **options).sum(), given)
    by_torch = torch.autograd.grad(torchs(*given, **options).sum(), given)
    out = cute_fa4.scaled_dot_product_attention(*given, **options)
    for found, rounded, wanted in zip(
        torch.autograd.grad(out.sum(), given), by_torch, exact, strict=True
    ):
        most = 2 * (rounded.double() - wanted).abs().max() + wanted.abs().max() * 2.0**-8
        assert (found.double() - wanted).abs().max() <= most
