"""Memory for the partial results of split keys: whose it is, and for how long.

The law: a call's result does not depend on other users of its stream, threads or graph. It is tested for every way
into a split call, on a simulated device (simulated_device.py) whose stand-in kernels show who read whose memory.
"""

import math
from functools import partial

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_with_kvcache
from cute_fa4.calls import append, attention, repeat
from cute_fa4.calls.split_keys import workspace
from tests.calls.simulated_device import Device, Turns, kernels_of, side_by_side
from tests.calls.split_calls import BF16, CALLS, dense

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

# Orders of two threads, or of two graphs: 20 of them, in which every order of two pairs of launches comes.
SEEDS = range(20)


@pytest.fixture
def on_a_device(monkeypatch):
    """on_a_device(seed) -> the device on which calls run from now on."""

    def begin(seed: int) -> Device:
        repeat.clear()  # plans hold the kernels of the device before
        device = Device(Turns(seed))
        monkeypatch.setattr(workspace, "_allocated", device.allocated)
        for module in (attention, append):
            monkeypatch.setattr(module, "function_for", kernels_of(device))
        return device

    return begin


def wrong_of(*results) -> int:
    """How many results do not hold their number, which are 1, 2, ..."""
    return sum(not bool((out == n).all()) for n, out in enumerate(results, 1))


def two_threads(device: Device, call) -> int:
    results = device.turns.run(partial(call, 1), partial(call, 2))
    device.synchronize()
    return wrong_of(*results)


def two_graphs(device: Device, call, seed: int) -> int:
    """As torch's documentation has it: a warm-up on a side stream, then captures; here two, replayed at one time."""
    with device.on("side"):
        call(3)
    graphs, outs = [], []
    for number in (1, 2):
        with device.capturing() as graph:
            outs.append(call(number))
        graphs.append(graph)
    side_by_side(graphs, seed)
    return wrong_of(*outs)


def two_streams(device: Device, call, seed: int) -> int:
    outs = []
    for number, stream in enumerate(("one", "two"), 1):
        with device.on(stream):
            outs.append(call(number))
    side_by_side([device.launches["one"], device.launches["two"]], seed)
    return wrong_of(*outs)


@pytest.mark.parametrize("name", CALLS)
def test_a_result_is_its_own_whoever_shares_a_stream_or_a_moment(name, on_a_device):
    for seed in SEEDS:
        assert two_threads(on_a_device(seed), CALLS[name]) == 0
    assert two_graphs(on_a_device(0), CALLS[name], 1) == 0
    assert two_streams(on_a_device(0), CALLS[name], 1) == 0


def one_piece_of_a_stream(device: Device):
    """What this package had: kept from call to call."""
    pieces = {}
    return lambda shape, dtype, _: pieces.setdefault(shape, torch.empty(shape, dtype=dtype))


def given_back_at_once(device: Device):
    """The memory of a tensor that is freed before the merge is enqueued."""
    return lambda *wanted: device.allocated(*wanted).detach()


@pytest.mark.parametrize("change", [one_piece_of_a_stream, given_back_at_once])
def test_the_simulated_device_finds_memory_that_calls_share(change, on_a_device, monkeypatch):
    wrong = 0
    for seed in SEEDS:
        device = on_a_device(seed)
        monkeypatch.setattr(workspace, "_allocated", change(device))
        wrong += two_threads(device, dense)
    assert wrong > 0
    if change is one_piece_of_a_stream:  # pools of captures are apart
        monkeypatch.setattr(workspace, "_allocated", change(device))
        assert sum(two_graphs(device, dense, seed) for seed in SEEDS) > 0


# --- memory of the caller's own


def step(cache, workspace, q=None):
    """Decode that appends a row to 700 and splits the keys in three."""
    q = torch.ones(2, 1, 2, 64, dtype=BF16) if q is None else q
    new = torch.ones(2, 1, 1, 64, dtype=BF16)
    return flash_attn_with_kvcache(
        q, *cache, new, 2 * new, cache_seqlens=700, causal=True, num_splits=3, workspace=workspace
    )


# 3 parts of 2 sequences of 2 rows of heads: 12 rows of 64 columns and a log-sum-exp, float32.
BYTES = 3 * 2 * 2 * (64 + 1) * 4


def test_a_caller_gives_the_workspace():
    """Any dtype, with the size from the message of a smaller one; its contents do not matter."""
    own = torch.full((BYTES // 2,), math.nan, dtype=torch.bfloat16)
    cache = torch.randn(2, 2, 760, 1, 64).bfloat16()
    assert torch.equal(step(cache, None), step(cache, own))
    assert not own.view(torch.float32).isnan().any(), "every part has keys: all was written"
    assert workspace._given.piece is None, "the next call has memory of its own"


@pytest.mark.parametrize(
    "own, text",
    [
        (lambda cache: torch.empty(BYTES - 1, dtype=torch.uint8), f"accepted: at least {BYTES} for this"),
        (lambda cache: cache[0], "k_cache: shares memory with workspace"),
        (lambda cache: torch.empty(2, BYTES).t(), "workspace: strides"),
        (lambda cache: torch.empty(BYTES + 16, dtype=torch.uint8)[8:], "workspace: address"),
        (lambda cache: torch.empty(BYTES, device="meta"), "workspace: on meta while q is on cpu"),
    ],
    ids=["small", "the cache", "strides", "address", "device"],
)  # fmt: skip
def test_what_is_no_workspace_is_refused_before_anything_is_written(own, text):
    cache = torch.zeros(2, 2, 760, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=text):
        step(cache, own(cache))
    assert (cache == 0).all()


def traced(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_a_traced_call_takes_a_workspace():
    """In a compiled graph, where it is declared as written, and as a parameter of the operator."""
    cache = torch.randn(2, 2, 760, 1, 64).bfloat16()
    parameter = torch.nn.Parameter(torch.ones(2, 1, 2, 64, dtype=BF16), requires_grad=False)
    expected = step(cache, None)
    for call in (traced(step), partial(step, q=parameter)):
        own = torch.zeros(BYTES, dtype=torch.uint8)
        assert torch.equal(call(cache, own), expected) and own.any()


def test_a_graph_refuses_what_is_no_workspace():
    cache = torch.zeros(2, 2, 760, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="^workspace: strides"):
        traced(step)(cache, torch.empty(2, BYTES, dtype=torch.uint8).t())
    with pytest.raises(Exception, match=f"accepted: at least {BYTES} for this"):
        traced(step)(cache, torch.empty(BYTES - 1, dtype=torch.uint8))


def test_the_examples_of_vmap_share_a_workspace_or_have_one_each():
    q, own = torch.randn(2, 1, 5, 2, 64).bfloat16(), torch.empty(2, 1 << 16, dtype=torch.uint8)
    k, v = torch.randn(2, 1, 300, 1, 64).bfloat16()

    def call(q, workspace):
        return flash_attn_func(q, k, v, num_splits=2, workspace=workspace, return_lse=True)[0]

    expected = torch.stack([call(each, None) for each in q])
    assert torch.equal(torch.vmap(call)(q, own), expected)
    assert torch.equal(torch.vmap(call, in_dims=(0, None))(q, own[0]), expected)
