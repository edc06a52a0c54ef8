"""V^T in tensor memory: V of 8 or 4 bits from the ring, transposed by ldmatrix, as fp16. A warp owns 32 columns of V.

    ring             a key is a row                      ldmatrix.trans: a thread has 2 or 4 keys of a column of V
    tensor memory    a column of V is a lane             a column holds keys 2 c and 2 c + 1

              ldmatrix         a word of lane l              words of two keys
    8 bits    m16n16.b8.x2     one column, four keys         two conversions
    4 bits    m8n8.b16.x4      four columns, two keys        those of a matrix of even keys and one of odd keys
                                                             exchange numbers, then four conversions each

A matrix of 4 bits has every other key, so one exchange of numbers between two words puts two consecutive keys into each
byte, and a conversion gives them as a word (docs/decisions/0075). The four columns of a word are in four groups of
eight lanes: lane 8 i + u has column 4 u + i of the warp's (DequantizedTiles.depth_of_lane). Neither is V written to
shared memory nor does an MMA read it there: of 1,090 cycles that a key tile of 8 bits took of it 512 are left
(docs/decisions/0071).
"""

from cutlass import Int32

from cute_fa4.layouts.scalars import minimum

from ...instructions import tensor_memory
from ...steps import cache_blocks
from ...steps.pieces import as_fp16, exchanged_nibbles, load_transposed, multiplied_halves
from ...steps.store import PIECE_BYTES
from ...sync.kernel_args import Smem
from .tiles import COLUMNS_OF_WARP, WIDE_DTYPE

UPPER = 16 << 16  # the address of the upper 16 lanes of a warp's, less that of the lower
COLUMNS = 8  # of tensor memory: those of a matrix of tcgen05.st 16x256b, which has 16 keys
KEYS_OF_UNIT = (
    4  # whose scales are side by side in the ring of scales: those that a thread has of 16 keys
)


def read(cfg, smem: Smem, slot, warp, lane) -> list:
    """The columns of a warp in a slot of the ring, as ldmatrix transposes them: groups of four words.

    warp: of the four that have V
    """
    four_bits = cfg.in_element > 1
    keys, row, piece = 16, lane % 16, 2 * warp + lane // 16
    if four_bits:  # matrices of the even keys of 16, of the odd ones, the same of the next 16
        keys, row, piece = 32, lane // 16 * 16 + lane % 8 * 2 + lane // 8 % 2, warp
    tile, address = cfg.tiles.ring_tile, smem.kv_address + slot * cfg.tiles.kv_slot_bytes
    return [
        load_transposed(address + tile.offset(first + row, piece * PIECE_BYTES), 8 * cfg.in_element)
        for first in range(0, cfg.tiles.BN, keys)
    ]


def store(cfg, groups: list, address, of_keys: list | None):
    """V^T to the warp's lanes, from the column of `address` on. of_keys: words of two scales, of pairs_of."""
    lower, upper = (of_four_bits if cfg.in_element > 1 else of_eight_bits)(cfg, groups, of_keys)
    tensor_memory.store_fragments(address, lower, COLUMNS)
    tensor_memory.store_fragments(address + UPPER, upper, COLUMNS)
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def clear(cfg, address):
    """Zeros, in lanes beyond the depth."""
    for lanes in (0, UPPER):
        zeros = [Int32(0)] * (cfg.tiles.v_columns // 2)
        tensor_memory.store_fragments(address + lanes, zeros, COLUMNS)
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def of_four_bits(cfg, groups: list, of_keys: list | None) -> tuple[list, list]:
    """Words of the lower and of the upper 16 lanes."""
    lower, upper = [], []
    pairs = [group[i : i + 2] for group in groups for i in (0, 2)]
    for number, of_keys_of_two in enumerate(pairs):
        numbers = [2 * number, 2 * number + 1]
        for words in exchanged_nibbles(*of_keys_of_two):
            first, second, *next_keys = as_fp16([words], cfg.kv_dtype)
            lower += scaled([first, next_keys[0]], of_keys, numbers)
            upper += scaled([second, next_keys[1]], of_keys, numbers)
    return lower, upper


def of_eight_bits(cfg, groups: list, of_keys: list | None) -> tuple[list, list]:
    """The same."""
    lower, upper = [], []
    for number, group in enumerate(groups):
        for of, words in ((lower, group[:2]), (upper, group[2:])):
            numbers = [2 * number, 2 * number + 1] * 2
            of += scaled(as_fp16(words, cfg.kv_dtype), of_keys, numbers)
    return lower, upper


def scaled(words: list, of_keys: list | None, numbers: list) -> list:
    """Words of two keys, times the words of scales of these numbers."""
    if of_keys is None:
        return words
    return [
        multiplied_halves([word], of_keys[number], WIDE_DTYPE)[0]
        for word, number in zip(words, numbers, strict=True)
    ]


def place_of_unit(keys: int, key):
    """Where the scales of a block begin that belong to `key` and those after it, in bytes; keys: of the tile.

    The units of a thread are side by side: [lane % 4][group of 16 keys].
    """
    unit = KEYS_OF_UNIT
    return (key // unit % 4) * (keys // 4) + key // (4 * unit) * unit


def pairs_of(cfg, words: list) -> list:
    """Bytes of scales of a thread's keys -> words of two fp16, of two keys each."""
    return cache_blocks.factors_of_pairs((cfg.kv_dtype, WIDE_DTYPE), words)


def block_of(cfg, warp, lane, block: int):
    """The block of scales that a thread's columns belong to. block: columns of one."""
    if cfg.tiles.lanes_beyond_depth:  # a warp without columns reads what is there
        warp = minimum(warp, cfg.tiles.warps_of_depth - 1)
    column = COLUMNS_OF_WARP * warp
    return (column + (4 * (lane // 4) if cfg.in_element > 1 else 0)) // block
