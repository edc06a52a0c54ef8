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


def contradictions(problem) -> list[str]:
    """Errors in what is asked of a latent cache, or of its kernels alone."""
    why = []
    if problem.latent and not (problem.pack_gqa and problem.ov_depth <= problem.qk_depth):
        why.append(
            f"latent=True with pack_gqa={problem.pack_gqa}, qk_depth={problem.qk_depth}, ov_depth={problem.ov_depth}: "
            "all heads share one row of keys, whose first columns are the values: use pack_gqa=True and an ov_depth "
            "of at most qk_depth"
        )
    if problem.write_max and not (problem.latent and problem.write_lse and not problem.split_keys):
        why.append(
            f"write_max=True with latent={problem.latent}, write_lse={problem.write_lse}, "
            f"split_keys={problem.split_keys}: kernels over latent caches write it beside the log-sum-exp, and parts "
            "of keys are not merged by it: use latent=True, write_lse=True and split_keys=False"
        )
    return why
