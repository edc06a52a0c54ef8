"""TopKKernel: the keys with the highest logits of each row, exactly, in the order of the keys; no tensor core.

A row belongs to one CTA or to a cluster, whose CTAs have equal numbers of consecutive keys. Logits become 32-bit
numbers of the same order (`rank_of`), and four passes over the row find the lowest that is taken, a byte at a time:

    pass 0..3     each CTA counts the next byte of those of its logits whose first bytes are those found so far. Every
                  CTA adds the counts of all, read from their shared memory. From the highest byte down, the first whose
                  sum reaches the number of keys still wanted is the next byte found
    last pass     in the order of the keys: ranks above the found one are taken, and of equal ones the first `wanted`.
                  How many of both kinds earlier CTAs have follows from their counts

Counts are sums of integers, so neither the order of the atomic additions nor the number of CTAs changes a result. A
fifth read of the row costs less than a list of candidates, whose order would depend on the run.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

from ...layouts.scalars import maximum, minimum
from ..blueprint.chip import WARP_SIZE
from ..instructions import mbarriers
from .config import (
    BINS,
    OF_BYTE,
    OF_THREAD,
    OF_WARP,
    PASSES,
    STRETCH,
    TOPK_THREADS,
    TOPK_WARPS,
    TopKConfig,
    TopKSmem,
    tiles_of,
)

SIGN = 0x80000000
NOT_SEEN = 0x007FFFFF  # -inf, in the order of the numbers
SECOND = 16  # bits: a word of `sums` has two counts, of at most STRETCH


def rank_of(logit: Float32) -> Uint32:
    """The rank of a float32: unsigned numbers in the order of the logits.

    The sum with 0 makes +0 of -0, and the canonical NaN of each, which is positive and thus the highest; subnormal
    numbers stay. -inf is 0: not seen.
    """
    bits = Float32(logit + Float32(0.0)).bitcast(Int32)
    return Uint32((bits ^ ((bits >> 31) | Int32(SIGN - 2**32))) - Int32(NOT_SEEN))


def meet():
    cute.arch.barrier(barrier_id=1, number_of_threads=TOPK_THREADS)


def up_to_lane(number: Int32, lane: Int32) -> Int32:
    """The sum over the lanes of a warp up to this one."""
    for i in range(5):
        other = cute.arch.shuffle_sync_up(number, 1 << i, mask_and_clamp=0)
        number = number + cutlass.select_(lane >= (1 << i), other, Int32(0))
    return number


def ranks_of(own: cute.Tensor, key: Int32, end: Int32, whole: bool) -> list:
    """Ranks of keys key, key + 32, ...: of OF_THREAD keys, whose loads are all in flight; 0 from `end` on.

    whole: none of them is
    """
    keys = [key + i * WARP_SIZE for i in range(OF_THREAD)]
    if whole:
        return [rank_of(logit) for logit in [own[key] for key in keys]]
    logits = [own[minimum(key, end - 1)] for key in keys]
    return [
        Uint32(cutlass.select_(key < end, rank_of(logit), Uint32(0)))
        for key, logit in zip(keys, logits, strict=True)
    ]


@cute.jit
def count_ranks(ranks: list, counts: cute.Tensor, state: tuple):
    """Count the next byte of those ranks that begin with the bytes found so far; state as in TopKKernel.count."""
    lowest, number = state
    shift = OF_BYTE * (PASSES - 1 - number)
    rests = [rank - (lowest << (shift + OF_BYTE)) if number else rank for rank in ranks]
    counted = [rest < Uint32(1 << (shift + OF_BYTE)) if number else True for rest in rests]
    some = counted[0]
    for one in counted[1:]:
        some = some | one
    if some:  # after two passes, mostly not
        for rest, one in zip(rests, counted, strict=True):
            if one:
                place = counts.iterator + Int32(rest >> shift)
                cute.arch.atomic_add(place, Int32(1), sem="relaxed", scope="cta")


@cute.jit
def take_ranks(
    ranks: list, sums: cute.Pointer, indices: cute.Tensor, given: tuple
) -> tuple[Int32, Int32]:
    """Write the keys of a stretch that are taken. -> keys up to its end, of a higher rank than the lowest, and of it.

    sums   one word for each warp
    given  (the thread's first key, the lowest rank and how many keys of it are taken, what is returned, before the
           stretch)
    """
    key, wanted, earlier = given
    thread, _, _ = cute.arch.thread_idx()
    warp, lane = thread // WARP_SIZE, thread % WARP_SIZE
    least = Uint32(cutlass.select_(wanted[0] == Uint32(0), Uint32(1), wanted[0]))
    # Most groups of 32 keys have none that is taken.
    of_both = [Int32(cute.arch.vote_ballot_sync(rank >= least)) for rank in ranks]
    of_above, mine = [Int32(0)] * OF_THREAD, Int32(0)
    for i in cutlass.range_constexpr(OF_THREAD):
        if of_both[i] != 0:
            of_above[i] = Int32(cute.arch.vote_ballot_sync(ranks[i] > wanted[0]))
            of_equal = cute.arch.popc(of_both[i] ^ of_above[i])
            mine = mine + cute.arch.popc(of_above[i]) + (of_equal << SECOND)
    of_warps = cute.make_tensor(sums, cute.make_layout(TOPK_WARPS))
    if lane == 0:
        of_warps[warp] = mine
    meet()
    up_to = up_to_lane(of_warps[lane], lane)
    until = cute.arch.shuffle_sync(up_to, warp) - mine
    total = cute.arch.shuffle_sync(up_to, WARP_SIZE - 1)
    place, order = earlier[0] + (until & 0xFFFF), earlier[1] + (until >> SECOND)
    before = (Int32(1) << lane) - 1
    for i in cutlass.range_constexpr(OF_THREAD):
        if of_both[i] != 0:
            of_equal = of_both[i] ^ of_above[i]
            at = place + cute.arch.popc(of_above[i] & before)
            nth = order + cute.arch.popc(of_equal & before)
            is_equal = (ranks[i] == wanted[0]) & (ranks[i] >= least)
            if (ranks[i] > wanted[0]) | (is_equal & (nth < wanted[1])):
                indices[at + minimum(nth, wanted[1])] = key + i * WARP_SIZE
            place = place + cute.arch.popc(of_above[i])
            order = order + cute.arch.popc(of_equal)
    return earlier[0] + (total & 0xFFFF), earlier[1] + (total >> SECOND)


class TopKKernel:
    """Indices of the highest logits: made from a TopKConfig and called with tensors."""

    def __init__(self, cfg: TopKConfig):
        """Raises ValueError with every reason if the variant cannot run."""
        why = cfg.refusals()
        if why:
            raise ValueError("this TopKConfig cannot run:\n  " + "\n  ".join(why))
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        logits: cute.Tensor,
        starts: cute.Tensor,
        ends: cute.Tensor,
        indices: cute.Tensor,
        stream,
    ):
        """Launch.

        logits        (rows, keys) float32
        starts, ends  (rows,) int32: keys that a row sees
        indices       (rows, k) int32: written; -1 after the last key
        """
        ctas = self.cfg.ctas
        self.kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(logits, starts, ends, indices).launch(
            grid=[logits.shape[0] * ctas, 1, 1],
            block=[TOPK_THREADS, 1, 1],
            cluster=None if ctas == 1 else (ctas, 1, 1),
            smem=TopKSmem.of_topk().nbytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, logits: cute.Tensor, starts: cute.Tensor, ends: cute.Tensor, indices: cute.Tensor
    ):
        block, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        ctas = self.cfg.ctas
        row, rank = block // ctas, block % ctas
        base, smem = cute.arch.get_dyn_smem(cutlass.Int8, alignment=16), TopKSmem.of_topk()
        counts, totals, found, before, sums = (
            cute.make_tensor(
                cute.recast_ptr(base + region.offset, dtype=Int32),
                cute.make_layout(region.nbytes // 4),
            )
            for region in smem.regions
        )
        if thread < BINS:
            for number in cutlass.range_constexpr(PASSES):
                counts[number * BINS + thread] = Int32(0)
        if thread == 0:
            before[0] = Int32(0)
            before[1] = Int32(0)
        first, end = maximum(starts[row], 0), minimum(ends[row], Int32(logits.shape[1]))
        if cutlass.const_expr(ctas > 1):
            each = tiles_of(maximum(end - first, 0), ctas)
            first = first + rank * each
            end = minimum(first + each, end)
        own = logits[row, None]
        lowest, wanted, above, equal = Uint32(0), Int32(indices.shape[1]), Int32(0), Int32(0)
        meet()
        for number in cutlass.range_constexpr(PASSES):
            of_pass = cute.make_tensor(counts.iterator + number * BINS, cute.make_layout(BINS))
            self.count(own, of_pass, (first, end), (lowest, number), thread)
            earlier = self.add(of_pass, totals, rank, thread)
            # Each pass has its own words: a warp may still read those of the pass before.
            result = cute.make_tensor(found.iterator + 2 * number, cute.make_layout(2))
            if thread < WARP_SIZE:
                self.find(totals, result, wanted, thread)
            meet()
            byte, wanted = result[0], result[1]
            lowest = (lowest << OF_BYTE) | Uint32(byte)
            above = above + cutlass.select_(thread > byte, earlier, Int32(0))
            equal = cutlass.select_(thread == byte, earlier, Int32(0))
        # Ranks of 0 were counted and are not taken.
        equal = cutlass.select_(lowest != Uint32(0), equal, Int32(0))
        if cutlass.const_expr(ctas > 1):
            cute.arch.cluster_arrive_relaxed()  # this CTA reads no counts of others any more
            if thread < BINS:
                cute.arch.atomic_add(before.iterator, above, sem="relaxed", scope="cta")
                cute.arch.atomic_add(before.iterator + 1, equal, sem="relaxed", scope="cta")
            meet()
        counted = before[0], before[1]
        self.take(own, sums, indices[row, None], (first, end), (lowest, wanted, counted), thread)
        if cutlass.const_expr(ctas > 1):
            cute.arch.cluster_wait()

    @cute.jit
    def count(
        self, own: cute.Tensor, counts: cute.Tensor, keys: tuple, state: tuple, thread: Int32
    ):
        """How often each value of the next byte occurs, to `counts`.

        state: (bytes found so far, how many they are)
        """
        offset = thread // WARP_SIZE * OF_WARP + thread % WARP_SIZE
        tail = keys[1] - (keys[1] - keys[0]) % STRETCH
        for key in cutlass.range(keys[0] + offset, tail, STRETCH, unroll=1):
            count_ranks(ranks_of(own, key, tail, whole=True), counts, state)
        if tail + offset < keys[1]:
            count_ranks(ranks_of(own, tail + offset, keys[1], whole=False), counts, state)

    @cute.jit
    def add(self, counts: cute.Tensor, totals: cute.Tensor, rank: Int32, thread: Int32) -> Int32:
        """Counts of all CTAs of the row, to `totals`. -> those of earlier CTAs, of the thread's byte."""
        earlier = Int32(0)
        if cutlass.const_expr(self.cfg.ctas > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            meet()
        if thread < BINS:
            total = Int32(0)
            for other in cutlass.range_constexpr(self.cfg.ctas):
                if cutlass.const_expr(self.cfg.ctas == 1):
                    total = counts[thread]
                else:
                    there = mbarriers.there(other, (counts.iterator + thread).toint())
                    of_other = mbarriers.load_from(there)
                    total = total + of_other
                    earlier = earlier + cutlass.select_(rank > other, of_other, Int32(0))
            totals[thread] = total
        meet()
        return earlier

    @cute.jit
    def find(self, totals: cute.Tensor, found: cute.Tensor, wanted: Int32, lane: Int32):
        """One warp: the next byte of the lowest rank, and how many keys of that byte are wanted, to `found`.

        A lane has eight bytes, the first lane the highest ones. A row that sees fewer keys than wanted finds 0, the
        rank of keys that are not seen.
        """
        each = BINS // WARP_SIZE
        top = BINS - 1 - lane * each
        if lane == 0:
            found[0] = Int32(0)
            found[1] = wanted
        cute.arch.sync_warp()
        own = Int32(0)
        for i in cutlass.range_constexpr(each):
            own = own + totals[top - i]
        total = up_to_lane(own, lane)
        above = total - own
        if (above < wanted) & (wanted <= total):
            for i in cutlass.range_constexpr(each):
                here = totals[top - i]
                if (above < wanted) & (wanted <= above + here):
                    found[0] = top - i
                    found[1] = wanted - above
                above = above + here

    @cute.jit
    def take(
        self,
        own: cute.Tensor,
        sums: cute.Tensor,
        indices: cute.Tensor,
        keys: tuple,
        state: tuple,
        thread: Int32,
    ):
        """Write the keys that are taken, in order: a key's place is the number of those before it.

        state: (the lowest rank that is taken, how many of the keys with this rank are, keys of earlier CTAs: of a
        higher rank, and of the lowest)
        """
        lowest, wanted, earlier = state
        above, equal = earlier
        offset = thread // WARP_SIZE * OF_WARP + thread % WARP_SIZE
        tail = keys[1] - (keys[1] - keys[0]) % STRETCH
        for key in cutlass.range(keys[0] + offset, tail, STRETCH, unroll=1):
            ranks = ranks_of(own, key, tail, whole=True)
            # Two buffers in turn: the barrier of a stretch frees the buffer of the one before it.
            buffer = ((key - keys[0]) // STRETCH & 1) * TOPK_WARPS
            given = key, (lowest, wanted), (above, equal)
            above, equal = take_ranks(ranks, sums.iterator + buffer, indices, given)
        if tail < keys[1]:
            key = tail + offset
            ranks = ranks_of(own, key, keys[1], whole=False)
            buffer = ((tail - keys[0]) // STRETCH & 1) * TOPK_WARPS
            given = key, (lowest, wanted), (above, equal)
            above, equal = take_ranks(ranks, sums.iterator + buffer, indices, given)
        self.fill(indices, above + minimum(equal, wanted), thread)

    @cute.jit
    def fill(self, indices: cute.Tensor, taken: Int32, thread: Int32):
        """-1 after the last key; by the last CTA of the row, which knows how many there are."""
        block, _, _ = cute.arch.block_idx()
        if block % self.cfg.ctas == self.cfg.ctas - 1:
            for place in cutlass.range(taken + thread, indices.shape[0], TOPK_THREADS, unroll=1):
                indices[place] = Int32(-1)
