"""Dequantize warps of either CTA: stored units -> bf16, times scales, in the order of their use.

Two warpgroups take units in turn, so that one converts while the other waits or stores. For K, one warpgroup has column
blocks 0 and 2, the other 1 and 3. For V, one has keys 0 to 63 and the other the rest, with two column blocks each.
Two threads share a key of a unit: each has 64 of its 128 columns, which are a line of one of the two chunks that the
MMA reads.
An e4m3 value is exact in fp16 and in float32; its product with the scale is rounded to bf16 once.

    wait stored_full      four loads of 16 bytes; scales of the key, once for two units
    stored_empty          one arrival per warp: the slot may be filled again
    wait kv_empty         the MMAs that read the destination slot have completed
    store 128 bytes       to that slot; the MMA reads the same bytes as K or as V
    kv_full               one arrival per warp, in CTA 0
"""

from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cute_fa4.layouts.scalars import choose

from ...blueprint.chip import WARP_SIZE
from ...operands.kv_buffer import SPAN_BYTES
from ...pair.sync import PairProducer, arrive_at_leader
from ...steps.pieces import WORDS, load_piece
from ...steps.store import PIECE_BYTES, store_piece
from ...sync.kernel_args import KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.blocks import rank_in_cluster
from ...work.queue import NO_MORE, WorkQueue
from ..dequantized import blocks
from ..dequantized.blocks import BLOCKS_OF_SLAB, of_byte
from ..dequantized.dequantize import ROPE_HALF, dequantized
from ..dequantized.tiles import WIDE_BYTES
from ..pair.tiles import CTAS, UNIT_COLUMNS, UNIT_KEYS
from .warp_roles import DEQUANTIZE_GROUPS

HALF = UNIT_COLUMNS // 2  # columns of a unit per thread
NUMBERS = 32  # at a time: two pieces in 8 bits, four in bf16
WORDS_AT_ONCE = NUMBERS // 4
UNITS = 4  # of K of a key tile, and of V
CHUNKS = 2  # of a dequantized unit


@dataclass(frozen=True)
class Position:
    """Positions in the rings of stored and of dequantized units."""

    stored: Slot
    wide: Slot
    rope: Slot | None = None


@dataclass(frozen=True)
class Dequantizer:
    """The dequantize warps' end of both rings; slot counts are even, so each warpgroup has its own slots.

    stored_rope, wide_rope    those of rotary columns, with a slot each; None: they have 16 bits
    """

    stored: KVConsumerPipeline
    wide: PairProducer
    stored_rope: KVConsumerPipeline | None = None
    wide_rope: PairProducer | None = None

    def first(self, group) -> Position:
        """First position of a warpgroup; its number is that of its first unit."""
        wide = self.wide.first()
        rope = None if self.stored_rope is None else Slot(Int32(0), Int32(0))
        return Position(Slot(group, Int32(0)), Slot(group, wide.phase), rope)

    def next(self, at: Position) -> Position:
        """The position after this unit and that of the other warpgroup."""
        stored, wide = at.stored, at.wide
        for _ in range(DEQUANTIZE_GROUPS):
            stored, wide = stored.next(self.stored.slots), wide.next(self.wide.slots)
        return Position(stored, wide, at.rope)

    def drain(self, at: Position):
        """Wait for the last commits of CTA 0 on this warpgroup's slots: the CTA must not exit before them."""
        for _ in range(self.wide.slots // DEQUANTIZE_GROUPS):
            self.wide.acquire(at.wide)
            at = self.next(at)
        if self.wide_rope is not None:
            self.wide_rope.acquire(free_of(at.rope))


def free_of(rope: Slot) -> Slot:
    """The position of the writer of a slot whose reader is at `rope`."""
    return Slot(rope.index, rope.phase ^ 1)


@dataclass(frozen=True)
class Place:
    """The part of a thread: its key of a unit, its half of the columns, and its warpgroup."""

    key: Int32
    half: Int32
    group: Int32

    @staticmethod
    def here(cfg) -> "Place":
        thread, _, _ = cute.arch.thread_idx()
        thread = thread - cfg.warps.dequantize.start * WARP_SIZE
        number = thread // UNIT_KEYS
        return Place(thread % UNIT_KEYS, number % CHUNKS, number // CHUNKS)


def scales_of_key(cfg, address, place: Place, second, of_blocks: tuple | None) -> list:
    """Scales of columns 0-127 and 256-383 of this thread's key, or (second) of the next 128 after each.

    of_blocks: words of the scales of its blocks, of which a thread has one in each 128 columns; None: there are none
    """
    row = cfg.tiles.row
    if of_blocks is not None:
        byte = Int32(choose(second, 1, 0)) * BLOCKS_OF_SLAB + place.half
        return [of_byte(word, byte) for word in of_blocks]
    if not row.has_scales:
        return [None] * (UNITS // DEQUANTIZE_GROUPS)
    words = load_piece(address + cfg.tiles.lines_at + place.key * row.line_bytes)
    return [
        Int32(choose(second, words[i + 1], words[i])).bitcast(Float32)
        for i in range(0, len(words), 2)
    ]


def read_unit(cfg, address, place: Place, columns: int = HALF) -> list:
    """This thread's values, four per word: half of the first 2 * columns ones of its key.

    The swizzle keeps the second half of a line as many bytes from the first.
    """
    words = []
    for column in range(0, columns, PIECE_BYTES):
        words += load_piece(
            address + (cfg.tiles.stored_tile.offset(place.key, column) ^ place.half * columns)
        )
    return words


def write_unit(cfg, address, place: Place, words: list, scale: Float32):
    """Store this thread's values as bf16, times the scale, to its line of a chunk."""
    tile = cfg.tiles.k_tile
    chunk = address + place.half * tile.chunk_bytes
    for first in range(0, HALF, NUMBERS):
        wide = dequantized(cfg, words[first // 4 :][:WORDS_AT_ONCE], scale)
        for piece in range(len(wide) // WORDS):
            column = first + piece * PIECE_BYTES // WIDE_BYTES
            four = wide[WORDS * piece : WORDS * (piece + 1)]
            store_piece(chunk + tile.offset(place.key, column), four)


def release(ring: KVConsumerPipeline, slot: Slot):
    """Tell the load warp that this warp has read its part of a slot."""
    cute.arch.sync_warp()
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(ring.empty + slot.index)


@cute.jit
def last_unit(
    cfg: cutlass.Constexpr,
    stored: Int32,
    address: Int32,
    place: Place,
    scale: Float32,
    second: cutlass.Boolean,
):
    """A unit whose second half are rotary columns, if it is the last of four; they are copied.

    stored, address: of its slots in both rings
    """
    if second & (place.half == 1):
        tile = cfg.tiles.k_tile
        for piece in cutlass.range_constexpr(SPAN_BYTES // PIECE_BYTES):
            column = piece * PIECE_BYTES
            words = load_piece(stored + cfg.tiles.stored_tile.offset(place.key, column))
            at = tile.chunk_bytes + tile.offset(place.key, column // WIDE_BYTES)
            store_piece(address + at, words)
    elif second:
        line, words = stored + cfg.tiles.lines_at + place.key * cfg.tiles.row.line_bytes, []
        for column in cutlass.range_constexpr(0, HALF, PIECE_BYTES):
            words += load_piece(line + column)
        write_unit(cfg, address, place, words, scale)
    else:
        write_unit(cfg, address, place, read_unit(cfg, stored, place), scale)


def two_units(
    cfg, smem: Smem, rings: Dequantizer, at: Position, place: Place, second, of_blocks: tuple | None
) -> Position:
    """Dequantize this warpgroup's two of four units, which have the same keys. second: their column blocks are odd.

    of_blocks: as in scales_of_key
    """
    scales: list = []
    for i in range(UNITS // DEQUANTIZE_GROUPS):
        rings.stored.wait(at.stored)
        stored = smem.stored_address + at.stored.index * cfg.tiles.stored_bytes
        copies = cfg.tiles.row.rope_in_v and i == cfg.tiles.row.lines.slab // CTAS
        words = [] if copies else read_unit(cfg, stored, place)
        scales = scales or scales_of_key(cfg, stored, place, second, of_blocks)
        if not copies:
            release(rings.stored, at.stored)
        rings.wide.acquire(at.wide)
        address = smem.kv_address + at.wide.index * cfg.tiles.kv_slot_bytes
        if copies:
            last_unit(cfg, stored, address, place, scales[i], second)
            release(rings.stored, at.stored)
        else:
            write_unit(cfg, address, place, words, scales[i])
        cute.arch.fence_proxy("async.shared", space="cta")
        arrive_at_leader(rings.wide.full + at.wide.index, of_shared=True)
        at = rings.next(at)
    return at


@cute.jit
def rotary_columns(
    cfg: cutlass.Constexpr, smem: Smem, rings: Dequantizer, rope: Slot, place: Place
):
    """Dequantize the rotary columns of this CTA's half of the keys: one warpgroup does it."""
    if place.group == 0:
        rings.stored_rope.wait(rope)
        words = read_unit(cfg, smem.stored_rope_address, place, ROPE_HALF)
        release(rings.stored_rope, rope)
        rings.wide_rope.acquire(free_of(rope))
        tile, wide = cfg.tiles.rope_tile, dequantized(cfg, words, None)
        for piece in cutlass.range_constexpr(len(wide) // WORDS):
            inside = tile.offset(place.key, piece * PIECE_BYTES // WIDE_BYTES)
            inside = inside ^ place.half * (ROPE_HALF * WIDE_BYTES)
            store_piece(smem.rope_address + inside, wide[WORDS * piece : WORDS * (piece + 1)])
        cute.arch.fence_proxy("async.shared", space="cta")
        arrive_at_leader(rings.wide_rope.full + rope.index, of_shared=True)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    rings: Dequantizer,
    queue: WorkQueue,
):
    """Process every work tile: K of a key tile, then V of the previous one; at the end also V of the last one."""
    place, number = Place.here(cfg), Int32(0)
    at, rank = rings.first(place.group), rank_in_cluster()
    own_k, own_v = place.key + rank * UNIT_KEYS, place.key + place.group * UNIT_KEYS
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        first, count = work.tiles.first, work.tiles.count
        of_k = blocks.begin(cfg, args, work, own_k)
        of_v = blocks.begin(cfg, args, work, own_v)
        for n in cutlass.range(count, unroll=1):
            turns = 1 + choose(n > 0, 1, 0) + choose(n == count - 1, 1, 0)
            for turn in cutlass.range(turns, unroll=1):  # K, then V of turns - 1 key tiles
                is_k = turn == 0
                second = choose(is_k, place.group, rank) != 0
                of_blocks = blocks.words_of(is_k, of_k, of_v)
                m = n + turn - choose(n > 0, 1, 0)  # V of the key tile after that of this turn
                of_k = blocks.read(cfg, args, work, own_k, first + n + 1, of_k, is_k)
                of_v = blocks.read(cfg, args, work, own_v, first + m, of_v, turn != 0)
                at = two_units(cfg, smem, rings, at, place, second, of_blocks)
                if cutlass.const_expr(cfg.tiles.row.dequantizes_rope):
                    if turn == 0:
                        rotary_columns(cfg, smem, rings, at.rope, place)
                    phase = at.rope.phase ^ choose(turn == 0, 1, 0)
                    at = replace(at, rope=Slot(at.rope.index, phase))
        number = number + 1
        work = queue.next(cfg, args, number)
    rings.drain(at)
