"""A problem as a call of the public functions: its tensors, and the inputs of each sequence's reference."""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from cute_fa4 import (
    EmulatorWarning,
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
    masks,
)
from cute_fa4.calls import repeat
from cute_fa4.calls.split_keys import split
from cute_fa4.dtypes import E4M3, E8M0, row_of_torch
from cute_fa4.hopper import draw
from cute_fa4.hopper.cases import problems
from cute_fa4.hopper.variant import DTYPES, Problem, Variant
from cute_fa4.sm100.choose.choose_config import CLUSTER_PARTS
from cute_fa4.sm100.choose.rows_of_tiles import is_wide
from cute_fa4.system import clusters

CANARY = -77.0
SMS = 132
"""Of an H100 or H200, whose number decides how keys are split."""
NO_ROWS = slice(0)
SPARE_ROWS = 300
"""Rows of packed tensors after the last sequence: more than a block of 256 queries."""


class Sequence(NamedTuple):
    """The reference inputs of one sequence, (rows, heads, depth) each, and the place of its results.

    at_out, at_lse   out[at_out] and lse[at_lse] are its results
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    at_out: Any
    at_lse: Any


@dataclass
class Call:
    """Tensors of one problem. launch() -> (out, lse or None), freshly allocated and filled with canaries.

    spare   out[spare] are rows of no sequence
    """

    variant: Variant
    problem: Problem
    launch: Callable
    sequences: list[Sequence]
    spare: slice
    sink: torch.Tensor | None = None


def call(variant: Variant, problem: Problem, device: str, seed: int = 0, place=None) -> Call:
    """Random inputs. Rows of K and V outside every sequence are NaN; unused page-table entries are garbage.

    place  (tensor, at_the_end) -> a copy of the tensor (guarded.Guard.place): Q and K at the beginning of their
           memory, V at its end; the reverse for an odd seed
    """
    makers = dict(dense=_dense, lengths=_dense, packed=_packed, pages=_paged, latent=_latent)
    torch.manual_seed(seed)
    place = place or (lambda tensor, at_the_end: tensor)
    sides = [bool(seed % 2), bool(seed % 2), not seed % 2]
    made = makers[variant.keys](variant, problem, device, lambda *qkv: list(map(place, qkv, sides)))
    if not variant.lse:
        made = replace(made, launch=lambda launch=made.launch: (launch(), None))
    of_8_bits = row_of_torch(variant.dtype_of("k")).is_quantized
    if is_wide(variant.head_dim, variant.head_dim_v or variant.head_dim, of_8_bits):
        return made
    return replace(made, launch=_in_pairs(made.launch, "on" if variant.pair else "off"))


def _in_pairs(launch, word: str):
    """The same, with the kernel chosen under CUTE_FA4_PAIR=word: one kernel runs all lengths of a variant."""

    def paired():
        repeat.clear()  # a repeated call would not read the variable
        try:
            with patch.dict(os.environ, {"CUTE_FA4_PAIR": word}):
                return launch()
        finally:
            repeat.clear()

    return paired


def _options(variant: Variant, problem: Problem, device: str) -> dict:
    options: dict[str, Any] = dict(
        causal=variant.causal and not variant.chunk, return_lse=variant.lse
    )
    options["pack_gqa"] = variant.pack_gqa
    options |= dict(num_splits=variant.num_splits, tokens_per_split=variant.tokens_per_split)
    if variant.window:
        options["window_size"] = variant.window
    if variant.chunk:
        options["mask"] = (masks.chunked_causal if variant.causal else masks.chunked)(variant.chunk)
    if variant.softcap:
        options["softcap"] = variant.softcap
    if variant.sink:
        options["learnable_sink"] = torch.randn(problem.heads, device=device)
    if variant.blocks:
        options["block_sparse_tensors"] = draw.block_lists(variant, problem, device)
        options["mask_mod"] = draw.two_thirds
    return options


def _dense(variant: Variant, problem: Problem, device: str, place) -> Call:
    batch, rows, keys = len(problem.queries), problem.queries[0], problem.keys[0]
    q = draw.values(variant, device, batch, rows, problem.heads, of="q")
    kv_heads = problem.heads // variant.group
    k, v = (draw.values(variant, device, batch, keys, kv_heads, of=of) for of in "kv")
    options, lengths = _options(variant, problem, device), [keys] * batch
    options |= draw.scales(variant, problem, device)
    if variant.keys == "lengths":
        lengths = [keys * (i + 1) // batch for i in range(batch)]
        for i, length in enumerate(lengths):
            k[i, length:], v[i, length:] = math.nan, math.nan
        options["cache_seqlens"] = draw.int32(lengths, device)
    q, k, v = place(q, k, v)
    (given, nope), meant = _split(variant, q, k, options), dict(q=q, k=k, v=v)
    if variant.of_tokens:
        for of in "kv":
            options[f"{of}_descale"], meant[of] = draw.of_tokens(meant[of])
    if variant.of_blocks:
        for of in "qk":
            options[f"{of}_descale"], meant[of] = draw.of_blocks(meant[of])

    def launch():
        out = _out(variant, q, math.nan)
        function = flash_attn_with_kvcache if variant.keys == "lengths" else flash_attn_func
        return function(given, nope, v, out=out, **options)

    sequences = []
    for i, n in enumerate(lengths):
        own_k, own_v = (_meant(options, of, i, meant[of][i, :n]) for of in "kv")
        sequences.append(Sequence(meant["q"][i], own_k, own_v, i, i))
    return Call(variant, problem, launch, sequences, NO_ROWS, options.get("learnable_sink"))


class Keys(NamedTuple):
    """K and V as they lie in memory, and their rows for each sequence."""

    k: torch.Tensor
    v: torch.Tensor
    each_k: list[torch.Tensor]
    each_v: list[torch.Tensor]


def _ragged_call(
    variant: Variant, problem: Problem, device: str, place, keys: Keys, options: dict
) -> Call:
    starts = draw.starts(problem.queries)
    q = draw.values(variant, device, starts[-1] + SPARE_ROWS, problem.heads, of="q")
    q, k, v = place(q, keys.k, keys.v)
    options |= _options(variant, problem, device) | draw.scales(variant, problem, device)
    options |= dict(
        cu_seqlens_q=draw.int32(starts, device), max_seqlen_q=max(max(problem.queries), 1)
    )
    (given, nope), meant_q = _split(variant, q, k, options), q
    if variant.of_blocks:
        options["q_descale"], meant_q = draw.of_blocks(q)

    def launch():
        return flash_attn_varlen_func(given, nope, v, out=_out(variant, q, CANARY), **options)

    sequences = []
    for i, rows in enumerate(map(slice, starts, starts[1:])):
        own_k = _meant(options, "k", i, keys.each_k[i])
        own_v = _meant(options, "v", i, keys.each_v[i])
        sequences.append(Sequence(meant_q[rows], own_k, own_v, rows, (slice(None), rows)))
    spare = slice(starts[-1], None)
    return Call(variant, problem, launch, sequences, spare, options.get("learnable_sink"))


def _packed(variant: Variant, problem: Problem, device: str, place) -> Call:
    starts = draw.starts(problem.keys)
    k, v = (
        draw.values(variant, device, starts[-1] + SPARE_ROWS, problem.heads // variant.group, of=of)
        for of in "kv"
    )
    for tensor in (k, v):
        tensor[starts[-1] :] = math.nan
    each_k, each_v = ([x[a:b] for a, b in zip(starts, starts[1:], strict=False)] for x in (k, v))
    options = dict(cu_seqlens_k=draw.int32(starts, device))
    return _ragged_call(variant, problem, device, place, Keys(k, v, each_k, each_v), options)


def _paged(variant: Variant, problem: Problem, device: str, place) -> Call:
    order, table = draw.pages(variant, problem, device)
    (k, each_k), (v, each_v) = (draw.pool(variant, problem, device, order, of) for of in "kv")
    each = [each_k, each_v]
    options = dict(page_table=table, seqused_k=draw.int32(problem.keys, device))
    if variant.of_tokens:
        scaled = [[draw.of_tokens(rows) for rows in own] for own in each]
        each = [[rows for _, rows in own] for own in scaled]
        for of, own in zip("kv", scaled, strict=True):
            scales = [scale for scale, _ in own]
            options[f"{of}_descale"] = draw.in_pages(scales, variant.page_size, order, math.nan)
    if variant.of_blocks:
        scaled = [draw.of_blocks(rows) for rows in each[0]]
        each = [[rows for _, rows in scaled], each[1]]
        scales = [scale.view(torch.uint8) for scale, _ in scaled]
        stored = draw.in_pages(scales, variant.page_size, order, draw.NO_NUMBER)
        options["k_descale"] = stored.view(E8M0.torch)
    if variant.cache == "nvfp4":
        k, v, each = _in_4_bits(variant, order, each, options)
    if variant.heads_first:
        options["kv_layout"] = "HND"
    each_k, each_v = each
    return _ragged_call(variant, problem, device, place, Keys(k, v, each_k, each_v), options)


def _in_4_bits(variant: Variant, order, each: list, options: dict) -> tuple:
    """-> pages of K, pages of V, the numbers that they mean; their scales go into the options."""
    pages, meant = [], []
    for of, own in zip("kv", each, strict=True):
        codes, scales, numbers = zip(*map(draw.of_4_bits, own), strict=True)
        pages.append(draw.in_pages(codes, variant.page_size, order, draw.NO_NUMBER))
        stored = [x.view(torch.uint8) for x in scales]
        found = draw.in_pages(stored, variant.page_size, order, draw.NO_NUMBER)
        options[f"{of}_block_scale"] = found.view(E4M3.torch)
        options[f"{of}_descale"] = torch.full((1,), draw.GLOBAL_SCALE, device=order.device)
        meant.append(list(numbers))
    return *pages, meant


def _latent(variant: Variant, problem: Problem, device: str, place) -> Call:
    order, table = draw.pages(variant, problem, device)
    pool, rows = draw.latent_pool(variant, problem, device, order)
    batch, queries = len(problem.queries), problem.queries[0]
    q = draw.values(variant, device, batch, queries, problem.heads, of="q")
    q, pool, _ = place(q, pool, q[:0])
    options = dict(causal=variant.causal, num_splits=variant.num_splits)
    lengths = draw.int32(problem.keys, device)
    if variant.listed:
        options["indices"], seen = draw.listed(variant, problem, table, rows)
    else:
        seen = [[k] for k in rows]  # for all queries of a sequence

    def launch():
        out = _out(variant, q, math.nan)
        return flash_mla_with_kvcache(q, pool, table, lengths, out=out, **options)

    sequences = []
    for i, each in enumerate(seen):
        for first, k in enumerate(each):
            own = slice(first, first + 1) if variant.listed else slice(None)
            v = k[..., : variant.depth("out")]
            sequences.append(Sequence(q[i, own], k, v, (i, own), (i, slice(None), own)))
    return Call(variant, problem, launch, sequences, NO_ROWS)


def _meant(options: dict, of: str, sequence: int, rows):
    """Rows of K or V of a sequence, (rows, heads, depth), times its scales, unless they are of tokens or the tensor."""
    scale = options.get(f"{of}_descale")
    if scale is None or scale.dim() != 2:
        return rows
    return rows.double() * scale[sequence].double()[:, None]


def _split(variant: Variant, q, k, options: dict) -> tuple:
    """-> Q and K as passed: the shared columns of K go into the options.

    Likewise those of Q, if they are 16-bit and the others 8-bit.
    """
    if not variant.rope:
        return q, k
    rope = k[..., 0, -variant.rope :]
    options["k_rope"] = rope.to(DTYPES[variant.rope_dtype]) if variant.rope_dtype else rope
    if "page_table" in options:
        options["k_rope_page_table"] = options["page_table"]
    if row_of_torch(rope.dtype).is_quantized > row_of_torch(options["k_rope"].dtype).is_quantized:
        options["q_rope"] = q[..., -variant.rope :].to(options["k_rope"].dtype)
        q = q[..., : -variant.rope]
    return q, k[..., : -variant.rope]


def _out(variant: Variant, q, canary: float):
    shape, dtype = (*q.shape[:-1], variant.depth("out")), variant.dtype_of("out")
    return torch.full(shape, canary, dtype=dtype, device=q.device)


def cluster_counts() -> list[dict]:
    """Possible answers of a Hopper GPU: cluster size -> clusters that run at the same time.

    A GPU reports between 7/8 of its SMs and all of them, which differs by size (an H100: 66 clusters of 2, 30 of 4,
    15 of 8). A call compares its blocks with each number, so the ends of each range give every outcome.
    """
    some, of = clusters.SHARE
    sizes = [size for size in CLUSTER_PARTS if size > 1]
    ends = [(SMS * some // (of * size), SMS // size) for size in sizes]
    return [dict(zip(sizes, counts, strict=True)) for counts in product(*ends)]


class AnyChip:
    """Stands in for most_clusters: answers with one of cluster_counts() and notes whether it was asked."""

    def __init__(self):
        self.counts, self.asked = {}, False

    def most_clusters(self, device, ctas: int, sms: int) -> int:
        self.asked = True
        return self.counts[ctas]

    def launch(self, call: Callable[[], Call]) -> None:
        """Run call() for each possible answer; once if it does not use the number of clusters."""
        for self.counts in cluster_counts():
            self.asked = False
            repeat.clear()  # a repeated call would not ask
            call().launch()
            if not self.asked:
                return


def configurations(variants, amount: str, further: Iterable[Callable[[], object]] = ()) -> list:
    """The configuration of every kernel that these problems need on any Hopper GPU of SMS multiprocessors.

    Found by calls on CPU tensors, which stop at the request for a kernel.

    further  functions that make more calls
    """
    found: dict = {}
    chip = AnyChip()

    def ask(config, executor):
        found[config] = None
        return lambda *arguments: None

    def empty(variant, device, *shape, of="k"):
        return torch.empty(*shape, variant.depth(of), dtype=variant.dtype_of(of))

    try:
        with (
            patch.object(compile_cache, "function_for", ask),
            patch.object(draw, "values", empty),
            patch.object(split, "num_sms", lambda device: SMS),
            patch.object(split, "most_clusters", chip.most_clusters),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", EmulatorWarning)
            for variant in variants:
                for problem in problems(variant, amount):
                    chip.launch(functools.partial(call, variant, problem, "cpu"))
            for launch in further:
                launch()
    finally:
        repeat.clear()  # nor may later calls find functions that do nothing
    return list(found)
