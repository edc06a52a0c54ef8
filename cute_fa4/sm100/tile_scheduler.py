"""CTA -> (query block, head, batch), the longest work first.

The grid is one-dimensional, so that no batch or head count meets the 65,535 limit of the y and z axes. The query
block runs fastest: CTAs that run together read the same keys. Under a causal mask the last query block sees the
most keys; blocks are taken from the end, so that the short ones fill the tail of the launch.

Where the lengths of sequences are on the device only, the grid covers the longest one that the caller announces;
a block beyond its sequence finds nothing to do.
"""

from dataclasses import dataclass

from cutlass import Int32


@dataclass(frozen=True)
class WorkTile:
    """The CTA's share: BM rows from `first_position` on, of one head (packed: of one key/value head).

    A row is a query position, or with packed groups (position, head of the group).
    """

    first_position: Int32
    head: Int32  # of the query; packed: the first of the group
    kv_head: Int32
    batch: Int32


def blocks(cfg, seqlen_q):
    return (seqlen_q + cfg.positions_per_cta - 1) // cfg.positions_per_cta


def grid_size(cfg, seqlen_q, heads, batch):
    """Number of CTAs. `heads` counts query heads."""
    return blocks(cfg, seqlen_q) * (heads // cfg.heads_per_tile) * batch


def work_tile(cfg, cta, seqlen_q, heads) -> WorkTile:
    """The share of CTA number `cta` (Int32)."""
    scheduled_heads = heads // cfg.heads_per_tile
    in_row = blocks(cfg, seqlen_q)
    head_and_batch, block = cta // in_row, cta % in_row
    if cfg.causal:
        block = in_row - 1 - block
    head = head_and_batch % scheduled_heads * cfg.heads_per_tile
    return WorkTile(
        block * cfg.positions_per_cta, head, head // cfg.group, head_and_batch // scheduled_heads
    )
