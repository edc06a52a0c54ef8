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

import torch

from cute_fa4.block_sparsity import BlockSparseTensors, listed
from cute_fa4.calls.block_lists import Lists, Side, kinds_of_blocks
from cute_fa4.calls.operands import autocast
from cute_fa4.calls.operands.blocks import checked_blocks, taken, with_lists
from cute_fa4.calls.operands.lengths import longest_of
from cute_fa4.calls.operands.tensors import check_tensors
from cute_fa4.calls.operands.tracing import is_traced
from cute_fa4.calls.options import checked_aux
from cute_fa4.calls.prepare import checked, pages_rows_first
from cute_fa4.calls.request import Choices, Numbers, Where
from cute_fa4.operands import ROWS, CallTensors
from cute_fa4.sm100.blueprint.listed import FULL, LISTED_BLOCK, PARTIAL
from cute_fa4.sm100.blueprint.small_blocks import (
    UNIT,
    UNITS,
    counted_from_first,
    with_kinds,
)


def with_lists_of_tiles(tensors: CallTensors, asked: tuple, given: dict) -> tuple:
    """-> (tensors, asked, given) of a call, with its lists as the kernels have them.

    asked  as repeat.attend takes it; given: other options by name, of which functions capture no tensors
    """
    lists = given.get("block_sparse_tensors")
    if lists is None:
        return tensors, asked, given
    found = taken(lists)
    if found["block_sparse_tensors"].are_tiles:
        return *with_lists(tensors, asked, found), given
    window_size, numbers, choices = asked
    options = Numbers(*numbers)._asdict() | Choices(*choices)._asdict() | given
    options["aux_tensors"] = tensors.aux_tensors
    made = in_tiles(tensors, options, contents=not is_traced(tensors.q))
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
    if blocks.are_tiles:
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
    lists, kinds = tiles_of(Lists(found, blocks), where, mask_mod is not None, contents)
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


def tiles_of(lists: Lists, where: Where, hides: bool, contents: bool = False) -> tuple:
    """-> (lists of tiles, kinds, which the mask_mod of blueprint/small_blocks.py reads).

    hides     whether a mask_mod hides keys of partial blocks
    contents  as in_tiles takes it
    """
    blocks, tensors = lists.blocks, where.tensors._replace(**lists.tensors)
    checked_blocks(tensors, blocks, where, contents)
    queries, keys = Side(where.seqlen_q(tensors.q)), _keys(tensors, where, contents)
    kinds = kinds_of_blocks(lists, queries, keys, where.batch(tensors.q))
    if not hides:
        kinds = (kinds > 0).to(kinds.dtype) * FULL
    tile = (256 if blocks.queries % 256 == 0 else LISTED_BLOCK), LISTED_BLOCK
    of_tiles = _tiles(kinds, tile, (blocks.queries, blocks.keys), (queries.longest, keys.longest))
    partial, full = (listed(of_tiles == kind) for kind in (PARTIAL, FULL))
    made = BlockSparseTensors(*partial, *full, block_size=tile)
    return made, _bytes(kinds, blocks.keys, of_tiles.shape[3])


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


def _tiles(kinds: torch.Tensor, tile: tuple, block: tuple, rows: tuple) -> torch.Tensor:
    """Kinds of tiles: FULL where all of their blocks are, absent where none is listed."""
    # The greatest of each says whether one is listed, and whether one is not full.
    both = torch.stack((kinds, FULL - kinds))
    for dim, *sizes in zip((3, 4), tile, block, rows, strict=True):
        both = _greatest(both, dim, *sizes)
    some, rest = both.unbind()
    return (some > 0) * (PARTIAL + (rest == 0) * (FULL - PARTIAL))


def _greatest(values: torch.Tensor, dim: int, tile: int, block: int, rows: int) -> torch.Tensor:
    """Of the blocks that have a row of each tile of some rows, along a dimension. values: from 0 on."""
    if block % tile == 0:
        return values.repeat_interleave(block // tile, dim).narrow(dim, 0, -(-rows // tile))
    if tile % block == 0:
        last = [0] * (2 * (values.dim() - 1 - dim)) + [0, -values.shape[dim] % (tile // block)]
        return (
            torch.nn.functional.pad(values, last).unflatten(dim, (-1, tile // block)).amax(dim + 1)
        )
    first = torch.arange(-(-rows // tile), device=values.device) * tile
    at = (first // block)[:, None] + torch.arange((tile - 1) // block + 2, device=values.device)
    last_block = (first + tile - 1).clamp(max=rows - 1) // block
    at = torch.minimum(at, last_block[:, None])
    return values.index_select(dim, at.flatten()).unflatten(dim, at.shape).amax(dim + 1)


def _bytes(kinds: torch.Tensor, keys: int, tiles: int) -> torch.Tensor:
    """kinds as blueprint/small_blocks.py describes them, for all keys of `tiles` key tiles."""
    of_byte = UNIT * UNITS
    if keys % of_byte == 0:
        found = (kinds.to(torch.uint8) * 0b01010101).repeat_interleave(keys // of_byte, -1)
    else:
        units = kinds.to(torch.uint8).repeat_interleave(keys // UNIT, -1)
        units = torch.nn.functional.pad(units, (0, -units.shape[-1] % UNITS)).unflatten(
            -1, (-1, UNITS)
        )
        found = (units << 2 * torch.arange(UNITS, device=kinds.device)).sum(-1).to(torch.uint8)
    wanted = tiles * LISTED_BLOCK // of_byte
    return torch.nn.functional.pad(found, (0, wanted - found.shape[-1])).contiguous()
