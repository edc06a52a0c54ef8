"""Where the result of a work tile goes: into O and the log-sum-exp of the call, or into parts of a workspace.

whole          the rows of the sequence
parts          the same rows, once for each part, one copy after the other                       split.py
listed         O, or a slot for a part of a long list                                             list_parts.py
shared         a separate slot for each piece: (slot, position in the block, head of the tile)   stream_k.py
"""

from ...layouts.scalars import minimum
from ...tma.tensor_maps import clipped_store
from . import list_parts, own_parts, rows, runs, stream_k
from .tile import Work


def part_of(cfg, work: Work):
    """The number of the part of the keys, where all blocks have as many."""
    return runs.number_of(work.tile.part) if cfg.in_runs else work.tile.part


def o_place(cfg, args, work: Work, i) -> tuple:
    """Coordinates of query tile i in the descriptor of O (operands/tma.py)."""
    if cfg.share_keys:
        return _o_place_in_slot(cfg, args, work, i)
    sequence, per_tile = work.sequence, rows.positions_per_tile(cfg)
    first = work.tile.first_position + i * per_tile
    head = work.tile.kv_head if cfg.pack_gqa else work.tile.head
    batch, more_rows = sequence.batch, 0
    if cfg.split_keys and cfg.q_layout == "dense":
        batch = batch + part_of(cfg, work) * args.splits.rows_apart
    elif cfg.split_keys:
        more_rows = part_of(cfg, work) * args.splits.rows_apart
    if not cfg.clips_queries:
        return first, (head, batch)
    valid = minimum(sequence.seqlen_q - first, per_tile)
    row = sequence.q_first_row + first + more_rows
    if cfg.q_layout == "dense":
        row = batch * args.rows_per_block[0] + first
    return clipped_store(per_tile, row, valid, head)


def _o_place_in_slot(cfg, args, work: Work, i) -> tuple:
    per_tile, slot = rows.positions_per_tile(cfg), stream_k.slot_of(work.tile.part)
    inside = i * per_tile
    if not cfg.clips_queries:  # TMA cuts the tile where the slot ends
        return inside, (0, slot)
    first = work.tile.first_position + inside
    valid = minimum(
        minimum(work.sequence.seqlen_q - first, args.order.positions - inside), per_tile
    )
    row = slot * args.order.positions + inside
    if cfg.q_layout == "dense":
        row = slot * args.rows_per_block[0] + inside
    return clipped_store(per_tile, row, valid, 0)


def row_place(cfg, args, work: Work, place: rows.Row) -> tuple:
    """Coordinates of a row in the tensor of O, before its depth, for threads that store it themselves."""
    sequence, tile = work.sequence, work.tile
    if cfg.share_keys:
        inside, head = place.q_index - tile.first_position, place.head - tile.head
        slot = stream_k.slot_of(tile.part)
        if cfg.q_layout == "dense":
            return slot, inside, head
        return slot * args.order.positions + inside, head
    apart = part_of(cfg, work) * args.splits.rows_apart if cfg.split_keys else 0
    if cfg.q_layout == "dense":
        return sequence.batch + apart, place.q_index, place.head
    return sequence.q_first_row + place.q_index + apart, place.head


def is_row(cfg, args, work: Work, place: rows.Row):
    """Whether this row exists."""
    exists = place.q_index < work.sequence.seqlen_q
    if cfg.tiles.pads_groups:
        exists = exists & (place.head - work.tile.head < cfg.heads_per_tile)
    if not cfg.share_keys:
        return exists
    return exists & (place.q_index - work.tile.first_position < args.order.positions)


LSE, LARGEST = 0, 1  # what the first index of the log-sum-exp says where cfg.write_max


def lse_place(cfg, args, work: Work, place: rows.Row, part=None) -> tuple:
    """Index of a row in the log-sum-exp; part: None is that of the work tile."""
    sequence, tile = work.sequence, work.tile
    if cfg.share_keys:
        inside = place.q_index - tile.first_position
        return stream_k.slot_of(tile.part), place.head - tile.head, inside
    at = (place.head, sequence.q_first_row + place.q_index)
    if cfg.q_layout == "dense":
        at = (sequence.batch, place.head, place.q_index)
    if cfg.write_max:
        return (LSE, *at)
    part = part_of(cfg, work) if part is None else part
    return (part, *at) if cfg.split_keys else at


def max_place(cfg, args, work: Work, place: rows.Row) -> tuple:
    """Index of a row's largest score, in the same tensor."""
    _, *at = lse_place(cfg, args, work, place)
    return (LARGEST, *at)


def is_first_part(cfg, work: Work):
    """Whether no keys come before those of this work tile: contributions that count once for all parts count here."""
    if cfg.share_keys:
        return stream_k.begins_block(work.tile.part)
    if cfg.own_parts:
        return own_parts.begins_block(work.tile.part)
    if cfg.cut_lists:
        return list_parts.begins_list(work.tile.part)
    return part_of(cfg, work) == 0
