"""Lists of key blocks for `block_sparse_tensors=` of the attention functions.

    BlockSparseTensors    the lists of a call, with the names that flash-attn-4 has for them
    block_mask            the lists of a mask_mod, which is evaluated for every query and key

A block of queries sees the key blocks of its two lists and no others. mask_mod says which keys of a partial block are
visible; of a full block all are, and mask_mod is not evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cute_fa4.sm100.blueprint.captured import joined
from cute_fa4.sm100.blueprint.listed import FULL, PARTIAL
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.traced.trace import Traced

__all__ = ["DEFAULT_BLOCK_SIZE", "BlockSparseTensors", "block_mask"]

DEFAULT_BLOCK_SIZE = (256, 128)  # queries, keys: of flash-attn-4 on Blackwell
COUNTS, ENTRIES = ("mask_block_cnt", "full_block_cnt"), ("mask_block_idx", "full_block_idx")
SCORES_AT_ONCE = 1 << 24  # of one step of block_mask: its integers take 128 MiB each


class BlockSparseTensors(NamedTuple):
    """The key blocks of every block of queries, int32 tensors. Any object with these attributes is accepted.

    mask_block_cnt   (batch, heads, query blocks): the number of partial blocks; batch and heads may be 1, for all
    mask_block_idx   (batch, heads, query blocks, n): which ones, in any order; entries from the count on are not read
    full_block_cnt, full_block_idx   the same for full blocks; None: there are none
    block_size       (queries, keys) of a block, multiples of 16; None: DEFAULT_BLOCK_SIZE
    cu_total_m_blocks   (batch + 1,): lists are packed, counts (heads, query blocks of all sequences) and entries
                     (heads, entries of all lists); the first query block of each sequence. None: as above
    cu_block_idx_offsets   (batch + 1,): the entries of sequence b begin at this place; each of its lists has room for
                     all key blocks of the sequence. None: all sequences have as many keys
    dq_write_order, dq_write_order_full, spt   of the backward pass in flash-attn-4; not read
    """

    mask_block_cnt: torch.Tensor
    mask_block_idx: torch.Tensor
    full_block_cnt: torch.Tensor | None = None
    full_block_idx: torch.Tensor | None = None
    cu_total_m_blocks: torch.Tensor | None = None
    cu_block_idx_offsets: torch.Tensor | None = None
    block_size: tuple[int, int] | None = None
    dq_write_order: Any = None
    dq_write_order_full: Any = None
    spt: Any = None

    @classmethod
    def of(cls, lists: Any) -> BlockSparseTensors:
        """The lists of an object with these attributes. TypeError for another object."""
        if isinstance(lists, cls):
            return lists
        if not all(hasattr(lists, name) for name in (COUNTS[0], ENTRIES[0])):
            kind = type(lists).__name__
            raise TypeError(
                f"block_sparse_tensors: {'an' if kind[0] in 'aeiou' else 'a'} {kind}; accepted: a "
                f"cute_fa4.BlockSparseTensors, or an object with its attributes {COUNTS[0]}, {ENTRIES[0]}, ..."
            )
        return cls(*(getattr(lists, name, None) for name in cls._fields))

    @classmethod
    def from_flex(cls, mask) -> BlockSparseTensors:
        """The lists of FlexAttention's BlockMask, as they are: nothing is copied, and the device is not waited for.

        The call also needs mask_mod=mask.mask_mod, which says what is visible in partial blocks.
        """
        if not (hasattr(mask, "kv_num_blocks") and hasattr(mask, "BLOCK_SIZE")):
            raise TypeError(
                f"mask: a {type(mask).__name__}; accepted: a torch.nn.attention.flex_attention.BlockMask"
            )
        lists = mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices
        return cls(*lists, block_size=tuple(mask.BLOCK_SIZE))

    @classmethod
    def from_bsr(
        cls,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        block_size: tuple[int, int],
        seqlen_k: int,
        group: int = 1,
    ) -> BlockSparseTensors:
        """The lists of a matrix in block compressed rows (BSR), as FlashInfer takes it, made on the device.

        indptr    (query blocks + 1,) int32, for all heads, or (batch, heads, query blocks + 1): the key blocks of
                  query block m are indices[indptr[m] : indptr[m + 1]]
        indices   (entries,) int32
        seqlen_k  keys of a sequence: a list has room for all of their blocks
        group     4 where heads of indptr are key-value heads, of which each has 4 query heads

        ValueError for other shapes. Entries of rows beyond `indices` are not checked, and may be any block.
        """
        if indptr.dim() not in (1, 3) or indptr.shape[-1] < 2 or indices.dim() != 1:
            raise ValueError(
                f"indptr, indices: shapes {tuple(indptr.shape)}, {tuple(indices.shape)}; accepted: indptr of (query "
                "blocks + 1,) or (batch, heads, query blocks + 1), indices of (entries,)"
            )
        if indptr.dim() == 1:
            indptr = indptr[None, None]
        indptr = indptr.repeat_interleave(group, dim=1)
        room = -(-seqlen_k // block_size[1])
        at = indptr[..., :-1, None].long() + torch.arange(room, device=indptr.device)
        none = indices.new_zeros(1)  # where there are no entries at all
        found = torch.cat((indices, none))[at.clamp(0, indices.shape[0])]
        return cls(indptr.diff().int(), found.int(), block_size=block_size)

    @classmethod
    def from_indices(
        cls,
        index: torch.Tensor,
        counts: torch.Tensor | int,
        block_size: tuple[int, int],
        group: int = 1,
    ) -> BlockSparseTensors:
        """The lists of cuDNN's block sparse attention: q2k_block_index with q2k_block_nums or block_sparse_num.

        index   (batch, heads, query blocks, n) int32; entries from the count on are not read
        counts  (batch, heads, query blocks) int32, or one number for all blocks
        group   as in from_bsr
        """
        if not isinstance(counts, torch.Tensor):
            counts = torch.full(index.shape[:-1], counts, dtype=torch.int32, device=index.device)
        lists = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (counts, index))
        return cls(*lists, block_size=block_size)


def block_mask(
    mask_mod,
    batch: int,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    block_size: tuple[int, int] = DEFAULT_BLOCK_SIZE,
    aux_tensors=(),
    device=None,
) -> BlockSparseTensors:
    """The lists of a mask_mod: full blocks, of which it hides nothing, and partial ones.

    Exact: it is evaluated for every query and key, on the device and without waiting for it. A call with these lists
    and this mask_mod returns what the call with mask_mod alone returns, and visits fewer key tiles. Queries and keys
    that do not exist are left out: a last block may be full.

    batch, heads   1 where mask_mod does not depend on them: the lists are then those of all
    aux_tensors    of mask_mod, which may capture tensors, too
    device         of the lists; None: that of aux_tensors, or torch's default
    """
    mod = ScoreMod.of(mask_mod, "mask_mod")
    aux = tuple(aux_tensors or ())
    if mod is None or not isinstance(mod.function, Traced):
        raise TypeError(
            f"mask_mod: {mask_mod!r}; accepted: a function of (batch, head, q_idx, kv_idx)"
        )
    check_rows = mod.check
    mods, aux = joined({"mask_mod": mod}, aux)
    mod = mods["mask_mod"]
    mod.function.check(aux)
    queries, keys = block_size
    sizes = {"batch": batch, "heads": heads, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k}
    for name, number in (sizes | {"block_size[0]": queries, "block_size[1]": keys}).items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name}: {number!r}; accepted: an int of at least 1")
    if check_rows is not None:
        check_rows(aux, batch, heads, batch * seqlen_q)
    if device is None:
        device = aux[0].device if aux else torch.get_default_device()
    grid = _Grid(mod.function, aux, seqlen_q, seqlen_k, queries, keys, torch.device(device))
    kinds = torch.stack(
        [torch.stack([grid.kinds(b, h) for h in range(heads)]) for b in range(batch)]
    )
    partial, full = (listed(kinds == kind) for kind in (PARTIAL, FULL))
    return BlockSparseTensors(*partial, *full, block_size=(queries, keys))


@dataclass(frozen=True)
class _Grid:
    """The queries and keys of one sequence and head, for which a function is evaluated. queries, keys: of a block."""

    function: Traced
    aux: tuple
    seqlen_q: int
    seqlen_k: int
    queries: int
    keys: int
    device: torch.device

    def kinds(self, batch: int, head: int) -> torch.Tensor:
        """(query blocks, key blocks): 0, PARTIAL or FULL."""
        each = max(1, SCORES_AT_ONCE // max(1, self.queries * self.seqlen_k)) * self.queries
        steps = [range(at, min(at + each, self.seqlen_q)) for at in range(0, self.seqlen_q, each)]
        return torch.cat([self._kinds(batch, head, rows) for rows in steps])

    def _kinds(self, batch: int, head: int, rows: range) -> torch.Tensor:
        """The same of some rows, the first of which begins a block."""
        q_idx = torch.arange(rows.start, rows.stop, device=self.device)[:, None]
        kv_idx = torch.arange(self.seqlen_k, device=self.device)
        facts = {
            "position": q_idx + self.seqlen_k - self.seqlen_q,
            "q_row": batch * self.seqlen_q + q_idx,
            "seqlen_q": self._number(self.seqlen_q),
            "num_keys": self._number(self.seqlen_k),
        }
        places = self._number(batch), self._number(head), q_idx, kv_idx
        shown = self.function.on_tensors(*places, aux=self.aux, **facts) != 0
        shown = shown.to(self.device).expand(len(rows), self.seqlen_k)
        some, all_shown = self._blocks(shown, False).any(-1), self._blocks(shown, True).all(-1)
        return some.any(1) * (PARTIAL + all_shown.all(1) * (FULL - PARTIAL))

    def _number(self, number: int) -> torch.Tensor:
        return torch.full((), number, device=self.device)

    def _blocks(self, shown: torch.Tensor, beyond: bool) -> torch.Tensor:
        """(query blocks, queries, key blocks, keys); beyond: of queries and keys that do not exist."""
        sizes = self.queries, self.keys
        q_pad, k_pad = (-n % size for n, size in zip(shown.shape, sizes, strict=True))
        padded = torch.nn.functional.pad(shown, (0, k_pad, 0, q_pad), value=beyond)
        return padded.unflatten(1, (-1, self.keys)).unflatten(0, (-1, self.queries))


def listed(is_kind: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-> counts and entries: the blocks of a kind in ascending order, then the others."""
    entries = torch.argsort(~is_kind, dim=-1, stable=True)
    return is_kind.sum(-1, dtype=torch.int32), entries.to(torch.int32)
