"""The operators themselves: laws of torch.library, fakes like real results, the same refusals, routing of calls."""

import re

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from cute_fa4 import (
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    interface,
    masks,
    score_mods,
)
from cute_fa4.operators import OPERATORS
from cute_fa4.operators.library import DIFFERENTIABLE
from cute_fa4.operators.spelling import function_of, mask_of, spell_mask
from tests.aot.conftest import ROOT
from tests.operators import problems
from tests.operators.problems import int32

CAUSAL = dict(mask="Causal()")

# Each operator with the arguments of a call; positional as far as the schema has it so.
CALLS = {
    "flash_attn": (("q", "k", "v"), problems.dense, dict(return_lse=True)),
    "flash_attn_varlen": (("q", "k", "v"), problems.paged, dict(return_lse=True)),
    "flash_attn_append": (
        ("q", "k_cache", "v_cache", "k", "v", "cache_seqlens"),
        problems.decode,
        {},
    ),
    "flash_mla": (
        ("q", "latent_cache", "page_table", "seqused_k"),
        problems.latent,
        dict(return_lse=True, pack_gqa=None),
    ),
}


CALLS["flash_attn_append_scales"] = CALLS["flash_attn_append"]  # of nothing that has scales


def call_of(name: str) -> tuple[tuple, dict]:
    positional, problem, options = CALLS[name.removesuffix("_out")]
    arguments = problem()
    tensors = tuple(arguments.pop(each) for each in positional)
    if name.endswith("_out"):
        options = options | dict(workspace=torch.zeros(64, dtype=torch.uint8))  # not needed here
        out = torch.zeros_like(tensors[0])
        tensors = (out[..., :512].contiguous() if "mla" in name else out, *tensors)
    return tensors, {**arguments, **CAUSAL, **options}


# --- what torch.library asks of an operator


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    # Schema, autograd registration, fakes, and AOT dispatch with symbolic shapes.
    tensors, options = call_of(name)
    results = torch.library.opcheck(OPERATORS[name], tensors, options)
    assert len(results) == 4 and set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", OPERATORS)
def test_the_schema_says_what_is_written(name):
    written = [a.name for a in OPERATORS[name]._schema.arguments if a.alias_info is not None]
    expected = ["out"] if name.endswith("_out") else []
    if "append" in name:
        expected += ["k_cache", "v_cache", "k_block_scale", "v_block_scale"]
    expected += ["k_descale", "v_descale"] if "append_scales" in name else []
    expected += ["workspace"] if name.endswith("_out") else []
    assert written == expected
    assert all(r.alias_info is None for r in OPERATORS[name]._schema.returns)


def test_what_is_written_gets_a_new_version():
    # autograd finds by it that a tensor which it keeps for a backward pass was overwritten.
    tensors, options = call_of("flash_attn_append_out")
    before = [t._version for t in tensors]
    OPERATORS["flash_attn_append_out"](*tensors, **options)
    changed = [t._version != version for t, version in zip(tensors, before, strict=True)]
    assert changed == [True, False, True, True, False, False, False]  # out, k_cache, v_cache


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in DIFFERENTIABLE])
def test_a_gradient_is_refused_before_anything_is_written(name):
    tensors, options = call_of(name)
    kept = [tensor.clone() for tensor in tensors]
    position = 1 if name.endswith("_out") else 0
    tensors[position].requires_grad_()
    with pytest.raises(NotImplementedError, match="^q: requires_grad is True and the backward"):
        OPERATORS[name](*tensors, **options)
    assert all(torch.equal(tensor, before) for tensor, before in zip(tensors, kept, strict=True))
    with torch.no_grad():
        OPERATORS[name](*tensors, **options)


# --- fakes


def no_keys(**arguments):
    return {**arguments, "k": arguments["k"][:, :0], "v": arguments["v"][:, :0]}


FAKED = {
    "dense": (flash_attn_func, lambda: dict(**problems.dense(), causal=True)),
    "dense, lse": (flash_attn_func, lambda: dict(**problems.dense(), causal=True, return_lse=True)),
    "out": (flash_attn_func, lambda: dict(**problems.dense(), causal=True, out=wide_out())),
    "no batch": (flash_attn_func, lambda: dict(**problems.dense(batch=0), return_lse=True)),
    "no queries": (flash_attn_func, lambda: dict(**problems.dense(seqlen_q=0), return_lse=True)),
    "no keys": (flash_attn_func, lambda: dict(**problems.dense(seqlen_k=0), return_lse=True)),
    "transposed q": (flash_attn_func, lambda: dict(transposed(**problems.dense()), causal=True)),
    "no rows": (
        flash_attn_varlen_func,
        lambda: dict(**problems.ragged((0, 0)), causal=True, return_lse=True),
    ),
    "paged": (
        flash_attn_varlen_func,
        lambda: dict(**problems.paged(), causal=True, return_lse=True),
    ),
    "paged, HND": (
        flash_attn_varlen_func,
        lambda: dict(**hnd(problems.paged()), causal=True, return_lse=True),
    ),
    "decode": (flash_attn_with_kvcache, lambda: dict(**problems.decode(), causal=True)),
}


def wide_out():
    """Every second head of memory with 8 heads: strides that `out` keeps."""
    return torch.zeros(1, 24, 8, 64, dtype=problems.BF16)[:, :, ::2]


def transposed(q, k, v):
    return dict(q=q.transpose(1, 2).contiguous().transpose(1, 2), k=k, v=v)


def hnd(arguments):
    heads_first = {n: arguments[n].transpose(1, 2).contiguous() for n in ("k", "v")}
    return {**arguments, **heads_first, "kv_layout": "HND"}


def metadata(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(t.shape, t.stride(), t.dtype, t.device) for t in results]


@pytest.mark.parametrize("case", FAKED)
def test_fakes_are_like_real_results(case):
    function, make = FAKED[case]
    arguments = make()
    mode = FakeTensorMode()
    fakes = {
        n: mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for n, a in arguments.items()
    }
    with mode:
        faked = function(**fakes)
    assert metadata(faked) == metadata(function(**arguments))


def test_fakes_of_a_gpu_need_no_gpu():
    # A model is traced and exported for a GPU on a machine without one.
    mode = FakeTensorMode()
    arguments = {
        name: FakeTensor(mode, tensor.to("meta"), torch.device("cuda:0"))
        for name, tensor in problems.decode().items()
    }
    with mode:
        out = flash_attn_with_kvcache(**arguments, causal=True)
    assert (out.device, tuple(out.shape)) == (torch.device("cuda:0"), (2, 1, 4, 64))


# --- refusals


def changed(make, **changes):
    return lambda: {n: changes[n](a) if n in changes else a for n, a in make().items()}


def with_options(make, **options):
    return lambda: {**make(), **options}


Q_AND_OUT = torch.zeros(1, 24, 2, 4, 64, dtype=problems.BF16)

REFUSED = {
    "dtypes": (flash_attn_func, changed(problems.dense, k=lambda k: k.half())),
    "shapes": (flash_attn_func, changed(problems.dense, v=lambda v: v[:, :23])),
    "heads": (flash_attn_func, lambda: problems.dense(heads_q=3, heads_kv=2)),
    "strides": (
        flash_attn_func,
        changed(problems.dense, q=lambda q: q.repeat(1, 1, 1, 2)[..., ::2]),
    ),
    "address": (
        flash_attn_func,
        changed(problems.dense, k=lambda k: torch.cat([k, k], -1)[..., 4:68]),
    ),
    "out is q": (flash_attn_func, lambda: (lambda a: dict(**a, out=a["q"]))(problems.dense())),
    "num_splits": (flash_attn_func, with_options(problems.dense, num_splits=-4)),
    "causal": (flash_attn_func, with_options(problems.dense, causal=1)),
    "window": (flash_attn_func, with_options(problems.dense, window_size=(-2, 0))),
    "scale": (flash_attn_func, with_options(problems.dense, softmax_scale=-1.0)),
    "scale, a tensor": (
        flash_attn_func,
        with_options(problems.dense, softmax_scale=torch.ones(())),
    ),
    "softcap": (flash_attn_func, with_options(problems.dense, softcap=-1.0)),
    "sink": (flash_attn_func, with_options(problems.dense, learnable_sink=torch.zeros(3))),
    "aux": (flash_attn_func, with_options(problems.dense, aux_tensors=[torch.zeros(3)])),
    "too small aux": (
        flash_attn_func,
        with_options(
            problems.dense,
            score_mod=score_mods.additive_bias(),
            aux_tensors=[torch.zeros(1, 3, 1, 1)],
        ),
    ),
    "key_limit": (flash_attn_func, with_options(problems.dense, key_limit=int32(1, 2))),
    "packed rank": (flash_attn_varlen_func, changed(problems.paged, q=lambda q: q[None])),
    "offsets": (flash_attn_varlen_func, changed(problems.paged, cu_seqlens_q=lambda c: c.long())),
    "table": (flash_attn_varlen_func, changed(problems.paged, page_table=lambda t: t[:1])),
    "no lengths": (flash_attn_varlen_func, with_options(problems.paged, seqused_k=None)),
    "maximum": (flash_attn_varlen_func, with_options(problems.paged, max_seqlen_q=int32(5))),
    "two tables": (
        flash_attn_varlen_func,
        with_options(problems.paged, block_table=int32(0).view(1, 1)),
    ),
    "page size": (
        flash_attn_varlen_func,
        changed(
            problems.paged,
            k=lambda k: k[:, :0],
            v=lambda v: v[:, :0],
            seqused_k=lambda used: used - 10,
        ),
    ),
    "lists": (
        flash_attn_func,
        with_options(
            problems.dense,
            block_sparse_tensors=problems.lists()._replace(mask_block_cnt=torch.zeros(1).int()),
        ),
    ),
    "packed lists": (
        flash_attn_varlen_func,
        with_options(
            problems.paged,
            block_sparse_tensors=problems.lists(True)._replace(cu_block_idx_offsets=None),
        ),
    ),
    "lists of half units": (
        flash_attn_func,
        with_options(
            problems.dense, block_sparse_tensors=problems.lists()._replace(block_size=(72, 64))
        ),
    ),
    "too few lists of small blocks": (
        flash_attn_func,
        with_options(
            problems.dense, block_sparse_tensors=problems.lists()._replace(block_size=(16, 64))
        ),
    ),
    "k without v": (flash_attn_with_kvcache, with_options(problems.decode, v=None)),
    "no counts": (flash_attn_with_kvcache, with_options(problems.decode, cache_seqlens=None)),
    "heads of new rows": (
        flash_attn_with_kvcache,
        changed(problems.decode, k=lambda k: k[:, :, :1]),
    ),
    "rotary": (flash_attn_with_kvcache, with_options(problems.decode, rotary_cos=torch.zeros(1))),
    "rows of a cache": (
        flash_attn_with_kvcache,
        with_options(problems.decode, cache_batch_idx=int32(1, 0, 1)),
    ),
    "padding": (
        flash_attn_with_kvcache,
        with_options(problems.decode, k=None, v=None, cache_leftpad=int32(1, 0).long()),
    ),
    "gradient through a cache": (
        flash_attn_with_kvcache,
        changed(problems.decode, q=lambda q: q.requires_grad_()),
    ),
}


def refusal_of(function, arguments):
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
        function(**arguments)
    text = str(caught.value).replace("FakeTensor", "Tensor")
    return type(caught.value), re.sub(r"0x\w+", "ADDRESS", text)


def faked(mode, arguments: dict) -> dict:
    convert = lambda value: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
    found = {
        name: [convert(item) for item in value] if isinstance(value, list) else convert(value)
        for name, value in arguments.items()
    }
    if "block_sparse_tensors" in found:
        lists = found["block_sparse_tensors"]
        found["block_sparse_tensors"] = type(lists)._make(map(convert, lists))
    return found


@pytest.mark.parametrize("case", REFUSED)
def test_fakes_are_refused_with_the_same_words(case):
    # What no element of a tensor is needed for; no kernel is compiled for a refused call.
    function, make = REFUSED[case]
    arguments = make()
    with FakeTensorMode() as mode:
        of_fakes = refusal_of(function, faked(mode, arguments))
    assert of_fakes == refusal_of(function, arguments)


def test_fakes_of_one_memory_are_told_apart_as_real_tensors_are():
    # q and out side by side in one tensor do not overlap; shifted by a row they do.
    arguments = problems.dense()
    with FakeTensorMode() as mode:
        both = mode.from_tensor(torch.zeros(1, 25, 2, 4, 64, dtype=problems.BF16))
        k, v = mode.from_tensor(arguments["k"]), mode.from_tensor(arguments["v"])
        flash_attn_func(both[:, :24, 0], k, v, out=both[:, :24, 1])
        with pytest.raises(ValueError, match="^out: shares memory with q"):
            flash_attn_func(both[:, :24, 0], k, v, out=both[:, 1:, 0])


# --- masks and functions as strings


MASKS = [
    masks.full(),
    masks.causal(),
    masks.window(3),
    masks.window(None, 4),
    masks.either(masks.both(masks.window(1, 2), masks.chunked(8)), masks.chunked_causal(16)),
]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: str(mask.mask))
def test_a_spelled_mask_is_the_mask(mask):
    assert mask_of(spell_mask(mask.mask), mask.sizes) == mask


@pytest.mark.parametrize(
    "spelled", ["", "Causal", "Window(3)(4)", "__import__('os')", "Both(Causal())"]
)
def test_what_is_no_mask_is_refused(spelled):
    with pytest.raises(ValueError, match=r"^mask: .* accepted: calls of Full, Causal"):
        mask_of(spelled, ())


def test_packaged_functions_are_known_everywhere_and_others_where_they_were_named():
    both = score_mods.composed(score_mods.soft_cap(30.0), score_mods.alibi(4))
    assert function_of("score_mod", both.key) == both

    def doubled(score, batch, head, q_idx, kv_idx, aux):
        return score * 2.0

    mod = score_mods.ScoreMod.of(doubled)
    assert function_of("score_mod", mod.key) is mod
    with pytest.raises(
        ValueError, match=r"^mask_mod: 'elsewhere:12' is not a function of this process"
    ):
        function_of("mask_mod", "elsewhere:12")


# --- who is sent to an operator


@pytest.fixture
def routed(monkeypatch):
    """Calls that went to an operator; none is executed."""
    seen = []
    monkeypatch.setattr(interface, "through_operator", lambda *call: seen.append(call))
    return seen


def test_plain_tensors_go_the_direct_way(routed):
    flash_attn_func(**problems.dense(), causal=True)
    with torch.inference_mode():
        flash_attn_func(**problems.dense(), causal=True)
    assert routed == []


def test_tracers_modes_and_subclasses_are_given_an_operator(routed):
    arguments = problems.dense()
    q = arguments.pop("q")
    mode = FakeTensorMode()
    flash_attn_func(torch.nn.Parameter(q, requires_grad=False), **arguments)
    flash_attn_func(mode.from_tensor(q), **arguments)
    with mode:
        flash_attn_func(q, **arguments)
    assert len(routed) == 3


def test_a_parameter_is_a_tensor():
    arguments = problems.dense()
    want = flash_attn_func(**arguments, causal=True)
    arguments["q"] = torch.nn.Parameter(arguments["q"], requires_grad=False)
    got = flash_attn_func(**arguments, causal=True)
    assert type(got) is torch.Tensor and torch.equal(got, want)


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx_sees_one_operator(tracing_mode):
    arguments = problems.dense()

    def attention(q, k, v):
        return flash_attn_func(q, k, v, causal=True)

    graph = make_fx(attention, tracing_mode=tracing_mode)(*arguments.values())
    called = [n.target for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert called == [OPERATORS["flash_attn"]]
    assert torch.equal(graph(*arguments.values()), attention(*arguments.values()))


def test_the_page_names_every_operator():
    page = (ROOT / "docs" / "torch.md").read_text()
    assert {name for name in OPERATORS if re.search(rf"\b{name}`", page)} == set(OPERATORS)
