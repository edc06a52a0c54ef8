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
AHEAD = 8  # kinds, or counts, that a lane loads at a time

WINDOW = 1 << 15  # work tiles that a CTA sorts
SUB_BITS = 2  # bins of an octave, as bits
BIN_BITS = 6
BINS = 1 << BIN_BITS
# Key blocks of the last bin, which also has longer lists.
MOST = (2 << SUB_BITS << (BINS >> SUB_BITS) - 2) - 1

MAKES = {
    "tiles": "lists of blocks of any multiple of 16 -> lists of tiles, and kinds of units of 16 keys",
    "kinds": "lists of blocks of multiples of 128 -> the kind of each pair of tiles",
    "order": "kinds of pairs of tiles -> the lists of one owner of the backward pass",
    "longest": "counts of lists -> the work tiles of a launch, the longest lists first",
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


def bin_of(length: int) -> int:
    """The bin of a list, for host code that asks what the kernel does.

    >>> [bin_of(n) for n in (0, 1, 3, 4, 7, 8, 9, 40, 41, 47, 48)]
    [0, 1, 3, 4, 7, 8, 8, 17, 17, 17, 18]
    """
    length = min(length, MOST)
    octave = max(length.bit_length() - 1 - SUB_BITS, 0)
    return (octave << SUB_BITS) + (length >> octave)


def windows_of(tiles: int) -> int:
    """How many windows work tiles have; they differ by at most one tile.

    >>> windows_of(1), windows_of(1 << 15), windows_of((1 << 15) + 1)
    (1, 1, 2)
    """
    return -(-tiles // WINDOW)


def in_order(lengths: list[int]) -> list[int]:
    """Work tiles of lists of these lengths, in the order of the kernel; for host code, as bin_of.

    >>> in_order([3, 40, 5, 41, 3, 9])
    [1, 3, 5, 2, 0, 4]
    """
    number, found = windows_of(len(lengths)), []
    each, more = divmod(len(lengths), max(number, 1))
    for window in range(number):
        ends = (at * each + min(at, more) for at in (window, window + 1))
        found += sorted(range(*ends), key=lambda tile: -bin_of(lengths[tile]))
    return found
