"""Lists of key blocks, converted by kernels of sm100/work/lists: for tiles of the forward pass, and of the backward.

All on the device: nothing is read by the host, and it waits for nothing. The backward pass takes 1 byte and then 8
bytes for each pair of a tile of queries and a tile of keys, of 128 rows each, and each head that has lists of its own.
Its kernels read 4 bytes of these for each pair that is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from cute_fa4.block_sparsity import COUNTS, ENTRIES
from cute_fa4.calls.launch import function_for, launching_on
from cute_fa4.calls.operands.blocks import PLACES, Blocks, of_operator
from cute_fa4.calls.split_keys.split import num_sms
from cute_fa4.operands import BLOCKS, NAMES
from cute_fa4.sm100.backward.owner import ROWS
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.listed import TILE_BITS, TURN_BITS
from cute_fa4.sm100.work.lists.config import (
    ALL_PARTIAL,
    TILE,
    UNIT,
    UNITS_OF_BYTE,
    BlockListsConfig,
    windows_of,
)
from cute_fa4.system.devices import target_of


class Lists(NamedTuple):
    """Lists of key blocks that a call has passed: the tensors by their names (operands.py), and their sizes."""

    tensors: dict[str, torch.Tensor | None]
    blocks: Blocks

    @staticmethod
    def of_operator(call: Mapping) -> Lists | None:
        """The lists of a call of an operator, by the names of its arguments; None: it has none."""
        blocks = of_operator(call)
        return None if blocks is None else Lists({x: call[x] for x in NAMES[BLOCKS]}, blocks)

    def given(self, names: tuple[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
        """COUNTS or ENTRIES of partial and of full blocks; partial ones twice where there are no others."""
        partial, full = (self.tensors[name] for name in names)
        assert partial is not None  # checked by blocks.checked_blocks
        return partial, partial if full is None else full

    def shared(self, dim: int, number: int) -> int:
        """1 where all sequences (0) or heads (1) share padded lists; otherwise how many there are."""
        at = dim - 1 if self.blocks.packed else dim
        if at < 0:
            return number
        given = *self.given(COUNTS), *self.given(ENTRIES)
        return next((x.shape[at] for x in given if x.shape[at] != 1), 1)


class Side(NamedTuple):
    """The rows of the queries or of the keys.

    longest   rows of the longest sequence, or more
    lengths   (batch,): rows of each sequence; None: all have `longest`
    """

    longest: int
    lengths: torch.Tensor | None = None

    def blocks(self, size: int) -> int:
        return -(-self.longest // size)


def empty_tiles(lists: Lists, sides: tuple[Side, Side], batch: int, tile_q: int) -> tuple:
    """Memory for what tiles_and_units returns. sides: queries, keys; tile_q: queries of a tile."""
    (queries, keys), new = sides, lists.given(COUNTS)[0].new_empty
    of_lists = lists.shared(0, batch), lists.shared(1, 1)
    tiles, of_keys = (*of_lists, queries.blocks(tile_q)), keys.blocks(TILE)
    numbers = [new(shape) for shape in (tiles, (*tiles, of_keys)) * 2]
    units = (
        *of_lists,
        queries.blocks(lists.blocks.queries),
        of_keys * TILE // (UNIT * UNITS_OF_BYTE),
    )
    return *numbers, new(units, dtype=torch.uint8)


def tiles_and_units(
    of_tiles: tuple[Lists, tuple[Side, Side], int, int], hides: bool, in_order: bool = False
) -> tuple:
    """-> counts and entries of partial tiles, counts and entries of full ones, and kinds of units.

    of_tiles   parameters of empty_tiles
    hides      whether a mask_mod hides keys of partial blocks; otherwise all are full
    in_order   all tiles are partial ones: then they come in ascending order

    kinds are (batch or 1, heads or 1, query blocks, bytes), uint8, as blueprint/small_blocks.py describes them.
    """
    lists, sides, _, tile_q = of_tiles
    results = empty_tiles(*of_tiles)
    _convert("tiles", lists, sides, (tile_q, hides | ALL_PARTIAL * in_order), results)
    return results


def kinds_of_tiles(lists: Lists, queries: Side, keys: Side, batch: int) -> torch.Tensor:
    """(batch or 1, heads or 1, tiles of queries, tiles of keys) int8: 0 for no tile, PARTIAL or FULL.

    Values outside of what they may be are left out, as in the forward pass: counts beyond their list, entries that are
    no block of the sequence. A block that is listed twice counts once.
    """
    ragged = not queries.lengths is keys.lengths is None
    batch = batch if ragged else lists.shared(0, batch)
    shape = batch, lists.shared(1, 1), queries.blocks(ROWS), keys.blocks(ROWS)
    kinds = lists.given(COUNTS)[0].new_empty(shape, dtype=torch.uint8)
    _convert("kinds", lists, (queries, keys), (ROWS, True), (kinds,))
    return kinds.view(torch.int8)


def _convert(makes: str, lists: Lists, sides: tuple[Side, Side], more: tuple, results: tuple):
    """Launch the kernel. more: queries of a tile, and `hides` of the kernel."""
    if 0 in results[0].shape:
        return
    counts, entries = lists.given(COUNTS), lists.given(ENTRIES)
    if lists.blocks.packed:
        counts = counts[0][None], counts[1][None]
        entries = entries[0][None, :, None], entries[1][None, :, None]
    # The kernel reads no tensor that the call does not have: another one stands for it.
    places = tuple(lists.tensors[name] for name in PLACES)
    lengths = tuple(None if x.lengths is None else x.lengths.int() for x in sides)
    given = [x is not None for x in (*places, *lengths)]
    places, lengths = (
        tuple(counts[0][0, 0] if x is None else x for x in each) for each in (places, lengths)
    )
    (tile_q, hides), blocks = more, lists.blocks
    sizes = blocks.queries, blocks.keys, tile_q, *(x.longest for x in sides), int(hides)
    flags = 1 + blocks.full, *map(int, given)
    device = counts[0].device
    target = target_of(device)
    function = function_for(BlockListsConfig(makes, target.arch), target)
    with launching_on(device):
        function(counts, entries, places, lengths, flags, sizes, results)


def for_queries(kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (counts, entries) for the owner of queries. kinds: as kinds_of_tiles returns it."""
    _check("keys", "tiles", kinds.shape[3], TILE_BITS - 1)
    return _in_order(kinds[:, :, :, None])


def for_keys(kinds: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for the owner of keys. group: query heads of a key-value head."""
    _check("queries", "tiles", kinds.shape[2], TILE_BITS - 1)
    _check("a group", "query heads", group, TURN_BITS)
    batch, heads, tiles_q, tiles_k = kinds.shape
    if heads == 1:
        kinds, heads = kinds.expand(batch, group, tiles_q, tiles_k), group
    kinds = kinds.unflatten(1, (heads // group, group))
    return _in_order(kinds.permute(0, 1, 4, 2, 3))


def longest_first(counts: torch.Tensor, batch: int, heads: int) -> torch.Tensor:
    """The order of the lists of an owner, as backward/listed.py has it; of few lists empty.

    counts  as for_queries and for_keys return them
    heads   that the owner has
    """
    tiles = counts.shape[2]
    number = batch * heads * tiles
    if not is_sorted(number, counts.device):
        return counts.new_empty(0)
    order, target = counts.new_empty(number), target_of(counts.device)
    function = function_for(BlockListsConfig("longest", target.arch), target)
    with launching_on(counts.device):  # padded counts, which are all that a list has
        sizes = tiles, heads, 1, windows_of(number), number, 0
        function((counts,) * 2, counts[0, 0], counts[0, 0], (1, 0), sizes, order)
    return order


def is_sorted(tiles: int, device: torch.device) -> bool:
    """Whether so many lists are worth a launch that sorts them by their lengths."""
    return tiles > tuning.choose("longest_first") * num_sms(device)


def _in_order(kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """kinds: (batch, heads, lists, turns, tiles). Full ones come first, and absent ones last."""
    shape = kinds.shape[:3]
    counts, entries = (
        torch.empty(x, dtype=torch.int32, device=kinds.device)
        for x in (shape, (*shape, kinds.shape[3] * kinds.shape[4]))
    )
    if entries.numel():
        target = target_of(kinds.device)
        function = function_for(BlockListsConfig("order", target.arch), target)
        with launching_on(kinds.device):
            function(kinds.to(torch.int8).view(torch.uint8), counts, entries)
    return counts, entries


def _check(whose: str, what: str, number: int, bits: int) -> None:
    if number > 1 << bits:
        raise ValueError(
            f"block_sparse_tensors: {number} {what} of {whose} in the backward pass; accepted: at most {1 << bits}; "
            "split the call"
        )
