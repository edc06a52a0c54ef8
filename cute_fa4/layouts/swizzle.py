"""Shared-memory swizzles: byte address -> byte address, by XOR of the 16-byte chunk with the 128-byte line.

128-byte span. A line is 128 bytes, all 32 banks; r:c is 16-byte chunk c of row r:

    banks   0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
    line 0  0:0  0:1   0:2    0:3    0:4    0:5    0:6    0:7
    line 1  1:1  1:0   1:3    1:2    1:5    1:4    1:7    1:6
    line 2  2:2  2:3   2:0    2:1    2:6    2:7    2:4    2:5
    line 3  3:3  3:2   3:1    3:0    3:7    3:6    3:5    3:4
    line 4  4:4  4:5   4:6    4:7    4:0    4:1    4:2    4:3
    line 5  5:5  5:4   5:7    5:6    5:1    5:0    5:3    5:2
    line 6  6:6  6:7   6:4    6:5    6:2    6:3    6:0    6:1
    line 7  7:7  7:6   7:5    7:4    7:3    7:2    7:1    7:0

64-byte span. A line has two rows, which permute their four chunks in the same way:

    banks   0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
    line 0  0:0  0:1   0:2    0:3    1:0    1:1    1:2    1:3
    line 1  2:1  2:0   2:3    2:2    3:1    3:0    3:3    3:2
    line 2  4:2  4:3   4:0    4:1    5:2    5:3    5:0    5:1
    line 3  6:3  6:2   6:1    6:0    7:3    7:2    7:1    7:0

32-byte span. A line holds four rows; in every second line they swap their two chunks:

    banks   0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
    line 0  0:0  0:1   1:0    1:1    2:0    2:1    3:0    3:1
    line 1  4:1  4:0   5:1    5:0    6:1    6:0    7:1    7:0

Reason: reading one chunk of eight rows (the same column of the logical tile) is one access of 128 bytes. In every
picture the eight chunks r:0, r = 0 to 7, are in eight different columns, so they use all 32 banks once. Without the
XOR, rows of 128 bytes would put them all into the same four banks.

The XOR combines bits [4:7) with bits [7:10) of the *address*. A tile therefore starts at a multiple of the period
(8 rows: 1024, 512 or 256 bytes), so that offsets can be swizzled like addresses.

Source: PTX ISA, "Tensor swizzling modes" (TMA) and "Tensor Core 5th Generation: shared memory descriptor".
"""

from dataclasses import dataclass

CHUNK_BYTES = 16  # the unit that moves: banks serve 16-byte chunks, and a descriptor counts in them
LINE_BYTES = 128  # 32 banks of 4 bytes
ROWS_PER_PERIOD = 8  # rows of one core matrix; the pattern repeats every eight spans

# span in bytes -> (CUtensorMapSwizzle code, layout_type of the shared-memory descriptor, atom suffix)
_CODES = {128: (3, 2, "SW128"), 64: (2, 4, "SW64"), 32: (1, 6, "SW32"), 16: (0, 0, "INTER")}


@dataclass(frozen=True)
class Swizzle:
    """A swizzle named by its span: bytes of a row that stay together; 16 means no swizzle.

    Calling it maps a byte address (int or integer array) to the address where that byte is stored. It is
    its own inverse.

    >>> [Swizzle(128)(row * 128) // 16 % 8 for row in range(8)]
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> Swizzle(16)(4000)
    4000

    Raises ValueError for any other span.
    """

    span_bytes: int

    def __post_init__(self):
        if self.span_bytes not in _CODES:
            raise ValueError(
                f"swizzle span of {self.span_bytes} bytes: TMA and tcgen05.mma know 128, 64, 32 and, for "
                "none, 16; take the largest that divides the bytes of a row"
            )

    def __call__(self, address):
        return address ^ ((address >> 7) & self.mask) << 4

    def inverse(self, address):
        """Stored address -> logical address. The XOR reads bits that it does not change."""
        return self(address)

    @property
    def mask(self) -> int:
        """Mask of the line bits that the XOR uses: 7, 3, 1 or 0."""
        return self.span_bytes // CHUNK_BYTES - 1

    @property
    def period_bytes(self) -> int:
        """Bytes of eight rows, after which the pattern repeats; a tile starts at a multiple of it."""
        return ROWS_PER_PERIOD * self.span_bytes

    @property
    def cute_bits(self) -> tuple[int, int, int]:
        """(B, M, S) of CuTe's Swizzle<B, M, S>, which acts on byte addresses."""
        return self.mask.bit_length(), 4, 3

    @property
    def tensor_map_code(self) -> int:
        """Value of the CUtensorMapSwizzle enum, as a tensor map stores it."""
        return _CODES[self.span_bytes][0]

    @property
    def tensor_map_name(self) -> str:
        name = "NONE" if self.mask == 0 else f"{self.span_bytes}B"
        return f"CU_TENSOR_MAP_SWIZZLE_{name}"

    @property
    def umma_code(self) -> int:
        """Bits [61:64) of the shared-memory descriptor."""
        return _CODES[self.span_bytes][1]

    def atom_kind(self, mn_major: bool) -> str:
        """Name of the member of CuTe's tcgen05.SmemLayoutAtomKind.

        >>> SWIZZLE_64B.atom_kind(mn_major=False), SWIZZLE_NONE.atom_kind(mn_major=True)
        ('K_SW64', 'MN_INTER')
        """
        return f"{'MN' if mn_major else 'K'}_{_CODES[self.span_bytes][2]}"


SWIZZLE_128B = Swizzle(128)
SWIZZLE_64B = Swizzle(64)
SWIZZLE_32B = Swizzle(32)
SWIZZLE_NONE = Swizzle(16)
SWIZZLES = (SWIZZLE_128B, SWIZZLE_64B, SWIZZLE_32B, SWIZZLE_NONE)


def swizzle_of_umma_code(code: int) -> Swizzle:
    """Bits [61:64) of a shared-memory descriptor -> Swizzle.

    Raises ValueError for reserved codes, and for 1 (128-byte span with 32-byte chunks, used by MN-major
    32-bit elements only), which this package does not model.
    """
    for swizzle in SWIZZLES:
        if swizzle.umma_code == code:
            return swizzle
    raise ValueError(
        f"swizzle code {code} in bits [61:64): accepted are 0 (none), 2 (128 B), 4 (64 B), 6 (32 B); "
        "build the descriptor with SmemDescriptor"
    )
