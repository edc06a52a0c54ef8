"""torch.compile and torch.export of code that calls attention: the same bits, no graph break, no needless recompile."""

import inspect
import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._inductor.utils import run_and_get_code

from cute_fa4 import (
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    masks,
    score_mods,
)
from cute_fa4.calls import repeat
from tests.operators import problems
from tests.operators.problems import copied, int32


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    """The limits of PyTorch 2.11's tracing: no locals()."""
    torch._dynamo.reset()
    counters.clear()

    def refuse(*_):
        raise torch._dynamo.exc.Unsupported("locals() is not traced")

    monkeypatch.setattr(BuiltinVariable, "call_locals", refuse, raising=False)


@pytest.fixture
def reached(monkeypatch):
    """Kernels that were asked for, and their arguments; none is compiled or executed."""
    seen = []

    def function_for(config, executor):
        return lambda *arguments: seen.append((config, [_comparable(a) for a in arguments]))

    monkeypatch.setattr(compile_cache, "function_for", function_for)
    repeat.clear()
    yield seen
    repeat.clear()


def _comparable(argument):
    if isinstance(argument, (tuple, list)):
        return [_comparable(item) for item in argument]
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype
    return argument


def compiled(function, backend="aot_eager"):
    """Without a graph break, or it raises."""
    return torch.compile(function, fullgraph=True, backend=backend)


def same(got, want) -> bool:
    got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
    return len(got) == len(want) and all(map(torch.equal, got, want))


# --- the same results


def attention(q, k, v):
    # An operation before and one after, so that attention is a node among others.
    return flash_attn_func(q * 2, k, v, causal=True) + 1


def attention_of_pages(**arguments):
    return flash_attn_varlen_func(**arguments, causal=True, return_lse=True)


def attention_after_append(cache, **arguments):
    """K and V are slices of one cache, which is read before and after the append."""
    k_cache, v_cache = cache.unbind(1)
    before = cache.clone()
    out = flash_attn_with_kvcache(k_cache=k_cache, v_cache=v_cache, **arguments, causal=True)
    return out, before, cache.clone()


def one_cache() -> dict:
    arguments = problems.decode()
    caches = arguments.pop("k_cache"), arguments.pop("v_cache")
    return dict(cache=torch.stack(caches, dim=1), **arguments)


def two_caches() -> dict:
    return copied(problems.decode())


def attention_over_latents(q, latent_cache, page_table, seqused_k):
    return flash_mla_with_kvcache(q * 2, latent_cache, page_table, seqused_k)


PROGRAMS = {
    "latent": (attention_over_latents, problems.latent),
    "dense": (attention, problems.dense),
    "pages": (attention_of_pages, problems.paged),
    "append": (attention_after_append, one_cache),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled_equals_eager_bit_for_bit(program, backend):
    function, make = PROGRAMS[program]
    arguments = make()
    ours, theirs = copied(arguments), copied(arguments)
    assert same(compiled(function, backend)(**ours), function(**theirs))
    for name, ours_after in ours.items():  # what is written, too
        assert not isinstance(ours_after, torch.Tensor) or torch.equal(ours_after, theirs[name])


def test_inductor_equals_eager_bit_for_bit():
    # The append, because inductor decides here which copies of a cache it can leave out.
    arguments = one_cache()
    ours, theirs = copied(arguments), copied(arguments)
    got = compiled(attention_after_append, "inductor")(**ours)
    assert same(got, attention_after_append(**theirs)) and torch.equal(
        ours["cache"], theirs["cache"]
    )


# --- what is written


def append_to_slices(cache, **arguments):
    k_cache, v_cache = cache.unbind(1)
    return append_to_two(k_cache=k_cache, v_cache=v_cache, **arguments)


def append_to_two(**arguments):
    return flash_attn_with_kvcache(**arguments, causal=True)


@pytest.mark.parametrize(
    "program, make", [(append_to_slices, one_cache), (append_to_two, two_caches)]
)
def test_inductor_copies_no_cache(program, make, reached):
    # It calls kernels of its own for copies; here it has nothing but the operator to call.
    function = torch.compile(program, fullgraph=True)
    _, [code] = run_and_get_code(function, **make())
    body = code[code.index("def call(") :].split("\ndef ")[0]  # what follows is for benchmarks
    assert body.count("torch.ops.cute_fa4.flash_attn_append.default(") == 1
    assert "cpp_" not in body and "copy" not in body and "clone" not in body


def test_out_is_read_as_it_was_before_and_as_it_is_after():
    def program(out, q, k, v):
        before = out + 1
        returned = flash_attn_func(q, k, v, causal=True, out=out)
        return before, out + 1, returned + 1

    arguments = problems.dense()
    out = torch.zeros_like(arguments["q"])
    before, after, returned = compiled(program)(out, **arguments)
    want = flash_attn_func(**arguments, causal=True)
    assert torch.equal(before, torch.ones_like(out))
    assert torch.equal(out, want) and same((after, returned), (want + 1, want + 1))


def test_out_made_inside_may_be_part_of_a_tensor():
    def program(q, k, v):
        both = torch.zeros(*q.shape[:2], 2, *q.shape[2:], dtype=q.dtype)
        flash_attn_func(q, k, v, causal=True, out=both[:, :, 1])
        return both

    arguments = problems.dense()
    assert same(compiled(program)(**arguments), program(**arguments))


def test_caches_that_are_views_of_one_tensor_outside():
    def program(**arguments):
        return flash_attn_with_kvcache(**arguments, causal=True)

    ours, theirs = (one_cache(), None)
    theirs = copied(ours)
    for step in range(2):
        for arguments, function in ((ours, compiled(program)), (theirs, program)):
            k_cache, v_cache = arguments["cache"].unbind(1)
            rest = {n: a for n, a in arguments.items() if n != "cache"}
            rest["cache_seqlens"] = rest["cache_seqlens"] + step
            arguments["out"] = function(k_cache=k_cache, v_cache=v_cache, **rest)
    assert torch.equal(ours["out"], theirs["out"]) and torch.equal(ours["cache"], theirs["cache"])


# --- what is not compiled again


def test_other_lengths_recompile_neither_the_graph_nor_a_kernel():
    # 24 compiles; 40, 25 and 60 find both. From 17 to 64 queries two heads share a tile; others have another kernel.
    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(attention, counter)
    kernels = []
    for seqlen in (24, 40, 25, 60):
        arguments = problems.dense(seqlen, seqlen)
        for tensor in arguments.values():
            torch._dynamo.mark_dynamic(tensor, 1)
        assert torch.equal(function(**arguments), attention(**arguments))
        kernels.append(compile_cache.statistics().compiles)
    assert counter.frame_count == 1 and len(set(kernels)) == 1
    assert counters["stats"]["unique_graphs"] == 1


def test_lengths_without_an_example_are_left_to_the_call():
    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(attention, counter)
    for seqlen in (24, 40):
        arguments = problems.dense(seqlen, seqlen)
        for tensor in arguments.values():
            torch._dynamo.decorators.mark_unbacked(tensor, 1)
        assert torch.equal(function(**arguments), attention(**arguments))
    assert counter.frame_count == 1


def test_other_mask_sizes_recompile_nothing_once_they_are_dynamic():
    # The first size is a constant of the graph, the second makes it a symbol, the others find that.
    def program(size, mask, **arguments):
        return flash_attn_func(**arguments, window_size=(size, 0), mask=mask)

    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(program, counter)
    arguments = problems.dense()
    for size in (3, 5, 7, 9):
        mask = masks.chunked(2 * size)
        assert torch.equal(function(size, mask, **arguments), program(size, mask, **arguments))
    assert counter.frame_count == 2


def test_other_numbers_of_cached_rows_recompile_nothing():
    def program(**arguments):
        return flash_attn_with_kvcache(**arguments, causal=True)

    counter = CompileCounterWithBackend("aot_eager")
    function = compiled(program, counter)
    for used in ((5, 20), (6, 21), (31, 0)):
        ours = problems.decode(used)
        theirs = copied(ours)
        assert torch.equal(function(**ours), program(**theirs))
    assert counter.frame_count == 1


# --- options reach the kernel, whichever way they are given


@score_mods.ScoreMod.of
def same_document(batch, head, q_idx, kv_idx, aux):
    return aux[0][batch, q_idx] == aux[0][batch, kv_idx]


OPTIONS = {
    "scale": lambda: dict(softmax_scale=0.25),
    "window": lambda: dict(causal=True, window_size=(8, -1)),
    "no window": lambda: dict(window_size=None, softcap=None),
    "mask": lambda: dict(
        mask=masks.both(masks.causal(), masks.either(masks.window(3), masks.chunked(8)))
    ),
    "softcap": lambda: dict(softcap=30.0),
    "sink": lambda: dict(learnable_sink=torch.zeros(4)),
    "half sink": lambda: dict(learnable_sink=torch.zeros(4).half()),
    "key_limit": lambda: dict(key_limit=int32(7)),
    "pack_gqa": lambda: dict(pack_gqa=False),
    "score_mod": lambda: dict(score_mod=score_mods.alibi(4), softcap=20.0),
    "mask_mod": lambda: dict(mask_mod=same_document, aux_tensors=[int32(*range(24))[None]]),
    "bias": lambda: dict(
        score_mod=score_mods.additive_bias(),
        aux_tensors=(torch.zeros(1, 4, 24, 24),),
        return_lse=True,
    ),
    "num_splits": lambda: dict(num_splits=0, deterministic=True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_the_dense_function(option, reached):
    arguments, options = problems.dense(), OPTIONS[option]()
    compiled(flash_attn_func)(**arguments, **options)
    flash_attn_func(**arguments, **options)
    assert len(reached) == 2 and reached[0] == reached[1]


RAGGED = {
    "maximum": lambda: problems.ragged(),
    "no maximum": lambda: {**problems.ragged(), "max_seqlen_q": None},
    "seqused": lambda: {**problems.ragged(), "seqused_q": int32(2, 4), "seqused_k": int32(3, 4)},
    "aliases": lambda: {
        **{"block_table" if n == "page_table" else n: a for n, a in problems.paged().items()},
        "s_aux": torch.zeros(4),
        "return_softmax_lse": True,
        "max_seqlen_k": 30,
    },
    "excludes new": lambda: {
        **problems.paged(),
        "seqused_k": int32(20, 27),
        "seqused_k_excludes_new": True,
    },
}


@pytest.mark.parametrize("case", RAGGED)
def test_options_of_the_varlen_function(case, reached):
    arguments = RAGGED[case]()
    compiled(flash_attn_varlen_func)(**arguments)
    flash_attn_varlen_func(**arguments)
    assert len(reached) == 2 and reached[0] == reached[1]


def no_append(arguments: dict) -> dict:
    return {n: a for n, a in arguments.items() if n not in ("k", "v")}


def hnd(arguments: dict) -> dict:
    heads_first = {n: arguments[n].transpose(1, 2) for n in ("k_cache", "v_cache")}
    return {**arguments, **heads_first, "kv_layout": "HND"}


CACHES = {
    "append": lambda: problems.decode(),
    "heads first": lambda: hnd(problems.decode()),
    "into out": lambda: {**problems.decode(), "out": torch.zeros(2, 1, 4, 64, dtype=problems.BF16)},
    "one count": lambda: {**problems.decode(), "cache_seqlens": 7},
    "read only": lambda: no_append(problems.decode()),
    "read only, one count": lambda: no_append({**problems.decode(), "cache_seqlens": 7}),
    "rows of a cache": lambda: {
        **problems.decode(),
        "page_table": int32(9, 9, 3, 1, 0, 5).view(3, 2),
        "cache_batch_idx": int32(1, 2),
        "cache_leftpad": int32(4, 0),
    },
    "read only, all rows of a dense cache": lambda: {
        **no_append({**problems.decode(), "cache_seqlens": None, "page_table": None}),
        "cache_batch_idx": int32(5, 2),
    },
    "packed": lambda: {
        **problems.decode(),
        **{n: a[:, 0] for n, a in problems.decode().items() if n in ("q", "k", "v")},
        "cu_seqlens_q": int32(0, 1, 2),
        "cu_seqlens_k_new": int32(0, 1, 2),
    },
}


@pytest.mark.parametrize("case", CACHES)
def test_options_of_the_cache_function(case, reached):
    arguments = CACHES[case]()
    compiled(flash_attn_with_kvcache)(**arguments)
    asked = len(reached)
    flash_attn_with_kvcache(**arguments)
    assert asked == (1 if "read" in case else 2) and reached[:asked] == reached[asked:]


# --- functions of the user


def scaled_by(factor):
    def scaled(score, batch, head, q_idx, kv_idx, aux):
        return score * factor

    return scaled


class Scaling(torch.nn.Module):
    """The same repr, whatever the factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def scaled(self, score, batch, head, q_idx, kv_idx, aux):
        return score * self.factor


@pytest.mark.parametrize(
    "made", [scaled_by, lambda factor: Scaling(factor).scaled], ids=["closure", "module"]
)
def test_named_functions_are_watched_by_what_they_compute(made, reached):
    # The functions share their code, which is all that a compiler watches of a plain function.
    function = compiled(flash_attn_func)
    keys = []
    for factor in (2.0, 3.0, 2.0):
        mod = score_mods.ScoreMod.of(made(factor))
        function(**problems.dense(), score_mod=mod)
        keys.append((reached[-1][0].score_mod.key, mod.key))
    assert all(used == given for used, given in keys)
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.skipif(
    torch.__version__ < (2, 9), reason="Dynamo takes no instance of a frozen class as a constant"
)
def test_a_function_with_a_name_of_its_own_is_found_by_what_it_computes(reached):
    mod = score_mods.ScoreMod(scaled_by(2.0), "twice")
    compiled(flash_attn_func)(**problems.dense(), score_mod=mod, softcap=20.0)
    key = score_mods.ScoreMod.of(scaled_by(2.0)).key
    assert reached[-1][0].score_mod.key == f"soft_cap(20.0) then {key}"


def test_a_plain_function_breaks_the_graph_and_says_so(reached):
    def program(factor, q, **arguments):
        return flash_attn_func(q * 2, **arguments, score_mod=scaled_by(factor)) + 1

    with pytest.raises(
        torch._dynamo.exc.Unsupported,
        match=r"^score_mod, mask_mod: a Python function.*ScoreMod\.of",
    ):
        compiled(program)(2.0, **problems.dense())
    counter = CompileCounterWithBackend("eager")
    function = torch.compile(program, backend=counter)
    for factor in (2.0, 3.0):
        function(factor, **problems.dense())
        key = score_mods.ScoreMod.of(scaled_by(factor)).key
        assert reached[-1][0].score_mod.key == key
    assert counter.frame_count >= 2  # before attention and after it


# --- refusals


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_gradient_is_refused_with_the_same_error(name):
    arguments = problems.dense() | dict(score_mod=problems.WITHOUT_DERIVATIVE)
    arguments[name].requires_grad_()
    text = f"^{name}: requires_grad is True and the backward pass is not supported with score_mod"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        compiled(flash_attn_func)(**arguments)
    torch._dynamo.reset()
    for function in (flash_attn_func, torch.compile(flash_attn_func, backend="aot_eager")):
        with pytest.raises(NotImplementedError, match=text):
            function(**arguments)
    torch._dynamo.reset()
    with torch.no_grad():
        want = flash_attn_func(**arguments, causal=True)
        assert torch.equal(compiled(flash_attn_func)(**arguments, causal=True), want)


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(causal=1), "causal: 1 is a int; accepted: True or False"),
        (dict(num_splits=-4), "num_splits: -4; accepted: None or 0"),
        (dict(key_limit=int32(1, 2)), "accepted: the first dimension is 1, batch"),
        (dict(softmax_scale=0.0), "softmax_scale: 0.0; accepted: 5.42e-20 to 65536"),
    ],
)
def test_errors_of_the_compiler_have_the_words_of_the_function(change, text):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        flash_attn_func(**problems.dense(), **change)
    assert text in str(caught.value)
    with pytest.raises(Exception) as compiled_caught:
        compiled(flash_attn_func)(**problems.dense(), **change)
    assert str(caught.value) in str(compiled_caught.value)


# --- export


class Attention(torch.nn.Module):
    def __init__(self, score_mod=None):
        super().__init__()
        self.sink = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.score_mod = score_mod

    def forward(self, q, k, v):
        options = dict(causal=True, score_mod=self.score_mod, learnable_sink=self.sink)
        return flash_attn_func(q, k, v, **options)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_module_takes_other_lengths_and_survives_a_file(strict, reached):
    seqlen = torch.export.Dim("seqlen")
    shapes = {name: {1: seqlen} for name in "qkv"}
    module = Attention(score_mods.alibi(4))
    program = torch.export.export(
        module, (), problems.dense(24), dynamic_shapes=shapes, strict=strict
    )
    called = [n.target for n in program.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert called == [torch.ops.cute_fa4.flash_attn.default]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    arguments = problems.dense(40, 40)
    for callable_ in (loaded, module):
        callable_(**arguments)
    assert len(reached) == 2 and reached[0] == reached[1]


def test_an_exported_module_computes_the_same():
    arguments = problems.dense()

    class Causal(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v)

    program = torch.export.export(Causal(), (), arguments)
    assert torch.equal(program.module()(**arguments), attention(**arguments))


@pytest.mark.parametrize(
    "function", [flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache]
)
def test_each_parameter_reaches_its_operator_under_its_name(function, monkeypatch):
    """Compiled code names them one by one; a forgotten one would silently have its default."""
    names = {
        name: object()
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    seen = []
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    monkeypatch.setattr(cells["is_dynamo_compiling"], "cell_contents", lambda: True)
    monkeypatch.setattr(cells["traced"], "cell_contents", lambda *given: seen.append(given))
    function(**names, unknown=1)
    [(of, given)] = seen
    assert of is function and given == {**names, "positional": (), "others": {"unknown": 1}}


@pytest.mark.parametrize("queries", [1, 300], ids=["dequantizes", "quantises"])
def test_queries_of_16_bits_over_a_cache_of_8_compile(queries, reached):
    """One query keeps its dtype, because there is a kernel for it; 300 are more than a tile of those."""
    q = torch.randn(1, queries, 2, 128).bfloat16()
    k, v = torch.randn(2, 1, 300, 2, 128).to(torch.float8_e4m3fn)
    held = int32(300)
    compiled(flash_attn_with_kvcache)(q, k, v, cache_seqlens=held, causal=True)
    flash_attn_with_kvcache(q, k, v, cache_seqlens=held, causal=True)
    (config, _), (eager, _) = reached[-2:]
    assert config == eager and config.qkv_dtype == ("bf16" if queries == 1 else "e4m3")
