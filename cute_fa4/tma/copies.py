"""One function for each bulk copy: load a tile, gather rows, store a tile.

A tile is addressed by its first row, its first column and the further coordinates of its operand (tensor_maps.py).
"""

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute_nvgpu, llvm
from cutlass.cute.nvgpu import cpasync

from .gathered_rows import ROWS
from .tensor_maps import TMAOperand, tiler

EVEN_CTA = 0xFEFFFFFF  # a shared::cluster address with this mask is the same address in the even CTA of the pair


def smem_tile(operand: TMAOperand, dtype, address):
    """The tile at a shared-memory address (Int32) as a CuTe tensor."""
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.smem, assumed_align=1024)
    return cute.make_tensor(
        cute.recast_ptr(pointer, operand.tile_layout.inner), operand.tile_layout.outer
    )


def _partition(
    operand: TMAOperand, dtype, address, first_row, first_column: int, further, heads=None
):
    """-> (shared side, global side) of the copy of one tile."""
    tile = (None, None, *further)
    gX = operand.coordinates[tile]
    row_corner = first_row
    if isinstance(gX.shape[0], tuple) and not isinstance(first_row, tuple):
        row_corner = (0, first_row)
    column_corner = (
        (0, first_column // gX.shape[1][0]) if isinstance(gX.shape[1], tuple) else first_column
    )
    gX = cute.domain_offset((row_corner, column_corner), gX)
    rows, columns = cute.product_each(operand.tile_layout.outer.shape)
    gX = cute.local_tile(gX, tiler(gX, rows, columns, heads), (0, 0))
    sX = smem_tile(operand, dtype, address)
    return cpasync.tma_partition(
        operand.atom, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
    )


def load_tile(
    operand: TMAOperand,
    dtype,
    address,
    mbarrier,
    first_row,
    further,
    first_column: int = 0,
    heads: int | None = None,
):
    """Copy a tile to shared memory; its bytes, including zero fill, count on `mbarrier`.

    first_row   with packed groups: the position, not counting heads; of whole pages: in groups of eight; with heads:
                (first head, position)
    heads       rows of a position, if any head may be the first
    further     the coordinates after row and depth
    """
    sX, gX = _partition(operand, dtype, address, first_row, first_column, further, heads)
    cute.copy(operand.atom, gX, sX, tma_bar_ptr=mbarrier)


def store_tile(operand: TMAOperand, dtype, address, first_row, further, first_column: int = 0):
    """Copy a tile from shared memory; rows beyond the end are dropped."""
    sX, gX = _partition(operand, dtype, address, first_row, first_column, further)
    cute.copy(operand.atom, sX, gX)


def gather_rows(
    operand: TMAOperand,
    address,
    chunks: int,
    chunk_bytes: int,
    mbarrier,
    rows: tuple,
    first_column,
    cta_group: int = 1,
):
    """Copy four rows of the operand's map to four consecutive rows of a tile; rows that do not exist are zeros.

    address       shared address of the first of them, in the first of `chunks` depth chunks `chunk_bytes` apart
    first_column  of the first chunk; each is as wide as the map's box
    rows          four Int32; all of their bytes, including zero fill, count on `mbarrier`
    cta_group     2: the mbarrier is that of the even CTA of the pair

    PTX ISA, "cp.async.bulk.tensor": with .tile::gather4 the map has two dimensions and boxes of one row, and the
    coordinates are a column and four rows. The layout in shared memory is that of a box of four rows. The column is
    a multiple of 16 bytes.
    """
    columns = cute.size(operand.tile_layout.outer)
    to, group = ("cta", "") if cta_group == 1 else ("cluster", ".cta_group::2")
    mbarrier = mbarrier.toint() if cta_group == 1 else mbarrier.toint() & EVEN_CTA
    text = "{\n.reg .pred leader_thread;\n.reg .b32 at, column;\n"
    text += "elect.sync _|leader_thread, 0xffffffff;\n"
    for chunk in range(chunks):
        text += f"add.s32 at, $0, {chunk * chunk_bytes};\nadd.s32 column, $2, {chunk * columns};\n"
        text += (
            f"@leader_thread cp.async.bulk.tensor.2d.shared::{to}.global.tile::gather4"
            f".mbarrier::complete_tx::bytes{group} [at], [$1, {{column, $4, $5, $6, $7}}], [$3];\n"
        )
    text += "}"
    numbers = (first_column, mbarrier, *rows)
    llvm.inline_asm(
        None,
        [
            Int32(address).ir_value(),
            descriptor_address(operand).ir_value(),
            *(Int32(n).ir_value() for n in numbers),
        ],
        text,
        "r,l,r,r,r,r,r,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def descriptor_address(operand: TMAOperand) -> Int64:
    """Generic address of an operand's descriptor."""
    atom = cute_nvgpu.atom_make_exec_tma(operand.atom._trait.value)
    pointer = ir.Type.parse("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<128>>")
    return Int64(cute_nvgpu.get_tma_desc_addr(pointer, atom).toint())


assert ROWS == 4  # coordinates of the instruction
