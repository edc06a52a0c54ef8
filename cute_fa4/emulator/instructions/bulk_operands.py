"""Operands of bulk copies: tensor maps and coordinates, places in shared and global memory, sizes.

PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".
"""

import numpy as np

from cute_fa4.emulator.checks import tensor_maps
from cute_fa4.emulator.machine.tensor_map import TENSOR_MAP_BYTES, decode_tensor_map
from cute_fa4.emulator.machine.warp import FULL, SHARED_BASE
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMapError, UnknownInstruction

# PTX ISA, "Tensors: shared memory": boxes are aligned to 128 bytes; mbarrier objects to 8.
TENSOR_SHARED_ALIGNMENT = 128
BULK_ALIGNMENT = 16
MBARRIER_ALIGNMENT = 8
HINTS = r"(?:\.L2::cache_hint)?"


def tensor_map_at(warp, address):
    """TensorMap at a generic address, in parameters or global memory. Raises TensorMapError."""
    if address % 64:
        warp.fault(
            f"tensor map at address 0x{address:x}; accepted: multiples of 64", TensorMapError
        )
    space, *place = warp.cta.machine.resolve_generic(address)
    memory = {"param": warp.cta.machine.params, "global": warp.cta.machine.memory}.get(space)
    if memory is None:
        warp.fault(f"tensor map in {space} memory; accepted: parameters, global", TensorMapError)
    if space == "global" and warp.cta.machine.tensor_maps:
        tensor_maps.check(warp, *place)
    return decode_tensor_map(memory.read(*place, TENSOR_MAP_BYTES).tobytes())


def tensor_operand(warp, operand, lane, rank):
    """(TensorMap, signed coordinates) of an operand [map, {c0, c1}] in one lane."""
    tensor_map = tensor_map_at(warp, int(warp.address(operand)[lane]))
    coordinates = tuple(int(warp.read32(c).view(np.int32)[lane]) for c in operand.coords)
    if tensor_map.per_byte != 1:
        first, *rest = coordinates
        if first % tensor_map.per_byte:
            warp.fault(f"coordinate {first} of packed elements; accepted: even", TensorMapError)
        coordinates = (first // tensor_map.per_byte, *rest)
    if tensor_map.rank != rank:
        warp.fault(
            f"a {rank}d copy with the tensor map of a {tensor_map} of rank {tensor_map.rank}",
            TensorMapError,
        )
    return tensor_map, coordinates


def _check_rank(warp, coordinates, needed):
    if len(coordinates) != needed:
        warp.fault(f"{len(coordinates)} coordinates; the copy needs {needed}", UnknownInstruction)


def boxes_of(warp, tensor_map, coordinates, mode, offsets=None):
    """[(coordinates, dense box, byte offset in shared memory)] of one copy: one box, four rows, or pixels.

    offsets  of the filter in an im2col load, for W, H, D

    tile::gather4 and scatter4 take {column, row0, row1, row2, row3} of a 2d tensor. Rows that do not exist are
    zeros for a gather and dropped by a scatter, and their bytes count. The instruction is illegal if the column is
    not a multiple of 16 bytes, and a scatter if a coordinate is negative (Triton's tutorial "Native TMA Gather and
    Scatter", written for Blackwell GPUs).
    """
    if bool(tensor_map.im2col) != mode.startswith(".im2col"):
        kinds = ("a tiled", "an im2col")
        warp.fault(
            f"{warp.ins.opcode} with the tensor map of {kinds[bool(tensor_map.im2col)]} {tensor_map}; accepted: maps "
            "of the mode of the copy",
            TensorMapError,
        )
    if tensor_map.im2col:
        _check_rank(warp, coordinates, tensor_map.rank)
        offsets = offsets or (0,) * (tensor_map.rank - 2)
        places = tensor_map.im2col.places(tensor_map, coordinates, offsets)
        row_bytes = tensor_map.box_bytes
        boxes = [(place, None, i * row_bytes) for i, place in enumerate(places)]
        return boxes, len(places) * row_bytes
    if "4" not in mode:
        _check_rank(warp, coordinates, tensor_map.rank)
        return [(coordinates, None, 0)], tensor_map.box_bytes
    _check_rank(warp, coordinates, 5)
    if tensor_map.rank != 2 or tensor_map.box[1] != 1:
        warp.fault(
            f"{mode} needs a 2d tensor and a box of one row, not a {tensor_map}", TensorMapError
        )
    column, *rows = coordinates
    if column * tensor_map.itemsize % BULK_ALIGNMENT:
        warp.fault(
            f"{mode} at column {column} of a {tensor_map}, {column * tensor_map.itemsize} bytes; accepted: "
            f"multiples of {BULK_ALIGNMENT} bytes",
            TensorMapError,
        )
    if "scatter4" in mode and min(coordinates) < 0:
        warp.fault(
            f"{mode} to {coordinates} of a {tensor_map}; accepted: no negative coordinate",
            TensorMapError,
        )
    row_bytes = tensor_map.box_bytes
    boxes = [((column, row), None, i * row_bytes) for i, row in enumerate(rows)]
    return boxes, 4 * row_bytes


def im2col_offsets(warp, operand, tensor_map, lane):
    """Offsets of the filter, for W, H, D. Faults if one does not fit: 16, 8 or 5 bits for rank 3, 4, 5."""
    offsets = [int(warp.read32(item)[lane]) & 0xFFFF for item in operand.items]
    if len(offsets) != tensor_map.rank - 2:
        warp.fault(
            f"{len(offsets)} im2col offsets; the copy needs {tensor_map.rank - 2}",
            UnknownInstruction,
        )
    most = (1 << 16 // len(offsets)) - 1
    if max(offsets) > most:
        warp.fault(
            f"im2col offset {max(offsets)} of a {tensor_map}; accepted: 0 to {most}", TensorMapError
        )
    return offsets


def _aligned(warp, value, alignment, what):
    if value % alignment:
        warp.fault(f"{what} 0x{value:x} is not aligned to {alignment} bytes", IllegalAccess)


def resolve_shared(warp, operand, lane, space, what, alignment, generic=False):
    """(CTA, offset) of a shared address; with space "cta" it must be the executing CTA's own.

    generic  the opcode names no state space: the address is generic and must lie in shared memory
    """
    address = int(warp.address(operand)[lane])
    if generic:
        if not SHARED_BASE <= address <= SHARED_BASE + FULL:
            warp.fault(
                f"{what}: generic address 0x{address:x} is not in shared memory", IllegalAccess
            )
        address -= SHARED_BASE
    cta, offset = warp.cta.cluster.resolve(address)
    if space == "cta" and cta is not warp.cta:
        warp.fault(f"{what} is a .shared::cta address of CTA rank {cta.rank}", IllegalAccess)
    _aligned(warp, offset, alignment, f"{what}: shared offset")
    return cta, offset


def global_address(warp, operand, lane, alignment, what):
    address = int(warp.address(operand)[lane])
    space, *place = warp.cta.machine.resolve_generic(address)
    if space != "global":
        warp.fault(f"{what}: address 0x{address:x} lies in {space} memory", IllegalAccess)
    _aligned(warp, place[0], alignment, f"{what}: global address")
    return place[0]


def bulk_size(warp, operand, lane):
    size = int(warp.read32(operand)[lane])
    if size == 0 or size % BULK_ALIGNMENT:
        warp.fault(f"bulk copy of {size} bytes; accepted: multiples of 16, not 0", IllegalAccess)
    return size
