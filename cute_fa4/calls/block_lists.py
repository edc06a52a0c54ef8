"""The lists of tiles that the backward pass processes, from the lists of key blocks of a call.

All on the device: nothing is read by the host, and it waits for nothing. Memory: 1 byte and then 12 bytes for each
pair of a tile of queries and a tile of keys, of 128 rows each, and each head that has lists of its own. The kernels
read 4 bytes of these for each pair that is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from cute_fa4.block_sparsity import COUNTS, ENTRIES, FULL, PARTIAL
from cute_fa4.calls.operands.blocks import Blocks, of_operator, padded
from cute_fa4.operands import BLOCKS, NAMES
from cute_fa4.sm100.backward.config import ROWS, TILE_BITS, TURN_BITS


class Lists(NamedTuple):
    """Lists of key blocks that a call has passed: the tensors by their names (operands.py), and their sizes."""

    tensors: dict[str, torch.Tensor | None]
    blocks: Blocks

    @staticmethod
    def of_operator(call: Mapping) -> Lists | None:
        """The lists of a call of an operator, by the names of its arguments; None: it has none."""
        blocks = of_operator(call)
        return None if blocks is None else Lists({x: call[x] for x in NAMES[BLOCKS]}, blocks)


class Side(NamedTuple):
    """The rows of the queries or of the keys.

    longest   rows of the longest sequence, or more
    lengths   (batch,): rows of each sequence; None: all have `longest`
    """

    longest: int
    lengths: torch.Tensor | None = None

    def blocks(self, size: int) -> int:
        return -(-self.longest // size)

    def blocks_of_each(self, size: int, batch: int, device) -> torch.Tensor:
        """(batch,): blocks of so many rows."""
        if self.lengths is None:
            return torch.full((batch,), self.blocks(size), device=device)
        return (self.lengths.long().clamp(0, self.longest) + size - 1) // size


def kinds_of_tiles(lists: Lists, queries: Side, keys: Side, batch: int) -> torch.Tensor:
    """(batch or 1, heads or 1, tiles of queries, tiles of keys) int8: 0 for no tile, PARTIAL or FULL.

    Values outside of what they may be are left out, as in the forward pass: counts beyond their list, entries that are
    no block of the sequence. A block that is listed twice counts once.
    """
    blocks = lists.blocks
    kinds = kinds_of_blocks(lists, queries, keys, batch)
    for dim, (side, size) in enumerate(((queries, blocks.queries), (keys, blocks.keys)), start=2):
        kinds = kinds.repeat_interleave(size // ROWS, dim).narrow(dim, 0, side.blocks(ROWS))
        if side.lengths is not None:
            exists = torch.arange(kinds.shape[dim], device=kinds.device)
            exists = exists < side.blocks_of_each(ROWS, batch, kinds.device)[:, None]
            kinds = kinds * (exists[:, None, :, None] if dim == 2 else exists[:, None, None])
    return kinds


def kinds_of_blocks(lists: Lists, queries: Side, keys: Side, batch: int) -> torch.Tensor:
    """(batch or 1, heads or 1, query blocks, key blocks) int8: the same for the blocks of the lists themselves."""
    kinds = torch.zeros(())
    for kind, names in zip((PARTIAL, FULL), zip(COUNTS, ENTRIES, strict=True), strict=True):
        counts, entries = (lists.tensors[name] for name in names)
        if counts is not None and entries is not None:
            found = _listed(lists, (counts, entries), (queries, keys), batch)
            kinds = torch.maximum(found * kind, kinds.to(found))
    return kinds


def _listed(lists: Lists, tensors: tuple, sides: tuple[Side, Side], batch: int) -> torch.Tensor:
    """(batch or 1, heads or 1, query blocks, key blocks) int8: whether a block is listed. tensors: counts, entries."""
    blocks, (queries, keys) = lists.blocks, sides
    counts, entries = tensors
    shape = queries.blocks(blocks.queries), keys.blocks(blocks.keys)
    room = torch.full((1,), entries.shape[-1], device=entries.device)
    if blocks.packed:
        room = keys.blocks_of_each(blocks.keys, batch, entries.device)
        places = lists.tensors["cu_total_m_blocks"], lists.tensors["cu_block_idx_offsets"]
        counts, entries = padded(places, (counts, entries), room, shape)
    counts = torch.minimum(counts[:, :, : shape[0]].long(), room[:, None, None])
    entries = entries[:, :, : shape[0]].long()
    inside = torch.arange(entries.shape[-1], device=entries.device) < counts[..., None]
    inside = inside & (entries >= 0) & (entries < shape[1])
    where = torch.where(inside, entries, shape[1])  # the others go to one more column
    found = torch.zeros((*where.shape[:3], shape[1] + 1), dtype=torch.int8, device=where.device)
    found = found.scatter(-1, where, 1)[..., :-1]
    missing = shape[0] - found.shape[2]  # query blocks without a list, which see nothing
    return torch.nn.functional.pad(found, (0, 0, 0, max(0, missing)))


def for_queries(kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (counts, entries) for the owner of queries. kinds: as kinds_of_tiles returns it."""
    _check("keys", "tiles", kinds.shape[3], TILE_BITS - 1)
    return _lists(kinds, kinds.shape[3])


def for_keys(kinds: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for the owner of keys. group: query heads of a key-value head."""
    _check("queries", "tiles", kinds.shape[2], TILE_BITS - 1)
    _check("a group", "query heads", group, TURN_BITS)
    batch, heads, tiles_q, tiles_k = kinds.shape
    if heads == 1:
        kinds, heads = kinds.expand(batch, group, tiles_q, tiles_k), group
    kinds = kinds.reshape(batch, heads // group, group, tiles_q, tiles_k).permute(0, 1, 4, 2, 3)
    return _lists(kinds.flatten(3), tiles_q)


def _lists(kinds: torch.Tensor, tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
    """kinds: (batch, heads, lists, `tiles` for each head of a group). Full ones come first."""
    found, order = torch.sort(kinds, dim=-1, descending=True, stable=True)
    turn, tile = order // tiles, order % tiles
    entries = (turn << (1 + TILE_BITS)) | (tile << 1) | (found == FULL)
    counts = (found > 0).sum(-1, dtype=torch.int32)
    return counts.contiguous(), entries.to(torch.int32).contiguous()


def _check(whose: str, what: str, number: int, bits: int) -> None:
    if number > 1 << bits:
        raise ValueError(
            f"block_sparse_tensors: {number} {what} of {whose} in the backward pass; accepted: at most {1 << bits}; "
            "split the call"
        )
