"""What a function of a score receives in a kernel, other than the score and its indices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Aux:
    """Inputs of a function other than the score and its indices.

    places   of one score: its indices before they are clamped to the sequence (expressions.PLACES)
    """

    tensors: tuple
    dtypes: tuple
    position: Any
    q_row: Any
    seqlen_q: Any
    num_keys: Any
    places: dict = field(default_factory=dict)

    def __getitem__(self, i):
        return self.tensors[i]

    def at(self, query, key) -> Aux:
        """The same for the score of a query and a key, which may lie beyond their sequence."""
        from cutlass import Int32

        return replace(self, places={"q_place": Int32(query), "kv_place": Int32(key)})

    @staticmethod
    def of(cfg, args, sequence, row) -> Aux:
        """For one row: `row.q_index` of `sequence`."""
        from cutlass import Int32

        packed = args.lengths.queries_are_packed
        q_row = sequence.q_first_row if packed else sequence.batch * args.seqlen_q
        return Aux(
            args.aux,
            tuple(dtype for dtype, _ in cfg.aux),
            Int32(sequence.position(row.q_index)),
            Int32(q_row + row.q_index),
            Int32(sequence.seqlen_q),
            Int32(sequence.num_keys),
        )
