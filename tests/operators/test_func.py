"""Derivatives by torch.func through the public functions: the bits of torch.autograd, one example at a time.

20 queries and keys are one tile; the examples of vmap are what differs.
"""

import pytest
import torch

from cute_fa4 import BlockSparseTensors, flash_attn_func, flash_attn_varlen_func
from cute_fa4.operators import OPERATORS
from tests.operators.problems import int32

EXAMPLES, ROWS, HEADS = 3, 20, 2


def numbers(*shape, seed=0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


QKV = [numbers(EXAMPLES, 1, ROWS, HEADS, 64, seed=n).bfloat16() for n in range(3)]
OFFSETS = int32(0, 7, ROWS)
LISTS = BlockSparseTensors(int32(1).view(1, 1, 1), int32(0).view(1, 1, 1, 1), block_size=(128, 128))


def scaled(score, batch, head, q_idx, kv_idx, aux):
    return score * aux[0][head, kv_idx]


def causal(*qkv):
    return flash_attn_func(*qkv, causal=True)


def with_lse(*qkv):
    out, lse = flash_attn_func(*qkv, return_lse=True)
    return out * lse.transpose(1, 2)[..., None]


def with_sink(*qkv_and_sink):
    return flash_attn_func(*qkv_and_sink[:3], learnable_sink=qkv_and_sink[3])


def packed(*qkv):
    rows = (x[0] for x in qkv)
    return flash_attn_varlen_func(*rows, cu_seqlens_q=OFFSETS, cu_seqlens_k=OFFSETS)


def with_aux(*qkv_and_aux):
    return flash_attn_func(*qkv_and_aux[:3], score_mod=scaled, aux_tensors=[qkv_and_aux[3]])


def listed(*qkv):
    return flash_attn_func(*qkv, block_sparse_tensors=LISTS)


# name -> (the call, its tensors: examples first)
CALLS = {
    "causal": (causal, QKV),
    "log-sum-exp": (with_lse, QKV),
    "sink": (with_sink, [*QKV, numbers(EXAMPLES, HEADS, seed=4)]),
    "packed": (packed, QKV),
    "aux tensor": (with_aux, [*QKV, numbers(EXAMPLES, HEADS, ROWS, seed=5)]),
    "lists": (listed, QKV),
}


def loss_of(call):
    """A loss whose dout depends on out, as a second call of the backward pass would show."""
    return lambda *tensors: call(*tensors).float().square().sum()


def of_example(loss, tensors, i) -> tuple:
    leaves = [x[i].clone().requires_grad_() for x in tensors]
    return torch.autograd.grad(loss(*leaves), leaves)


def equal(found, expected) -> bool:
    return all(a.equal(b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_grad_and_vmap_give_the_bits_of_autograd(name):
    call, tensors = CALLS[name]
    loss, every = loss_of(call), tuple(range(len(tensors)))
    expected = [of_example(loss, tensors, i) for i in range(EXAMPLES)]
    grad = torch.func.grad(loss, argnums=every)
    assert equal(grad(*(x[0] for x in tensors)), expected[0])
    inside = torch.vmap(grad)(*tensors)
    around = torch.func.grad(lambda *x: torch.vmap(loss)(*x).sum(), argnums=every)(*tensors)
    for i in range(EXAMPLES):
        assert equal([x[i] for x in inside], expected[i])
        assert equal([x[i] for x in around], expected[i])


def test_what_examples_share_has_the_sum_of_their_gradients():
    """Keys and values without examples. float32 sums of bfloat16 gradients, which vmap rounds once."""
    q, k, v = QKV[0], QKV[1][0], QKV[2][0]
    loss = lambda k, v: torch.vmap(loss_of(causal), (0, None, None))(q, k, v).sum()
    found = torch.func.grad(loss, argnums=(0, 1))(k, v)
    each = [
        of_example(
            loss_of(causal), (q, k[None].expand(3, *k.shape), v[None].expand(3, *v.shape)), i
        )
        for i in range(3)
    ]
    for at, got in enumerate(found, start=1):
        exact = sum(gradients[at].double() for gradients in each)
        assert (got - exact).abs().max() <= 2.0**-7 * exact.abs().max()


def test_vjp_and_jacrev():
    q, k, v = (x[0] for x in QKV)
    out, vjp = torch.func.vjp(causal, q, k, v)
    dout = numbers(*out.shape, seed=6).bfloat16()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    assert equal(vjp(dout), torch.autograd.grad(causal(*leaves), leaves, dout))
    row = torch.func.jacrev(lambda x: causal(x, k, v)[0, 3, 1, :4])(q)
    basis = torch.zeros_like(out)
    basis[0, 3, 1, 2] = 1
    assert row[2].equal(vjp(basis)[0])


def test_modules_by_functional_call():
    """What torch.func is used for most: per-example gradients of a module's parameters."""
    module = torch.nn.Linear(64, 3 * 64, bias=False, dtype=torch.bfloat16)
    rows = QKV[0]

    def loss(parameters, x):
        q, k, v = torch.func.functional_call(module, parameters, (x,)).chunk(3, -1)
        return loss_of(causal)(q, k, v)

    parameters = dict(module.named_parameters())
    found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, rows)["weight"]
    for i in range(EXAMPLES):
        module.zero_grad()
        loss(parameters, rows[i]).backward()
        torch.testing.assert_close(found[i], module.weight.grad, rtol=0.02, atol=0.1)


def test_a_graph_breaks_at_a_derivative():
    """With fullgraph=True the compiler says why."""
    q, k, v = (x[0] for x in QKV)
    gradient = lambda x: torch.func.grad(lambda x: loss_of(causal)(x, k, v))(x)
    whole = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="of an operator inside of a transform"):
        whole(q)
    torch._dynamo.reset()
    assert torch.compile(gradient, backend="aot_eager")(q).equal(gradient(q))
    torch._dynamo.reset()


def test_a_derivative_of_the_derivative_is_refused():
    q, k, v = (x[0] for x in QKV)
    first = lambda x: torch.func.grad(loss_of(causal))(x, k, v).float().sum()
    with pytest.raises(
        NotImplementedError, match="^flash_attn_func.* a derivative of their derivative"
    ):
        torch.func.grad(first)(q)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vjp])
def test_the_bare_operator_is_refused(transform):
    """torch sees no derivative of an operator there, and zeros would be a wrong one."""
    q, k, v = (x[0] for x in QKV)
    loss = lambda x: OPERATORS["flash_attn"](x, k, v)[0].float().sum()
    said = "^q: requires_grad is True .*of an operator inside of a transform of torch.func"
    with pytest.raises(NotImplementedError, match=said):
        transform(loss)(q) if transform is torch.func.grad else transform(loss, q)


def test_what_has_no_derivative_is_refused_by_name_here_too():
    q = torch.zeros(1, 8, 2, 272, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="^q: requires_grad is True"):
        torch.func.grad(lambda x: flash_attn_func(x, q, q).float().sum())(q)
