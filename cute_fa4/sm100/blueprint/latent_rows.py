"""How many rows a tile over a latent cache has, how many heads share it, and what a row of the cache holds."""

from cute_fa4.dtypes import bytes_of, elements_in

COLUMNS_OF_SCALE = 128  # numbers of a row of a latent cache that share a scale
COLUMNS_OF_BLOCK = 64  # numbers that share a scale where a latent cache has scales of blocks
ROTARY_COLUMNS = 64  # of a row of a latent cache
MOST_LATENT_ROWS = 64  # of a tile over a latent cache: docs/decisions/0011


def heads_of_latent_tile(heads: int, rows: int = MOST_LATENT_ROWS) -> int:
    """How many heads of a latent cache share a tile of so many rows: all, or an equal part that fits.

    >>> heads_of_latent_tile(16), heads_of_latent_tile(64), heads_of_latent_tile(96), heads_of_latent_tile(128)
    (16, 64, 48, 64)
    >>> heads_of_latent_tile(96, 128), heads_of_latent_tile(256, 128)
    (96, 128)
    """
    parts = -(-heads // rows)
    while heads % parts:
        parts += 1
    return heads // parts


def stored_columns(problem) -> int:
    """Elements of a row of a latent cache whose RoPE columns have 16 bits and whose numbers have scales."""
    if problem.latent_blocks:
        return problem.ov_depth + ROTARY_COLUMNS  # which have two bytes
    in_row = bytes_of(problem.scale_dtype, problem.ov_depth // COLUMNS_OF_SCALE)
    rotary = bytes_of(problem.rope_dtype, problem.qk_depth - problem.ov_depth)
    return problem.ov_depth + elements_in(problem.stored_dtype, in_row + rotary)
