"""What a function of a score receives in a kernel, other than the score and its indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Aux:
    """Inputs of a function other than the score and its indices."""

    tensors: tuple
    dtypes: tuple
    position: Any
    q_row: Any
    seqlen_q: Any
    num_keys: Any

    def __getitem__(self, i):
        return self.tensors[i]

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
