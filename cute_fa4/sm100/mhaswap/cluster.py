"""Parts of a block's keys in the CTAs of a cluster: each CTA merges some rows, and reads them where the others are.

    CTA (rank)             0                    1                    ...
    key tiles              0 .. 3               4 .. 7               even parts of the block's (work/split.py)
    own shared memory      O^T and, of each row, its maximum and sum, in float32
    all CTAs have written  barrier.cluster 1
    rows of the result     0, 2, 4, ...         1, 3, 5, ...         read from every CTA's shared memory
    all CTAs have read     barrier.cluster 2: only then may one end, its shared memory with it

With m_p, l_p and O_p the maximum, sum and unscaled output of a row in part p, and c the scale:

    m = max of all m_p     w_p = 2^(c m_p - c m)     l = sum of w_p l_p     O = sum of w_p O_p / l

No workspace and no second launch. A part without key tiles has written zeros and the maximum -inf; what a part without
weight holds does not count. The parts are added up in the order of their ranks: equal calls give equal bits.

O^T lies where the ring of K and V was: every slot that was filled has been read when the last product is done, and a
CTA of a cluster has one block. A line of `depth` values for each row: what 32 lanes store, or read from another CTA,
lies side by side.

Every thread arrives at both barriers once, also where a block has no rows: all CTAs of a cluster see that alike.
"""

from dataclasses import dataclass, fields, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ..chip import F32_BYTES
from ..instructions import exp2, tensor_memory
from ..kernel_args import Events, KernelArgs
from ..steps import row_math
from ..steps.scores import log2_scale
from ..work import scales
from ..work.tile import Work
from . import store, token_scales
from .columns import BATCH, Place, RowStates, total_over_keys
from .smem import SwappedShared

OFFSET = 0x3FFFF  # 14 bits of a descriptor, which counts 16 bytes
MAXIMUM, SUM = 0, 1  # of SwappedShared.row_values, whose biases and factors nobody reads any more


def meet():
    """Every thread of the cluster is here; what each wrote before, all see afterwards. PTX ISA, "barrier.cluster"."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@dataclass(frozen=True)
class InCluster:
    """What becomes of the results of a CTA that shares a block's keys: it merges rows of the whole cluster."""

    def finish(self, cfg, args, smem, tmem, events, work, place, before, states):
        hand_in(cfg, smem, tmem, events, work, place, before, states)
        meet()
        merge(cfg, args, smem, work, place)

    def after_softmax(self, work_tiles):
        meet_if_none(work_tiles)

    def after_others(self):
        meet()

    def leave(self):
        meet()

    def in_descriptors(self, smem: SwappedShared) -> SwappedShared:
        """Addresses of a CTA in a cluster have its rank above their offset, and descriptors take the offset alone."""
        names = [f.name for f in fields(smem) if f.name.endswith("_address")]
        return replace(smem, **{name: getattr(smem, name) & OFFSET for name in names})


@cute.jit
def meet_if_none(work_tiles: Int32):
    """A block without rows: nothing was handed in."""
    if work_tiles == 0:
        meet()


@cute.jit
def hand_in(
    cfg: cutlass.Constexpr,
    smem: SwappedShared,
    tmem: Int32,
    events: Events,
    work: Work,
    place: Place,
    before,
    states: RowStates,
):
    """This CTA's O^T and the states of its rows, to its own shared memory."""
    tiles = before.tiles + work.tiles.count
    row_sums = total_over_keys(cfg, smem, place, states.sums, tiles + before.work_tiles)
    if place.warp == 0:
        for i in cutlass.range_constexpr(cfg.tiles.rows_per_lane):
            row = place.lane + 32 * i
            smem.row_values[(row, 0, MAXIMUM)] = states.maxima[i]
            smem.row_values[(row, 0, SUM)] = row_sums[i]
    depth, is_one = store.depth_of(cfg, place, 0)
    unit = token_scales.unit_of(states)
    if work.tiles.count > 0:
        events.pv_done.wait(0, (tiles - 1) & 1)
        tensor_memory.fence_after()
        o_address = tmem + cfg.tmem.o[0]
        for first, values in tensor_memory.load_batches(o_address, cfg.tiles.rows, BATCH):
            for i, value in enumerate(values):
                write_value(cfg, smem, first + i, depth, is_one, scales.times(value, unit))
    else:
        for row in cutlass.range(cfg.tiles.rows, unroll=1):
            write_value(cfg, smem, row, depth, is_one, Float32(0.0))


def place_of(cfg, smem: SwappedShared, row, depth):
    """The shared address of a value of O^T."""
    return smem.kv_address + (row * cfg.ov_depth + depth) * F32_BYTES


@cute.jit
def write_value(
    cfg: cutlass.Constexpr, smem: SwappedShared, row, depth: Int32, is_one, value: Float32
):
    """To this CTA's own shared memory, if the lane has a depth."""
    if is_one:
        llvm.inline_asm(
            None,
            [Int32(place_of(cfg, smem, row, depth)).ir_value(), value.ir_value()],
            "st.shared.f32 [$0], $1;",
            "r,f",
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )


def read_value(address, rank) -> Float32:
    """What the CTA of a rank has at a shared address. PTX ISA, "mapa"."""
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Int32(address).ir_value(), Int32(rank).ir_value()],
            "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, $1, $2;\nld.shared::cluster.f32 $0, [there];\n}",
            "=f,r,r",
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@cute.jit
def merge(cfg: cutlass.Constexpr, args: KernelArgs, smem: SwappedShared, work: Work, place: Place):
    """The rows of this CTA: rank, rank + cluster_parts, ..."""
    depth, _ = store.depth_of(cfg, place, 0)
    inside = cutlass.min(depth, cfg.ov_depth - 1)  # a lane without one reads the last one's
    parts = range(cfg.cluster_parts)
    scale_log2 = log2_scale(cfg, args, scales.of_scores(cfg, args, work))
    of_output = scales.of_output(cfg, args, work)
    for i in cutlass.range_constexpr(cfg.tiles.rows // cfg.cluster_parts):
        row = cute.arch.block_idx_in_cluster() + i * cfg.cluster_parts
        values = [read_value(place_of(cfg, smem, row, inside), rank) for rank in parts]
        maxima = [read_value(state_of(smem, row, MAXIMUM), rank) for rank in parts]
        sums = [read_value(state_of(smem, row, SUM), rank) for rank in parts]
        row_max, row_sum, weights = whole_row(maxima, sums, scale_log2)
        inverse, total = scales.times(row_math.inverse(row_sum), of_output), Float32(0.0)
        for value, weight in zip(values, weights, strict=True):
            # Without weight nothing counts, a NaN neither; a weight that is NaN does.
            total = select_(weight != 0.0, total + value * weight, total)
        store.output(cfg, args, work, place, row, total * inverse, 0)
        if cutlass.const_expr(cfg.write_lse):
            if place.thread == 0:
                store.log_sum_exp(cfg, args, work, row, row_max, row_sum)


def state_of(smem: SwappedShared, row, kind: int):
    """The shared address of a row's maximum or sum."""
    values = smem.row_values
    return (values.iterator + values.layout((row, 0, kind))).toint()


def whole_row(maxima: list, sums: list, scale_log2) -> tuple:
    """-> (maximum, sum, weights of the parts)."""
    row_max = maxima[0]
    for other in maxima[1:]:
        row_max = cute.arch.fmax(row_max, other)
    nothing, zero = Float32(-Float32.inf), Float32(0.0)
    weights, row_sum = [], zero
    for part_max, part_sum in zip(maxima, sums, strict=True):
        found = exp2.hardware((part_max - row_max) * scale_log2)
        weight = select_(part_max == nothing, zero, found)
        row_sum = row_sum + weight * part_sum
        weights.append(weight)
    return row_max, row_sum, weights
