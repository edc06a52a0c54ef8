"""Scales of 8-bit operands: what stored numbers are multiplied by, for each sequence and head, or for each token.

    q, k    q_descale * k_descale multiplies the scores: it joins the softmax scale, a number of the work tile
    Q       q_descale has a number for each query and head: of the row, and a softmax thread has one row
    v       v_descale multiplies the output, with the division by the row sum
    o       o_scale likewise, before the output is rounded

    K, V    k_descale, v_descale have a number for each key and head: of a column of S and P (steps/token_scales.py), or
            where rows are columns, of a thread (few_rows/token_scales.py)

    k_rope  k_rope_descale has a number for each key, of columns that are widened (wide/dequantized_rope/widen.py)

Only the last ones cost anything in a key tile. A tensor with one number for all is read with strides of 0.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ...layouts.scalars import maximum, minimum
from ...scales import HEAD, ROW
from ...tma import paged_rows
from ..blueprint.problem import LARGEST_SCALE, SMALLEST_SCALE
from .rows import Row


def of_scores(cfg, args, work, place: Row | None = None):
    """What the scores of a row are multiplied by besides the softmax scale; None: nothing. NaN out of bounds.

    place: None: of all rows of the work tile, of which each may have a scale besides, that of of_row.
    """
    factor = _product(cfg, args, work, "qk")
    if cfg.descales.q != ROW:
        return None if factor is None else _checked(args, factor, factor)
    if place is None:
        return None if factor is None else select_(factor > 0.0, factor, Float32(float("nan")))
    factor = times(_of_row(cfg, args.descales[cfg.descales.place("q")], work, place), factor)
    return _checked(args, factor, factor)


def of_row(cfg, args, work, place: Row):
    """The scale of a query and head, NaN where its product with those of all rows is out of bounds; with a Q."""
    own = _of_row(cfg, args.descales[cfg.descales.place("q")], work, place)
    return _checked(args, times(own, _product(cfg, args, work, "qk")), own)


def _checked(args, factor, value):
    """`value`, or NaN where `factor` times the softmax scale is not a scale that a call may have.

    Out and LSE of such a row are NaN: the row maximum is taken before it is multiplied, which a negative scale turns
    around, and beyond the bounds a score is no longer told from another.
    """
    scale = args.scale * factor
    inside = (scale >= SMALLEST_SCALE) & (scale <= LARGEST_SCALE)
    return select_(inside, value, Float32(float("nan")))


def of_output(cfg, args, work):
    """What the output of a work tile is multiplied by; None: nothing."""
    return _product(cfg, args, work, "vo")


def times(value, factor):
    """value * factor, where there are both; otherwise the one there is."""
    if value is None:
        return factor
    return value if factor is None else value * factor


def _of_row(cfg, tensor, work, place: Row):
    """The number of a row; of a row of nobody that of another, of which nothing is stored."""
    return tensor[(*place_of_row(cfg, tensor, work, place), 0)]


def place_of_row(cfg, tensor, work, place: Row) -> tuple:
    """Of a query and head in a tensor of scales, but for its last dimension; of a row of nobody that of another."""
    query = maximum(minimum(place.q_index, work.sequence.seqlen_q - 1), 0)
    head = minimum(place.head, tensor.shape[-2] - 1)
    if cfg.q_layout == "dense":
        return work.sequence.batch, minimum(query, tensor.shape[1] - 1), head
    return minimum(work.sequence.q_first_row + query, tensor.shape[0] - 1), head


def _product(cfg, args, work, names: str):
    product = None
    for (name, kind), tensor in zip(cfg.descales.given, args.descales, strict=True):
        if kind == HEAD and name in names:
            batch = minimum(work.sequence.batch, tensor.shape[0] - 1)
            product = times(tensor[batch, work.tile.kv_head], product)
    return product


def of_key(cfg, args, work, key, exists=True) -> tuple:
    """The scales of a key, of those of cfg.token_scales; 0 beyond the sequence, whatever is there, or unless `exists`.

    0 * NaN would be NaN in P V, but these are not read.
    """
    tensors = [args.descales[cfg.descales.place(name)] for name in cfg.token_scales]
    place, exists = place_of_key(cfg, args, work, key, exists & (key < work.sequence.num_keys))
    return tuple(_number_of(x, (*place, work.tile.kv_head), exists) for x in tensors)


def of_rope(cfg, args, work, key, end, exists):
    """The scale of a key's columns in a tensor of their own; 0 from key `end` on, or unless `exists`."""
    of, rope, exists = work.sequence, args.rope, exists & (key < end)
    if cfg.rope_page_size:
        page = _entry_of_table(rope.page_table, of.batch, key // cfg.rope_page_size, exists)
        place, exists = (
            (page, key % cfg.rope_page_size),
            exists & (page >= 0) & (page < rope.num_pages),
        )
    elif cfg.kv_layout == "packed":
        place = (key + of.k_first_row,)
    else:
        place = args.lengths.cache_row(of.batch), key
    return _number_of(rope.scales, place, exists)


def place_of_key(cfg, args, work, key, exists) -> tuple:
    """-> (place of a key in a tensor of scales but for the head, whether there is one)."""
    of = work.sequence
    row = key + of.k_first_row  # 0 where keys begin at no row of their own
    if cfg.kv_layout == "packed":
        return (row,), exists
    in_cache = args.lengths.cache_row(of.batch)
    if cfg.kv_layout == "dense":
        return (in_cache, row), exists
    column, inside = paged_rows.place_of(row, cfg.page_size, args.page_divisor)
    page = _entry_of_table(args.page_table, in_cache, column, exists)
    return (page, inside), exists & (page >= 0) & (page < args.num_pages)


@cute.jit
def _entry_of_table(table: cute.Tensor, row: Int32, page: Int32, exists: cutlass.Boolean) -> Int32:
    """An entry of the page table, -1 where there is no key."""
    found = Int32(-1)
    if exists:
        found = table[row, page]
    return found


@cute.jit
def _number_of(tensor: cute.Tensor, place: tuple, exists: cutlass.Boolean) -> Float32:
    """A number of a tensor; 0 where there is none."""
    value = Float32(0.0)
    if exists:
        value = tensor[place]
    return value
