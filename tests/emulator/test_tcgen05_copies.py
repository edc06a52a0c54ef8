"""tcgen05.cp of every shape, its decompression, and tcgen05.shift, each against a table written element by element."""

import numpy as np
import pytest

from cute_fa4.emulator.instructions.instruction_table import lookup
from cute_fa4.emulator.ptx.errors import EmulatorError, UnknownInstruction
from tests.emulator.test_tcgen05 import Bench, fill

SOURCE = 4096
# shape -> (rows, bytes of a row, lanes that row r comes to)
SHAPES = {
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),  # warps 0 and 2: rows 0 to 31
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r % 32 + 64 * (r // 32) + w for w in (0, 32)]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
    "4x256b": (4, 32, lambda r: [32 * r]),
}


def place(cta, rows):
    """Rows of 16 or 32 bytes, K-major without swizzle: 8 rows of 16 bytes together; returns the descriptor."""
    count, nbytes = rows.shape
    padded = np.zeros((-(-count // 8) * 8, nbytes), np.uint8)
    padded[:count] = rows
    chunks = padded.reshape(-1, 8, nbytes // 16, 16).transpose(0, 2, 1, 3)
    cta.shared.write(SOURCE, np.ascontiguousarray(chunks).reshape(-1))
    return SOURCE >> 4 | 8 << 16 | nbytes // 16 * 8 << 32 | 1 << 46


def copied(shape, rows, suffix="", group=1, lane=0):
    """uint32[column, lane] of columns 4 to 11 of each CTA, 0xdeadbeef where nothing came."""
    bench = Bench(group)
    for cta, source in zip(bench.ctas, rows, strict=True):
        cta.tmem.allocate(32)
        cta.tmem.write(0, 0, np.full((32, 128), 0xDEADBEEF, np.uint32))
        descriptor = place(cta, source)
    text = f"tcgen05.cp.cta_group::{group}.{shape}{suffix} [%r3], %rd2;"
    bench.run(text, lanes=1, r3=lane << 16 | 4, rd2=descriptor)
    before = bench.tmem.words[4:12].copy()
    assert (before == 0xDEADBEEF).all()  # in flight
    bench.finish()
    return [cta.tmem.words[4:12].copy() for cta in bench.ctas]


def expected(shape, rows, lane=0):
    out = np.full((8, 128), 0xDEADBEEF, np.uint32)
    for r, row in enumerate(np.ascontiguousarray(rows).view(np.uint32)):
        for at in SHAPES[shape][2](r):
            out[: len(row), at + lane] = row
    return out


@pytest.mark.parametrize(
    "shape, group", [*((s, 1) for s in SHAPES), ("32x128b.warpx4", 2), ("128x256b", 2)]
)
def test_rows_come_to_their_lanes(shape, group):
    """Each CTA of a pair copies its own source."""
    rows, nbytes, _ = SHAPES[shape]
    sources = np.random.default_rng(0).integers(0, 256, (group, rows, nbytes)).astype(np.uint8)
    for got, source in zip(copied(shape, sources, group=group), sources, strict=True):
        np.testing.assert_array_equal(got, expected(shape, source))


@pytest.mark.parametrize("shape, start", [("64x128b.warpx2::02_13", 112), ("128x256b", 96)])
def test_a_copy_may_start_at_any_chunk_that_leaves_room_in_the_span(shape, start):
    """Columns of a swizzled tile, 16 bytes at a time: chunk c of row r lies at c xor (r mod 8)."""
    rows, nbytes, _ = SHAPES[shape]
    tile = np.random.default_rng(0).integers(0, 256, (rows, 8, 16)).astype(np.uint8)
    bench = Bench(1)
    [cta] = bench.ctas
    cta.tmem.allocate(32)
    cta.tmem.write(0, 0, np.full((32, 128), 0xDEADBEEF, np.uint32))
    at = np.arange(8) ^ np.arange(rows)[:, None] % 8
    cta.shared.write(SOURCE, np.take_along_axis(tile, at[..., None], 1).reshape(-1))
    descriptor = SOURCE + start >> 4 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61
    bench.run(f"tcgen05.cp.cta_group::1.{shape} [%r3], %rd2;", lanes=1, r3=4, rd2=descriptor)
    bench.finish()
    source = tile.reshape(rows, 128)[:, start : start + nbytes]
    np.testing.assert_array_equal(cta.tmem.words[4:12], expected(shape, source))


def test_four_rows_may_go_to_any_lane_of_the_quarters():
    source = np.arange(128, dtype=np.uint8).reshape(1, 4, 32)
    [got] = copied("4x256b", source, lane=31)
    np.testing.assert_array_equal(got, expected("4x256b", source[0], lane=31))


@pytest.mark.parametrize("shape", ["128x256b", "64x128b.warpx2::01_23"])
@pytest.mark.parametrize(
    "bits, suffix, shift", [(4, ".b8x16.b4x16_p64", 2), (6, ".b8x16.b6x16_p32", 0)]
)
def test_elements_of_4_and_6_bits_become_bytes(shape, bits, suffix, shift):
    """16 elements at the beginning of 16 bytes, the first in the lowest bits; the padding after is not looked at."""
    rows, nbytes, _ = SHAPES[shape]
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (rows, nbytes)).astype(np.uint8)
    packed = random.integers(0, 256, (rows, nbytes)).astype(np.uint8)
    for r in range(rows):
        for group in range(0, nbytes, 16):
            number = sum(int(c) << bits * i for i, c in enumerate(codes[r, group : group + 16]))
            packed[r, group : group + 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    [got] = copied(shape, packed[None], suffix)
    np.testing.assert_array_equal(got, expected(shape, codes << shift))


@pytest.mark.parametrize("spelling", ["cta_group::1.down", "down.cta_group::2"])
def test_shift_moves_rows_down_within_a_quarter(spelling):
    """Row r + 1 -> row r; rows 31, 63, 95 and 127 stay; 8 columns."""
    group = int(spelling[-1]) if spelling[-1].isdigit() else 1
    bench = Bench(group)
    for cta in bench.ctas:
        fill(cta.tmem)
    bench.run(f"tcgen05.shift.{spelling} [%r3];", lanes=1, r3=16)
    bench.finish()
    lanes = np.arange(128)
    moved = np.where(lanes % 32 == 31, lanes, lanes + 1) * 1000
    for cta in bench.ctas:
        for column in range(14, 26):
            rows = moved if 16 <= column < 24 else lanes * 1000
            assert np.array_equal(cta.tmem.words[column], rows + column)


@pytest.mark.parametrize(
    "text, lanes, address, message",
    [
        ("cp.cta_group::1.128x128b [%r3], %rd2", 1, 32 << 16, "lane 32; accepted: 0"),
        ("cp.cta_group::1.4x256b [%r3], %rd2", 1, 32 << 16, "lane 32; accepted: 0 to 31"),
        ("cp.cta_group::1.128x128b [%r3], %rd2", 3, 0, "by 2 threads"),
        ("shift.cta_group::1.down [%r3]", 1, 32 << 16, "accepted: 0 "),
        ("shift.cta_group::1.down [%r3]", 1, 508, "columns 508 to 515"),
    ],
)
def test_refused(text, lanes, address, message):
    bench = Bench()
    bench.tmem.allocate(512)
    descriptor = place(bench.ctas[0], np.zeros((128, 16), np.uint8))
    with pytest.raises(EmulatorError, match=message):
        bench.run(f"tcgen05.{text};", lanes=lanes, r3=address, rd2=descriptor)
        bench.finish()


@pytest.mark.parametrize(
    "opcode", ["64x128b", "32x128b", "128x256b.warpx4", "128x128b.b8x16.b6x16_p64.x"]
)
def test_shapes_without_their_multicast_have_no_meaning(opcode):
    with pytest.raises(UnknownInstruction):
        lookup(f"tcgen05.cp.cta_group::1.{opcode}")


def test_a_product_may_shift_the_rows_of_a():
    """Row r + 1 of A for row r of D, the last one stays; rows on which the two readings of the ISA differ are NaN."""
    bench, n = Bench(), 16
    bench.tmem.allocate(64)
    a = np.repeat(np.arange(128, dtype=np.float16)[:, None], 16, 1)
    a[64] = a[63]  # here both readings agree
    bench.tmem.write(0, 32, np.ascontiguousarray(a.view(np.uint32).T))
    ones = place(bench.ctas[0], np.ones((n, 16), np.float16).view(np.uint8))
    idesc = 1 << 4 | n // 8 << 17 | 128 // 16 << 24
    product = (
        "tcgen05.mma.cta_group::1.kind::f16.ashift.collector::a::lastuse [%r0], {}, %rd1, %r1, 0;"
    )
    bench.run(product.format("[%r2]"), lanes=1, r0=0, r1=idesc, r2=32, rd1=ones)
    bench.finish()
    expected = 16.0 * a[np.minimum(np.arange(128) + 1, 127), 0]
    expected[[31, 95]] = np.nan
    assert np.array_equal(
        bench.tmem.read(0, 0, 128, n).view(np.float32)[3], expected, equal_nan=True
    )
    with pytest.raises(EmulatorError, match="in shared memory; accepted: 128 rows a CTA in tensor"):
        bench.run(product.format("%rd0"), lanes=1, r0=0, r1=idesc, rd0=ones, rd1=ones)
