"""Block-scaled products against NumPy: every kind, and where its scales lie; of a CTA and of a pair."""

import numpy as np
import pytest

from cute_fa4.emulator.machine.block_scale import ScaledMultiply, decode_scaled_instruction
from cute_fa4.emulator.ptx.errors import EmulatorError
from tests.emulator.test_tcgen05 import Bench

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
M, N = 128, 64
A, B = 2048, 16384  # shared offsets
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


def test_a_pair_has_its_own_scales_of_a_and_all_of_b():
    """M 256: rows 0 to 127 and half of B's columns in the even CTA, the rest in the odd one."""
    random = np.random.default_rng(1)
    bench = Bench(2)
    halves, scales, wide = [], [], 2 * N
    for cta in bench.ctas:
        cta.tmem.allocate(256)
        rows = random.integers(0, 256, (2, M, 32)).astype(np.uint8)
        operands = []
        for offset, data in ((A, rows[0]), (B, rows[1][:N])):
            shape = len(data) // 8, 8, 2, 16
            packed = np.ascontiguousarray(data.reshape(shape).transpose(2, 0, 1, 3))
            cta.shared.write(offset, packed.reshape(-1))
            operands.append(E2M1[np.stack((data & 15, data >> 4), -1)].reshape(-1, 64))
        halves.append(operands)
        codes = (125 + random.integers(0, 5, (2, M, 4))).astype(np.uint8)
        for column, some in ((128, codes[0]), (160, codes[1])):
            words = some.view(np.uint32).reshape(-1, 32)
            cta.tmem.write(0, column, np.tile(words, (1, 4)))
        scales.append([np.repeat(2.0 ** (c[:, :2].astype(float) - 127), 32, 1) for c in codes])
    bits = 1 << 7 | 1 << 10 | wide // 8 << 17 | 1 << 23 | 2 * M // 16 << 24
    shape = decode_scaled_instruction(bits, "mxf4", "2X", 2)
    multiply = ScaledMultiply(
        shape, tuple(bench.ctas), 0, descriptor(A, M), descriptor(B, N), False, False,
        scale_a=128, scale_b=160,
    )  # fmt: skip
    multiply.check()
    multiply.execute()
    b = np.concatenate([half[1] for half in halves])
    for cta, half, scale in zip(bench.ctas, halves, scales, strict=True):
        out = cta.tmem.read(0, 0, 128, wide).view(np.float32).T
        assert np.array_equal(out, ((half[0] * scale[0]) @ (b * scale[1]).T).astype(np.float32))


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
        ("mxf8f6f4", "1X", instruction("mxf8f6f4", 1) | 6 << 7, r"A format \(bits 7 to 9\) is 6"),
        ("mxf4nvf4", "4X", instruction("mxf4nvf4", 1) | 1 << 15, "majors"),
    ],
)
def test_what_has_no_meaning_is_refused(kind, vector, bits, message):
    with pytest.raises(EmulatorError, match=message):
        decode_scaled_instruction(bits, kind, vector, 1)
