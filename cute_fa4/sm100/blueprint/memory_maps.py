"""Maps of shared and tensor memory: named regions; each family declares its own.

A map is the only spelling of a size: offsets follow from the order of its fields, and the bytes of a launch are the end
of the last.
"""

from dataclasses import dataclass, fields
from math import prod

from .barriers import KV_SLOT, KV_STAGE, SCALE_SLOTS, SLOTS_BESIDE_A_REST, BarrierTable
from .chip import F32_BYTES, MBARRIER_BYTES, SMEM_CAPACITY_BYTES, TMEM_COLUMNS
from .problem import Problem
from .tiles import Tiles

UNIT_WORDS = 4  # 16 bytes, of which one float32 is used


@dataclass(frozen=True)
class Region:
    """`nbytes` bytes from byte `offset` of the CTA's dynamic shared memory, 1024-byte aligned base.

    shape   of the float32 that it holds; None: roles have its address (sync/kernel_args.py)
    """

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class SmemMap:
    """Base of a family's map, a dataclass whose fields are Regions, in memory order."""

    mbarriers: Region  # every family has them

    @classmethod
    def of_sizes(cls, **sizes: int | tuple[int, ...]) -> "SmemMap":
        """The map whose fields have these sizes, in order: bytes, or the shape of a float32 array."""
        regions, offset = {}, 0
        for field in fields(cls):
            size = sizes[field.name]
            shape = size if isinstance(size, tuple) else None
            nbytes = size if shape is None else F32_BYTES * prod(shape)
            regions[field.name] = Region(field.name, offset, nbytes, shape)
            offset += nbytes
        return cls(**regions)

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def nbytes(self) -> int:
        """Dynamic shared memory of one CTA, from its 1024-byte aligned base."""
        return self.regions[-1].end


@dataclass(frozen=True)
class TmemMap:
    """First columns of S_i, P_i and O_i for each softmax warpgroup i, and how many columns are used.

    p_apart  P has its own columns, not those of S
    sums     the first of the columns after O_i that hold the sums of P's rows; empty: softmax adds P up itself
    s_meet   S0 and S1 have columns in common
    scales   the first of four columns with the scales of Q0, Q1 and K; empty: no block scales
    """

    s: tuple[int, ...]
    p: tuple[int, ...]
    o: tuple[int, ...]
    used: int
    p_apart: bool
    sums: tuple[int, ...] = ()
    s_meet: bool = False
    scales: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Columns to allocate: a power of two from 32."""
        return max(32, 1 << (self.used - 1).bit_length())

    @property
    def fits(self) -> bool:
        return self.used <= TMEM_COLUMNS


def scale_words(problem: Problem, keys: int) -> int:
    """float32 of an entry of the ring of scales: of K, of V, and what those of V are in units of, padded."""
    of_keys = keys * len(problem.token_scales)
    return of_keys + UNIT_WORDS * ("v" in problem.token_scales)


def token_scales(problem: Problem, keys: int) -> int:
    """float32 of the ring of scales, where every key has its own; keys: of a tile."""
    return SCALE_SLOTS * scale_words(problem, keys)


def slots_that_fit(tiles: Tiles, without_ring: SmemMap, table: BarrierTable) -> int:
    """Slots of the ring that still fit. without_ring, table: map and table of a kernel without slots."""
    per_slot = sum(
        {KV_SLOT: 1, KV_STAGE: tiles.qk_stages}.get(barrier.per, 0) for barrier in table.rows
    )
    slot_bytes = tiles.kv_slot_bytes + MBARRIER_BYTES * per_slot
    slots = max(0, (SMEM_CAPACITY_BYTES - without_ring.nbytes) // slot_bytes)
    return min(slots, SLOTS_BESIDE_A_REST) if tiles.rest_qk_depth else slots
