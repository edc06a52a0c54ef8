"""torch.autograd through the public functions: gradients against float64, in graphs, packed, and what is refused."""

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from cute_fa4.operators import OPERATORS
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error

CAUSAL = dict(causal=True)
OPTIONS = {
    "full": {},
    "causal": CAUSAL,
    "window": dict(window_size=(40, 10)),
    "scale": dict(softmax_scale=0.3, causal=True),
}


def qkv(*rows, seed=0, heads=(4, 2), depth=64, dtype=torch.bfloat16) -> list[torch.Tensor]:
    """q, k and v that want a gradient, and the gradient of out."""
    random = torch.Generator().manual_seed(seed)
    shapes = [(*rows, h, depth) for h in (heads[0], heads[1], heads[1], heads[0])]
    q, k, v, dout = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    return [x.requires_grad_() for x in (q, k, v)] + [dout]


def is_right(found, q, k, v, dout, **options) -> bool:
    q, k, v = (x.detach() for x in (q, k, v))
    exact = gradients_float64(q, k, v, dout, **options)
    allowed = allowed_gradient_errors(q, k, v, dout, **options)
    errors = [max_error(a, b) for a, b in zip(found, exact, strict=True)]
    return all(error <= most for error, most in zip(errors, allowed, strict=True))


@pytest.mark.parametrize("name", OPTIONS)
def test_autograd_gives_the_gradients_of_float64(name):
    """150 rows: two tiles, the second of them ragged; two heads of a group, two sequences."""
    *tensors, dout = qkv(2, 150)
    out = flash_attn_func(*tensors, **OPTIONS[name])
    found = torch.autograd.grad(out, tensors, dout)
    assert is_right(found, *tensors, dout, **OPTIONS[name])


@pytest.mark.parametrize("only", [0, 1, 2])
def test_one_of_three_may_be_what_is_asked_for(only):
    *tensors, dout = qkv(1, 20)
    every = torch.autograd.grad(flash_attn_func(*tensors), tensors, dout)
    tensors = [x.detach() for x in tensors]
    tensors[only].requires_grad_()
    flash_attn_func(*tensors).backward(dout)
    assert tensors[only].grad.equal(every[only])
    assert all(x.grad is None for at, x in enumerate(tensors) if at != only)


def test_out_and_lse_together():
    """A loss of both is the sum of two; out alone and lse alone are roundings apart from it."""
    *tensors, dout = qkv(1, 140)
    out, lse = flash_attn_func(*tensors, causal=True, return_lse=True)
    dlse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out, lse), tensors, (dout, dlse))
    assert is_right(found, *tensors, dout, dlse=dlse, causal=True)
    _, lse = flash_attn_func(*tensors, causal=True, return_lse=True)
    found = torch.autograd.grad(lse, tensors, dlse)
    assert is_right(found, *tensors, torch.zeros_like(dout), dlse=dlse, causal=True)
    assert not found[2].any()  # v has no part in it


def test_a_gradient_of_any_strides_is_taken():
    """out.sum() hands over one number with strides 0, a transposed loss one whose heads lie first."""
    *tensors, dout = qkv(1, 30)
    found = torch.autograd.grad(flash_attn_func(*tensors).sum(), tensors)
    assert is_right(found, *tensors, torch.ones_like(dout))
    heads_first = dout.transpose(1, 2).contiguous()
    found = torch.autograd.grad(flash_attn_func(*tensors).transpose(1, 2), tensors, heads_first)
    assert is_right(found, *tensors, dout)


def test_one_graph_of_forward_and_backward():
    torch._dynamo.reset()
    *tensors, dout = qkv(1, 40)

    def loss(q, k, v):
        return flash_attn_func(q * 2, k, v, causal=True).float().square().sum()

    plain = torch.autograd.grad(loss(*tensors), tensors)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(plain, torch.autograd.grad(compiled(*tensors), tensors), strict=True):
        assert a.equal(b)
    torch._dynamo.reset()


def test_a_packed_sequence_has_the_gradients_that_it_has_alone():
    """Sequences of one row, of no row, of a ragged tile and of two: bit for bit, with NaN behind all of them."""
    lengths = [100, 1, 0, 200, 128]
    *tensors, dout = qkv(sum(lengths) + 3)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    with torch.no_grad():
        for x in (*tensors, dout):
            x[offsets[-1] :] = torch.nan
    limits = (offsets, offsets, max(lengths), max(lengths))
    out = flash_attn_varlen_func(*tensors, *limits, causal=True)
    found = torch.autograd.grad(out, tensors, dout)
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        alone = [x[None, begin:end].detach().requires_grad_() for x in tensors]
        out = flash_attn_func(*alone, causal=True)
        if begin == end:
            continue
        by_itself = torch.autograd.grad(out, alone, dout[None, begin:end])
        for a, b in zip(found, by_itself, strict=True):
            assert a[begin:end].equal(b[0])


@pytest.fixture
def nan_in_new_memory():
    """torch.empty gives NaN: what no kernel writes is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("first, end", [(3, 43), (0, 0)])
def test_rows_of_no_sequence_have_gradients_of_zero(nan_in_new_memory, first, end):
    """A projection sums the gradients of all rows. Before and behind the sequence, or with no row in any sequence."""
    *tensors, dout = qkv(50)
    offsets = torch.tensor([first, end], dtype=torch.int32)
    out = flash_attn_varlen_func(*tensors, offsets, offsets, end - first, end - first)
    for gradient in torch.autograd.grad(out, tensors, dout):
        assert not gradient[:first].any() and not gradient[end:].any()
        assert bool(gradient[first:end].all(-1).all()) and not gradient.isnan().any()


def test_no_rows_and_no_keys_have_gradients_of_zero():
    for rows, keys in ((0, 5), (5, 0)):
        q = torch.randn(1, rows, 2, 64, dtype=torch.bfloat16, requires_grad=True)
        k = torch.randn(1, keys, 2, 64, dtype=torch.bfloat16, requires_grad=True)
        dq, dk = torch.autograd.grad(flash_attn_func(q, k, k).sum(), (q, k))
        assert not dq.any() and not dk.any()


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(softcap=2.0), "with score_mod"),
        (dict(learnable_sink=torch.zeros(4)), "with learnable_sink"),
        (dict(key_limit=torch.tensor([5], dtype=torch.int32)), "with key_limit"),
        (dict(mask="chunked"), "with the mask Chunked"),
        (dict(depth=136), "for head_dim 136 of q; accepted head dims: up to 128"),
    ],
)
def test_what_has_no_derivative_is_refused_by_name(options, text):
    from cute_fa4 import masks

    *tensors, _ = qkv(1, 8, depth=options.pop("depth", 64))
    if "mask" in options:
        options["mask"] = masks.chunked(4)
    text = f"^q: requires_grad is True and the backward pass is not built {text}.*no_grad"
    with pytest.raises(NotImplementedError, match=text):
        flash_attn_func(*tensors, **options)
    with torch.no_grad():
        flash_attn_func(*tensors, **options)


def test_a_second_derivative_is_refused_by_name():
    *tensors, dout = qkv(1, 8)
    out = flash_attn_func(*tensors)
    with pytest.raises(NotImplementedError, match="^q: .*double backward.*create_graph=False"):
        torch.autograd.grad(out, tensors, dout, create_graph=True)


def test_the_operator_has_a_derivative_without_the_function():
    *tensors, dout = qkv(1, 8)
    out, lse = OPERATORS["flash_attn"](*tensors)
    assert lse.numel() == 0 and not lse.requires_grad
    assert is_right(torch.autograd.grad(out, tensors, dout), *tensors, dout)


def test_offsets_without_a_longest_length_are_refused():
    """A length of None would launch nothing, and the gradients would be zeros."""
    q, k, v, dout = (x.detach() for x in qkv(20))
    offsets = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor([0, 20]).int())
    lse = torch.zeros(4, 20)
    with pytest.raises(ValueError, match="^max_seqlen_q: None with offsets"):
        torch.ops.cute_fa4.flash_attn_backward(
            dout, q, k, v, dout, lse, **offsets, softmax_scale=1.0
        )
