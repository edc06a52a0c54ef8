"""interval_mask: a query sees the keys of the intervals that it lists, in every storage, and no others."""

import pytest
import torch

from cute_fa4 import block_mask, flash_attn_func, flash_attn_varlen_func, interval_mask
from tests.attention.agreement import attention
from tests.serving.batches import LSE_ERROR, int32, offsets

HEADS, HEADS_KV, DEPTH = 4, 2, 64
LENGTHS = ((140, 300), (1, 20), (60, 130))  # queries, keys of sequences


def drawn(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).bfloat16()


def ends(heads, number, rows, keys, seed=0):
    """Any numbers, also before 0, beyond the keys and in the wrong order; the first rows see nothing."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-20, keys + 20, (heads, number, rows), generator=generator)
    found[:, :, :5] = 0
    return found.to(torch.int32)


def shown(endpoints, keys):
    """(heads, rows, keys): the definition."""
    kv, ends = torch.arange(keys), endpoints[..., None]
    found = kv < ends[:, 0]
    for i in range(1, endpoints.shape[1], 2):
        found |= (kv >= ends[:, i]) & (kv < ends[:, i + 1])
    return found


def in_float64(q, k, v, seen):
    """out (rows, heads, depth) and LSE (heads, rows) of one sequence. seen: as shown returns it."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = (q @ k.mT * DEPTH**-0.5).masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    return (torch.exp(scores - lse[..., None].nan_to_num(neginf=0.0)) @ v).transpose(0, 1), lse


def assert_right(found, q, k, v, seen):
    out, lse = found
    expected, expected_lse = in_float64(q, k, v, seen)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=0, atol=LSE_ERROR)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2**-7 * v.abs().max().item())
    assert (out.transpose(0, 1)[torch.isneginf(expected_lse)] == 0).all()


def batch(lengths=LENGTHS):
    """q, k and v of each sequence."""
    return [
        (drawn(m, HEADS, DEPTH, seed=i), *drawn(2, n, HEADS_KV, DEPTH, seed=9 + i))
        for i, (m, n) in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    "storage, number, heads", [("packed", 5, 1), ("padded", 1, HEADS), ("pages", 3, HEADS)]
)
def test_any_intervals_are_those_of_float64(storage, number, heads):
    sequences = batch()
    queries, keys = zip(*LENGTHS, strict=True)
    q, k, v = (torch.cat(x) for x in zip(*sequences, strict=True))
    places = offsets(queries)
    given = dict(cu_seqlens_q=places, cu_seqlens_k=offsets(keys))
    if storage != "packed":
        k, v = (
            torch.stack([torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 304 - len(x))) for x in each])
            for each in list(zip(*sequences, strict=True))[1:]
        )
        given = dict(cu_seqlens_q=places, seqused_k=int32(keys))
    if storage == "pages":
        k, v = (x.unflatten(1, (-1, 16)).flatten(0, 1) for x in (k, v))
        given["page_table"] = torch.arange(len(k), dtype=torch.int32).reshape(len(keys), -1)
    endpoints = ends(heads, number, len(q), max(keys))
    out, lse = attention(
        q,
        k,
        v,
        function=flash_attn_varlen_func,
        mask_mod=interval_mask(endpoints),
        return_lse=True,
        **given,
        max_seqlen_q=max(queries),
    )
    for b, (q_b, k_b, v_b) in enumerate(sequences):
        rows = slice(places[b], places[b + 1])
        seen = shown(endpoints[..., rows], len(k_b))
        assert_right((out[rows], lse[:, rows]), q_b, k_b, v_b, seen)


def documents(lengths, causal):
    """(1, 3, rows): the keys of the query's own document, up to its own."""
    first = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    begin = first.repeat_interleave(torch.tensor(lengths))
    rows = torch.arange(len(begin))
    end = (
        rows + 1
        if causal
        else begin + torch.tensor(lengths).repeat_interleave(torch.tensor(lengths))
    )
    return torch.stack((torch.zeros_like(begin), begin, end))[None].to(torch.int32)


@pytest.mark.parametrize("causal", [False, True])
def test_documents_visit_the_key_tiles_of_their_own(causal, monkeypatch):
    """Documents of 256, 128 and 130 tokens in each of two sequences: 9 or 7 of 25 pairs of blocks are listed."""
    lengths = 256, 128, 130
    endpoints = documents(lengths, causal).repeat(1, 1, 2)
    q, k, v = drawn(2, 514, HEADS, DEPTH), *drawn(2, 2, 514, HEADS_KV, DEPTH, seed=1)
    mask = interval_mask(endpoints)
    lists = block_mask(mask, 2, 1, 514, 514, block_size=(128, 128))
    listed = lists.mask_block_cnt + lists.full_block_cnt
    assert listed.tolist() == [[[1, 2, 1, 1, 2] if causal else [2, 2, 1, 2, 2]]] * 2
    found = attention(q, k, v, mask_mod=mask, block_sparse_tensors=lists, return_lse=True)
    for b in range(2):
        own = tuple(x[b] for x in (q, k, v))
        assert_right([x[b] for x in found], *own, shown(documents(lengths, causal), 514))


def test_gradients_are_those_of_float64():
    queries, keys = 40, 150
    endpoints = ends(HEADS, 3, queries, keys)
    given = drawn(queries, HEADS, DEPTH), *drawn(2, keys, HEADS_KV, DEPTH, seed=1)
    leaves = [x[None].requires_grad_() for x in given]
    out = attention(*leaves, mask_mod=interval_mask(endpoints))
    weights = drawn(*out.shape, seed=2)
    out.backward(weights)
    exact = [x.double().requires_grad_() for x in given]
    expected, _ = in_float64(*exact, shown(endpoints, keys))
    expected.backward(weights[0].double())
    for x, y in zip(leaves, exact, strict=True):
        error = (x.grad[0].double() - y.grad).norm() / y.grad.norm()
        assert error < 2**-6  # q, k, P and dS are rounded to bf16, by 2^-9 each


def test_in_compiled_functions_and_under_vmap():
    q, k, v = (drawn(2, 1, 20, 2, DEPTH, seed=i) for i in range(3))
    mask = interval_mask(ends(1, 3, 20, 20))

    def call(q, k, v):
        return attention(q, k, v, mask_mod=mask)

    each = torch.stack([call(*x) for x in zip(q, k, v, strict=True)])
    assert torch.equal(torch.vmap(lambda *x: flash_attn_func(*x, mask_mod=mask))(q, k, v), each)
    compiled = torch.compile(call, backend="eager")
    assert torch.equal(compiled(q[0], k[0], v[0]), each[0])


def test_other_numbers_of_the_same_tensor_are_read_at_the_next_call():
    q, k, v = (drawn(1, 20, 2, DEPTH, seed=i) for i in range(3))
    endpoints = torch.full((1, 1, 20), 20, dtype=torch.int32)
    mask = interval_mask(endpoints)
    whole = attention(q, k, v, mask_mod=mask)
    endpoints.fill_(0)
    assert whole.any() and not attention(q, k, v, mask_mod=mask).any()


@pytest.mark.parametrize(
    "endpoints, error, text",
    [
        ([[[1]]], TypeError, "endpoints: .*accepted: a tensor of torch.int32"),
        (torch.zeros(1, 1, 20), TypeError, "endpoints: torch.float32; accepted"),
        (int32([1]), ValueError, r"shape \(1,\); accepted: \(1 or query heads, an odd number"),
        (int32([1, 2])[None, :, None], ValueError, r"shape \(1, 2, 1\); accepted"),
    ],
)
def test_other_endpoints_are_refused(endpoints, error, text):
    with pytest.raises(error, match=text):
        interval_mask(endpoints)


@pytest.mark.parametrize("shape", [(1, 3, 20), (3, 3, 40)])
def test_a_call_of_other_heads_or_rows_is_refused(shape):
    """Its rows would be those of another sequence, or lie beyond the tensor."""
    mask, q = interval_mask(torch.zeros(shape, dtype=torch.int32)), drawn(2, 20, 2, DEPTH)
    text = r"interval_mask of endpoints .* for 2 query heads and 40 query rows; accepted"
    with pytest.raises(ValueError, match=text):
        flash_attn_func(q, q, q, mask_mod=mask)
    with pytest.raises(ValueError, match=text):
        block_mask(mask, 2, 2, 20, 20)
