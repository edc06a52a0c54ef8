"""Block of the grid -> (query block, head, batch), the longest work first. Packed queries: packed_order.py.

The grid is one-dimensional, so that no batch or head count hits the 65,535 limit of the y and z axes. Without a mask
the query block varies fastest: CTAs that run together read the same keys.

Under a mask (causal, a window) the last query block sees the most keys, and a launch ends evenly if the long blocks
begin first. So blocks are taken from the end, each for all heads of a section before the next block. Lists of key
blocks, which the host does not read, are taken likewise: those of causal masks and documents are longest at the end.
Where a kernel sorts them (lists/longest.py), a CTA number is a place in the sorted order of work tiles, which are
numbered as without a mask. A section has at most as many heads as have their keys and values in L2 together. Sections
differ by at most one head: a last section of few heads would leave few CTAs at work at the end. Five heads of three
blocks, of which two fit:

    CTA     0   1   2   3   4   5   6   7   8   9  10  11  12  13  14
    head    0   1   0   1   0   1   2   3   2   3   2   3   4   4   4
    block   2   2   1   1   0   0   2   2   1   1   0   0   2   1   0

Where seqused_q cuts dense queries, a block beyond its sequence has no work. A CTA runs the block that it was launched
as and claims more blocks, in about the same order (queue.py).
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32

from ...layouts.scalars import choose, maximum, minimum
from .tile import WorkTile

# Far less than half of the 126 MB of a B200: queries, output and the section that ends use L2 as well.
L2_BYTES_FOR_KEYS = 50 * 1024 * 1024


def blocks(cfg, seqlen_q):
    return (seqlen_q + cfg.tiles.positions_per_block - 1) // cfg.tiles.positions_per_block


def grid_size(cfg, seqlen_q, heads, batch):
    """Number of blocks. `heads` counts query heads."""
    return blocks(cfg, seqlen_q) * (heads // cfg.heads_per_tile) * batch


@dataclass(frozen=True)
class TileOrder:
    """How CTA numbers are decomposed. Divisors are made on the host: a division in the kernel takes 200 cycles."""

    heads: object  # divisor: scheduled heads of a sequence
    blocks: object  # divisor: query blocks of a head
    per_wide: object  # divisor: CTAs of a section with one head more
    wide: object  # divisor: its heads
    per_narrow: object  # divisor: CTAs of any other section
    narrow: object  # divisor: its heads
    num_blocks: Int32
    narrow_heads: Int32
    num_wide: Int32  # they come first


def fitting_rows(cfg) -> int:
    """Keys that fit in L2 with their values, counted for every scheduled head that reads them."""
    row_bytes = cfg.operand.bytes_of(cfg.qk_depth + cfg.ov_depth)
    sharing = cfg.group // cfg.heads_per_tile  # scheduled heads that read the same keys
    return L2_BYTES_FOR_KEYS // row_bytes * sharing


def fitting_heads(cfg, seqlen_k, scheduled):
    """How many of `scheduled` heads have their `seqlen_k` keys and values in L2 together; at least one."""
    return maximum(1, minimum(fitting_rows(cfg) // maximum(seqlen_k, 1), scheduled))


def tile_order(cfg, seqlen_q, seqlen_k, heads, batch, divisor=lambda number: number) -> TileOrder:
    """The order of a launch. divisor: makes the kernel's divisor from a number; the host divides by numbers."""
    per_sequence = maximum(heads // cfg.heads_per_tile, 1)
    num_blocks = maximum(blocks(cfg, seqlen_q), 1)
    scheduled = maximum(per_sequence * batch, 1)
    fitting = fitting_heads(cfg, seqlen_k, scheduled)
    num_sections = (scheduled + fitting - 1) // fitting
    narrow = scheduled // num_sections
    return TileOrder(
        heads=divisor(per_sequence),
        blocks=divisor(num_blocks),
        per_wide=divisor((narrow + 1) * num_blocks),
        wide=divisor(narrow + 1),
        per_narrow=divisor(narrow * num_blocks),
        narrow=divisor(narrow),
        num_blocks=num_blocks,
        narrow_heads=narrow,
        num_wide=scheduled - num_sections * narrow,
    )


def work_tile(cfg, cta, order: TileOrder) -> WorkTile:
    """The share of CTA number `cta`."""
    if cfg.unequal_blocks and not cfg.longest_first:
        wide_heads = order.num_wide * (order.narrow_heads + 1)
        beyond_wide = cta - wide_heads * order.num_blocks
        section, inside = divmod(cta, order.per_wide)
        row, head = divmod(inside, order.wide)
        head = section * (order.narrow_heads + 1) + head
        section, inside = divmod(maximum(beyond_wide, 0), order.per_narrow)
        narrow_row, narrow_head = divmod(inside, order.narrow)
        narrow_head = wide_heads + section * order.narrow_heads + narrow_head
        head_and_batch = choose(beyond_wide < 0, head, narrow_head)
        block = order.num_blocks - 1 - choose(beyond_wide < 0, row, narrow_row)
    else:
        head_and_batch, block = divmod(cta, order.blocks)
    batch, head = divmod(head_and_batch, order.heads)
    return tile_of_block(cfg, block, head, batch)


def tile_of_block(cfg, block, head, batch) -> WorkTile:
    """Query block `block` of scheduled head `head`."""
    first_head = head * cfg.heads_per_tile
    position = opaque(block) * cfg.tiles.positions_per_block
    return WorkTile(position, first_head, first_head // cfg.group, batch)


def opaque(number):
    """Hide a number from the compiler's analysis.

    Seen with nvidia-cutlass-dsl 4.8.1: for a position computed from a divisor's result, floor divisions of positions,
    which can be negative, were compiled to truncating ones.
    """
    if isinstance(number, int):
        return number
    return cute.arch.make_warp_uniform(number)
