"""Lists of key blocks: block_sparse_tensors= of a call, checked by metadata.

On the CPU the contents are checked, too. On CUDA they are not read: the kernel clips them, so that wrong contents give
wrong results, never an access outside a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import NamedTuple

import torch

from cute_fa4.block_sparsity import COUNTS, DEFAULT_BLOCK_SIZE, ENTRIES, BlockSparseTensors
from cute_fa4.calls.operands.lengths import check_index_tensor, keys_of, queries_of
from cute_fa4.calls.operands.scale_views import are_of_blocks
from cute_fa4.calls.request import Choices, Where
from cute_fa4.operands import BLOCKS, NAMES, OFFSETS, ROPE, CallTensors, axes_of_list
from cute_fa4.sm100.blueprint import small_blocks
from cute_fa4.sm100.blueprint.small_blocks import UNIT

PLACES = ("cu_total_m_blocks", "cu_block_idx_offsets")


class Blocks(NamedTuple):
    """Sizes of the listed blocks, and which tensors are given.

    full     lists of full blocks
    packed   cu_total_m_blocks: lists follow one another, those of a sequence together
    offsets  cu_block_idx_offsets: where the entries of a sequence begin
    """

    queries: int
    keys: int
    full: bool = False
    packed: bool = False
    offsets: bool = False

    @property
    def fields(self) -> dict:
        """Fields of a configuration."""
        of_tensors = {"packed_lists": self.packed, "list_offsets": self.offsets}
        sizes = {"q_block": self.queries, "kv_block": self.keys}
        return sizes | of_tensors | {"full_blocks": self.full}


def has_two_tiles(q_descale, skip_factor) -> bool:
    """Whether the only kernel with lists of such a call has two query tiles in a CTA (two_tiles of small_blocks.py)."""
    return are_of_blocks(q_descale) or skip_factor is not None


def are_tiles(blocks: Blocks, q_descale, skip_factor) -> bool:
    """Whether the kernels of such a call have blocks of these sizes."""
    two_tiles = has_two_tiles(q_descale, skip_factor)
    return small_blocks.are_tiles(blocks.queries, blocks.keys, two_tiles)


def taken(lists) -> dict:
    """The arguments of a call by name for its block_sparse_tensors: the tensors, and the sizes in their place."""
    lists = BlockSparseTensors.of(lists)
    if (lists.full_block_cnt is None) != (lists.full_block_idx is None):
        raise ValueError(
            "block_sparse_tensors.full_block_cnt, full_block_idx: one of them is None; accepted: both or neither"
        )
    found = {name: getattr(lists, name) for name in NAMES[BLOCKS]}
    return found | {"block_sparse_tensors": _blocks_of(found, _size(lists.block_size))}


def _blocks_of(tensors: dict, size: tuple[int, int]) -> Blocks:
    """tensors: those of lists, by name."""
    return Blocks(*size, *(tensors[name] is not None for name in ("full_block_cnt", *PLACES)))


def of_operator(call: Mapping) -> Blocks | None:
    """The sizes of a call of an operator, by the names of its arguments; None: it has no lists."""
    found = {name: call.get(name) for name in NAMES[BLOCKS]}
    if all(tensor is None for tensor in found.values()):
        return None
    return _blocks_of(found, _size(call["block_size"] or None))


def with_lists(tensors: CallTensors, asked: tuple, found: dict) -> tuple:
    """-> (tensors, asked) of a call with lists. asked: as repeat.attend takes it; found: from `taken`."""
    sizes = {"block_sparse_tensors": found["block_sparse_tensors"]}
    window_size, numbers, choices = asked
    asked = window_size, numbers, tuple(Choices(*choices)._replace(**sizes))
    return tensors._replace(**{name: found[name] for name in NAMES[BLOCKS]}), asked


def _size(size) -> tuple[int, int]:
    if size is None:
        return DEFAULT_BLOCK_SIZE
    try:
        queries, keys = map(index, size)
    except (TypeError, ValueError):
        raise TypeError(
            f"block_sparse_tensors.block_size: {size!r}; accepted: (queries, keys), two ints, or None"
        ) from None
    if min(queries, keys) < 1 or queries % UNIT or keys % UNIT:
        raise ValueError(
            f"block_sparse_tensors.block_size: {(queries, keys)}; accepted: multiples of {UNIT}, such as "
            f"{DEFAULT_BLOCK_SIZE}; combine smaller blocks, and hide the rest by mask_mod"
        )
    return queries, keys


def checked_blocks(
    tensors: CallTensors, blocks: Blocks | None, where: Where, contents: bool = True
) -> Blocks | None:
    """The sizes of a call's lists, which fit its q and k.

    contents: on the CPU they are checked, too; without it, the longest sequence of packed queries is not known
    """
    if blocks is None:
        return None
    q, k = tensors.q, tensors.k
    if k.dtype != q.dtype:
        raise NotImplementedError(
            f"block_sparse_tensors: with q of {q.dtype} and k of {k.dtype}; accepted: q, k and v of one dtype; "
            "with many queries, q_quantize=None quantizes q as k"
        )
    if tensors.has(ROPE):
        raise NotImplementedError(
            "block_sparse_tensors: with k_rope; accepted: None, with k that has all columns"
        )
    for name, tensor in tensors.named(BLOCKS).items():
        if tensor is not None:
            _check_list(name, tensor, q, blocks, where)
            if not (blocks.packed or name in PLACES) and (contents or where.q_layout == "dense"):
                _check_query_blocks(name, tensor, q, blocks, where)
        elif name in NAMES[BLOCKS][:2]:
            raise TypeError(f"block_sparse_tensors.{name}: None; accepted: a torch.Tensor")
    _check_offsets(tensors, where)
    if contents and q.device.type == "cpu" and q.numel() and where.batch(q):
        check_contents(tensors, blocks, where)
    return blocks


def _check_list(name: str, tensor, q, blocks: Blocks, where: Where) -> None:
    """A tensor of lists, by metadata."""
    axes, batch = axes_of_list(name, blocks.packed), where.batch(q)
    check_index_tensor(f"block_sparse_tensors.{name}", tensor, len(axes), q.device, axes)
    said = f"block_sparse_tensors.{name}: shape {tuple(tensor.shape)}"
    if axes == OFFSETS:
        if tensor.shape[0] != batch + 1:
            raise ValueError(f"{said}; accepted: ({batch + 1},), batch + 1")
        return
    for axis, most in (("batch", batch), ("heads", q.shape[-2])):
        if axis in axes and tensor.shape[axes.index(axis)] not in (1, most):
            raise ValueError(f"{said}; accepted: {axis} {most} as q, or 1 for all")
    if tensor.shape[-1] < 1 and q.numel():
        raise ValueError(f"{said}; accepted: room for one entry or more; counts may be 0")


def _check_query_blocks(name: str, tensor, q, blocks: Blocks, where: Where) -> None:
    """Padded lists have one for each block of queries of the longest sequence."""
    found = tensor.shape[2]
    longest, of = where.seqlen_q(q), "q has"
    if where.q_layout == "packed":
        longest, of = where.max_seqlen_q, "the longest sequence may have"
    needed = -(-longest // blocks.queries)
    if found == needed or (where.q_layout == "packed" and found > needed):
        return
    remedy = "block_size says how many queries a block has"
    if where.q_layout == "packed":
        remedy += ", max_seqlen_q how many the longest sequence has"
    raise ValueError(
        f"block_sparse_tensors.{name}: shape {tuple(tensor.shape)} while {of} {longest} queries in blocks of "
        f"{blocks.queries}; accepted: {needed} query blocks; {remedy}"
    )


def _check_offsets(tensors: CallTensors, where: Where) -> None:
    """The places of packed lists."""
    if tensors.cu_total_m_blocks is None and tensors.cu_block_idx_offsets is not None:
        raise ValueError(
            "block_sparse_tensors.cu_block_idx_offsets: given without cu_total_m_blocks; accepted: both, for packed "
            "lists, or neither"
        )
    differ = where.tensors.cu_seqlens_k is not None or where.tensors.seqused_k is not None
    if tensors.cu_total_m_blocks is not None and tensors.cu_block_idx_offsets is None and differ:
        raise ValueError(
            "block_sparse_tensors.cu_block_idx_offsets: None with cu_seqlens_k or seqused_k, where sequences may have "
            "different numbers of key blocks; accepted: where the entries of each sequence begin, (batch + 1,)"
        )


def check_contents(tensors: CallTensors, blocks: Blocks, where: Where) -> None:
    """CPU tensors only. ValueError for a count beyond its list, for no key block, and for one that is listed twice.

    Lists of query blocks that a sequence does not have may be anything.
    """
    q, k = tensors.q, tensors.k
    batch, queries = where.batch(q), queries_of(q, where)
    of_queries = (queries.long() + blocks.queries - 1) // blocks.queries
    of_keys = (keys_of(q, k, where).long() + blocks.keys - 1) // blocks.keys
    most = int(of_keys.max()) if batch else 0
    if where.tensors.cu_seqlens_k is None:
        table = where.tensors.page_table
        most = -(-k.shape[1] * (1 if table is None else table.shape[1]) // blocks.keys)
    exists = torch.arange(max(int(of_queries.max()), 1)) < of_queries[:, None]
    seen = None
    for names in zip(COUNTS, ENTRIES, strict=True):
        given = [getattr(tensors, name) for name in names]
        if given[0] is None or given[0].numel() == 0:
            continue
        room = torch.full((batch,), given[1].shape[-1])
        if blocks.packed:
            given, room = _padded(tensors, given, of_queries, of_keys), of_keys
        counts, entries = (x[:, :, : exists.shape[1]].long() for x in given)
        found = _times(names, counts, entries, (exists[:, None], room), most)
        seen = found if seen is None else seen + found
        if (seen > 1).any():
            twice = int((seen > 1).nonzero()[0][-1])
            raise ValueError(
                f"block_sparse_tensors.{names[1]}: {twice} stands twice for a block of queries, and its keys would "
                "count twice; accepted: each key block once, in one of the lists"
            )


def _times(names: tuple, counts, entries, limits: tuple, key_blocks: int) -> torch.Tensor:
    """How often each key block is listed, (batch, heads, query blocks, key blocks).

    limits: which query blocks exist, (batch, 1, query blocks), and how many entries a list of a sequence may have
    """
    exists, room = limits
    counts = torch.where(exists, counts, 0)
    beyond = counts > room[:, None, None]
    if int(counts.min()) < 0 or beyond.any():
        at = beyond.nonzero()[0] if beyond.any() else (counts < 0).nonzero()[0]
        raise ValueError(
            f"block_sparse_tensors.{names[0]}: {int(counts[tuple(at)])}; accepted: 0 to {int(room[at[0]])}, the "
            "entries of a list"
        )
    places = torch.arange(entries.shape[-1])
    heads = max(counts.shape[1], entries.shape[1])
    counts = counts.expand(-1, heads, -1)
    entries = entries.expand(counts.shape[0], heads, -1, -1)
    listed = places < counts[..., None]
    wrong = listed & ((entries < 0) | (entries >= key_blocks))
    if wrong.any():
        raise ValueError(
            f"block_sparse_tensors.{names[1]}: {int(entries[wrong][0])}; accepted: 0 to {key_blocks - 1}, the key "
            "blocks of a sequence"
        )
    times = torch.zeros((*counts.shape, key_blocks), dtype=torch.long)
    return times.scatter_add(-1, entries.clamp(0, max(key_blocks - 1, 0)), listed.long())


def _padded(tensors: CallTensors, lists: list, of_queries, of_keys) -> list[torch.Tensor]:
    """Packed counts and entries as padded ones. ValueError for lists beyond their tensors.

    of_queries, of_keys: blocks of each sequence
    """
    places = tensors.cu_total_m_blocks, tensors.cu_block_idx_offsets
    first, begins = _first_of_each(places, of_keys)
    sizes = (first, of_queries), (begins, of_queries * of_keys)
    for name, (begin, number), rows in zip(PLACES, sizes, lists, strict=True):
        wrong = (number > 0) & ((begin < 0) | (begin + number > rows.shape[-1]))
        if wrong.any():
            b = int(wrong.nonzero()[0])
            raise ValueError(
                f"block_sparse_tensors.{name}: {int(begin[b])} for sequence {b}, whose lists take {int(number[b])}; "
                f"accepted: places in the {rows.shape[-1]} that there are"
            )
    most = (max(int(number.max()), 1) for number in (of_queries, of_keys))
    return padded(places, lists, of_keys, tuple(most))


def padded(places: tuple, lists: Sequence, of_keys, most: tuple[int, ...]) -> list[torch.Tensor]:
    """Packed counts and entries as padded ones, without waiting for the device.

    places: cu_total_m_blocks, cu_block_idx_offsets or None; of_keys: key blocks of each sequence; most: query blocks
    and entries that every sequence is given. Those that a sequence does not have are any of the tensors.
    """
    first, begins = _first_of_each(places, of_keys)
    query_blocks, entries = (torch.arange(n, device=of_keys.device) for n in most)
    of_counts = (first[:, None] + query_blocks).clamp(0, lists[0].shape[-1] - 1)
    of_entries = (begins[:, None] + query_blocks * of_keys[:, None])[..., None] + entries
    of_entries = of_entries.clamp(0, lists[1].shape[-1] - 1)
    return [lists[0][:, of_counts].transpose(0, 1), lists[1][:, of_entries].transpose(0, 1)]


def _first_of_each(places: tuple, of_keys) -> tuple[torch.Tensor, torch.Tensor]:
    """The first count and the first entry of each sequence in packed lists."""
    first, begins = places
    first = first.long()[:-1]
    return first, first * of_keys if begins is None else begins.long()[:-1]
