"""Conversions of lists, and what they must return, from the kinds of blocks by plain loops."""

from __future__ import annotations

import torch

from cute_fa4.calls.block_lists import Lists, Side, for_keys, for_queries, tiles_and_units
from cute_fa4.sm100.blueprint.listed import TILE_BITS
from cute_fa4.sm100.work.lists.config import TILE, UNIT
from tests.attention.listed import ABSENT, FULL, PARTIAL, Listed, numbers


def drawn(rows, block_size, heads=2, lengths=None) -> Listed:
    """rows: queries, keys; some blocks of each head, more of the next one."""
    densities = [(head + 1) / heads for head in range(heads)]
    batch = 1 if lengths is None else len(lengths)
    heads_and_group = heads, 1
    call = Listed.draw((batch, *rows), heads_and_group, block_size, densities, 16, lengths=lengths)
    call.kinds[:, -1, :, : -(-TILE // block_size[1])] = FULL  # a full tile
    return call


def converted(call: Listed, lists, hides: bool = True, ascends: bool = False) -> tuple:
    """The results of the kernel for lists of a call. ascends: all tiles are partial ones, of 256 queries."""
    found = Lists.of_operator(lists._asdict())
    lengths = None if call.lengths is None else numbers(call.of(1))
    sides = Side(call.q.shape[1]), Side(call.k.shape[1], lengths)
    return tiles_and_units((found, sides, len(call.q), tile_of(call, ascends)), hides, ascends)


def tile_of(call: Listed, ascends: bool) -> int:
    return 256 if ascends or call.block_size[0] % 256 == 0 else TILE


def expected(call: Listed, hides: bool = True, ascends: bool = False) -> tuple:
    """Per (batch, head, tile of queries): partial tiles, full ones. And kinds of units, (..., query block, unit)."""
    kinds = call.kinds if hides else (call.kinds > ABSENT) * FULL
    queries, keys = call.block_size
    rows = kinds.repeat_interleave(queries, 2)[:, :, : call.q.shape[1]]
    units = kinds.repeat_interleave(keys // UNIT, 3)
    of_rows = rows.repeat_interleave(keys // UNIT, 3)
    tiles = {}
    for place in torch.cartesian_prod(*map(torch.arange, kinds.shape[:2])).tolist():
        for i, of_tile in enumerate(of_rows[tuple(place)].split(tile_of(call, ascends))):
            found = [
                part.unique().tolist()
                for part in of_tile.split(TILE // UNIT, 1)[: -(-call.k.shape[1] // TILE)]
            ]
            full = [j for j, seen in enumerate(found) if seen == [FULL] and not ascends]
            partial = [j for j, seen in enumerate(found) if seen != [ABSENT] and j not in full]
            tiles[(*place, i)] = partial, full
    return tiles, units


def is_right(call: Listed, lists=None, hides: bool = True, ascends: bool = False) -> bool:
    partial_counts, partial, full_counts, full, kinds = converted(
        call, call.lists() if lists is None else lists, hides, ascends
    )
    tiles, units = expected(call, hides, ascends)
    for place, wanted in tiles.items():
        pairs = (partial_counts, partial), (full_counts, full)
        found = tuple(entries[place][: counts[place]].tolist() for counts, entries in pairs)
        if found != wanted:
            return False
        if any(sorted(x[place].tolist()) != list(range(x.shape[3])) for x in (partial, full)):
            return False  # the others are not all there, after them
    found = torch.stack([kinds >> 2 * i & 3 for i in range(4)], -1).flatten(-2)
    wanted = torch.zeros_like(found)
    at = min(units.shape[-1], found.shape[-1])
    wanted[..., :at] = units[..., :at]
    return bool(found.equal(wanted))


def in_order(kinds, group: int) -> bool:
    """Whether the lists of both owners are right. kinds: (batch, heads, tiles of queries, tiles of keys)."""
    batch, heads, tiles_q, tiles_k = kinds.shape
    counts, entries = for_queries(kinds)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, heads, tiles_q))).tolist():
        row = kinds[b, h, i].tolist()
        wanted = [j << 1 | 1 for j in range(tiles_k) if row[j] == FULL]
        wanted += [j << 1 for j in range(tiles_k) if row[j] == PARTIAL]
        if entries[b, h, i, : counts[b, h, i]].tolist() != wanted:
            return False
    counts, entries = for_keys(kinds, group)
    for b, h, j in torch.cartesian_prod(
        *map(torch.arange, (batch, max(heads // group, 1), tiles_k))
    ).tolist():
        heads_of = range(h * group, h * group + group) if heads > 1 else [0] * group
        column = [kinds[b, head, :, j].tolist() for head in heads_of]
        wanted = [
            turn << (1 + TILE_BITS) | i << 1 | (kind == FULL)
            for kind in (FULL, PARTIAL)
            for turn, found in enumerate(column)
            for i in range(tiles_q)
            if found[i] == kind
        ]
        if entries[b, h, j, : counts[b, h, j]].tolist() != wanted:
            return False
    return True
