"""The context of softmax and correction, in groups that their steps pass on (roles/key_tile.py, correction.py).

Warpgroup    whole launch        memory, barriers, its number
CorrectionGroup                  the same for correction, with the row of this thread
Share        per work tile       the work tile, this thread's row, the number of earlier key tiles
KeyTile      per key tile        its number, its barriers and their parity
PlaceOfP     per key tile        where P is stored, and the wait before it
Exponential  per key tile        how scores become P

Steps take them as arguments, and loops call none of their methods: the compiler carries objects whose methods are
called inside a loop through the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cutlass import Float32, Int32

from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work.tile import Work
from . import half_powers


@dataclass(frozen=True)
class RowContext:
    """Facts about a softmax thread's row."""

    thread: Int32
    q_index: Int32  # of the query in its sequence, not beyond the last
    head: Int32
    bands: tuple  # ((lo, hi), ...) of the keys it sees
    factor: Float32 | None  # of its scores, in addition to the softmax scale
    limit: Float32 | None = None  # where key tiles may be skipped (skipped.py)


@dataclass(frozen=True)
class Warpgroup:
    """Softmax warpgroup i. tmem: address of S_i for this warp's lanes."""

    args: KernelArgs
    smem: Smem
    tmem: Int32
    events: Events
    i: Int32


@dataclass(frozen=True)
class CorrectionGroup:
    """The correction warpgroup; this thread owns one row. tmem: address of column 0 for this warp's lanes."""

    args: KernelArgs
    smem: Smem
    tmem: Int32
    events: Events
    row: Int32


@dataclass(frozen=True)
class Share:
    """A softmax thread's part of a work tile.

    tiles_before   key tiles of the warpgroup in earlier work tiles
    listed         where blocks are listed: the key tile of the current turn; None: the turn is the key tile
    """

    work: Work
    row: RowContext
    tiles_before: Int32
    listed: Int32 | None = None


@dataclass(frozen=True)
class KeyTile:
    """Key tile n. at, phase: its S and barriers, and their parity, from buffer_at and parity of an order."""

    n: Int32
    at: Int32
    phase: Int32


@dataclass(frozen=True)
class PlaceOfP:
    """Where a thread stores P: its address, its barriers; may_store() waits until its columns are free."""

    address: Int32
    thread: Int32
    at: Int32
    may_store: Callable


@dataclass(frozen=True)
class Exponential:
    """P = 2^(scale_log2 s + bias).

    powers   the function that computes them, of half_powers
    lost     of lost_weights, where P V sums P
    words    of steps/seen.py, where order.sum_early: exponentials that no row of the warp needs are skipped
    """

    scale_log2: Float32
    bias: Float32
    powers: Callable = half_powers.EXACT
    lost: Int32 | None = None
    words: list | None = None
