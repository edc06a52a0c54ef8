"""The tensor core: CuTe's own layouts and descriptors against the address formula, MMAs against float64."""

import re
from types import SimpleNamespace

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.nvgpu import tcgen05
from cutlass.cute.nvgpu.tcgen05 import SmemLayoutAtomKind
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4.emulator.machine.matrix_descriptors import (
    K_BYTES,
    decode_instruction,
    decode_matrix,
    element_address,
    swizzle,
)
from cute_fa4.emulator.machine.memory import SharedMemory
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.machine.tensor_memory import TensorMemory
from cute_fa4.emulator.ptx.errors import (
    EmulatorError,
    IllegalAccess,
    TensorMemoryError,
    UninitializedRead,
)

# name -> (swizzle field, span in bytes)
SWIZZLES = {"INTER": (0, 16), "SW32": (6, 32), "SW64": (4, 64), "SW128": (2, 128)}


def matrix_descriptor(start, leading, stride, swizzle_field):
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 46 | swizzle_field << 61


# --- the address formula ------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [16, 32, 64, 128])
def test_swizzle_is_a_bijection_and_its_own_inverse(span):
    addresses = np.arange(4096)
    swizzled = swizzle(addresses, span)
    assert np.array_equal(np.sort(swizzled), addresses)
    assert np.array_equal(swizzle(swizzled, span), addresses)
    assert np.array_equal(swizzled % 16, addresses % 16)


def test_eight_rows_of_one_column_use_eight_different_bank_groups():
    """The purpose of the 128-byte swizzle: a column of 16-byte chunks is read without bank conflicts."""
    for chunk in range(8):
        address = swizzle(np.arange(8) * 128 + chunk * 16, 128)
        assert sorted(address // 4 % 32) == list(range(0, 32, 4))


KINDS = [kind for kind in SmemLayoutAtomKind if not kind.name.endswith("_32B")]
ROWS, DEPTH = 128, 64  # several swizzle atoms along rows and along K, for every kind
OPERAND_K = 16  # bf16: 32 bytes


def _operand_layout(rows_per_atom, mn_major):
    """bf16 layout of the first K step of a (128, 64) tile: CuTe's canonical form, atoms stacked along rows."""
    n, atoms = rows_per_atom, ROWS // rows_per_atom
    if mn_major:
        return cute.make_layout((((n, atoms), (8, 2)), 1), stride=(((1, 8 * n), (n, 8 * ROWS)), 0))
    if n > 8:  # n: elements of a span; a K step lies inside of it
        return cute.make_layout((((8, 16), 16), 1), stride=(((n, 8 * n), 1), 0))
    return cute.make_layout((((8, 16), (8, 2)), 1), stride=(((8, 64), (1, 8 * ROWS)), 0))


@cute.kernel
def _descriptor_kernel(out: cute.Tensor):
    base = cutlass.memory.SmemAllocator().allocate(ROWS * DEPTH * 2, 1024)
    for number in cutlass.range_constexpr(len(KINDS)):
        kind = KINDS[number]
        atom = tcgen05.make_smem_layout_atom(kind, cutlass.BFloat16)
        tile = cute.tile_to_shape(atom, (ROWS, DEPTH), (0, 1))
        pointer = cute.recast_ptr(base, tile.inner, dtype=cutlass.BFloat16)
        mn_major = kind.name.startswith("MN")
        layout = _operand_layout(SWIZZLES[kind.name.split("_")[1]][1] // 2, mn_major)
        descriptor = tcgen05.make_umma_smem_desc(pointer, layout, "mn" if mn_major else "k")
        out[number] = tcgen05.smem_descriptor_to_int(descriptor)
        # The swizzle of a CuTe shared-memory layout acts on byte addresses.
        by_byte = cute.make_composed_layout(tile.inner, 0, cute.make_layout(ROWS * DEPTH * 2))
        RECORDED[kind.name] = _addresses(tile.outer, by_byte)


def _addresses(outer, by_byte):
    return [
        [cute.crd2idx(cute.crd2idx((row, k), outer) * 2, by_byte) for k in range(OPERAND_K)]
        for row in range(ROWS)
    ]


@cute.jit
def _descriptor_host(out: cute.Tensor):
    _descriptor_kernel(out).launch(grid=(1, 1, 1), block=(32, 1, 1))


RECORDED = {}  # kind -> byte address of every element of the operand, by CuTe's layout algebra


@pytest.fixture(scope="module")
def cute_operands():
    """kind -> (descriptor without start address, as CuTe packs it; byte addresses by CuTe's layout)."""
    out = make_fake_compact_tensor(cutlass.Int64, (len(KINDS),))
    ptx = cute.compile(_descriptor_host, out, options="--gpu-arch sm_100a --keep-ptx").__ptx__
    constants = dict(re.findall(r"or\.b64\s+(%rd\d+), %rd\d+, (-?\d+);", ptx))
    stores = re.findall(r"st\.global\.b64\s+\[%rd\d+(?:\+(\d+))?\], (%rd\d+);", ptx)
    packed = {int(at or 0) // 8: int(constants[r]) % 2**64 for at, r in stores}
    return {kind.name: (packed[i], np.array(RECORDED[kind.name])) for i, kind in enumerate(KINDS)}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_formula_and_descriptor_equal_those_of_cute(cute_operands, kind):
    """The descriptor that CuTe packs, read by our formula, gives the addresses of CuTe's swizzled layout."""
    bits, addresses = cute_operands[kind]
    mn_major = kind.startswith("MN")
    ours = element_address(
        decode_matrix(bits, mn_major), np.arange(ROWS)[:, None], np.arange(OPERAND_K), 2, mn_major
    )
    assert np.array_equal(ours, addresses)


# --- MMA against float64 ------------------------------------------------------------------------------


def encode(values, name):
    """float64 values that the format represents exactly -> their bits."""
    if name == "tf32":
        return values.astype(np.float32).view(np.uint32)
    torch_type, raw = {
        "f16": (torch.float16, np.uint16),
        "bf16": (torch.bfloat16, np.uint16),
        "e4m3": (torch.float8_e4m3fn, np.uint8),
        "e5m2": (torch.float8_e5m2, np.uint8),
        "s8": (torch.int8, np.uint8),
        "u8": (torch.uint8, np.uint8),
    }[name]
    return torch.from_numpy(values).to(torch_type).view(torch.uint8).numpy().view(raw)


def random_operand(rng, rows, k, name):
    """[rows, K] float64, rounded to the format."""
    if name in ("s8", "u8"):
        low, high = (-128, 128) if name == "s8" else (0, 256)
        return rng.integers(low, high, (rows, k)).astype(np.float64)
    values = rng.standard_normal((rows, k))
    if name == "tf32":
        return (
            (values.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float)
        )
    raw = encode(values, name)
    return {
        "f16": lambda: raw.view(np.float16).astype(float),
        "bf16": lambda: (raw.astype(np.uint32) << 16).view(np.float32).astype(float),
        "e4m3": lambda: torch.from_numpy(raw).view(torch.float8_e4m3fn).double().numpy(),
        "e5m2": lambda: torch.from_numpy(raw).view(torch.float8_e5m2).double().numpy(),
    }[name]()


class Bench:
    """One CTA or a pair with shared and tensor memory, and operands placed by the address formula."""

    def __init__(self, ctas=1, columns=512):
        self.ctas = tuple(
            SimpleNamespace(shared=SharedMemory(0, 200 * 1024), tmem=TensorMemory())
            for _ in range(ctas)
        )
        for cta in self.ctas:
            cta.tmem.allocate(columns)

    def place(self, cta, start, values, name, swizzle_name="SW128", mn_major=False):
        """Write an operand [rows, K] into shared memory as CuTe stacks its atoms; returns the descriptor."""
        rows, k = values.shape
        raw = encode(values, name)
        field, span = SWIZZLES[swizzle_name]
        if not mn_major:
            leading, stride = (rows * 16, 128) if span == 16 else (16, 8 * span)
        elif span == 16:
            leading, stride = 128 * -(-rows * raw.itemsize // 16), 128
        else:
            leading, stride = 8 * span, 8 * span * -(-rows * raw.itemsize // span)
        bits = matrix_descriptor(start, leading, stride, field)
        address = element_address(
            decode_matrix(bits, mn_major),
            np.arange(rows)[:, None],
            np.arange(k),
            raw.itemsize,
            mn_major,
        )
        assert len(np.unique(address)) == address.size
        cta.shared.scatter(address, raw, raw.itemsize)
        return bits


ITEMSIZE = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
KIND_OF = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "s8": "i8", "u8": "i8"}


def instruction_descriptor(
    m, n, a, b, a_mn=0, b_mn=0, negate_a=0, negate_b=0, saturate=0, d_format=None
):
    if d_format is None:
        d_format = 2 if a in ("s8", "u8") else 1
    bits = saturate << 3 | d_format << 4 | CODES[a] << 7 | CODES[b] << 10
    bits |= negate_a << 13 | negate_b << 14 | a_mn << 15 | b_mn << 16
    return bits | n // 8 << 17 | m // 16 << 24


def d_rows(cta, m, n, pair):
    """D rows of one CTA as [row, n] words, by the placement table of the docstring."""
    words = cta.tmem.words
    if m == (256 if pair else 128):
        return words[:n, :128].T
    if not pair:  # M 64: 16 rows in each quarter of the lanes
        lanes = [r // 16 * 32 + r % 16 for r in range(64)]
        return words[:n, lanes].T
    left, right = words[: n // 2, :64].T, words[: n // 2, 64:].T
    return np.hstack([left, right])


def check(d, exact, magnitude):
    """One rounding to float32 of a sum whose terms add up to ``magnitude``."""
    assert d.dtype == np.float32
    assert np.all(np.abs(d - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-45 * magnitude)


# M, N: the smallest and the largest, and the shapes of attention.
@pytest.mark.parametrize(
    ("pair", "m", "n"),
    [(0, 64, 8), (0, 64, 256), (0, 128, 8), (0, 128, 128), (0, 128, 256), (1, 128, 32),
     (1, 128, 256), (1, 256, 16), (1, 256, 128)],
)  # fmt: skip
def test_every_shape_against_float64(pair, m, n):
    """Two MMAs: the first overwrites D, the second adds to it."""
    rng, bench = np.random.default_rng(m + n), Bench(2 if pair else 1)
    descriptor = decode_instruction(instruction_descriptor(m, n, "bf16", "bf16"), "f16", 1 + pair)
    exact, magnitude = 0, 0
    for step in range(2):
        a, b = random_operand(rng, m, 16, "bf16"), random_operand(rng, n, 16, "bf16")
        for i, cta in enumerate(bench.ctas):
            share = slice(i * m // (1 + pair), (i + 1) * m // (1 + pair))
            a_bits = bench.place(cta, 1024 + 32 * step, a[share], "bf16")
            share = slice(i * n // (1 + pair), (i + 1) * n // (1 + pair))
            b_bits = bench.place(cta, 65536 + 32 * step, b[share], "bf16")
        multiply = MatrixMultiply(descriptor, bench.ctas, 0, a_bits, b_bits, False, step > 0)
        multiply.check()
        multiply.execute()
        exact = np.float64(np.float32(exact)) + a @ b.T
        magnitude = magnitude + np.abs(a) @ np.abs(b).T
    rows = m // len(bench.ctas)
    for i, cta in enumerate(bench.ctas):
        d = d_rows(cta, m, n, pair).view(np.float32)
        check(d, exact[i * rows :][:rows], magnitude[i * rows :][:rows])
        # Nothing beyond D is written.
        assert cta.tmem.written.sum() == rows * n


@pytest.mark.parametrize("b_mn", [0, 1])
@pytest.mark.parametrize("a_mn", [0, 1])
@pytest.mark.parametrize("swizzle_name", SWIZZLES)
@pytest.mark.parametrize("formats", [("bf16", "f16"), ("e4m3", "e5m2"), ("s8", "u8")])
def test_every_layout_against_float64(formats, swizzle_name, a_mn, b_mn):
    """Both operand formats of a kind, K-major and MN-major, every swizzle: M 128, N 64."""
    rng, bench = np.random.default_rng(0), Bench()
    (a_name, b_name), (cta,) = formats, bench.ctas
    k = K_BYTES // ITEMSIZE[a_name]
    a, b = random_operand(rng, 128, k, a_name), random_operand(rng, 64, k, b_name)
    a_bits = bench.place(cta, 1024, a, a_name, swizzle_name, bool(a_mn))
    b_bits = bench.place(cta, 65536, b, b_name, swizzle_name, bool(b_mn))
    bits = instruction_descriptor(128, 64, a_name, b_name, a_mn, b_mn)
    descriptor = decode_instruction(bits, KIND_OF.get(a_name, "f8f6f4"), 1)
    assert (descriptor.m, descriptor.n, descriptor.k) == (128, 64, k)
    MatrixMultiply(descriptor, bench.ctas, 0, a_bits, b_bits, False, False).execute()
    words = cta.tmem.words[:64].T
    if a_name == "s8":
        assert np.array_equal(words.view(np.int32), a @ b.T)
    else:
        check(words.view(np.float32), a @ b.T, np.abs(a) @ np.abs(b).T)


def test_tf32_ignores_the_low_13_bits():
    rng, bench = np.random.default_rng(0), Bench()
    (cta,) = bench.ctas
    a, b = random_operand(rng, 64, 8, "tf32"), random_operand(rng, 16, 8, "tf32")
    noisy = (encode(a, "tf32") | np.uint32(0x1FFF)).view(np.float32).astype(float)
    a_bits, b_bits = (
        bench.place(cta, 1024, noisy, "tf32"), bench.place(cta, 65536, b, "tf32")
    )  # fmt: skip
    descriptor = decode_instruction(instruction_descriptor(64, 16, "tf32", "tf32"), "tf32", 1)
    MatrixMultiply(descriptor, bench.ctas, 0, a_bits, b_bits, False, False).execute()
    check(d_rows(cta, 64, 16, 0).view(np.float32), a @ b.T, np.abs(a) @ np.abs(b).T)


def test_a_from_tensor_memory_equals_a_from_shared_memory():
    """Row r in lane r, two bf16 a column, the low half first."""
    rng, bench = np.random.default_rng(0), Bench()
    (cta,) = bench.ctas
    a, b = random_operand(rng, 128, 16, "bf16"), random_operand(rng, 64, 16, "bf16")
    a_bits, b_bits = bench.place(cta, 1024, a, "bf16"), bench.place(cta, 65536, b, "bf16")
    descriptor = decode_instruction(instruction_descriptor(128, 64, "bf16", "bf16"), "f16", 1)
    MatrixMultiply(descriptor, bench.ctas, 0, a_bits, b_bits, False, False).execute()
    raw = encode(a, "bf16").astype(np.uint32)
    cta.tmem.write(0, 256, (raw[:, 0::2] | raw[:, 1::2] << 16).T)
    MatrixMultiply(descriptor, bench.ctas, 128, 256, b_bits, True, False).execute()
    assert np.array_equal(cta.tmem.words[128:192], cta.tmem.words[:64])


def _small(bench, a=None, b=None, **fields):
    """A 64x8 bf16 MMA on random operands: (descriptor, a bits, b bits, exact product)."""
    rng, cta = np.random.default_rng(3), bench.ctas[0]
    a = random_operand(rng, 64, 16, "bf16") if a is None else a
    b = random_operand(rng, 8, 16, "bf16") if b is None else b
    bits = instruction_descriptor(64, 8, "bf16", "bf16", **fields)
    a_bits, b_bits = bench.place(cta, 1024, a, "bf16"), bench.place(cta, 65536, b, "bf16")
    return decode_instruction(bits, "f16", 1), a_bits, b_bits, a @ b.T


@pytest.mark.parametrize(("fields", "sign"), [({"negate_a": 1}, -1), ({"negate_b": 1}, -1),
                                              ({"negate_a": 1, "negate_b": 1}, 1)])  # fmt: skip
def test_negated_operands(fields, sign):
    bench = Bench()
    descriptor, a, b, exact = _small(bench, **fields)
    MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, False).execute()
    d = d_rows(bench.ctas[0], 64, 8, 0).view(np.float32)
    assert np.array_equal(d, (sign * exact).astype(np.float32))


def test_scale_input_d():
    """D = A*B + D * 2**-scale."""
    bench = Bench()
    descriptor, a, b, exact = _small(bench)
    for accumulate in (False, True):
        MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, accumulate, scale_log2=3).execute()
    d = d_rows(bench.ctas[0], 64, 8, 0).view(np.float32)
    assert np.array_equal(d, (exact + exact.astype(np.float32) / 8.0).astype(np.float32))


def test_disabled_lanes_keep_their_words():
    bench = Bench()
    (cta,) = bench.ctas
    descriptor, a, b, exact = _small(bench)
    cta.tmem.write(0, 0, np.full((8, 128), 7, np.uint32))
    lanes = np.ones(128, bool)
    lanes[[3, 40]] = False  # rows 3 and 24
    MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, False, lanes=lanes).execute()
    d = d_rows(cta, 64, 8, 0)
    kept = np.isin(np.arange(64), (3, 24))
    assert (d[kept] == 7).all()
    assert np.array_equal(d[~kept].view(np.float32), exact[~kept].astype(np.float32))


def test_infinities_and_nans_go_through():
    bench = Bench()
    a = np.zeros((64, 16))
    a[0, 0], a[1, 0], a[2, 0] = np.inf, np.nan, 3e38
    descriptor, a, b, _ = _small(bench, a=a, b=np.full((8, 16), 2.0))
    MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, False).execute()
    d = d_rows(bench.ctas[0], 64, 8, 0).view(np.float32)
    assert np.isposinf(d[0]).all()
    assert np.isnan(d[1]).all()
    assert np.isposinf(d[2]).all()
    assert (d[3] == 0).all()


@pytest.mark.parametrize("m, n, pair", [(128, 64, 0), (64, 8, 0), (128, 32, 1)])
@pytest.mark.parametrize("name", ["f16", "e4m3"])
def test_an_accumulator_of_f16_is_rounded_after_each_product(name, m, n, pair):
    """In the low halves of words, as tcgen05.ld.pack::16b reads them; the upper halves are no numbers."""
    bench = Bench(1 + pair)
    rng, k = np.random.default_rng(0), 32 // ITEMSIZE[name]
    a, b = (random_operand(rng, rows, k, name) for rows in (m, n))
    of = lambda x, i: x[i * len(x) // (1 + pair) : (i + 1) * len(x) // (1 + pair)]
    a_bits, b_bits = (
        {bench.place(cta, start, of(x, i), name) for i, cta in enumerate(bench.ctas)}.pop()
        for start, x in ((1024, a), (65536, b))
    )
    bits = instruction_descriptor(m, n, name, name, d_format=0)
    shape = decode_instruction(bits, KIND_OF.get(name, "f8f6f4"), 1 + pair)
    expected = np.zeros((m, n))
    for accumulate in (False, True, True):
        MatrixMultiply(shape, bench.ctas, 0, a_bits, b_bits, False, accumulate).execute()
        with np.errstate(over="ignore"):
            expected = (expected + a @ b.T).astype(np.float16).astype(np.float64)
    words = np.vstack([d_rows(cta, m, n, pair) for cta in bench.ctas])
    np.testing.assert_array_equal(words.astype(np.uint16).view(np.float16), expected)
    assert np.isnan((words >> 16).astype(np.uint16).view(np.float16)).all()


@pytest.mark.parametrize("saturate", [0, 1])
def test_integer_accumulator_wraps_or_saturates(saturate):
    """D starts at 2**31 - 1; adding 32 * 255 * 255 wraps around, or stays with saturation."""
    bench = Bench()
    (cta,) = bench.ctas
    full = np.full((64, 32), 255.0)
    a, b = bench.place(cta, 1024, full, "u8"), bench.place(cta, 65536, full[:8], "u8")
    bits = instruction_descriptor(64, 8, "u8", "u8", saturate=saturate)
    cta.tmem.write(0, 0, np.full((8, 128), 2**31 - 1, np.uint32))
    MatrixMultiply(decode_instruction(bits, "i8", 1), bench.ctas, 0, a, b, False, True).execute()
    d = d_rows(cta, 64, 8, 0).view(np.int32)
    wrapped = 2**31 - 1 + 32 * 255 * 255 - 2**32
    assert (d == (2**31 - 1 if saturate else wrapped)).all()


# --- refusals ------------------------------------------------------------------------------------------


GOOD = instruction_descriptor(128, 128, "bf16", "bf16")


@pytest.mark.parametrize(
    ("bits", "kind", "group", "message"),
    [
        (GOOD | 4, "f16", 1, r"sparsity \(bits 0 to 2\) is 4; accepted: 0"),
        (GOOD | 8, "f16", 1, "saturate .* is 1; accepted: 0"),
        (GOOD | 0x30, "f16", 1, "D format .* is 3; accepted: 0, 1"),
        (GOOD & ~0x30, "f16", 1, "A format with D of f16 is 1; accepted: 0"),
        (instruction_descriptor(128, 128, "tf32", "tf32") & ~0x30, "tf32", 1, "D format .* is 0; accepted: 1"),
        (GOOD | 2 << 7, "f16", 1, "A format .* is 3; accepted: 0, 1"),
        (GOOD | 2 << 10, "f16", 1, "B format .* is 3; accepted: 0, 1"),
        (GOOD | 1 << 6, "f16", 1, "reserved bit 6"),
        (GOOD | 1 << 23, "f16", 1, "reserved bit 23"),
        (instruction_descriptor(128, 128, "e4m3", "e4m3") | 1 << 29, "f8f6f4", 1, "reserved bit 29"),
        (GOOD | 1 << 30, "f16", 1, "maximum shift"),
        (instruction_descriptor(256, 128, "bf16", "bf16"), "f16", 1, "M .* is 256; accepted: 64, 128"),
        (instruction_descriptor(64, 128, "bf16", "bf16"), "f16", 2, "M .* is 64; accepted: 128, 256"),
        (instruction_descriptor(128, 24, "s8", "s8"), "i8", 1, "N .* is 24; .*multiples of 16"),
        (instruction_descriptor(64, 264, "bf16", "bf16"), "f16", 1, "N .* is 264"),
        (instruction_descriptor(256, 24, "bf16", "bf16"), "f16", 2, "N .* is 24; .*multiples of 16"),
        (instruction_descriptor(64, 8, "e4m3", "e4m3", b_mn=1), "f8f6f4", 1, "MN-major row of B"),
        (instruction_descriptor(128, 128, "tf32", "tf32", a_mn=1), "tf32", 1, "A MN-major"),
        (instruction_descriptor(128, 128, "s8", "s8", negate_a=1), "i8", 1, "negate"),
    ],
)  # fmt: skip
def test_bad_instruction_descriptors_are_refused(bits, kind, group, message):
    decode_instruction(GOOD, "f16", 1)
    with pytest.raises(EmulatorError, match=message):
        decode_instruction(bits, kind, group)


GOOD_MATRIX = matrix_descriptor(1024, 16, 1024, 2)


@pytest.mark.parametrize(
    ("bits", "mn_major", "message"),
    [
        (GOOD_MATRIX | 1 << 14, False, "reserved bits 14 to 15"),
        (GOOD_MATRIX | 1 << 31, False, "reserved bits 30 to 31"),
        (GOOD_MATRIX | 1 << 60, False, "reserved bits 53 to 60"),
        (GOOD_MATRIX ^ 1 << 46, False, r"version \(bits 46 to 48\) is 0; accepted: 1"),
        (GOOD_MATRIX | 1 << 49, False, "matrix base offset"),
        (GOOD_MATRIX | 1 << 52, False, "leading dimension mode"),
        (GOOD_MATRIX | 1 << 61, False, "swizzle mode .* is 3"),
        (matrix_descriptor(1024, 16, 1024, 1), False, "128 B with 32 B atoms"),
        (matrix_descriptor(1024 + 112, 16, 1024, 2), False, "32 bytes of K within one 128 B"),
        (matrix_descriptor(1024 + 32, 1024, 1024, 2), True, "multiples of the 128 B swizzle span"),
    ],
)
def test_bad_matrix_descriptors_are_refused(bits, mn_major, message):
    decode_matrix(GOOD_MATRIX, mn_major)
    with pytest.raises(EmulatorError, match=message):
        decode_matrix(bits, mn_major)


def test_unwritten_operand_bytes_are_reported():
    bench = Bench()
    descriptor, a, b, _ = _small(bench)
    bench.ctas[0].shared.written[1024 + 5 * 128 + 5 * 16] = False  # chunk 0 of row 5
    with pytest.raises(UninitializedRead, match="0x6d0"):
        MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, False).execute()


def test_operand_beyond_shared_memory_is_reported():
    bench = Bench()
    descriptor, a, _, _ = _small(bench)
    beyond = matrix_descriptor(0x3FC00, 16, 1024, 2)
    with pytest.raises(IllegalAccess, match="shared"):
        MatrixMultiply(descriptor, bench.ctas, 0, a, beyond, False, False).execute()


def test_accumulating_onto_unwritten_columns_is_reported():
    bench = Bench()
    descriptor, a, b, _ = _small(bench)
    with pytest.raises(UninitializedRead, match="D of MMA 64x8x16 bf16 x bf16"):
        MatrixMultiply(descriptor, bench.ctas, 0, a, b, False, True).execute()


def test_d_outside_of_the_allocation_is_reported():
    bench = Bench(columns=32)
    descriptor, a, b, _ = _small(bench)
    with pytest.raises(TensorMemoryError, match="column 32 is not allocated"):
        MatrixMultiply(descriptor, bench.ctas, 28, a, b, False, False).execute()


@pytest.mark.parametrize(
    ("d", "a", "a_in_tensor_memory", "message"),
    [
        (1 << 16, 0, False, "D at lane 1; accepted: 0"),
        (508, 0, False, "tensor memory ends at column 511"),
        (0, 64, True, "A in tensor memory with 64 rows"),
    ],
)
def test_operands_that_are_wrong_whatever_the_data_is(d, a, a_in_tensor_memory, message):
    bench = Bench()
    descriptor, a_bits, b, _ = _small(bench)
    with pytest.raises(EmulatorError, match=message):
        MatrixMultiply(descriptor, bench.ctas, d, a or a_bits, b, a_in_tensor_memory, False).check()
