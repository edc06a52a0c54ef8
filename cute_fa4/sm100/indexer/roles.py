"""The three roles of the indexer kernel: load, mma, score."""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from ...dtypes import E4M3
from ...layouts.scalars import maximum
from ...layouts.umma_descriptors import InstructionDescriptor
from ...tma import copies
from ...tma.tensor_maps import TMAOperand
from ..instructions import tensor_core, tensor_memory
from ..operands.kv_buffer import mma_tile
from ..sync.kernel_args import Events, Smem
from ..sync.pipelines import Slot
from .barriers import GROUP_WARPS, S_BUFFERS, SCORE_THREADS
from .config import KEYS, SLOTS
from .work import Keys, Sizes, Work

OF_SCORE = 1  # named barrier of the score warps
NO_PAGE = -1  # TMA finds no such page and fills zeros
WORDS = 4  # float32 of one read of shared memory


@dataclass(frozen=True)
class IndexerArgs:
    """Arguments of the kernel."""

    q: TMAOperand  # the heads of a tile's queries
    k: TMAOperand  # a page, or a tile
    weights: cute.Tensor
    keys: Keys
    logits: cute.Tensor
    sizes: Sizes


@dataclass(frozen=True)
class CTA:
    """State that the roles of a CTA share. tmem: first column of tensor memory."""

    smem: Smem
    events: Events
    tmem: Int32


@cute.jit
def page_of(cfg: cutlass.Constexpr, args: IndexerArgs, work: Work, key: Int32, end: Int32) -> Int32:
    """The page of a key; NO_PAGE from `end` on, whose table entries are not read."""
    page = Int32(NO_PAGE)
    if key < end:
        page = args.keys.pages[work.sequence, key // cfg.page_size]
    return page


@cute.jit
def load(cfg: cutlass.Constexpr, args: IndexerArgs, cta: CTA, work: Work):
    """Load warp: Q once, then each key tile that a query of the CTA sees."""
    events, e4m3 = cta.events, E4M3.cutlass
    slot = Slot(Int32(0), Int32(1))
    end = Int32(0)
    for end_of in work.ends:
        end = maximum(end, end_of)
    for tile in cutlass.range(work.first, work.last, unroll=1):
        if tile == work.first:
            mbarrier = events.q_full.arrive_and_expect(0, cfg.q_tile.nbytes)
            place = work.query, (0, work.sequence)
            copies.load_tile(args.q, e4m3, cta.smem.q_address, mbarrier, *place)
        events.keys_empty.wait(slot.index, slot.phase)
        mbarrier = events.keys_full.arrive_and_expect(slot.index, cfg.key_tile.nbytes)
        address = cta.smem.keys_address + slot.index * cfg.key_tile.nbytes
        for box in cutlass.range_constexpr(KEYS // cfg.box):
            key, page = tile * KEYS + box * cfg.box, Int32(0)
            row = key
            if cutlass.const_expr(cfg.page_size):
                page, row = page_of(cfg, args, work, key, end), key % cfg.page_size
            to = address + box * cfg.box * cfg.key_tile.swizzle.span_bytes
            copies.load_tile(args.k, e4m3, to, mbarrier, row, (page,))
        slot = slot.next(SLOTS)


@cute.jit
def multiply(cfg: cutlass.Constexpr, cta: CTA, work: Work):
    """MMA warp: S^T of each tile, into two buffers in turn."""
    events, slot, buffer = cta.events, Slot(Int32(0), Int32(0)), Slot(Int32(0), Int32(1))
    computes = InstructionDescriptor(KEYS, cfg.columns, E4M3.name, E4M3.name)
    q, q_high, q_steps = mma_tile(cfg.q_tile, cta.smem.q_address, cfg.q_tile.num_steps)
    for tile in cutlass.range(work.first, work.last, unroll=1):
        if tile == work.first:
            events.q_full.wait(0, 0)
        events.keys_full.wait(slot.index, slot.phase)
        events.s_read.wait(buffer.index, buffer.phase)
        tensor_memory.fence_after()
        address = cta.smem.keys_address + slot.index * cfg.key_tile.nbytes
        k, k_high, k_steps = mma_tile(cfg.key_tile, address, cfg.key_tile.num_steps)
        steps = list(zip(k_steps, q_steps, strict=True))
        s = cta.tmem + buffer.index * cfg.columns
        tensor_core.mma_ss(s, k, q, steps, computes, k_high, q_high, accumulate=False)
        events.keys_empty.commit(slot.index)
        # Score waits for the last commit, so none is in flight when the CTA exits.
        events.s_ready.commit(buffer.index)
        slot, buffer = slot.next(SLOTS), buffer.next(S_BUFFERS)


@cute.jit
def put_weights(cfg: cutlass.Constexpr, args: IndexerArgs, cta: CTA, work: Work, thread: Int32):
    """The weights of the CTA's queries to shared memory; 0 for queries that do not exist."""
    for first in cutlass.range_constexpr(0, cfg.columns, SCORE_THREADS):
        at = first + thread
        if at < cfg.columns:
            query, weight = work.query + at // cfg.heads, Float32(0.0)
            if query < args.sizes.queries:
                weight = args.weights[work.sequence, query, at % cfg.heads]
            cta.smem.weights[at] = weight
    cute.arch.barrier(barrier_id=OF_SCORE, number_of_threads=SCORE_THREADS)


@cute.jit
def scale_of(
    cfg: cutlass.Constexpr, args: IndexerArgs, work: Work, key: Int32, end: Int32
) -> tuple:
    """-> (whether a key has a place, its scale). end: of the keys that a query of the CTA sees."""
    exists, scale, page, row = key < end, Float32(0.0), Int32(0), key
    if cutlass.const_expr(cfg.page_size):
        page, row = page_of(cfg, args, work, key, end), key % cfg.page_size
        exists = (page >= 0) & (page < args.keys.scales.shape[1])
    if exists:
        scale = args.keys.scales[row, page]
    return exists, scale


def weights_at(cta: CTA, first: int, number: int) -> list:
    """Weights of columns [first, first + number), the same in every thread."""
    out = []
    for at in range(first, first + number, WORDS):
        held = cute.make_rmem_tensor(WORDS, Float32)
        source = (cta.smem.weights.iterator + at).align(16)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(WORDS)), held)
        out += [held[i] for i in range(WORDS)]
    return out


def sum_of_query(cfg, cta: CTA, s_address, number: int):
    """The sum over the heads of query `number` of the tile: even and odd heads, in order, then both.

    A NaN among the products stays: max(NaN, 0) is NaN.
    """
    even, odd, zero = Float32(0.0), Float32(0.0), Float32(0.0)
    first = number * cfg.heads
    for at, values in tensor_memory.load_batches(s_address + first, cfg.heads, cfg.batch):
        weights = weights_at(cta, first + at, len(values))
        positive = [cute.arch.fmax(value, zero, nan=True) for value in values]
        for i in range(0, len(values), 2):
            even, odd = cute.arch.fma_packed_f32x2(
                (positive[i], positive[i + 1]), (weights[i], weights[i + 1]), (even, odd)
            )
    return even + odd


@cute.jit
def put(
    cfg: cutlass.Constexpr,
    args: IndexerArgs,
    work: Work,
    number: cutlass.Constexpr,
    key: Int32,
    exists: Boolean,
    logit: Float32,
):
    """The logit of query `number` of the tile; -inf where it does not see the key."""
    query = work.query + number
    sees = exists & (key >= work.starts[number]) & (key < work.ends[number])
    writes = (query < args.sizes.queries) & (key < args.sizes.logits)
    if cutlass.const_expr(not cfg.clean):
        writes = writes & sees
    if writes:
        args.logits[work.sequence, query, key] = cutlass.select_(sees, logit, -Float32.inf)


@cute.jit
def put_nothing(cfg: cutlass.Constexpr, args: IndexerArgs, work: Work, tiles: tuple, thread: Int32):
    """-inf for every other tile of [first, last), which no query of the CTA sees."""
    if cutlass.const_expr(cfg.clean):
        for tile in cutlass.range(tiles[0], tiles[1], S_BUFFERS, unroll=1):
            for i in cutlass.range_constexpr(cfg.queries):
                key = tile * KEYS + thread
                put(cfg, args, work, i, key, Boolean(False), -Float32.inf)


@cute.jit
def score(cfg: cutlass.Constexpr, args: IndexerArgs, cta: CTA, work: Work, warp: Int32):
    """Score warps: a thread reads the row of its key and writes its logit of each query.

    Warpgroup i has the tiles first + i, first + i + 2, ..., which are in buffer i of S^T.
    """
    events, group, warp_of_group = cta.events, warp // GROUP_WARPS, warp % GROUP_WARPS
    lane, phase = cute.arch.lane_idx(), Int32(0)
    put_weights(cfg, args, cta, work, warp * 32 + lane)
    thread = warp_of_group * 32 + lane
    put_nothing(cfg, args, work, (work.begin + group, work.first), thread)
    end = Int32(0)
    for end_of in work.ends:
        end = maximum(end, end_of)
    # The scale of a tile is in flight while the one before is summed.
    exists, scale = scale_of(cfg, args, work, (work.first + group) * KEYS + thread, end)
    for tile in cutlass.range(work.first + group, work.last, S_BUFFERS, unroll=1):
        key = tile * KEYS + thread
        next_exists, next_scale = scale_of(cfg, args, work, key + S_BUFFERS * KEYS, end)
        events.s_ready.wait(group, phase)
        tensor_memory.fence_after()
        lanes = cta.tmem + warp_of_group * (32 << 16) + group * cfg.columns
        logits = [sum_of_query(cfg, cta, lanes, i) * scale for i in range(cfg.queries)]
        tensor_memory.fence_before()
        events.s_read.arrive(group)
        for i in cutlass.range_constexpr(cfg.queries):
            put(cfg, args, work, i, key, exists, logits[i])
        exists, scale, phase = next_exists, next_scale, phase ^ 1
    put_nothing(cfg, args, work, (work.last + group, work.end), thread)
