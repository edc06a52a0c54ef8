"""TopKKernel: the keys with the highest logits of each row, exactly, in the order of the keys; no tensor core.

A CTA has a row. Logits become 32-bit numbers of the same order (`rank_of`), and four passes over the row find the
lowest that is taken, a byte at a time:

    pass 0..3     counts of the next byte, of logits whose first bytes are those found so far; from the highest byte
                  down, the first whose sum reaches the number of keys still wanted is the next byte found
    last pass     in the order of the keys: ranks above the found one are taken, and of equal ones the first `wanted`

The counts are sums of integers, so the order of the atomic additions changes nothing: the result is the same in every
run. A fifth read of the row costs less than a list of candidates, whose order would depend on the run.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Uint32

from ...layouts.scalars import minimum
from ..blueprint.chip import WARP_SIZE
from .config import BINS, OF_BYTE, PASSES, TOPK_THREADS, TOPK_WARPS, TopKConfig, TopKSmem

HIGHEST, SIGN, MAGNITUDE, INFINITE = 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 0x7F800000
NEGATIVE_INFINITY = 0xFF800000


def rank_of(bits):
    """The rank of a float32 given by its bits: unsigned numbers in the order of the logits.

    NaN is the highest, zeros of both signs are equal, and -inf is 0: not seen. On integers, so that subnormal numbers
    keep their order.
    """
    magnitude = bits & Uint32(MAGNITUDE)
    flips = _either(bits >= Uint32(SIGN), Uint32(HIGHEST), Uint32(SIGN))
    rank = _either(magnitude == Uint32(0), Uint32(SIGN), bits ^ flips)
    rank = _either(bits == Uint32(NEGATIVE_INFINITY), Uint32(0), rank)
    return _either(magnitude > Uint32(INFINITE), Uint32(HIGHEST), rank)


def _either(condition, yes, no):
    """select_ of the DSL returns signed numbers."""
    return Uint32(cutlass.select_(condition, yes, no))


def meet():
    cute.arch.barrier(barrier_id=1, number_of_threads=TOPK_THREADS)


class TopKKernel:
    """Indices of the highest logits: made from a TopKConfig and called with tensors."""

    def __init__(self, cfg: TopKConfig):
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

        logits        (rows, keys): the bits of float32, as int32
        starts, ends  (rows,) int32: keys that a row sees
        indices       (rows, k) int32: written; -1 after the last key
        """
        self.kernel.set_name_prefix(
            f"cute_fa4_{self.cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        self.kernel(logits, starts, ends, indices).launch(
            grid=[logits.shape[0], 1, 1],
            block=[TOPK_THREADS, 1, 1],
            smem=TopKSmem.of_topk().nbytes,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self, logits: cute.Tensor, starts: cute.Tensor, ends: cute.Tensor, indices: cute.Tensor
    ):
        row, _, _ = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        base, smem = cute.arch.get_dyn_smem(cutlass.Int8, alignment=16), TopKSmem.of_topk()
        counts, found, sums = (
            cute.make_tensor(
                cute.recast_ptr(base + region.offset, dtype=Int32),
                cute.make_layout(region.nbytes // 4),
            )
            for region in smem.regions
        )
        first, end = starts[row], minimum(ends[row], Int32(logits.shape[1]))
        if first < 0:
            first = Int32(0)
        own = logits[row, None]
        lowest, wanted = Uint32(0), Int32(indices.shape[1])
        for number in cutlass.range_constexpr(PASSES):
            # Each pass has its own words: a warp may still read those of the pass before.
            of_pass = cute.make_tensor(found.iterator + 2 * number, cute.make_layout(2))
            self.count(own, counts, of_pass, (first, end), (lowest, wanted, number), thread)
            lowest, wanted = (lowest << OF_BYTE) | Uint32(of_pass[0]), of_pass[1]
        self.take(own, sums, indices[row, None], (first, end), (lowest, wanted), thread)

    @cute.jit
    def count(
        self,
        own: cute.Tensor,
        counts: cute.Tensor,
        found: cute.Tensor,
        keys: tuple,
        state: tuple,
        thread: Int32,
    ):
        """The next byte of the lowest rank, and how many keys of that byte are wanted, to `found`.

        state: (bytes found so far, keys wanted that have these, how many passes there were). A row that sees fewer
        keys than wanted finds 0, the rank of keys that are not seen.
        """
        lowest, wanted, number = state
        shift = OF_BYTE * (PASSES - 1 - number)
        if thread < BINS:
            counts[thread] = Int32(0)
        if thread == 0:
            found[0] = Int32(0)
            found[1] = wanted
        meet()
        for key in cutlass.range(keys[0] + thread, keys[1], TOPK_THREADS, unroll=1):
            rank = rank_of(Uint32(own[key]))
            mine = rank != Uint32(0)
            if cutlass.const_expr(number > 0):
                mine = mine & ((rank >> (shift + OF_BYTE)) == lowest)
            if mine:
                place = counts.iterator + Int32((rank >> shift) & Uint32(BINS - 1))
                cute.arch.atomic_add(place, Int32(1), sem="relaxed", scope="cta")
        meet()
        if thread < WARP_SIZE:
            self.find(counts, found, wanted, thread)
        meet()

    @cute.jit
    def find(self, counts: cute.Tensor, found: cute.Tensor, wanted: Int32, lane: Int32):
        """One warp: a lane has eight bytes, the first lane the highest ones."""
        each = BINS // WARP_SIZE
        top = BINS - 1 - lane * each
        own = Int32(0)
        for i in cutlass.range_constexpr(each):
            own = own + counts[top - i]
        total = own
        for i in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(total, 1 << i, mask_and_clamp=0)
            total = total + cutlass.select_(lane >= (1 << i), other, Int32(0))
        above = total - own
        if (above < wanted) & (wanted <= total):
            for i in cutlass.range_constexpr(each):
                here = counts[top - i]
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

        state: (the lowest rank that is taken, how many of the keys with this rank are)
        """
        lowest, wanted = state
        warp, lane = thread // WARP_SIZE, thread % WARP_SIZE
        before = (Int32(1) << lane) - 1
        above, equal = (
            Int32(0),
            Int32(0),
        )  # keys before this stretch, of a higher rank and of the lowest
        stretches = (keys[1] - keys[0] + (TOPK_THREADS - 1)) // TOPK_THREADS
        for stretch in cutlass.range(stretches, unroll=1):
            key, rank = keys[0] + stretch * TOPK_THREADS + thread, Uint32(0)
            if key < keys[1]:
                rank = rank_of(Uint32(own[key]))
            is_above = rank > lowest
            is_equal = (rank == lowest) & (rank != Uint32(0))
            lanes_above = Int32(cute.arch.vote_ballot_sync(is_above))
            lanes_equal = Int32(cute.arch.vote_ballot_sync(is_equal))
            # Two buffers in turn: the barrier of a stretch frees the buffer of the one before it.
            buffer = (stretch & 1) * (2 * TOPK_WARPS)
            if lane == 0:
                sums[buffer + warp] = cute.arch.popc(lanes_above)
                sums[buffer + TOPK_WARPS + warp] = cute.arch.popc(lanes_equal)
            meet()
            place = above + cute.arch.popc(lanes_above & before)
            order = equal + cute.arch.popc(lanes_equal & before)
            for i in cutlass.range_constexpr(TOPK_WARPS):
                of_above, of_equal = sums[buffer + i], sums[buffer + TOPK_WARPS + i]
                place = place + cutlass.select_(warp > i, of_above, Int32(0))
                order = order + cutlass.select_(warp > i, of_equal, Int32(0))
                above, equal = above + of_above, equal + of_equal
            if is_above | (is_equal & (order < wanted)):
                indices[place + minimum(order, wanted)] = key
        taken = above + minimum(equal, wanted)
        for place in cutlass.range(taken + thread, indices.shape[0], TOPK_THREADS, unroll=1):
            indices[place] = Int32(-1)
