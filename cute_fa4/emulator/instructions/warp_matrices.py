"""Matrices of a warp: ldmatrix and stmatrix move 8x8 tiles of shared memory, mma.sync multiplies fragments.

    ldmatrix.m8n8     lane l gives the address of row l % 8 of tile l / 8, 16 bytes
                      lane l holds elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of each tile
        .trans        the same of the transposed tile
    ldmatrix.m8n16    rows of 16 elements of 4 or 6 bits, packed, which become bytes (low bits); lane l holds the bytes
                      (l / 4, 4 (l % 4)) and the next three of each tile
    ldmatrix.m16n16   .trans: 16 rows of 16 bytes, or of packed elements; lane l holds bytes (4 (l % 4) + j, l / 4),
                      j = 0 .. 3, and the same of column l / 4 + 8 in the next register
    stmatrix.m16n8    .trans.b8: lane l of the first 8, 16 or 32 gives the address of row l of 16 bytes
                      lane l holds bytes (2 (l % 4), l / 4), (2 (l % 4) + 1, l / 4), and the same of l / 4 + 8

    movmatrix         the transposed tile: lane l holds elements (l / 4, 2 (l % 4)) and the next one, before and after

    fragments of mma.sync, g = lane / 4, t = lane % 4, w = elements in a register (f64: one in 64 bits); parts of k: 4 w
        A (16 x k)    registers: rows g, g + 8, g, g + 8, ...; columns w t .. of part 0, 0, 1, 1, ...
        A (8 x k)     one register: row g; columns w t ..
        B (k x 8)     registers: column g; rows w t .. of part 0, 1, ...
        C, D (16 x 8) rows g, g, g + 8, g + 8; columns 2 t, 2 t + 1, 2 t, 2 t + 1; (8 x 8): the first two

Products are exact and are added in float64, with one rounding to the type of D. Hardware adds in groups, and may
differ in the last bits; in f64 it is a chain of fused multiply-adds along k, with the same bits (H200). PTX ISA,
"ldmatrix", "stmatrix", "movmatrix", "Matrix Fragments for mma.m16n8k16" and related sections.
"""

import numpy as np

from cute_fa4.emulator.instructions.floating_point import fma_f64
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.memory import gather, scatter
from cute_fa4.emulator.machine.element_formats import unpacked
from cute_fa4.emulator.machine.rounding import BF16, E4M3, E5M2, F16, decode, encode
from cute_fa4.emulator.machine.warp import FULL, SHARED_BASE
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from cute_fa4.emulator.ptx.parser import Vec

_G, _T = np.arange(32) // 4, np.arange(32) % 4


def _row_addresses(warp, operand, rows, opcode):
    """The addresses of the first ``rows`` lanes, in the shared window."""
    if warp.mask != FULL:
        warp.fault(f"{opcode} needs all 32 lanes")
    addresses = warp.address(operand)[:rows]
    if ".shared" not in opcode and (addresses >= np.uint64(SHARED_BASE)).all():
        addresses = addresses - np.uint64(SHARED_BASE)
    return addresses


@instruction(
    pattern=r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?(?:\.shared(?:::cta)?)?\.b16",
    aligned=True,
)
def ldmatrix(warp, ins, match):
    """{d0, ...}, [row]: one register of two elements for each tile."""
    tiles, transposed = int(match[1]), bool(match[2])
    addresses = _row_addresses(warp, ins.operands[1], 8 * tiles, ins.opcode)
    rows = np.ascontiguousarray(gather(warp, "shared", addresses, 16)).view(np.uint16)
    rows = rows.reshape(tiles, 8, 8)
    target = ins.operands[0]
    registers = target.items if isinstance(target, Vec) else (target,)
    for register, tile in zip(registers, rows, strict=True):
        tile = tile.T if transposed else tile
        low, high = tile[_G, 2 * _T].astype(np.uint32), tile[_G, 2 * _T + 1].astype(np.uint32)
        warp.write32(register, low | high << np.uint32(16))


_PACKED = r"\.b8x16\.b(?:6x16_p32|4x16_p64)"


def _byte_rows(warp, ins, rows):
    """uint8[rows, 16]: rows of bytes, or of 4- and 6-bit elements expanded to bytes."""
    addresses = _row_addresses(warp, ins.operands[1], rows, ins.opcode)
    raw = np.ascontiguousarray(gather(warp, "shared", addresses, 16)).view(np.uint8)
    raw = raw.reshape(rows, 16)
    bits = {"b4x16_p64": 4, "b6x16_p32": 6}.get(ins.opcode.split(".")[-1])
    return unpacked(raw, bits) if bits else raw


@instruction(
    pattern=r"ldmatrix\.sync\.aligned\.m8n16\.x([124])(?:\.shared(?:::cta)?)?" + _PACKED,
    aligned=True,
)
def ldmatrix_packed(warp, ins, match):
    """{d0, ...}, [row]: one register of four bytes for each tile (lanes as of CUTLASS's copy traits)."""
    rows = _byte_rows(warp, ins, 8 * int(match[1]))
    for register, tile in zip(_items(ins.operands[0]), rows.reshape(-1, 8, 16), strict=True):
        warp.write32(register, np.ascontiguousarray(tile).view(np.uint32).reshape(32))


@instruction(
    pattern=r"ldmatrix\.sync\.aligned\.m16n16\.x([12])\.trans(?:\.shared(?:::cta)?)?(?:\.b8|"
    + _PACKED
    + ")",
    aligned=True,
)
def ldmatrix_bytes(warp, ins, match):
    """{d0, d1, ...}, [row]: two registers of four bytes for each tile, which is transposed."""
    tiles = _byte_rows(warp, ins, 16 * int(match[1])).reshape(-1, 16, 16)
    halves = np.ascontiguousarray(tiles.transpose(0, 2, 1)).reshape(-1, 8, 16)
    for register, half in zip(_items(ins.operands[0]), halves, strict=True):
        warp.write32(register, np.ascontiguousarray(half).view(np.uint32).reshape(32))


def _items(operand):
    return operand.items if isinstance(operand, Vec) else (operand,)


@instruction(
    pattern=r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?(?:\.shared(?:::cta)?)?\.b16",
    aligned=True,
)
def stmatrix(warp, ins, match):
    """[row], {r0, ...}: the inverse of ldmatrix."""
    tiles, transposed = int(match[1]), bool(match[2])
    addresses = _row_addresses(warp, ins.operands[0], 8 * tiles, ins.opcode)
    source = ins.operands[1]
    registers = source.items if isinstance(source, Vec) else (source,)
    out = np.empty((tiles, 8, 8), np.uint16)
    for tile, register in zip(out, registers, strict=True):
        values = warp.read32(register)
        place = tile.T if transposed else tile
        place[_G, 2 * _T], place[_G, 2 * _T + 1] = values & 0xFFFF, values >> np.uint32(16)
    scatter(warp, "shared", addresses, out.reshape(8 * tiles, 8), 16)
    warp.note_progress()


@instruction(
    pattern=r"stmatrix\.sync\.aligned\.m16n8\.x([124])\.trans(?:\.shared(?:::cta)?)?\.b8",
    aligned=True,
)
def stmatrix_bytes(warp, ins, match):
    """[row], {r0, ...}: 8 rows of 16 bytes from each register of four bytes a lane (as CUTLASS's copy traits)."""
    tiles = int(match[1])
    addresses = _row_addresses(warp, ins.operands[0], 8 * tiles, ins.opcode)
    source = ins.operands[1]
    registers = source.items if isinstance(source, Vec) else (source,)
    out = np.empty((tiles, 8, 16), np.uint8)
    for tile, register in zip(out, registers, strict=True):
        parts = np.ascontiguousarray(warp.read32(register)).view(np.uint8).reshape(32, 4)
        for i in range(4):
            tile[2 * _T + i % 2, _G + 8 * (i // 2)] = parts[:, i]
    scatter(warp, "shared", addresses, out.reshape(8 * tiles, 16), 16)
    warp.note_progress()


@instruction("movmatrix.sync.aligned.m8n8.trans.b16", aligned=True)
def movmatrix(warp, ins):
    """d, a: the transposed tile. PTX ISA, movmatrix."""
    if warp.mask != FULL:
        warp.fault(f"{ins.opcode} needs all 32 lanes")
    values = warp.read32(ins.operands[1])
    tile = np.empty((8, 8), np.uint32)
    tile[_G, 2 * _T], tile[_G, 2 * _T + 1] = values & np.uint32(0xFFFF), values >> np.uint32(16)
    warp.write32(ins.operands[0], tile.T[_G, 2 * _T] | tile.T[_G, 2 * _T + 1] << np.uint32(16))


# --- mma.sync ----------------------------------------------------------------------------------------

_DECODE = {
    "f16": lambda bits: decode(bits.astype(np.uint16), F16).astype(np.float64),
    "bf16": lambda bits: decode(bits.astype(np.uint16), BF16).astype(np.float64),
    "e4m3": lambda bits: decode(bits.astype(np.uint8), E4M3).astype(np.float64),
    "e5m2": lambda bits: decode(bits.astype(np.uint8), E5M2).astype(np.float64),
    "tf32": lambda bits: (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64),
    "s8": lambda bits: bits.astype(np.uint8).view(np.int8).astype(np.int64),
    "u8": lambda bits: bits.astype(np.int64),
    "s4": lambda bits: (bits.astype(np.int64) ^ 8) - 8,
    "u4": lambda bits: bits.astype(np.int64),
    "b1": lambda bits: bits.astype(np.int64),
}
_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip


def _elements(warp, operand, kind):
    """Decoded elements [register, lane, element in it] of a fragment."""
    registers = _items(operand)
    if kind == "f64":
        return np.stack([warp.read64(r).view(np.float64) for r in registers])[:, :, None]
    words = np.stack([warp.read32(r) for r in registers]).astype(np.uint32)
    bits = _BITS[kind]
    places = np.arange(0, 32, bits, dtype=np.uint32)
    return _DECODE[kind](words[:, :, None] >> places & np.uint32((1 << bits) - 1))


def _matrix_a(elements, k, rows):
    registers, _, w = elements.shape
    groups = rows // 8
    a = np.zeros((rows, k), elements.dtype)
    for r in range(registers):
        for i in range(w):
            a[_G + 8 * (r % groups), w * _T + i + 4 * w * (r // groups)] = elements[r, :, i]
    return a


def _matrix_b(elements, k):
    registers, _, w = elements.shape
    b = np.zeros((k, 8), elements.dtype)
    for r in range(registers):
        for i in range(w):
            b[w * _T + i + 4 * w * r, _G] = elements[r, :, i]
    return b


def _mma(shapes, of_d, of_ab, middle="()", end="()"):
    """The pattern of some types. Groups: m, k, .satfinite, the types of D, A, B and C, the operation on bits."""
    return (
        rf"mma\.sync\.aligned\.(?=(?:{shapes})\.)m(8|16)n8k(\d+)\.row\.col{middle}"
        rf"\.({of_d})\.({of_ab})\.({of_ab})\.({of_d}){end}"
    )


_SATFINITE = r"(\.satfinite)?"


@instruction(
    pattern=_mma(
        "m16n8k(?:4|8|16|32)", "f32|f16", "f16|bf16|tf32|e4m3|e5m2", r"()(?:\.kind::f8f6f4)?"
    ),
    aligned=True,
)
@instruction(pattern=_mma("m8n8k16|m16n8k(?:16|32)", "s32", "s8|u8", _SATFINITE), aligned=True)
@instruction(pattern=_mma("m8n8k32|m16n8k(?:32|64)", "s32", "s4|u4", _SATFINITE), aligned=True)
@instruction(
    pattern=_mma("m8n8k128|m16n8k(?:128|256)", "s32", "b1", end=r"\.(xor|and)\.popc"), aligned=True
)
@instruction(pattern=_mma("m8n8k4|m16n8k(?:4|8|16)", "f64", "f64"), aligned=True)
def mma(warp, ins, match):
    """d, a, b, c: D = A B + C, fragments as in the module docstring. PTX ISA, mma: shapes by types."""
    saturate, of_d, of_a, of_b, of_c, bits = match.groups()[2:]
    rows, k = int(match[1]), int(match[2])
    if warp.mask != FULL:
        warp.fault(f"{ins.opcode} needs all 32 lanes")
    target, first, second, third = ins.operands
    a, b = _elements(warp, first, of_a), _elements(warp, second, of_b)
    given = a.shape[0] * a.shape[2] * 4 * 8 // rows, b.shape[0] * b.shape[2] * 4
    if given != (k, k) or of_c != of_d:
        warp.fault(
            f"{ins.opcode} with {a.shape[0]} registers of A and {b.shape[0]} of B, C .{of_c} and D .{of_d}: this shape "
            "has others",
            UnknownInstruction,
        )
    a, b = _matrix_a(a, k, rows), _matrix_b(b, k)
    with np.errstate(all="ignore"):
        if of_d == "f64":
            _chain_of_f64(warp, target, third, a, b)
            return
        product = a @ b
        if bits == "xor":  # a bit differs where a has it or b has it, but not both
            product = a.sum(1, keepdims=True) + b.sum(0, keepdims=True) - 2 * product
        _accumulate(warp, target, third, of_d, product, bool(saturate))


def _chain_of_f64(warp, target, third, a, b):
    """D = C + A B, one fused multiply-add after another along k, as an H200 does."""
    rows, columns = _places_of_c(len(a))
    for row, column, register, addend in zip(rows, columns, target.items, third.items, strict=True):
        total = warp.read64(addend).view(np.float64)
        for k in range(a.shape[1]):
            total = fma_f64(a[row, k], b[k, column], total)
        warp.write64(register, total.view(np.uint64))


def _places_of_c(rows):
    """The row and the column of each element of C that a lane holds."""
    parts = range(rows // 8)
    return [_G + 8 * n for n in parts for _ in range(2)], (2 * _T, 2 * _T + 1) * len(parts)


def _accumulate(warp, target, third, kind, product, saturate):
    """D = product + C into the registers of the fragment."""
    sums = [product[r, c] for r, c in zip(*_places_of_c(len(product)), strict=True)]
    if kind == "f16":
        for i, (register, addend) in enumerate(zip(target.items, third.items, strict=True)):
            bits = warp.read32(addend)
            parts = (bits & np.uint32(0xFFFF), bits >> np.uint32(16))
            low, high = (
                encode(sums[2 * i + j] + _DECODE["f16"](part), F16).astype(np.uint32)
                for j, part in enumerate(parts)
            )
            warp.write32(register, low | high << np.uint32(16))
        return
    for register, addend, values in zip(target.items, third.items, sums, strict=True):
        if kind == "f32":
            total = values + warp.read32(addend).view(np.float32)
            warp.write32(register, total.astype(np.float32).view(np.uint32))
        else:
            total = values + warp.read32(addend).view(np.int32)
            total = np.clip(total, -(1 << 31), (1 << 31) - 1) if saturate else total
            warp.write32(register, total.astype(np.uint32))
