"""V^T in tensor memory: V of 8 or 4 bits from the ring, transposed by ldmatrix, as fp16. A warp owns 32 columns of V.

    ring             a key is a row                      ldmatrix.trans: a thread has 2 or 4 keys of a column of V
    tensor memory    a column of V is a lane             a column holds keys 2 c and 2 c + 1

              ldmatrix         a word of lane l              words of two keys          tcgen05.st
    8 bits    m16n16.b8.x2     one column, four keys         two conversions                        16x256b
    4 bits    m8n8.b16.x4      four columns, two keys        four conversions, four permutations    16x128b

With 4 bits the four columns of a word are in four groups of eight lanes: lane 8 i + u has column 4 u + i of the warp's
(DequantizedTiles.depth_of_lane). Neither is V written to shared memory nor does an MMA read it there: of 1,090 cycles
that a key tile of 8 bits took of it 512 are left (docs/decisions/0071).
"""

from cutlass import Int32

from cute_fa4.layouts.scalars import minimum

from ...instructions import tensor_memory
from ...steps import cache_blocks
from ...steps.pieces import as_fp16, load_transposed, multiplied_halves, permuted
from ...steps.store import PIECE_BYTES
from ...sync.kernel_args import Smem
from .tiles import COLUMNS_OF_WARP, WIDE_DTYPE

UPPER = 16 << 16  # the address of the upper 16 lanes of a warp's, less that of the lower
LOWS, HIGHS = 0x5410, 0x7632  # of permuted: the lower, or the upper halves of two words


def read(cfg, smem: Smem, slot, warp, lane) -> list:
    """The columns of a warp in a slot of the ring, as ldmatrix transposes them: groups of four words.

    warp: of the four that have V
    """
    four_bits = cfg.in_element > 1
    keys, row, piece = (32, lane, warp) if four_bits else (16, lane % 16, 2 * warp + lane // 16)
    tile, address = cfg.tiles.ring_tile, smem.kv_address + slot * cfg.tiles.kv_slot_bytes
    return [
        load_transposed(address + tile.offset(first + row, piece * PIECE_BYTES), 8 * cfg.in_element)
        for first in range(0, cfg.tiles.BN, keys)
    ]


def store(cfg, groups: list, address, of_keys: list | None):
    """V^T to the warp's lanes, from the column of `address` on. of_keys: words of two scales, of pairs_of."""
    lower, upper = (of_four_bits if cfg.in_element > 1 else of_eight_bits)(cfg, groups, of_keys)
    columns = 4 if cfg.in_element > 1 else 8
    tensor_memory.store_fragments(address, lower, columns)
    tensor_memory.store_fragments(address + UPPER, upper, columns)
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def clear(cfg, address):
    """Zeros, in lanes beyond the depth."""
    for lanes in (0, UPPER):
        zeros = [Int32(0)] * (cfg.tiles.v_columns // 2)
        tensor_memory.store_fragments(address + lanes, zeros, 4)
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def of_four_bits(cfg, groups: list, of_keys: list | None) -> tuple[list, list]:
    """Words of the lower and of the upper 16 lanes."""
    lower, upper = [], []
    for number, word in enumerate(word for group in groups for word in group):
        first, second, *next_key = as_fp16([word], cfg.kv_dtype)
        for of, pair in ((lower, (first, next_key[0])), (upper, (second, next_key[1]))):
            of += scaled([permuted(*pair, LOWS), permuted(*pair, HIGHS)], of_keys, [number, number])
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


def keys_of_unit(problem) -> int:
    """Keys whose scales are side by side in the ring of scales: those that a thread has of a group of keys."""
    return 2 if problem.in_element > 1 else 4


def place_of_unit(problem, keys: int, key):
    """Where the scales of a block begin that belong to `key` and those after it, in bytes; keys: of the tile.

    The units of a thread are side by side: [lane % 4][group of keys].
    """
    unit = keys_of_unit(problem)
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
