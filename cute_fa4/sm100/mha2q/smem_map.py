"""Shared memory of a CTA from byte 0 to the last mbarrier.

    offset                    bytes                      what
    0                         q_bytes                    Q0, Q1
    q_bytes                   kv_slots * kv_slot_bytes   ring: K or V tile in each slot
    ...                       2 * o_chunk_bytes          chunks of O on their way to global memory
    ...                       1024                       row scale: one f32 for each softmax thread
    ...                       1024                       row bias: another
    ...                       112                        work queue: two entries, and the answer to a claim
    ...                       8 * num_mbarriers          mbarriers, in the order of barriers.BARRIERS
    ...                       4                          where tcgen05.alloc leaves the tensor-memory address

Q tiles, slots and chunks are multiples of 1024 bytes, the period of the 128-byte swizzle, so every tile starts on one.
"""

from dataclasses import dataclass

from ..config import (
    MBARRIER_BYTES,
    O_BUFFERS,
    ROW_BIAS_BYTES,
    ROW_SCALE_BYTES,
    TMEM_ADDRESS_BYTES,
    WORK_QUEUE_BYTES,
    FA4Config,
)


@dataclass(frozen=True)
class Region:
    """`nbytes` bytes from byte `offset` of the CTA's dynamic shared memory, 1024-byte aligned base."""

    name: str
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


def regions(cfg: FA4Config) -> dict[str, Region]:
    """Every region by name, in memory order.

    >>> list(regions(FA4Config()))
    ['q', 'kv', 'o', 'row_scale', 'row_bias', 'work_queue', 'mbarriers', 'tmem_address']
    >>> regions(FA4Config())['tmem_address'].end == FA4Config().smem_bytes
    True
    """
    sizes = {
        "q": cfg.q_bytes,
        "kv": cfg.kv_slots * cfg.kv_slot_bytes,
        "o": O_BUFFERS * cfg.o_chunk_bytes,
        "row_scale": ROW_SCALE_BYTES,
        "row_bias": ROW_BIAS_BYTES,
        "work_queue": WORK_QUEUE_BYTES,
        "mbarriers": MBARRIER_BYTES * cfg.num_mbarriers,
        "tmem_address": TMEM_ADDRESS_BYTES,
    }
    out, offset = {}, 0
    for name, nbytes in sizes.items():
        out[name] = Region(name, offset, nbytes)
        offset += nbytes
    return out
