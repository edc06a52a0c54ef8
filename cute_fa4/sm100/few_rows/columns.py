"""Row maxima where a row's scores lie in 128 threads: thread t has key t of the tile, in all rows.

    thread 0   32  ..  127          within a warp   redux.sync.max, a row at a time
    row 0  s   s   ..  s    -> max  between warps   a lane keeps the maxima of its rows, r % 32: shared memory, one
    row 1  s   s   ..  s            barrier of the four warps
    ...                             to all threads  what a row adds to its scores comes back through shared memory

Every warp keeps the same running maxima, so all four make the same decision about rescaling O. With 8 or 16 rows,
several lanes keep the same row, with the same values. The arithmetic of the online softmax is in steps/row_math.py.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from ..steps import row_math, sinks
from ..sync.kernel_args import Events, KernelArgs, Smem
from .token_scales import KeyScales

NAMED_BARRIER = 1  # of the softmax warps; 0 is sync_threads, 2 the set-up (kernel.py)
BATCH = 16  # rows whose values are in registers at a time
BIAS, FACTOR, SCALE = (
    0,
    1,
    2,
)  # of Smem.row_values; last the units of scales of keys (token_scales.py)


@dataclass(frozen=True)
class Place:
    """A softmax thread: its key in a tile, its warp and lane."""

    thread: Int32
    warp: Int32
    lane: Int32

    @staticmethod
    def here() -> "Place":
        thread, _, _ = cute.arch.thread_idx()
        return Place(thread, cute.arch.make_warp_uniform(thread // 32), cute.arch.lane_idx())


@dataclass(frozen=True)
class SoftmaxWarps:
    """State of the softmax warps for the lifetime of the CTA; also for latent pairs (latent/pair/softmax.py).

    args    the launch's arguments
    smem    shared memory of the CTA, as its family lays it out
    tmem    address of tensor memory's first column, for this warp's lanes
    events  barriers between the warps
    place   position of this thread, as its family numbers keys and rows
    """

    args: KernelArgs
    smem: Smem
    tmem: Int32
    events: Events
    place: Place


@dataclass(frozen=True)
class RowStates:
    """State that a softmax thread carries from tile to tile.

    maxima   running maxima of this lane's rows, raw scores: lane, lane + 32
    sums     of P in each row, over the keys of this thread
    of_keys  where keys have scales: token_scales.KeyScales
    largest  scores of this lane's rows so far, where cfg.write_max
    """

    maxima: tuple
    sums: tuple
    of_keys: KeyScales | None = None
    largest: tuple | None = None


def warp_maximum(value):
    """The maximum over the warp, in every lane; NaN only if all are. PTX ISA, "redux.sync"."""
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Float32(value).ir_value()],
            "redux.sync.max.f32 $0, $1, 0xffffffff;",
            "=f,f",
            has_side_effects=True,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def own_maxima(cfg, scores: list, place: Place) -> list:
    """Maxima over the warp's keys of the rows that this lane keeps."""
    own = [Float32(-Float32.inf)] * cfg.tiles.rows_per_lane
    row_of_lane = place.lane & (min(cfg.tiles.rows, 32) - 1)
    for row, score in enumerate(scores):
        found = warp_maximum(score)
        own[row // 32] = select_(row_of_lane == row % 32, found, own[row // 32])
    return own


def exchange(smem: Smem, place: Place, number, own: list) -> list:
    """A value of each warp for each row of this lane -> the four of each row.

    number: of earlier exchanges. With two buffers, the barrier of one exchange frees the buffer of the previous one.
    """
    for i, value in enumerate(own):
        smem.exchanged[(place.lane + 32 * i, place.warp, number & 1)] = value
    cute.arch.barrier(barrier_id=NAMED_BARRIER, number_of_threads=128)
    warps = range(4)
    return [
        [smem.exchanged[(place.lane + 32 * i, warp, number & 1)] for warp in warps]
        for i in range(len(own))
    ]


def tile_maxima(cfg, smem: Smem, place: Place, scores: list, number, start: tuple) -> list:
    """max(start, scores of all keys) of this lane's rows; number: of earlier exchanges."""
    out = []
    found = exchange(smem, place, number, own_maxima(cfg, scores, place))
    for value, four in zip(start, found, strict=True):
        for other in four:
            value = cute.arch.fmax(value, other)
        out.append(value)
    return out


@dataclass(frozen=True)
class Update:
    """The update of one row: its new maximum, the bias added to its scores, and the factor of its old sum and O."""

    maximum: Float32
    bias: Float32
    factor: Float32


@cute.jit
def update(cfg: cutlass.Constexpr, old, tile_max, scale_log2) -> Update:
    """As row_math.update_maximum; a row that has seen no key gets the factor 1: it has nothing to rescale.

    Where rows begin with sinks, the sum of such a row may hold the 1 of a sink of -inf, and the factor 0 removes it.
    """
    new, safe, factor = row_math.update_maximum(
        old, tile_max, scale_log2, cfg.schedule.rescale_log2
    )
    if cutlass.const_expr(not sinks.begin_rows(cfg)):
        if old == -Float32.inf:
            factor = Float32(1.0)
    return Update(new, row_math.exponent_bias(cfg, safe, scale_log2), factor)


def publish(smem: Smem, place: Place, kind: int, own: list):
    """Write a value of each row from the lanes that keep it; the warp may read them after this returns."""
    for i, value in enumerate(own):
        smem.row_values[(place.lane + 32 * i, place.warp, kind)] = value
    cute.arch.sync_warp()


def read(smem: Smem, place: Place, kind: int, first: int, number: int) -> list:
    """The published values of rows `first` to first + number - 1, the same in every lane."""
    return [smem.row_values[(first + i, place.warp, kind)] for i in range(number)]


def products_of(values: list, factors: list) -> list:
    """values[i] * factors[i], two at a time."""
    out = []
    for i in range(0, len(values), 2):
        out += cute.arch.mul_packed_f32x2((values[i], values[i + 1]), (factors[i], factors[i + 1]))
    return out


def warp_sums(values: list, place: Place) -> Float32:
    """Sums over the warp of up to 32 values of each lane, a power of two: of number `lane % len(values)`.

        lane        0          1          2          3         of four values, in as many lanes
        half 2      0 + 0'     1 + 1'     2 + 2'     3 + 3'    two shuffles: a lane keeps the half of its own number
        half 1      0          1          2          3         one

    This takes one shuffle fewer than there are values; reducing each value over all lanes would take five per value.
    """
    half = len(values) // 2
    while half:
        upper = (place.lane & half) != 0
        kept = [select_(upper, values[i + half], values[i]) for i in range(half)]
        sent = [select_(upper, values[i], values[i + half]) for i in range(half)]
        values = [
            own + cute.arch.shuffle_sync_bfly(other, half)
            for own, other in zip(kept, sent, strict=True)
        ]
        half //= 2
    [value] = values
    return value


def total_over_keys(cfg, smem: Smem, place: Place, states: RowStates, number, scale_log2) -> list:
    """The sum of each row over all 128 threads, closed, of the rows that this lane keeps.

    number: of earlier exchanges
    """
    sums, own = states.sums, []
    together = min(len(sums), 32)
    for first in range(0, len(sums), together):
        value, distance = warp_sums(list(sums[first : first + together]), place), together
        while distance < 32:
            value = value + cute.arch.shuffle_sync_bfly(value, distance)
            distance *= 2
        own.append(value)
    found = exchange(smem, place, number, own)
    totals = [(four[0] + four[1]) + (four[2] + four[3]) for four in found]
    return [
        row_math.closed(cfg, row_max, total, scale_log2)
        for row_max, total in zip(states.maxima, totals, strict=True)
    ]
