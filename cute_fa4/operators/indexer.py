"""torch.ops.cute_fa4.mqa_logits, paged_mqa_logits, topk_indices: the lightning indexer, as a tracer sees it.

mqa_logits(q, k, k_scale, weights, starts, ends, *, clean) -> logits
paged_mqa_logits(q, cache, weights, lengths, table, *, width, clean) -> logits
"""

from __future__ import annotations

import torch

from cute_fa4.calls.indexer import Dense, Paged, TopK
from cute_fa4.operators import sharding
from cute_fa4.operators.fakes import in_numbers
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.registration import arguments_of, defined, plain

# Rows are contiguous and lie at multiples of 16 bytes: a compiler must not choose other strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_SCHEMAS = {
    "mqa_logits": (
        Dense,
        "Tensor q, Tensor k, Tensor k_scale, Tensor weights, Tensor starts, Tensor ends, *, bool clean",
    ),
    "paged_mqa_logits": (
        Paged,
        "Tensor q, Tensor cache, Tensor weights, Tensor lengths, Tensor table, *, SymInt width, bool clean",
    ),
    "topk_indices": (TopK, "Tensor logits, Tensor? starts, Tensor? ends, *, SymInt k"),
}


def _define(name: str, kind: type, arguments: str) -> torch.library.Library:
    def call_of(args: tuple, kwargs: dict):
        return kind(**arguments_of(getattr(torch.ops.cute_fa4, name).default)(args, kwargs))

    def run(*args, **kwargs):
        call = kind(*map(plain, call_of(args, kwargs)))
        call.check()
        return call.run()

    def fake(*args, **kwargs):
        call = call_of(args, kwargs)
        numbers = in_numbers(call._asdict())
        if numbers is not None:
            in_graph(kind(**numbers).check)
        return call[0].new_empty(call.shape, dtype=call.dtype)

    return defined(f"{name}({arguments}) -> Tensor", _TAGS, run, fake)


_libraries = [_define(name, *row) for name, row in _SCHEMAS.items()]


def _by_rows(*names: str):
    """Rows of queries are independent: a rank computes those that it has. names: first the one like the result."""

    def cuts(call: dict) -> dict:
        q = call.get("q")
        if q is not None and q.dim() == 4 and q.shape[0] % q.device_mesh.size():
            return sharding.cuts_of_nothing(call)  # the rows of weights would be cut elsewhere
        return dict.fromkeys((*names, "-> "), {"batch": 0})

    return cuts


for _name, _rows in {
    "mqa_logits": ("weights", "q", "starts", "ends"),
    "paged_mqa_logits": ("weights", "q", "lengths", "table"),
    "topk_indices": ("logits", "starts", "ends"),
}.items():
    sharding.add_rule(getattr(torch.ops.cute_fa4, _name).default, _by_rows(*_rows))
