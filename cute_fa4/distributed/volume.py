"""Formulas for the bytes that ranks send, and for the rows that hide them; tests compare them with the bytes sent.

A row is a token that a rank has. For each of its rows a rank sends, with e bytes per element:

    ring, all_gather   (R - 1) heads_kv D e                                         grows with the ranks
    all_to_all         (R - 1) / R ((heads_q + max(heads_kv, R)) D e + 4 heads_q)   does not
                       D: head dims of k and v together

and in the backward pass, where dK and dV are sums of float32:

    ring, all_gather   (R - 1) heads_kv D (e + 4)
    all_to_all         (R - 1) / R (heads_q e + max(heads_kv, R) w) D               w: 4 if R > heads_kv, else e
                       with a gradient of the log-sum-exp 4 heads_q more, as above

and per query of a decode step, whose partial results have w bytes per element:

    decode             (R - 1) heads ((head_dim e) + (head_dim w + 16))       heads: of a rank's result
"""

from __future__ import annotations

from math import ceil


def sent_per_row(
    layout: str,
    ranks: int,
    heads_q: int,
    heads_kv: int,
    head_dim: int,
    itemsize: int = 2,
    head_dim_v: int | None = None,
    backward: bool = False,
) -> float:
    """Bytes that a rank sends for each of its rows of a sequence, without a window.

    backward   of the backward pass instead, without a gradient of the log-sum-exp

    >>> sent_per_row("ring", 8, 32, 8, 128), sent_per_row("all_to_all", 8, 32, 8, 128)
    (28672.0, 18032.0)
    >>> [sent_per_row(layout, 8, 32, 8, 128, backward=True) for layout in ("ring", "all_to_all")]
    [86016.0, 17920.0]
    """
    columns = head_dim + (head_dim_v or head_dim)
    sums = 4 if backward else 0  # dK and dV in float32
    if layout in ("ring", "all_gather"):
        return float((ranks - 1) * heads_kv * columns * (itemsize + sums))
    if layout != "all_to_all":
        raise ValueError(f"layout: {layout!r}; accepted: 'ring', 'all_gather', 'all_to_all'")
    of_keys = sums if backward and ranks > heads_kv else itemsize
    elements = heads_q * itemsize + max(heads_kv, ranks) * of_keys
    of_lse = 0 if backward else 4 * heads_q
    return (ranks - 1) / ranks * (elements * columns + of_lse)


def sent_per_query(
    ranks: int, heads: int, head_dim: int, itemsize: int = 2, wire_itemsize: int = 4
) -> int:
    """Bytes that a rank sends for each query of a decode step with heads="split".

    >>> sent_per_query(2, 16, 128)
    12544
    """
    return (ranks - 1) * heads * (head_dim * itemsize + head_dim * wire_itemsize + 16)


def rows_that_hide_a_hop(
    flops: float, bytes_per_second: float, group: int, itemsize: int = 2
) -> int:
    """The least rows per rank for which attention hides the messages of a ring, causal and zigzag.

    A hop of L rows sends 2 L heads_kv head_dim e bytes during 2 L^2 heads_q head_dim operations: head dim and heads
    cancel, except for their ratio `group`.

    >>> rows_that_hide_a_hop(1e15, 50e9, 4)
    10000
    """
    return ceil(itemsize * flops / (bytes_per_second * group))
