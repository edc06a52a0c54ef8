"""MMA warp of CTA 0: S of the next key tile, then P V of this one; one thread issues for both CTAs.

    n = 0               S[t & 1] = Q K0
    n = 1, 2, ...       S[t & 1] = Q Kn     O0, O1 (+)= P(t - 1) V(n-1)
    at the end                              O0, O1 += P(t) V(last)

Tile t counts over all work tiles of the pair. While the softmax works on S of a tile, the tensor core computes P V of
the previous tile and S of the next one. A slot is released when its single product is done.
"""

from dataclasses import dataclass

from cute_fa4.layouts.operand_tiles import OperandTile
from cute_fa4.layouts.umma_descriptors import InstructionDescriptor

from ...instructions import tensor_core, tensor_memory
from ...operands.kv_buffer import mma_tile
from ...pair.kernel import leader_issues
from ...pair.sync import PairConsumer
from ...roles import issue
from ...roles.issue import Products
from ...steps.warps import MmaWarp
from ...sync.kernel_args import Smem
from ...sync.pipelines import Slot
from ..tiles import LATENT_DEPTH
from .schedule import S_BUFFERS
from .tiles import CTAS, UNIT_COLUMNS


@dataclass(frozen=True)
class UsePosition:
    """A position in both rings."""

    unit: Slot
    rope: Slot


@dataclass(frozen=True)
class LatentPairConsumer:
    """The MMA warp's end of both rings."""

    units: PairConsumer
    rope: PairConsumer

    def first(self) -> UsePosition:
        return UsePosition(self.units.first().slot, self.rope.first().slot)


def multiply_qk(cfg, smem: Smem, k: OperandTile, address, s_address, first: int):
    """S (+)= Q K^T over the columns of the tile k at a shared address, starting at column `first`."""
    m, n, depth = cfg.tiles.qk_mma_shape
    step, columns = cfg.tiles.MMA_K, min(k.cols, depth - first)
    q_start, q_high, q_steps = mma_tile(cfg.tiles.q_tile, smem.q_address, (first + columns) // step)
    k_start, k_high, k_steps = mma_tile(k, address, columns // step)
    computes = InstructionDescriptor(m, n, cfg.qkv_dtype, cfg.qkv_dtype, cta_group=CTAS)
    steps = list(zip(q_steps[first // step :], k_steps, strict=True))
    tensor_core.mma_ss(
        s_address, q_start, k_start, steps, computes, q_high, k_high, accumulate=first > 0
    )


def multiply_pv(cfg, smem: Smem, address, part: int, o_address, accumulate):
    """O_h (+)= P V over part `part` of the keys of a tile, whose V is at a shared address."""
    m, n, keys = cfg.tiles.pv_mma_shape
    v, step = cfg.tiles.v_tile, cfg.tiles.MMA_K
    each = v.rows // step
    p_start, p_high, p_steps = mma_tile(cfg.tiles.p_tile, smem.p_address, keys // step)
    v_start, v_high, v_steps = mma_tile(v, address, each)
    computes = InstructionDescriptor(
        m, n, cfg.p_dtype, cfg.qkv_dtype, b_mn_major=True, cta_group=CTAS
    )
    steps = list(zip(p_steps[part * each : (part + 1) * each], v_steps, strict=True))
    tensor_core.mma_ss(o_address, p_start, v_start, steps, computes, p_high, v_high, accumulate)


def address_of(cfg, smem: Smem, unit: Slot):
    return smem.kv_address + unit.index * cfg.tiles.kv_slot_bytes


@dataclass(frozen=True)
class OfPair(Products):
    """at: a UsePosition."""

    def make_scores(self, cfg, mma, at, tile):
        """Compute S of a key tile, each unit as it arrives; return the position after its units."""
        smem, tmem, events, kv = mma.smem, mma.tmem, mma.events, mma.kv
        buffer, unit = tile & (S_BUFFERS - 1), at.unit
        s_address = tmem + buffer * (cfg.tmem.s[1] - cfg.tmem.s[0])
        for i in range(cfg.tiles.k_units):
            kv.units.wait(unit)
            k, address = cfg.tiles.k_tile, address_of(cfg, smem, unit)
            multiply_qk(cfg, smem, k, address, s_address, i * UNIT_COLUMNS)
            kv.units.release_slot(unit)
            unit = unit.next(kv.units.slots)
        if cfg.tiles.rope_slot_bytes:
            kv.rope.wait(at.rope)
            address = smem.rope_address + at.rope.index * cfg.tiles.rope_slot_bytes
            multiply_qk(cfg, smem, cfg.tiles.rope_tile, address, s_address, LATENT_DEPTH)
            kv.rope.release_slot(at.rope)
        events.s_ready.commit(buffer)
        return UsePosition(unit, at.rope.next(kv.rope.slots))

    def finish_tile(self, cfg, mma, at, tile, accumulate):
        """Accumulate both outputs of a key tile; return the position after its units.

        pv_done is the last commit. The softmax waits for it, so no commit is in flight when the CTA exits.
        """
        smem, tmem, events, kv = mma.smem, mma.tmem, mma.events, mma.kv
        events.p_ready.wait(0, tile & 1)
        tensor_memory.fence_after()
        unit = at.unit
        for column in cfg.tmem.o:
            for part in range(cfg.tiles.key_parts):
                kv.units.wait(unit)
                adds = accumulate if part == 0 else True
                multiply_pv(cfg, smem, address_of(cfg, smem, unit), part, tmem + column, adds)
                kv.units.release_slot(unit)
                unit = unit.next(kv.units.slots)
        events.pv_done.commit(0)
        return UsePosition(unit, at.rope)


def run(cfg, args, smem, tmem, events, kv: LatentPairConsumer, queue):
    """The mma warp of either CTA."""
    leader_issues(cfg, every_tile, args, smem, tmem, events, kv, queue)


def every_tile(cfg, args, smem, tmem, events, kv: LatentPairConsumer, queue):
    """The products of CTA 0."""
    mma = MmaWarp(smem, tmem, events, kv)
    issue.one_ahead(cfg, OfPair(), args, mma, queue, kv.first())
