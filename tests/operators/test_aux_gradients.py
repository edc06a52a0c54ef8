"""torch.autograd through score functions to the tensors that they read: slopes, tables of distances, biases.

70 queries and keys: one tile of each side, ragged; two heads of a group, two sequences, whose gradients add up.
"""

from functools import partial

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func, scaled_dot_product_attention
from cute_fa4.score_mods import ScoreMod
from tests.operators.test_gradients import of_compiler, qkv
from tests.sm100.backward.exact_sums import are_within, exact_and_allowed

ROWS = 70
HEAD, QUERY, KEY = torch.arange(4)[:, None, None], torch.arange(ROWS)[:, None], torch.arange(ROWS)
VISIBLE = KEY <= QUERY
RANDOM = torch.Generator().manual_seed(3)


def alibi(score, batch, head, q_idx, kv_idx, aux):
    return score - aux[0][head] * abs(q_idx - kv_idx)


def t5(score, batch, head, q_idx, kv_idx, aux):
    """Distances have buckets by the table aux[1]."""
    return score + aux[0][aux[1][torch.clamp(q_idx - kv_idx, 0, 63)], head]


def clipped(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][head, torch.clamp(q_idx - kv_idx, -20, 20) + 20]


def scaled(score, batch, head, q_idx, kv_idx, aux):
    """A tensor in two places, of which one decides alone."""
    return torch.where(aux[0][head] > 0, score * aux[0][head], score - 1.0) + aux[0][3]


CLIPPED = ScoreMod.of(clipped)
BUCKETS = torch.log2(torch.arange(1.0, 65.0)).to(torch.int32)
FUNCTIONS = {
    "ALiBi": (alibi, (torch.rand(4, generator=RANDOM) / 4,)),
    "T5": (t5, (torch.randn(7, 4, generator=RANDOM), BUCKETS)),
    "a table of clipped distances": (clipped, (torch.randn(4, 41, generator=RANDOM),)),
    "one tensor twice": (scaled, (torch.tensor([1.5, -0.5, 0.25, 2.0]),)),
}


def wanting(aux):
    """Copies of which those of floats want a gradient."""
    return [x.clone().requires_grad_(x.is_floating_point()) for x in aux]


@pytest.mark.parametrize("depth", (64, 256))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_reads_has_the_gradient_of_float64(name, depth):
    function, aux = FUNCTIONS[name]
    *tensors, dout = qkv(2, ROWS, depth=depth)
    given = wanting(aux)
    out = flash_attn_func(*tensors, score_mod=function, aux_tensors=given, causal=True)
    *of_qkv, found = torch.autograd.grad(out, [*tensors, given[0]], dout)

    def of_all(s, tensors):
        return function(s, 0, HEAD, QUERY, KEY, [tensors[0], *aux[1:]])

    assert found.dtype is aux[0].dtype
    assert are_within(
        [found], *exact_and_allowed([*tensors, dout], of_all, aux[:1], VISIBLE, out=out)
    )
    out = flash_attn_func(*tensors, score_mod=function, aux_tensors=aux, causal=True)
    for a, b in zip(of_qkv, torch.autograd.grad(out, tensors, dout), strict=True):
        assert a.equal(b)


def test_a_packed_batch_has_the_sum_of_its_sequences():
    """Of one forward pass; NaN after them. The parts are rounded to float32, and their sum again."""
    lengths = [70, 0, 30]
    *tensors, dout = (x.detach() for x in qkv(sum(lengths) + 5))
    for x in (*tensors, dout):
        x[sum(lengths) :] = torch.nan
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    table, options = FUNCTIONS["a table of clipped distances"][1], dict(score_mod=CLIPPED)
    of_call = offsets, offsets, max(lengths), max(lengths)
    out, lse = flash_attn_varlen_func(
        *tensors, *of_call, aux_tensors=table, causal=True, return_lse=True, **options
    )
    backward = partial(
        torch.ops.cute_fa4.flash_attn_backward_aux,
        wanted=[0], softmax_scale=0.125, mask="Causal()", score_mod=CLIPPED.key, aux_tensors=table,
    )  # fmt: skip
    given = dout, *tensors, out
    longest = dict(max_seqlen_q=max(lengths), max_seqlen_k=max(lengths))
    (together,) = backward(*given, lse, cu_seqlens_q=offsets, cu_seqlens_k=offsets, **longest)
    parts = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        parts += backward(*(x[None, begin:end] for x in given), lse[None, :, begin:end])
    torch.testing.assert_close(together, sum(parts), rtol=1e-6, atol=1e-6)


def test_a_mask_of_scaled_dot_product_attention_has_a_gradient():
    """Of one batch and all heads: autograd adds up what the expanded mask has."""
    *tensors, dout = (x.detach() for x in qkv(2, ROWS, heads=(2, 2)))
    bias = torch.randn(2, ROWS, ROWS, generator=RANDOM, requires_grad=True)
    heads_first = [x.transpose(1, 2) for x in tensors]
    out = scaled_dot_product_attention(*heads_first, attn_mask=bias)
    (found,) = torch.autograd.grad(out, bias, dout.transpose(1, 2))
    of_all = lambda s, aux: s + aux[0]
    assert are_within([found], *exact_and_allowed([*tensors, dout], of_all, [bias]))


def test_one_graph_of_forward_and_backward():
    torch._dynamo.reset()
    *tensors, _ = qkv(1, ROWS)
    (slopes,), mod = wanting(FUNCTIONS["ALiBi"][1]), ScoreMod.of(alibi)

    def loss(q, k, v, slopes):
        out = flash_attn_func(q, k, v, score_mod=mod, aux_tensors=[slopes * 2], causal=True)
        return out.float().square().sum()

    wanted = [*tensors, slopes]
    plain = torch.autograd.grad(loss(*wanted), wanted)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(plain, torch.autograd.grad(compiled(*wanted), wanted), strict=True):
        assert a.equal(b)
    torch._dynamo.reset()


def test_what_no_score_depends_on_has_a_gradient_of_zero():
    """Read by a mask_mod, or in a comparison alone; no keys, or no rows."""
    *tensors, dout = qkv(1, 8)
    (x,) = wanting([torch.tensor([1.0, -1.0, 1.0, 1.0])])
    options = dict(mask_mod=lambda b, h, i, j, aux: (aux[0][h] > 0) | (j < 4), aux_tensors=[x])
    assert not torch.autograd.grad(flash_attn_func(*tensors, **options), x, dout)[0].any()
    options = dict(score_mod=lambda s, b, h, i, j, aux: torch.where(aux[0][h] > 0, s, s * 2))
    out = flash_attn_func(*tensors, **options, aux_tensors=[x])
    assert not torch.autograd.grad(out, x, dout)[0].any()
    (slopes,) = wanting(FUNCTIONS["ALiBi"][1])
    of_none = [y[:, :0] for y in tensors]
    out = flash_attn_func(tensors[0], *of_none[1:], score_mod=alibi, aux_tensors=[slopes])
    assert not torch.autograd.grad(out, slopes, dout)[0].any()


def test_what_has_no_derivative_is_refused_by_name():
    *tensors, dout = (x.detach() for x in qkv(1, 8))
    (slopes,) = wanting(FUNCTIONS["ALiBi"][1])
    with pytest.raises(NotImplementedError, match=r"^aux_tensors\[0\]: .*values of the compiler"):
        flash_attn_func(*tensors, score_mod=of_compiler, aux_tensors=[slopes])
    out = flash_attn_func(*tensors, score_mod=alibi, aux_tensors=[slopes])
    with pytest.raises(NotImplementedError, match=r"^aux_tensors\[0\]: .*double backward"):
        torch.autograd.grad(out, slopes, dout, create_graph=True)
