"""Names for the emulator's messages: the role of each warp, and the contents of shared and tensor memory.

All of it is derived: roles from warp_roles.py, regions from smem_map.py, mbarriers from barriers.py.
"""

from cute_fa4.emulator.ptx.labels import KernelLabels
from cute_fa4.sm100.blueprint.chip import MBARRIER_BYTES, WARPS_PER_GROUP
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.two_tiles.orders import SUM_COLUMNS

from ..layouts.block_scales import COLUMNS, words_of

# A location in one of these says less than that of the role or step that called it.
HELPER_FILES = (
    "sync/pipelines.py",
    "blueprint/barriers.py",
    "instructions/tensor_core.py",
    "instructions/tensor_memory.py",
    "instructions/exp2.py",
    "tma/copies.py",
)


def role_ranges(cfg: FA4Config) -> tuple[tuple[range, str], ...]:
    """(warps, role name) in warp order.

    >>> [name for _, name in role_ranges(FA4Config())]
    ['softmax 0', 'softmax 1', 'correction', 'mma', 'load', 'scales', 'idle']
    """
    warps = cfg.warps
    softmax = [
        (range(first, first + WARPS_PER_GROUP), warps.role_of(first))
        for first in warps.softmax[::WARPS_PER_GROUP]
    ]
    known = ("correction", "mma", "load", "values", "scales", "dequantize", "idle")
    others = [name for name in known if getattr(warps, name, None)]
    rest = [(getattr(warps, name), name) for name in others]
    return tuple(softmax + rest)


def shared_regions(cfg: FA4Config) -> tuple[tuple[int, int, str], ...]:
    """(offset, bytes, name) of every tile, slot and table in shared memory."""
    places, tiles = cfg.smem, cfg.tiles
    parts = {
        "q": (tiles.q_tile_bytes, "Q{}"),
        "kv": (tiles.kv_slot_bytes, "kv[{}]"),
        "k_rest": (tiles.k_rest_bytes, "rest of K"),
        "o": (tiles.o_chunk_bytes, "O chunk {}"),
    }
    out = []
    for region in (region for region in places.regions if region.nbytes):
        nbytes, name = parts.get(region.name, (region.nbytes, region.name))
        out += [
            (region.offset + i * nbytes, nbytes, name.format(i))
            for i in range(region.nbytes // nbytes)
        ]
    return tuple(entry for entry in out if entry[2] != "mbarriers")


def tensor_columns(cfg: FA4Config) -> tuple[tuple[int, int, str], ...]:
    """(first column, columns, name) in tensor memory.

    P_i lies in S_i unless it has its own columns; L_i: the sums of its rows, if P V computes them.
    """
    scores = [(column, cfg.tiles.s_columns, f"S{i}") for i, column in enumerate(cfg.tmem.s)]
    if cfg.tmem.p_apart:
        scores += [(column, cfg.tiles.p_columns, f"P{i}") for i, column in enumerate(cfg.tmem.p)]
    names = ("scales of Q0", "scales of Q1", "scales of K")[: len(cfg.tmem.scales)]
    columns = COLUMNS * words_of(cfg.qk_depth)
    scores += [(at, columns, x) for at, x in zip(cfg.tmem.scales, names, strict=True)]
    sums = [(column, SUM_COLUMNS, f"L{i}") for i, column in enumerate(cfg.tmem.sums)]
    outputs = [(column, cfg.tiles.o_columns, f"O{i}") for i, column in enumerate(cfg.tmem.o)]
    return tuple(scores + sums + outputs)


def barrier_names(cfg: FA4Config) -> tuple[tuple[int, str, str, str], ...]:
    """(offset, name, who waits, who raises) of every mbarrier."""
    first = cfg.smem.mbarriers.offset
    return tuple(
        (
            first + index * MBARRIER_BYTES,
            name,
            barrier.awaited_by,
            " + ".join(a.role for a in barrier.raised_by),
        )
        for index, name, barrier in cfg.barriers.instances()
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
