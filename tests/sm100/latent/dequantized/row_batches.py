"""Calls over latent caches of 656 or 584 bytes a row against float64 over the numbers that the bytes stand for.

What differs is the rounding of these numbers, of P and of out to eight bits of mantissa: 2^-9 / sqrt(3) each at random.
Rows that belong to no sequence are NaN in all of their parts, scales too, and so is the rest of a page.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cute_fa4 import emulator
from cute_fa4.calls.operands.latent_rows import numbers_in_pages, numbers_of, rows_from
from tests.serving.batches import CANARY
from tests.sm100.latent.latent_batches import LATENT, ROPE, call_of

BOUND = 2**-7
NAN_BYTE = 0xFF  # of e4m3, bf16 and float32 alike


@dataclass(frozen=True)
class Call:
    """A call and its purpose; keys: of each sequence; listed: keys of a list instead; row_bytes: of a row."""

    heads: int
    queries: int
    page_size: int
    keys: tuple
    mode: str = "in_order"
    dtype: torch.dtype = torch.uint8
    listed: int = 0
    options: dict = field(default_factory=dict)
    row_bytes: int = 656


def empty(pages: int, page_size: int, row_bytes: int = 656) -> torch.Tensor:
    """A cache of NaN. Where scales come after the rows of a page, pages are apart as FlashMLA's quantizer has them."""
    apart = page_size * row_bytes
    if row_bytes == 584:
        apart = -(-apart // 576) * 576
    pool = torch.full((pages, apart), NAN_BYTE, dtype=torch.uint8)
    return pool[:, : page_size * row_bytes].view(pages, page_size, 1, row_bytes)


def in_pages(cache: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows (n, 512) of float32 to a cache of 584 bytes a row; the scales are powers of two."""
    values, rope = rows.split((448, 64), -1)
    blocks = values.unflatten(-1, (7, 64))
    scales = torch.exp2((blocks.abs().amax(-1) / 448).log2().ceil())
    numbers = (blocks / scales[..., None]).to(torch.float8_e4m3fn).flatten(-2).view(torch.uint8)
    parts = numbers, rope.bfloat16().view(torch.uint8)
    exponents = scales.to(torch.float8_e8m0fnu).view(torch.uint8)
    size = cache.shape[1]
    pages = cache.as_strided((cache.shape[0], size * 584), (cache.stride(0), 1))
    for place, row, exponent in zip(places.tolist(), torch.cat(parts, -1), exponents, strict=True):
        page, inside = divmod(place, size)
        pages[page, inside * 576 :][:576] = row
        pages[page, size * 576 + inside * 8 :][:7] = exponent


def drawn(call: Call):
    """-> (q, cache of NaN except for the sequences' rows, page table, lengths, float64 keys of each sequence)."""
    generator = torch.Generator().manual_seed(1)
    batch, page = len(call.keys), call.page_size
    needed = [-(-n // page) for n in call.keys]
    pages = sum(needed) + 2
    order = torch.randperm(pages, generator=generator).int()
    cache = empty(pages, page, call.row_bytes)
    table = torch.full((batch, max(needed) + 1), 123_456_789, dtype=torch.int32)
    of_sequences = []
    for b, n in enumerate(call.keys):
        mine = order[sum(needed[:b]) : sum(needed[: b + 1])]
        table[b, : len(mine)] = mine
        places = mine.long().repeat_interleave(page)[:n] * page + torch.arange(n) % page
        # Scales that differ by key and by block, so that a neighbour's would be seen.
        latent = torch.randn(n, LATENT, generator=generator)
        parts = 8 if call.row_bytes == 584 else 4
        factors = 2.0 ** torch.randint(-2, 3, (n, parts), generator=generator)
        latent *= factors.repeat_interleave(LATENT // parts, 1)
        if call.row_bytes == 584:
            in_pages(cache, places, latent)
            of_sequences.append(numbers_of_cache(cache)[places])
            continue
        rows = rows_from(latent, torch.randn(n, ROPE, generator=generator))
        cache.view(-1, cache.shape[-1])[places] = rows
        of_sequences.append(numbers_of(rows).double())
    columns = LATENT + (ROPE if call.row_bytes == 656 else 0)
    q = torch.randn(batch, call.queries, call.heads, columns, generator=generator).bfloat16()
    return (
        q,
        cache.view(call.dtype),
        table,
        torch.tensor(call.keys, dtype=torch.int32),
        of_sequences,
    )


def numbers_of_cache(cache: torch.Tensor) -> torch.Tensor:
    """The rows that all bytes stand for, float64."""
    found = numbers_in_pages(cache) if cache.shape[-1] == 584 else numbers_of(cache)
    return found.flatten(0, 2).double()


def expected_of(q, k, causal: bool, sink=None):
    """(out, lse) of the queries of a sequence in float64. sink: a score of each head without a value, or None."""
    scores = torch.einsum("qhd,kd->hqk", q.double(), k) * k.shape[-1] ** -0.5
    if causal:
        last = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(torch.arange(len(k)) > last, -torch.inf)
    lse = scores.logsumexp(-1)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.double()[:, None])
    weights = (scores - lse[..., None]).exp()
    return torch.einsum("hqk,kd->qhd", weights, k[:, :LATENT]), lse


def assert_near(out, lse, exact, of_rows):
    assert (out.double() - exact).norm() < BOUND * exact.norm()
    infinite = of_rows.isinf()
    assert torch.equal(lse[infinite].double(), of_rows[infinite])
    assert (lse.double() - of_rows)[~infinite].abs().max() < 2e-2


def check(call: Call):
    q, cache, table, lengths, keys = drawn(call)
    out = q.new_full((*q.shape[:-1], LATENT), CANARY)
    given = dict(q=q, k_cache=cache, block_table=table, cache_seqlens=lengths, out=out)
    lists = None
    if call.listed:
        lists = lists_of(call, table)
        given |= dict(block_table=None, cache_seqlens=None, indices=lists)
    with emulator.use(mode=call.mode, seed=1, checks=("ptx", "phase_passed_twice")):
        returned, lse = call_of(given, is_fp8_kvcache=True, **call.options)
    assert returned is out
    sink = call.options.get("learnable_sink")
    for b, k in enumerate(keys):
        if lists is not None:
            rows = numbers_of_cache(cache)
            for j, listed in enumerate(lists[b]):
                exact, of_rows = expected_of(
                    q[b, j : j + 1], rows[listed[listed >= 0].long()], False, sink
                )
                assert_near(out[b, j : j + 1], lse[b, :, j : j + 1], exact, of_rows)
        elif len(k) == 0:
            nothing = torch.tensor(-torch.inf) if sink is None else sink[:, None].float()
            assert (out[b] == 0).all() and torch.allclose(lse[b], nothing.expand_as(lse[b]))
        else:
            exact, of_rows = expected_of(q[b], k, call.options.get("causal", False), sink)
            assert_near(out[b], lse[b], exact, of_rows)


def lists_of(call: Call, table) -> torch.Tensor:
    """Keys of each query in no order, with none among them."""
    generator, page = torch.Generator().manual_seed(2), call.page_size
    lists = torch.full((len(call.keys), call.queries, call.listed), -1, dtype=torch.int32)
    for b, n in enumerate(call.keys):
        for j in range(call.queries):
            keys = torch.randperm(n, generator=generator)[: call.listed]
            lists[b, j, : len(keys)] = table[b, keys // page] * page + (keys % page).int()
    lists[torch.rand(lists.shape, generator=generator) < 0.2] = -1
    return lists
