"""Lists of a mask function and flex_attention, against torch's: create_block_mask and flex_attention in float64."""

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from cute_fa4 import BlockSparseTensors, block_mask, flex_attention
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from tests.attention.listed import Listed, assert_right

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # that the emulator runs, and that torch's is not compiled

MASKS = {
    "causal": lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
    "near, by sequence and head": lambda b, h, q_idx, kv_idx: (
        abs(q_idx - kv_idx) < 100 + 50 * b + 90 * h
    ),
    "documents": lambda b, h, q_idx, kv_idx: q_idx // 200 == kv_idx // 200,
    "nothing": lambda b, h, q_idx, kv_idx: q_idx < 0,
}


def lists_of(counts, entries) -> list:
    """The entries that count, of each block of queries."""
    rows = zip(counts.flatten().tolist(), entries.flatten(0, -2).tolist(), strict=True)
    return [row[:count] for count, row in rows]


@pytest.mark.parametrize("name", MASKS)
def test_lists_are_those_of_torch(name):
    """All blocks are whole, 4 x 5 of them: of a last block that is not whole torch makes a partial one."""
    sizes = 2, 2, 512, 640
    theirs = create_block_mask(MASKS[name], *sizes, device="cpu", BLOCK_SIZE=128)
    ours = block_mask(MASKS[name], *sizes, block_size=(128, 128))
    theirs = BlockSparseTensors.from_flex(theirs)
    assert ours.block_size == theirs.block_size
    for fields in (slice(0, 2), slice(2, 4)):
        assert lists_of(*ours[fields]) == lists_of(*theirs[fields])


def test_lists_are_exact_where_lengths_end_within_blocks(monkeypatch):
    """A function of aux tensors and positions, in steps of one block of queries; by the definition of full."""
    monkeypatch.setattr("cute_fa4.block_sparsity.SCORES_AT_ONCE", 1)
    limits = torch.randint(0, 700, (300,), generator=torch.Generator().manual_seed(0)) // 2
    limits[128:256] = 600
    shown = torch.arange(700) <= limits[:, None] + 150
    shown &= torch.arange(700) < torch.arange(300)[:, None] + 700 - 300 + 100

    def mask_mod(batch, head, q_idx, kv_idx, aux):
        return (kv_idx <= aux[0][q_idx] + 150) & (kv_idx < aux.position + 100)

    found = block_mask(mask_mod, 1, 1, 300, 700, block_size=(128, 256), aux_tensors=[limits])
    parts = [[x.split(256, 1) for x in rows] for rows in [shown.split(128)]]
    blocks = [[part.double().mean() for part in row] for row in parts[0]]
    partial = [[n for n, seen in enumerate(row) if 0 < seen < 1] for row in blocks]
    full = [[n for n, seen in enumerate(row) if seen == 1] for row in blocks]
    assert lists_of(*found[:2]) == partial and lists_of(*found[2:4]) == full
    assert any(full) and any(partial)


@pytest.mark.parametrize("block", (128, 64, (64, 128)))
def test_flex_attention_is_torchs(block):
    """Grouped heads, a score function, and 300 queries and 500 keys."""
    call = Listed.draw((2, 300, 500), (4, 2), (128, 128), (1.0,) * 4)
    mask = create_block_mask(
        lambda b, h, q_idx, kv_idx: q_idx >= kv_idx - 40 * h, None, 4, 300, 500,
        device="cpu", BLOCK_SIZE=block,
    )  # fmt: skip

    def nearer(score, b, h, q_idx, kv_idx):
        return score + 0.01 * (kv_idx - q_idx)

    heads_first = [x.transpose(1, 2) for x in (call.q, call.k, call.v)]
    options = dict(score_mod=nearer, block_mask=mask, scale=0.125, enable_gqa=True, return_lse=True)
    out, lse = flex_attention(*heads_first, **options)
    exact, exact_lse = torch_flex.flex_attention(*(x.double() for x in heads_first), **options)
    size, _ = torch_flex.flex_attention(
        heads_first[0].double(), heads_first[1].double(), heads_first[2].double().abs(), **options
    )
    allowed = 2.0**-8 * (1.1 * size + exact.abs()) + 1e-5
    rows_first = (out, exact, allowed)
    out, exact, allowed = (x.transpose(1, 2) for x in rows_first)
    assert_right((out, lse), (exact, exact_lse.double(), allowed))


def test_a_block_mask_has_the_gradients_of_its_function():
    """Against float64, over three tiles of 260 queries and four of 400 keys, of which a window hides most."""
    call = Listed.draw((1, 260, 400), (2, 1), (128, 128), (1.0, 1.0))
    near = MASKS["near, by sequence and head"]
    mask = create_block_mask(near, None, 2, 260, 400, device="cpu", BLOCK_SIZE=128)
    tensors = [x.requires_grad_() for x in (call.q, call.k, call.v)]
    heads_first = [x.transpose(1, 2) for x in tensors]
    out = flex_attention(*heads_first, block_mask=mask, enable_gqa=True).transpose(1, 2)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = torch.autograd.grad(out, tensors, dout)
    heads, rows, keys = (
        torch.arange(2)[:, None, None],
        torch.arange(260)[:, None],
        torch.arange(400),
    )
    given = *(x.detach() for x in tensors), dout
    exact, allowed = (
        f(*given, visible=near(0, heads, rows, keys))
        for f in (gradients_float64, allowed_gradient_errors)
    )
    assert all(max_error(a, b) <= most for a, b, most in zip(found, exact, allowed, strict=True))


def test_a_block_mask_without_a_function_hides_nothing_of_its_blocks():
    """noop_mask of torch, which from_kv_blocks takes by default."""
    call = Listed.draw((1, 128, 256), (1, 1), (128, 128), (1.0,))
    blocks = torch.ones(1, 1, 1, dtype=torch.int32), torch.tensor([[[[1, 0]]]], dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=128, seq_lengths=(128, 256))
    heads_first = [x.transpose(1, 2) for x in (call.q, call.k, call.v)]
    found = flex_attention(*heads_first, block_mask=mask, return_lse=True)
    visible = (torch.arange(256) >= 128).expand(1, 1, 128, 256)
    assert_right((found[0].transpose(1, 2), found[1]), call.expected(visible))


X = torch.zeros(1, 2, 128, 64, dtype=torch.bfloat16)
CAUSAL = create_block_mask(MASKS["causal"], None, None, 128, 128, device="cpu")
REFUSED = {
    "heads": (dict(key=X[:, :1], value=X[:, :1]), ValueError, "key: 1 heads while query has 2.*enable_gqa"),
    "lengths": (dict(query=X[:, :, :100], block_mask=CAUSAL), ValueError, "block_mask: of 128 queries.*100 and 128"),
    "small blocks": (
        dict(block_mask=create_block_mask(MASKS["causal"], None, None, 128, 128, device="cpu", BLOCK_SIZE=40)),
        ValueError, "block_size: .40, 40.; accepted: multiples of 16",
    ),
    "no mask": (dict(block_mask=X), TypeError, "mask: a Tensor; accepted"),
    "options": (dict(kernel_options={"BLOCK_M": 64}), NotImplementedError, "kernel_options"),
    "rank": (dict(query=X[0]), ValueError, "query: shape .2, 128, 64.; accepted: .batch, heads"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_argument(name):
    given, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        flex_attention(**dict(query=X, key=X, value=X) | given)


@pytest.mark.parametrize(
    "given, text",
    [(dict(heads=0), "heads: 0"), (dict(block_size=(128, 1.5)), "block_size.1.: 1.5")],
)
def test_sizes_of_a_block_mask_are_checked(given, text):
    sizes = dict(batch=1, heads=1, seqlen_q=4, seqlen_k=4) | given
    with pytest.raises(ValueError, match=text):
        block_mask(MASKS["causal"], **sizes)
