"""flash_attn_func: what it refuses and how it says so; its promises on calls, compiles and memory.

That its numbers are right on every shape is the business of tests/attention; here one small shape
stands for them, where a promise needs a launch.
"""

import contextlib
import inspect
import itertools
import math
import threading
import time
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cute_fa4 import EmulatorWarning, compile_cache, flash_attn_func, masks
from cute_fa4 import masks as kinds
from cute_fa4.calls import launch
from cute_fa4.calls.operands.memory import may_overlap, overlaps_itself, with_plain_strides
from cute_fa4.calls.operands.tensors import (
    MAX_CTAS,
    MAX_SEQLEN,
    check,
)
from cute_fa4.calls.options import resolve
from cute_fa4.compiler import compiler
from cute_fa4.masks import resolve_mask
from cute_fa4.reference import allowed_error, attention_float64, max_error
from cute_fa4.sm100.blueprint.score_mods import additive_bias
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.system.devices import target_of


def qkv(batch=1, seqlen_q=8, seqlen_k=8, heads_q=2, heads_kv=1, head_dim=64, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)

    def normal(seqlen, heads):
        return torch.randn(batch, seqlen, heads, head_dim, generator=generator).to(dtype)

    return normal(seqlen_q, heads_q), normal(seqlen_k, heads_kv), normal(seqlen_k, heads_kv)


def with_strides(shape, strides, offset=0, dtype=torch.bfloat16):
    """A tensor that begins `offset` elements into 16-byte aligned memory."""
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return torch.zeros(last + 1, dtype=dtype).as_strided(shape, strides, offset)


def broadcast(*shape):
    """Any shape at the price of one row of memory: every stride but the last is 0."""
    return torch.zeros(shape[-1], dtype=torch.bfloat16).expand(shape)


# --- refusals: each names the argument, the value and what is accepted


Q, K, V = qkv()
PACKED = torch.zeros(
    1, 8, 2, 2, 64, dtype=torch.bfloat16
)  # (batch, seqlen, q or out, heads, head_dim)

REFUSED = {
    # not tensors, or not together
    "q is a list": (dict(q=[1.0]), TypeError, "q: a list"),
    "v is None": (dict(v=None), TypeError, "v: a NoneType"),
    "out is a string": (dict(out="out"), TypeError, "out: a str"),
    "sparse k": (dict(k=torch.eye(8).to_sparse()), TypeError, "k: layout torch.sparse_coo"),
    "k elsewhere": (dict(k=K.to("meta")), ValueError, "k: on meta while q is on cpu"),
    "out elsewhere": (dict(out=Q.to("meta")), ValueError, "out: on meta while q is on cpu"),
    "float32": (dict(q=Q.float(), k=K.float(), v=V.float()), TypeError, "q: dtype torch.float32"),
    "float8": (dict(q=Q.to(torch.float8_e4m3fn)), TypeError, "k: dtype torch.bfloat16 while q is"),
    "mixed dtypes": (
        dict(k=K.half()),
        TypeError,
        "k: dtype torch.float16 while q is torch.bfloat16",
    ),
    "out of another dtype": (dict(out=Q.half()), TypeError, "out: dtype torch.float16"),
    "meta tensors": (
        dict(q=Q.to("meta"), k=K.to("meta"), v=V.to("meta")),
        ValueError,
        "device 'meta'",
    ),
    # shapes
    "q without heads": (dict(q=Q[:, :, 0]), ValueError, "q: shape (1, 8, 64) has 3 dimensions"),
    "out of rank 5": (dict(out=PACKED), ValueError, "out: shape (1, 8, 2, 2, 64) has 5 dimensions"),
    "k of batch 2": (dict(k=broadcast(2, 8, 1, 64)), ValueError, "k: batch 2 while q has 1"),
    "v of batch 2": (dict(v=broadcast(2, 8, 1, 64)), ValueError, "v: batch 2 while q has 1"),
    "k of head_dim 128": (
        dict(k=broadcast(1, 8, 1, 128)),
        ValueError,
        "k: head_dim 128 while q has 64",
    ),
    "v of head_dim 264": (
        dict(v=broadcast(1, 8, 1, 264)),
        ValueError,
        "v: head_dim 264; accepted: a multiple of 8 up to 256 or of 16 up to 512",
    ),
    "v shorter than k": (dict(v=V[:, :7]), ValueError, "v: seqlen 7 while k has 8"),
    "v of 2 heads": (dict(v=broadcast(1, 8, 2, 64)), ValueError, "v: heads 2 while k has 1"),
    "head_dim 52": (
        dict(q=broadcast(1, 8, 2, 52), k=broadcast(1, 8, 1, 52), v=broadcast(1, 8, 1, 52)),
        ValueError,
        "q: head_dim 52; accepted: a multiple of 8 up to 256 or of 16 up to 512, of q and k together; pad both",
    ),
    "3 heads over 2": (
        dict(q=broadcast(1, 8, 3, 64), k=broadcast(1, 8, 2, 64), v=broadcast(1, 8, 2, 64)),
        ValueError,
        "q: 3 heads over 2 heads of k and v",
    ),
    "no key/value heads": (
        dict(k=broadcast(1, 8, 0, 64), v=broadcast(1, 8, 0, 64)),
        ValueError,
        "q: 2 heads over 0 heads",
    ),
    "more blocks than a grid has": (
        {name: broadcast(1 << 24, 257, 128, 64) for name in "qkv"},  # 2 blocks * 2^7 heads * 2^24
        ValueError,
        f"takes a grid of {1 << 32} CTAs of 256 query rows; accepted: at most {MAX_CTAS}",
    ),
    "more blocks of a family of 128 rows": (
        {name: broadcast(1 << 23, 129, 128, 256) for name in "qkv"},  # 2 blocks * 2^7 heads * 2^23
        ValueError,
        f"takes a grid of {1 << 31} CTAs of 128 query rows; accepted: at most {MAX_CTAS}",
    ),
    "queries beyond 32 bits": (
        dict(q=broadcast(1, MAX_SEQLEN + 1, 2, 64)),
        ValueError,
        f"q: seqlen {MAX_SEQLEN + 1}; accepted: at most {MAX_SEQLEN}",
    ),
    "keys beyond 32 bits": (
        {name: broadcast(1, MAX_SEQLEN + 1, 1, 64) for name in "kv"},
        ValueError,
        f"k: seqlen {MAX_SEQLEN + 1}; accepted: at most {MAX_SEQLEN}",
    ),
    "out of another shape": (dict(out=Q[:, :7]), ValueError, "out: shape (1, 7, 2, 64)"),
    # memory
    "head_dim not contiguous": (
        dict(q=with_strides((1, 8, 2, 64), (2048, 256, 128, 2))),
        ValueError,
        "q: strides (2048, 256, 128, 2), head_dim has stride 2",
    ),
    "rows of 136 bytes": (
        dict(k=with_strides((1, 8, 1, 64), (544, 68, 64, 1))),
        ValueError,
        "seqlen has stride 68 (136 bytes); accepted: multiples of 8 elements (16 bytes)",
    ),
    "heads of 136 bytes": (
        dict(q=with_strides((1, 8, 2, 64), (1088, 136, 68, 1))),
        ValueError,
        "heads has stride 68 (136 bytes)",
    ),
    "begins 8 bytes late": (
        dict(v=with_strides((1, 8, 1, 64), (512, 64, 64, 1), offset=4)),
        ValueError,
        "8 bytes past a multiple of 16",
    ),
    "out of overlapping rows": (
        dict(out=with_strides((1, 8, 2, 64), (256, 32, 512, 1))),
        ValueError,
        "out: strides (256, 32, 512, 1) for shape (1, 8, 2, 64) put several elements at one",
    ),
    "out is q": (dict(out=Q), ValueError, "out: shares memory with q"),
    "out is v": (
        dict(q=PACKED[:, :, 0], k=PACKED[:, :, 1], v=PACKED[:, :, 1], out=PACKED[:, :, 1]),
        ValueError,
        "out: shares memory with k",
    ),
    # numbers and options
    "negative scale": (dict(softmax_scale=-0.125), ValueError, "softmax_scale: -0.125"),
    "scale zero": (dict(softmax_scale=0), ValueError, "softmax_scale: 0.0"),
    "scale NaN": (dict(softmax_scale=math.nan), ValueError, "softmax_scale: nan"),
    "infinite scale": (dict(softmax_scale=math.inf), ValueError, "softmax_scale: inf"),
    "scale that float32 flushes": (dict(softmax_scale=1e-39), ValueError, "softmax_scale: 1e-39"),
    "scale beyond 2^16": (dict(softmax_scale=65537), ValueError, "accepted: 5.42e-20 to 65536"),
    "scale in a tensor": (dict(softmax_scale=torch.tensor(1.0)), TypeError, "read it with .item()"),
    "scale True": (dict(softmax_scale=True), TypeError, "softmax_scale: a bool"),
    "causal in a tensor": (dict(causal=torch.tensor(True)), TypeError, "causal: tensor(True)"),
    "a window without keys": (
        dict(window_size=(-2, 0)),
        ValueError,
        "window_size: (-2, 0): left, right: -2, 0 show no",
    ),
    "one to the future and causal": (
        dict(window_size=(-2, None), causal=True),
        ValueError,
        "window_size: (-2, None): left, right: -2, 0 show no key",
    ),
    "window in a tensor": (
        dict(window_size=(torch.tensor(3), 0)),
        TypeError,
        "left: a Tensor; accepted: None, -1 or a number",
    ),
    "mask without sizes": (dict(mask=kinds.Chunked()), TypeError, "mask: Chunked()"),
    "negative soft cap": (dict(softcap=-1.0), ValueError, "softcap: -1.0; accepted: 0 (off)"),
    "soft cap True": (dict(softcap=True), TypeError, "softcap: a bool"),
    "pack_gqa 3": (dict(pack_gqa=3), TypeError, "pack_gqa: 3; accepted: None"),
    "score_mod 3": (dict(score_mod=3), TypeError, "score_mod: 3 is not a function; accepted:"),
    "a tensor as aux_tensors": (
        dict(aux_tensors=Q, score_mod=lambda s, *_: s),
        TypeError,
        "aux_tensors: a Tensor; accepted: a list",
    ),
    "aux_tensors nobody reads": (dict(aux_tensors=[Q]), ValueError, "aux_tensors: given without"),
    "sink of one head": (
        dict(learnable_sink=torch.zeros(1)),
        ValueError,
        "learnable_sink: shape (1,); accepted: (2,)",
    ),
    "sink of integers": (
        dict(learnable_sink=torch.zeros(2, dtype=torch.int32)),
        TypeError,
        "learnable_sink: dtype torch.int32",
    ),
    "bias of another shape": (
        dict(score_mod=additive_bias(), aux_tensors=[torch.zeros(1, 1, 8, 8)]),
        ValueError,
        "aux_tensors: the first has shape (1, 1, 8, 8); accepted: for additive_bias(True)",
    ),
    "int64 key_limit": (
        dict(key_limit=torch.tensor([3])),
        TypeError,
        "key_limit: dtype torch.int64; accepted: torch.int32",
    ),
    "window of three": (dict(window_size=(1, 2, 3)), ValueError, "window_size: (1, 2, 3)"),
}


@pytest.mark.parametrize("arguments, error, text", REFUSED.values(), ids=REFUSED.keys())
def test_refusal_names_argument_value_and_what_is_accepted(arguments, error, text):
    compiles = compile_cache.statistics().compiles
    with pytest.raises(error) as refused:
        flash_attn_func(**{"q": Q, "k": K, "v": V, **arguments})
    message = str(refused.value)
    assert text in message
    assert "accepted:" in message
    assert compile_cache.statistics().compiles == compiles  # refused before anything was compiled


def test_stride_beyond_the_range_of_tma():
    # 2^40 bytes cannot be allocated here; metadata is all the check reads, so a meta tensor has
    # such strides.
    huge = torch.empty_strided(
        (2, 8, 2, 64), (1 << 39, 128, 64, 1), dtype=torch.bfloat16, device="meta"
    )
    with pytest.raises(
        ValueError, match="batch has stride 549755813888 .*accepted: less than 1099511627776"
    ):
        check(huge, huge[:, :, :1], huge[:, :, :1], None)


def test_off_has_every_spelling_that_callers_use():
    for window in (None, [-1, -1], *itertools.product((None, -1), repeat=2)):
        assert resolve_mask(False, window, None) == masks.full()
        assert resolve_mask(True, window, None) == masks.causal()
    options = resolve(Q, softcap=None, pack_gqa=False)
    assert options == resolve(Q, softcap=0.0, pack_gqa=False)


@pytest.mark.parametrize("name", ["q", "k", "v", "out"])
def test_gradients_are_refused_only_where_they_would_be_needed(name):
    tensors = {"q": Q, "k": K, "v": V, "out": torch.empty_like(Q)}
    tensors[name] = tensors[name].clone().requires_grad_()
    arguments = tuple(tensors.values())
    with pytest.raises(NotImplementedError, match=f"^{name}: requires_grad is True.*no_grad"):
        check(*arguments)
    with torch.no_grad():
        check(*arguments)


def test_the_parameters_have_the_names_of_flash_attn_4():
    # The parameters of flash_attn_func in flash-attn-4 4.0.0b36 that concern the forward pass.
    theirs = (
        "q k v softmax_scale causal window_size learnable_sink softcap num_splits pack_gqa "
        "deterministic score_mod mask_mod aux_tensors block_sparse_tensors return_lse"
    ).split()
    parameters = inspect.signature(flash_attn_func).parameters
    ours = [
        *("mask", "key_limit"),  # after window_size, which they complete
        *("tokens_per_split", "batch_invariant", "workspace"),  # after num_splits
        *("k_rope", "q_rope", "k_rope_descale", "v_block_scale_layout"),
        *("q_descale", "k_descale", "v_descale", "o_scale", "k_block_scale", "v_block_scale"),
        "q_quantize",  # 16-bit queries over 8-bit keys, which it does not take
        *("skip_softmax_threshold_scale_factor", "skipped_tiles", "out"),
    ]
    named = [n for n, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    assert [name for name in named if name not in ours] == theirs
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    assert [n for n in named if parameters[n].kind is not keyword_only] == ["q", "k", "v"]


# --- devices


@pytest.mark.parametrize("capability, arch", [((10, 0), "sm_100a"), ((10, 3), "sm_103a")])
def test_blackwell_devices_run_code_compiled_for_them(capability, arch, monkeypatch):
    monkeypatch.setattr("cute_fa4.system.devices._compute_capability", lambda index: capability)
    assert target_of(torch.device("cuda", 0)) == ("cuda", arch)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 1), (11, 0), (12, 0)])
def test_other_gpus_are_refused_with_their_compute_capability(capability, monkeypatch):
    monkeypatch.setattr("cute_fa4.system.devices._compute_capability", lambda index: capability)
    major, minor = capability
    with pytest.raises(
        ValueError, match=f"capability {major}.{minor} cannot run .*accepted: 10.0 and 10.3"
    ):
        target_of(torch.device("cuda", 0))


# --- memory: the two overlap questions against brute force


def addresses(tensor):
    first, strides = tensor.data_ptr() // tensor.element_size(), tensor.stride()
    return [
        first + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, tensor.shape))
    ]


BUFFER = torch.zeros(4096, dtype=torch.bfloat16)


@st.composite
def views(draw):
    """Views of one buffer, with dimensions that nest, interleave, repeat or overlap."""
    shape = draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
    strides = draw(
        st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48]), min_size=3, max_size=3)
    )
    return BUFFER.as_strided(shape, strides, draw(st.integers(0, 64)))


@given(views(), views())
def test_tensors_said_to_be_apart_share_no_address(a, b):
    if not may_overlap(a, b):
        assert not set(addresses(a)) & set(addresses(b))


@given(views())
def test_a_tensor_said_not_to_overlap_itself_has_distinct_addresses(a):
    if not overlaps_itself(a):
        assert len(set(addresses(a))) == len(addresses(a))


def test_slices_of_packed_tensors_are_known_to_be_apart():
    # The cases that a conservative answer would break: slices of one (batch, seqlen, 4, heads,
    # head_dim), of one (batch, seqlen, 4 * heads, head_dim), and of both with heads outside.
    packed = torch.zeros(2, 5, 4, 3, 64, dtype=torch.bfloat16)
    for whole in (packed, packed.transpose(1, 3)):
        parts = whole.unbind(2)
        for a, b in itertools.permutations(parts, 2):
            assert not may_overlap(a, b)
        for part in parts:
            assert may_overlap(part, part) and not overlaps_itself(part)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_strides_of_unit_dimensions_become_plain_and_addresses_stay(order):
    tensor = torch.zeros(2, 3, 4, 64, dtype=torch.bfloat16)
    for dims in itertools.chain.from_iterable(
        itertools.combinations(range(3), n) for n in range(4)
    ):
        view = tensor
        for dim in dims:
            view = view.narrow(dim, 0, 1)
        odd = view.as_strided(
            view.shape,
            [999 if n == 1 else s for n, s in zip(view.shape, view.stride(), strict=True)],
        )
        plain = with_plain_strides(odd.permute(order)).permute([order.index(d) for d in range(4)])
        assert addresses(plain) == addresses(view)
        assert 999 not in plain.stride()


# --- calls that have nothing to compute


@pytest.mark.parametrize(
    "sizes", [dict(batch=0), dict(seqlen_q=0), dict(batch=0, seqlen_k=0)], ids=str
)
def test_no_queries_give_an_empty_result_without_compiling(sizes):
    q, k, v = qkv(**sizes)
    compiles = compile_cache.statistics().compiles
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    assert out.shape == q.shape and out.dtype == q.dtype
    assert lse.shape == (q.shape[0], q.shape[2], q.shape[1]) and lse.dtype == torch.float32
    assert compile_cache.statistics().compiles == compiles


def test_no_keys_give_zeros_and_lse_minus_infinity_without_compiling():
    q, k, v = qkv(seqlen_k=0)
    compiles = compile_cache.statistics().compiles
    out = torch.full_like(q, math.nan)
    returned, lse = flash_attn_func(q, k, v, return_lse=True, out=out)
    assert returned is out and (out == 0).all() and (lse == -math.inf).all()
    assert compile_cache.statistics().compiles == compiles


# --- calls that launch, on the emulator


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        yield


def test_result_and_lse_agree_with_float64(quiet):
    # 2 query heads on 1 key/value head, 5 queries on 40 keys: one tile, mostly outside the tensors.
    q, k, v = qkv(seqlen_q=5, seqlen_k=40)
    out, lse = flash_attn_func(q, k, v, causal=True, softmax_scale=0.2, return_lse=True)
    exact, exact_lse = attention_float64(q, k, v, causal=True, softmax_scale=0.2)
    allowed = allowed_error(q, k, v, causal=True, softmax_scale=0.2)
    assert max_error(out, exact) <= allowed.out
    assert max_error(lse, exact_lse) <= allowed.lse
    assert lse.dtype == torch.float32 and lse.shape == (1, 2, 5)


def test_out_is_written_in_place_and_returned(quiet):
    q, k, v = qkv()
    fresh = flash_attn_func(q, k, v)
    packed = torch.full((1, 8, 2, 2, 64), math.nan, dtype=q.dtype)
    out = packed[:, :, 1]
    assert flash_attn_func(q, k, v, out=out) is out
    assert torch.equal(out, fresh)
    assert packed[:, :, 0].isnan().all()  # nothing beside out was written


def test_other_sizes_and_strides_do_not_compile_again(quiet):
    flash_attn_func(*qkv(heads_q=2, heads_kv=1))
    compiles = compile_cache.statistics().compiles
    q, k, v = qkv(batch=2, seqlen_q=9, seqlen_k=130, heads_q=4, heads_kv=2)
    strided = q.transpose(1, 2).contiguous().transpose(1, 2)
    for query in (q, strided):
        out = flash_attn_func(query, k, v, softmax_scale=0.5)
        exact, _ = attention_float64(q, k, v, softmax_scale=0.5)
        assert max_error(out, exact) <= allowed_error(q, k, v, softmax_scale=0.5).out
    assert compile_cache.statistics().compiles == compiles


def test_expanded_and_odd_unit_strides_are_read_as_they_are(quiet):
    # One key/value row of heads for both sequences and all heads (stride 0), and a batch dimension of
    # size 1 whose stride no descriptor could hold.
    q, k, v = qkv(batch=2, seqlen_k=33, heads_q=2, heads_kv=1)
    k, v = k[:1].expand(2, 33, 2, 64), v[:1].expand(2, 33, 2, 64)
    assert k.stride(0) == k.stride(2) == 0
    copied = flash_attn_func(q, k.contiguous(), v.contiguous())
    assert torch.equal(flash_attn_func(q, k, v), copied)
    odd = [t[1:].as_strided((1, *t.shape[1:]), (1 << 60, *t.stride()[1:])) for t in (q, k, v)]
    assert torch.equal(flash_attn_func(*odd), flash_attn_func(*(t.contiguous() for t in odd)))


def test_launches_get_plain_strides_and_the_emulator_to_themselves(monkeypatch, quiet):
    # A stand-in for the compiled function records what reaches it, and how many calls are inside of it.
    inside, most_inside, seen = [], [], []

    def function(*arguments):
        inside.append(None)
        most_inside.append(len(inside))
        seen.append(arguments)
        time.sleep(0.02)  # long enough for the other threads to arrive
        inside.pop()

    monkeypatch.setattr(compile_cache, "function_for", lambda config, executor: function)
    odd = [t.as_strided(t.shape, (999, *t.stride()[1:])) for t in qkv()]
    threads = [threading.Thread(target=flash_attn_func, args=odd) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert max(most_inside) == 1
    assert len(seen) == 4
    for q, k, v, out, lse, scale, *_ in seen:
        assert [t.stride(0) for t in (q, k, v, out)] == [1024, 512, 512, 1024]
        assert [t.data_ptr() for t in (q, k, v)] == [t.data_ptr() for t in odd]  # no copies
        assert lse is None
        assert scale == 0.125


def test_a_first_launch_happens_on_the_device_of_the_tensors(monkeypatch):
    # Later ones are those of test_driver_calls.py: the host code makes the device current.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert isinstance(launch.launching_on(torch.device("cuda", 0)), contextlib.nullcontext)
    other = launch.launching_on(torch.device("cuda", 1))
    assert isinstance(other, torch.cuda.device)
    assert other.idx == 1


def test_the_emulator_is_announced_once_per_process(monkeypatch):
    monkeypatch.setattr(launch, "_warned", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            flash_attn_func(*qkv())
    announced = [w for w in caught if w.category is EmulatorWarning]
    assert len(announced) == 1
    assert announced[0].filename == __file__  # points at the call, not into the package


def test_threads_that_ask_for_one_configuration_compile_it_once(own_kernels, monkeypatch):
    all_asked = threading.Barrier(4)
    compiled = []

    def slow_compile(config, executor):
        compiled.append(config)
        time.sleep(0.05)  # long enough for the other threads to find nothing and wait
        return lambda: config

    monkeypatch.setattr(compiler, "compile_function", slow_compile)
    configs = [FA4Config(mask=kinds.Causal()), FA4Config()]
    found = []

    def ask(config):
        all_asked.wait(timeout=30)
        found.append(compile_cache.function_for(config, "emulator"))

    threads = [threading.Thread(target=ask, args=(configs[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == 4 and len(set(found)) == 2
    assert sorted(c.causal for c in compiled) == [False, True]
    assert compile_cache.statistics().compiles == 2
