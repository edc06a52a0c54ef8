"""One function for each bulk copy: load a tile, store a tile.

A tile's place is its first row, its first column and the further coordinates of its operand (tensor_maps.py).
"""

import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from .tensor_maps import TMAOperand, tiler


def smem_tile(operand: TMAOperand, dtype, address):
    """The tile at a shared-memory address (Int32) as a CuTe tensor."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.smem, assumed_align=1024)
    return cute.make_tensor(
        cute.recast_ptr(pointer, operand.tile_layout.inner), operand.tile_layout.outer
    )


def _partition(operand: TMAOperand, dtype, address, first_row, first_column: int, further):
    """-> (shared side, global side) of the copy of one tile."""
    gX = operand.coordinates[(None, None, *further)]
    row_corner = (0, first_row) if isinstance(gX.shape[0], tuple) else first_row
    column_corner = (
        (0, first_column // gX.shape[1][0]) if isinstance(gX.shape[1], tuple) else first_column
    )
    gX = cute.domain_offset((row_corner, column_corner), gX)
    rows, columns = cute.product_each(operand.tile_layout.outer.shape)
    gX = cute.local_tile(gX, tiler(gX, rows, columns), (0, 0))
    sX = smem_tile(operand, dtype, address)
    return cpasync.tma_partition(
        operand.atom, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    )


def load_tile(
    operand: TMAOperand, dtype, address, mbarrier, first_row, further, first_column: int = 0
):
    """Copy a tile to shared memory; its bytes, also those filled with zeros, count on `mbarrier`.

    first_row   with packed groups: the position, not counting heads; of whole pages: in groups of eight
    further     the coordinates after row and depth
    """
    sX, gX = _partition(operand, dtype, address, first_row, first_column, further)
    cute.copy(operand.atom, gX, sX, tma_bar_ptr=mbarrier)


def store_tile(operand: TMAOperand, dtype, address, first_row, further, first_column: int = 0):
    """Copy a tile from shared memory; rows beyond the end are dropped."""
    sX, gX = _partition(operand, dtype, address, first_row, first_column, further)
    cute.copy(operand.atom, sX, gX)
