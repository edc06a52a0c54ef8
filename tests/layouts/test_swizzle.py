"""Laws of the swizzles: the formula, its inverse, the banks, and agreement with CuTe and the driver's codes."""

import numpy as np
import pytest

from cute_fa4.layouts import SWIZZLE_128B, SWIZZLES, Swizzle
from cute_fa4.layouts.swizzle import swizzle_of_umma_code

every_swizzle = pytest.mark.parametrize("swizzle", SWIZZLES, ids=lambda s: s.tensor_map_name)


@every_swizzle
def test_chunk_is_xored_with_line(swizzle):
    """The definition, bit by bit: address bit 4 + i is XORed with bit 7 + i while 16 << i is below the span."""
    for address in range(0, 4096, 4):
        expected = address
        for i in range(3):
            if 16 << i < swizzle.span_bytes and address >> 7 + i & 1:
                expected ^= 1 << 4 + i
        assert swizzle(address) == expected


def test_128b_stores_chunk_c_of_row_r_at_chunk_c_xor_r():
    for row in range(8):
        for chunk in range(8):
            assert SWIZZLE_128B(row * 128 + chunk * 16) == row * 128 + (chunk ^ row) * 16


@every_swizzle
def test_is_its_own_inverse_and_permutes_every_period(swizzle):
    # 2048: two periods of the largest span; what happens above bit 10 is addition of whole periods.
    address = np.arange(2048)
    stored = swizzle(address)
    assert (swizzle.inverse(stored) == address).all()
    # Nothing leaves its period, so a tile of whole periods is mapped onto itself.
    assert (stored // swizzle.period_bytes == address // swizzle.period_bytes).all()
    assert sorted(stored) == list(address)


@every_swizzle
def test_repeats_after_its_period_and_not_before(swizzle):
    address = np.arange(1024)
    moved = {
        shift: bool((swizzle(address + shift) == swizzle(address) + shift).all())
        for shift in (128, 256, 512, 1024)
    }
    assert moved == {shift: shift >= swizzle.period_bytes for shift in moved}


@every_swizzle
def test_eight_rows_of_one_column_use_eight_different_bank_groups(swizzle):
    rows = np.arange(8) * swizzle.span_bytes
    for chunk in range(0, swizzle.span_bytes, 16):
        assert sorted(swizzle(rows + chunk) // 16 % 8) == list(range(8))


@every_swizzle
def test_every_aligned_128_bytes_still_use_all_banks(swizzle):
    """What TMA writes and ld.shared.v4 of neighbouring threads reads: consecutive chunks."""
    for line in range(0, 1024, 128):
        assert sorted(swizzle(line + np.arange(0, 128, 16)) // 16 % 8) == list(range(8))


def test_without_swizzle_the_column_would_be_one_bank_group():
    """The reason for the swizzle, and proof that the bank law above can fail."""
    assert len(set(np.arange(8) * 128 // 16 % 8)) == 1


@every_swizzle
def test_equals_cute_swizzle_on_byte_addresses(swizzle, trace):
    def cute_addresses():
        import cutlass.cute as cute

        inner = cute.make_swizzle(*swizzle.cute_bits)
        layout = cute.make_composed_layout(inner, 0, cute.make_layout(2048))
        return [cute.crd2idx(address, layout) for address in range(2048)]

    assert trace(cute_addresses) == list(swizzle(np.arange(2048)))


@every_swizzle
def test_names_exist_where_they_are_used(swizzle, trace):
    from cuda.bindings.driver import CUtensorMapSwizzle

    assert getattr(CUtensorMapSwizzle, swizzle.tensor_map_name) == swizzle.tensor_map_code
    assert swizzle_of_umma_code(swizzle.umma_code) == swizzle

    def atom_bits():
        import cutlass
        from cutlass.cute.nvgpu import tcgen05

        found = []
        for mn_major in (False, True):
            kind = tcgen05.SmemLayoutAtomKind[swizzle.atom_kind(mn_major)]
            atom = tcgen05.make_smem_layout_atom(kind, cutlass.BFloat16)
            inner = atom.inner
            shape = atom.outer.shape
            found.append(
                (inner.num_bits, inner.num_base, inner.num_shift, shape[0 if mn_major else 1])
            )
        return found

    assert trace(atom_bits) == [(*swizzle.cute_bits, swizzle.span_bytes // 2)] * 2


@pytest.mark.parametrize("span", [0, 8, 48, 256])
def test_other_spans_are_refused(span):
    with pytest.raises(ValueError, match=rf"{span} bytes.*128, 64, 32.*largest that divides"):
        Swizzle(span)


def test_32_byte_chunks_are_refused_by_code():
    with pytest.raises(ValueError, match="code 1 .*accepted are 0 .none., 2"):
        swizzle_of_umma_code(1)
