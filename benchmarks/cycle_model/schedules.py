"""The work tiles of a launch, as key tiles of each, in launch order.

cute_fa4             tile_order.py and packed_order.py of the kernel itself, called with Python numbers; with lists of
                     key blocks then the order of lists/longest.py
flash-attn-4 causal  longest first, in sections of heads whose K and V fit 50 MiB of L2
flash-attn-4 packed  the same sequence by sequence; without a mask block by block of each head
flash-attn-4 full    block fastest, then head, then sequence
"""

from __future__ import annotations

from functools import lru_cache

from benchmarks.cycle_model import our_kernel
from benchmarks.cycle_model.problems import ELEMENT_BYTES, Problem
from benchmarks.cycle_model.workloads import KEYS_A_TILE

# flash-attn-4, tile_order.py, SingleTileLPTScheduler and VarlenDecoder: L2 taken for K and V.
LPT_L2_BYTES = 50 * 1024 * 1024
LONGEST_SECTION_OF_PACKED = 16
# FROST, config_sm100.py and template_params of its adapter: the same, by head dims of Q and of V.
FROST_L2_BYTES = {(192, 128): 80 << 20}
FROST_L2_BYTES_OF_OTHERS = 60 << 20


@lru_cache(maxsize=256)
def work_tiles(variant, problem: Problem) -> list[int]:
    """Key tiles of every work tile of a launch; 0: a CTA that finds nothing to do."""
    from benchmarks.cycle_model.kernels import FROST, OURS

    if variant.maker == OURS:
        return ours_packed(variant, problem) if problem.lengths else ours(variant, problem)
    if variant.maker == FROST:
        return frost(variant, problem)
    return packed(variant, problem) if problem.lengths else dense(variant, problem)


def ours(variant, problem: Problem) -> list[int]:
    """The kernel's own tile scheduler, for every number it is given."""
    from cute_fa4.sm100.work import tile_order
    from cute_fa4.sm100.work.lists.config import in_order

    config = our_kernel.config(variant)
    size = (problem.heads_q, problem.batch)
    number = tile_order.grid_size(config, problem.seqlen, *size)
    divisors = tile_order.tile_order(config, problem.seqlen, problem.seqlen, *size)
    known: dict[tuple[int, int], int] = {}
    order = []
    for cta in range(number):
        tile = tile_order.work_tile(config, cta, divisors)
        key = (tile.batch, tile.first_position)
        if key not in known:
            known[key] = problem.key_tiles(*key, config.tiles.positions_per_block)
        order.append(known[key])
    return [order[tile] for tile in in_order(order)] if config.longest_first else order


def ours_packed(variant, problem: Problem) -> list[int]:
    """The same of packed queries: sequence by sequence, the longest first, then CTAs without work."""
    from cute_fa4.sm100.work import packed_order

    config = our_kernel.config(variant)
    total, longest = sum(problem.sequences), max(problem.sequences)
    number = packed_order.grid_size(config, total, problem.batch, longest, problem.heads_q)
    heads = problem.heads_q // config.heads_per_tile
    order = []
    for sequence in packed_order.in_order(list(problem.sequences)):
        tiles, length = _blocks(variant, problem, sequence), problem.sequences[sequence]
        for inside in range(len(tiles) * heads):
            _, block = packed_order.block_of(config, inside, len(tiles), heads, length)
            order.append(tiles[block])
    return order + [0] * (number - len(order))


def dense(variant, problem: Problem) -> list[int]:
    """flash-attn-4, SingleTileLPTScheduler under a causal mask, else StaticPersistentTileScheduler."""
    packing = variant.group if variant.packed else 1
    heads = problem.batch * problem.heads_q // packing
    tiles = _blocks(variant, problem, 0)
    if not problem.causal:
        return tiles * heads
    head_bytes = problem.seqlen * 2 * problem.head_dim * ELEMENT_BYTES
    fitting = LPT_L2_BYTES // head_bytes
    return _in_sections(tiles[::-1], heads, 1 << (fitting.bit_length() - 1) if fitting else 1)


def frost(variant, problem: Problem) -> list[int]:
    """FROST, lpt_l2_tile_coords under a causal mask: sections of as equal a number of key heads as possible."""
    tiles, heads = _blocks(variant, problem, 0), problem.batch * problem.heads_q
    if not problem.causal:
        return tiles * heads
    depths = problem.head_dim, problem.head_dim_v or problem.head_dim
    fitting = FROST_L2_BYTES.get(depths, FROST_L2_BYTES_OF_OTHERS)
    fitting //= problem.seqlen * problem.both_depths * ELEMENT_BYTES
    of_keys = problem.batch * problem.heads_kv
    sections = -(-of_keys // max(fitting, 1))
    return _in_sections(tiles[::-1], heads, -(-of_keys // sections) * problem.group)


def orders(variant, problem: Problem) -> dict[str, list[int]]:
    """The kernel's order, and others of the same work tiles for comparison, without empty CTAs."""
    now = work_tiles(variant, problem)
    others = packed(variant, problem) if problem.lengths else dense(variant, problem)
    return {
        "now": now,
        "sections": [tiles for tiles in others if tiles],
        "longest first": sorted((tiles for tiles in now if tiles), reverse=True),
    }


def packed(variant, problem: Problem) -> list[int]:
    """flash-attn-4, SingleTileVarlenScheduler: the grid is an upper bound, the rest finds nothing."""
    heads = problem.heads_q // (variant.group if variant.packed else 1)
    fitting = LPT_L2_BYTES // (2 * problem.head_dim * ELEMENT_BYTES * KEYS_A_TILE)
    order: list[int] = []
    for sequence in range(problem.batch):
        tiles = _blocks(variant, problem, sequence)
        if not problem.causal:
            order += tiles * heads
            continue
        section = LONGEST_SECTION_OF_PACKED
        key_tiles = len(tiles) * variant.rows // KEYS_A_TILE
        while section > 1 and key_tiles * section > fitting:
            section //= 2
        order += _in_sections(tiles[::-1], heads, min(section, heads))
    packing = variant.group if variant.packed else 1
    rows = sum(problem.sequences) * packing + problem.batch * (variant.rows - 1)
    return order + [0] * (rows // variant.rows * heads - len(order))


def _blocks(variant, problem: Problem, sequence: int) -> list[int]:
    """Key tiles of the blocks of a sequence."""
    positions = variant.rows // (variant.group if variant.packed else 1)
    length = problem.sequences[sequence]
    return [problem.key_tiles(sequence, at, positions) for at in range(0, length, positions)]


def _in_sections(tiles: list[int], heads: int, section: int) -> list[int]:
    """All heads of a section block by block, then the next section."""
    order: list[int] = []
    for first in range(0, heads, section):
        width = min(section, heads - first)
        order += [n for n in tiles for _ in range(width)]
    return order
