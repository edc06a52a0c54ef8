"""Block scales (MXFP8): their layout for the tensor core, and the instruction descriptor that selects them.

A row of an operand has one scale per 32 values along the contraction: a power of two in one byte (e8m0; 127 means
1). The scales of 128 rows and 128 values are 512 bytes, which one instruction copies from shared memory to tensor
memory:

    shared memory     line r % 32 of 16 bytes, word r / 32 of it, byte k / 32 of the word        (row r, number k)
    tensor memory     column r / 32 of four, lane r % 32 (and 32, 64, 96 lanes on), the same bytes

    byte              0   1   2   3   4   5  ...  15   16  ...
    (row, block)      0,0 0,1 0,2 0,3 32,0   ...  96,3 1,0

One tcgen05.mma covers 32 values; its descriptor selects the byte (sf_id). Bits that differ from umma_descriptors.py:

    [4:6)    byte of B's scales, instead of D's format: D is float32
    [23:24)  format of the scales: 1 e8m0
    [29:31)  byte of A's scales

PTX ISA, "Instruction descriptor" of kind::mxf8f6f4, "Scale factor layout", "tcgen05.cp"; fields as in CUTLASS's
InstrDescriptorBlockScaled, lines of shared memory as DeepGEMM's make_sf_desc describes them.
"""

from cute_fa4.dtypes import E4M3
from cute_fa4.layouts.swizzle import ROWS_PER_PERIOD, SWIZZLE_NONE
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor, SmemDescriptor

BLOCK = E4M3.block  # values per scale, and per MMA step
ONE = 127  # the byte that means 1
NOT_A_NUMBER = 255
ROWS = 128  # of a copy
LINES = 32  # of 16 bytes
LINE_BYTES = 16
COPY_BYTES = LINES * LINE_BYTES
COLUMNS = 4  # of tensor memory that a copy fills
KIND = "mxf8f6f4.block_scale.scale_vec::1X"
MOST_BLOCKS = 4  # of a word, and of the row in a copy

_B_BYTE, _E8M0, _A_BYTE = 4, 23, 29  # bits
_D_FORMAT = 3 << 4


def words_of(depth: int) -> int:
    """Words of the scales of a row; a copy brings one of each row.

    >>> words_of(96), words_of(128), words_of(192)
    (1, 1, 2)
    """
    return -(-depth // (BLOCK * MOST_BLOCKS))


def scale_offset(row, block):
    """Byte of the scale of a row's block in the 512 bytes of shared memory.

    >>> scale_offset(0, 3), scale_offset(32, 0), scale_offset(33, 1), scale_offset(127, 3)
    (3, 4, 21, 511)
    """
    return row % LINES * LINE_BYTES + row // LINES * 4 + block


def scaled_instruction(computes: InstructionDescriptor, block: int) -> int:
    """The 32-bit operand of the step whose scales are byte `block` of their words, in both A and B.

    >>> hex(scaled_instruction(InstructionDescriptor(128, 128, "e4m3", "e4m3"), 0))
    '0x8a00000'
    >>> hex(scaled_instruction(InstructionDescriptor(128, 128, "e4m3", "e4m3"), 3))
    '0x68a00030'
    """
    if computes.kind != E4M3.mma_kind or computes.d_format != "fp32":
        raise ValueError(
            f"A is {computes.a_format}, D is {computes.d_format}: blocks with scales are of e4m3 or e5m2, D fp32"
        )
    if not 0 <= block < MOST_BLOCKS:
        raise ValueError(f"block = {block}: a word has the scales of blocks 0 to {MOST_BLOCKS - 1}")
    return computes.encode() & ~_D_FORMAT | block << _B_BYTE | 1 << _E8M0 | block << _A_BYTE


def copy_descriptor() -> SmemDescriptor:
    """Descriptor of 512 bytes at address 0 for tcgen05.cp: lines of 16 bytes, eight in 128, no swizzle."""
    return SmemDescriptor(0, 0, ROWS_PER_PERIOD * LINE_BYTES, SWIZZLE_NONE)
