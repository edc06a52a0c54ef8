"""torch.func and the old recorders: a rule for vmap, the operator for functionalize, refusals by name for the rest.

test_func.py has the derivatives of torch.func.
"""

import io

import pytest
import torch
from torch.autograd import forward_ad

from cute_fa4 import (
    BlockSparseTensors,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    masks,
    score_mods,
)
from cute_fa4.operators import OPERATORS
from tests.operators import problems
from tests.operators.problems import BF16, int32


def tensors(*shape, count=3):
    return tuple(torch.randn(count, *shape).to(BF16))


def attention(q, k, v, **options):
    return flash_attn_func(q, k, v, causal=True, **options)


# --- vmap: the same bits as one call for each example


def one_by_one(function, in_dims, *arguments):
    """What vmap means."""
    examples = next(a.shape[d] for a, d in zip(arguments, in_dims, strict=True) if d is not None)
    results = [
        function(
            *(a if d is None else a.select(d, i) for a, d in zip(arguments, in_dims, strict=True))
        )
        for i in range(examples)
    ]
    if isinstance(results[0], tuple):
        return tuple(torch.stack(each) for each in zip(*results, strict=True))
    return torch.stack(results)


def same(function, in_dims, *arguments):
    got = torch.vmap(function, in_dims=in_dims)(*arguments)
    wanted = one_by_one(function, in_dims, *arguments)
    pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
    assert all(torch.equal(g, w) for g, w in pairs)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (2, 1, None)], ids=str)
def test_vmap_is_one_more_batch_dimension(in_dims):
    shape = (2, 20, 2, 64)
    arguments = []
    for tensor, dim in zip(tensors(3, *shape), in_dims, strict=True):
        arguments.append(tensor[0] if dim is None else tensor.movedim(0, dim))
    same(lambda q, k, v: attention(q, k, v, return_lse=True), in_dims, *arguments)


def test_vmap_folds_a_soft_cap_and_loops_over_what_goes_by_the_sequence():
    q, k, v = tensors(3, 2, 20, 2, 64)
    same(lambda q, k, v: attention(q, k, v, softcap=5.0), (0, 0, 0), q, k, v)
    bias = torch.randn(3, 2, 20, 20)
    biased = lambda q, k, v, bias: attention(
        q, k, v, score_mod=score_mods.additive_bias(False), aux_tensors=[bias]
    )
    same(biased, (0, 0, 0, 0), q, k, v, bias)
    same(biased, (0, 0, 0, None), q, k, v, bias[0])
    sink = torch.randn(3, 2)
    same(lambda q, k, v, s: attention(q, k, v, learnable_sink=s), (0, 0, 0, 0), q, k, v, sink)
    lists = [torch.tensor([0, 1, 1])[:, None, None, None], torch.zeros(3, 1, 1, 1, 1)]
    listed = lambda q, k, v, *lists: flash_attn_func(
        q, k, v, block_sparse_tensors=BlockSparseTensors(*lists)
    )
    same(listed, (0, 0, 0, 0, 0), q, k, v, *(x.int() for x in lists))
    same(listed, (0, 0, 0, None, None), q, k, v, *(x[1].int() for x in lists))


def test_vmap_of_a_folded_call_launches_once(monkeypatch):
    from cute_fa4.calls import attention as calls

    launches = []
    monkeypatch.setattr(
        calls, "function_for", lambda config, target: lambda q, *_: launches.append(q.shape)
    )
    q, k, v = tensors(3, 2, 20, 2, 64)
    torch.vmap(lambda q, k, v: flash_attn_func(q, k, v, mask=masks.window(3, 0)))(q, k, v)
    assert launches == [(6, 20, 2, 64)]


def test_vmap_within_vmap():
    q, k, v = tensors(2, 3, 1, 12, 1, 64)
    got = torch.vmap(torch.vmap(attention))(q, k, v)
    assert torch.equal(got.flatten(0, 1), one_by_one(attention, (0,) * 3, *(
        x.flatten(0, 1) for x in (q, k, v)
    )))  # fmt: skip


def test_vmap_of_packed_sequences():
    arguments = problems.ragged((5, 9))
    q = torch.stack([arguments.pop("q"), torch.randn(14, 4, 64).to(BF16)])
    same(lambda q: flash_attn_varlen_func(q, **arguments, causal=True), (0,), q)


def test_vmap_writes_to_a_cache_of_each_example():
    call = problems.decode()
    names = ("q", "k_cache", "v_cache", "k", "v")
    many = [torch.stack([call[n], call[n] + 1]) for n in names]
    kept = [tensor.clone() for tensor in many]
    rest = {n: value for n, value in call.items() if n not in names}

    def decode(q, k_cache, v_cache, k, v):
        return flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **rest, causal=True)

    got = torch.vmap(decode)(*many)
    wanted = one_by_one(decode, (0,) * 5, *kept)
    assert torch.equal(got, wanted)
    assert all(torch.equal(a, b) for a, b in zip(many, kept, strict=True))
    with pytest.raises(ValueError, match="^k_cache: written, but one for all 2 examples of vmap"):
        torch.vmap(decode, in_dims=(0, None, None, 0, 0))(*(
            tensor if i in (0, 3, 4) else tensor[0] for i, tensor in enumerate(kept)
        ))  # fmt: skip


# --- functionalize


def test_functionalize_computes():
    q, k, v = tensors(1, 20, 2, 64)
    assert torch.equal(torch.func.functionalize(attention)(q, k, v), attention(q, k, v))


# --- refused


DERIVATIVES = {
    "jvp": lambda f, q: torch.func.jvp(f, (q,), (q,)),
    "jacfwd": lambda f, q: torch.func.jacfwd(f)(q),
    "linearize": lambda f, q: torch.func.linearize(f, q),
    "dual numbers": lambda f, q: with_dual(f, q),
}


def with_dual(function, q):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(q, torch.ones_like(q)))


@pytest.mark.parametrize("through", ["function", "operator"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_tangents_are_refused_by_name(derivative, through):
    """Also for the bare operator: zeros would be a wrong derivative."""
    q, k, v = tensors(1, 8, 1, 64)
    function = {
        "function": lambda x: flash_attn_func(x, k, v),
        "operator": lambda x: OPERATORS["flash_attn"](x, k, v)[0],
    }[through]
    with pytest.raises(NotImplementedError, match="^q: has a tangent"):
        DERIVATIVES[derivative](function, q)


def test_what_is_not_differentiated_may_stand_beside():
    q, k, v = tensors(1, 8, 1, 64)
    plain = attention(q, k, v).float()
    out, tangent = torch.func.jvp(
        lambda x: attention(q, k, v).float() * x, (torch.ones(1),) * 1, (torch.ones(1),)
    )
    assert torch.equal(out, plain) and torch.equal(tangent, plain)


class Module(torch.nn.Module):
    def forward(self, q, k, v):
        return attention(q, k, v)


RECORDERS = {
    "torch.jit.trace": lambda *qkv: torch.jit.trace(Module(), qkv),
    "torch.onnx.export": lambda *qkv: torch.onnx.export(Module(), qkv, io.BytesIO(), dynamo=False),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("recorder", RECORDERS)
def test_recorders_of_torchs_own_operators_are_refused_with_what_to_use(recorder):
    q, k, v = tensors(1, 8, 1, 64)
    attention(q, k, v)  # a warm kernel: nothing else would be seen
    with pytest.raises(NotImplementedError, match=r"flash_attn_func: .*torch\.export\.export"):
        RECORDERS[recorder](q, k, v)


def test_every_public_function_is_refused():
    q, k, v = tensors(1, 8, 1, 64)
    dual = lambda function, **call: with_dual(lambda x: function(x, k, v, **call), q)
    for function, call in (
        (flash_attn_varlen_func, {}),
        (flash_attn_with_kvcache, dict(cache_seqlens=int32([8]))),
    ):
        with pytest.raises(NotImplementedError, match="^q: has a tangent"):
            dual(function, **call)
