"""Whether a call of many queries runs on pairs of CTAs: as it is told, or as a rule says of its lengths.

Lengths are those that metadata tells, and no tensor is read: a longest sequence that the caller gives, shapes, and of
packed sequences the mean. Keys in pages, or with lengths on the device, are taken for as many as queries unless the
caller says how many the longest sequence has: the page table is as wide as the longest that a server allows.
"""

from __future__ import annotations

from cute_fa4.calls.request import Options, Where
from cute_fa4.calls.tensors import DTYPE_NAMES
from cute_fa4.compiler import policy
from cute_fa4.sm100.mhapair import pays


def runs_on_pairs(q, k, v, heads: int, where: Where, options: Options) -> bool:
    """heads: of a group that share a tile."""
    asked = policy.pairs()
    if asked is False or not have_kernel(q, k, options):
        return False
    if asked:
        return True
    what = pays.Asked(
        DTYPE_NAMES[q.dtype],
        q.shape[-1],
        v.shape[-1],
        options.mask.mask,
        plain=options.score_mod is None and options.mask_mod is None,
        exact=policy.maximum() == "exact",
    )
    if any(type(n) is not int for n in (*q.shape, *k.shape)):
        return False  # a tracer's sizes decide nothing: what one kernel refuses the other does, too
    return pays.pays(what, lengths_of(q, k, heads, where))


def have_kernel(q, k, options: Options) -> bool:
    """Whether pairs run such tensors: neither keys nor blocks have scales there, and keys are not widened."""
    of_others = options.scales is not None and set("KVxy") & set(options.scales.letters)
    return q.dtype.itemsize == k.dtype.itemsize and not of_others


def lengths_of(q, k, heads: int, where: Where) -> pays.Lengths:
    """What metadata tells of the lengths of a call."""
    batch = where.batch(q)
    packed = where.q_layout == "packed"
    queries = q.shape[0] / batch if packed else q.shape[1]
    most_queries = max(queries, min(where.max_seqlen_q, q.shape[0])) if packed else queries
    most_keys = max(most_queries, where.max_seqlen_k)
    if where.kv_layout == "packed":
        keys = k.shape[0] / batch
    elif where.kv_layout == "dense" and where.seqused_k is None:
        keys = most_keys = k.shape[1]
    else:  # as long before the queries as in the longest sequence
        keys = queries * most_keys / max(1, most_queries)
    equal = not packed and where.seqused_q is None
    sequences = batch * q.shape[-2] // heads
    return pays.Lengths(queries, keys, sequences, heads, equal, most_queries, most_keys)
