"""Tensor maps modified on the device: tensormap.replace, and the copy and fences that make a change visible to TMA.

    tensormap.replace.tile.FIELD.shared::cta.b1024.b32  [map]{, ordinal}, value       one field of 128 bytes
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned  [global], [shared], 128
    fence.proxy.tensormap::generic.acquire.gpu  [global], 128                         before the next copies

TMA reads maps through a separate proxy. With ordering checks, copies refuse a modified map in global memory until
the change was released (cp_fenceproxy, fence.proxy.tensormap::generic.release) and the copying CTA has acquired it.
PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar/fence: proxy".
"""

import struct

import numpy as np

from cute_fa4.emulator.checks import memory as checks
from cute_fa4.emulator.checks import tensor_maps
from cute_fa4.emulator.instructions.bulk_operands import global_address, resolve_shared
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.tensor_map import TENSOR_MAP_BYTES
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMapError

MAP_ALIGNMENT = 128  # of maps for replace and cp_fenceproxy
_ORDINAL = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
_FIELDS = (
    "global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|interleave_layout"
)
_FIELDS += "|swizzle_mode|swizzle_atomicity|fill_mode"
_TF32 = {0xB: 7, 0xC: 8}  # .elemtype tf32, tf32.ftz -> the code with the flag of w2 bit 16


def edited(words, name, ordinal, value):
    """The 32 words of a map with one field replaced. Raises TensorMapError for a value that the field cannot hold."""
    w = list(words)

    def put(word, low, width, bits):
        mask = (1 << width) - 1 << low
        w[word] = w[word] & ~mask & 0xFFFFFFFF | bits << low & mask

    def accept(low, high):
        if not low <= value <= high:
            raise TensorMapError(f"tensormap.replace of {name}: {value}; accepted: {low} to {high}")
        return value

    if name == "global_address":
        w[0], w[1] = value & 0xFFFFFFFF, value >> 32
    elif name == "rank":  # PTX ISA: one less than the rank
        put(2, 4, 3, accept(0, 4))
    elif name == "global_dim":
        w[8 + ordinal] = (value - 1) & 0xFFFFFFFF
    elif name == "global_stride":
        if value % 16:
            raise TensorMapError(
                f"tensormap.replace of global_stride: {value}; accepted: multiples of 16"
            )
        w[3 + ordinal] = value >> 4 & 0xFFFFFFFF
        put(7, 4 * ordinal, 4, value >> 36)
    elif name == "box_dim":
        accept(1, 256)
        put(*((13, 24) if ordinal == 0 else (14, 8 * (ordinal - 1))), 8, value - 1)
    elif name == "element_stride":
        put(13, 3 * ordinal, 3, accept(1, 8) - 1)
    elif name == "elemtype":
        accept(0, 0xC)
        put(2, 7, 4, _TF32.get(value, value))
        put(2, 16, 1, int(value in _TF32))
    elif name == "interleave_layout":
        put(2, 11, 2, accept(0, 2))
    elif name == "swizzle_mode":
        put(2, 13, 2, accept(0, 3))
    elif name == "swizzle_atomicity":
        accept(0, 0)  # 16 bytes, the only one that tensor_map.py supports
    else:
        put(2, 15, 1, accept(0, 1))
    return w


@instruction(
    pattern=rf"tensormap\.replace\.tile\.({_FIELDS})(?:\.(global|shared::cta))?\.b1024\.b(32|64)"
)
def replace(warp, ins, match):
    """[map]{, ordinal}, value: one field; lanes with the same operands do the same."""
    name, space, wide = match[1], match[2], match[3] == "64"
    address, *rest = ins.operands
    ordinal = rest[0].value if name in _ORDINAL else 0
    if ordinal >= _ORDINAL.get(name, 1):
        warp.fault(
            f"{ins.opcode}: ordinal {ordinal}; accepted: 0 to {_ORDINAL[name] - 1}", TensorMapError
        )
    values = (warp.read64 if wide else warp.read32)(rest[-1])
    order = warp.cta.machine.ordering
    for lane in warp.lanes:
        place = _Place(warp, address, lane, space)
        words = edited(struct.unpack("<32I", place.bytes()), name, ordinal, int(values[lane]))
        place.write(order, np.frombuffer(struct.pack("<32I", *words), np.uint8))
    warp.note_progress()


class _Place:
    """128 bytes of the own shared memory, or of global memory."""

    def __init__(self, warp, operand, lane, space):
        self.warp = warp
        if space is None:
            space, *_ = warp.cta.machine.resolve_generic(int(warp.address(operand)[lane]))
        self.shared = None
        if space.startswith("shared"):
            cta, self.offset = resolve_shared(
                warp, operand, lane, "cta", "tensor map", MAP_ALIGNMENT
            )
            self.shared = cta.shared
        else:
            self.offset = global_address(warp, operand, lane, MAP_ALIGNMENT, "tensor map")

    def bytes(self):
        """The bytes, written or not: fields are set one by one."""
        if self.shared is None:
            return self.warp.cta.machine.memory.read(self.offset, TENSOR_MAP_BYTES).tobytes()
        end = self.offset + TENSOR_MAP_BYTES
        if end > self.shared.size:
            self.warp.fault(
                f"tensor map at shared offset 0x{self.offset:x} ends outside", IllegalAccess
            )
        return self.shared.bytes[self.offset : end].tobytes()

    def write(self, order, data):
        warp = self.warp
        if self.shared is not None:
            if self.shared.shadow is not None:
                checks.shared_span(
                    order, warp, self.shared, self.offset, len(data), warp.ins.opcode
                )
            self.shared.write(self.offset, data, warp.issuer())
            return
        _write_map(warp, self.offset, data)
        tensor_maps.changed(warp, self.offset, released=False)


def _write_map(warp, address, data):
    machine = warp.cta.machine
    starts = np.arange(address, address + len(data), 16).astype(np.uint64)
    if machine.ordering is not None:
        items = np.frombuffer(data, np.uint64).reshape(-1, 2)
        checks.global_items(machine.ordering, warp, starts, 16, items)
    machine.memory.write(address, data)


@instruction(
    pattern=r"tensormap\.cp_fenceproxy\.global\.shared::cta\.tensormap::generic\.release\.(?:cta|cluster|gpu|sys)"
    r"\.sync\.aligned",
    aligned=True,
)
def copy_and_fence(warp, ins, match):
    """[global], [shared], 128: the warp copies a map to global memory, and releases it to TMA's proxy."""
    target, source, size = ins.operands
    if size.value != TENSOR_MAP_BYTES:
        warp.fault(
            f"{ins.opcode} of {size.value} bytes; accepted: {TENSOR_MAP_BYTES}", TensorMapError
        )
    lane = warp.lane0
    warp.uniform(warp.address(target))
    warp.uniform(warp.address(source))
    address = global_address(warp, target, lane, MAP_ALIGNMENT, "tensor map")
    cta, offset = resolve_shared(warp, source, lane, "cta", "tensor map", MAP_ALIGNMENT)
    order = warp.cta.machine.ordering
    if order is not None:
        checks.shared_items(order, warp, cta.shared, np.arange(offset, offset + 128, 16), 16)
    _write_map(warp, address, cta.shared.read(offset, TENSOR_MAP_BYTES, warp.issuer()))
    tensor_maps.changed(warp, address, released=True)
    warp.note_progress()
