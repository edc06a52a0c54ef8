"""cache_batch_idx and cache_leftpad: which rows of a cache are a sequence's, dense and paged, read and appended to.

The oracle is the definition for each sequence: a cache holds them anywhere, and NaN everywhere else.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import pytest
import torch

from cute_fa4 import EmulatorWarning, compile_cache, flash_attn_with_kvcache
from cute_fa4.commands import trials
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.serving.batches import NO_PAGE, Batch, assert_agrees, int32
from tests.suite import turns

ROWS = 300  # of a sequence of the cache: two tiles and a part
SEQUENCES = 5  # of the cache; the batch has three, of which two share one where nothing is appended
KEYS = [50, 140, 9]
PADDING = [3, 0, 130]  # amid a page, none, and beyond a tile


@dataclass(frozen=True)
class Case:
    """Where the rows are, how many of the keys are new, and what is asked of them."""

    name: str
    page_size: int = 0
    picked: tuple | None = (4, 1, 2)
    padding: tuple | None = tuple(PADDING)
    new: int = 2
    depth: int = 64
    dtype: torch.dtype = torch.bfloat16
    asked: tuple = (("causal", True),)

    def __str__(self):
        return self.name


def in_cache(case: Case, batch: Batch) -> dict:
    """The arguments of a call: all keys but the new ones in the cache, NaN wherever no key is."""
    padding = case.padding or (0, 0, 0)
    picked = case.picked or (0, 1, 2)
    held = [p + n - case.new for p, n in zip(padding, batch.keys, strict=True)]
    heads, depth = batch.k[0].shape[1:]
    sequences = SEQUENCES if case.picked else 3
    caches = []
    for rows in (batch.k, batch.v):
        cache = torch.full((sequences, ROWS, heads, depth), math.nan).to(rows[0].dtype)
        for b, x in enumerate(rows):
            cache[picked[b], padding[b] : held[b]] = x[: len(x) - case.new]
        caches.append(cache)
    call = {"q": torch.stack(batch.q), "cache_seqlens": int32(held)}
    if case.page_size:
        caches, call["page_table"] = in_pages(
            caches, case.page_size, padding, held, picked, case.new
        )
    if case.picked:
        call["cache_batch_idx"] = int32(picked)
    if case.padding:
        call["cache_leftpad"] = int32(padding)
    if case.new:
        new = lambda rows: torch.stack([x[len(x) - case.new :] for x in rows])
        call |= {"k": new(batch.k), "v": new(batch.v)}
    return call | {"k_cache": caches[0], "v_cache": caches[1]}


def in_pages(caches, size: int, padding, held, picked, new: int):
    """-> (pools, table): pages in any order; entries without keys, before and after them, are invalid."""
    columns = -(-ROWS // size)
    order = torch.randperm(len(caches[0]) * columns, generator=torch.Generator().manual_seed(size))
    pools = [torch.full((len(order), size, *x.shape[2:]), math.nan).to(x.dtype) for x in caches]
    table = torch.full((len(caches[0]), columns), NO_PAGE, dtype=torch.int32)
    for b, row in enumerate(picked):
        for column in range(padding[b] // size, -(-(held[b] + new) // size)):
            page = table[row, column] = order[row * columns + column]
            for pool, cache in zip(pools, caches, strict=True):
                rows = cache[row, column * size : (column + 1) * size]
                pool[page, : len(rows)] = rows
    return pools, table


def call_of(arguments: dict, **asked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return flash_attn_with_kvcache(**arguments, **asked, return_lse=True)


def draw(case: Case) -> Batch:
    # As many queries as new rows; heads in one tile, or not.
    return Batch.draw([case.new or 2] * 3, KEYS, heads=(4, 2), depth=case.depth, dtype=case.dtype)


VISIBLE = {
    "causal": lambda p, j: j <= p,
    "window_size": lambda p, j: (j <= p) & (j >= p - 40),
}

# Each layout with each tensor, with and without new rows; splits, windows and another dtype and depth once.
CASES = [
    Case("dense, both"),
    Case("dense, padded, window", picked=None, asked=(("window_size", (40, 0)),)),
    Case("dense, picked, split", padding=None, asked=(("causal", True), ("num_splits", 2))),
    Case("pages of 16, both, read", 16, new=0, depth=128, dtype=torch.float16),
    Case("pages of 48, picked", 48, padding=None),
    Case("pages of 2, both", 2, depth=72),
    Case(
        "pages of 128, padded, shared",
        128,
        picked=None,
        asked=(("causal", True), ("num_splits", 0)),
    ),
]


@pytest.mark.parametrize("case", turns.by_turns(CASES), ids=str)
def test_sequences_are_found_wherever_the_cache_has_them(case):
    batch = draw(case)
    asked = dict(case.asked)
    out, lse = call_of(in_cache(case, batch), **asked)
    assert_agrees(batch, out, lse, visible=VISIBLE[next(iter(asked))])


def test_new_rows_are_written_where_the_picked_sequences_are():
    case = CASES[0]
    batch = draw(case)
    call = in_cache(case, batch)
    expected = [call[name].clone() for name in ("k_cache", "v_cache")]
    for cache, new in zip(expected, (call["k"], call["v"]), strict=True):
        for b, row in enumerate(case.picked):
            first = int(call["cache_seqlens"][b])
            cache[row, first : first + case.new] = new[b]
    call_of(call, causal=True)
    for name, cache in zip(("k_cache", "v_cache"), expected, strict=True):
        assert torch.equal(call[name].nan_to_num(7.0), cache.nan_to_num(7.0))


def test_two_sequences_may_read_one_and_all_rows_count_without_lengths():
    # Beam search reads a prefix several times. No cache_seqlens: every sequence of the cache is full.
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, 2, 40, 2, 64, generator=generator).bfloat16()
    q = torch.randn(3, 2, 4, 64, generator=generator).bfloat16()
    picked = int32([1, 1, 0])
    batch = Batch(list(q), list(k[picked.long()]), list(v[picked.long()]))
    out, lse = call_of(dict(q=q, k_cache=k, v_cache=v, cache_batch_idx=picked), causal=True)
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


@pytest.mark.parametrize("page_size", [0, 16])
def test_what_the_host_cannot_see_is_cut_to_the_rows_there_are(page_size, monkeypatch):
    # As on a GPU: a sequence before the first and one after the last of the cache, padding past the keys.
    monkeypatch.setattr("cute_fa4.calls.operands.lengths.check_contents", lambda *arguments: None)
    monkeypatch.setattr(
        "cute_fa4.calls.operands.new_rows._check_append_contents", lambda *arguments: None
    )
    case = Case("", page_size)
    batch = draw(case)
    call = in_cache(case, batch)
    before = call["k_cache"].clone()
    call["cache_batch_idx"] = int32([-1, SEQUENCES, 2])
    call["cache_leftpad"] = int32([0, 0, 2**31 - 1])
    out, lse = call_of(call, causal=True)
    assert (out == 0).all() and (lse == -math.inf).all()
    # Only the third sequence exists: its new rows are written, nothing else is.
    changed = (call["k_cache"].nan_to_num(7.0) != before.nan_to_num(7.0)).flatten(2).any(2)
    assert int(changed.sum()) == case.new


READ = dict(k=None, v=None)
REFUSED = {
    "picked beyond": (
        dict(cache_batch_idx=int32([0, 5, 1])),
        ValueError,
        "cache_batch_idx: 5 for sequence 1; accepted: 0 to 4",
    ),
    "picked below": (
        dict(cache_batch_idx=int32([-1, 0, 1])),
        ValueError,
        "cache_batch_idx: -1 for sequence 0",
    ),
    "too few": (
        dict(cache_batch_idx=int32([0])),
        ValueError,
        "1 in the cache, 3 of queries",
    ),
    "too few, read": (
        READ | dict(cache_batch_idx=int32([0])),
        ValueError,
        "cache_batch_idx: shape .1,.; accepted: the first dimension is 3",
    ),
    "int64": (
        dict(cache_leftpad=torch.tensor([0, 0, 0])),
        TypeError,
        "cache_leftpad: dtype torch.int64",
    ),
    "a list": (READ | dict(cache_batch_idx=[0, 1, 2]), TypeError, "cache_batch_idx: a list"),
    "padding beyond the keys": (
        READ | dict(cache_leftpad=int32([0, 139, 0])),
        ValueError,
        "cache_leftpad: 139 for sequence 1; accepted: at most 138, the rows that cache_seqlens",
    ),
    "padding below": (
        dict(cache_leftpad=int32([0, -1, 0])),
        ValueError,
        "cache_leftpad: -1 for sequence 1; accepted: 0 or more",
    ),
}


@pytest.mark.parametrize("changes, error, text", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_names_and_values(changes, error, text):
    with pytest.raises(error, match=text):
        call_of(in_cache(CASES[0], draw(CASES[0])) | changes)


@pytest.mark.parametrize(
    "config",
    [
        choose_config(
            qkv_dtype="bf16", head_dim=64, q_layout="packed", kv_layout="paged", page_size=16, seqused_k=True,
            cache_batch_idx=True, cache_leftpad=True, padded_keys=True,
        ),
        AppendConfig("bf16", 64, 64, page_size=16, cache_batch_idx=True),
    ],
    ids=["attention", "append"],
)  # fmt: skip
def test_check_tries_these_kernels_too(config):
    compile_cache.function_for(config, "emulator")
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.good and not verdict.not_tried, str(verdict)
