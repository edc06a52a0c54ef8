"""Widen warps of either CTA: units as they are stored -> bf16, times the scales of their keys, in the order of their use.

Four threads share a key of a unit, each has 32 of its 128 columns, which are half of a line of one of the two chunks
that the MMA reads. A number of e4m3 is exact in fp16 and in float32; its product with the scale is rounded to bf16
once.

    wait stored_full      two loads of 16 bytes, and the scale
    stored_empty          of the warp: the slot may be filled again
    wait kv_empty         the MMAs that read the unit's place have completed
    64 bytes              to the place, where the MMA takes them as K or as V: the same bytes
    kv_full               of the warp, in CTA 0
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ..chip import WARP_SIZE
from ..kernel_args import KernelArgs
from ..mhapair.sync import PairProducer, arrive_at_leader
from ..mhawiden.pieces import WORDS, load_piece, load_word, numbers_of, widened
from ..mla_pair.tiles import CTAS, UNIT_KEYS
from ..mla_widen.tiles import SCALE_LINE_BYTES, WIDE_BYTES
from ..steps import row_math
from ..steps.store import PIECE_BYTES, store_piece
from ..sync.pipelines import KVConsumerPipeline, Slot
from ..work.blocks import rank_in_cluster
from ..work.queue import NO_MORE, WorkQueue
from .smem import RowsPairShared

NUMBERS = 32  # of a unit, of one thread
THREADS_OF_CHUNK = 2  # that share a line of 64 numbers
SCALE_BYTES = 4


@dataclass(frozen=True)
class Position:
    """In the ring of stored units, and in that of widened ones."""

    stored: Slot
    wide: Slot


@dataclass(frozen=True)
class Widener:
    """The widen warps' end of both rings."""

    stored: KVConsumerPipeline
    wide: PairProducer

    def first(self) -> Position:
        return Position(Slot(Int32(0), Int32(0)), self.wide.first())


@dataclass(frozen=True)
class Place:
    """A thread: its key of a unit, and which quarter of its columns."""

    key: Int32
    quarter: Int32

    @staticmethod
    def here(cfg) -> "Place":
        thread, _, _ = cute.arch.thread_idx()
        thread = thread - cfg.schedule.warps.widen.start * WARP_SIZE
        return Place(thread % UNIT_KEYS, thread // UNIT_KEYS)


def read_unit(cfg, address, place: Place, block) -> tuple[list, Float32]:
    """-> this thread's numbers, four a word, and the scale of its key for columns of this block.

    The swizzle keeps a quarter of a line 32 bytes from the one before.
    """
    words = []
    for column in range(0, NUMBERS, PIECE_BYTES):
        offset = cfg.tiles.stored_tile.offset(place.key, column) ^ place.quarter * NUMBERS
        words += load_piece(address + offset)
    scales = address + cfg.tiles.scales_at + place.key * SCALE_LINE_BYTES
    return words, load_word(scales + block * SCALE_BYTES).bitcast(Float32)


def write_unit(cfg, address, place: Place, words: list, scale: Float32):
    """This thread's numbers as bf16, times the scale, to its half of a line of a chunk."""
    numbers = numbers_of(widened(words, cfg.kv_dtype))
    wide = row_math.pack(row_math.multiplied(numbers, scale), cfg.qkv_dtype)
    tile, half = cfg.tiles.k_tile, place.quarter % THREADS_OF_CHUNK
    chunk = address + place.quarter // THREADS_OF_CHUNK * tile.chunk_bytes
    for piece in range(len(wide) // WORDS):
        offset = tile.offset(place.key, piece * PIECE_BYTES // WIDE_BYTES)
        store_piece(
            chunk + (offset ^ half * NUMBERS * WIDE_BYTES),
            wide[WORDS * piece : WORDS * (piece + 1)],
        )


def unit(
    cfg, smem: RowsPairShared, rings: Widener, at: Position, place: Place, block
) -> Position:
    """One unit, whose columns are number `block` of four."""
    rings.stored.wait(at.stored)
    stored = smem.stored_address + at.stored.index * cfg.tiles.stored_bytes
    words, scale = read_unit(cfg, stored, place, block)
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(rings.stored.empty + at.stored.index)
    rings.wide.acquire(at.wide)
    address = smem.kv_address + at.wide.index * cfg.tiles.kv_slot_bytes
    write_unit(cfg, address, place, words, scale)
    cute.arch.fence_proxy("async.shared", space="cta")
    arrive_at_leader(rings.wide.full + at.wide.index, of_shared=True)
    return Position(at.stored.next(rings.stored.slots), rings.wide.commit_step(at.wide))


def units_of_k(cfg, smem, rings: Widener, at: Position, place: Place) -> Position:
    """All columns of this CTA's keys."""
    for block in range(cfg.tiles.k_units):
        at = unit(cfg, smem, rings, at, place, block)
    return at


def units_of_v(cfg, smem, rings: Widener, at: Position, place: Place) -> Position:
    """All keys, with this CTA's half of the columns of each product."""
    for output in range(cfg.tiles.outputs):
        block = CTAS * output + rank_in_cluster()
        for _ in range(cfg.tiles.key_parts):
            at = unit(cfg, smem, rings, at, place, block)
    return at


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: RowsPairShared,
    rings: Widener,
    queue: WorkQueue,
):
    """Every work tile: K of a key tile, then V of the one before."""
    place, at, number = Place.here(cfg), rings.first(), Int32(0)
    count = queue.next(cfg, args, number).tiles.count
    while count != NO_MORE:
        for n in cutlass.range(count, unroll=1):
            at = units_of_k(cfg, smem, rings, at, place)
            if n > 0:
                at = units_of_v(cfg, smem, rings, at, place)
        if count > 0:
            at = units_of_v(cfg, smem, rings, at, place)
        number = number + 1
        count = queue.next(cfg, args, number).tiles.count
    rings.wide.drain(at.wide)
