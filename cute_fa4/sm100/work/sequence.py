"""Location and length of a CTA's sequence: dense, packed or paged, with the rules of positions.

    queries     dense (batch, seqlen_q, ...)      first row 0, length seqlen_q or seqused_q[b]
                packed (total_q, ...)             first row cu_seqlens_q[b], length up to the next, or seqused_q[b]
    keys        dense                             length seqlen_k or seqused_k[b]
                packed (total_k, ...)             first row cu_seqlens_k[b], length likewise
                paged                             length seqused_k[b], rows through the page table
    keys, where the cache length does not count the new tokens: seqused_k[b] + the number of queries
    rows of a cache                               those of batch b, or of cache_batch_idx[b]
                with left padding                 from cache_leftpad[b] on: the first of them is key 0

Query i is at position i + (keys - queries): the last query sees every key (bottom-right). `key_limit` limits the
visible keys without moving positions (padding masks).

The host does not read these tensors, so their values are clamped to the rows that exist: wrong offsets give wrong
results, never an access outside a tensor.
"""

from dataclasses import dataclass, fields

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum


@dataclass(frozen=True)
class Sequence:
    """One sequence of the batch. All numbers are rows or keys, Int32."""

    batch: Int32
    q_first_row: Int32  # of a packed tensor; 0 otherwise
    seqlen_q: Int32
    k_first_row: Int32  # of a packed tensor, or of a cache with left padding; 0 otherwise
    num_keys: Int32
    key_limit: Int32

    @staticmethod
    def empty() -> "Sequence":
        """A sequence without queries and keys."""
        zero = Int32(0)
        return Sequence(zero, zero, zero, zero, zero, zero)

    def position(self, q_index):
        """Position of a query in key coordinates."""
        return q_index + (self.num_keys - self.seqlen_q)

    def uniform(self) -> "Sequence":
        """The same; the compiler knows that all lanes of the warp hold the same values."""
        return Sequence(*(cute.arch.make_warp_uniform(getattr(self, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class Lengths:
    """Device tensors (int32) that say where sequences begin and end; None where the layout does not need them."""

    cu_seqlens_q: cute.Tensor | None = None  # (batch + 1,)
    cu_seqlens_k: cute.Tensor | None = None  # (batch + 1,)
    seqused_q: cute.Tensor | None = None  # (batch,)
    seqused_k: cute.Tensor | None = None  # (batch,)
    key_limit: cute.Tensor | None = None  # (batch,)
    total_q: Int32 | None = None  # rows of packed queries
    new_keys: Int32 | int = 0  # for each query, which seqused_k does not count: 0 or 1
    cache_batch_idx: cute.Tensor | None = None  # (batch,): of the cache or the page table
    cache_leftpad: cute.Tensor | None = None  # (batch,)
    cache_batch: Int32 | None = None  # sequences that the cache or the page table has

    @property
    def queries_are_packed(self) -> bool:
        return self.cu_seqlens_q is not None

    def cache_row(self, batch):
        """The sequence of the cache, or of the page table, that a sequence of the batch uses."""
        return batch if self.cache_batch_idx is None else self.cache_batch_idx[batch]


def between(offsets, batch, rows):
    """-> (first row, number of rows) of a sequence in a packed tensor of `rows` rows."""
    first = minimum(maximum(offsets[batch], 0), rows)
    end = maximum(minimum(offsets[batch + 1], rows), first)
    return first, end - first


def queries(lengths: Lengths, batch, seqlen_q):
    """-> (first row, number of queries) of a sequence; seqlen_q: of dense queries."""
    first, number = Int32(0), seqlen_q
    if lengths.cu_seqlens_q is not None:
        first, number = between(lengths.cu_seqlens_q, batch, lengths.total_q)
    if lengths.seqused_q is not None:
        number = minimum(number, maximum(lengths.seqused_q[batch], 0))
    return first, number


@cute.jit
def find_sequence(
    cfg: cutlass.Constexpr, lengths: Lengths, batch: Int32, seqlen_q: Int32, seqlen_k: Int32
):
    """The sequence of `batch`; seqlen_q, seqlen_k: extents of dense tensors; for packed keys, all rows."""
    q_first_row, number = queries(lengths, batch, seqlen_q)
    k_first_row, keys = Int32(0), seqlen_k
    if cutlass.const_expr(lengths.cu_seqlens_k is not None):
        k_first_row, keys = between(lengths.cu_seqlens_k, batch, seqlen_k)
    if cutlass.const_expr(lengths.seqused_k is not None):
        # Clamped to the capacity of the tensor or page table, before the sum, which must not overflow.
        used = minimum(maximum(lengths.seqused_k[batch], 0), keys)
        used = used + number * lengths.new_keys
        keys = minimum(keys, used)
    if cutlass.const_expr(lengths.cache_batch_idx is not None):
        row = lengths.cache_row(batch)
        keys = choose((row >= 0) & (row < lengths.cache_batch), keys, 0)
    if cutlass.const_expr(lengths.cache_leftpad is not None):
        k_first_row = minimum(maximum(lengths.cache_leftpad[batch], 0), keys)
        keys = keys - k_first_row
    limit = keys
    if cutlass.const_expr(lengths.key_limit is not None):
        last = lengths.key_limit[batch]
        if cutlass.const_expr(lengths.cache_leftpad is not None):
            last = maximum(last, 0) - k_first_row
        limit = minimum(keys, last)
    return Sequence(batch, q_first_row, number, k_first_row, keys, limit)
