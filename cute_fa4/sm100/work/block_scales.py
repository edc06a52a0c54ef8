"""Scales of blocks of a row of Q or K: one e8m0 byte for each 32 numbers, in words of up to four bytes.

The tensors have the shape of q and k, with a byte per block in place of the head dim, and any strides. Indices follow
the rules of the other scales (scales.py).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...layouts.block_scales import BLOCK
from .rows import Row
from .scales import place_of_key, place_of_row


def of_key(cfg, args, work, key, exists=True) -> Int32:
    """The scales of a key; 2^-127 beyond the sequence, whatever memory holds, or unless `exists`."""
    tensor = args.descales[cfg.descales.place("k")]
    place, exists = place_of_key(cfg, args, work, key, exists & (key < work.sequence.num_keys))
    return _word(cfg, tensor, (*place, work.tile.kv_head), exists)


def of_row(cfg, args, work, place: Row) -> Int32:
    """The scales of a query and head; a padding row gets those of another row, and nothing of it is stored."""
    tensor = args.descales[cfg.descales.place("q")]
    return _word(cfg, tensor, place_of_row(cfg, tensor, work, place), Boolean(True))


@cute.jit
def _word(
    cfg: cutlass.Constexpr, tensor: cute.Tensor, place: tuple, exists: cutlass.Boolean
) -> Int32:
    """Byte i is the scale of block i."""
    word = Int32(0)
    if exists:
        for i in cutlass.range_constexpr(cfg.qk_depth // BLOCK):
            word = word | Int32(tensor[(*place, i)]) << (8 * i)
    return word
