"""Names for the emulator's messages: which warp is which role, what lies where in shared and tensor memory.

All of it is derived: roles from warp_roles.py, regions from smem_map.py, mbarriers from barriers.py.
"""

from ..emulator.labels import KernelLabels
from ..sm100.config import MBARRIER_BYTES, O_BUFFERS, FA4Config
from ..sm100.mha2q import smem_map
from ..sm100.mha2q.warp_roles import WARPS_PER_GROUP
from ..sm100.sync import barriers

# A location in one of these says less than that of the role or step that called it.
HELPER_FILES = (
    "sync/pipelines.py",
    "sync/barriers.py",
    "instructions/tensor_core.py",
    "instructions/tensor_memory.py",
    "instructions/exp2.py",
    "tma/copies.py",
)


def role_ranges(cfg: FA4Config) -> tuple[tuple[range, str], ...]:
    """(warps, role name) in warp order.

    >>> [name for _, name in role_ranges(FA4Config())]
    ['softmax 0', 'softmax 1', 'correction', 'mma', 'load', 'idle']
    """
    warps = cfg.warps
    softmax = [
        (range(first, first + WARPS_PER_GROUP), warps.role_of(first))
        for first in warps.softmax[::WARPS_PER_GROUP]
    ]
    rest = [(getattr(warps, name), name) for name in ("correction", "mma", "load", "idle")]
    return tuple(softmax + rest)


def shared_regions(cfg: FA4Config) -> tuple[tuple[int, int, str], ...]:
    """(offset, bytes, name) of every tile, slot and table in shared memory."""
    region = smem_map.regions(cfg)
    out = [
        (region["q"].offset + i * cfg.q_tile_bytes, cfg.q_tile_bytes, f"Q{i}")
        for i in range(cfg.num_q)
    ]
    out += [
        (region["kv"].offset + slot * cfg.kv_slot_bytes, cfg.kv_slot_bytes, f"kv[{slot}]")
        for slot in range(cfg.kv_slots)
    ]
    out += [
        (region["o"].offset + buffer * cfg.o_chunk_bytes, cfg.o_chunk_bytes, f"O chunk {buffer}")
        for buffer in range(O_BUFFERS)
    ]
    out += [
        (region[name].offset, region[name].nbytes, name)
        for name in ("row_scale", "row_bias", "work_queue", "tmem_address")
    ]
    return tuple(out)


def tensor_columns(cfg: FA4Config) -> tuple[tuple[int, int, str], ...]:
    """(first column, columns, name) in tensor memory; P_i lies in S_i unless it has a place of its own."""
    scores = [(column, cfg.BN, f"S{i}") for i, column in enumerate(cfg.tmem_s)]
    if cfg.p_apart:
        scores += [(column, cfg.p_columns, f"P{i}") for i, column in enumerate(cfg.tmem_p)]
    return tuple(
        scores + [(column, cfg.padded_ov_depth, f"O{i}") for i, column in enumerate(cfg.tmem_o)]
    )


def barrier_names(cfg: FA4Config) -> tuple[tuple[int, str, str, str], ...]:
    """(offset, name, who waits, who raises) of every mbarrier."""
    first = smem_map.regions(cfg)["mbarriers"].offset
    return tuple(
        (
            first + index * MBARRIER_BYTES,
            name,
            barrier.awaited_by,
            " + ".join(a.role for a in barrier.raised_by),
        )
        for index, name, barrier in barriers.instances(cfg)
    )


def kernel_labels(cfg: FA4Config) -> KernelLabels:
    """Everything the emulator can name in a launch of this configuration."""
    return KernelLabels(
        roles=role_ranges(cfg),
        shared=shared_regions(cfg),
        tmem=tensor_columns(cfg),
        barriers=barrier_names(cfg),
        helper_files=HELPER_FILES,
    )
