"""Tensor maps: decoding against descriptors packed from the field table, copies against a per-element oracle."""

import struct

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from cute_fa4 import emulator
from cute_fa4.emulator.instructions import bulk_operands
from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.machine.tensor_map import (
    DTYPES,
    PACKED,
    decode_tensor_map,
    swizzle_order,
)
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMapError

SPANS = (16, 32, 64, 128)


def pack(
    address,
    sizes,
    strides,
    box,
    dtype=10,
    span=16,
    steps=None,
    interleave=0,
    nan=0,
    tf32=0,
    l2=2,
    wide=0,
):
    """128 bytes, one integer per field of the table; strides are those of dimension 1 on, in bytes."""
    rank = len(sizes)
    steps = steps or (1,) * rank
    w = [0] * 16 + [0xDEADBEEF] * 16  # the upper half may hold anything
    w[0], w[1] = address & 0xFFFFFFFF, address >> 32
    w[2] = rank - 1 << 4 | dtype << 7 | interleave << 11 | SPANS.index(span) << 13
    w[2] |= nan << 15 | tf32 << 16 | l2 << 17 | wide << 21
    for i, stride in enumerate(strides):
        w[3 + i] = stride // 16 & 0xFFFFFFFF
        w[7] |= stride // 16 >> 32 << 4 * i
    for i, size in enumerate(sizes):
        w[8 + i] = size - 1
        w[13] |= steps[i] - 1 << 3 * i
    w[13] |= box[0] - 1 << 24
    for i, extent in enumerate(box[1:]):
        w[14] |= extent - 1 << 8 * i
    return struct.pack("<32I", *w)


def test_packed_elements_are_counted_in_pairs():
    """128 elements of 4 bits are 64 bytes: sizes and boxes of dimension 0 in the map, bytes here."""
    fields = {"address": 1 << 20, "sizes": (256, 8), "strides": (128,), "box": (128, 8)}
    decoded = decode_tensor_map(pack(**fields, dtype=11, span=64))
    assert (decoded.dtype, decoded.per_byte, decoded.sizes, decoded.box) == (
        "u4",
        2,
        (128, 8),
        (64, 8),
    )
    assert decoded.box_bytes == 512
    with pytest.raises(TensorMapError, match="even numbers of 4-bit elements"):
        decode_tensor_map(pack(**{**fields, "sizes": (255, 8)}, dtype=11, span=64))


# --- decoding -----------------------------------------------------------------------------------------


def test_known_words():
    """A 4d bf16 map of the shape attention uses, written as hexadecimal words by hand."""
    # (D, S, H, B) = (128, 1000, 8, 2), box (64, 128, 1, 1), 128 B swizzle.
    words = [
        0x40001000, 0x00007F12,  # address
        0x00046530,              # L2 128 B | swizzle 128 B | bf16 | rank 4
        0x80, 0x10, 0x1F400, 0, 0,  # strides 2048, 256, 2048000 bytes
        127, 999, 7, 1, 0,
        0x3F000000,              # box 64, element strides 1
        0x0000007F, 0,           # box 128, 1, 1
    ]  # fmt: skip
    decoded = decode_tensor_map(struct.pack("<16I", *words) + bytes(64))
    assert decoded.address == 0x7F1240001000
    assert (decoded.dtype, decoded.itemsize, decoded.span) == ("bf16", 2, 128)
    assert decoded.sizes == (128, 1000, 8, 2)
    assert decoded.strides == (2, 2048, 256, 2048000)
    assert decoded.box == (64, 128, 1, 1)
    assert decoded.box_bytes == 64 * 128 * 2


@given(st.data())
def test_decoding_inverts_packing(data):
    rank = data.draw(st.integers(1, 5))
    dtype = data.draw(
        st.sampled_from(sorted(code for code in DTYPES if DTYPES[code][0] not in PACKED))
    )
    itemsize = DTYPES[dtype][1]
    span = data.draw(st.sampled_from(SPANS))
    inner = span if span > 16 else 16 * data.draw(st.integers(1, 8))
    fields = {
        "address": 16 * data.draw(st.integers(1, 2**58 - 1)),
        "sizes": [data.draw(st.integers(1, 2**32)) for _ in range(rank)],
        "strides": [16 * data.draw(st.integers(0, 2**36 - 1)) for _ in range(rank - 1)],
        "box": [inner // itemsize] + [data.draw(st.integers(1, 256)) for _ in range(rank - 1)],
        "steps": [1] + [data.draw(st.integers(1, 8)) for _ in range(rank - 1)],
    }
    nan = data.draw(st.booleans()) and dtype in (6, 7, 8, 9, 10)
    decoded = decode_tensor_map(pack(**fields, dtype=dtype, span=span, nan=int(nan)))
    assert decoded.address == fields["address"]
    assert decoded.sizes == tuple(fields["sizes"])
    assert decoded.strides == (itemsize, *fields["strides"])
    assert decoded.box == tuple(fields["box"])
    assert decoded.element_strides == tuple(fields["steps"])
    assert (decoded.dtype, decoded.span, decoded.fill_nan) == (DTYPES[dtype][0], span, nan)


@cute.kernel
def _prefetch_kernel(atom: cute.CopyAtom):
    cpasync.prefetch_descriptor(atom)


@cute.jit
def _prefetch_host(x: cute.Tensor):
    kind = tcgen05.SmemLayoutAtomKind.K_SW128
    atom = tcgen05.make_smem_layout_atom(kind, cutlass.BFloat16)
    tile = cute.tile_to_shape(atom, (8, 64), (0, 1))
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_atom, _ = cpasync.make_tiled_tma_atom(load, x, tile, (8, 64))
    _prefetch_kernel(tma_atom).launch(grid=(1, 1, 1), block=(32, 1, 1))


def test_descriptor_packed_by_cute(monkeypatch):
    """The host code that CuTe compiles packs the map of a sliced torch tensor; a kernel prefetches it."""
    seen = []
    monkeypatch.setattr(
        bulk_operands,
        "decode_tensor_map",
        lambda data: seen.append(decode_tensor_map(data)) or seen[-1],
    )
    shape = (cute.sym_int(), cute.sym_int(divisibility=8))
    stride = (cute.sym_int64(divisibility=8), 1)
    fake = make_fake_tensor(cutlass.BFloat16, shape, stride=stride, assumed_align=16)
    tensor = torch.zeros(100, 192, dtype=torch.bfloat16)[:, 64:192]
    emulator.compile(_prefetch_host, fake)(tensor)
    (decoded, *_) = seen
    assert decoded.address == tensor.data_ptr()
    assert (decoded.dtype, decoded.span, decoded.fill_nan) == ("bf16", 128, False)
    assert decoded.sizes == (128, 100)
    assert decoded.strides == (2, 384)
    assert (decoded.box, decoded.element_strides) == ((64, 8), (1, 1))


GOOD = {"address": 0x10000, "sizes": (128, 64), "strides": (256,), "box": (64, 8), "span": 128}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": 12}, r"dtype is 12; accepted: 0 \(u8\)"),
        ({"interleave": 1}, "interleave is 16 B; accepted: none"),
        ({"address": 0x10008}, "global address is 0x10008; accepted: multiples of 16"),
        ({"address": 0}, "global address is 0x0"),
        ({"span": 16, "box": (4, 8)}, r"4 x 2 = 8 bytes; accepted: multiples of 16 bytes"),
        ({"box": (128, 8)}, "256 bytes; accepted: at most the swizzle span of 128"),
        ({"box": (32, 8)}, "64 bytes; accepted: exactly the swizzle span of 128"),
        ({"dtype": 1, "nan": 1}, "NaN fill with dtype is u16; accepted: f16"),
        ({"tf32": 1}, "tf32 flag with dtype is bf16"),
    ],
)
def test_refusals_name_field_value_and_what_is_accepted(change, message):
    decode_tensor_map(pack(**GOOD))
    with pytest.raises(TensorMapError, match=message):
        decode_tensor_map(pack(**GOOD | change))


def test_rank_above_five_is_refused():
    data = bytearray(pack(**GOOD))
    data[8] = data[8] & 0x8F | 5 << 4
    with pytest.raises(TensorMapError, match="rank is 6; accepted: 1 to 5"):
        decode_tensor_map(bytes(data))


def test_wrong_length_is_refused():
    with pytest.raises(TensorMapError, match="64 bytes; accepted: 128"):
        decode_tensor_map(bytes(64))


# --- swizzle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("first", range(0, 64, 8))
def test_swizzle_order_is_an_involution_that_stays_in_its_128_bytes(span, first):
    order = swizzle_order(first, 64, span)
    assert np.array_equal(order[order], np.arange(64))
    assert np.array_equal(order // 8, np.arange(64) // 8)


def test_128_byte_swizzle_draws_the_known_picture():
    """Row r of a 1024-byte aligned box holds chunk c at position c ^ r."""
    order = swizzle_order(0, 64, 128).reshape(8, 8) % 8
    for row in range(8):
        assert [int(c) for c in order[row]] == [c ^ row for c in range(8)]


def test_swizzle_follows_the_absolute_address_not_the_box():
    """A box that starts at row 1 of a 1024-byte block is swizzled as row 1, not as row 0."""
    assert swizzle_order(8, 8, 128).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


# --- copies against an oracle that moves one element at a time ---------------------------------------------


class Case:
    """A random tensor in registered memory, its map, and a box to copy."""

    def __init__(self, data, need_disjoint):
        draw = data.draw
        rank = draw(st.integers(1, 5))
        self.dtype = draw(st.sampled_from((0, 1, 3, 5, 6, 7, 10)))
        self.itemsize = DTYPES[self.dtype][1]
        span = draw(st.sampled_from(SPANS))
        inner = span if span > 16 else 16 * draw(st.integers(1, 3))
        # Small extents: five dimensions of 3 are 243 rows, and every branch of the clipping is met.
        box = [inner // self.itemsize] + [draw(st.integers(1, 4)) for _ in range(rank - 1)]
        self.steps = [1] + [draw(st.integers(1, 3)) for _ in range(rank - 1)]
        self.sizes = [draw(st.integers(1, 2 * box[0]))]
        self.sizes += [draw(st.integers(1, 5)) for _ in range(rank - 1)]
        strides, extent = [], -(-self.sizes[0] * self.itemsize // 16) * 16
        for size in self.sizes[1:]:
            stride = extent + 16 * draw(st.integers(0, 2))
            if not need_disjoint and draw(st.booleans()):
                stride = 0  # broadcast dimensions
            strides.append(stride)
            extent = max(extent, stride * size)
        self.strides = [self.itemsize, *strides]
        self.storage = np.frombuffer(
            np.random.default_rng(draw(st.integers(0, 99))).bytes(extent + 32), np.uint8
        ).copy()
        at = -self.storage.ctypes.data % 16
        self.tensor = self.storage[at : at + extent]
        self.memory = GlobalMemory()
        self.memory.register(self.tensor.ctypes.data, extent, "tensor")
        self.map = decode_tensor_map(
            pack(
                self.tensor.ctypes.data, self.sizes, strides, box,
                dtype=self.dtype, span=span, steps=self.steps,
            )
        )  # fmt: skip
        self.mask = span // 16 - 1
        self.box = [-(-b // e) for b, e in zip(box, self.steps, strict=True)]
        self.coordinates = [
            draw(st.integers(-b, s + 1)) for b, s in zip(box, self.sizes, strict=True)
        ]
        self.offset = 1024 + 128 * draw(st.integers(0, 9))

    def elements(self):
        """Yield (byte in the shared image, byte in the tensor or None) of every element of the box."""
        for number, index in enumerate(np.ndindex(*self.box[::-1])):
            position = self.offset + number * self.itemsize
            position ^= (position >> 7 & self.mask) << 4
            place = 0
            for i, first, step, size, stride in zip(
                index[::-1], self.coordinates, self.steps, self.sizes, self.strides, strict=True
            ):
                coordinate = first + i * step
                if place is not None and 0 <= coordinate < size:
                    place += coordinate * stride
                else:
                    place = None
            yield position - self.offset, place


@settings(max_examples=150)
@given(st.data())
def test_load_equals_the_oracle(data):
    case = Case(data, need_disjoint=False)
    image = case.map.load(case.memory, case.coordinates, case.offset)
    assert image.size == case.map.box_bytes == np.prod(case.box) * case.itemsize
    for shared, place in case.elements():
        expected = bytes(case.itemsize)
        if place is not None:
            expected = case.tensor[place : place + case.itemsize].tobytes()
        assert image[shared : shared + case.itemsize].tobytes() == expected


@settings(max_examples=150)
@given(st.data())
def test_store_equals_the_oracle_and_touches_nothing_else(data):
    case = Case(data, need_disjoint=True)
    image = np.random.default_rng(1).integers(0, 256, case.map.box_bytes, np.uint8)
    expected = case.storage.copy()
    start = case.tensor.ctypes.data - case.storage.ctypes.data
    for shared, place in case.elements():
        if place is not None:
            at = start + place
            expected[at : at + case.itemsize] = image[shared : shared + case.itemsize]
    case.map.store(case.memory, case.coordinates, case.offset, image)
    assert np.array_equal(case.storage, expected)


def _matrix(dtype, rows=4, columns=16):
    """(array, map, memory): a small matrix with a box of 2 rows."""
    storage = np.zeros(rows * columns + 16, dtype)
    tensor = storage[-storage.ctypes.data % 16 // storage.itemsize :][: rows * columns]
    tensor = tensor.reshape(rows, columns)
    tensor[...] = np.arange(rows * columns).reshape(rows, columns)
    memory = GlobalMemory()
    memory.register(tensor.ctypes.data, tensor.nbytes, "matrix")
    code = {np.float32: 7, np.float16: 6, np.int32: 3}[dtype]
    fields = {
        "address": tensor.ctypes.data, "sizes": (columns, rows), "strides": (tensor.strides[0],),
        "box": (columns, 2), "dtype": code,
    }  # fmt: skip
    return tensor, fields, memory


def test_nan_fill():
    tensor, fields, memory = _matrix(np.float32)
    loaded = decode_tensor_map(pack(**fields, nan=1)).load(memory, (0, -1), 1024)
    rows = loaded.view(np.float32).reshape(2, 16)
    assert np.isnan(rows[0]).all()
    assert np.array_equal(rows[1], tensor[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_reducing_add_keeps_rows_outside_of_the_box(dtype):
    tensor, fields, memory = _matrix(dtype)
    before = tensor.copy()
    ones = np.full(32, 3, dtype).view(np.uint8)
    decode_tensor_map(pack(**fields)).store(memory, (0, 3), 1024, ones, reduce="add")
    assert np.array_equal(tensor[:3], before[:3])
    assert np.array_equal(tensor[3], before[3] + 3)


def test_rows_outside_of_the_allocation_are_named():
    """The map claims 5 rows, the registered memory ends after 4."""
    tensor, fields, memory = _matrix(np.float32)
    wrong = decode_tensor_map(pack(**fields | {"sizes": (16, 5)}))
    wrong.load(memory, (0, 2), 1024)  # rows 2 and 3 exist
    with pytest.raises(IllegalAccess, match=r"64 bytes at global address .*0 bytes after the end"):
        wrong.load(memory, (0, 3), 1024)


def test_a_box_outside_of_the_tensor_is_zeros_where_the_map_begins_in_memory():
    """An H200 fills such a box with zeros, but faults where the map's own address is not mapped."""
    _, fields, memory = _matrix(np.float32)
    outside = decode_tensor_map(pack(**fields))
    assert not outside.load(memory, (0, 4), 1024).any()
    with pytest.raises(IllegalAccess, match="lies outside of the allocation that the box is in"):
        outside.load(GlobalMemory(), (0, 4), 1024)


def test_the_map_of_a_load_begins_in_the_allocation_of_its_box():
    """A base 2 rows early, in another tensor of the same memory: the rows are right, and Blackwell may read there."""
    storage = np.zeros(6 * 16, np.float32)
    tensor, address = storage[32:], storage.ctypes.data
    tensor[:] = np.arange(64)
    memory = GlobalMemory()
    memory.register(address, 128, "the tensor before")
    memory.register(address + 128, 256, "tensor")
    fields = {"sizes": (16, 2, 5), "strides": (64, 64), "box": (16, 2, 1), "dtype": 7}
    early = decode_tensor_map(pack(address=address, **fields))
    with pytest.raises(IllegalAccess, match=r"begin the map of a load at its tensor"):
        early.load(memory, (0, 0, 2), 1024)
    early.store(memory, (0, 0, 2), 1024, np.zeros(128, np.uint8))  # touches what it writes
    assert not tensor[:32].any() and tensor[32:].all()


def test_bit_85_asks_for_128_kib_in_one_allocation():
    storage = np.ones(2 * 128 * 1024 + 16, np.uint8)
    address = storage.ctypes.data + -storage.ctypes.data % 16
    wide = decode_tensor_map(pack(**GOOD | {"address": address, "wide": 1}))
    assert wide.reach == 128 * 1024
    assert decode_tensor_map(pack(**GOOD)).reach == 1
    for nbytes, enough in ((128 * 1024, True), (128 * 1024 - 1, False)):
        memory = GlobalMemory()
        memory.register(address, nbytes, "tensor")
        memory.register(address + nbytes, 64 * 1024, "the next tensor")
        if enough:
            assert wide.load(memory, (0, 0), 1024).all()
            continue
        with pytest.raises(IllegalAccess, match=r"has bit 85 set.* may touch 131072 bytes"):
            wide.load(memory, (0, 0), 1024)


def test_addresses_count_modulo_two_to_the_64():
    """Row a + b of three dimensions, of which the last takes 2^64 bytes less 2^30 rows: what a clipped load is."""
    tensor, _, memory = _matrix(np.float32)
    extent = 1 << 30
    fields = {"sizes": (16, extent, 5, extent + 1), "strides": (64, 64, (1 << 34) - 64), "dtype": 7}
    lap = decode_tensor_map(pack(tensor.ctypes.data, box=(16, 4, 1, 1), **fields))
    loaded = lap.load(memory, (0, extent - 2, 1 + 2, extent), 1024).view(np.float32)
    assert np.array_equal(loaded.reshape(4, 16), np.vstack([tensor[1:3], np.zeros((2, 16))]))
