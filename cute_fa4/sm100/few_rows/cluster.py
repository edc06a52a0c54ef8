"""The CTAs of a cluster split the keys of a block; each CTA merges some rows, which the others send to it.

    CTA (rank)             0                    1                    ...
    key tiles              0 .. 3               4 .. 7               even parts of the block's (work/split.py)
    set-up                 barrier.cluster: all CTAs run, their mbarriers are initialised; awaited before any store
    a CTA's own part       O^T and, of each row, its maximum and sum: row r goes to the CTA of rank r % CTAs by
                           st.async, whose bytes the mbarrier parts_in of that CTA counts
    rows of the result     0, 2, 4, ...         1, 3, 5, ...         merged when the parts of all CTAs have arrived

With m_p, l_p and O_p the maximum, sum and unscaled output of a row in part p, and c the scale:

    m = max of all m_p     w_p = 2^(c m_p - c m)     l = sum of w_p l_p     O = sum of w_p O_p / l

There is no workspace and no second launch. A part without key tiles sends zeros and the maximum -inf. The values of a
part with weight 0 are ignored. The parts are summed in rank order, so equal calls give equal bits.

One instruction (st.async) sends the data and signals its arrival, so no CTA makes a round trip across the cluster. The
cluster barrier does not release memory, because a release would wait for L2 (NVIDIA/cccl#9994); fence.mbarrier_init
orders the mbarriers. No barrier is needed at the end: each receiver waits for the data sent to it. Parts arrive in a
separate region, Smem.parts, because a CTA may still be reading its last key tile when another CTA sends.

    parts     of part p, of the CTA's row i, which is row rank + i * CTAs of the block:
    O         depth contiguous values, at (p * own rows + i) * depth: the lanes of a warp send contiguous values
    states    after all of O: maxima, then sums, at p * own rows + i

For a block without rows nothing is sent: all CTAs of a cluster agree on that.
"""

from dataclasses import dataclass, fields, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from ..blueprint.chip import F32_BYTES
from ..instructions import exp2, mbarriers, tensor_memory
from ..steps import row_math
from ..steps.scores import log2_scale
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..work import scales
from ..work.blocks import rank_in_cluster
from ..work.tile import Work
from . import store, token_scales
from .columns import BATCH, Place, RowStates, SoftmaxWarps, total_over_keys

OFFSET = 0x3FFFF  # 14 bits of a descriptor, which counts 16 bytes
MAXIMUM, SUM = 0, 1  # states of a row


@dataclass(frozen=True)
class InCluster:
    """The epilogue of a CTA that shares the keys of a block: it merges some rows for the whole cluster."""

    def set_up(self):
        """Every thread, when its CTA's mbarriers are initialised."""
        cute.arch.cluster_arrive_relaxed(aligned=True)

    def begin(self):
        """Softmax, before it sends anything."""
        cute.arch.cluster_wait()

    def finish(self, cfg, warps, work, before, states):
        hand_over(cfg, warps, work, before, states)
        warps.events.parts_in.wait(0, 0)
        merge(cfg, warps.args, warps.smem, work, warps.place)

    def after_others(self):
        cute.arch.cluster_wait()

    def in_descriptors(self, smem: Smem) -> Smem:
        """In a cluster, an address holds the CTA's rank above the offset; descriptors take the offset only."""
        names = [f.name for f in fields(smem) if f.name.endswith("_address")]
        return replace(smem, **{name: getattr(smem, name) & OFFSET for name in names})


@dataclass(frozen=True)
class Destination:
    """Where this CTA's part of a row goes: addresses of shared memory in the CTA of one rank."""

    parts: Int32
    mbarrier: Int32

    @staticmethod
    def of(smem: Smem, events: Events, rank) -> "Destination":
        return Destination(
            mbarriers.there(rank, smem.parts.iterator.toint()),
            mbarriers.there(rank, events.parts_in.mbarriers.toint()),
        )

    def send(self, at, value: Float32):
        """A value to place `at` of the CTA's parts."""
        mbarriers.send(self.parts + at * F32_BYTES, value, self.mbarrier)


def own_rows(cfg) -> int:
    """Rows that each CTA merges."""
    return cfg.tiles.rows // cfg.cluster_parts


def place_of(cfg, part, i, depth):
    """Where a value of O of part `part` of the CTA's row i is among its parts."""
    return (part * own_rows(cfg) + i) * cfg.ov_depth + depth


def state_of(cfg, part, i, kind: int):
    """Where the row's maximum or sum is among its parts."""
    return cfg.tiles.rows * (cfg.ov_depth + kind) + part * own_rows(cfg) + i


@cute.jit
def hand_over(
    cfg: cutlass.Constexpr,
    warps: SoftmaxWarps,
    work: Work,
    before,
    states: RowStates,
):
    """This CTA's O^T and the states of its rows, to the CTAs that merge them."""
    smem, events, place = warps.smem, warps.events, warps.place
    if place.warp == 0:
        events.parts_in.arrive_and_expect(0, cfg.smem.parts.nbytes)
    tiles = before.tiles + work.tiles.count
    scale_log2 = log2_scale(cfg, warps.args, scales.of_scores(cfg, warps.args, work))
    number = tiles + before.work_tiles
    row_sums = total_over_keys(cfg, smem, place, states, number, scale_log2)
    part, ctas = rank_in_cluster(), cfg.cluster_parts
    for i in cutlass.range_constexpr(cfg.tiles.rows_per_lane):
        row = place.lane + 32 * i
        if (place.warp == 0) & (row < cfg.tiles.rows):
            to = Destination.of(smem, events, row % ctas)
            to.send(state_of(cfg, part, row // ctas, MAXIMUM), states.maxima[i])
            to.send(state_of(cfg, part, row // ctas, SUM), row_sums[i])
    depth, is_one = store.depth_of(cfg, place, 0)
    unit = token_scales.unit_of(states)
    destinations = [Destination.of(smem, events, rank) for rank in range(ctas)]
    if work.tiles.count > 0:
        events.pv_done.wait(0, (tiles - 1) & 1)
        tensor_memory.fence_after()
        o_address = warps.tmem + cfg.tmem.o[0]
        for first, values in tensor_memory.load_batches(o_address, cfg.tiles.rows, BATCH):
            if is_one:
                for i, value in enumerate(values):
                    to, number = destinations[(first + i) % ctas], (first + i) // ctas
                    to.send(place_of(cfg, part, number, depth), scales.times(value, unit))
    elif is_one:
        for number in cutlass.range(own_rows(cfg), unroll=1):
            for to in destinations:
                to.send(place_of(cfg, part, number, depth), Float32(0.0))


@cute.jit
def merge(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, place: Place):
    """The rows of this CTA: rank, rank + CTAs, ..."""
    depth, _ = store.depth_of(cfg, place, 0)
    inside = cutlass.min(depth, cfg.ov_depth - 1)  # a lane beyond the depth reads the last column
    parts = range(cfg.cluster_parts)
    scale_log2 = log2_scale(cfg, args, scales.of_scores(cfg, args, work))
    of_output = scales.of_output(cfg, args, work)
    for i in cutlass.range_constexpr(own_rows(cfg)):
        row = rank_in_cluster() + i * cfg.cluster_parts
        values = [smem.parts[place_of(cfg, part, i, inside)] for part in parts]
        maxima = [smem.parts[state_of(cfg, part, i, MAXIMUM)] for part in parts]
        sums = [smem.parts[state_of(cfg, part, i, SUM)] for part in parts]
        row_max, row_sum, weights = whole_row(maxima, sums, scale_log2)
        inverse, total = scales.times(row_math.inverse(row_sum), of_output), Float32(0.0)
        for value, weight in zip(values, weights, strict=True):
            # A part with weight 0 is ignored, even if it is NaN; a NaN weight is not.
            total = select_(weight != 0.0, total + value * weight, total)
        store.output(cfg, args, work, place, row, total * inverse, 0)
        if cutlass.const_expr(cfg.write_lse):
            if place.thread == 0:
                store.log_sum_exp(cfg, args, work, row, row_max, row_sum)


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
