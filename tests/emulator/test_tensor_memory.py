"""Tensor memory: the allocator's rules, bounds, and unwritten words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cute_fa4.emulator.machine.tensor_memory import COLUMNS, POISON, TensorMemory, split_address
from cute_fa4.emulator.ptx.errors import TensorMemoryError, UninitializedRead
from cute_fa4.emulator.ptx.labels import KernelLabels


def test_address_is_lane_then_column():
    assert split_address(0x00600123) == (0x60, 0x123)


@given(
    st.lists(st.sampled_from((32, 64, 128, 256, 512)), max_size=8),
    st.randoms(use_true_random=False),
)
def test_allocations_never_overlap_and_everything_can_be_freed(sizes, random):
    tmem = TensorMemory()
    blocks = []
    for columns in sizes:
        start = tmem.find(columns)
        if start is None:
            with pytest.raises(TensorMemoryError, match="free some first"):
                tmem.allocate(columns)
            continue
        assert tmem.allocate(columns) == start
        assert start + columns <= COLUMNS
        assert all(start + columns <= s or s + n <= start for s, n in blocks)
        blocks.append((start, columns))
    assert tmem.allocated.sum() == sum(n for _, n in blocks)
    random.shuffle(blocks)
    for start, columns in blocks:
        tmem.deallocate(start, columns)
    tmem.check_freed()
    assert tmem.find(512) == 0


@pytest.mark.parametrize("columns", [0, 16, 48, 96, 1024])
def test_only_powers_of_two_from_32_to_512_can_be_allocated(columns):
    with pytest.raises(TensorMemoryError, match=f"{columns} columns; accepted are 32, 64, 128"):
        TensorMemory().allocate(columns)


def test_no_allocation_after_the_permit_is_given_up():
    tmem = TensorMemory()
    tmem.allocate(32)
    tmem.relinquish()
    with pytest.raises(TensorMemoryError, match="after tcgen05.relinquish_alloc_permit"):
        tmem.allocate(32)


@pytest.mark.parametrize(("address", "columns"), [(0, 32), (32, 64), (0x10000, 64)])
def test_dealloc_must_match_an_alloc(address, columns):
    tmem = TensorMemory()
    tmem.allocate(64)
    with pytest.raises(TensorMemoryError, match="allocated are columns 0 to 63"):
        tmem.deallocate(address, columns)


def test_a_cta_must_free_what_it_allocated():
    tmem = TensorMemory(name="CTA (1, 0, 0)")
    tmem.allocate(128)
    with pytest.raises(TensorMemoryError, match=r"CTA \(1, 0, 0\) ends.*columns 0 to 127"):
        tmem.check_freed()


def test_both_cta_groups_in_one_kernel_are_refused():
    tmem = TensorMemory()
    tmem.use_cta_group(2)
    tmem.use_cta_group(2)
    with pytest.raises(
        TensorMemoryError, match="cta_group::1 in a kernel that has used .cta_group::2"
    ):
        tmem.use_cta_group(1)


def test_read_returns_what_was_written_by_column_and_lane():
    tmem = TensorMemory()
    tmem.allocate(64)
    values = np.arange(3 * 32, dtype=np.uint32).reshape(3, 32)
    tmem.write(32, 5, values)
    assert np.array_equal(tmem.read(32, 5, 32, 3), values)
    assert tmem.read(40, 6, 1, 1)[0, 0] == values[1, 8]
    lanes, columns = np.array([[33, 34]]), np.array([[7, 5]])
    assert tmem.gather(lanes, columns).tolist() == [[values[2, 1], values[0, 2]]]


def test_unwritten_words_are_named_with_lane_column_and_label():
    tmem = TensorMemory(KernelLabels(tmem=((32, 16, "S0"),)))
    tmem.allocate(64)
    tmem.write(0, 32, np.zeros((8, 128), np.uint32))
    with pytest.raises(
        UninitializedRead, match=r"lane 96, column 40 \(S0\[:, 8\]\).*64 such words"
    ):
        tmem.read(96, 38, 32, 4)
    with pytest.raises(UninitializedRead, match="lane 7, column 41"):
        tmem.gather(np.array([0, 7]), np.array([32, 41]))


def test_reallocated_columns_are_poison_again():
    tmem = TensorMemory()
    start = tmem.allocate(32)
    tmem.write(0, start, np.zeros((32, 128), np.uint32))
    tmem.deallocate(start, 32)
    assert tmem.allocate(32) == start
    assert (tmem.words[start] == POISON).all()
    with pytest.raises(UninitializedRead):
        tmem.read(0, start, 32, 1)


@pytest.mark.parametrize(
    ("lane", "column", "lanes", "columns", "message"),
    [
        (0, 60, 32, 8, "column 64 is not allocated"),
        (0, 508, 32, 8, "columns 508 to 515; tensor memory has"),
        (112, 0, 32, 1, "lanes 112 to 143"),
    ],
)
def test_access_outside_of_the_allocation_is_refused(lane, column, lanes, columns, message):
    tmem = TensorMemory()
    tmem.allocate(64)
    with pytest.raises(TensorMemoryError, match=message):
        tmem.write(lane, column, np.zeros((columns, lanes), np.uint32))
    with pytest.raises(TensorMemoryError, match=message):
        tmem.read(lane, column, lanes, columns)
