"""What other packages' arguments, and values that are close to right, are told: the argument, the value, a remedy.

Nothing here compiles, except where a function of the user is traced.
"""

import inspect
import math

import numpy as np
import pytest
import torch

from cute_fa4 import (
    aot,
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    masks,
    score_mods,
    warmup,
)
from cute_fa4.aot.manifest import FORMAT, versions
from cute_fa4.calls.operands import foreign
from cute_fa4.compiler import compiler
from cute_fa4.compiler import functions as registry
from cute_fa4.sm100.choose.config import FA4Config
from tests.serving.batches import int32
from tests.serving.test_errors import APPEND, PACKED, PAGED
from tests.test_interface import K, Q, V

PAGE = "see docs/coming_from.md"
DENSE = dict(q=Q, k=K, v=V)
ADDITIVE = torch.zeros(1, 2, 300, 300)


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch):
    """Compiled functions write nothing."""
    monkeypatch.setattr(registry, "_functions", {})
    monkeypatch.setattr(registry, "_seconds", {})
    monkeypatch.setattr(compiler, "compile_function", lambda config, executor: lambda *given: None)
    monkeypatch.setattr(compile_cache, "function_for", lambda config, executor: lambda *given: None)


def refusal(function, *positional, **arguments) -> tuple[type, str]:
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as refused:
        function(*positional, **arguments)
    return refused.type, str(refused.value)


# --- arguments of other packages

FUNCTIONS = {
    flash_attn_func: DENSE,
    flash_attn_varlen_func: PACKED,
    flash_attn_with_kvcache: APPEND,
}


FOREIGN = [
    pytest.param(function, name, id=f"{function.__name__}-{name}")
    for function in FUNCTIONS
    for name in foreign.UNSUPPORTED | foreign.OTHER_NAMES
    if name not in inspect.signature(function).parameters
]


@pytest.mark.parametrize("function, name", FOREIGN)
def test_what_only_other_packages_have_passes_if_it_is_off_and_is_refused_by_name(function, name):
    call = FUNCTIONS[function]
    off, _ = (foreign.UNSUPPORTED | foreign.OTHER_NAMES)[name]
    for value in off:
        function(**call, **{name: value})
    for value in (0.5, *[torch.ones(2)] * (name not in foreign.NOT_NEEDED)):
        _, text = refusal(function, **call, **{name: value})
        assert text.startswith(f"{name}: ") and "accepted:" in text and text.endswith(PAGE)
        assert len(text) < 300


def test_the_values_that_the_other_packages_pass_by_default_are_accepted():
    flash_attn_func(**DENSE, dropout_p=0.0, alibi_slopes=None, return_attn_probs=False)
    error, text = refusal(flash_attn_func, **DENSE, dropout_p=0.1)
    assert error is NotImplementedError and text.startswith("dropout_p: 0.1; accepted: 0")
    assert "score_mods.alibi" in refusal(flash_attn_func, **DENSE, alibi_slopes=torch.ones(2))[1]
    assert "return_lse=True" in refusal(flash_attn_func, **DENSE, return_attn_probs=True)[1]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_further_argument_by_position_is_refused_with_the_page(function):
    inside = foreign._by_position(function)
    given = [FUNCTIONS[function].get(name) for name in inside]
    error, text = refusal(function, *given, 0.0, True)
    assert error is TypeError and text.startswith(
        f"{function.__name__}: argument {len(inside) + 1}"
    )
    assert ", ".join(inside) in text and "0.0" in text and text.endswith(PAGE)


def test_offsets_and_maxima_may_come_by_position_as_in_flash_attn():
    q, k, v, *rest = (PACKED[name] for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"))
    assert flash_attn_varlen_func(q, k, v, *rest, 3, 33, causal=True).shape == q.shape
    # vLLM's order, whose numbers come before their offsets.
    _, text = refusal(flash_attn_varlen_func, q, k, v, 3, rest[0], 33, rest[1])
    assert (
        text.startswith("cu_seqlens_q: an int; accepted: a torch.Tensor") and foreign.PAGE in text
    )


def test_a_misspelt_parameter_is_told_the_right_one():
    error, text = refusal(flash_attn_func, **DENSE, casual=True)
    assert error is TypeError and text.startswith("casual: not a parameter of flash_attn_func")
    assert "accepted: q, k, v, softmax_scale" in text and text.endswith("did you mean causal?")


def test_names_of_sdpa_are_told_the_function_that_has_them():
    _, text = refusal(flash_attn_func, query=Q, key=K, value=V)
    assert text.startswith("query: a Tensor of shape (1, 8, 2, 64)")
    assert "q=" in text and "cute_fa4.scaled_dot_product_attention" in text
    assert refusal(flash_attn_func)[1].startswith("q: a NoneType; accepted: a torch.Tensor")
    assert refusal(flash_attn_with_kvcache, Q, k=K, v=V)[1].startswith("k_cache: a NoneType")


SWITCHES = {
    flash_attn_func: ("return_lse", "deterministic", "causal", "pack_gqa"),
    flash_attn_varlen_func: (
        *("return_lse", "return_softmax_lse", "deterministic", "causal", "pack_gqa"),
        "seqused_k_excludes_new",
    ),
    flash_attn_with_kvcache: ("return_lse", "return_softmax_lse", "causal", "pack_gqa"),
}


@pytest.mark.parametrize(
    "function, name", [(f, name) for f, names in SWITCHES.items() for name in names]
)
def test_a_switch_is_true_or_false(function, name):
    call = FUNCTIONS[function]
    function(**call, **{name: False})
    for value in ("a", 1, np.array([1, 2]), torch.ones(2)):  # 1 also after True was kept in a plan
        error, text = refusal(function, **call, **{name: value})
        assert error is TypeError and text.startswith(f"{name}: ") and "True or False" in text


# --- values that are close to right


def nested():
    return torch.nested.nested_tensor([Q[0], Q[0, :3]], layout=torch.jagged)


NO_PAGES = dict(k=PAGED["k"][:0], v=PAGED["v"][:0])
WEAK = {
    "a mask in a tensor": (
        lambda: flash_attn_func(**DENSE, mask=ADDITIVE),
        "mask: a Tensor of shape (1, 2, 300, 300) and dtype torch.float32; accepted: None or a mask",
        "scaled_dot_product_attention(attn_mask=)",
    ),
    "a kind of mask": (
        lambda: flash_attn_func(**DENSE, mask=masks.Causal()),
        "mask: Causal(); accepted: None or a mask",
        "masks.causal()",
    ),
    "a function as mask": (
        lambda: flash_attn_func(**DENSE, mask=lambda *_: True),
        "mask: <function",
        "mask_mod=",
    ),
    "both of numbers": (lambda: masks.both(1, 2), "masks.both: a: 1; accepted: a mask", "chunked"),
    "either of a tensor": (
        lambda: masks.either(masks.causal(), ADDITIVE),
        "masks.either: b: a Tensor of shape (1, 2, 300, 300)",
        "accepted: a mask",
    ),
    "a causal tensor": (
        lambda: flash_attn_func(**DENSE, causal=ADDITIVE),
        "causal: a Tensor of shape (1, 2, 300, 300)",
        "accepted: True or False",
    ),
    "alibi of no heads": (
        lambda: score_mods.alibi(0),
        "score_mods.alibi: num_heads: 0",
        "at least 1",
    ),
    "alibi of slopes": (
        lambda: score_mods.alibi(torch.ones(8)),
        "score_mods.alibi: num_heads: a Tensor of shape (8,)",
        "accepted:",
    ),
    "a cap that is no number": (
        lambda: score_mods.soft_cap(math.nan),
        "score_mods.soft_cap: cap: nan; accepted: a finite number above 0",
        "",
    ),
    "a cap in a string": (lambda: score_mods.soft_cap("5"), "score_mods.soft_cap: cap: '5'", ""),
    "no distances": (
        lambda: score_mods.relative_logits(0),
        "score_mods.relative_logits: extent: 0",
        "accepted:",
    ),
    "a bias for how many heads": (
        lambda: score_mods.additive_bias(8),
        "score_mods.additive_bias: heads: 8",
        "accepted: True",
    ),
    "composed with a function": (
        lambda: score_mods.composed(lambda *_: 0, None),
        "score_mods.composed: first: <function",
        "ScoreMod.of",
    ),
    "a list as q": (
        lambda: flash_attn_func([[1.0]], K, V),
        "q: a list; accepted: a torch.Tensor",
        "torch.tensor(q)",
    ),
    "an array as k": (
        lambda: flash_attn_func(Q, np.zeros((1, 8, 1, 64)), V),
        "k: a ndarray; accepted: a torch.Tensor",
        "torch.from_numpy(k)",
    ),
    "a nested tensor": (
        lambda: flash_attn_func(nested(), K, V),
        "q: a nested tensor; accepted:",
        "flash_attn_varlen_func, with cu_seqlens_q=q.offsets()",
    ),
    "a nested tensor of the old layout": (
        lambda: flash_attn_func(Q, torch.nested.nested_tensor([K[0], K[0]]), V),
        "k: a nested tensor",
        "k.values()",
    ),
    "a cache of another head dim": (
        lambda: flash_attn_with_kvcache(Q, K[..., :32], V[..., :32]),
        "k_cache: head_dim 32 while q has 64; accepted: equal; the shapes are k_cache (1, 8, 1, 32)",
        "",
    ),
    "a cache in a list": (
        lambda: flash_attn_with_kvcache(Q, K, [V]),
        "v_cache: a list; accepted: a torch.Tensor",
        "torch.tensor(v_cache)",
    ),
    "lengths beyond a cache": (
        lambda: flash_attn_with_kvcache(Q, K, V, cache_seqlens=int32([9])),
        "cache_seqlens: 9 for sequence 0; accepted: at most 8",
        "k_cache",
    ),
    "a cache without pages": (
        lambda: flash_attn_varlen_func(**PAGED | NO_PAGES),
        "page_table: entry [0, 0] is",
        "accepted: a sequence of 0 keys: k and v, 16 keys a page, have no page",
    ),
    "warmup of a number": (
        lambda: warmup([5]),
        "configs[0]: 5; accepted: a list of FA4Config, AppendConfig",
        "configs_for_model",
    ),
    "warmup of one configuration": (
        lambda: warmup(FA4Config()),
        "configs: one FA4Config; accepted: a list",
        "[config]",
    ),
    "warmup of nothing that iterates": (lambda: warmup(5), "configs: 5; accepted: a list", ""),
    "warmup of what cannot run": (
        lambda: warmup([FA4Config(qk_depth=12)]),
        "configs[0]: cannot run:",
        "",
    ),
    "warmup on a gpu": (
        lambda: warmup([], executor="gpu"),
        "executor: 'gpu'; accepted: 'cuda' or 'emulator'",
        "",
    ),
    "load for one executor": (
        lambda: aot.load(".", executors="cuda"),
        "executors: 'cuda'; accepted: a tuple of 'cuda', 'emulator'",
        "",
    ),
    "one call in a string": (
        lambda: aot.configs_for_model(head_dim=64, heads_q=1, heads_kv=1, calls="dense"),
        "calls: 'dense'; accepted: a tuple or a list, such as ('dense',)",
        "",
    ),
    "one page size": (
        lambda: aot.configs_for_model(head_dim=64, heads_q=1, heads_kv=1, page_sizes=16),
        "page_sizes: 16; accepted: a tuple or a list, such as (16, 64)",
        "",
    ),
    "one window": (
        lambda: aot.configs_for_model(head_dim=64, heads_q=1, heads_kv=1, windows=(128, 0)),
        "windows: 128 in (128, 0); accepted: such as (None, (4095, 0))",
        "",
    ),
    "return_lse of a model": (
        lambda: aot.configs_for_model(head_dim=64, heads_q=1, heads_kv=1, return_lse=True),
        "return_lse: True; accepted: a tuple or a list, such as (False,)",
        "",
    ),
}


@pytest.mark.parametrize("call, begins, contains", WEAK.values(), ids=WEAK.keys())
def test_the_message_begins_with_the_argument_and_its_value(call, begins, contains):
    _, text = refusal(call)
    assert text.startswith(begins), text
    assert contains in text and len(text) < 400, text


def test_a_configuration_is_told_the_kind_of_a_mask():
    (why,) = FA4Config(mask=masks.chunked(64)).refusals()
    assert why.startswith("mask=BoundMask(mask=Chunked(), sizes=(64,))") and ".mask" in why


def test_every_kind_of_mask_is_public():
    assert set(masks.KINDS) <= set(masks.__all__)


MANIFESTS = {
    "an empty file": ("", "empty"),
    "an empty object": ("{}", "format None; accepted:"),
    "no kernels": (
        f'{{"format": {FORMAT}, "versions": {{}}, "kernels": []}}',
        "a list of no kernels; accepted: one or more",
    ),
}


@pytest.mark.parametrize("content, text", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_says_nothing_is_refused(content, text, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(aot.LoadError, match=text) as refused:
        aot.load(tmp_path)
    assert "export again" in str(refused.value) and versions()


def test_a_manifest_is_no_directory(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    with pytest.raises(aot.LoadError) as refused:
        aot.load(str(path))
    assert str(refused.value).startswith(f"{path}: a file; accepted: a directory")
    assert str(refused.value).endswith(f"pass {tmp_path}")


# --- numpy's numbers


def test_numpy_integers_are_integers():
    one, three, thirty = np.int64(1), np.int32(3), np.uint8(30)
    flash_attn_func(**DENSE, window_size=(three, np.int64(-1)), softcap=thirty, num_splits=one)
    flash_attn_func(
        **DENSE, softmax_scale=np.float32(0.5), softcap=np.float64(3), mask=masks.chunked(three)
    )
    flash_attn_varlen_func(**PACKED | dict(max_seqlen_q=three, max_seqlen_k=np.int64(33)))
    flash_attn_with_kvcache(**APPEND | dict(cache_seqlens=three))
    model = dict(head_dim=64, heads_q=4, heads_kv=2, page_sizes=(16,))
    numpy = dict(
        head_dim=np.int64(64), heads_q=np.int8(4), heads_kv=np.int16(2), page_sizes=(np.int64(16),)
    )
    assert aot.configs_for_model(**numpy) == aot.configs_for_model(**model)
    config = FA4Config(qk_depth=np.int64(64), group=np.int32(2))
    assert repr(config) == repr(FA4Config(qk_depth=64, group=2))
    assert score_mods.alibi(np.int64(8)) == score_mods.alibi(8)
    assert score_mods.relative_logits(np.int64(8)).key == "relative_logits(8)"
    assert score_mods.soft_cap(np.float32(8)).key == "soft_cap(8.0)"


@pytest.mark.parametrize(
    "counts", [3, torch.tensor([3], dtype=torch.int32)], ids=["number", "tensor"]
)
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "v", "out"])
def test_a_gradient_is_refused_under_the_name_of_the_call(name, counts):
    given = {
        each: torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16) for each in ("q", "k", "v", "out")
    }
    given |= {
        each: torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16) for each in ("k_cache", "v_cache")
    }
    given[name].requires_grad_()
    with pytest.raises(
        NotImplementedError, match=rf"^{name}: requires_grad.*or pass {name}\.detach\(\)$"
    ):
        flash_attn_with_kvcache(**given, cache_seqlens=counts)
