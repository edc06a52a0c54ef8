"""tcgen05.mma.ws, and operands of 4 and 6 bits, against products in float64."""

import numpy as np
import pytest

from cute_fa4.emulator.machine.weight_stationary import masked_columns
from cute_fa4.emulator.ptx.errors import EmulatorError
from tests.emulator.test_tcgen05 import Bench

A, B = 2048, 32768  # shared offsets
MASK = 1 << 39 | 2 << 40 | 3 << 48  # runs of 3 masked and of 4 used columns


def place(cta, offset, rows):
    """Rows of 32 bytes, K-major without swizzle: the second 16 bytes follow after all rows; returns the descriptor."""
    count = len(rows)
    halves = rows.reshape(count // 8, 8, 2, 16).transpose(2, 0, 1, 3)
    cta.shared.write(offset, np.ascontiguousarray(halves).reshape(-1))
    return offset >> 4 | count << 16 | 8 << 32 | 1 << 46


def halves(random, *shape):
    return random.integers(-4, 5, shape).astype(np.float16)


def words(cta, columns):
    return cta.tmem.read(0, 0, 128, columns).view(np.float32)


@pytest.mark.parametrize("m, n, enable", [(128, 64, 0), (64, 128, 1), (32, 64, 0), (32, 256, 1)])
def test_every_lane_has_a_part_of_d(m, n, enable):
    """Element (i, j): lane i + m (j / columns), column j % columns, where columns = n m / 128."""
    random = np.random.default_rng(m + n)
    bench = Bench()
    cta, columns = bench.ctas[0], n * m // 128
    bench.tmem.allocate(256)
    bench.tmem.write(0, 0, np.full((256, 128), 0x3F800000, np.uint32))
    a, b = halves(random, m, 16), halves(random, n, 16)
    descriptors = place(cta, A, a.view(np.uint8)), place(cta, B, b.view(np.uint8))
    bench.run(
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::fill [%r0], %rd0, %rd1, %r1, %p1;",
        lanes=1, r0=0, rd0=descriptors[0], rd1=descriptors[1], p1=enable, r1=idesc(m, n),
    )  # fmt: skip
    bench.finish()
    exact = a.astype(float) @ b.astype(float).T + enable
    for j in range(n):
        lanes = np.arange(m) + m * (j // columns)
        assert np.array_equal(words(cta, columns)[j % columns, lanes], exact[:, j])


def idesc(m, n, formats=0):
    return 1 << 4 | formats | n // 8 << 17 | m // 16 << 24


@pytest.mark.parametrize("m", [128, 64, 32])
def test_a_in_tensor_memory_is_read_by_each_part_of_the_lanes(m):
    """M 64 and 32: two or four products in one, each with rows of A of its own."""
    random = np.random.default_rng(m)
    bench, n, parts = Bench(), 64, 128 // m
    bench.tmem.allocate(256)
    a, b = halves(random, 128, 16), halves(random, n, 16)
    bench.tmem.write(0, 128, np.ascontiguousarray(a.view(np.uint32).T))
    descriptor = place(bench.ctas[0], B, b.view(np.uint8))
    bench.run(
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], [%r2], %rd1, %r1, 0, %rd2;",
        lanes=1, r0=0, r2=128, rd1=descriptor, rd2=0, r1=idesc(m, n),
    )  # fmt: skip
    bench.finish()
    for part in range(parts):
        rows, columns = (
            slice(m * part, m * part + m),
            slice(n // parts * part, n // parts * (part + 1)),
        )
        exact = a[rows].astype(float) @ b[columns].astype(float).T
        assert np.array_equal(words(bench.ctas[0], n // parts)[:, rows].T, exact)


def text_of(mask):
    """As PTX ISA prints masks: the first column on the right."""
    return "".join("01"[int(bit)] for bit in mask[::-1])


@pytest.mark.parametrize(
    "parts, fields, ends",
    [
        (1, MASK, ["11100001110000"]),
        (2, MASK | 1 << 32, ["11100001110000111", "000011100001110000"]),
        (
            4,
            MASK | 1 << 8 | 2 << 16 | 1 << 24 | 3 << 32,
            ["00001110000111", "0000111000011", "111000011100", "1110000111000"],
        ),
        (1, MASK & ~(1 << 39), ["0" * 64]),
    ],
)
def test_zero_column_masks_are_those_of_the_isa(parts, fields, ends):
    """The examples of "Zero-Column Mask Descriptor"."""
    for mask, end in zip(
        np.split(masked_columns(fields, parts, 64 * parts), parts), ends, strict=True
    ):
        assert text_of(mask).endswith(end)


def test_masked_columns_of_b_are_zeros():
    bench, m, n = Bench(), 64, 64
    bench.tmem.allocate(64)
    ones = np.ones((64, 16), np.float16).view(np.uint8)
    ones[1, 0:2] = 0x00, 0x7C  # infinity, in a column that is masked
    descriptors = place(bench.ctas[0], A, np.ones((64, 16), np.float16).view(np.uint8)), 0
    descriptors = descriptors[0], place(bench.ctas[0], B, ones)
    bench.run(
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, 0, %rd2;",
        lanes=1, r0=0, rd0=descriptors[0], rd1=descriptors[1], rd2=MASK | 3 << 32, r1=idesc(m, n),
    )  # fmt: skip
    bench.finish()
    expected = np.where(np.arange(32) % 7 < 3, 0.0, 16.0)
    assert np.array_equal(words(bench.ctas[0], 32)[:, 0], expected)
    with pytest.raises(EmulatorError, match="column shift .* accepted: 0"):
        masked_columns(MASK | 2 << 56, 1, 64)


@pytest.mark.parametrize(
    "m, n, group, message",
    [
        (16, 64, 1, "M .* is 16; accepted: 32, 64, 128"),
        (64, 96, 1, "N .* is 96; accepted: 64, 128, 256"),
    ],
)
def test_other_shapes_are_refused(m, n, group, message):
    bench = Bench()
    bench.tmem.allocate(128)
    text = f"tcgen05.mma.ws.cta_group::{group}.kind::f16 [%r0], %rd0, %rd1, %r1, 0;"
    with pytest.raises(EmulatorError, match=message):
        bench.run(text, lanes=1, r0=0, rd0=1 << 46, rd1=1 << 46, r1=idesc(m, n))


# --- operands of 4 and 6 bits -------------------------------------------------------------------------

VALUES = {
    "e2m3": (
        3,
        6,
        lambda c: (
            [i / 8 for i in range(8)] + [x for e in (1, 2, 4) for x in e * (1 + np.arange(8) / 8)]
        ),
    ),
    "e3m2": (
        4,
        6,
        lambda c: (
            [i / 16 for i in range(4)]
            + [x * 2.0**e for e in range(-2, 5) for x in 1 + np.arange(4) / 4]
        ),
    ),
    "e2m1": (5, 4, lambda c: [0, 0.5, 1, 1.5, 2, 3, 4, 6]),
}


@pytest.mark.parametrize("name", VALUES)
def test_operands_of_4_and_6_bits(name):
    """16 elements begin each 16 bytes of shared memory; A is once in tensor memory, expanded by tcgen05.cp."""
    number, bits, positive = VALUES[name]
    table = np.array(positive(None), float)
    table = np.concatenate((table, -table))
    assert len(table) == 1 << bits
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (2, 128, 32)).astype(np.uint8)
    rows = []
    for matrix in codes:
        packed = random.integers(0, 256, matrix.shape).astype(np.uint8)
        each = np.unpackbits(matrix.reshape(-1, 16, 1), axis=2, bitorder="little")[:, :, :bits]
        packed.reshape(-1, 16)[:, : 2 * bits] = np.packbits(
            each.reshape(-1, 16 * bits), axis=1, bitorder="little"
        )
        rows.append(packed)
    exact = table[codes[0]] @ table[codes[1]].T
    for in_tensor_memory in (False, True):
        bench = Bench()
        bench.tmem.allocate(256)
        b = place(bench.ctas[0], B, rows[1])
        a = place(bench.ctas[0], A, rows[0])
        widened = codes[0] << (2 if bits == 4 else 0)
        bench.tmem.write(0, 128, np.ascontiguousarray(widened).view(np.uint32).T.copy())
        source = "[%r2]" if in_tensor_memory else "%rd0"
        bench.run(
            f"tcgen05.mma.cta_group::1.kind::f8f6f4 [%r0], {source}, %rd1, %r1, 0;",
            lanes=1, r0=0, r2=128, rd0=a, rd1=b, r1=idesc(128, 128, number << 7 | number << 10),
        )  # fmt: skip
        bench.finish()
        assert np.array_equal(words(bench.ctas[0], 128).T, exact.astype(np.float32))
