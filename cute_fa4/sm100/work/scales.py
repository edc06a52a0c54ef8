"""Scales of 8-bit operands: the factors of stored numbers, per sequence and head, or per token.

    q, k    q_descale * k_descale multiplies the scores: it is folded into the softmax scale, one number per work tile
    Q       q_descale has a number for each query and head: one per row, and a softmax thread has one row
    v       v_descale multiplies the output, with the division by the row sum
    o       o_scale likewise, before the output is rounded

    K, V    k_descale, v_descale have a number for each key and head: per column of S and P (steps/token_scales.py), or
            per thread where rows are columns (few_rows/token_scales.py)

    K, V    k_block_scale, v_block_scale have a number for each block of columns of a key and head: e4m3 for 16 columns
            of 4 bits, e8m0 for 32 of 8; they are multiplied where these are dequantized (steps/cache_blocks.py)

    k_rope  k_rope_descale has a number for each key, for dequantized columns (`wide/dequantized_rope/dequantize.py`)

Only the last two groups cost anything per key tile. A tensor with one number for all is read with strides of 0.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, select_

from ...layouts import cache_scales
from ...layouts.scalars import choose, maximum, minimum
from ...scales import HEAD, ROW
from ...tma import paged_rows
from ..blueprint import cache_blocks
from ..blueprint.cache_blocks import SCALES_OF_WORD
from ..blueprint.problem import LARGEST_SCALE, SMALLEST_SCALE
from .rows import Row

# Selectors of prmt: digits are bytes, 0 to 3 of the first word, 4 to 7 of the second.
LOWEST_BYTES, LOWER_HALVES = 0x0040, 0x5410

NO_PAGE = -1


def of_scores(cfg, args, work, place: Row | None = None):
    """The factor of a row's scores in addition to the softmax scale; None: no factor. NaN out of bounds.

    place: None for all rows of the work tile, each of which may have a further scale, that of of_row.
    """
    factor = _product(cfg, args, work, "qk")
    if cfg.descales.q != ROW:
        return None if factor is None else _checked(args, factor, factor)
    if place is None:
        return None if factor is None else select_(factor > 0.0, factor, Float32(float("nan")))
    factor = times(_of_row(cfg, args.descales[cfg.descales.place("q")], work, place), factor)
    return _checked(args, factor, factor)


def of_row(cfg, args, work, place: Row):
    """The scale of a query and head, NaN if its product with the scales of all rows is out of bounds; requires Q."""
    own = _of_row(cfg, args.descales[cfg.descales.place("q")], work, place)
    return _checked(args, times(own, _product(cfg, args, work, "qk")), own)


def _checked(args, factor, value):
    """`value`, or NaN if `factor` times the softmax scale is not a scale that a call may have.

    Out and LSE of such a row are NaN. The row maximum is taken before the multiplication, and a negative scale would
    reverse it; beyond the bounds, scores can no longer be distinguished.
    """
    scale = args.scale * factor
    inside = (scale >= SMALLEST_SCALE) & (scale <= LARGEST_SCALE)
    return select_(inside, value, Float32(float("nan")))


def of_output(cfg, args, work):
    """The factor of a work tile's output; None: no factor."""
    return _product(cfg, args, work, "vo")


def times(value, factor):
    """value * factor if both exist, otherwise the one that exists."""
    if value is None:
        return factor
    return value if factor is None else value * factor


def _of_row(cfg, tensor, work, place: Row):
    """The number of a row; a padding row gets that of another row, and nothing of it is stored."""
    return tensor[(*place_of_row(cfg, tensor, work, place), 0)]


def place_of_row(cfg, tensor, work, place: Row) -> tuple:
    """Index of a query and head in a tensor of scales, without the last dimension; a padding row gets another row's."""
    query = maximum(minimum(place.q_index, work.sequence.seqlen_q - 1), 0)
    head = minimum(place.head, tensor.shape[-2] - 1)
    if cfg.q_layout == "dense":
        return work.sequence.batch, minimum(query, tensor.shape[1] - 1), head
    return minimum(work.sequence.q_first_row + query, tensor.shape[0] - 1), head


def _product(cfg, args, work, names: str):
    product = None
    for (name, kind), tensor in zip(cfg.descales.given, args.descales, strict=False):
        if kind == HEAD and name in names:
            batch = minimum(work.sequence.batch, tensor.shape[0] - 1)
            product = times(tensor[batch, work.tile.kv_head], product)
    return product


def of_key(cfg, args, work, key, exists=True) -> tuple:
    """The scales of a key, for cfg.token_scales; 0 beyond the sequence, whatever memory holds, or unless `exists`.

    A NaN there would give 0 * NaN = NaN in P V, but it is not read.
    """
    tensors = [args.descales[cfg.descales.place(name)] for name in cfg.token_scales]
    place, exists = place_of_key(cfg, args, work, key, exists & (key < work.sequence.num_keys))
    return tuple(_number_of(x, (*place, work.tile.kv_head), exists) for x in tensors)


def page_of_key(cfg, args, work, key, exists=True, otherwise=NO_PAGE):
    """The entry of the page table for a key, `otherwise` if there is none beyond the sequence, or unless `exists`.

    None where keys are not paged.
    """
    found = row_of_key(cfg, args, work, key, exists, otherwise)
    return None if found is None else found[0]


def row_of_key(cfg, args, work, key, exists=True, otherwise=NO_PAGE) -> tuple | None:
    """-> (that entry, the row of the key in its page)."""
    if cfg.kv_layout != "paged":
        return None
    of = work.sequence
    row, in_cache = key + of.k_first_row, args.lengths.cache_row(of.batch)
    column, inside = paged_rows.place_of(row, cfg.page_size, args.page_divisor)
    exists = exists & (key < of.num_keys)
    return _entry_of_table(args.page_table, in_cache, column, exists, otherwise), inside


def of_blocks(cfg, args, work, key, found, exists=True) -> tuple:
    """The scales of the blocks of a key of a cache, four a word, of K and of V; 0 beyond the sequence.

    found: of row_of_key, which may have been read long before
    """
    exists = exists & (key < work.sequence.num_keys)
    if found is None:
        place, exists = place_of_key(cfg, args, work, key, exists)
    else:
        page, inside = found
        place = Uint32(page).to(Int64), Uint32(inside).to(Int64)
        exists = in_pages(page, args.num_pages, exists)
    return _of_tensors(cfg, args, work, place, exists)


@dataclass(frozen=True)
class RowsOfKeys:
    """Where the scales of blocks of some consecutive keys are, which have one page.

    of_k, of_v   address of the first key's row; its place in the tensor where that is read byte by byte
    left         how many of the keys exist: the first ones
    """

    of_k: Int64 | tuple
    of_v: Int64 | tuple
    left: Int32


def rows_of_keys(cfg, args, work, key, page, exists, number: int) -> RowsOfKeys:
    """The rows of `number` keys from `key` on. page: of page_of_key, which may have been read long before."""
    if page is None:
        place, exists = place_of_key(cfg, args, work, key, exists)
    else:  # whatever rows of a page these are, they are in memory
        row = key + work.sequence.k_first_row
        _, inside = paged_rows.place_of(row, cfg.page_size, args.page_divisor)
        exists = in_pages(page, args.num_pages, exists)
        place = _in_memory(page, inside, exists)
    of_k, of_v = (_first_row(cfg, args, work, name, place) for name in "kv")
    return RowsOfKeys(of_k, of_v, _left(work, key, exists, number))


def _in_memory(page, row, exists) -> tuple:
    """The place of a row of a page, or of some page where that does not exist: it can be read in any case."""
    return Uint32(choose(exists, page, 0)).to(Int64), Uint32(row).to(Int64)


def _left(work, key, exists, number: int) -> Int32:
    """How many of `number` keys from `key` on exist; none unless `exists`."""
    return minimum(maximum(choose(exists, work.sequence.num_keys - key, 0), 0), number)


@dataclass(frozen=True)
class RowsOfBoxes:
    """Where the scales of blocks of boxes of pages are (tma/paged_rows.py), by lane.

    of_k, of_v  address of the first row of a lane's box
    exist       bit p: whether the page of box p exists
    """

    of_k: Int64
    of_v: Int64
    exist: Int32


def rows_of_boxes(cfg, args, work, boxes, entry, first_key) -> RowsOfBoxes:
    """The rows of boxes of keys from first_key on. entry: of paged_rows.look_up."""
    exists = in_pages(entry, args.num_pages, True)
    lane = cute.arch.lane_idx()
    row = paged_rows.place_in_page(boxes, args.page_divisor, first_key, lane)
    place = _in_memory(entry, row, exists)
    of_k, of_v = (_first_row(cfg, args, work, name, place) for name in "kv")
    return RowsOfBoxes(of_k, of_v, cute.arch.vote_ballot_sync(exists))


def rows_in_box(args, work, found: RowsOfBoxes, box, row, key, number: int) -> RowsOfKeys:
    """The rows of `number` keys from `key` on, which is row `row` of a box."""
    of_k, of_v = (
        cute.arch.shuffle_sync(address, box) + Uint32(row).to(Int64) * row_bytes(args, name)
        for name, address in (("k", found.of_k), ("v", found.of_v))
    )
    exists = (found.exist >> box & 1) == 1
    return RowsOfKeys(of_k, of_v, _left(work, key, exists, number))


def row_bytes(args, name: str):
    """From a row of scales in words to the next."""
    return _scales_of(args, name).layout.stride[-3] * SCALES_OF_WORD


def words_of_keys(cfg, args, work, found: RowsOfKeys, number: int) -> tuple:
    """The words of K and V of the first key, then of the second ... Those of a missing key may be anything."""
    paged = cfg.kv_layout == "paged"
    wanted = [True if paged else i < found.left for i in range(number)]
    of_k, of_v = (
        _words_of_rows(cfg, args, work, name, at, wanted)
        for name, at in (("k", found.of_k), ("v", found.of_v))
    )
    return tuple(word for both in zip(of_k, of_v, strict=True) for words in both for word in words)


def _scales_of(args, name: str):
    return args.descales["kv".index(name) - 2]


def _first_row(cfg, args, work, name: str, place: tuple):
    """Where the scales of a key at a place are, of "k" or "v": of_k and of_v of RowsOfKeys."""
    tensor = _scales_of(args, name)
    if not cache_blocks.in_words(cfg, name):
        return place
    return (tensor.iterator + tensor.layout((*place, work.tile.kv_head, 0))).toint()


def _words_of_rows(cfg, args, work, name: str, first, wanted: list) -> list:
    """The scales of keys whose first row is there, of "k" or "v". wanted: of each key, whether it is read."""
    tensor = _scales_of(args, name)
    if not cache_blocks.in_words(cfg, name):
        *before, row = first
        at = [((*before, row + i), work.tile.kv_head) for i in range(len(wanted))]
        return [_words(cfg, name, tensor, *of) for of in zip(at, wanted, strict=True)]
    words = range(cache_blocks.number_of(cfg, name) // SCALES_OF_WORD)
    apart = row_bytes(args, name)
    return [
        tuple(paged_rows.load_from(first + i * apart + SCALES_OF_WORD * n, read) for n in words)
        for i, read in enumerate(wanted)
    ]


def _of_tensors(cfg, args, work, place: tuple, exists) -> tuple:
    """Words of the scales at a place, of K and of V."""
    at = place, work.tile.kv_head
    of_k, of_v = (
        _words(cfg, name, tensor, at, exists)
        for name, tensor in zip("kv", args.descales[-2:], strict=True)
    )
    return of_k, of_v


def _words(cfg, name: str, tensor, at: tuple, exists) -> tuple:
    """The scales of a key and head, of "k" or "v". at: the key, and the head."""
    if not cache_blocks.in_words(cfg, name):
        return _words_of_bytes(cfg, name, tensor, at, exists)
    place, head = at
    words = range(cache_blocks.number_of(cfg, name) // SCALES_OF_WORD)
    return tuple(paged_rows.load_at_once(tensor, (*place, head, i), exists) for i in words)


def _words_of_bytes(cfg, name: str, tensor, at: tuple, exists) -> tuple:
    """The same from a tensor of bytes; the last word may have fewer than four."""
    (*before, token), head = at
    number, words = cache_blocks.number_of(cfg, name), []
    layout = cache_blocks.layout_of(cfg, name)
    row, byte = cache_scales.first_place(layout, token)
    begin = (tensor.iterator + tensor.layout((*before, row, head, byte))).toint()
    for first in range(0, number, SCALES_OF_WORD):
        loaded = []
        for i in range(first, min(first + SCALES_OF_WORD, number)):
            rows, more = cache_scales.after_first(layout, i, number)
            address = begin + rows * tensor.layout.stride[-3] + more
            loaded.append(paged_rows.load_from(address, exists, "u8"))
        words.append(_word_of(loaded + [Int32(0)] * (SCALES_OF_WORD - len(loaded))))
    return tuple(words)


def _word_of(loaded: list) -> Int32:
    """Four bytes, each the lowest of its word, as a word."""
    a, b, c, d = loaded
    low, high = (cute.arch.prmt(*pair, LOWEST_BYTES) for pair in ((a, b), (c, d)))
    return Int32(cute.arch.prmt(low, high, LOWER_HALVES))


def of_rope(cfg, args, work, key, end, exists):
    """The scale of a key's columns that are in a separate tensor; 0 from key `end` on, or unless `exists`."""
    of, rope, exists = work.sequence, args.rope, exists & (key < end)
    if cfg.rope_page_size:
        page = _entry_of_table(rope.page_table, of.batch, key // cfg.rope_page_size, exists)
        place, exists = (
            (page, key % cfg.rope_page_size),
            in_pages(page, rope.num_pages, exists),
        )
    elif cfg.kv_layout == "packed":
        place = (key + of.k_first_row,)
    else:
        place = args.lengths.cache_row(of.batch), key
    return _number_of(rope.scales, place, exists)


def place_of_key(cfg, args, work, key, exists) -> tuple:
    """-> (index of a key in a tensor of scales, without the head; whether the key exists)."""
    of = work.sequence
    row = key + of.k_first_row  # k_first_row: 0 unless packed or left-padded
    if cfg.kv_layout == "packed":
        return (row,), exists
    in_cache = args.lengths.cache_row(of.batch)
    if cfg.kv_layout == "dense":
        return (in_cache, row), exists
    column, inside = paged_rows.place_of(row, cfg.page_size, args.page_divisor)
    page = _entry_of_table(args.page_table, in_cache, column, exists)
    return (page, inside), in_pages(page, args.num_pages, exists)


def in_pages(page, pages, exists):
    """Whether a key exists and the page table names a page for it."""
    return exists & (page >= 0) & (page < pages)


def _entry_of_table(table, row, page, exists, otherwise=NO_PAGE) -> Int32:
    """An entry of the page table, `otherwise` if there is no key."""
    return _entry(table, row, page, exists, Int32(otherwise))


@cute.jit
def _entry(
    table: cute.Tensor, row: Int32, page: Int32, exists: cutlass.Boolean, otherwise: Int32
) -> Int32:
    found = otherwise
    if exists:
        found = table[row, page]
    return found


@cute.jit
def _number_of(tensor: cute.Tensor, place: tuple, exists: cutlass.Boolean) -> Float32:
    """A number of a tensor; 0 if it does not exist."""
    value = Float32(0.0)
    if exists:
        value = tensor[place]
    return value
