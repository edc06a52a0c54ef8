"""The `dequantize` warps: K and V of 8 or 4 bits from the ring -> fp16 in tensor memory, where the MMA reads them.

    K     a thread owns a key: its row of the ring becomes its lane, two columns of K per column
    V     a warp owns 32 columns of V, transposed: transposed.py

Four warps have even key tiles, four odd ones, so a warp has the time of two key tiles for its waits. One conversion
takes two elements; where blocks have scales, one multiplication follows (block_scales.py brings them). Q of a work tile
comes from the warps of even key tiles (queries.py). A slot of the ring is free once it has been read.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from ...blueprint.chip import WARP_SIZE
from ...instructions import tensor_memory
from ...steps import cache_blocks
from ...steps.pieces import as_fp16, load_piece
from ...steps.store import PIECE_BYTES
from ...sync.kernel_args import Events, KernelArgs, Smem
from ...sync.pipelines import KVConsumerPipeline, Slot
from ...work.queue import NO_MORE, WorkQueue
from . import block_scales, queries, transposed
from .tiles import WIDE_DTYPE

COLUMNS_OF_STORE = 64  # of K: 32 columns of tensor memory


@dataclass(frozen=True)
class Place:
    """What a thread does of a key tile.

    key     the key whose K it has
    warp    of four: with the columns of V that it has
    tmem    address of the first column for this warp's lanes
    buffer  of K and V, an int
    free    the parity of the barriers that say that it is free
    """

    key: Int32
    warp: Int32
    tmem: Int32
    buffer: cutlass.Constexpr
    free: Int32


def columns_of_piece(cfg) -> int:
    """Columns of K or V in a piece of the ring."""
    return PIECE_BYTES * cfg.in_element


def to_fp16(cfg) -> tuple[str, str]:
    """The dtypes of a conversion."""
    return cfg.kv_dtype, WIDE_DTYPE


def read_row(cfg, smem: Smem, slot, key, columns: int) -> list:
    """The first columns of a key in a slot of the ring, as they are stored: pieces of four words."""
    tile = cfg.tiles.ring_tile
    address = smem.kv_address + slot * cfg.tiles.kv_slot_bytes
    pieces = range(columns // columns_of_piece(cfg))
    return [load_piece(address + tile.offset(key, piece * PIECE_BYTES)) for piece in pieces]


def as_numbers(cfg, pieces: list, first: int, of_key: list | None) -> list:
    """Pieces from piece `first` on as words of two fp16. of_key: scales of the key's blocks."""
    words = as_fp16([word for piece in pieces for word in piece], cfg.kv_dtype)
    return cache_blocks.scaled(to_fp16(cfg), words, of_key, first * columns_of_piece(cfg))


def store_k(cfg, pieces: list, k_address, of_key: list | None):
    """K of a key to its lane: the columns that the MMA contracts."""
    columns = columns_of_piece(cfg)
    at_once = COLUMNS_OF_STORE // columns
    for first in range(0, len(pieces), at_once):
        words = as_numbers(cfg, pieces[first : first + at_once], first, of_key)
        for part, column in powers_of_two(len(words)):
            at = k_address + first * columns // 2 + column
            tensor_memory.store(at, words[column : column + part])
    tensor_memory.wait_store()
    tensor_memory.fence_before()


def powers_of_two(number: int) -> list:
    """Register counts that one tcgen05.st takes, and where each begins.

    >>> powers_of_two(32), powers_of_two(24)
    ([(32, 0)], [(16, 0), (8, 16)])
    """
    out, first = [], 0
    while first < number:
        part = 1 << ((number - first).bit_length() - 1)
        out.append((part, first))
        first += part
    return out


@cute.jit
def k_of_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    place: Place,
    of_key: tuple | None,
):
    """K of the key tile that is at place, from its slot. of_key: words of scales; None: there are none."""
    kv.wait(at)
    pieces = read_row(cfg, smem, at.index, place.key, cfg.tiles.qk_mma_shape[2])
    cute.arch.mbarrier_arrive(kv.empty + at.index)
    factors = None
    if cutlass.const_expr(of_key is not None):
        factors = cache_blocks.factors(to_fp16(cfg), of_key)
    events.k_free.wait(place.buffer, place.free)
    tensor_memory.fence_after()
    store_k(cfg, pieces, place.tmem + cfg.schedule.k_columns(cfg)[place.buffer], factors)
    events.k_wide.arrive(place.buffer)


@cute.jit
def v_of_tile(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    place: Place,
    of_keys: tuple | None,
):
    """V of the same tile. of_keys: bytes of scales."""
    kv.wait(at)
    if cutlass.const_expr(cfg.tiles.lanes_beyond_depth):
        if place.warp < cfg.tiles.warps_of_depth:
            own_columns_of_v(cfg, smem, events, kv, at, place, of_keys)
        else:
            cute.arch.mbarrier_arrive(kv.empty + at.index)
            events.v_free.wait(place.buffer, place.free)
    else:
        own_columns_of_v(cfg, smem, events, kv, at, place, of_keys)
    events.v_wide.arrive(place.buffer)


@cute.jit
def own_columns_of_v(
    cfg: cutlass.Constexpr,
    smem: Smem,
    events: Events,
    kv: KVConsumerPipeline,
    at: Slot,
    place: Place,
    of_keys: tuple | None,
):
    """The columns of V that the warp has."""
    groups = transposed.read(cfg, smem, at.index, place.warp, cute.arch.lane_idx())
    cute.arch.mbarrier_arrive(kv.empty + at.index)
    factors = None
    if cutlass.const_expr(of_keys is not None):
        factors = transposed.pairs_of(cfg, of_keys)
    events.v_free.wait(place.buffer, place.free)
    tensor_memory.fence_after()
    transposed.store(cfg, groups, place.tmem + cfg.schedule.v_columns(cfg)[place.buffer], factors)


@cute.jit
def clear_v(cfg: cutlass.Constexpr, tmem: Int32, warp: Int32, buffer: cutlass.Constexpr):
    """Zeros in lanes of V beyond the depth; v_wide of the first key tile comes after it."""
    if warp >= cfg.tiles.warps_of_depth:
        transposed.clear(cfg, tmem + cfg.schedule.v_columns(cfg)[buffer])


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
    buffer: cutlass.Constexpr,
):
    """The key tiles of every work tile whose buffer is `buffer`. tmem: of the first column for this warp's lanes."""
    thread, _, _ = cute.arch.thread_idx()
    key = thread % cfg.tiles.BN  # the warp number determines its lanes of tensor memory
    warp = cute.arch.make_warp_uniform(key // WARP_SIZE)
    if cutlass.const_expr(cfg.tiles.lanes_beyond_depth):
        clear_v(cfg, tmem, warp, buffer)
    at = Slot(Int32(0), Int32(0))
    tile, number, of_q = Int32(0), Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    while work.tiles.count != NO_MORE:
        count = work.tiles.count
        if cutlass.const_expr(buffer == 0 and cfg.tiles.rows_have_scales):
            if count > 0:
                queries.convert(cfg, smem, events, key, of_q)
                of_q = of_q + 1
        for _ in cutlass.range(count, unroll=1):
            if (tile & 1) == buffer:
                place = Place(key, warp, tmem, buffer, (tile >> 1 & 1) ^ 1)
                of_k, of_v = None, None
                if cutlass.const_expr(cfg.cache_blocks):
                    of_k, of_v = block_scales.take(cfg, smem, events, tile, key, warp)
                k_of_tile(cfg, smem, events, kv, at, place, of_k)
                v_of_tile(cfg, smem, events, kv, at.next(kv.slots), place, of_v)
            at = at.after_next(kv.slots)
            tile = tile + 1
        number = number + 1
        work = queue.next(cfg, args, number)
