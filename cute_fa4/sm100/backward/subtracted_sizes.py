"""Sizes of the MMA step that subtracts L and delta (subtracted.py), for configurations, which need no compiler."""

from ...layouts.swizzle import CHUNK_BYTES, ROWS_PER_PERIOD
from ...layouts.umma_descriptors import MMA_K_BYTES

ROWS = 128  # of a tile
CORE_BYTES = ROWS_PER_PERIOD * CHUNK_BYTES
NUMBERS_A_ROW = MMA_K_BYTES // 4  # float32 that take the place of the parts of a query
NUMBERS = ROWS * NUMBERS_A_ROW  # of a tile of queries
BLOCK_BYTES = ROWS * CHUNK_BYTES
ONES_BYTES = 3 * BLOCK_BYTES
# In a pair, whose L and delta come apart, and whose constant rows all lie in one place.
NUMBERS_OF_PART = CHUNK_BYTES // 4
ONES_BYTES_OF_PAIR = 2 * CORE_BYTES
