"""Lengths of a call as far as metadata gives them, for the rule of CTA pairs (sm100/choose/pays.py).

No tensor is read: a longest sequence that the caller gives, shapes, and of packed sequences the mean. Keys in pages, or
with lengths on the device, are taken for as many as queries unless the caller says how many the longest sequence has:
the page table is as wide as the longest that a server allows.
"""

from __future__ import annotations

from cute_fa4.calls.request import Where
from cute_fa4.sm100.choose import pays


def lengths_of(q, k, where: Where) -> pays.Lengths | None:
    """Lengths with each head alone. None: sizes of a tracer decide nothing, and both kernels refuse the same calls."""
    if any(type(n) is not int for n in (*q.shape, *k.shape)):
        return None
    batch = where.batch(q)
    packed = where.q_layout == "packed"
    queries = q.shape[0] / batch if packed else q.shape[1]
    most_queries = max(queries, min(where.max_seqlen_q, q.shape[0])) if packed else queries
    most_keys = max(most_queries, where.max_seqlen_k)
    if where.kv_layout == "packed":
        keys = k.shape[0] / batch
    elif where.kv_layout == "dense" and where.tensors.seqused_k is None:
        keys = most_keys = k.shape[1]
    else:  # as long before the queries as in the longest sequence
        keys = queries * most_keys / max(1, most_queries)
    equal = not packed and where.tensors.seqused_q is None
    sequences = batch * q.shape[-2]
    return pays.Lengths(
        queries, keys, sequences, equal=equal, most_queries=most_queries, most_keys=most_keys
    )
