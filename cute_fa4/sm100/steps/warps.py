"""The context of a single warp, in groups that its steps pass on; for softmax and correction see warpgroup.py.

MmaWarp      whole launch        memory, barriers, its end of the ring
ScoreTile    per key tile        which S is made
LoadWarp     whole launch        tensors, memory, barriers, its end of the ring
TileToLoad   per key tile        the work tile, its number, its page-table entries

Loops call none of their methods: the compiler carries objects whose methods are called inside a loop through the loop.
So a function takes `kv = mma.kv` before its loop.
"""

from dataclasses import dataclass
from typing import Any

from cutlass import Int32

from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline
from ..work.tile import Work


@dataclass(frozen=True)
class MmaWarp:
    """The warp that issues the MMAs. tmem: address of column 0; skip: the argument of the kernel, where it is read."""

    smem: Smem
    tmem: Int32
    events: Events
    kv: KVConsumerPipeline
    skip: tuple = ()


@dataclass(frozen=True)
class ScoreTile:
    """S_i of key tile n of `count`. q_phase: parity of Q_i in this work tile.

    i   a softmax warpgroup, a Python int or an Int32 of the kernel
    """

    i: Any
    n: Int32
    count: Int32
    q_phase: Int32


@dataclass(frozen=True)
class LoadWarp:
    """The load warp. kv: the rings of the family, one or several."""

    args: KernelArgs
    smem: Smem
    events: Events
    kv: Any


@dataclass(frozen=True)
class TileToLoad:
    """Key tile n of a work tile. entries: of look_up (loads.py)."""

    work: Work
    n: Int32
    entries: Int32 | tuple
