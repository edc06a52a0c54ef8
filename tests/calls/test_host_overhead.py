"""Python calls and torch operators of a repeated call, and the lifetime of plans (cute_fa4/calls/repeat.py).

Counts, no times: those are in benchmarks/host_overhead.py. Compiled functions are stand-ins.
"""

import gc
import sys
import threading
import weakref

import pytest
import torch

from cute_fa4 import (
    EmulatorWarning,
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    masks,
    score_mods,
)
from cute_fa4.calls import repeat
from cute_fa4.calls.prepare import prepare_attention
from cute_fa4.compiler import compiler
from tests.serving.batches import int32
from tests.serving.test_errors import APPEND
from tests.test_interface import K, Q, V, qkv

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

SINK = torch.zeros(2)


def plans() -> int:
    return len(repeat._table.plans)


# --- when a plan is made, and when it is forgotten


@pytest.fixture
def prepared(monkeypatch):
    """Calls that went the long way."""
    seen = []

    def prepare(tensors, asked):
        seen.append(asked)
        return varlen_prepare(tensors, asked)

    varlen_prepare = prepare_attention
    monkeypatch.setattr("cute_fa4.interface.prepare_attention", prepare)
    return seen


@pytest.fixture
def functions(own_kernels, monkeypatch):
    """Configurations that were compiled: to a function that copies q to out."""
    compiled = []

    def compile_(config, executor):
        compiled.append(config)
        return lambda q, k, v, out, *rest: out.copy_(q)

    monkeypatch.setattr(compiler, "compile_function", compile_)
    return compiled


def test_other_metadata_and_options_are_other_plans(prepared, functions):
    q, k, v = qkv(seqlen_q=16)
    calls = [
        ((q, k, v), {}),
        ((q[:, :8], k, v), {}),
        ((q[:, ::2], k, v), {}),
        ((q.half(), k.half(), v.half()), {}),
        ((q, k, v), dict(causal=True)),
        ((q, k, v), dict(window_size=(3, None))),
        ((q, k, v), dict(window_size=[3, None], softmax_scale=0.5)),
        ((q, k, v), dict(mask=masks.chunked(4))),
        ((q, k, v), dict(mask=masks.chunked(5))),
        ((q, k, v), dict(softcap=2.0)),
        ((q, k, v), dict(score_mod=score_mods.alibi(2))),
        ((q, k, v), dict(learnable_sink=SINK)),
        ((q, k, v), dict(learnable_sink=SINK.half())),
        ((q, k, v), dict(return_lse=True)),
        ((q, k, v), dict(out=torch.empty_like(q))),
    ]
    for tensors, options in (*calls, *calls[::-1], *calls):
        copies = [tensor.clone(memory_format=torch.preserve_format) for tensor in tensors]
        flash_attn_func(
            *(c if c.stride() == t.stride() else t for c, t in zip(copies, tensors, strict=True)),
            **options,
        )
    assert len(prepared) == plans() == len(calls)


def test_a_function_of_the_user_is_read_again_at_each_call(prepared, functions):
    # Its closure changes: the same function object is another kernel. The earlier state is recognized.
    factor = None

    def scaled(score, *_):
        return score * factor

    for value in (1.0, 2.0, 2.0, 1.0):
        factor = value
        flash_attn_func(Q, K, V, score_mod=scaled)
    assert len(prepared) == len(functions) == plans() == 2


def test_clear_forgets_plans(functions):
    for _ in range(3):
        flash_attn_func(Q, K, V)
    assert len(functions) == 1
    compile_cache.clear()
    flash_attn_func(Q, K, V)
    assert len(functions) == 2


def test_a_function_forgotten_while_a_call_was_prepared_is_in_no_plan(functions, monkeypatch):
    def prepare(tensors, asked):
        plan = prepare_attention(tensors, asked)
        compile_cache.clear()
        return plan

    monkeypatch.setattr("cute_fa4.interface.prepare_attention", prepare)
    flash_attn_func(Q, K, V)
    assert plans() == 0


def test_plans_are_bounded_and_the_oldest_leaves(prepared, functions, monkeypatch):
    monkeypatch.setattr(repeat, "MAX_PLANS", 3)
    for seqlen in (1, 2, 3, 4, 5):
        flash_attn_func(*qkv(seqlen_q=seqlen))
    assert plans() == 3
    for seqlen in (5, 4, 3, 1):
        flash_attn_func(*qkv(seqlen_q=seqlen))
    assert len(prepared) == 6


def test_a_plan_keeps_no_tensor_alive(functions):
    q, k, v = qkv()
    sink, out = torch.zeros(2), torch.empty_like(q)
    watched = [weakref.ref(tensor) for tensor in (q, k, v, sink, out)]
    flash_attn_func(q, k, v, learnable_sink=sink, out=out)
    assert plans() == 1
    del q, k, v, sink, out
    gc.collect()
    assert not any(reference() is not None for reference in watched)


def test_threads_share_plans_while_they_are_forgotten(functions):
    # Each thread checks its own results; a plan of another shape would fail or give the wrong ones.
    errors, done = [], threading.Event()

    def call(seqlen):
        try:
            q, k, v = qkv(seqlen_q=seqlen)
            for i in range(200):
                x = q + i
                out = flash_attn_func(x, k, v, causal=bool(i % 2))
                assert out is not x and torch.equal(out, x)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(1 + i // 2,)) for i in range(4)]
    clearing = threading.Thread(target=lambda: [repeat.clear() for _ in iter(done.is_set, True)])
    for thread in (clearing, *threads):
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    done.set()
    clearing.join(timeout=60)
    assert not errors and not any(thread.is_alive() for thread in threads)


def test_a_launch_that_fails_is_not_tried_again(monkeypatch):
    tried = []

    def function(*arguments):
        tried.append(arguments)
        if len(tried) > 1:
            raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(compile_cache, "function_for", lambda config, executor: function)
    flash_attn_func(Q, K, V)
    with pytest.raises(RuntimeError, match="LAUNCH_FAILED"):
        flash_attn_func(Q, K, V)
    assert len(tried) == 2


# --- what repeated calls ask of the interpreter and of torch

DENSE = dict(q=Q, k=K, v=V)
DECODE = dict(
    q=torch.zeros(2, 2, 64, dtype=torch.bfloat16),
    k=torch.zeros(6, 16, 1, 64, dtype=torch.bfloat16),
    v=torch.zeros(6, 16, 1, 64, dtype=torch.bfloat16),
    cu_seqlens_q=int32([0, 1, 2]),
    max_seqlen_q=1,
    seqused_k=int32([5, 20]),
    page_table=int32([0, 1, 2, 3, 4, 5, 0, 0]).view(2, 4),
)
# Operators of torch: what is returned is allocated, and nothing else happens.
# Functions of the package, which each take a twentieth of a microsecond: the public one and what it calls with its
# arguments gathered, again, the recognition and its parts, the plan's conditions, the plan, its views, its launch, the
# allocation of out; an append has conditions and a call.
ASKED = {
    "dense": (flash_attn_func, DENSE, ["aten::empty_like"], 10),
    "dense, lse": (
        flash_attn_func,
        DENSE | dict(return_lse=True),
        ["aten::empty_like", "aten::empty_strided"],
        10,
    ),
    "dense, out": (flash_attn_func, DENSE | dict(out=torch.zeros_like(Q)), [], 10),
    "paged decode": (flash_attn_varlen_func, DECODE, ["aten::empty_like"], 12),
    "append": (
        flash_attn_with_kvcache,
        APPEND | dict(v=APPEND["v"].clone()),
        ["aten::empty_like"],
        12,
    ),
    # k is v: by its key, with is_traced, the refusals of the public function, a step of a loop for each tensor.
    "append, by its key": (flash_attn_with_kvcache, APPEND, ["aten::empty_like"], 36),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_repeated_call_asks_for_little(case, monkeypatch):
    function, arguments, operators, most_calls = ASKED[case]
    # As on CUDA, where the contents of lengths and page tables are not looked at.
    monkeypatch.setattr(
        "cute_fa4.calls.attention._decided_by_contents", lambda device, where: False
    )

    def compiled(*arguments):
        pass

    monkeypatch.setattr("cute_fa4.calls.attention.function_for", lambda config, target: compiled)
    monkeypatch.setattr("cute_fa4.calls.append.function_for", lambda config, target: compiled)
    function(**arguments)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(**arguments)
    # The allocation by empty_like is counted once.
    top = [event.name for event in profile.events() if event.cpu_parent is None]
    assert [name for name in top if name.startswith("aten::")] == operators
    called = []

    def count(frame, event, _):
        if event == "call" and frame.f_globals["__name__"].startswith("cute_fa4."):
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(**arguments)
    finally:
        sys.setprofile(before)
    assert len(called) <= most_calls, called
