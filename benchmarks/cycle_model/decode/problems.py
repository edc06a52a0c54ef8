"""Calls of decode: how long their sequences are, the bytes that they must read, published times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cute_fa4.dtypes import DTYPES
from cute_fa4.sm100.choose.choose_config import LATENT_ROW_BYTES

# With the scales of blocks: of 16 numbers of 4 bits, of 32 of MXFP8.
ELEMENT_BYTES = {"bf16": 2, "e4m3": 1, "mxe4m3": 33 / 32, "e2m1": 9 / 16}
ROWS = "rows"  # kv_dtype of a latent cache of 656 bytes a row, including scales and RoPE columns
PUBLISHED_FILE = Path(__file__).parents[1] / "published_decode.json"
# The kernel of the published table that its authors replaced.
NOT_COMPARED = "FlashInfer fa2"


@dataclass(frozen=True)
class DecodeProblem:
    """One call.

    lengths  keys of each sequence
    latent   one cache of head_dim columns, whose first ones are the values
    dtype    of queries; kv_dtype: of the cache, or ROWS
    """

    lengths: tuple[int, ...]
    seqlen_q: int = 1
    heads_q: int = 64
    heads_kv: int = 8
    head_dim: int = 128
    page_size: int = 16
    latent: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"

    @classmethod
    def even(cls, batch: int, keys: int, seqlen_q: int = 1, **others) -> DecodeProblem:
        """Sequences of the same length."""
        return cls((keys,) * batch, seqlen_q, **others)

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @property
    def group(self) -> int:
        return self.heads_q // self.heads_kv

    @property
    def cache_columns(self) -> int:
        """Elements of a row of the cache."""
        if self.kv_dtype == ROWS:
            return LATENT_ROW_BYTES
        return self.head_dim // DTYPES[self.kv_dtype].in_byte

    @property
    def key_bytes(self) -> int:
        """Bytes of one key and its value, of all heads."""
        if self.kv_dtype == ROWS:
            return self.cache_columns
        if self.latent:
            return self.head_dim * ELEMENT_BYTES[self.kv_dtype]
        return round(2 * self.heads_kv * self.head_dim * ELEMENT_BYTES[self.kv_dtype])

    @property
    def bytes(self) -> int:
        """Bytes of keys and values, each read once, as in published bandwidths."""
        return sum(self.lengths) * self.key_bytes

    @property
    def is_even(self) -> bool:
        return len(set(self.lengths)) == 1


def published(problem: DecodeProblem) -> dict[str, float]:
    """Kernel -> published microseconds; empty for unpublished problems."""
    data = json.loads(PUBLISHED_FILE.read_text())
    if problem != DecodeProblem.even(problem.batch, problem.lengths[0], problem.seqlen_q):
        return {}
    rows = data["rows"] if problem.seqlen_q == 1 else data.get(f"rows_q{problem.seqlen_q}", [])
    for batch, keys, times, *_ in rows:
        if (batch, keys) == (problem.batch, problem.lengths[0]):
            return {
                name: us
                for name, us in zip(data["kernels"], times, strict=True)
                if us is not None and name != NOT_COMPARED
            }
    return {}


BATCHES, KEYS = (1, 8, 64), (1024, 4096, 16384)
# A long sequence with many short ones, and as many bytes in sequences of one length.
RAGGED = (100_000, *(500,) * 63)


def problems() -> list[DecodeProblem]:
    """The rows of the table."""
    shapes = [(batch, keys) for batch in BATCHES for keys in KEYS]
    even = DecodeProblem.even
    return [
        *(even(*shape, seqlen_q) for seqlen_q in (1, 4) for shape in shapes),
        *(even(*shape, head_dim=64) for shape in shapes),
        *(even(*shape, heads_q=32, heads_kv=32) for shape in shapes),
        DecodeProblem(RAGGED),
        even(64, sum(RAGGED) // 64),
    ]
