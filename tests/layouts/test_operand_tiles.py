"""Laws of the operand tiles: storage, TMA boxes, descriptors, and agreement with CuTe element by element."""

import re

import numpy as np
import pytest

from cute_fa4.layouts import (
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    SWIZZLE_NONE,
    KMajorTile,
    MNMajorTile,
)

# (rows, cols, element bytes, swizzle): why this one
SIZES = {
    "128x64": (128, 64, 16, SWIZZLE_128B),  # depth 64: one chunk, LBO unused
    "128x128": (128, 128, 16, SWIZZLE_128B),  # the default tile: two chunks
    "192x64": (192, 64, 16, SWIZZLE_128B),  # keys of a depth-64 step: rows no power of two
    "64x128": (64, 128, 16, SWIZZLE_128B),  # a depth chunk smaller than a row's worth of keys
    "128x192": (128, 192, 16, SWIZZLE_128B),  # three chunks: neither count a power of two
    "fp8-128x128-64B": (
        128,
        128,
        8,
        SWIZZLE_64B,
    ),  # fp8 with the span that keeps 64 elements a chunk
    "fp8-128x128-128B": (128, 128, 8, SWIZZLE_128B),  # fp8, one chunk
    "fp8-64x256": (64, 256, 8, SWIZZLE_128B),  # fp8, two chunks
    "64x64-64B": (64, 64, 16, SWIZZLE_64B),  # two chunks of a smaller span
    "64x48-32B": (64, 48, 16, SWIZZLE_32B),  # a span that is one MMA step, three of them
    "64x32-none": (64, 32, 16, SWIZZLE_NONE),  # no swizzle: an MMA step spans two chunks
    "fp8-64x64-none": (64, 64, 8, SWIZZLE_NONE),  # the same in fp8
}
TILES = {
    f"{kind.__name__}-{name}": kind(*size)
    for kind in (KMajorTile, MNMajorTile)
    for name, size in SIZES.items()
}
every_tile = pytest.mark.parametrize("tile", TILES.values(), ids=TILES.keys())


def grid(tile):
    """Row and column of every element, as arrays (rows, cols)."""
    return np.indices((tile.rows, tile.cols))


@every_tile
def test_offset_is_the_definition(tile):
    """Chunk of one span of columns, row after row, chunk of 16 bytes XORed with the 128-byte line."""
    rng = np.random.default_rng(0)
    for row, col in zip(
        rng.integers(0, tile.rows, 300), rng.integers(0, tile.cols, 300), strict=True
    ):
        row, byte, span = int(row), int(col) * tile.bits // 8, tile.swizzle.span_bytes
        linear = (byte // span) * (span * tile.rows) + row * span + byte % span
        line, chunk = linear // 128, linear // 16 % 8
        assert (
            tile.offset(row, int(col))
            == line * 128 + (chunk ^ line % 8 & span // 16 - 1) * 16 + linear % 16
        )


@every_tile
def test_elements_fill_the_tile_without_overlap_and_invert(tile):
    row, col = grid(tile)
    offsets = tile.offset(row, col)
    assert sorted(offsets.ravel()) == list(range(0, tile.nbytes, tile.bits // 8))
    back_row, back_col = tile.element(offsets)
    assert (back_row == row).all() and (back_col == col).all()


@every_tile
def test_sixteen_bytes_of_a_row_stay_together(tile):
    """Registers are stored and operands are gathered in 16-byte chunks."""
    row, col = grid(tile)
    offsets = tile.offset(row, col).reshape(tile.rows, -1, 128 // tile.bits)
    assert (offsets[..., 0] % 16 == 0).all()
    assert (np.diff(offsets, axis=2) == tile.bits // 8).all()


@every_tile
def test_eight_rows_of_one_16_byte_column_hit_eight_bank_groups(tile):
    """The tensor core reads eight lines of a column; a row-owning thread stores the same way."""
    first_rows = np.arange(0, tile.rows, 8)[:, None]
    for col in range(0, tile.cols, 128 // tile.bits):
        groups = tile.offset(first_rows + np.arange(8), col) // 16 % 8
        assert (np.sort(groups, axis=1) == np.arange(8)).all()


@every_tile
def test_tma_boxes_write_the_tile(tile):
    """TMA stores box element (column x, row y) at y * (bytes of x) + x, swizzled by the address bits."""
    columns, rows = tile.tma_box
    assert columns * tile.bits // 8 == tile.swizzle.span_bytes  # TMA's limit for the inner box
    assert rows <= 256 and columns <= 256  # boxDim of a tensor map
    y, x = np.indices((rows, columns))
    for box in range(tile.num_boxes):
        linear = tile.box_offset(box) + y * columns * tile.bits // 8 + x * tile.bits // 8
        assert (tile.swizzle(linear) == tile.offset(y, box * columns + x)).all()
    assert tile.num_boxes * columns * rows * tile.bits // 8 == tile.nbytes


@every_tile
@pytest.mark.parametrize("start", [0, 3 * 1024], ids=["at 0", "at a slot"])
def test_descriptor_of_every_step_finds_every_element(tile, start):
    """The law that makes the MMA right: (n, k) of step i through the descriptor is element (n, i * K + k)."""
    per_step = tile.step_elements
    extent = tile.cols if tile.mn_major else tile.rows
    n, k = np.indices((extent, per_step))
    for step in range(tile.num_steps):
        found = tile.descriptor(start, step).element_address(n, k, tile.bits, tile.mn_major)
        contraction = step * per_step + k
        row, col = (contraction, n) if tile.mn_major else (n, contraction)
        assert (found == start + tile.offset(row, col)).all()
    assert tile.num_steps * per_step == tile.contraction


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_both_majors_share_one_storage(size):
    """Why V needs no transposed copy: TMA writes the same bytes whichever way the MMA will read them."""
    k_tile, v_tile = KMajorTile(*size), MNMajorTile(*size)
    row, col = grid(k_tile)
    assert (k_tile.offset(row, col) == v_tile.offset(row, col)).all()
    assert k_tile.tma_box == v_tile.tma_box


# --- CuTe's own layouts ------------------------------------------------------------------------------


def evaluate(shape, stride, index):
    """CuTe's definition of a layout: colexicographic index -> sum of coordinate * stride. NumPy arrays."""
    if not isinstance(shape, tuple):
        return index % shape * stride
    total = 0
    for sub_shape, sub_stride in zip(shape, stride, strict=True):
        size = int(np.prod(flat(sub_shape)))
        total = total + evaluate(sub_shape, sub_stride, index % size)
        index = index // size
    return total


def flat(tree):
    return [leaf for branch in tree for leaf in flat(branch)] if isinstance(tree, tuple) else [tree]


def cute_byte_offsets(tile, layout, inner_bits, samples):
    """Byte offset of (M or N, K) index pairs under CuTe's (shape, stride, swizzle), and its crd2idx check."""
    shape, stride = layout
    index = np.arange(int(np.prod(flat(shape))))
    elements = evaluate(shape, stride, index)
    for i, expected in samples:
        assert elements[i] == expected  # `evaluate` is CuTe's crd2idx
    bits, base, shift = inner_bits
    linear = elements * tile.bits // 8
    return linear ^ ((linear >> base + shift) & (1 << bits) - 1) << base


def inspect(layout):
    """Inside a trace: ((shape, stride), swizzle bits, crd2idx of every 61st coordinate)."""
    import cutlass.cute as cute

    inner, outer = layout.inner, layout.outer
    size = cute.size(outer)
    samples = [(i, cute.crd2idx(i, outer)) for i in range(0, size, 61)]
    return (outer.shape, outer.stride), (inner.num_bits, inner.num_base, inner.num_shift), samples


def ours(tile):
    """Our offsets in CuTe's order: (M or N) runs fastest."""
    row, col = grid(tile)
    offsets = tile.offset(row, col)
    return (offsets.T if not tile.mn_major else offsets).ravel()


@every_tile
def test_cute_layout_agrees_for_every_element(tile, trace):
    found = trace(lambda: inspect(tile.cute_layout()))
    assert (cute_byte_offsets(tile, *found) == ours(tile)).all()


@pytest.mark.parametrize("name", ["128x128", "192x64", "fp8-64x256"])
@pytest.mark.parametrize("kind", [KMajorTile, MNMajorTile])
def test_the_layout_cute_chooses_for_its_mma_agrees(kind, name, trace):
    """make_smem_layout_b chooses atom, order and MMA tiling. Sizes: even, odd and fp8 chunk counts."""
    tile = kind(*SIZES[name])

    def chosen():
        import cutlass
        from cutlass.cute.nvgpu import OperandMajorMode
        from cutlass.utils import blackwell_helpers

        dtype = cutlass.BFloat16 if tile.bits == 16 else cutlass.Float8E4M3FN
        major = OperandMajorMode.MN if tile.mn_major else OperandMajorMode.K
        n, k = (tile.cols, tile.rows) if tile.mn_major else (tile.rows, tile.cols)
        mma = blackwell_helpers.make_trivial_tiled_mma(
            dtype, dtype, OperandMajorMode.K, major, cutlass.Float32, cta_group(), (128, n)
        )
        return inspect(blackwell_helpers.make_smem_layout_b(mma, (128, n, k), dtype, 1))

    # Its modes are ((N, K of a step), N rest, K steps, stage): the same order (N, K) once flattened, because
    # N rest is 1 and an MMA step's K runs before the next step's.
    assert (cute_byte_offsets(tile, *trace(chosen)) == ours(tile)).all()


def cta_group():
    from cutlass.cute.nvgpu import tcgen05

    return tcgen05.CtaGroup.ONE


@every_tile
def test_compiled_stores_use_these_addresses(tile, trace):
    """CuTe moves the swizzle of cute_layout() into the pointer; the PTX shows the byte address it becomes."""
    rng = np.random.default_rng(1)
    where = [(int(rng.integers(tile.rows)), int(rng.integers(tile.cols))) for _ in range(20)]
    where = list(dict.fromkeys([*where, (0, 0), (tile.rows - 1, tile.cols - 1)]))

    def stores():
        import cutlass
        import cutlass.cute as cute

        dtype = cutlass.Int8 if tile.bits == 8 else cutlass.BFloat16
        layout = tile.cute_layout()
        pointer = cute.make_ptr(dtype, 8192, cute.AddressSpace.smem, assumed_align=1024)
        sX = cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer)
        for i, (row, col) in enumerate(where):
            sX[(col, row) if tile.mn_major else (row, col)] = dtype(i)

    _, ptx = trace(stores, launch=True)
    registers, found = {}, []
    for line in ptx.splitlines():
        if move := re.search(r"mov\.b32\s+(%r\d+), (\d+);", line):
            registers[move[1]] = int(move[2])
        if store := re.search(r"st\.shared\.b\d+\s+\[(%r\d+)\]", line):
            found.append(registers[store[1]])
    assert sorted(found) == sorted(8192 + tile.offset(row, col) for row, col in where)


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: KMajorTile(128, 72), "72 columns.*128 bytes.*pad the columns"),
        (lambda: KMajorTile(128, 8, 16, SWIZZLE_NONE), "8 columns.*MMA step, 32.*pad"),
        (lambda: KMajorTile(100, 64), "100 rows.*multiple of 8.*pad"),
        (lambda: KMajorTile(512, 64), "512 rows.*256.*two tiles"),
        (lambda: KMajorTile(0, 64), "0 rows"),
        (lambda: KMajorTile(128, 64, 32), "elements of 32 bits.*hold 8 or 16, .*bf16"),
        (lambda: MNMajorTile(24, 64), "24 rows.*16 of 16 bits.*pad"),
        (lambda: KMajorTile(128, 64).descriptor(512), "address 512.*multiples of 1024.*align"),
        (lambda: KMajorTile(128, 64).descriptor(0, 4), "step 4: 64 elements of K are 4 steps"),
        (lambda: MNMajorTile(128, 64).box_offset(1), "box 1: the tile is 1 boxes"),
    ],
)
def test_refusals_name_value_limit_and_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_24_rows_are_a_k_major_tile():
    """The refusal above is about V's contraction, not about the storage."""
    assert KMajorTile(24, 64).nbytes == 24 * 128
