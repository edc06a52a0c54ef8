"""One call of attention: its sequences, what they cost by the published count, their key tiles.

Blocks of 256 query rows, key tiles of 128, a causal window of 512 keys:

    key tile     0   1   2   3   4   5   6   7   8   9
    block 0      m   m                                      m crossed by the diagonal or the window
    block 1      .   .   m   m                              . seen whole
    block 4                      m   m   .   .   m   m
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from benchmarks.cycle_model.workloads import KEYS_A_TILE

ELEMENT_BYTES = 2
TOKENS = 32768


def _unsorted(lengths: list[int]) -> tuple[int, ...]:
    """In steps of five, from the middle on: long and short ones in turn, the longest not first."""
    steps = [length for first in range(5) for length in lengths[first::5]]
    half = len(steps) // 2
    return (*steps[half:], *steps[:half])


def _geometric() -> list[int]:
    """Each three quarters of the one before, from 8192 down; what is left at 128 makes the last."""
    lengths, left = [], TOKENS
    while left > 128:
        lengths.append(min(left, round(8192 * 0.75 ** len(lengths))))
        left -= lengths[-1]
    lengths[-1] += left
    return lengths


# Packed batches of 32K tokens: a few long sequences with many short ones, and only short ones.
RAGGED = {
    "geometric": _unsorted(_geometric()),
    "short": _unsorted([260 + 8 * i for i in range(64)]),
}


@dataclass(frozen=True)
class Problem:
    """One call: batch sequences of seqlen queries and keys, or packed ones of their own lengths.

    window     keys that a query sees, itself included, of a causal mask; 0: all before it
    lengths    of packed sequences, in their order; seqlen is the longest and batch their number
    page_size  keys of a page; 0: keys are contiguous
    head_dim_v  of V and O; 0: that of Q and K
    dtype      of q, k and v; O is bf16
    """

    batch: int
    heads_q: int
    heads_kv: int
    seqlen: int
    head_dim: int
    causal: bool
    window: int = 0
    lengths: tuple[int, ...] = ()
    page_size: int = 0
    head_dim_v: int = 0
    dtype: str = "bf16"

    @classmethod
    def packed(cls, lengths: tuple[int, ...], heads: int, head_dim: int, causal: bool) -> Problem:
        """Packed sequences of these lengths."""
        return cls(len(lengths), heads, heads, max(lengths), head_dim, causal, lengths=lengths)

    @property
    def sequences(self) -> tuple[int, ...]:
        """Length of every sequence."""
        return self.lengths or (self.seqlen,) * self.batch

    @property
    def group(self) -> int:
        """Query heads a key head."""
        return self.heads_q // self.heads_kv

    @cached_property
    def flops(self) -> float:
        """Multiply-adds of both products count two; a causal mask halves them, as published.

        Under a window every visible pair of query and key counts.
        """
        if self.window:
            pairs = sum(visible_pairs(n, self.window) for n in self.sequences)
        else:
            pairs = sum(n * n for n in self.sequences) / (2 if self.causal else 1)
        return 2.0 * self.heads_q * self.both_depths * pairs

    @property
    def both_depths(self) -> int:
        """Of Q K^T and of P V."""
        return self.head_dim + (self.head_dim_v or self.head_dim)

    @property
    def bytes(self) -> float:
        """Q, K, V read once and O written once."""
        of_q, of_o = self.heads_q * self.head_dim, self.heads_q * (self.head_dim_v or self.head_dim)
        of_kv = self.heads_kv * self.both_depths
        in_bytes = 1 if self.dtype == "e4m3" else ELEMENT_BYTES
        return float(sum(self.sequences) * ((of_q + of_kv) * in_bytes + of_o * ELEMENT_BYTES))

    def key_tiles(self, sequence: int, first: int, rows: int) -> int:
        """Key tiles that `rows` queries from position `first` of a sequence need; 0: there are none."""
        keys = self.sequences[sequence]
        if first >= keys:
            return 0
        last = min(first + rows, keys) - 1
        end = last + 1 if self.causal else keys
        begin = max(0, first - self.window + 1) if self.window else 0
        return -(-end // KEYS_A_TILE) - begin // KEYS_A_TILE


def visible_pairs(seqlen: int, window: int) -> int:
    """Pairs (query, key) with query - window < key <= query.

    >>> visible_pairs(4, 2), visible_pairs(3, 8)
    (7, 6)
    """
    cut = min(seqlen, window)
    return cut * (cut + 1) // 2 + (seqlen - cut) * window
