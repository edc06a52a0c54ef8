"""Laws of the tensor-memory fragments: who holds what, how P is packed, and agreement with CuTe."""

import numpy as np
import pytest

from cute_fa4.layouts import Fragment32x32b, PackedOperand, decode_address, encode_address
from cute_fa4.layouts.tmem_fragments import REPETITIONS

# --- addresses ---------------------------------------------------------------------------------------


def test_address_is_lane_then_column_and_inverts():
    lane, column = np.indices((128, 512))
    address = encode_address(lane, column)
    assert (address == lane * 65536 + column).all()
    back = decode_address(address)
    assert (back[0] == lane).all() and (back[1] == column).all()


# --- fragments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("registers", REPETITIONS)
def test_a_warpgroup_holds_every_lane_and_column_once(registers):
    fragment = Fragment32x32b(registers, first_column=64)
    warp, thread, register = np.indices((4, 32, registers))
    lane, column = fragment.element(warp, thread, register)
    assert set(zip(lane.ravel(), column.ravel(), strict=True)) == {
        (a, b) for a in range(128) for b in range(64, 64 + registers)
    }
    back = fragment.holder(lane, column)
    assert all((x == y).all() for x, y in zip(back, (warp, thread, register), strict=True))


def test_thread_t_of_the_warpgroup_owns_row_t():
    """Softmax keeps one row a thread: thread of the group = lane, whatever the group's first warp is."""
    fragment = Fragment32x32b(32)
    for first_warp in (0, 4, 8):
        for thread in range(128):
            lane, _ = fragment.element(first_warp + thread // 32, thread % 32, 0)
            assert lane == thread


@pytest.mark.parametrize("warp", [0, 3, 6, 12])
def test_address_operand_is_where_thread_0_register_0_lies(warp):
    fragment = Fragment32x32b(16, first_column=256)
    assert decode_address(fragment.address(warp)) == fragment.element(warp, 0, 0)


# x32: the batch of the softmax loop; x8: several batches a tile; x128: the whole S row at once.
@pytest.mark.parametrize("registers", [8, 32, 128])
@pytest.mark.parametrize("store", [False, True], ids=["ld", "st"])
def test_fragment_is_cute_tmem_copy(registers, store, trace):
    """make_tmem_copy of a 128 x 128 f32 tile, partitioned for every thread: coordinate of every register."""

    def partitions():
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.nvgpu import tcgen05

        repetition = getattr(tcgen05.Repetition, f"x{registers}")
        op = (tcgen05.St32x32bOp if store else tcgen05.Ld32x32bOp)(repetition)
        pointer = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
        tS = cute.make_tensor(pointer, cute.make_layout((128, 128), stride=(65536, 1)))
        copy = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tS)
        coordinates = cute.make_identity_tensor((128, 128))
        found = {}
        # All threads for their first batch's edge registers, and every value of three threads.
        for thread in range(128):
            mine = copy.get_slice(thread)
            part = mine.partition_S(coordinates) if store else mine.partition_D(coordinates)
            values = range(cute.size(part)) if thread in (0, 37, 127) else (0, 1, registers - 1)
            for value in values:
                found[thread, value] = tuple(part[value])
        return found

    found, _ = trace(partitions, launch=True)
    assert len(found) == 3 * 128 + 125 * 3
    for (thread, value), coordinate in found.items():
        batch, register = divmod(value, registers)
        fragment = Fragment32x32b(registers, first_column=batch * registers)
        assert fragment.element(thread // 32, thread % 32, register) == coordinate


def test_accumulator_row_r_is_lane_r_and_column_n_is_column_n(trace):
    def layout():
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

        op = tcgen05.MmaF16BF16Op(
            cutlass.BFloat16, cutlass.Float32, (128, 128, 16), tcgen05.CtaGroup.ONE,
            tcgen05.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K,
        )  # fmt: skip
        mma = cute.make_tiled_mma(op)
        tS = mma.make_fragment_C(mma.partition_shape_C((128, 128))).layout
        return [[cute.crd2idx(((row, n), 0, 0), tS) for n in (0, 1, 127)] for row in range(128)]

    found, _ = trace(layout, launch=True)
    assert found == [[encode_address(row, n) for n in (0, 1, 127)] for row in range(128)]


# --- P as operand A ----------------------------------------------------------------------------------

OPERANDS = {
    "bf16-128": PackedOperand(128),  # P of the default tile
    "bf16-192-at-96": PackedOperand(192, first_column=96),  # no power of two, not at column 0
    "fp8-128": PackedOperand(128, 8),
}
every_operand = pytest.mark.parametrize("operand", OPERANDS.values(), ids=OPERANDS.keys())


@every_operand
def test_elements_fill_whole_columns_and_invert(operand):
    row, k = np.indices((128, operand.contraction))
    lane, column, bit = operand.location(row, k)
    bits = operand.bits
    assert (lane == row).all()
    word_bits = ((lane * 512 + column) * 32 + bit).ravel()
    assert len(set(word_bits)) == row.size and (word_bits % bits == 0).all()
    assert set(column.ravel()) == set(
        range(operand.first_column, operand.first_column + operand.columns)
    )
    back_row, back_k = operand.element(lane, column, bit)
    assert (back_row == row).all() and (back_k == k).all()


@every_operand
def test_pack_puts_each_element_where_location_says(operand):
    raw = np.random.default_rng(0).integers(0, 2**operand.bits, (128, operand.contraction))
    words = operand.pack(raw.astype(f"u{operand.bits // 8}"))
    assert words.shape == (128, operand.columns) and words.dtype == np.uint32
    row, k = np.indices(raw.shape)
    lane, column, bit = operand.location(row, k)
    mask = (1 << operand.bits) - 1
    assert (
        (words[lane, column - operand.first_column].astype(np.int64) >> bit & mask) == raw
    ).all()
    assert (operand.unpack(words) == raw).all()


def test_the_even_key_is_in_the_low_half():
    words = PackedOperand(16).pack(np.arange(16, dtype=np.uint16)[None])
    assert words[0, 0] == 0x00010000 and words[0, 7] == 0x000F000E


@every_operand
def test_a_step_is_eight_columns(operand):
    """32 bytes of the contraction; the offsets 0x8, 0x10 ... that flash-attn-4 4.0.0b36 compiles to."""
    steps = [operand.step_column(step) - operand.first_column for step in range(operand.num_steps)]
    assert steps == [8 * step for step in range(operand.num_steps)]
    first_of_step = [
        operand.location(0, step * operand.step_elements) for step in range(operand.num_steps)
    ]
    assert first_of_step == [(0, operand.first_column + column, 0) for column in steps]


@pytest.mark.parametrize("bits", [16, 8])
def test_packing_is_cute_operand_a_in_tensor_memory(bits, trace):
    """CuTe counts elements in tensor memory: index = (lane << 16 | column) * elements a column + position."""

    def layout():
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

        rest = (
            tcgen05.CtaGroup.ONE, tcgen05.OperandSource.TMEM, OperandMajorMode.K, OperandMajorMode.MN,
        )  # fmt: skip
        if bits == 16:
            op = tcgen05.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (128, 128, 16), *rest)
        else:
            e4m3 = cutlass.Float8E4M3FN
            op = tcgen05.MmaF8F6F4Op(e4m3, e4m3, cutlass.Float32, (128, 128, 32), *rest)
        mma = cute.make_tiled_mma(op)
        tP = mma.make_fragment_A(mma.partition_shape_A((128, 128))).layout
        k_step = 256 // bits
        return {
            (row, k): cute.crd2idx(((row, k % k_step), 0, k // k_step), tP)
            for row in (0, 1, 31, 32, 127)
            for k in range(128)
        }

    operand = PackedOperand(128, bits)
    found, _ = trace(layout, launch=True)
    for (row, k), index in found.items():
        lane, column, bit = operand.location(row, k)
        assert index == encode_address(lane, column) * operand.per_column + bit // bits


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: encode_address(128, 0), "lane 128.*0 to 127"),
        (lambda: encode_address(0, 512), "column 512.*0 to 511.*lower the tile"),
        (lambda: decode_address(1 << 31), "lane 32768"),
        (lambda: Fragment32x32b(24), "24 registers.*x1, x2.*split"),
        (lambda: Fragment32x32b(128, first_column=400), "last column 527.*fewer"),
        (lambda: Fragment32x32b(32).element(0, 32, 0), "thread 32.*within the warp"),
        (lambda: Fragment32x32b(32).element(0, 0, 32), "register 32.*x32"),
        (lambda: Fragment32x32b(32).holder(0, 32), "column minus 0 32.*outside"),
        (lambda: PackedOperand(100), "100 elements.*takes 16 of 16.*pad"),
        (lambda: PackedOperand(128, 32), "elements of 32 bits"),
        (lambda: PackedOperand(128).location(0, 128), "k 128.*0 to 127"),
        (lambda: PackedOperand(128).step_column(8), "step 8.*0 to 7"),
        (lambda: PackedOperand(16).pack(np.zeros((1, 16), np.float16)), "float16.*uint16.*view"),
        (lambda: PackedOperand(16).pack(np.zeros((1, 8), np.uint16)), r"\(1, 8\).*\(\.\.\., 16\)"),
    ],
)
def test_refusals_name_value_limit_and_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
