"""Queries: bf16 -> fp16, each row times a power of two, which the softmax takes out of the scores.

fp16 has three more mantissa bits than bf16 and three fewer exponent bits. So a row is multiplied by the power of two
that brings its largest element to 2^14 .. 2^15, and its scores by the inverse. This is exact except for elements below
2^-28 of the largest of their row, which lose the bits below 2^-39 of it.

    row       2^e <= largest < 2^(e + 1)      Q * 2^(14 - e) as fp16      scores * 2^(e - 14)

The maximum ignores non-finite elements, which stay unchanged. Queries of fp16 are not touched.

Q arrives beside the place where the MMA reads it, while the work tile before is multiplied: the first S of a work tile
waits for a conversion, not for memory (docs/decisions/0075).
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, select_

from cute_fa4.layouts.scalars import maximum, minimum

from ...steps import row_math
from ...steps.pieces import load_piece
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import Events, Smem
from ...work.tile import Work
from .. import softmax
from ..columns import SCALE, Place, publish
from .tiles import WIDE_DTYPE

PIECE = PIECE_BYTES // 2  # numbers of 16 bits
EXPONENT_BITS, EXPONENT_BIAS = 8, 127
MANTISSA_BITS, MANTISSA_BITS_OF_BF16 = 23, 7
INFINITY_OF_BF16 = 0x7F80
TARGET_LOG2 = 14  # of the largest number of a row
FACTOR_FIELD = 2 * EXPONENT_BIAS + TARGET_LOG2  # less the field of the largest: that of the factor


@cute.jit
def convert(cfg: cutlass.Constexpr, smem: Smem, events: Events, thread: Int32, number: Int32):
    """Q of a work tile, when it has arrived, for the softmax and for the MMA. number: of earlier ones."""
    events.q_full.wait(0, number & 1)
    rows = read_rows(cfg, smem, thread)
    events.q_taken.arrive(0)
    events.q_free.wait(0, (number & 1) ^ 1)
    store_rows(cfg, smem, thread, rows, number)
    cute.arch.fence_proxy("async.shared", space="cta")
    events.q_wide.arrive(number & 1)
    events.q_ready.arrive(0)


def seen_by_load(cfg, smem: Smem, events: Events) -> tuple[Smem, Events]:
    """Shared memory and events of the load warp: with bf16, Q has another place, free when it is read."""
    if not cfg.tiles.rows_have_scales:
        return smem, events
    return replace(smem, q_address=smem.q_arrived_address), replace(events, q_free=events.q_taken)


def places(cfg, thread) -> list:
    """(row, offset in Q) of the 16-byte pieces of a thread, one of 128."""
    threads_of_row = cfg.tiles.padded_qk_depth // PIECE
    rows_at_once = cfg.warps.threads_of("dequantize_odd") // threads_of_row
    rows = [
        first + thread // threads_of_row for first in range(0, cfg.tiles.q_box_rows, rows_at_once)
    ]
    column = thread % threads_of_row * PIECE
    return [(row, cfg.tiles.q_tile.offset(row, column)) for row in rows]


def read_rows(cfg, smem: Smem, thread) -> list:
    """A thread's pieces of Q as it arrived."""
    return [load_piece(smem.q_arrived_address + offset) for _, offset in places(cfg, thread)]


def store_rows(cfg, smem: Smem, thread, pieces: list, number):
    """The same as fp16, for the MMA, with the scales of their rows. number: of earlier Q tiles."""
    threads_of_row = cfg.tiles.padded_qk_depth // PIECE
    for (row, offset), words in zip(places(cfg, thread), pieces, strict=True):
        factor, inverse = factors(largest_of_row(words, threads_of_row))
        store_piece(smem.q_address + offset, scaled(words, factor))
        smem.q_scales[(row, number & 1)] = inverse  # all threads of a row write the same value


def halves(word) -> tuple:
    """The two 16-bit values of a word, each in the upper half of its own word."""
    return word << 16, word & -0x10000


def largest_of_row(words: list, threads: int):
    """Bits of the largest finite magnitude in a row, of which each of `threads` threads has a piece."""
    largest = Int32(0)
    for word in words:
        for half in (word & 0x7FFF, (word >> 16) & 0x7FFF):
            largest = maximum(largest, select_(half < INFINITY_OF_BF16, half, Int32(0)))
    distance = threads // 2
    while distance:
        largest = maximum(largest, cute.arch.shuffle_sync_bfly(largest, distance))
        distance //= 2
    return largest


def factors(largest) -> tuple:
    """-> (2^(14 - e), its inverse), of a row whose largest magnitude has these bits; both are normal numbers."""
    highest = 2 * EXPONENT_BIAS - 1
    field = minimum(FACTOR_FIELD - (largest >> MANTISSA_BITS_OF_BF16), highest)
    of_inverse = 2 * EXPONENT_BIAS - field
    return tuple(Int32(f << MANTISSA_BITS).bitcast(Float32) for f in (field, of_inverse))


def scaled(words: list, factor) -> list:
    """Words of two bf16 -> of two fp16, times the factor."""
    values = []
    for word in words:
        values += [Int32(half).bitcast(Float32) * factor for half in halves(word)]
    return row_math.pack(values, WIDE_DTYPE)


@dataclass(frozen=True)
class WithQueries(softmax.OwnScales):
    """The source of the scales of rows for the softmax (few_rows/softmax.py): they come with Q."""

    def none_before(self):
        return Int32(0)

    def following(self, queries, work: Work):
        return queries + select_(work.tiles.count > 0, Int32(1), Int32(0))

    def publish(self, cfg, args, smem, events, work, place, before):
        publish_scales(cfg, smem, events, work, place, before.queries)


@cute.jit
def publish_scales(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    work: Work,
    place: Place,
    number: Int32,
):
    """Publish the scales of this lane's rows to all lanes of the warp; a work tile without keys has none."""
    if work.tiles.count > 0:
        events.q_wide.wait(number & 1, number >> 1 & 1)
        own = []
        for i in cutlass.range_constexpr(cfg.tiles.rows_per_lane):
            row = (place.lane & (min(cfg.tiles.rows, 32) - 1)) + 32 * i
            own.append(smem.q_scales[(row, number & 1)])
        publish(smem, place, SCALE, own)


WITH_QUERIES = WithQueries()
