"""ldmatrix, stmatrix and mma.sync against the matrices they mean, written down by NumPy."""

import itertools

import numpy as np
import pytest

from tests.emulator.core.ptx_bench import run_ptx

LANE = np.arange(32)
# %r1 thread, %r2 dyn, %r3 address of the thread's row of 16 bytes; p0 is copied to shared memory, p1 takes results.
START = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn; shl.b32 %r4, %r1, 4; add.s32 %r3, %r2, %r4;
    ld.param.b64 %rd1, [p0]; cvt.u64.u32 %rd2, %r4; add.s64 %rd1, %rd1, %rd2;
    ld.param.b64 %rd3, [p1]; add.s64 %rd3, %rd3, %rd2;
"""


def aligned(values):
    storage = np.zeros(values.nbytes + 16, np.uint8)
    start = -storage.ctypes.data % 16
    out = storage[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_ldmatrix_gives_each_lane_its_two_elements(tiles, transposed):
    """Lane l: elements (l / 4, 2 (l % 4)) and the next, of each tile or of its transpose."""
    rows = aligned(np.arange(256, dtype=np.uint16).reshape(32, 8))
    registers = ", ".join(f"%r{10 + i}" for i in range(tiles))
    zeros = "".join(f"mov.b32 %r{10 + i}, 0;" for i in range(4))
    out = aligned(np.zeros((32, 4), np.uint32))
    run_ptx(
        START + zeros + f"""
        ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd1];
        st.shared.v4.b32 [%r3], {{%r20, %r21, %r22, %r23}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{tiles}{".trans" if transposed else ""}.shared.b16 {{{registers}}}, [%r3];
        st.global.v4.b32 [%rd3], {{%r10, %r11, %r12, %r13}};
        """,
        rows, out, shared=1024, checks="ptx",
    )  # fmt: skip
    for tile in range(tiles):
        matrix = rows[8 * tile : 8 * tile + 8]
        matrix = matrix.T if transposed else matrix
        low, high = matrix[LANE // 4, 2 * (LANE % 4)], matrix[LANE // 4, 2 * (LANE % 4) + 1]
        assert np.array_equal(out[:, tile], low.astype(np.uint32) | high.astype(np.uint32) << 16)


@pytest.mark.parametrize(
    "shape, tiles, bits",
    [
        ("m8n16", 1, 4),
        ("m8n16", 4, 6),
        ("m16n16", 1, 8),
        ("m16n16", 2, 4),
        ("m16n16", 2, 6),
        ("m8n16", 2, 4),
    ],
)
def test_ldmatrix_of_bytes_and_of_packed_elements(shape, tiles, bits):
    """Bytes as CUTLASS's copy traits of SM100 have them; the first 2 or 12 bits of a row are its first elements."""
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    rows = aligned(random.integers(0, 256, (32, 16)).astype(np.uint8))
    for row, elements in zip(rows, codes, strict=True):
        number = sum(int(c) << bits * i for i, c in enumerate(elements))
        row[: 2 * bits] = list(number.to_bytes(2 * bits, "little"))
    suffix = {8: "b8", 6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}[bits]
    count = tiles * (2 if shape == "m16n16" else 1)
    registers = ", ".join(f"%r{10 + i}" for i in range(count))
    zeros = "".join(f"mov.b32 %r{10 + i}, 0;" for i in range(4))
    out = aligned(np.zeros((32, 4), np.uint32))
    transposed = ".trans" if shape == "m16n16" else ""
    run_ptx(
        START + zeros + f"""
        ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd1];
        st.shared.v4.b32 [%r3], {{%r20, %r21, %r22, %r23}}; bar.sync 0;
        ldmatrix.sync.aligned.{shape}.x{tiles}{transposed}.shared.{suffix} {{{registers}}}, [%r3];
        st.global.v4.b32 [%rd3], {{%r10, %r11, %r12, %r13}};
        """,
        rows, out, shared=1024, checks="ptx",
    )  # fmt: skip
    got = out.view(np.uint8).reshape(32, 4, 4)
    for lane, register, j in np.ndindex(32, count, 4):
        at = 4 * (lane % 4) + j
        if shape == "m8n16":
            expected = codes[8 * register + lane // 4, at]
        else:
            expected = codes[16 * (register // 2) + at, lane // 4 + 8 * (register % 2)]
        assert got[lane, register, j] == expected


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_stmatrix_of_bytes_writes_columns_as_rows(tiles):
    """Register r of lane l, byte i: row 8 r + 2 (l % 4) + i % 2, byte l / 4 + 8 (i / 2)."""
    values = aligned(np.arange(128, dtype=np.uint32).reshape(32, 4) * np.uint32(0x9E3779B1))
    out = aligned(np.zeros((32, 16), np.uint8))
    registers = ", ".join(f"%r{20 + i}" for i in range(tiles))
    run_ptx(
        START + f"""
        ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd1]; mov.b32 %r10, 0;
        st.shared.v4.b32 [%r3], {{%r10, %r10, %r10, %r10}}; bar.warp.sync -1;
        stmatrix.sync.aligned.m16n8.x{tiles}.trans.shared.b8 [%r3], {{{registers}}}; bar.warp.sync -1;
        ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r3];
        st.global.v4.b32 [%rd3], {{%r20, %r21, %r22, %r23}};
        """,
        values, out, shared=1024, checks="ptx",
    )  # fmt: skip
    written = values.view(np.uint8).reshape(32, 4, 4)
    expected = np.zeros((32, 16), np.uint8)
    for lane in range(32):
        for r in range(tiles):
            for i in range(4):
                expected[8 * r + 2 * (lane % 4) + i % 2, lane // 4 + 8 * (i // 2)] = written[
                    lane, r, i
                ]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_stmatrix_is_the_inverse_of_ldmatrix(transposed):
    rows = aligned(np.arange(256, dtype=np.uint16).reshape(32, 8))
    out = aligned(np.zeros((32, 8), np.uint16))
    registers = "{%r10, %r11, %r12, %r13}"
    run_ptx(
        START + f"""
        ld.global.v4.b32 {{%r20, %r21, %r22, %r23}}, [%rd1];
        st.shared.v4.b32 [%r3], {{%r20, %r21, %r22, %r23}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {registers}, [%r3];
        stmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 [%r3+512], {registers}; bar.warp.sync -1;
        ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r3+512];
        st.global.v4.b32 [%rd3], {{%r20, %r21, %r22, %r23}};
        """,
        rows, out, shared=1024, checks="ptx",
    )  # fmt: skip
    assert np.array_equal(out, rows)


def fragment_a(a, w):
    """Registers of A (16 x k), elements of 32 / w bits: rows g, g + 8, g, g + 8; halves of k."""
    g, t, k = LANE // 4, LANE % 4, a.shape[1]
    count = k // (4 * w) * 2
    parts = [
        np.stack([a[g + 8 * (r % 2), w * t + i + 4 * w * (r // 2)] for i in range(w)], 1)
        for r in range(count)
    ]
    return np.stack([np.ascontiguousarray(p).view(np.uint32).reshape(32) for p in parts], 1)


def fragment_b(b, w):
    g, t, k = LANE // 4, LANE % 4, b.shape[0]
    parts = [
        np.stack([b[w * t + i + 4 * w * r, g] for i in range(w)], 1) for r in range(k // (4 * w))
    ]
    return np.stack([np.ascontiguousarray(p).view(np.uint32).reshape(32) for p in parts], 1)


# Small integers are exact in every type, so the sums are.
CODES = {
    "f16": lambda x: x.astype(np.float16).view(np.uint16),
    "bf16": lambda x: (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
    "tf32": lambda x: x.astype(np.float32).view(np.uint32),
    "s8": lambda x: x.astype(np.int8).view(np.uint8),
}


@pytest.mark.parametrize("rows, k, kind, registers", [
    (8, 16, "u8.s8", (1, 1)), (16, 16, "s8.u8", (2, 1)), (16, 32, "u8.u8", (4, 2)),
    (8, 32, "s4.u4", (1, 1)), (16, 32, "u4.s4", (2, 1)), (16, 64, "s4.s4", (4, 2)),
    (8, 128, "b1.b1", (1, 1)), (16, 128, "b1.b1", (2, 1)), (16, 256, "b1.b1", (4, 2)),
    (8, 4, "f64.f64", (1, 1)), (16, 4, "f64.f64", (2, 1)), (16, 8, "f64.f64", (4, 2)), (16, 16, "f64.f64", (8, 4)),
])  # fmt: skip
def test_mma_of_every_integer_and_of_f64(rows, k, kind, registers):
    """Words of A, B and C from random bits. Element i of register r: column w t + i of part r / (rows / 8) of k."""
    random = np.random.default_rng(k)
    of_a, of_b = kind.split(".")
    real = of_a == "f64"
    if real:
        words = [random.integers(-9, 9, (n, 32)).astype(float).view(np.uint64) for n in registers]
        c = random.integers(-9, 9, (rows // 4, 32)).astype(float).view(np.uint64)
    else:
        words = [random.integers(0, 1 << 32, (n, 32), np.uint64) for n in registers]
        c = random.integers(0, 1 << 32, (rows // 4, 32), np.uint64)
    endings = [".xor.popc", ".and.popc"] if of_a == "b1" else [""]
    saturating = ["", ".satfinite"] if of_a[0] in "su" else [""]
    for saturate, end in itertools.product(saturating, endings):
        opcode = (
            f"mma.sync.aligned.m{rows}n8k{k}.row.col{saturate}.{'f64' if real else 's32'}.{kind}"
        )
        got = run_mma(f"{opcode}.{'f64' if real else 's32'}{end}", [*words, c], real)
        a = np.zeros((rows, k), object)
        b = np.zeros((k, 8), object)
        elements = [elements_of(words[0], of_a), elements_of(words[1], of_b)]
        w, g = elements[0].shape[2], rows // 8
        for r, lane, i in np.ndindex(*elements[0].shape):
            a[lane // 4 + 8 * (r % g), w * (lane % 4) + i + 4 * w * (r // g)] = elements[0][
                r, lane, i
            ]
        for r, lane, i in np.ndindex(*elements[1].shape):
            b[w * (lane % 4) + i + 4 * w * r, lane // 4] = elements[1][r, lane, i]
        for r, lane in np.ndindex(*c.shape):
            row, column = a[lane // 4 + 8 * (r // 2)], b[:, 2 * (lane % 4) + r % 2]
            both = (x ^ y if "xor" in end else x * y for x, y in zip(row, column, strict=True))
            addend = (
                c[r, lane].view(float) if real else int(c[r, lane].astype(np.uint32).view(np.int32))
            )
            total = sum(both) + addend
            if saturate:
                total = min(max(total, -(1 << 31)), (1 << 31) - 1)
            seen = got[r, lane].view(float) if real else int(got[r, lane])
            assert seen == (total if real else total & 0xFFFFFFFF), opcode


def elements_of(words, kind):
    """[register, lane, element]: Python numbers."""
    if kind == "f64":
        return words.view(float)[:, :, None].astype(object)
    bits = int(kind[1:])
    parts = np.stack(
        [words >> np.uint64(at) & np.uint64((1 << bits) - 1) for at in range(0, 32, bits)], 2
    )
    parts = parts.astype(object)
    return np.where(parts >> bits - 1 == 1, parts - (1 << bits), parts) if kind[0] == "s" else parts


def run_mma(opcode, operands, real):
    """The registers of D, as 64-bit words: every operand is [register, lane] words."""
    flat = np.concatenate(operands).T.copy()  # [lane, word]
    count, results = flat.shape[1], len(operands[2])
    out = np.zeros((32, results), np.uint64)
    bank = "%rd" if real else "%r"
    load = "ld.global.b64 %rd{0}, [%rd30+{1}];" if real else "ld.global.b32 %r{0}, [%rd30+{1}];"
    firsts = np.cumsum([0, *map(len, operands)])
    names = [
        "{" + ", ".join(f"{bank}{n}" for n in range(first, first + len(words))) + "}"
        for first, words in zip(firsts[:3], operands, strict=True)
    ]
    body = (
        f"mov.u32 %r31, %laneid; mul.wide.u32 %rd31, %r31, {8 * count}; ld.param.b64 %rd30, [p0];"
    )
    body += "add.s64 %rd30, %rd30, %rd31;" + "".join(load.format(n, 8 * n) for n in range(count))
    body += f"mul.wide.u32 %rd31, %r31, {8 * results}; ld.param.b64 %rd30, [p1]; add.s64 %rd30, %rd30, %rd31;"
    body += f"{opcode} {names[2]}, {names[0]}, {names[1]}, {names[2]};"
    store = "st.global.b64 [%rd30+{1}], %rd{0};" if real else "st.global.b32 [%rd30+{1}], %r{0};"
    body += "".join(store.format(firsts[2] + n, 8 * n) for n in range(results))
    run_ptx(body, flat, out)
    return out.T


def test_movmatrix_transposes_a_tile():
    tile = np.arange(64, dtype=np.uint32).reshape(8, 8) * 1001
    pairs = lambda m: (
        m[LANE // 4, 2 * (LANE % 4)] | m[LANE // 4, 2 * (LANE % 4) + 1] << np.uint32(16)
    )
    out = pairs(tile).astype(np.uint32)
    run_ptx(
        """
        mov.u32 %r1, %laneid; mul.wide.u32 %rd2, %r1, 4; ld.param.b64 %rd1, [p0]; add.s64 %rd1, %rd1, %rd2;
        ld.global.b32 %r2, [%rd1]; movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2; st.global.b32 [%rd1], %r3;
        """,
        out,
    )
    np.testing.assert_array_equal(out, pairs(tile.T))


@pytest.mark.parametrize(
    "shape, kind, d",
    [
        (16, "bf16", "f32"),
        (8, "f16", "f32"),
        (16, "f16", "f16"),
        (8, "tf32", "f32"),
        (32, "s8", "s32"),
    ],
)
def test_mma_multiplies_the_matrices_of_its_fragments(shape, kind, d):
    random = np.random.default_rng(shape)
    a, b = random.integers(-3, 4, (16, shape)), random.integers(-3, 4, (shape, 8))
    code = CODES[kind]
    w = 4 // code(a).itemsize
    fragments = [fragment_a(code(a), w), fragment_b(code(b), w)]
    inputs = aligned(np.zeros((32, 8), np.uint32))
    inputs[:, : fragments[0].shape[1]] = fragments[0]
    inputs[:, 4 : 4 + fragments[1].shape[1]] = fragments[1]
    out = aligned(np.zeros((32, 4), np.uint32))
    names = [
        ", ".join(f"%r{first + i}" for i in range(f.shape[1]))
        for first, f in zip((10, 14), fragments, strict=True)
    ]
    c = "%r20, %r21, %r22, %r23" if d != "f16" else "%r20, %r21"
    run_ptx(
        START + f"""
        mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;
        sub.s64 %rd1, %rd1, %rd2; shl.b64 %rd2, %rd2, 1; add.s64 %rd1, %rd1, %rd2;
        ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd1]; ld.global.v4.b32 {{%r14, %r15, %r16, %r17}}, [%rd1+16];
        mma.sync.aligned.m16n8k{shape}.row.col.{d}.{kind}.{kind}.{d} {{{c}}}, {{{names[0]}}}, {{{names[1]}}}, {{{c}}};
        mma.sync.aligned.m16n8k{shape}.row.col.{d}.{kind}.{kind}.{d} {{{c}}}, {{{names[0]}}}, {{{names[1]}}}, {{{c}}};
        st.global.v4.b32 [%rd3], {{%r20, %r21, %r22, %r23}};
        """,
        inputs, out,
    )  # fmt: skip
    expected = 2 * a @ b
    g, t = LANE // 4, LANE % 4
    if d == "f16":
        halves = out[:, :2].copy().view(np.float16).reshape(32, 4)
    else:
        halves = out.view(np.int32 if d == "s32" else np.float32)
    for i, (row, column) in enumerate(
        ((g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1))
    ):
        assert np.array_equal(halves[:, i], expected[row, column])
