"""Tiles of pages side by side: the same elements at other distances, and CuTe's own layout."""

import numpy as np
import pytest

from cute_fa4.layouts.operand_tiles import KMajorTile, MNMajorTile
from cute_fa4.layouts.page_tiles import PageKMajorTile, PageMNMajorTile

# (keys, depth): the kernel's tile; a smaller one whose rows and chunks differ in number.
SIZES = [(128, 128), (64, 192)]


@pytest.mark.parametrize("rows, cols", SIZES)
@pytest.mark.parametrize("tile_type", [PageKMajorTile, PageMNMajorTile])
def test_every_element_has_a_place_of_its_own_and_is_found_again(tile_type, rows, cols):
    tile = tile_type(rows, cols)
    row, col = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    offsets = tile.offset(row, col)
    assert sorted(offsets.ravel()) == list(range(0, tile.nbytes, 2))
    found = tile.element(offsets)
    assert (found[0] == row).all() and (found[1] == col).all()


@pytest.mark.parametrize("page", [8, 16, 64])
def test_a_page_is_contiguous(page):
    """That is what one copy with all chunks writes."""
    tile = PageKMajorTile(128, 128)
    row, col = np.meshgrid(np.arange(page, 2 * page), np.arange(128), indexing="ij")
    offsets = tile.offset(row, col)
    assert offsets.min() == page * 256 and offsets.max() == 2 * page * 256 - 2


@pytest.mark.parametrize("rows, cols", SIZES)
def test_the_descriptor_reaches_every_element_of_every_step(rows, cols):
    """The MMA's address formula, from LBO, SBO and the step, against where the element lies."""
    k, v = PageKMajorTile(rows, cols), PageMNMajorTile(rows, cols)
    for step in range(k.num_steps):
        row, depth = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
        address = k.descriptor(0, step).element_address(row, depth, 16, mn_major=False)
        np.testing.assert_array_equal(address, k.offset(row, depth + 16 * step))
    for step in range(v.num_steps):
        depth, key = np.meshgrid(np.arange(cols), np.arange(16), indexing="ij")
        address = v.descriptor(0, step).element_address(depth, key, 16, mn_major=True)
        np.testing.assert_array_equal(address, v.offset(key + 16 * step, depth))


@pytest.mark.parametrize(
    "tile_type, plain", [(PageKMajorTile, KMajorTile), (PageMNMajorTile, MNMajorTile)]
)
def test_one_chunk_needs_no_other_layout(tile_type, plain):
    row, col = np.meshgrid(np.arange(128), np.arange(64), indexing="ij")
    np.testing.assert_array_equal(
        tile_type(128, 64).offset(row, col), plain(128, 64).offset(row, col)
    )


def test_agrees_with_cute(trace):
    def layouts():
        out = []
        for rows, cols in SIZES:
            layout = PageKMajorTile(rows, cols).cute_layout().outer
            out.append((rows, cols, str(layout)))
        return out

    # Eight rows of 64 elements, then the next chunk, then the next eight rows.
    expected = {
        (128, 128): "((8,16),(64,2)):((64,1024),(1,512))",
        (64, 192): "((8,8),(64,3)):((64,1536),(1,512))",
    }
    for rows, cols, text in trace(layouts):
        assert text == expected[rows, cols]
