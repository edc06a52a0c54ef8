"""MMA warp: S_i = Q_i K^T of operands with scales of blocks, issued by one thread.

The order is that of two_tiles/p_crossed.py, whose mainloop makes each S by make_scaled_s. Before the products that
read them, the scales of a key tile are copied from their entry of the ring into tensor memory, and at the first key
tile also those of Q0 and Q1:

    n = 0    copy K, Q0    S0 = Q0 K0                    copy Q1    S1 = Q1 K0                    release the entry
    n > 0    copy K        S0 = Q0 Kn    O0 += P0 V(n-1)            S1 = Q1 Kn    O1 += P1 V(n-1)

Copies and products execute in issue order. So a copy need not wait for the product before it, which reads the same
columns, and the product after it need not wait for the copy.
"""

from functools import partial

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from cute_fa4.layouts.block_scales import COLUMNS, COPY_BYTES, words_of

from ...instructions import block_scales, tensor_memory
from ...steps.products import make_s
from ...steps.token_scales import place_of
from ...steps.warps import MmaWarp, ScoreTile
from ...sync.kernel_args import Events, Smem
from ...sync.pipelines import KVPosition
from .orders import OF_K
from .schedule import bytes_of


def address_of(cfg, smem: Smem, slot, which: int, word: int = 0):
    """The shared address of the scales of Q0, Q1 or K (0, 1, OF_K) in an entry of the ring, from a word of rows on."""
    each = bytes_of(cfg)
    entry = smem.scales.iterator.toint() + slot * ((OF_K + 1) * each)
    return entry + which * each + word * COPY_BYTES


def copy(cfg, smem: Smem, tmem, slot, which: int):
    """Copy the scales of an entry into their columns."""
    for word in range(words_of(cfg.qk_depth)):
        column = cfg.tmem.scales[which] + word * COLUMNS
        block_scales.copy_scales(tmem + column, address_of(cfg, smem, slot, which, word))


def await_entry(events: Events, slot, phase):
    events.scales_full.wait(slot, phase)
    tensor_memory.fence_after()


def release(events: Events, slot):
    """Release the entry once every copy issued so far has been executed."""
    events.scales_empty.commit(slot)


def scaled(cfg, tmem, i: int):
    """The MMA instruction of S_i, with the scales of its operands."""
    of_q, of_k = cfg.tmem.scales[i], cfg.tmem.scales[OF_K]
    return partial(block_scales.mma_ss, a_scales=tmem + of_q, b_scales=tmem + of_k)


@cute.jit
def make_scaled_s(
    cfg: cutlass.Constexpr,
    mma: MmaWarp,
    at_k: KVPosition,
    s: ScoreTile,
    phase: Int32,
    entry: Int32,
):
    """p_beside_s.make_next_s after the copies of its scales. entry: the number of the key tile in the CTA."""
    smem, tmem, events, i = mma.smem, mma.tmem, mma.events, s.i
    slot, full = place_of(entry)
    if cutlass.const_expr(i == 0):
        await_entry(events, slot, full)
        copy(cfg, smem, tmem, slot, OF_K)
    if s.n == 0:
        copy(cfg, smem, tmem, slot, i)
    issue = scaled(cfg, tmem, i)
    make_s(cfg, mma, at_k, s, wait=i == 0, read=phase, issue=issue)
    if cutlass.const_expr(i == cfg.tiles.num_q - 1):
        mma.kv.release(at_k)
        release(events, slot)
