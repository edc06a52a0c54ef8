"""Calls with lists of key blocks: a pattern of kinds of blocks -> lists, visible keys, and the result in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from cute_fa4 import BlockSparseTensors, flash_attn_varlen_func
from cute_fa4.reference import EXP2_RELATIVE_ERROR, FLOAT32_NOISE
from tests.attention.agreement import ROUNDOFF, attention

ABSENT, PARTIAL, FULL = range(3)

# Blocks that no kernel has: halves of tiles, and those that tiles cut.
SMALL = {
    f"{q} x {k}": (q, k)
    for q, k in (
        (64, 64),
        (64, 128),
        (128, 64),
        (256, 64),
        (16, 16),
        (48, 80),
        (144, 512),
        (512, 32),
    )
}


def every_third_hidden(batch, head, q_idx, kv_idx):
    """A mask function that hides keys of every block, and other ones for each row, head and sequence."""
    return (q_idx + kv_idx + head + batch) % 3 != 0


@dataclass(frozen=True)
class Listed:
    """A call: kinds is (batch, heads, query blocks, key blocks), of ABSENT, PARTIAL and FULL.

    lengths: (queries, keys) of each sequence, where they have fewer than the tensors
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    kinds: torch.Tensor
    block_size: tuple[int, int]
    lengths: tuple[tuple[int, int], ...] | None = None

    def of(self, axis: int) -> list[int]:
        """Queries (0) or keys (1) of each sequence."""
        if self.lengths is None:
            return [(self.q, self.k)[axis].shape[1]] * self.q.shape[0]
        return [each[axis] for each in self.lengths]

    def blocks_of(self, axis: int) -> list[int]:
        return [-(-n // self.block_size[axis]) for n in self.of(axis)]

    @staticmethod
    def draw(
        sizes, heads, block_size, densities, head_dim=64, dtype=torch.bfloat16, lengths=None
    ) -> Listed:
        """sizes: (batch, queries, keys); heads: of q, of k; densities: of each head, of the blocks that are listed."""
        generator = torch.Generator().manual_seed(0)
        batch, queries, keys = sizes

        def rows(number, of):
            return torch.randn(batch, number, of, head_dim, generator=generator).to(dtype)

        blocks = -(-queries // block_size[0]), -(-keys // block_size[1])
        drawn = torch.rand(batch, heads[0], *blocks, generator=generator)
        listed = drawn < torch.tensor(densities)[None, :, None, None]
        kinds = torch.randint(PARTIAL, FULL + 1, listed.shape, generator=generator)
        q, k, v = rows(queries, heads[0]), rows(keys, heads[1]), rows(keys, heads[1])
        return Listed(q, k, v, kinds * listed, block_size, lengths)

    def lists(self, backwards: bool = False) -> BlockSparseTensors:
        """In ascending order, or the reverse. Entries after the count are no blocks."""
        found = []
        for kind in (PARTIAL, FULL):
            is_kind = self.kinds == kind
            number = is_kind.shape[-1]
            order = torch.arange(number) if not backwards else torch.arange(number).flip(0)
            rank = torch.where(is_kind, order, number + 1).sort(-1)
            found += [is_kind.sum(-1).int(), rank.indices.int().where(rank.values <= number, -7)]
        return BlockSparseTensors(*found, block_size=self.block_size)

    def packed_lists(self) -> BlockSparseTensors:
        """The same, one after another; each has room for the key blocks of its sequence."""
        sizes = list(zip(self.blocks_of(0), self.blocks_of(1), strict=True))
        there = torch.arange(self.kinds.shape[-1]) < torch.tensor(self.blocks_of(1)).view(
            -1, 1, 1, 1
        )
        given = replace(self, kinds=torch.where(there, self.kinds, ABSENT)).lists()
        found = []
        for counts, entries in (given[:2], given[2:4]):
            found.append(torch.cat([x[:, :m] for x, (m, _) in zip(counts, sizes, strict=True)], 1))
            each = zip(entries, sizes, strict=True)
            found.append(torch.cat([x[:, :m, :n].flatten(1) for x, (m, n) in each], 1))
        places = begins([m for m, _ in sizes]), begins([m * n for m, n in sizes])
        return BlockSparseTensors(*found, *places, block_size=self.block_size)

    def visible(self, mask_mod=every_third_hidden) -> torch.Tensor:
        """(batch, heads, queries, keys)."""
        (batch, queries, heads, _), keys = self.q.shape, self.k.shape[1]
        places = [torch.arange(n) for n in (batch, heads, queries, keys)]
        places = [x.view(*(-1 if at == i else 1 for at in range(4))) for i, x in enumerate(places)]
        kinds = self.kinds.expand(batch, heads, -1, -1)
        kinds = kinds.repeat_interleave(self.block_size[0], 2)[:, :, :queries]
        kinds = kinds.repeat_interleave(self.block_size[1], 3)[..., :keys]
        for n, i in (
            (torch.tensor(self.of(axis)).view(-1, 1, 1, 1), places[2 + axis]) for axis in (0, 1)
        ):
            kinds = torch.where(i < n, kinds, ABSENT)
        return (kinds == FULL) | (kinds == PARTIAL) & mask_mod(*places)

    def run(self, lists=None, **options):
        """(out, lse) of the call."""
        options = dict(mask_mod=every_third_hidden, return_lse=True) | options
        lists = self.lists() if lists is None else lists
        return attention(self.q, self.k, self.v, block_sparse_tensors=lists, **options)

    def run_as(self, way: str, **options):
        """The same of flash_attn_varlen_func, which finds the sequences in another way; 0 and -inf in other rows."""
        tensors, lengths, lists = WAYS[way](self)
        options = dict(mask_mod=every_third_hidden, return_lse=True) | options | lengths
        function = flash_attn_varlen_func
        out, lse = attention(*tensors, function=function, block_sparse_tensors=lists, **options)
        if out.dim() == 3:
            out, lse = (padded(x, self.of(0)) for x in (out, lse.transpose(0, 1)))
            lse = lse.transpose(1, 2)
        there = torch.arange(out.shape[1]) < torch.tensor(self.of(0))[:, None]
        out = torch.where(there[..., None, None], out, 0)
        return out, torch.where(there[:, None], lse, -math.inf)

    def expected(self, visible=None, scores=lambda s: s, sink=None) -> tuple:
        """(out, lse, the largest error of out) in float64.

        A weight is off by the roundoff of P and the error of 2^x, so out is off by their sum times sum(w |v|); then it
        is rounded.
        """
        group = self.q.shape[2] // self.k.shape[2]
        q, k, v = (x.double().transpose(1, 2) for x in (self.q, self.k, self.v))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        s = scores(q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]))
        s = s.masked_fill(~(self.visible() if visible is None else visible), -math.inf)
        if sink is not None:
            s = torch.cat((s, sink.double()[None, :, None, None].expand(*s.shape[:3], 1)), -1)
            v = torch.cat((v, v.new_zeros(*v.shape[:2], 1, v.shape[-1])), 2)
        lse = s.logsumexp(-1)
        p = torch.exp(s - lse.nan_to_num(neginf=0.0)[..., None])
        out, size = (p @ v).transpose(1, 2), (p @ v.abs()).transpose(1, 2)
        off = ROUNDOFF["bf16"]
        return out, lse, (off + EXP2_RELATIVE_ERROR) * size + off * out.abs() + FLOAT32_NOISE


def begins(numbers) -> torch.Tensor:
    """Where things begin that follow one another, and where the last one ends."""
    return torch.tensor([0, *numbers]).cumsum(0).int()


def one_after_another(x, lengths) -> torch.Tensor:
    """The rows of sequences, (batch, rows, ...), as (total, ...)."""
    return torch.cat([rows[:n] for rows, n in zip(x, lengths, strict=True)])


def padded(x, lengths) -> torch.Tensor:
    """The inverse."""
    return torch.nn.utils.rnn.pad_sequence(x.split(lengths), batch_first=True)


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def with_anything_beyond(x, lengths) -> torch.Tensor:
    there = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    return torch.where(there[..., None, None], x, math.nan)


def as_used(call: Listed) -> tuple:
    """Lengths in tensors; rows beyond are not numbers."""
    tensors = [
        with_anything_beyond(x, call.of(axis))
        for x, axis in ((call.q, 0), (call.k, 1), (call.v, 1))
    ]
    lengths = {"seqused_q": numbers(call.of(0)), "seqused_k": numbers(call.of(1))}
    return tensors, lengths, call.lists()


def as_packed(call: Listed) -> tuple:
    """Sequences, and lists, one after another."""
    tensors = [
        one_after_another(x, call.of(axis)) for x, axis in ((call.q, 0), (call.k, 1), (call.v, 1))
    ]
    lengths = {"cu_seqlens_q": begins(call.of(0)), "cu_seqlens_k": begins(call.of(1))}
    return tensors, lengths, call.packed_lists()


def as_packed_with_padded_lists(call: Listed) -> tuple:
    tensors, lengths, _ = as_packed(call)
    return tensors, lengths, call.lists()


def as_packed_queries(call: Listed) -> tuple:
    """All sequences have as many keys: nothing says where entries begin."""
    (q, *_), lengths, lists = as_packed(call)
    lists = lists._replace(cu_block_idx_offsets=None)
    return (q, call.k, call.v), {"cu_seqlens_q": lengths["cu_seqlens_q"]}, lists


def as_pages(page_size: int, way=as_used):
    """Keys in pages in no order, of which the rest of the table says nothing."""

    def of(call: Listed) -> tuple:
        (q, k, v), lengths, lists = way(call)
        of_sequence = -(-call.k.shape[1] // page_size)
        table = torch.randperm(
            of_sequence * len(call.k), generator=torch.Generator().manual_seed(1)
        )
        table = table.view(-1, of_sequence).int()
        rows = [
            in_pages(with_anything_beyond(x, call.of(1)), table, page_size)
            for x in (call.k, call.v)
        ]
        used = numbers(call.of(1))
        wanted = torch.arange(of_sequence) * page_size < used[:, None]
        lengths.pop("cu_seqlens_k", None)
        lengths = lengths | {"page_table": torch.where(wanted, table, -5), "seqused_k": used}
        return (q, *rows), lengths, lists

    return of


def in_pages(x, table, page_size: int) -> torch.Tensor:
    """Rows of sequences, (batch, rows, heads, depth), in the pages of a table that has every page."""
    rest = table.shape[1] * page_size - x.shape[1]
    x = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, rest), value=math.nan)
    pages = x.new_empty(table.numel(), page_size, *x.shape[2:])
    pages[table.flatten().long()] = x.unflatten(1, (-1, page_size)).flatten(0, 1)
    return pages


WAYS = {
    "lengths": as_used,
    "packed": as_packed,
    "padded lists": as_packed_with_padded_lists,
    "packed queries": as_packed_queries,
    "pages of 16": as_pages(16),
    "pages of 256": as_pages(256),
    "pages of 5, packed queries": as_pages(5, as_packed),
}


def assert_right(found, expected) -> None:
    """out and lse against float64; rows without keys are 0 and -inf."""
    (out, lse), (exact, exact_lse, allowed) = found, expected
    assert ((out.double() - exact).abs() <= allowed).all()
    without = torch.isneginf(exact_lse)
    assert torch.equal(torch.isneginf(lse), without)
    assert (out[without.transpose(1, 2)] == 0).all()
    close = (lse.double() - exact_lse)[~without].abs() <= 2 * EXP2_RELATIVE_ERROR
    assert close.all()
