"""BlockListsConfig: which of the kernels that convert lists of key blocks."""

from dataclasses import dataclass

THREADS = 128  # of a CTA; of tiles and kinds, each thread has one tile of keys at a time
WARPS = THREADS // 32
TILE = 128  # queries and keys
UNIT = 16  # keys of two bits
UNITS_OF_TILE = TILE // UNIT
UNITS_OF_WORD, UNITS_OF_BYTE = 16, 4
WORDS = (
    THREADS * UNITS_OF_TILE // UNITS_OF_WORD
)  # of a query block: for the key tiles of a CTA's threads
MOST_BLOCKS = 8  # query blocks in a tile of queries: 16 queries is the smallest block
SMEM_BYTES = 4 * (MOST_BLOCKS * WORDS + 2 * WARPS)
AHEAD = 8  # kinds that a lane loads at a time

MAKES = {
    "tiles": "lists of blocks of any multiple of 16 -> lists of tiles, and kinds of units of 16 keys",
    "kinds": "lists of blocks of multiples of 128 -> the kind of each pair of tiles",
    "order": "kinds of pairs of tiles -> the lists of one owner of the backward pass",
}


@dataclass(frozen=True)
class BlockListsConfig:
    """Every compile-time choice of these kernels; sizes, strides, and which tensors a call has, are bound at each call.

    makes  one of MAKES
    arch   "sm_100a" or "sm_103a"
    """

    makes: str
    arch: str = "sm_100a"

    @property
    def name(self) -> str:
        """
        >>> BlockListsConfig("tiles").name
        'block_lists_tiles_sm_100a'
        """
        return f"block_lists_{self.makes}_{self.arch}"
