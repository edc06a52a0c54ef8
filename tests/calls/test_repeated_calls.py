"""Repeated calls (cute_fa4/calls/repeat.py) refuse what first calls refuse, and compute what first calls compute.

For refusals the compiled host code runs, because it checks arguments, too; the grid is not executed.
"""

from types import SimpleNamespace

import pytest
import torch

from cute_fa4 import (
    EmulatorWarning,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from cute_fa4.calls import repeat
from tests.serving import test_errors as serving
from tests.serving.batches import Batch, int32, packed_q, paged_kv
from tests.sm100.latent import latent_batches
from tests.test_interface import REFUSED, K, Q, V, qkv, with_strides

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")


@pytest.fixture
def launches(monkeypatch):
    """Launches that came through; they are not executed."""
    seen = []

    def execute_grid(program, **launch):
        seen.append(launch)
        return SimpleNamespace(instructions=0, opcodes={}, counters={}, notes=[], regions=())

    monkeypatch.setattr("cute_fa4.emulator.run.launch.execute_grid", execute_grid)
    return seen


@pytest.fixture
def unseen(monkeypatch):
    """Contents of lengths and page tables are not looked at, as on CUDA: such calls are kept, too."""
    monkeypatch.setattr(
        "cute_fa4.calls.attention._decided_by_contents", lambda device, where: False
    )
    monkeypatch.setattr("cute_fa4.calls.operands.lengths.check_contents", lambda *arguments: None)
    monkeypatch.setattr(
        "cute_fa4.calls.operands.new_rows._check_append_contents", lambda *arguments: None
    )


def plans() -> int:
    return len(repeat._table.plans)


def outcome(function, arguments) -> str:
    """The outcome of a call: a refusal, or a launch."""
    try:
        function(**arguments)
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "launched"


# --- what first calls refuse

DENSE = dict(q=Q, k=K, v=V)
SINK = torch.zeros(2)
PACKED, PAGED, APPEND = serving.PACKED, serving.PAGED, serving.APPEND
OUT = torch.zeros_like(Q)
LATE = with_strides((1, 8, 1, 64), (512, 64, 64, 1), offset=4)  # 8 bytes past a multiple of 16
WITH_SINK = APPEND | dict(learnable_sink=SINK, out=torch.zeros_like(APPEND["q"]))
INSIDE = APPEND["k_cache"].view(-1)[: APPEND["k"].numel()].view_as(APPEND["k"])
OVER_OUT = OUT.view(-1)[: K.numel()].view_as(K)

# Calls with the key of a good one, or nearly: (function, good call, changes).
CLOSE = {
    "causal=1": (flash_attn_func, DENSE | dict(causal=True), dict(causal=1)),
    "causal=0": (flash_attn_func, DENSE, dict(causal=0)),
    "scale=True": (flash_attn_func, DENSE | dict(softmax_scale=1.0), dict(softmax_scale=True)),
    "softcap=True": (flash_attn_func, DENSE | dict(softcap=1.0), dict(softcap=True)),
    "softcap=False": (flash_attn_func, DENSE, dict(softcap=False)),
    "window of floats": (
        flash_attn_func,
        DENSE | dict(window_size=(3, 0)),
        dict(window_size=(3.0, 0)),
    ),
    "window of bools": (
        flash_attn_func,
        DENSE | dict(window_size=[1, 0]),
        dict(window_size=[True, False]),
    ),
    "misaligned v": (flash_attn_func, DENSE, dict(v=LATE)),
    "out is q": (flash_attn_func, DENSE | dict(out=OUT), dict(out=Q)),
    "out over k": (flash_attn_func, DENSE | dict(out=OUT), dict(k=OVER_OUT)),
    "another out": (flash_attn_func, DENSE | dict(out=OUT), dict(out=OUT.half())),
    "gradient of k": (
        flash_attn_func,
        DENSE | dict(learnable_sink=SINK, out=OUT),
        dict(k=K.clone().requires_grad_()),
    ),
    "gradient of a sink": (
        flash_attn_func,
        DENSE | dict(learnable_sink=SINK, out=OUT),
        dict(learnable_sink=SINK.clone().requires_grad_()),
    ),
    "a longer sink": (
        flash_attn_func,
        DENSE | dict(learnable_sink=SINK),
        dict(learnable_sink=torch.zeros(3)),
    ),
    "max_seqlen_q=3.0": (flash_attn_varlen_func, PACKED, dict(max_seqlen_q=3.0)),
    "max_seqlen_k=True": (
        flash_attn_varlen_func,
        PACKED | dict(max_seqlen_k=1),
        dict(max_seqlen_k=True),
    ),
    "appended rows in the cache": (flash_attn_with_kvcache, APPEND, dict(k=INSIDE)),
    "gradient of appended rows": (
        flash_attn_with_kvcache,
        APPEND,
        dict(v=APPEND["v"].clone().requires_grad_()),
    ),
    "an appending call with another sink": (
        flash_attn_with_kvcache,
        WITH_SINK,
        dict(learnable_sink=torch.zeros(3)),
    ),
    "an appending call with another out": (
        flash_attn_with_kvcache,
        WITH_SINK,
        dict(out=torch.zeros(2, 1, 2, 64).half()),
    ),
}
CASES = (
    {f"dense: {name}": (flash_attn_func, DENSE, bad) for name, (bad, *_) in REFUSED.items()}
    | {
        f"varlen: {name}": (flash_attn_varlen_func, good, bad)
        for name, (good, bad, *_) in serving.REFUSED.items()
    }
    | {
        f"cache: {name}": (flash_attn_with_kvcache, APPEND, bad)
        for name, (bad, *_) in serving.CACHE_REFUSED.items()
    }
    | CLOSE
)


# A dense call has no contents that anybody could look at.
SEEN = [(name, True) for name in CASES]
UNSEEN = [
    (name, False) for name, (function, *_) in CASES.items() if function is not flash_attn_func
]


@pytest.mark.parametrize(
    "name, seen", SEEN + UNSEEN, ids=lambda x: x if isinstance(x, str) else "" if x else "unseen"
)
def test_a_call_says_the_same_whatever_was_called_before(name, seen, launches, request):
    function, good, changes = CASES[name]
    if not seen:
        request.getfixturevalue("unseen")
    bad = {**good, **changes}
    first = outcome(function, bad)
    # Errors that only contents show are not refused if contents are not read.
    assert first != "launched" or not seen
    repeat.clear()
    assert outcome(function, good) == outcome(function, good) == "launched"
    assert plans() == (0 if seen and function is not flash_attn_func else 1)
    done = len(launches)
    assert outcome(function, bad) == first
    if first != "launched":
        assert len(launches) == done  # and nothing was appended
    assert outcome(function, good) == "launched"


@pytest.mark.parametrize("name", ["q", "learnable_sink"])
def test_a_call_that_wants_gradients_is_not_the_one_before_that_wanted_none(launches, name):
    """The same tensors under no_grad and then without it, as an evaluation before a training step has them."""
    given = {"q": Q, "k": K, "v": K, "learnable_sink": SINK}
    given[name] = given[name].clone().requires_grad_()
    with torch.no_grad():
        for _ in range(2):
            flash_attn_func(**given)
    assert flash_attn_func(**given).requires_grad


def test_gradients_that_nobody_asks_for_are_no_obstacle(launches):
    k = K.clone().requires_grad_()
    flash_attn_func(Q, K, V)
    with torch.no_grad():
        flash_attn_func(Q, k, V)
    assert len(launches) == 2 and plans() == 1


# --- what repeated calls compute


def test_a_repeated_call_computes_what_a_first_one_does():
    # Strided q and out of its own layout: out is allocated contiguous, and written in place where it is given.
    q, k, v = qkv(batch=2, seqlen_q=5, seqlen_k=40)
    strided = q.transpose(1, 2).contiguous().transpose(1, 2)
    for out in (None, torch.empty(2, 5, 3, 2, 64, dtype=q.dtype)[:, :, 1]):
        flash_attn_func(torch.zeros_like(strided), k, v, causal=True, return_lse=True, out=out)
        made = plans()
        results = flash_attn_func(strided, k, v, causal=True, return_lse=True, out=out)
        assert plans() == made and (
            results[0].is_contiguous() if out is None else results[0] is out
        )
        repeat.clear()
        first = flash_attn_func(q, k, v, causal=True, return_lse=True)
        assert all(map(torch.equal, results, first))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_repeated_call_reads_the_lengths_and_pages_it_is_given(layout, unseen):
    # Two steps of one decode: the same shapes, other lengths, pages, offsets and tokens.
    calls = []
    for seed, keys in ((0, [9, 33]), (1, [40, 9])):  # four pages each
        batch = Batch.draw([1, 2], keys, seed=seed)
        calls.append(packed_q(batch) | paged_kv(batch, 16, layout, seed) | dict(causal=True))
    expected = [flash_attn_varlen_func(**call) for call in calls[::-1]][::-1]
    assert plans() == 1
    for call, wanted in zip(calls, expected, strict=True):
        repeat.clear()
        flash_attn_varlen_func(**calls[0])
        rows = int(call["cu_seqlens_q"][-1])
        assert torch.equal(flash_attn_varlen_func(**call)[:rows], wanted[:rows])
        repeat.clear()
        assert torch.equal(flash_attn_varlen_func(**call)[:rows], wanted[:rows])


@pytest.mark.parametrize("heads", [16, 128])
def test_a_repeated_latent_call_reads_the_lengths_and_pages_it_is_given(heads, unseen):
    """A CTA alone and a pair: other queries, rows, pages and lengths, of the same shapes."""
    repeat.clear()
    for seed, keys in enumerate(([150, 33], [20, 151])):
        batch = latent_batches.draw(1, keys, heads=heads, seed=seed)
        results = latent_batches.run(latent_batches.stored(batch, 64, seed=seed), num_splits=1)
        latent_batches.agree(batch, *results, False)
        assert plans() == 1


def test_a_repeated_append_writes_its_own_rows_to_its_own_cache(unseen):
    results = []
    for clear in (True, False):
        generator = torch.Generator().manual_seed(0)
        steps = []
        for length in (3, 20):
            draw = lambda *shape: torch.randn(*shape, generator=generator).bfloat16()  # noqa: B023
            caches = dict(k_cache=draw(2, 24, 1, 64), v_cache=draw(2, 24, 1, 64))
            new = dict(q=draw(2, 1, 2, 64), k=draw(2, 1, 1, 64), v=draw(2, 1, 1, 64))
            if clear:
                repeat.clear()
            out = flash_attn_with_kvcache(**new, **caches, cache_seqlens=int32([length, 7]))
            steps += [out, *caches.values()]
            assert torch.equal(caches["k_cache"][0, length], new["k"][0, 0])
        assert plans() == 1
        results.append(steps)
    assert all(map(torch.equal, *results))
