"""Columns of K in a separate tensor (operands/rope.py): the rows of it that belong to a key tile.

kv_layout        rows of K                rows of k_rope
dense, packed    first_row + key          the same
seqused_k        batch * its stride       batch * its own stride
any              anything                 its own pages, looked up together with those of K
"""

from cutlass import Int32

from ...layouts.scalars import minimum
from ...tma import gathered_rows, paged_rows
from ...tma.paged_rows import Boxes
from ..operands.rope import rope_buffer
from ..sync.kernel_args import KernelArgs, Smem
from ..work import blocks
from ..work.tile import Work


def look_up(cfg, args: KernelArgs, work: Work, n) -> Int32 | tuple:
    """The entries of the page table of k_rope for key tile n, by lane."""
    rope, batch = args.rope, work.sequence.batch
    first, end = keys_in_pages(cfg, args, work, n)
    if cfg.tiles.gathers_rope:
        return gathered_rows.look_up(
            cfg.tiles.BN, cfg.rope_page_size, False, rope.page_table, batch, first, end
        )
    page = cfg.rope_page_size
    return paged_rows.look_up(Boxes(cfg.tiles.BN, page), None, rope.page_table, batch, first, end)


def keys_in_pages(cfg, args: KernelArgs, work: Work, n) -> tuple:
    """-> (first key of key tile n, end of the sequence's keys, as far as its row of the page table reaches)."""
    room = Int32(args.rope.page_table.shape[1]) * cfg.rope_page_size
    return blocks.key_tile(cfg, n) * cfg.tiles.BN, minimum(work.sequence.num_keys, room)


def found_of(cfg, args: KernelArgs, smem: Smem, work: Work, n, entries, of_k) -> tuple | None:
    """-> (the buffer that copies them, the rows this CTA loads of key tile n); None where K has all of its columns.

    entries: of loads.look_up; of_k: the rows of K.
    """
    if not cfg.rope_depth:
        return None
    return rope_buffer(cfg, smem.kv_address, args.rope), rows_of(cfg, args, work, n, entries, of_k)


def rows_of(cfg, args: KernelArgs, work: Work, n, entries, of_k):
    """The rows of k_rope. Each of two CTAs that share an MMA loads half of them, as with K."""
    rope, tiles = args.rope, cfg.tiles
    if cfg.rope_page_size:
        first, end = keys_in_pages(cfg, args, work, n)
        if tiles.gathers_rope:
            found = gathered_rows.populate(
                cfg.rope_page_size, entries[1], rope.rows_per_block, rope.num_pages, first, end
            )
        else:
            found = paged_rows.populate(
                *(Boxes(tiles.BN, cfg.rope_page_size), None, entries[1]),
                *(rope.rows_per_block, rope.num_pages, first, end),
            )
    elif cfg.kv_layout == "dense" and cfg.clips_keys:
        first_row = args.lengths.cache_row(work.sequence.batch) * rope.rows_per_block
        first = blocks.key_tile(cfg, n) * tiles.BN
        found = paged_rows.populate_contiguous(tiles.BN, first_row, first, work.sequence.num_keys)
    else:
        return of_k
    return found if tiles.cta_group == 1 else half_of(cfg, found)


def half_of(cfg, found):
    rows, page = cfg.tiles.k_rows_per_cta, cfg.rope_page_size
    first = blocks.rank(cfg) * rows
    if cfg.tiles.gathers_rope:
        return gathered_rows.from_row(found, first)
    whole = paged_rows.box_rows(cfg.tiles.BN, page)
    return paged_rows.rows_within(found, first, rows, whole, cfg.tiles.rope_box_rows)
