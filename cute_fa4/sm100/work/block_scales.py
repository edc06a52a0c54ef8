"""Scales of blocks of a row of Q or K: one e8m0 byte for each 32 numbers, in words of up to four bytes.

The tensors have the shape of q and k, with a byte per block in place of the head dim, and any strides. Indices follow
the rules of the other scales (scales.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...layouts.block_scales import BLOCK, MOST_BLOCKS
from .rows import Row
from .scales import place_of_key, place_of_row


def of_key(cfg, args, work, key, word: int, exists=True) -> Int32:
    """A word of the scales of a key; 2^-127 beyond the sequence, whatever memory holds, or unless `exists`."""
    tensor = args.descales[cfg.descales.place("k")]
    place, exists = place_of_key(cfg, args, work, key, exists & (key < work.sequence.num_keys))
    return _word(cfg, tensor, (*place, work.tile.kv_head), word, exists)


def of_row(cfg, args, work, place: Row, word: int) -> Int32:
    """A word of the scales of a query and head; a padding row gets another row's, and nothing of it is stored."""
    tensor = args.descales[cfg.descales.place("q")]
    return _word(cfg, tensor, place_of_row(cfg, tensor, work, place), word, Boolean(True))


@cute.jit
def _word(
    cfg: cutlass.Constexpr,
    tensor: cute.Tensor,
    place: tuple,
    number: cutlass.Constexpr,
    exists: cutlass.Boolean,
) -> Int32:
    """Byte i is the scale of block 4 * number + i."""
    word, first = Int32(0), MOST_BLOCKS * number
    if exists:
        for i in cutlass.range_constexpr(min(MOST_BLOCKS, cfg.qk_depth // BLOCK - first)):
            word = word | Int32(tensor[(*place, first + i)]) << (8 * i)
    return word
