"""decode_attention: queries over a cache that lies on several ranks are queries over the whole cache.

The oracle is attention in float64 of each sequence. Lengths: none, one key (all ranks but one have none), less than a
turn, and several turns of pages of 16 on four ranks. What no rank has written holds NaN. Queries: one, as in decode;
three, as in speculative decode, whose causal mask crosses ranks; ragged.
"""

import re

import pytest
import torch

from cute_fa4.reference import Tolerance, allowed_error, attention_float64, max_error
from tests import pairwise
from tests.distributed import cases, oracle

LENGTHS = [5, 40, 1, 150, 0, 64]
ROWS = 160
GRID = {
    "ranks": (2, 3, 4),
    "cache": ("range", "page", "token", "token in pages"),
    "queries": ("one", "three", "ragged"),
    "window": (None, 7, 70),
    "heads": ("split", "all"),
    "sink": (False, True),
    "wire": (None, torch.float32),
    "head_dim_v": (None, 32),
}
CACHES = {
    "range": (0, None),
    "page": (16, None),
    "token": (0, 1),
    "token in pages": (16, 1),
}
QUERIES = {"one": 1, "three": 3, "ragged": [1, 3, 0, 2, 0, 4]}


def problem(ranks, cache, queries, window, heads, sink, wire, head_dim_v=None):
    page, interleave = CACHES[cache]
    form = dict(queries=QUERIES[queries], heads_q=2 * ranks, heads_kv=ranks, rows=ROWS, page=page)
    form["head_dim_v"] = head_dim_v
    options = dict(heads=heads, interleave=interleave, wire_dtype=wire)
    if window is not None:
        options["window_size"] = (window, None)
    if sink:
        options["learnable_sink"] = torch.linspace(-1, 1, 2 * ranks)
    return form, options


def check(
    results: list, ranks: int, form: dict, dtype, options: dict, of_wire: float = 0.0
) -> None:
    for result in results:
        assert not hasattr(result, "trace"), result.trace
    if options["heads"] == "split":
        out = torch.cat([r[0] for r in results], dim=-2)
        lse = torch.cat([r[1] for r in results], dim=-2)
    else:
        out, lse = results[0]
        assert all(torch.equal(r[0], out) and torch.equal(r[1], lse) for r in results)
    q, offsets = cases.queries(form, len(LENGTHS), dtype)
    sequences = cases.cache_of_all(LENGTHS, form["heads_kv"], dtype)
    window = options.get("window_size", (None, None))
    for b, (k, v) in enumerate(sequences):
        if offsets is None:
            one, its_out, its_lse = q[b : b + 1], out[b], lse[b]
        else:
            rows = slice(int(offsets[b]), int(offsets[b + 1]))
            one, its_out, its_lse = q[None, rows], out[rows], lse[:, rows]
        v, mask = v[..., : form["head_dim_v"]], dict(causal=True, window_size=window)
        exact, exact_lse = attention_float64(one, k[None], v[None], **mask)
        limit = Tolerance(oracle.FLOAT32_ERROR, oracle.FLOAT32_ERROR)
        if dtype != torch.float32 and k.numel() and one.numel():
            limit = allowed_error(one, k[None], v[None], **mask)
        if options.get("learnable_sink") is not None:
            exact, exact_lse = with_sink(exact, exact_lse, options["learnable_sink"])
        assert max_error(its_out, exact[0]) <= limit.out + of_wire, LENGTHS[b]
        assert max_error(its_lse, exact_lse[0]) <= limit.lse, LENGTHS[b]


def with_sink(out, lse, sink):
    total = torch.logaddexp(lse, sink.double()[:, None].expand(lse.shape))
    return out * torch.exp(lse - total).movedim(-1, -2)[..., None], total


@pairwise.cases("decode on ranks", GRID, seconds=0.15)
def test_a_cache_on_ranks_is_the_whole_cache(
    pool, ranks, cache, queries, window, heads, sink, wire, head_dim_v
):
    form, options = problem(ranks, cache, queries, window, heads, sink, wire, head_dim_v)
    options["backend"] = "sdpa"
    results = pool.run(cases.decode, (LENGTHS, form, torch.float32, options), ranks)
    check(results, ranks, form, torch.float32, options)


@pytest.mark.parametrize(
    "case, of_wire",
    [
        (dict(cache="page", queries="one", window=None, heads="split", sink=True, wire=None, head_dim_v=32), 0.0),
        # Each of two parts is rounded to bf16 once more: 2^-9 of values up to four.
        (dict(cache="token in pages", queries="three", window=70, heads="all", sink=False, wire=torch.bfloat16), 2**-7),
    ],
    ids=["decode", "speculative decode"],
)  # fmt: skip
def test_the_kernel_on_the_emulator_within_its_own_error(pool, case, of_wire):
    form, options = problem(ranks=2, **case)
    results = pool.run(cases.decode, (LENGTHS, form, torch.bfloat16, options), 2)
    check(results, 2, form, torch.bfloat16, options, of_wire)


@pairwise.sweep_only("decode on ranks", seconds=30)
def test_eight_ranks(pool_of_eight):
    every = pairwise.product({**GRID, "ranks": (8,)})
    for number in pairwise.covering(every):
        form, options = problem(**every[number])
        options["backend"] = "sdpa"
        results = pool_of_eight.run(cases.decode, (LENGTHS, form, torch.float32, options))
        check(results, 8, form, torch.float32, options)


@pytest.mark.parametrize(
    "change, told, text",
    [
        (dict(interleave=0), LENGTHS, "interleave: 0; accepted"),
        (dict(heads="some"), LENGTHS, "heads: 'some'; accepted: 'split', 'all'"),
        (
            dict(batch_invariant=True),
            LENGTHS,
            "batch_invariant: True in decode_attention, which merges",
        ),
        (dict(wire_dtype=torch.float16), LENGTHS, "wire_dtype: torch.float16; accepted"),
        # Rank 0 has room for 160 keys of a sequence; of 161 it would have one more.
        (dict(interleave=161), [161, *LENGTHS[1:]], "cache_seqlens"),
    ],
    ids=["interleave", "heads", "invariance", "wire", "capacity"],
)
def test_what_cannot_be_is_refused_on_every_rank(pool, change, told, text):
    form, options = problem(2, "range", "one", None, "split", False, None)
    arguments = (LENGTHS, {**form, "told": told}, torch.bfloat16, {**options, **change})
    results = pool.run(cases.decode, arguments, 2)
    assert all(
        r.kind in ("ValueError", "TypeError", "NotImplementedError", "RankError") for r in results
    ), results
    assert all(re.search(text, r.text) for r in results), results
