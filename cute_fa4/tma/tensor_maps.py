"""TMA descriptors for the loads of Q, K, V and the store of O.

All have one form: modes (row, depth, further coordinates), a tile is `rows` x depth. The 128-byte swizzle needs an
inner box of at most 128 bytes, so a tile consists of depth chunks of 64 elements, each `rows` x 128 bytes in shared
memory:

    depth 0..63      depth 64..127
    row 0   128 B    row 0   128 B       chunk c starts at c * rows * 128
    row 1   128 B    row 1   128 B
    ...              ...

If the depth is a multiple of 64 and a fifth dimension is free, the depth is folded to (64, depth / 64) and one copy
loads all chunks. Otherwise each chunk has its own copy, and TMA fills columns beyond the depth with zeros.

    operand         global tensor                  modes                                   rows past the end
    dense           (batch, seqlen, heads, depth)  (row, depth, head, batch)               cut by the tensor's extent
    packed GQA      the same                       ((group, row), depth, kv head, batch)   likewise
    clipped loads   rows of any kind (RowSpace)    (row in tile, depth, end, lap, head)    zeros
    clipped stores  likewise                       (row in tile, depth, end, head)         dropped
    pages           pages smaller than a tile      ((row in 8, 8 rows), depth, head)       a page, or all zeros
    gathered rows   pages of any size              (row of a head, depth)                  none, or zeros

A clipped operand moves n <= R rows that start anywhere, and clips them exactly, at run time. Two dimensions with
the same stride address the row: `a`, the row in the tile, of extent A, and `b`, the end of the rows. A box starts
at a = A - n and b = first + n:

    row first + i  =  a + b - A,   a = A - n + i,   i = 0, 1, ..., R - 1

From i = n on, `a` is outside its extent: loads fill zeros, stores drop the row. So NaN in the unused rows of a
page, or in the next sequence of a packed batch, never reaches an MMA, and nothing is written past the end of a
sequence. The remaining step is to subtract A rows from the address, where loads and stores differ:

    stores   A = R, and the base is R rows before the tensor
    loads    A = 2^30, the base is the tensor's, and a third dimension, the lap, is at 2^30. With s bytes from one
             row to the next its stride is 2^34 - s: 2^30 (2^34 - s) = 2^64 - A s, and addresses wrap modulo 2^64

A load may access memory at the base of its map and, on Blackwell, in the 128 KiB after it, even if the box has no
element there. A store accesses only what it writes. So the base of a load is that of the tensor, and extents are
exact: the last element of a map is the last of the tensor. The host code permits the 128 KiB only for tensors that
have them. No byte outside a tensor is ever read (docs/decisions/0005).

A gather takes a map of two dimensions, one row high, so that rows of all heads share one map. Its row pitch is the
smaller of the strides of heads and rows, and the other stride is a multiple of it (RowsOfHeads).
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, tcgen05

from ..layouts.swizzle import SWIZZLE_128B, Swizzle

MAX_RANK = 5  # dimensions of a TMA descriptor
CLIP_EXTENT = 1 << 30  # of a clipped load: extent of `a`, and the position of the lap
LAP_BYTES = 1 << 34  # CLIP_EXTENT * LAP_BYTES = 2^64


@dataclass(frozen=True)
class TMAOperand:
    """A descriptor with the tensor of its coordinates, and the tile that one copy call moves."""

    atom: cute.CopyAtom
    coordinates: cute.Tensor  # (row, depth or (chunk, chunks), further coordinates)
    tile_layout: cute.ComposedLayout  # shared-memory layout of one tile


def swizzle_of(dtype, columns: int) -> Swizzle:
    """The swizzle of rows of so many elements: of 128 bytes, or of a row that has fewer."""
    return Swizzle(min(SWIZZLE_128B.span_bytes, columns * dtype.width // 8))


def swizzled_tile(dtype, rows: int, columns: int, chunks_side_by_side: bool = False):
    """CuTe layout of a tile of `rows` x `columns` elements in swizzled chunks, of 128 bytes if a row has as many.

    chunks_side_by_side: eight rows of every chunk, then the next eight (layouts/page_tiles.py).
    """
    kind = tcgen05.SmemLayoutAtomKind[swizzle_of(dtype, columns).atom_kind(mn_major=False)]
    atom = tcgen05.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(
        atom, (rows, columns), order=(1, 0) if chunks_side_by_side else (0, 1)
    )


def _depth_mode(depth: int, granule: int, columns: int, dimensions_left: int):
    """-> (shape, stride) of the depth, folded into chunks if it divides evenly and a dimension is free."""
    if depth % granule == 0 and columns > granule and dimensions_left >= 2:
        return (granule, depth // granule), (1, granule)
    return depth, 1


def _row_mode(row, head, group: int):
    """-> row (shape, stride), head (shape, stride); with packed groups a row is (head of the group, position)."""
    if group == 1:
        return row, head
    (rows, row_stride), (heads, head_stride) = row, head
    return ((group, rows), (head_stride, row_stride)), (heads // group, group * head_stride)


def _view(iterator, *modes):
    shape, stride = zip(*modes, strict=True)
    return cute.make_tensor(iterator, cute.make_layout(shape, stride=stride))


def _rank(mode) -> int:
    return len(mode[0]) if isinstance(mode[0], tuple) else 1


def columns_of(tensor, first: int, count: int):
    """The first columns of a tensor's last dimension."""
    shape = (*tensor.shape[:-1], count)
    return cute.make_tensor(
        tensor.iterator + first, cute.make_layout(shape, stride=tensor.layout.stride)
    )


def dense_view(tensor, granule: int, columns: int, group: int = 1):
    """(batch, seqlen, heads, depth) -> (row, depth, head, batch); (total, heads, depth) -> (row, depth, head)."""
    *batch, rows, heads, depth = tensor.shape
    *batch_stride, row_stride, head_stride, _ = tensor.layout.stride
    row, head = _row_mode((rows, row_stride), (heads, head_stride), group)
    further = [head, *zip(batch, batch_stride, strict=True)]
    depth_mode = _depth_mode(depth, granule, columns, MAX_RANK - _rank(row) - len(further))
    return _view(tensor.iterator, row, depth_mode, *further)


def heads_in_rows_view(tensor, granule: int, columns: int):
    """(batch, seqlen, heads, depth) -> ((head, row), depth, batch); (total, heads, depth) -> ((head, row), depth).

    A box may start at any head, for padded groups. Heads after the last are zeros.
    """
    *batch, rows, heads, depth = tensor.shape
    *batch_stride, row_stride, head_stride, _ = tensor.layout.stride
    further = list(zip(batch, batch_stride, strict=True))
    depth_mode = _depth_mode(depth, granule, columns, MAX_RANK - 2 - len(further))
    return _view(tensor.iterator, ((heads, rows), (head_stride, row_stride)), depth_mode, *further)


@dataclass(frozen=True)
class RowSpace:
    """A tensor whose rows are at multiples of one stride: packed sequences, pages, or a dense batch.

    row = block * rows_per_block + row in the block; rows counts up to the last existing row.
    """

    rows: cutlass.Int32
    rows_per_block: cutlass.Int32
    row_stride: cutlass.Int64
    heads: cutlass.Int32
    head_stride: cutlass.Int64


def row_space(tensor, head_mode: int = -2) -> RowSpace:
    """The row space of (total, heads, depth), or of (blocks, rows of a block, heads, depth) in any order of strides.

    head_mode -3 is for (blocks, heads, rows of a block, depth). The block stride must be a multiple of the row
    stride; the host checks it.
    """
    shape, stride = tensor.shape, tensor.layout.stride
    row_mode = -5 - head_mode
    row_stride, heads, head_stride = stride[row_mode], shape[head_mode], stride[head_mode]
    if len(shape) == 3:
        return RowSpace(shape[row_mode], 0, row_stride, heads, head_stride)
    rows_per_block = cutlass.Int32(stride[0] // row_stride)
    rows = (shape[0] - 1) * rows_per_block + shape[row_mode]
    return RowSpace(rows, rows_per_block, row_stride, heads, head_stride)


def clipped_load_view(tensor, space: RowSpace):
    """(row in tile, depth, end, lap, head). With five dimensions in use the depth is not folded."""
    row, head = (CLIP_EXTENT, space.row_stride), (space.heads, space.head_stride)
    end = (space.rows + 1, space.row_stride)
    lap = (CLIP_EXTENT + 1, LAP_BYTES * 8 // tensor.element_type.width - space.row_stride)
    return _view(tensor.iterator, row, (tensor.shape[-1], 1), end, lap, head)


def clipped_load(row, valid, head) -> tuple:
    """Coordinates of a load: rows [row, row + valid), then zeros -> (first row, further coordinates)."""
    return CLIP_EXTENT - valid, (row + valid, CLIP_EXTENT, head)


def clipped_store_view(
    tensor, space: RowSpace, box_rows: int, granule: int, columns: int, group: int = 1
):
    """(row in tile, depth, end, head), `box_rows` rows in a tile; packed groups as in dense_view.

    Its base is before the tensor: for stores only.
    """
    base = tensor.iterator - box_rows * space.row_stride
    row, head = _row_mode((box_rows, space.row_stride), (space.heads, space.head_stride), group)
    end = (space.rows + 1, space.row_stride)
    depth_mode = _depth_mode(tensor.shape[-1], granule, columns, MAX_RANK - _rank(row) - 2)
    return _view(base, row, depth_mode, end, head)


def clipped_store(box_rows: int, row, valid, head) -> tuple:
    """Coordinates of a store: rows [row, row + valid), nothing after them -> (first row, further coordinates)."""
    return box_rows - valid, (row + valid, head)


def page_view(tensor, space: RowSpace, granule: int):
    """((row in eight, eight rows), depth, head) of pages that start at multiples of eight rows; depth folded."""
    depth = tensor.shape[-1]
    rows = ((8, space.rows // 8), (space.row_stride, 8 * space.row_stride))
    head = (space.heads, space.head_stride)
    return _view(tensor.iterator, rows, ((granule, depth // granule), (1, granule)), head)


@dataclass(frozen=True)
class RowsOfHeads:
    """Rows of all heads as rows of one map: row r of head h is row r * per_row + h * per_head of it; Int32."""

    per_row: cutlass.Int32
    per_head: cutlass.Int32


def rows_of_heads_view(tensor, space: RowSpace):
    """-> (view (row of a head, depth), RowsOfHeads). One stride is a multiple of the other; the host checks it."""
    unit = cutlass.select_(
        space.row_stride < space.head_stride, space.row_stride, space.head_stride
    )
    unit = cute.assume(unit, divby=16 * 8 // tensor.element_type.width)
    per_row = cutlass.Int32(space.row_stride // unit)
    per_head = cutlass.Int32(space.head_stride // unit)
    rows = (space.rows - 1) * per_row + (space.heads - 1) * per_head + 1
    view = _view(tensor.iterator, (rows, unit), (tensor.shape[-1], 1))
    return view, RowsOfHeads(per_row, per_head)


def make_row_operand(view, dtype, columns: int) -> TMAOperand:
    """Descriptor for single rows of `columns` elements, which fill a swizzle span, for gathers."""
    swizzle = cute.make_swizzle(*swizzle_of(dtype, columns).cute_bits)
    row = cute.make_layout((1, columns), stride=(columns, 1))
    layout = cute.make_composed_layout(swizzle, 0, row)
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), view, layout, (1, columns)
    )
    return TMAOperand(atom, coordinates, layout)


def make_line_operand(view, rows: int, columns: int, cta_group: int = 1) -> TMAOperand:
    """Descriptor for boxes of `rows` x `columns` stored row by row, without a swizzle. cta_group: of make_operand."""
    lines = cute.make_layout((rows, columns), stride=(columns, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, lines)
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(_group(cta_group)), view, layout, (rows, columns)
    )
    return TMAOperand(atom, coordinates, layout)


def make_operand(
    view,
    dtype,
    rows: int,
    columns: int,
    direction: str = "load",
    chunks_side_by_side: bool = False,
    heads: int | None = None,
    cta_group: int = 1,
) -> TMAOperand:
    """Descriptor for tiles of `rows` x `columns` of a view; heads: as in tiler.

    direction   "load", "store", or "add": a store that adds float32 numbers to those in memory. Subnormal numbers are
                kept with this map's data type, FLOAT32, and not with FLOAT32_FTZ (seen on an RTX 5090 by the authors
                of FlashGPU-Sim, pull request 28)
    cta_group   2: the bytes of a load count on the mbarrier of the even CTA of the pair
    """
    tile_layout = swizzled_tile(dtype, rows, columns, chunks_side_by_side)
    ops = {
        "load": lambda: cpasync.CopyBulkTensorTileG2SOp(_group(cta_group)),
        "store": cpasync.CopyBulkTensorTileS2GOp,
        "add": cpasync.CopyReduceBulkTensorTileS2GOp,
    }
    atom, coordinates = cpasync.make_tiled_tma_atom(
        ops[direction](), view, tile_layout, tiler(view, rows, columns, heads)
    )
    return TMAOperand(atom, coordinates, tile_layout)


def _group(ctas: int):
    return tcgen05.CtaGroup.TWO if ctas == 2 else tcgen05.CtaGroup.ONE


def tiler(view, rows: int, columns: int, heads: int | None = None):
    """The tile's extent in the modes of a view; heads: rows of a position if they are not the whole row mode."""
    row, depth = view.shape[0], view.shape[1]
    row_tile = (heads or row[0], rows // (heads or row[0])) if isinstance(row, tuple) else rows
    depth_tile = (depth[0], columns // depth[0]) if isinstance(depth, tuple) else columns
    return row_tile, depth_tile
