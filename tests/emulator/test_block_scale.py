"""Block-scaled products and tcgen05.cp against NumPy: every kind, and where its scales lie."""

import numpy as np
import pytest

from cute_fa4.emulator.errors import EmulatorError, UnknownInstruction
from cute_fa4.emulator.instruction_table import lookup
from cute_fa4.emulator.machine.block_scale import ScaledMultiply, decode_scaled_instruction
from tests.emulator.test_tcgen05 import Bench

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
M, N = 128, 64
A, B, SCALES = 2048, 16384, 32768  # shared offsets
# K-major without swizzle: groups of 8 rows x 16 bytes; the second half of 32 bytes follows after all rows.
ROWS = {A: M, B: N}


def descriptor(offset, rows):
    """Shared-memory descriptor: leading offset to the next 16 bytes of K, stride offset to the next 8 rows."""
    return offset >> 4 | (rows * 16 >> 4) << 16 | (128 >> 4) << 32 | 1 << 46


def place(bench, offset, data):
    """Rows of 32 bytes as core matrices of 8 x 16 bytes."""
    rows = data.shape[0]
    halves = data.reshape(rows // 8, 8, 2, 16).transpose(2, 0, 1, 3)
    bench.ctas[0].shared.write(offset, np.ascontiguousarray(halves).reshape(-1))


def instruction(kind, ue8m0, a_id=0, b_id=0):
    form = 1 if kind != "mxf8f6f4" else 0  # e2m1, or e4m3
    bits = (
        b_id << 4 | form << 7 | form << 10 | N // 8 << 17 | ue8m0 << 23 | M // 16 << 24 | a_id << 29
    )
    return bits


def factors(codes, ue8m0):
    """Small powers of two in either format: 2^(code - 127), and e4m3 with a bias of 7."""
    return 2.0 ** (codes.astype(float) - 127) if ue8m0 else 2.0 ** ((codes >> 3).astype(float) - 7)


@pytest.mark.parametrize(
    "kind, vector, block, ue8m0, ids",
    [
        ("mxf8f6f4", "1X", 32, 1, (3, 1)),
        ("mxf4", "block32", 32, 1, (0, 2)),
        ("mxf4nvf4", "2X", 32, 1, (2, 0)),
        ("mxf4nvf4", "block16", 16, 0, (0, 0)),
        ("mxf4nvf4", "4X", 16, 1, (0, 0)),
    ],
)
def test_products_carry_a_scale_for_every_block(kind, vector, block, ue8m0, ids):
    """Scales of row r: lane r % 32, column r / 32, the bytes that the scale ids name."""
    random = np.random.default_rng(0)
    bench = Bench()
    tmem = bench.tmem
    tmem.allocate(256)
    operands, scaled = [], []
    for offset, first, column in ((A, ids[0], 128), (B, ids[1], 160)):
        rows = ROWS[offset]
        if kind == "mxf8f6f4":
            # e4m3 of small powers of two, with signs
            data = (
                random.integers(5, 10, (rows, 32)) << 3 | random.integers(0, 2, (rows, 32)) << 7
            ).astype(np.uint8)
            values = np.where(data & 0x80, -1, 1) * 2.0 ** ((data >> 3 & 15).astype(float) - 7)
        else:
            data = random.integers(0, 256, (rows, 32)).astype(np.uint8)
            values = E2M1[np.stack((data & 15, data >> 4), -1)].reshape(rows, 64)
        place(bench, offset, data)
        low = 125 if ue8m0 else 6 << 3
        codes = (low + random.integers(0, 3, (rows, 4)) * (1 if ue8m0 else 8)).astype(np.uint8)
        words = codes.view(np.uint32).reshape(rows // 32, 32)
        tmem.write(0, column, np.tile(words, (1, 4)))
        used = factors(codes[:, first : first + values.shape[1] // block], ue8m0)
        operands.append(descriptor(offset, rows))
        scaled.append(values * np.repeat(used, block, 1))
    shape = decode_scaled_instruction(instruction(kind, ue8m0, *ids), kind, vector, 1)
    assert shape.k == scaled[0].shape[1] and shape.block == block
    multiply = ScaledMultiply(
        shape, (bench.ctas[0],), 0, *operands, False, False, scale_a=128, scale_b=160
    )
    multiply.check()
    multiply.execute()
    out = tmem.read(0, 0, 128, N).view(np.float32).T
    assert np.array_equal(out, (scaled[0] @ scaled[1].T).astype(np.float32))


def test_scales_are_copied_to_all_quarters():
    """Row r of 16 bytes: lanes r, r + 32, r + 64, r + 96, four columns."""
    bench = Bench()
    bench.tmem.allocate(32)
    rows = np.arange(512, dtype=np.uint16).astype(np.uint8).reshape(32, 16)
    bench.ctas[0].shared.write(SCALES, rows.reshape(-1))
    source = SCALES >> 4 | 1 << 16 | (128 >> 4) << 32 | 1 << 46
    bench.run("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r3], %rd2;", lanes=1, r3=4, rd2=source)
    with pytest.raises(EmulatorError):
        bench.tmem.read(0, 4, 128, 4)
    bench.finish()
    words = bench.tmem.read(0, 4, 128, 4)
    expected = np.ascontiguousarray(rows).view(np.uint32)
    for quarter in range(4):
        assert np.array_equal(words[:, 32 * quarter : 32 * quarter + 32], expected.T)


@pytest.mark.parametrize(
    "kind, vector, bits, message",
    [
        ("mxf4", "1X", instruction("mxf4", 1), "scale vector size is 1X"),
        ("mxf4", "2X", instruction("mxf4", 0), r"scale format \(bit 23\) is 0"),
        (
            "mxf4",
            "2X",
            instruction("mxf4", 1, 1),
            r"scale id of A \(bits 29 and 30\) is 1; accepted: 0, 2",
        ),
        ("mxf8f6f4", "1X", instruction("mxf8f6f4", 1) | 5 << 7, r"A format \(bits 7 to 9\) is 5"),
        ("mxf4nvf4", "4X", instruction("mxf4nvf4", 1) | 1 << 15, "majors"),
    ],
)
def test_what_has_no_meaning_is_refused(kind, vector, bits, message):
    with pytest.raises(EmulatorError, match=message):
        decode_scaled_instruction(bits, kind, vector, 1)


def test_other_copies_are_refused():
    for shape in ("128x256b", "4x256b", "64x128b.warpx2::02_13", "32x128b.warpx4.b8x16.b4x16_p64"):
        with pytest.raises(UnknownInstruction, match="only 32x128b.warpx4"):
            lookup(f"tcgen05.cp.cta_group::1.{shape}")
