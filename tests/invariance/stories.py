"""A sequence computed as a whole and in pieces: any chunk of its queries, in any storage, beside any others.

Kind     what the model fixes: head dims, heads, dtypes, mask, sink, soft cap
Story    the queries, keys and values of one sequence; whole() is all of it in one call
Piece    a range of its queries and the way they are called
results  of a piece: (out, lse) of its rows, which must have the bits of the whole
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from dataclasses import dataclass, field

import torch

from cute_fa4 import (
    EmulatorWarning,
    emulator,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
)
from cute_fa4.mla import write_latent_rows

LATENT, OF_V = 576, 512  # columns of a latent row, and those that are values
STORAGES = ("dense", "packed", "pages", "cache", "paged cache")
JUMP = 60.0  # times a row of queries: its scores are hundreds of nats apart


@dataclass(frozen=True)
class Kind:
    """head_dim_v 0: as head_dim. options: of every call; latent: heads[1] is 1, and v is the first columns of k.

    of_bytes: a latent cache has rows of 656 bytes
    """

    head_dim: int = 64
    head_dim_v: int = 0
    heads: tuple[int, int] = (4, 2)
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None
    latent: bool = False
    of_bytes: bool = False
    options: dict = field(default_factory=dict)

    @property
    def depths(self) -> tuple[int, int]:
        """Of k and of v."""
        return self.head_dim, self.head_dim_v or self.head_dim


@dataclass(frozen=True)
class Piece:
    """Queries [first, last) of a sequence.

    storage     of keys and values (and of queries: packed with packed and paged keys)
    page_size   of pages
    company     lengths (queries, keys) of the sequences before and after it in the batch
    lse         is returned
    spare       further keys after the last one are in memory, and NaN
    """

    first: int
    last: int
    storage: str = "dense"
    page_size: int = 16
    company: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = ((), ())
    lse: bool = True
    options: tuple = ()


@dataclass(frozen=True)
class Story:
    """q (seqlen, heads, head_dim), k and v (seqlen, heads_kv, ...) of one sequence: query i stands at key i."""

    kind: Kind
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @staticmethod
    def draw(kind: Kind, seqlen: int, seed: int = 0, jumps: bool = False) -> Story:
        """Normal numbers. jumps: every third query and later keys are large, so maxima move within the sequence."""
        return Story(kind, *drawn(kind, seqlen, seqlen, torch.Generator().manual_seed(seed), jumps))

    def whole(self, first: int = 0, **options) -> tuple[torch.Tensor, torch.Tensor]:
        """From query `first` on."""
        return self.results(Piece(first, len(self.q)), **options)

    def results(self, piece: Piece, **options) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(out, lse or None) of the piece's rows: (rows, heads, head_dim_v) and (heads, rows)."""
        options = self.kind.options | options | dict(piece.options)
        make = latent_call if self.kind.latent else CALLS[piece.storage]
        with warnings.catch_warnings(), emulator.use(checks="hardware"):
            warnings.simplefilter("ignore", EmulatorWarning)
            return make(self, piece, options)


def drawn(kind: Kind, queries: int, keys: int, generator, jumps: bool = False) -> tuple:
    """q, k, v of one sequence; of a latent cache v is part of k."""
    depth, depth_v = kind.depths
    heads, heads_kv = kind.heads
    q = torch.randn(queries, heads, depth, generator=generator)
    k = torch.randn(keys, heads_kv, depth, generator=generator)
    v = (
        k[..., :depth_v]
        if kind.latent
        else torch.randn(keys, heads_kv, depth_v, generator=generator)
    )
    if jumps:
        q[::3] *= JUMP / depth**0.5
        k[5::7] *= 3
        k[keys // 2 :] *= 4
    kv_dtype = kind.kv_dtype or kind.dtype
    return q.to(kind.dtype), k.to(kv_dtype), v.to(kv_dtype)


def parts_of(story: Story, piece: Piece) -> tuple[list, int]:
    """[(q, k, v)] of each sequence of the batch, and which is the piece. Neighbours have rows that jump and a NaN."""
    before, after = piece.company
    own = story.q[piece.first : piece.last], story.k[: piece.last], story.v[: piece.last]
    generator = torch.Generator().manual_seed(piece.first + 1000 * piece.last)

    def neighbour(sizes):
        q, k, v = drawn(story.kind, *sizes, generator, jumps=True)
        if q.dtype.itemsize > 1:
            q[-1:, 0] = math.nan
        return q, k, v

    return [*map(neighbour, before), own, *map(neighbour, after)], len(before)


def offsets(lengths) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def int32(numbers) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32)


def unpacked(found, lse: bool):
    return found if lse else (found, None)


def dense_call(story: Story, piece: Piece, options: dict):
    """The piece alone: dense tensors know no lengths."""
    q, k, v = story.q[piece.first : piece.last], story.k[: piece.last], story.v[: piece.last]
    found = flash_attn_func(q[None], k[None], v[None], causal=True, return_lse=piece.lse, **options)
    out, lse = unpacked(found, piece.lse)
    return out[0], None if lse is None else lse[0]


def own_rows(out, lse, sizes: list, which: int):
    """Rows of a sequence of packed results."""
    rows = slice(sum(sizes[:which]), sum(sizes[: which + 1]))
    return out[rows], None if lse is None else lse[:, rows]


def packed_call(story: Story, piece: Piece, options: dict):
    parts, which = parts_of(story, piece)
    q, k, v = (torch.cat(x) for x in zip(*parts, strict=True))
    queries, keys = ([len(part[i]) for part in parts] for i in (0, 1))
    found = flash_attn_varlen_func(
        *(q, k, v, offsets(queries), offsets(keys), max(queries), max(keys)),
        causal=True, return_lse=piece.lse, **options,
    )  # fmt: skip
    return own_rows(*unpacked(found, piece.lse), queries, which)


def in_pages(rows: list[torch.Tensor], page_size: int, order) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (pool of pages in the given order, NaN where there is no row, page table)."""
    counts = [-(-len(x) // page_size) for x in rows]
    shape = (sum(counts), page_size, *rows[0].shape[1:])
    pool = torch.full(shape, math.nan).to(rows[0].dtype)
    table = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    first = 0
    for i, (x, count) in enumerate(zip(rows, counts, strict=True)):
        for page in range(count):
            at = order[first + page]
            own = x[page * page_size : (page + 1) * page_size]
            pool[at, : len(own)] = own
            table[i, page] = at
        first += count
    return pool, table


def pages_of(parts, piece: Piece) -> tuple:
    """-> (pool of k, pool of v, page table), pages in random order."""
    count = sum(-(-len(part[1]) // piece.page_size) for part in parts)
    order = random.Random(piece.last).sample(range(count), count)
    k, table = in_pages([part[1] for part in parts], piece.page_size, order)
    v, _ = in_pages([part[2] for part in parts], piece.page_size, order)
    return k, v, table


def paged_call(story: Story, piece: Piece, options: dict):
    parts, which = parts_of(story, piece)
    k, v, table = pages_of(parts, piece)
    queries, keys = ([len(part[i]) for part in parts] for i in (0, 1))
    found = flash_attn_varlen_func(
        torch.cat([part[0] for part in parts]), k, v, cu_seqlens_q=offsets(queries), max_seqlen_q=max(queries),
        page_table=table, seqused_k=int32(keys), causal=True, return_lse=piece.lse, **options,
    )  # fmt: skip
    return own_rows(*unpacked(found, piece.lse), queries, which)


def parts_of_as_many(story: Story, piece: Piece) -> tuple:
    """As parts_of, of a dense q: neighbours have as many queries."""
    rows = piece.last - piece.first
    company = tuple(tuple((rows, keys) for _, keys in side) for side in piece.company)
    return parts_of(story, Piece(piece.first, piece.last, company=company))


def paged_cache_call(story: Story, piece: Piece, options: dict):
    """Pages in random order, of a dense q, whose first pages are looked up before a CTA knows its work."""
    parts, which = parts_of_as_many(story, piece)
    k, v, table = pages_of(parts, piece)
    found = flash_attn_with_kvcache(
        torch.stack([part[0] for part in parts]), k, v, cache_seqlens=int32(len(part[1]) for part in parts),
        page_table=table, causal=True, return_lse=piece.lse, **options,
    )  # fmt: skip
    out, lse = unpacked(found, piece.lse)
    return out[which], None if lse is None else lse[which]


def cache_call(story: Story, piece: Piece, options: dict):
    """A dense cache with room after its keys."""
    parts, which = parts_of_as_many(story, piece)
    lengths = [len(part[1]) for part in parts]

    def cache(i):
        whole = torch.full((len(parts), max(lengths) + 5, *parts[0][i].shape[1:]), math.nan)
        whole = whole.to(parts[0][i].dtype)
        for at, part in enumerate(parts):
            whole[at, : len(part[i])] = part[i]
        return whole

    found = flash_attn_with_kvcache(
        torch.stack([part[0] for part in parts]), cache(1), cache(2), cache_seqlens=int32(lengths),
        causal=True, return_lse=piece.lse, **options,
    )  # fmt: skip
    out, lse = unpacked(found, piece.lse)
    return out[which], None if lse is None else lse[which]


def latent_call(story: Story, piece: Piece, options: dict):
    parts, which = parts_of_as_many(story, piece)
    pool, _, table = pages_of(parts, piece)
    if story.kind.of_bytes:
        pool = in_bytes(pool)
    q, lengths = torch.stack([part[0] for part in parts]), int32(len(part[1]) for part in parts)
    out, lse = flash_mla_with_kvcache(q, pool, table, lengths, causal=True, **options)
    return out[which], lse[which]


def in_bytes(pool: torch.Tensor) -> torch.Tensor:
    """A latent cache in rows of 656 bytes. What no row of a sequence is, has NaN as its scales."""
    found = torch.zeros(*pool.shape[:-1], 656, dtype=torch.uint8)
    rows = pool.view(-1, LATENT)
    slots = torch.arange(len(rows), dtype=torch.int32)
    write_latent_rows(found, rows[:, :OF_V], rows[:, OF_V:], slots)
    return found


CALLS = {
    "dense": dense_call, "packed": packed_call, "pages": paged_call, "cache": cache_call,
    "paged cache": paged_cache_call,
}  # fmt: skip


def pieces(seqlen: int, seed: int, first: int = 0, storages=STORAGES) -> list[Piece]:
    """A prefill in random chunks and single queries: queries [first, seqlen), each piece called in another way."""
    dice = random.Random(seed)
    found = []
    while first < seqlen:
        rows = dice.choice((1, 1, 2, 40, 130, 200))
        last = min(first + rows, seqlen)

        def some():
            count = dice.randint(0, 2)
            return tuple(
                (dice.choice((1, 3, 90)), dice.choice((1, 100, 300))) for _ in range(count)
            )

        storage = dice.choice(storages)
        company = ((), ()) if storage == "dense" else (some(), some())
        page = dice.choice((1, 16, 64, 7, 128))
        found.append(Piece(first, last, storage, page, company, dice.random() < 0.8))
        first = last
    return found
