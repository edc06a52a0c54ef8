"""What softmax and correction work with, in groups that their steps pass on (roles/key_tile.py, correction.py).

Warpgroup    all launch long     memory, barriers, its number
CorrectionGroup                  the same of correction, with the row of this thread
Share        in a work tile      the work tile, this thread's row, the key tiles before
KeyTile      in a key tile       its number, its barriers and their parity
PlaceOfP     in a key tile       where P goes, and what is awaited before
Exponential  in a key tile       how scores become P

Steps take them as arguments, and loops call none of their methods: the compiler carries what is called inside a loop
through the loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from cutlass import Float32, Int32

from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work.tile import Work
from . import half_powers


@dataclass(frozen=True)
class RowContext:
    """What a softmax thread knows about its row."""

    thread: Int32
    q_index: Int32  # of the query in its sequence, not beyond the last
    head: Int32
    bands: tuple  # ((lo, hi), ...) of the keys it sees
    factor: Float32 | None  # of its scores besides the softmax scale


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
    """The correction warpgroup, of which this thread has a row. tmem: address of column 0 for this warp's lanes."""

    args: KernelArgs
    smem: Smem
    tmem: Int32
    events: Events
    row: Int32


@dataclass(frozen=True)
class Share:
    """What a softmax thread has of a work tile. tiles_before: key tiles of the warpgroup in earlier work tiles."""

    work: Work
    row: RowContext
    tiles_before: Int32


@dataclass(frozen=True)
class KeyTile:
    """Key tile n. at, phase: its S and barriers, and their parity, as buffer_at and parity of an order say."""

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

    powers   how they are computed, of half_powers
    lost     of lost_weights, where the product with V adds P up
    words    of steps/seen.py, where order.sum_early: powers that no row of the warp needs are left out
    """

    scale_log2: Float32
    bias: Float32
    powers: Callable = half_powers.EXACT
    lost: Int32 | None = None
    words: list | None = None
