"""How many rows a tile over a latent cache has, and how many heads share it."""

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
