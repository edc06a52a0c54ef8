"""Calls of the indexer: what is refused, by name, and what tracers see."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from cute_fa4 import capabilities, compile_cache, indexer
from cute_fa4.sm100.indexer.config import IndexerConfig
from cute_fa4.system.devices import asked_for
from tests.sm100.indexer.problems import (
    E4M3,
    cache_of,
    dense,
    draw,
    emulated,
    int32,
    paged,
)

PROBLEM = draw(64, 2, [150])
ENDS = int32(100, 150)


def given() -> dict:
    """Arguments of fp8_mqa_logits."""
    return dict(
        q=PROBLEM.q[0], kv=(PROBLEM.keys[0], PROBLEM.scales[0]), weights=PROBLEM.weights[0],
        cu_seq_len_k_start=int32(0, 0), cu_seq_len_k_end=ENDS,
    )  # fmt: skip


def given_pages(page_size: int = 64) -> dict:
    """Arguments of fp8_paged_mqa_logits."""
    cache, table = cache_of(PROBLEM, page_size)
    return dict(
        q=PROBLEM.q, kv_cache=cache, weights=PROBLEM.weights.flatten(0, 1),
        context_lens=int32(150), block_table=table, max_context_len=150, clean_logits=True,
    )  # fmt: skip


K, SCALES = PROBLEM.keys[0], PROBLEM.scales[0]
REFUSED = [
    ({"q": PROBLEM.q[0].float()}, TypeError, "q: dtype torch.float32; accepted: torch.float8_e4m"),
    ({"q": PROBLEM.q}, ValueError, r"q: .* has 4 dimensions; accepted: 3, \(queries, heads, head"),
    ({"q": PROBLEM.q[0, :, :9]}, ValueError, "q: 9 heads; accepted: multiples of 8 up to 128; pad"),
    ({"q": PROBLEM.q[0, ..., :64]}, ValueError, "q: head_dim 64; accepted: 128"),
    ({"kv": K}, TypeError, r"kv: .*; accepted: \(k, k_scale\)"),
    ({"kv": (K.float(), SCALES)}, TypeError, "k: dtype torch.float32; accepted: torch.float8"),
    ({"kv": (K, SCALES[:7])}, ValueError, r"k_scale: shape \(7,\); accepted: \(150,\)"),
    ({"kv": (K, SCALES.double())}, TypeError, "k_scale: dtype torch.float64; accepted: torch.floa"),
    ({"weights": torch.zeros(2, 3)}, ValueError, r"weights: shape \(2, 3\); accepted: \(2, 64\)"),
    ({"weights": torch.zeros(2, 64).half()}, TypeError, "weights: dtype torch.float16; accepted: "),
    ({"cu_seq_len_k_end": int32(1)}, ValueError, r"cu_seq_len_k_end: shape \(1,\); accepted: \(2,"),
    ({"cu_seq_len_k_start": ENDS.long()}, TypeError, "cu_seq_len_k_start: dtype torch.int64; acc"),
    ({"weights": torch.zeros(2, 64).requires_grad_()}, NotImplementedError, "weights: requires_gra"),
    ({"max_seqlen_k": 64}, NotImplementedError, "max_seqlen_k: 64; accepted: 0, a column for"),
    ({"clean_logits": 1}, TypeError, "clean_logits: 1; accepted: True or False"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", REFUSED)
def test_arguments_that_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        indexer.fp8_mqa_logits(**given() | change)


def cache(*shape: int, dtype=torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


BYTES = "kv_cache: "
REFUSED_PAGES = [
    (
        {"kv_cache": cache(2, 24, 1, 132)},
        ValueError,
        BYTES + "block_size 24; accepted: 8, 16",
    ),
    ({"kv_cache": cache(2, 64, 1, 128)}, ValueError, BYTES + "shape .*, 1, 132"),
    (
        {"kv_cache": cache(2, 64, 1, 132).float()},
        TypeError,
        BYTES + "dtype torch.float32; acc",
    ),
    ({"kv_cache": cache(2, 64, 2, 132)[:, :, :1]}, ValueError, BYTES + ".*contiguous blocks"),
    ({"kv_cache": cache(2, 8456)[:, 4:8452].unflatten(1, (64, 1, 132))}, ValueError, BYTES),
    ({"context_lens": int32(1, 2)}, ValueError, r"context_lens: shape \(2,\); accepted: \(1,\)"),
    ({"context_lens": int32(1, 2, 3)[None]}, ValueError, r"context_lens: .* accepted: \(1, 2\)"),
    ({"block_table": int32(1, 2).view(2, 1)}, ValueError, r"block_table: .*; accepted: \(1, 1\)"),
    ({"indices": int32(0)}, NotImplementedError, "indices: a Tensor of .*; accepted: None"),
    ({"clean_logits": None}, TypeError, "clean_logits: None; accepted: True or False"),
    ({"max_context_len": -1}, ValueError, "max_context_len: -1; accepted: 0 to"),
    ({"max_context_len": int32(5)}, TypeError, "max_context_len: a Tensor; accepted: an int"),
]


@pytest.mark.parametrize("change, error, message", REFUSED_PAGES)
def test_arguments_over_pages_that_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        indexer.fp8_paged_mqa_logits(**given_pages() | change)


def step(q, cache, weights, lengths, table):
    logits = indexer.fp8_paged_mqa_logits(q, cache, weights, lengths, table, None, 150, True)
    picked = indexer.topk_indices(logits, 32)
    return logits, indexer.cache_indices(picked.unflatten(0, (1, 2)), table, 64)


def prefill(q, k, scale, weights, starts, ends):
    logits = indexer.fp8_mqa_logits(q, (k, scale), weights, starts, ends)
    return logits, indexer.topk_indices(logits, 32)


CALLS = {
    "prefill": (prefill, lambda: (lambda g: (g.pop("q"), *g.pop("kv"), *g.values()))(given())),
    "pages": (step, lambda: tuple(given_pages().values())[:5]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_step_is_one_graph_with_the_same_bits(name):
    torch._dynamo.reset()
    function, arguments = CALLS[name]
    arguments = arguments()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    found, expected = emulated(compiled, *arguments), emulated(function, *arguments)
    assert counter.frame_count == 1
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_a_number_of_keys_may_be_dynamic():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(prefill, fullgraph=True, backend=counter, dynamic=True)
    for n in (150, 140, 131):
        arguments = (
            PROBLEM.q[0],
            K[:n].clone(),
            SCALES[:n].clone(),
            PROBLEM.weights[0],
            int32(0, 0),
            ENDS,
        )
        found, expected = emulated(compiled, *arguments), emulated(prefill, *arguments)
        assert torch.equal(found[0], expected[0])
    assert counter.frame_count == 1


def test_fake_tensors_have_the_shapes_of_the_results_and_are_refused_likewise():
    of_prefill, of_pages = (arguments() for _, arguments in CALLS.values())
    with FakeTensorMode() as mode:
        of_prefill, of_pages = (list(map(mode.from_tensor, x)) for x in (of_prefill, of_pages))
        logits, picked = prefill(*of_prefill)
        assert (logits.shape, logits.dtype, picked.shape) == ((2, 150), torch.float32, (2, 32))
        logits, rows = step(*of_pages)
        assert (logits.shape, rows.shape) == ((2, 150), (1, 2, 32))
        with pytest.raises(ValueError, match="q: 9 heads"):
            prefill(torch.empty(2, 9, 128, dtype=E4M3), *of_prefill[1:])


def test_the_number_of_kernels_is_that_of_heads_and_queries_of_a_tile():
    """Lengths, batches and widths share a kernel."""
    dense(PROBLEM, int32(0, 0), ENDS)
    paged(PROBLEM, 64, int32(150))
    before = compile_cache.statistics().compiles
    dense(draw(64, 7, [33]), torch.zeros(7).int(), torch.full((7,), 20).int())
    several = draw(64, 2, [9, 70, 3])
    paged(several, 64, int32(9, 70, 3))
    assert compile_cache.statistics().compiles == before


def test_a_configuration_is_data():
    from cute_fa4.aot.config_data import from_data, to_data

    config = IndexerConfig(64, 2, page_size=64, ends="lengths", clean=False)
    assert from_data(to_data(config)) == config


@pytest.mark.parametrize("page_size", [0, 5, 8, 64, 96, 128])
@pytest.mark.parametrize("heads", [4, 9, 24, 64, 128, 136])
def test_capabilities_say_what_calls_do(heads, page_size):
    """No length is part of the answer. Pages beside heads: a call names the first that is wrong, an answer both."""
    floats = dict(device="meta", dtype=torch.float32)
    q = torch.empty(1, 2, heads, 128, device="meta", dtype=E4M3)
    ends, weights = (
        torch.empty(2, device="meta", dtype=torch.int32),
        torch.empty(2, heads, **floats),
    )
    for row in capabilities(indexer=True, group=heads, page_size=page_size):
        with asked_for(row.arch) as asked:
            try:
                if page_size:
                    cache = torch.empty(3, page_size, 1, 132, device="meta", dtype=torch.uint8)
                    table = torch.empty(1, 2, device="meta", dtype=torch.int32)
                    indexer.fp8_paged_mqa_logits(q, cache, weights, ends[:1], table)
                else:
                    keys = torch.empty(9, 128, device="meta", dtype=E4M3), torch.empty(9, **floats)
                    indexer.fp8_mqa_logits(q[0], keys, weights, ends, ends)
            except ValueError:
                assert not row.runs and row.reasons
            else:
                assert row.runs and row.families == ("indexer",)
        assert {config.arch for config in asked} == ({row.arch} if row.runs else set())


def test_a_question_about_the_indexer_has_its_own_arguments():
    with pytest.raises(TypeError, match="causal: True with indexer=True; accepted: dtype, head_di"):
        capabilities(indexer=True, causal=True)
    with pytest.raises(TypeError, match="softcap: 1.0 with indexer=True"):
        capabilities(indexer=True, softcap=1.0)
    (row,) = capabilities(indexer=True, group=64, compute_capability=(9, 0))
    assert len(row.reasons) == 1 and row.reasons[0].startswith("compute capability 9.0")
    reasons = [
        row.reasons for row in capabilities(indexer=True, dtype="bf16", head_dim=64, group=8)
    ]
    assert (
        reasons
        == [
            (
                "dtype bf16 has no indexer; accepted: e4m3",
                "head_dim=64; accepted: 128; pad with zeros",
            )
        ]
        * 2
    )
