"""Compute warps of the kernel of all gradients (joint.py): P = 2^(c (S - L / c)), dS = P (dP - delta), then dK and dV.

A thread has a key and 64 queries of a tile. P stays in registers until dP comes.

    S -> s_read    P -> tensor memory -> p_ready    dP -> dS -> tensor memory -> ds_ready
                                                             -> shared memory of the CTA that has these queries of dQ

A warpgroup whose queries belong to its own CTA stores dS there. The other sends it to the other CTA, whose mbarrier
counts the bytes (st.async). Both wait until dQ of the turn before has been made of the dS before.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, select_

from ..instructions import mbarriers, tensor_memory
from ..steps import row_math, visibility
from ..steps.store import CHUNK_ROW_BYTES, PIECE_BYTES, swizzled, write_words
from . import compute, store, weights
from .operands import OwnerArgs
from .owner import ROWS
from .work import Place, Work, bands_of, moved

BATCH = 32  # columns in registers at a time, of dP


def is_cut(cfg, owner, args: OwnerArgs, work: Work, place: Place):
    """Whether some score of the CTA's tile may be hidden, or some key does not exist: K is zero there, and P is not."""
    cut = compute.is_cut(cfg, owner, args, work, place)
    return cut | (work.row + ROWS > work.sequence.length_k)


@cute.jit
def tile(
    cfg: cutlass.Constexpr,
    owner: cutlass.Constexpr,
    args: OwnerArgs,
    cta,
    thread,
    work: Work,
    at: tuple,
    cut: cutlass.Constexpr,
):
    """One tile of scores. thread: a Thread; at: (turn, place); cut: what is_cut says."""
    n, place = at
    cta.s_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    scores = loaded(owner, thread)
    tensor_memory.fence_before()
    cta.s_read.arrive(0)
    p = weights.powers_of(cfg, args, scores, [None] * owner.columns)
    if cutlass.const_expr(cut):
        p = visible(cfg, owner, args, thread, work, place, p)
    tensor_memory.store(
        compute.written_at(owner, thread, owner.p_place), row_math.pack(p, owner.dtype)
    )
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.p_ready.arrive(0)
    cta.dp_ready.wait(0, n & 1)
    tensor_memory.fence_after()
    if n > 0:
        cta.dq_ready.wait(0, (n & 1) ^ 1)
    to, dp = compute.written_at(owner, thread, owner.ds_place), thread.lanes + owner.dp_column
    make_ds(owner, cta, thread, work, p, dp, to)
    tensor_memory.wait_store()
    tensor_memory.fence_before()
    cta.ds_ready.arrive(0)
    if thread.column == work.rank * owner.columns:
        cute.arch.fence_proxy("async.shared", space="cta")
        cta.ds_sent.arrive(0)


def loaded(owner, thread) -> list:
    """The thread's columns of S, in registers: their places may be overwritten."""
    out = []
    for first in range(0, owner.columns, BATCH):
        out += tensor_memory.load(thread.lanes + owner.s_column + first, BATCH)
    tensor_memory.wait_load()
    return out


def make_ds(owner, cta, thread, work: Work, p: list, dp, to):
    """dS of the thread's columns, rounded, to tensor memory and to the CTA that makes dQ of them. dp: where dP is"""
    for first, values in tensor_memory.load_batches(dp, owner.columns, BATCH):
        words = row_math.pack(row_math.products(p[first : first + BATCH], values), owner.dtype)
        tensor_memory.store(to + first // 2, words)
        hand_over(owner, cta, thread, work, first, words)


@cute.jit
def hand_over(
    owner: cutlass.Constexpr, cta, thread, work: Work, first: cutlass.Constexpr, words: list
):
    """dS of a key and some queries, to the CTA that has these queries. first: which of the thread's queries."""
    key = work.rank * ROWS + thread.row
    buffer = cta.base + owner.smem.ds.offset
    if thread.column == work.rank * owner.columns:
        write_words(buffer, key, first * 2, words)
    else:
        other = work.rank ^ 1
        there = mbarriers.there(other, buffer + key * CHUNK_ROW_BYTES)
        mbarrier = mbarriers.there(other, cta.ds_sent.mbarriers.toint())
        for piece in cutlass.range_constexpr(len(words) // 4):
            inside = swizzled(key, first * 2 + piece * PIECE_BYTES)
            mbarriers.send_words(there + inside, words[4 * piece : 4 * piece + 4], mbarrier)


def visible(cfg, owner, args: OwnerArgs, thread, work: Work, place: Place, p: list) -> list:
    """P, with zeros where the mask hides the score, and for keys that do not exist."""
    first = place.tile * owner.other_rows + thread.column
    key = work.row + thread.row
    ends = bands_of(cfg, owner, args.sizes, work.sequence, key)
    bands = [(moved(lo, -first), moved(hi, -first)) for lo, hi in ends]
    out = []
    for column in range(0, owner.columns, visibility.WORD):
        word = visibility.visibility(bands, column)
        word = select_(key < work.sequence.length_k, word, Int32(0))
        out += visibility.selected(p[column : column + visibility.WORD], word, hidden=0.0)
    return out


@cute.jit
def run(cfg: cutlass.Constexpr, owner: cutlass.Constexpr, args: OwnerArgs, cta, thread, work: Work):
    """Every tile of a CTA, then dK and dV."""
    place = Place.of(work)
    for n in cutlass.range(work.count, unroll=1):
        if is_cut(cfg, owner, args, work, place):
            tile(cfg, owner, args, cta, thread, work, (n, place), True)
        else:
            tile(cfg, owner, args, cta, thread, work, (n, place), False)
        place = place.next(work)
    store.run(cfg, owner, args, cta, thread, work)
