"""tcgen05.mma.sp against products of the uncompressed matrices in float64.

The oracle of where metadata lies is CUTLASS's layout of its fragments (tmem_e_frg), evaluated element by element: index
(m, k) counts lanes first, 128 of them, then the element's share of the 4 bits that its group has.
"""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import EmulatorError, UninitializedRead
from tests.emulator.test_tcgen05 import Bench

A, B, META, SCALES = 2048, 32768, 128, 160
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
# kind -> (K, group, kept of it, formats in the instruction descriptor)
KINDS = {
    "tf32": (16, 2, 1, 1 << 4 | 2 << 7 | 2 << 10),
    "f16": (32, 4, 2, 1 << 4),
    "f8f6f4": (64, 4, 2, 1 << 4),
    "i8": (64, 4, 2, 2 << 4 | 1 << 7 | 1 << 10),
    "mxf8f6f4": (64, 4, 2, 1 << 23),
    "mxf4": (128, 8, 4, 1 << 7 | 1 << 10 | 1 << 23),
    "mxf4nvf4": (128, 8, 4, 1 << 7 | 1 << 10),
}
INTERLEAVED = {
    "f16": (16, 2048),
    "tf32": (8, 1024),
}  # kind -> elements of half of K, stride of rows 8 to 15


def index_of(kind, m, k):
    """CUTLASS: ((8, 2, 8), (16, 2)) : ((1, 2048, 16), (128, 8)) for 16 bits; (128, K) : (1, 128) for narrower ones."""
    if kind not in INTERLEAVED:
        return m + 128 * k
    half, rows = INTERLEAVED[kind]
    return m % 8 + m // 8 % 2 * rows + m // 16 * 16 + k % half * 128 + k // half * 8


def sparse_rows(random, rows, kind):
    """(kept positions [row, group, kept], metadata [row, group]): every pattern that has a meaning occurs."""
    k, group, kept, _ = KINDS[kind]
    if kept == 1:
        first = random.integers(0, 2, (rows, k // group, 1))
        return first, np.where(first, 0b1110, 0b0100)[..., 0]
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    chosen = pairs[random.integers(0, 6, (rows, k // group))]
    metadata = chosen[..., 0] | chosen[..., 1] << 2
    if kept == 4:
        chosen = np.stack([2 * chosen[..., i] + j for i in (0, 1) for j in (0, 1)], -1)
    return chosen, metadata


def metadata_words(kind, metadata, selector=0, rows=128):
    """Words [column, lane] of two columns; unused bits are an invalid pattern."""
    words = np.zeros((2, 128), np.uint64)
    group = KINDS[kind][1]
    for m, g in np.ndindex(metadata.shape):
        index = index_of(kind, m, g * group)
        bit = index // 128 * 4 // group + 32 * selector
        words[bit // 32, index % 128] |= np.uint64(int(metadata[m, g]) << bit % 32)
    return words.astype(np.uint32)


def encoded(kind, values):
    """Rows of numbers that every kind has -> bytes."""
    if kind in ("f8f6f4", "mxf8f6f4"):
        codes = {0: 0, 1: 0x38, 2: 0x40, -1: 0xB8, -2: 0xC0, 3: 0x44, -3: 0xC4}
        return np.vectorize(codes.__getitem__, otypes=[np.uint8])(values.astype(int))
    if kind.startswith("mxf4"):
        codes = {0: 0, 1: 2, 2: 4, 3: 5, -1: 10, -2: 12, -3: 13}
        each = np.vectorize(codes.__getitem__, otypes=[np.uint8])(values.astype(int))
        return each[:, ::2] | each[:, 1::2] << 4
    types = {"tf32": np.float32, "f16": np.float16, "i8": np.int8}
    return values.astype(types[kind]).view(np.uint8)


def place(cta, offset, rows):
    """Rows of bytes, K-major without swizzle: each 16 bytes of K follow after all rows; returns the descriptor."""
    count, width = rows.shape
    chunks = rows.reshape(count // 8, 8, width // 16, 16).transpose(2, 0, 1, 3)
    cta.shared.write(offset, np.ascontiguousarray(chunks).reshape(-1))
    return offset >> 4 | count << 16 | 8 << 32 | 1 << 46


def operands(random, kind, m, n):
    """(kept values [m, K / 2], dense [m, K], B [n, K], metadata codes)."""
    k, group, kept, _ = KINDS[kind]
    chosen, metadata = sparse_rows(random, m, kind)
    values = random.integers(-3, 4, chosen.shape).astype(float)
    dense = np.zeros((m, k // group, group))
    np.put_along_axis(dense, chosen, values, 2)
    b = random.integers(-3, 4, (n, k)).astype(float)
    return values.reshape(m, -1), dense.reshape(m, k), b, metadata


def idesc(kind, m, n, selector=0):
    return KINDS[kind][3] | 4 | selector | n // 8 << 17 | m // 16 << 24


def result(cta, kind, columns):
    words = cta.tmem.read(0, 0, 128, columns)
    return words.view(np.int32 if kind == "i8" else np.float32).T


@pytest.mark.parametrize("selector, in_tensor_memory", [(0, False), (1, True)])
@pytest.mark.parametrize("kind", ["tf32", "f16", "f8f6f4", "i8"])
def test_metadata_says_which_elements_are_kept(kind, selector, in_tensor_memory):
    """N 16: the smallest; each of the two columns of metadata of 16- and 32-bit elements."""
    selector = selector if kind in INTERLEAVED else 0
    random, bench, n = np.random.default_rng(selector), Bench(), 16
    cta = bench.ctas[0]
    cta.tmem.allocate(256)
    values, dense, b, metadata = operands(random, kind, 128, n)
    words = metadata_words(kind, metadata, selector)
    cta.tmem.write(0, META, words)
    rows = encoded(kind, values)
    cta.tmem.write(0, 64, np.ascontiguousarray(rows.view(np.uint32).T))
    a, b_at = place(cta, A, rows), place(cta, B, encoded(kind, b))
    source = "[%r3]" if in_tensor_memory else "%rd0"
    bench.run(
        f"tcgen05.mma.sp.cta_group::1.kind::{kind} [%r0], {source}, %rd1, [%r2], %r1, 0;",
        lanes=1, r0=0, r1=idesc(kind, 128, n, selector), r2=META, r3=64, rd0=a, rd1=b_at,
    )  # fmt: skip
    bench.finish()
    assert np.array_equal(result(cta, kind, n), dense @ b.T)


@pytest.mark.parametrize("kind, vector", [("mxf8f6f4", ""), ("mxf4", ""), ("mxf4nvf4", ".block16")])
def test_a_scale_has_twice_as_many_elements(kind, vector):
    """64 of K a scale (mxf4nvf4 with block16: 32), as CUTLASS's vector sizes of sparse products."""
    random, bench, n = np.random.default_rng(2), Bench(), 32
    cta = bench.ctas[0]
    cta.tmem.allocate(256)
    values, dense, b, metadata = operands(random, kind, 128, n)
    cta.tmem.write(0, META, metadata_words(kind, metadata))
    per_row = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}[kind]
    scaled = []
    for column, matrix in ((SCALES, dense), (SCALES + 8, b)):
        exponents = random.integers(-1, 2, (len(matrix), 4))
        codes = (exponents + 127 if kind != "mxf4nvf4" else exponents + 7 << 3).astype(np.uint8)
        words = codes.view(np.uint32).reshape(-1, 32)
        cta.tmem.write(0, column, np.tile(words, (1, 4)))
        each = np.repeat(2.0 ** exponents[:, :per_row], matrix.shape[1] // per_row, 1)
        scaled.append(matrix * each)
    descriptors = place(cta, A, encoded(kind, values)), place(cta, B, encoded(kind, b))
    bench.run(
        f"tcgen05.mma.sp.cta_group::1.kind::{kind}.block_scale{vector} "
        "[%r0], %rd0, %rd1, [%r2], %r1, [%r3], [%r4], 0;",
        lanes=1, r0=0, r1=idesc(kind, 128, n), r2=META, r3=SCALES, r4=SCALES + 8,
        rd0=descriptors[0], rd1=descriptors[1],
    )  # fmt: skip
    bench.finish()
    assert np.array_equal(result(cta, kind, n), scaled[0] @ scaled[1].T)


def test_each_cta_of_a_pair_has_metadata_of_its_rows():
    random, bench, kind, n = np.random.default_rng(3), Bench(2), "f16", 32
    values, dense, b, metadata = operands(random, kind, 256, n)
    for rank, cta in enumerate(bench.ctas):
        cta.tmem.allocate(256)
        mine = slice(128 * rank, 128 * rank + 128)
        cta.tmem.write(0, META, metadata_words(kind, metadata[mine]))
        a = place(cta, A, encoded(kind, values[mine]))
        b_at = place(cta, B, encoded(kind, b[16 * rank : 16 * rank + 16]))
    bench.run(
        "tcgen05.mma.sp.cta_group::2.kind::f16 [%r0], %rd0, %rd1, [%r2], %r1, 0;",
        lanes=1, r0=0, r1=idesc(kind, 256, n), r2=META, rd0=a, rd1=b_at,
    )  # fmt: skip
    bench.finish()
    got = np.concatenate([result(cta, kind, n) for cta in bench.ctas])
    assert np.array_equal(got, dense @ b.T)


@pytest.mark.parametrize("m, kind", [(128, "f8f6f4"), (64, "f16"), (32, "tf32")])
def test_weight_stationary(m, kind):
    """Each part of the lanes has metadata of its own, here of one A."""
    random, bench, n, parts = np.random.default_rng(m), Bench(), 64, 128 // m
    cta = bench.ctas[0]
    cta.tmem.allocate(256)
    values, dense, b, metadata = operands(random, kind, m, n)
    words = metadata_words(kind, metadata)[:, :m]
    cta.tmem.write(0, META, np.tile(words, (1, parts)))
    descriptors = place(cta, A, encoded(kind, values)), place(cta, B, encoded(kind, b))
    bench.run(
        f"tcgen05.mma.ws.sp.cta_group::1.kind::{kind} [%r0], %rd0, %rd1, [%r2], %r1, 0;",
        lanes=1, r0=0, r1=idesc(kind, m, n), r2=META, rd0=descriptors[0], rd1=descriptors[1],
    )  # fmt: skip
    bench.finish()
    exact, got = dense @ b.T, result(cta, kind, n // parts)
    for part, columns in enumerate(np.split(exact, parts, axis=1)):
        assert np.array_equal(got[m * part : m * part + m], columns)


def test_what_is_undefined_is_refused():
    random, kind, n = np.random.default_rng(5), "f16", 16
    values, _, b, metadata = operands(random, kind, 128, n)

    right = metadata_words(kind, metadata)

    def product(words=right, meta=META, b_swizzle=0, **changed):
        bench = Bench()
        cta = bench.ctas[0]
        cta.tmem.allocate(256)
        if words is not None:
            cta.tmem.write(0, META, words)
        a, b_at = place(cta, A, encoded(kind, values)), place(cta, B, encoded(kind, b))
        bench.run(
            "tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %rd0, %rd1, [%r2], %r1, 0;",
            lanes=1, r0=0, r2=meta, rd0=a, rd1=b_at | b_swizzle << 61,
            **{"r1": idesc(kind, 128, n), **changed},
        )  # fmt: skip
        bench.finish()

    product()
    dense = idesc(kind, 128, n) & ~4
    wrong = metadata_words(kind, np.where(np.arange(8) == 3, 0b0101, metadata))
    for message, changed in (
        (r"sparsity \(bit 2\) is 0; accepted: 1", {"r1": dense}),
        (r"selector \(bits 0 and 1\) is 2; accepted: 0, 1", {"r1": dense | 6}),
        ("row 0, elements 12 to 15 of K is 0101; accepted: 0100, 1000, 1001", {"words": wrong}),
        ("metadata at lane 0, column 129; accepted: lane 0, even columns", {"meta": META + 1}),
        ("with 64 rows of A a CTA; accepted: 128", {"r1": idesc(kind, 64, n)}),
        ("64 bytes of K within one 32 B swizzle span", {"b_swizzle": 6}),
    ):
        with pytest.raises(EmulatorError, match=message):
            product(**changed)
    with pytest.raises(UninitializedRead, match="sparsity metadata"):
        product(words=None)
