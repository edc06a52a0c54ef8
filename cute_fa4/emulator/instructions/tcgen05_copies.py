"""tcgen05 that moves data without registers: copies from shared to tensor memory, and the shift of rows.

    tcgen05.cp    shape     rows x bytes   row r -> lanes                              columns
                  128x256b  128 x 32       r                                           8
                  128x128b  128 x 16       r                                           4
                  64x128b    64 x 16       .warpx2::02_13: r, r + 64                   4
                                           .warpx2::01_23: r % 32 + 64 (r / 32), + 32
                  32x128b    32 x 16       .warpx4: r, r + 32, r + 64, r + 96          4
                  4x256b      4 x 32       32 r + the lane of the address              8
    tcgen05.shift row r + 1 -> row r, in each 32 lanes; 8 columns. The last row stays.

The source is K-major like an operand (tensor_core.py). With .b8x16.b4x16_p64 or .b6x16_p32, each 16 bytes hold 16
elements of 4 or 6 bits and padding; 6 bits become the low bits of a byte, 4 bits its bits 2 to 5. With
.cta_group::2 each CTA of the pair copies from its own shared memory to its own tensor memory. All operations use
the tensor core's queue: they are in order with MMAs, and tcgen05.commit reports them.

PTX ISA, "tcgen05.cp", "tcgen05.shift", "Data Movement Shape"; lanes as in CUTLASS's copy traits of SM100.
"""

import numpy as np

from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.tcgen05 import pair_of
from cute_fa4.emulator.machine.element_formats import CHUNK, unpacked
from cute_fa4.emulator.machine.matrix_descriptors import chunk_numbers
from cute_fa4.emulator.machine.tensor_memory import split_address

_ROW = np.arange(128)
_FIRST, _WARP = _ROW[:64], _ROW[:64] // 32
# shape and multicast -> (lanes of each copy of row r, chunks of 16 bytes in a row)
_LANES = {
    "128x256b": ((_ROW,), 2),
    "128x128b": ((_ROW,), 1),
    "64x128b.warpx2::02_13": ((_FIRST, _FIRST + 64), 1),
    "64x128b.warpx2::01_23": ((_FIRST + 32 * _WARP, _FIRST + 32 * _WARP + 32), 1),
    "32x128b.warpx4": (tuple(_ROW[:32] + 32 * quarter for quarter in range(4)), 1),
    "4x256b": ((32 * _ROW[:4],), 2),
}
_SHIFTED_COLUMNS = 8
_SHAPES = "|".join(shape.replace(".", r"\.") for shape in _LANES)


@instruction(
    pattern=rf"tcgen05\.cp\.cta_group::([12])\.({_SHAPES})(?:\.b8x16\.b([46])x16_p(?:64|32))?"
)
def copy(warp, ins, match):
    """[taddr], descriptor: the table of the module."""
    group, (places, chunks), bits = int(match[1]), _LANES[match[2]], int(match[3] or 8)
    _refuse_several_threads(warp, ins)
    lane = warp.lane0
    ctas = pair_of(warp) if group == 2 else (warp.cta,)
    warp.cta.tmem.use_cta_group(group)
    first, column = split_address(int(warp.address(ins.operands[0])[lane]))
    if first >= 32 or first and match[2] != "4x256b":
        accepted = "0 to 31" if match[2] == "4x256b" else "0"
        warp.fault(f"{ins.opcode} to tensor memory lane {first}; accepted: {accepted}")
    descriptor = int(warp.read64(ins.operands[1])[lane])
    numbers = chunk_numbers(descriptor, False, 2, len(places[0]), chunks * CHUNK)[0]
    order = warp.cta.machine.ordering
    checked = order and tensor_checks.copy(order, warp, ctas, numbers, column, 4 * chunks)

    def action():
        if checked is not None:
            checked()
        for cta in ctas:
            words = _source(cta, numbers, bits)
            columns = column + np.arange(words.shape[1])
            for lanes in places:
                cta.tmem.scatter(first + lanes[:, None], columns, words, "tcgen05.cp")

    label = f"tcgen05.cp of {numbers.size * CHUNK} bytes"
    _submit(warp, action, label)


def _source(cta, numbers, bits):
    """uint32 [row, word] of the chunks [row, chunk] of shared memory, 4- and 6-bit elements expanded."""
    raw = np.stack([cta.shared.read(int(n) * CHUNK, CHUNK) for n in numbers.ravel().tolist()])
    if bits != 8:
        raw = unpacked(raw, bits) << np.uint8(2 if bits == 4 else 0)
    return np.ascontiguousarray(raw.reshape(len(numbers), -1)).view(np.uint32)


@instruction(pattern=r"tcgen05\.shift\.(?:cta_group::([12])\.down|down\.cta_group::([12]))")
def shift(warp, ins, match):
    """[taddr]: rows move down by one, in each quarter of the lanes."""
    group = int(match[1] or match[2])
    _refuse_several_threads(warp, ins)
    ctas = pair_of(warp) if group == 2 else (warp.cta,)
    warp.cta.tmem.use_cta_group(group)
    first, column = split_address(int(warp.address(ins.operands[0])[warp.lane0]))
    if first:
        warp.fault(
            f"{ins.opcode} at tensor memory lane {first}; accepted: 0 (all four quarters shift)"
        )
    order = warp.cta.machine.ordering
    checked = order and tensor_checks.shift(order, warp, ctas, column, _SHIFTED_COLUMNS)

    def action():
        if checked is not None:
            checked()
        for cta in ctas:
            rows = cta.tmem.read(0, column, 128, _SHIFTED_COLUMNS, "tcgen05.shift").copy()
            rows = rows.reshape(_SHIFTED_COLUMNS, 4, 32)
            rows[:, :, :-1] = rows[:, :, 1:].copy()
            cta.tmem.write(0, column, rows.reshape(_SHIFTED_COLUMNS, 128), "tcgen05.shift")

    _submit(warp, action, "tcgen05.shift")


def _refuse_several_threads(warp, ins):
    if warp.mask & warp.mask - 1:
        name = ".".join(ins.opcode.split(".")[:2])
        warp.fault(f"{name} by {len(warp.lanes)} threads would do it as often; elect one thread")


def _submit(warp, action, label):
    engine = warp.cta.machine.engine
    engine.submit(action, label, warp.issuer(), queue=("tensor", warp.cta))
