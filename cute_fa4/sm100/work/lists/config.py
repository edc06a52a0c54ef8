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
MOST_BLOCKS = 16  # query blocks in a tile of up to 256 queries: 16 queries is the smallest block
SMEM_BYTES = 4 * (MOST_BLOCKS * WORDS + 2 * WARPS)
HIDES, ALL_PARTIAL = 1, 2  # of what a launch says of kinds: see Sizes of kernel.py
AHEAD = 8  # kinds, or counts, that a lane loads at a time

WINDOW = 1 << 15  # work tiles that a CTA sorts
SUB_BITS = 2  # bins of an octave, as bits
BIN_BITS = 6
BINS = 1 << BIN_BITS
# Key blocks of the last bin, which also has longer lists.
MOST = (2 << SUB_BITS << (BINS >> SUB_BITS) - 2) - 1

MOST_CUT_TILES = 1 << 12  # work tiles of a launch whose lists may be cut

MAKES = {
    "tiles": "lists of blocks of any multiple of 16 -> lists of tiles, and kinds of units of 16 keys",
    "kinds": "lists of blocks of multiples of 128 -> the kind of each pair of tiles",
    "order": "kinds of pairs of tiles -> the lists of one owner of the backward pass",
    "longest": "counts of lists -> the work tiles of a launch, the longest lists first",
    "cut": "the same, and the longest lists are cut into parts",
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


def share_of(total: int, shares: int, least: int) -> int:
    """Key blocks of a part, at most: an equal share of all lists, or `least`.

    >>> share_of(100, 4, 8), share_of(101, 4, 8), share_of(20, 4, 8)
    (25, 26, 8)
    """
    return max(-(-total // shares), least)


def parts_of(length: int, share: int) -> int:
    """Parts of a list. One that is up to half longer than a share is not cut: its parts would cost what they gain.

    >>> [parts_of(length, 10) for length in (0, 15, 16, 20, 21, 95)]
    [1, 1, 2, 2, 3, 10]
    """
    return -(-length // share) if 2 * length > 3 * share else 1


def most_cut(shares: int) -> int:
    """An upper bound of the lists that are cut: each is more than half longer than a share, whatever the counts are.

    >>> most_cut(148)
    99
    """
    return 2 * shares // 3 + 1


def most_slots(shares: int) -> int:
    """An upper bound of their parts: a list of n shares has fewer than n + 1.

    >>> most_slots(148)
    247
    """
    return shares + most_cut(shares)


def cut_in_order(lengths: list[int], shares: int, least: int) -> list[tuple[int, int, int, int]]:
    """(work tile, part, parts, slot of part 0) in the order of the kernel; for host code, as bin_of.

    Parts of a list follow one another, those of a bin in the order of their work tiles. Slots are counted in the order
    of work tiles; one that is not cut has the slot after those of earlier ones, and does not use it.

    >>> cut_in_order([9, 40, 5], 4, 8)
    [(1, 0, 3, 0), (1, 1, 3, 0), (1, 2, 3, 0), (0, 0, 1, 0), (2, 0, 1, 3)]
    """
    share = share_of(sum(min(n, MOST) for n in lengths), shares, least)
    parts = [parts_of(min(n, MOST), share) for n in lengths]
    slots, slot = [], 0
    for n in parts:
        slots.append(slot)
        slot += n if n > 1 else 0
    order = sorted(range(len(lengths)), key=lambda i: -bin_of(-(-lengths[i] // parts[i])))
    return [(i, part, parts[i], slots[i]) for i in order for part in range(parts[i])]
