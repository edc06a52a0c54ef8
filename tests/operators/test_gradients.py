"""torch.autograd through the public functions: gradients against float64, in graphs, packed, and what is refused."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cute_fa4 import block_mask, flash_attn_func, flash_attn_varlen_func, masks
from cute_fa4.operators import OPERATORS
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from cute_fa4.score_mods import ScoreMod
from tests.suite import turns

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


KEYS = torch.arange(150)
LIMIT = torch.tensor([90, 150], dtype=torch.int32)
SINK = torch.tensor([0.5, -1.0, -torch.inf, 2.0])
FAR_SINK = torch.tensor([70.0, torch.inf, 3e38, 0.5])  # weights of keys are e^-60 and 0


def bent(score, batch, head, q_idx, kv_idx, aux):
    return torch.where(kv_idx > q_idx, torch.tanh(score), score * aux[0][head])


def of_compiler(score, batch, head, q_idx, kv_idx):
    import cutlass.cute as cute

    return cute.math.tanh(score)


def of_tanh(grad, score, batch, head, q_idx, kv_idx):
    return grad * (1 - torch.tanh(score) ** 2)


SLOPES = torch.tensor([0.5, 1.0, 0.25, 2.0])
# (options of the call, what the oracle is told): the same functions, of all scores at once.
FUNCTIONS = {
    "soft cap": (dict(softcap=2.0), dict(score_mod=lambda s: 2 * torch.tanh(s / 2))),
    "a function and a mask of the user": (
        dict(score_mod=bent, mask_mod=lambda b, h, i, j: (i + j) % 3 > 0, aux_tensors=[SLOPES]),
        dict(
            score_mod=lambda s: bent(s, 0, torch.arange(4)[:, None, None], KEYS[:, None], KEYS, [SLOPES]),
            visible=(KEYS[:, None] + KEYS) % 3 > 0,
        ),
    ),
    "a function of the compiler, with its backward, after a soft cap": (
        dict(softcap=3.0, score_mod=ScoreMod.of(of_compiler, backward=of_tanh)),
        dict(score_mod=lambda s: torch.tanh(3 * torch.tanh(s / 3))),
    ),
    "chunks": (dict(mask=masks.chunked(64)), dict(visible=KEYS[:, None] // 64 == KEYS // 64)),
    "key_limit": (dict(key_limit=LIMIT), dict(visible=KEYS < LIMIT[:, None, None, None])),
}  # fmt: skip


@pytest.mark.parametrize("name", turns.by_turns(FUNCTIONS))
def test_functions_of_scores_and_every_mask_have_gradients(name):
    """150 rows and two sequences, as above."""
    options, of_oracle = FUNCTIONS[name]
    *tensors, dout = qkv(2, 150)
    found = torch.autograd.grad(flash_attn_func(*tensors, **options), tensors, dout)
    assert is_right(found, *tensors, dout, **of_oracle)


@pytest.mark.parametrize("sink", [SINK, FAR_SINK], ids=["among the scores", "far above them"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_have_gradients(dtype, sink):
    *tensors, dout = qkv(2, 150)
    sink = sink.clone().to(dtype).requires_grad_()
    out, lse = flash_attn_func(*tensors, learnable_sink=sink, causal=True, return_lse=True)
    dlse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out, lse), [*tensors, sink], (dout, dlse))
    assert found[3].dtype is dtype
    assert is_right(found, *tensors, dout, dlse=dlse, causal=True, sink=sink.detach().float())


def test_sinks_alone_may_want_a_gradient():
    *tensors, dout = (x.detach() for x in qkv(1, 20))
    sink = SINK.clone().requires_grad_()
    flash_attn_func(*tensors, learnable_sink=sink).backward(dout)
    options = dict(sink=SINK)
    (*_, exact), (*_, most) = (
        f(*tensors, dout, **options) for f in (gradients_float64, allowed_gradient_errors)
    )
    assert max_error(sink.grad, exact) <= most


def test_without_keys_a_sink_is_the_log_sum_exp():
    q = torch.randn(2, 5, 2, 64, dtype=torch.bfloat16)
    k, sink = torch.empty(2, 0, 2, 64, dtype=torch.bfloat16), torch.zeros(2, requires_grad=True)
    _, lse = flash_attn_func(q, k, k, learnable_sink=sink, return_lse=True)
    dlse = torch.randn(2, 2, 5, generator=torch.Generator().manual_seed(1))
    (dsink,) = torch.autograd.grad(lse, sink, dlse)
    torch.testing.assert_close(dsink, dlse.sum((0, 2)))


def test_head_dims_of_256_with_functions_sinks_and_a_gradient_of_lse():
    """Tiles of 64 rows of the other side: 150 rows are two and a part, of which masks cut some."""
    *tensors, dout = qkv(1, 150, heads=(4, 2), depth=256)
    sink, (of_call, of_oracle) = (
        SINK.clone().requires_grad_(),
        FUNCTIONS["a function and a mask of the user"],
    )
    out, lse = flash_attn_func(
        *tensors, learnable_sink=sink, causal=True, return_lse=True, **of_call
    )
    dlse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out, lse), [*tensors, sink], (dout, dlse))
    visible = of_oracle["visible"] & (KEYS <= KEYS[:, None])
    of_oracle = of_oracle | dict(visible=visible, sink=SINK)
    assert is_right(found, *tensors, dout, dlse=dlse, **of_oracle)


PADDED = {
    "both sides": dict(seqused_q=[129, 0, 130], seqused_k=[60, 40, 129]),
    "keys": dict(seqused_k=[60, 0, 130]),
    "keys, and a limit": dict(seqused_k=[60, 20, 130], key_limit=[40, 30, 130]),
}


@pytest.mark.parametrize("name", turns.by_turns(PADDED))
def test_a_padded_sequence_has_the_gradients_that_it_has_alone(name):
    """Bit for bit, with NaN in the padding. 129 rows: a second tile. All of one forward pass, whose kernels differ."""
    lengths = {n: torch.tensor(x, dtype=torch.int32) for n, x in PADDED[name].items()}
    *tensors, dout = (x.detach() for x in qkv(3, 130))
    of_q, of_k = lengths.get("seqused_q", torch.full((3,), 130)), lengths["seqused_k"]
    for x, of in zip((*tensors, dout), (of_q, of_k, of_k, of_q), strict=True):
        x[torch.arange(130) >= of[:, None]] = torch.nan
    forward = flash_attn_varlen_func(*tensors, **lengths, causal=True, return_lse=True)
    backward = partial(torch.ops.cute_fa4.flash_attn_backward, softmax_scale=0.125, mask="Causal()")
    found = backward(dout, *tensors, *forward, **lengths)
    limits = lengths.get("key_limit", [None] * 3)
    for b in range(3):
        (dout_b, q, out), (k, v) = (
            [x[b : b + 1, : int(of[b])] for x in xs]
            for xs, of in (((dout, tensors[0], forward[0]), of_q), (tensors[1:], of_k))
        )
        lse = forward[1][b : b + 1, :, : int(of_q[b])]
        limit = None if limits[b] is None else limits[b : b + 1]
        alone = backward(dout_b, q, k, v, out, lse, key_limit=limit)
        for a, one, of in zip(found, alone, (of_q, of_k, of_k), strict=False):
            assert a[b, : int(of[b])].equal(one[0]) and not a[b, int(of[b]) :].any()


def test_packed_queries_may_meet_padded_keys():
    """As one of both forms alone: 70 and 30 queries, of which 40 and 30 keys are used."""
    *tensors, dout = qkv(2, 70)
    used = torch.tensor([40, 30], dtype=torch.int32)
    options = dict(seqused_k=used, causal=True)
    lengths = torch.tensor([70, 30], dtype=torch.int32)
    padded = flash_attn_varlen_func(*tensors, seqused_q=lengths, **options)
    wanted = torch.autograd.grad(padded, tensors, dout)
    rows = torch.cat([tensors[0][0], tensors[0][1, :30]]).detach().requires_grad_()
    offsets = torch.tensor([0, 70, 100], dtype=torch.int32)
    out = flash_attn_varlen_func(
        rows, *tensors[1:], cu_seqlens_q=offsets, max_seqlen_q=70, **options
    )
    dq, dk, dv = torch.autograd.grad(out, [rows, *tensors[1:]], torch.cat([dout[0], dout[1, :30]]))
    assert dq[:70].equal(wanted[0][0]) and dq[70:].equal(wanted[0][1, :30])
    assert dk.equal(wanted[1]) and dv.equal(wanted[2])


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
    """Sequences of one row, of no row, of a ragged tile and of two: bit for bit, with NaN after all of them."""
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
    """A projection sums the gradients of all rows. Before and after the sequence, or with no row in any sequence."""
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


EIGHT_BITS = torch.float8_e4m3fn
LISTED = dict(block_sparse_tensors=block_mask(lambda b, h, i, j: i >= j, 1, 1, 8, 8))
SCALES_OF_BLOCKS = {
    f"{name}_descale": torch.ones(1, 8, heads, 2).to(torch.float8_e8m0fnu)
    for name, heads in (("q", 4), ("k", 2))
}
NO_DERIVATIVE = {
    "a function of the compiler": (
        dict(score_mod=of_compiler), {}, "with score_mod .*, which handles values of the compiler",
    ),
    "head dims": ({}, dict(depth=272), "for head_dim 272 of q; accepted head dims of q: up to 256"),
    "8 bits": ({}, dict(dtype=EIGHT_BITS), "of torch.float8_e4m3fn and .*; accepted dtypes: bfloat16, float16"),
    "MXFP8": (SCALES_OF_BLOCKS, dict(dtype=EIGHT_BITS), "with q_descale"),
    "lists of 8 bits": (LISTED, dict(dtype=EIGHT_BITS), "of torch.float8_e4m3fn and .*; accepted dtypes: bf"),
    "lists of MXFP8": (LISTED | SCALES_OF_BLOCKS, dict(dtype=EIGHT_BITS), "with q_descale"),
}  # fmt: skip


@pytest.mark.parametrize("options, of_tensors, text", NO_DERIVATIVE.values(), ids=NO_DERIVATIVE)
def test_what_has_no_derivative_is_refused_by_name(options, of_tensors, text):
    *tensors, _ = qkv(1, 8, **of_tensors)
    text = f"^q: requires_grad is True and the backward pass is not supported {text}.*no_grad"
    with pytest.raises(NotImplementedError, match=text):
        flash_attn_func(*tensors, **options)
    with torch.no_grad():
        flash_attn_func(*tensors, **options)


def test_a_backward_of_a_compiler_function_that_reads_aux_is_refused():
    """The gradient of the aux tensor cannot be derived, and would silently be zeros."""

    def shifted(score, batch, head, q_idx, kv_idx, aux):
        return of_compiler(score, batch, head, q_idx, kv_idx) + aux[0][head]

    with pytest.raises(
        TypeError, match="^backward: .*of_tanh, of a function that handles .* reads aux"
    ):
        ScoreMod.of(shifted, backward=of_tanh)


# The last dimensions of k_rope: with and without its one head.
ROPES = {
    "dense": (2, 150),
    "dense, a head": (2, 150, 1),
    "packed": (150,),
    "packed, a head": (150, 1),
}


def with_rope(name) -> tuple:
    """(call of tensors, [q, k, v, k_rope, the gradient of out]): k has 64 columns, k_rope 16 that 2 heads share."""
    shape = ROPES[name]
    rows = shape[:-1] if name.endswith("head") else shape
    q, k, v, dout = qkv(*rows, depth=80)
    k, v, dout = k[..., :64], v[..., :64], dout[..., :64].contiguous()
    k, v = (x.detach().clone().requires_grad_() for x in (k, v))
    rope = torch.randn(*shape, 16, generator=torch.Generator().manual_seed(7)).bfloat16()

    def call(q, k, v, k_rope):
        if len(rows) == 2:
            return flash_attn_func(q, k, v, k_rope=k_rope, causal=True)
        offsets = torch.tensor([0, 20, 150], dtype=torch.int32)
        of_rows = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=130)
        return flash_attn_varlen_func(q, k, v, k_rope=k_rope, causal=True, **of_rows)

    return call, [q, k, v, rope.requires_grad_(), dout]


@pytest.mark.parametrize("name", ROPES)
def test_k_rope_has_the_gradient_of_its_columns_in_every_head(name):
    """The same call with the columns in k, by hand; out has the bits that it has without gradients."""
    call, (*tensors, dout) = with_rope(name)
    out = call(*tensors)
    found = torch.autograd.grad(out, tensors, dout)
    q, k, v, rope = (x.detach().requires_grad_() for x in tensors)
    columns = rope if name.endswith("head") else rope.unsqueeze(-2)
    joined = torch.cat((k, columns.expand(*k.shape[:-1], 16)), dim=-1)
    by_hand = call(q, joined, v, None)
    expected = torch.autograd.grad(by_hand, (q, k, v, rope), dout)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    with torch.no_grad():
        assert call(*tensors).equal(out)


def test_k_rope_has_its_gradient_in_a_graph_and_through_torch_func():
    call, (*tensors, dout) = with_rope("dense")
    expected = torch.autograd.grad(call(*tensors), tensors, dout)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*tensors), tensors, dout)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    _, pull_back = torch.func.vjp(call, *(x.detach() for x in tensors))
    assert all(a.equal(b) for a, b in zip(pull_back(dout), expected, strict=True))


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


def test_the_operator_gives_gradients_in_float32():
    """Those before they are rounded, of packed sequences, the last of which has one row. A fake has the same dtypes."""
    *tensors, dout = (x.detach() for x in qkv(131))
    offsets = torch.tensor([0, 130, 131], dtype=torch.int32)
    lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), offsets)
    lengths |= dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 130)
    sink = SINK.clone().bfloat16()
    options = dict(**lengths, learnable_sink=sink)
    forward = flash_attn_varlen_func(*tensors, **options, causal=True, return_lse=True)
    backward = partial(torch.ops.cute_fa4.flash_attn_backward, softmax_scale=0.125, mask="Causal()")
    found, rounded = (
        backward(dout, *tensors, *forward, **options, in_float32=flag) for flag in (True, False)
    )
    assert [x.dtype for x in found] == [torch.float32] * 3 + [torch.bfloat16]
    for a, b in zip(found, rounded, strict=True):
        assert a.to(torch.bfloat16).equal(b)
    with FakeTensorMode() as mode:
        given = (mode.from_tensor(x) for x in (dout, *tensors, *forward))
        options = options | {"learnable_sink": mode.from_tensor(sink)}
        options |= {name: mode.from_tensor(offsets) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        fake = backward(*given, **options, in_float32=True)
    assert [(x.shape, x.dtype) for x in fake] == [(x.shape, x.dtype) for x in found]


def test_offsets_without_a_longest_length_are_refused():
    """A length of None would launch nothing, and the gradients would be zeros."""
    q, k, v, dout = (x.detach() for x in qkv(20))
    offsets = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), torch.tensor([0, 20]).int())
    lse = torch.zeros(4, 20)
    with pytest.raises(ValueError, match="^max_seqlen_q: None with offsets"):
        torch.ops.cute_fa4.flash_attn_backward(
            dout, q, k, v, dout, lse, **offsets, softmax_scale=1.0
        )
