"""Lists of blocks that the kernels do not have -> lists of tiles, and a mask_mod that hides the rest of each tile.

    block_size (64, 64), query tile 0       lists of a row of blocks      kinds (0 hidden, 1 partial, 2 full)
    block 0 sees keys 0 to 127              full 0, 1                     2 2 0 0
    block 1 sees keys 64 to 127, 192 on     full 1; partial 3             0 2 0 1
    tiles of 128 x 128                      partial 0, 1                  1   1

A tile whose blocks are all full is a full one, without a mask. All on the device: nothing is read by the host, and it
waits for nothing. Contents that are wrong are left out, as the kernels do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from cute_fa4.block_sparsity import BlockSparseTensors
from cute_fa4.calls.block_lists import Lists, Side, tiles_and_units
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.blocks import (
    are_tiles,
    checked_blocks,
    has_two_tiles,
    taken,
    with_lists,
)
from cute_fa4.calls.operands.lengths import longest_of
from cute_fa4.calls.operands.tensors import check_tensors
from cute_fa4.calls.operands.tracing import is_traced
from cute_fa4.calls.options import checked_aux
from cute_fa4.calls.prepare import checked, pages_rows_first
from cute_fa4.calls.request import Choices, Numbers, Where
from cute_fa4.calls.skipping import FACTOR
from cute_fa4.compiler import policy
from cute_fa4.operands import ROWS, CallTensors
from cute_fa4.sm100.blueprint.listed import LISTED_BLOCK
from cute_fa4.sm100.blueprint.small_blocks import counted_from_first, tile_of, with_kinds


def with_lists_of_tiles(tensors: CallTensors, asked: tuple, given: dict) -> tuple:
    """-> (tensors, asked, given) of a call, with its lists as the kernels have them.

    asked  as repeat.attend takes it; given: other options by name, of which functions capture no tensors
    """
    lists = given.get("block_sparse_tensors")
    if lists is None:
        return tensors, asked, given
    found = taken(lists)
    window_size, numbers, choices = asked
    options = Numbers(*numbers)._asdict() | Choices(*choices)._asdict() | given
    # Those of a traced call are converted by an operator (operators/routes.py).
    fit = are_tiles(found["block_sparse_tensors"], tensors.q_descale, options[FACTOR])
    if fit or is_traced(tensors.q):
        return *with_lists(tensors, asked, found), given
    options["aux_tensors"] = tensors.aux_tensors
    made = in_tiles(tensors, options, contents=True)
    tensors = tensors._replace(aux_tensors=made.pop("aux_tensors"))
    asked = window_size, numbers, tuple(Choices(*choices)._replace(**made))
    return *with_lists(tensors, asked, taken(made["block_sparse_tensors"])), given | made


def in_tiles(tensors: CallTensors, options: Mapping, contents: bool) -> dict:
    """block_sparse_tensors, score_mod, mask_mod and aux_tensors for the kernels, of a call with lists; else nothing.

    options   by name; its functions are ScoreMods that capture no tensors, or None
    contents  whether the host may read those of tensors in its memory
    """
    if options.get("block_sparse_tensors") is None:
        return {}
    found = taken(options["block_sparse_tensors"])
    blocks = found.pop("block_sparse_tensors")
    skip_factor = options.get(FACTOR)
    if are_tiles(blocks, tensors.q_descale, skip_factor):
        return {}
    if contents:
        rows = {n: x.detach() for n, x in tensors.named(ROWS).items() if torch.is_tensor(x)}
        if autocast.is_any_enabled():
            rows |= zip("qkv", autocast.cast(*(rows.get(name) for name in "qkv")), strict=True)
        sizes = {name: options[name] for name in _OF_WHERE if name in options}
        where = checked(tensors._replace(**rows), **sizes)  # gradients are checked later
    else:
        where = without_checks(tensors, options)
    score_mod, mask_mod = options["score_mod"], options["mask_mod"]
    reads = score_mod is not None or mask_mod is not None
    aux = checked_aux(options["aux_tensors"], tensors.q.device, reads, gradients=True)
    invariant = policy.batch_invariant(options.get("batch_invariant"))
    of_tiles = has_two_tiles(tensors.q_descale, skip_factor), invariant
    lists, kinds = tiles_of(Lists(found, blocks), where, mask_mod is not None, of_tiles, contents)
    return {
        "block_sparse_tensors": lists,
        "score_mod": counted_from_first(score_mod, len(aux)),
        "mask_mod": with_kinds(mask_mod, len(aux), blocks.queries),
        "aux_tensors": (*aux, kinds),
    }


_OF_WHERE = ("max_seqlen_q", "max_seqlen_k", "seqused_k_excludes_new", "kv_layout")


def without_checks(tensors: CallTensors, options: Mapping) -> Where:
    """What `checked` returns for a call whose operator checks it: a compiler cannot trace checks of addresses."""
    q, k, v, out = tensors.of(ROWS)
    check_tensors(q, k, v, out, gradients=True)
    if tensors.page_table is not None:
        k, v = pages_rows_first(tensors.k, tensors.v, options["kv_layout"])
        tensors = tensors._replace(k=k, v=v)
    of_q, of_k = (options.get(name) for name in _OF_WHERE[:2])
    if tensors.q_layout == "packed":
        of_q = tensors.q.shape[0] if of_q is None else min(of_q, tensors.q.shape[0])
    return Where(tensors, bool(options.get("seqused_k_excludes_new")), of_q or 0, of_k or 0)


def tiles_of(
    lists: Lists, where: Where, hides: bool, of_tiles: tuple[bool, bool], contents: bool
) -> tuple:
    """-> (lists of tiles, kinds, which the mask_mod of blueprint/small_blocks.py reads).

    hides      whether a mask_mod hides keys of partial blocks
    of_tiles   two_tiles and invariant of blueprint/small_blocks.py
    contents   as in_tiles takes it
    """
    conversion = conversion_of(lists, where, hides, of_tiles, contents)
    return conversion.lists(conversion.run())


class Conversion(NamedTuple):
    """Lists of small blocks, and the sizes for which they become lists of tiles. Checked.

    tile_q    queries of a tile
    in_order  all tiles are partial ones, in ascending order: lists of other blocks in a tile do not change it
    """

    given: Lists
    queries: Side
    keys: Side
    batch: int
    hides: bool
    tile_q: int
    in_order: bool = False

    @property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of a tile."""
        return self.tile_q, LISTED_BLOCK

    @property
    def of_tiles(self) -> tuple[Lists, tuple[Side, Side], int, int]:
        """Parameters of empty_tiles."""
        return self.given, (self.queries, self.keys), self.batch, self.tile[0]

    def run(self) -> tuple:
        """The tensors of lists of tiles, and kinds."""
        return tiles_and_units(self.of_tiles, self.hides, self.in_order)

    def lists(self, results: tuple) -> tuple:
        """What tiles_of returns. results: of `run`."""
        return BlockSparseTensors(*results[:4])._replace(block_size=self.tile), results[4]


def conversion_of(
    lists: Lists, where: Where, hides: bool, of_tiles: tuple[bool, bool], contents: bool
) -> Conversion:
    """The parameters are those of tiles_of."""
    (two_tiles, invariant), blocks = of_tiles, lists.blocks
    tensors = where.tensors._replace(**lists.tensors)
    checked_blocks(tensors, blocks, where, contents)
    queries, keys = Side(where.seqlen_q(tensors.q)), _keys(tensors, where, contents)
    tile_q = tile_of(blocks.queries, two_tiles, invariant)
    in_order = invariant and blocks.queries % tile_q != 0
    return Conversion(lists, queries, keys, where.batch(tensors.q), hides, tile_q, in_order)


def _keys(tensors: CallTensors, where: Where, contents: bool) -> Side:
    k, offsets, used = tensors.k, tensors.cu_seqlens_k, tensors.seqused_k
    longest, lengths = k.shape[1], None
    if tensors.page_table is not None:
        longest = longest * tensors.page_table.shape[1]
    elif offsets is not None:
        longest, lengths = k.shape[0], offsets.diff()
        if where.max_seqlen_k:
            longest = min(longest, where.max_seqlen_k)
        known = longest_of(offsets) if contents else None
        longest = longest if known is None else known
    if used is not None:
        lengths = used
        if where.excludes_new:
            rows = (
                tensors.q.shape[1] if tensors.cu_seqlens_q is None else tensors.cu_seqlens_q.diff()
            )
            lengths = used + (rows if tensors.seqused_q is None else tensors.seqused_q)
    return Side(max(longest, 1), lengths)
