"""Replaces a compiled kernel: attention and its gradients by their definition, from the arguments of a launch.

So a call runs down to its launch, with every check and choice on the way, and returns numbers in milliseconds.
"""

from __future__ import annotations

import math

import torch

from cute_fa4.compiler.compiler import compile_function
from cute_fa4.score_mods import alibi_slope
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.owner import ROWS
from cute_fa4.sm100.blueprint.score_mods import packaged_call
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig
from cute_fa4.sm100.work.lists.config import BlockListsConfig
from cute_fa4.sm100.work.results import LARGEST, LSE
from tests.serving.batches import attention, positions


def compiled(config, executor):
    """In the place of compiler.compile_function."""
    if isinstance(
        config, (BlockListsConfig, IndexerConfig, TopKConfig)
    ):  # small, without a definition
        return compile_function(config, executor)
    runs = {AppendConfig: append, CombineConfig: combine, BackwardConfig: differentiate}
    run = runs.get(type(config), attend)
    return lambda *given: run(config, *given)


def combine(config, outs, lses, table, out, lse, *more):
    """Parts of the same rows; every part has seen a key."""
    parts = outs.view(len(lses), *out.shape).double()
    weights = lses.double().softmax(0).movedim(-1, -2)[..., None]
    out.copy_((weights * parts).sum(0))
    lse.copy_(lses.double().logsumexp(0))


def attend(
    config, q, k, v, out, lse, scale, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, key_limit,
    page_table, seqlen_q, sizes, sink, aux, split=None, in_cache=None, descales=None, rope=None,
    blocks=None, skip=None,
):  # fmt: skip
    """Each sequence separately."""
    assert split is descales is blocks is skip is None and (in_cache is None or len(in_cache) == 1)
    if config.kv_dtype is not None:
        k, v = (x.to(q.dtype) for x in (k, v))
    if rope is not None:  # shared columns, after those of each head
        if config.mixes_rope:
            q, k, v = (
                torch.cat([q.to(rope[-1].dtype), rope[-1]], dim=-1),
                k.to(rope[0].dtype),
                v.to(rope[0].dtype),
            )
        k = torch.cat([k, rope[0].to(k.dtype).expand(*k.shape[:-1], -1)], dim=-1)
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    for b in range(batch):
        rows, lse_rows = _rows(b, q, cu_seqlens_q)
        queries = q[rows]
        keys, values = (_sequence(b, x, cu_seqlens_k, page_table) for x in (k, v))
        if seqused_k is not None:
            used = int(seqused_k[b]) + in_cache[0] * len(queries)
            keys, values = keys[:used], values[:used]
        p, j = positions(len(queries), len(keys))
        bands = config.mask.bands(
            p, torch.tensor(len(keys)), [torch.tensor(s) for s in sizes or ()]
        )
        shown = sum((j >= lo) & (j < hi) for lo, hi in bands) > 0
        if key_limit is not None:
            shown = shown & (j < key_limit[b])
        if config.mask_mod is not None:
            heads = torch.arange(queries.shape[1])[:, None, None]
            i = torch.arange(len(queries))[:, None]
            shown = shown & config.mask_mod.function.on_tensors(b, heads, i, j, aux=aux)
        o, sums, _ = attention(
            queries,
            keys,
            values,
            visible=shown,
            score_mod=_score_mod(config, b, p, j, aux, cu_seqlens_q),
            sink=sink,
            scale=scale,
        )
        out[rows] = o.to(out.dtype)
        if config.write_max:
            scores = scale * (queries.double().transpose(0, 1) @ keys[:, 0].double().T)
            largest = scores.where(shown, -math.inf).amax(-1)
            lse[LSE][lse_rows], lse[LARGEST][lse_rows] = sums.float(), largest.float()
        elif lse is not None:
            lse[lse_rows] = sums.float()


def differentiate(config, q, k, v, out, lse, dout, dlse, *given):
    """Each sequence separately, of up to 128 queries. Aux tensors: elements that all keys of a query share."""
    written, stats, scale, sizes, aux, lengths, lists = given
    assert lists is None
    cu_q, cu_k, *used = (None, None) if lengths is None else lengths[2:]
    batch = len(q) if cu_q is None else len(cu_q) - 1
    if not config.wanted:
        stats.fill_(math.inf).view(len(stats), -1, 2, ROWS)[:, :, 1] = 0.0
    for b in range(batch):
        (rows, lse_rows), (key_rows, _) = _rows(b, q, cu_q), _rows(b, k, cu_k)
        n = dict(q=len(q[rows]), k=len(k[key_rows]), seen=len(k[key_rows]))
        if used:  # the rows of each side that count, and how many keys may be seen
            n = {name: min(n[name], int(x[b])) for name, x in zip(n, used, strict=True)}
        x, o, do = (x[rows][: n["q"]].double().transpose(0, 1) for x in (q, out, dout))
        y, z = (x[key_rows][: n["k"]].double().transpose(0, 1) for x in (k, v))
        heads, group = len(x), len(x) // len(y)
        y, z = (t.repeat_interleave(group, 0) for t in (y, z))
        p, j = positions(n["q"], n["k"])
        bands = config.mask.bands(p, torch.tensor(n["k"]), [torch.tensor(s) for s in sizes or ()])
        shown = (sum((j >= lo) & (j < hi) for lo, hi in bands) > 0) & (j < n["seen"])
        scores = scale * x @ y.mT
        where = b, torch.arange(heads)[:, None, None], torch.arange(n["q"])[:, None], j
        f, slope = scores, 1.0
        if config.score_mod is not None:
            function = config.score_mod.function
            f = function.on_tensors(scores, *where, aux=aux)
            slope = function.slope.on_tensors(scores, *where, aux=aux)
        total = lse[lse_rows][:, : n["q"]].double()
        weights = torch.exp(f - total[..., None]).masked_fill(~shown, 0.0)
        delta = (do * o).sum(-1)
        if dlse is not None:
            delta = delta - dlse[lse_rows][:, : n["q"]]
        df = weights * (do @ z.mT - delta[..., None])
        if config.wanted:
            (lines,), _ = written
            ((_, element, shared),) = config.summed
            assert shared == "rows"
            sums = (df * element.slope.on_tensors(scores, *where, aux=aux)).sum(-1)
            lines[b * heads : (b + 1) * heads, : n["q"]] = sums
            continue
        stats[:, b, : n["q"]] = (total / math.log(2)).float()
        stats[:, b, ROWS : ROWS + n["q"]] = delta.float()
        ds = scale * slope * df
        found = (
            ds @ y,
            *((t.mT @ u).unflatten(0, (-1, group)).sum(1) for t, u in ((ds, x), (weights, do))),
        )
        for to, place, gradient in zip(written, (rows, key_rows, key_rows), found, strict=True):
            there = to[place][: gradient.shape[1]]
            gradient = gradient.transpose(0, 1).to(to.dtype)
            there.copy_(there + gradient if config.accumulate else gradient)


def append(config, k, v, k_cache, v_cache, cache_seqlens, offsets, table, batch, *more):
    """Append new rows of each sequence to its cache, in pages or in a row of the cache."""
    assert offsets is None and not any(x is not None for x in more)
    page_size = k_cache.shape[1]
    for b in range(batch):
        for i in range(k.shape[1]):
            row = int(cache_seqlens[b]) + i
            page = b if table is None else table[b, row // page_size]
            k_cache[page, row % page_size], v_cache[page, row % page_size] = k[b, i], v[b, i]


def _rows(b: int, q, offsets) -> tuple:
    """Where the queries of a sequence are, and their log-sum-exps."""
    if offsets is None:
        return b, b
    rows = slice(int(offsets[b]), int(offsets[b + 1]))
    return rows, (slice(None), rows)


def _sequence(b: int, x, offsets, table):
    if table is not None:
        return x[table[b].long().clamp(0, len(x) - 1)].flatten(
            0, 1
        )  # entries after its keys are arbitrary
    return x[b] if offsets is None else x[int(offsets[b]) : int(offsets[b + 1])]


def _score_mod(config, b, p, j, aux, offsets):
    """The functions that the page uses, of scaled scores (heads, queries, keys)."""
    if config.score_mod is None:
        return None

    def apply(scores):
        for part in config.score_mod.parts:
            name, argument = packaged_call(part.key) or (None, None)
            if name is None:
                heads, i = (
                    torch.arange(len(scores))[:, None, None],
                    torch.arange(scores.shape[1])[:, None],
                )
                first = b * scores.shape[1] if offsets is None else int(offsets[b])
                facts = dict(position=p, q_row=first + i)
                scores = part.function.on_tensors(scores, b, heads, i, j, aux=aux, **facts)
            elif name == "soft_cap":
                scores = argument * torch.tanh(scores / argument)
            else:
                assert name == "alibi"
                slopes = torch.tensor([alibi_slope(head, argument) for head in range(argument)])
                scores = scores - slopes[:, None, None] * (p - j).abs()
        return scores

    return apply
