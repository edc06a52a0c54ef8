"""Merge the partial results of split-KV: one warp per row of each head, one lane per four columns.

With O_p and L_p the result and log-sum-exp of part p, over disjoint keys:

    L = log(sum of e^L_p)        O = sum of e^(L_p - L) O_p

A part that saw no key has L_p = -inf and weight 0: its O_p is ignored, so uninitialized workspace never reaches the
result. Where no part saw a key, O is 0 and L is -inf. A NaN in a part that saw keys propagates. A sink of the rows of a
latent cache takes weight from all keys at the end (steps/sinks.py): O / (1 + e^(sink - L)), and L stays.
The sum runs over the parts in order with a running maximum (steps/part_sums.py), so the same parts give the same bits,
also in a CTA that merges its own parts (two_tiles/own_parts/). parts.py says which parts a row has.

This is a dependent launch: its CTAs may start while the last CTAs of the attention kernel are still running. They wait
for the end of that grid, which makes all of its writes visible, before they read any of its results. Every thread
waits, even for rows that do not exist, so the end of this grid implies the end of the previous one.

    lane       0         1         ...   31
    step 1     L_0       L_1       ...   L_31            maxima up to each part, by shuffles, and its two factors
    step 2     columns 0..3   4..7 ...   124..127        over these parts: sum and four columns, read AHEAD at a time

More than 32 parts take both steps again. The first values are loaded together with the log-sum-exps, the next ones
while the previous ones are summed.

Rows of more than 128 columns have two or four warps. Each does step 1 redundantly, and they split the columns.

The result may overwrite the first part: the log-sum-exp of a row is written after all lanes of its warps have read
those of the parts, and a lane writes the four columns that only it has read.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...dtypes import is_quantized
from ...layouts.scalars import minimum
from ..steps import part_sums, row_math
from ..steps.part_sums import PartSums
from ..work.sequence import Lengths, queries
from .config import COLUMNS_OF_WARP, ELEMENTS, THREADS, CombineConfig
from .parts import (
    CutList,
    Division,
    Partial,
    Result,
    Row,
    RowParts,
    division,
    lse_place,
    o_place,
    parts_of_row,
    rows_of_lists,
)

WARP = 32
AHEAD = 8  # parts in flight: loaded one at a time, each would cost the full memory latency
WARPS = THREADS // WARP  # of a CTA
OF_ROW = 1  # the first named barrier of the warps that share a row
DISTANCES = (1, 2, 4, 8, 16)


def largest_up_to(value):
    """For each lane of the warp the maximum over the lanes up to it."""
    lane = cute.arch.lane_idx()
    for distance in DISTANCES:
        before = cute.arch.shuffle_sync_up(value, distance)
        value = cutlass.select_(lane >= distance, cute.arch.fmax(value, before), value)
    return value


@cute.jit
def lse_of(found: RowParts, part: Int32) -> Float32:
    """The log-sum-exp of a part; of one that does not exist, that of no keys."""
    value = -Float32.inf
    if part < found.end:
        value = found.lse[part]
    return value


class CombineKernel:
    """Merges partial results by their log-sum-exp."""

    def __init__(self, cfg: CombineConfig):
        self.cfg = cfg

    @cute.jit
    def __call__(
        self,
        partial_o: cute.Tensor,
        partial_lse: cute.Tensor,
        parts: cute.Tensor | None,
        out: cute.Tensor,
        lse: cute.Tensor | None,
        cu_seqlens_q: cute.Tensor | None,
        seqused_q: cute.Tensor | None,
        max_seqlen_q: Int32,
        sink: cute.Tensor | None,
        stream,
    ):
        """Launch.

        partial_o      (parts * batch, seqlen_q, heads, depth), packed: (parts * total_q, heads, depth)
        partial_lse    (parts, batch, heads, seqlen_q), packed: (parts, heads, total_q); f32, natural logarithm
                       shared: (slots, positions, heads of a tile, depth), packed: (slots * positions, heads of a
                       tile, depth), and (slots, heads of a tile, positions)
                       cut: (slots, rows of a CTA, depth), and (slots, rows of a CTA)
        parts          shared: (blocks, 2) int32, first slot and number of slots. cut: (lists, 3) int32, of a list that
                       is cut its work tile, first slot and number of slots; 0 slots: there is no such list
        out            (batch, seqlen_q, heads, depth), packed: (total_q, heads, depth)
        lse            (batch, heads, seqlen_q), packed: (heads, total_q); f32
        cu_seqlens_q   packed: (batch + 1,) int32; seqused_q: (batch,) int32
        max_seqlen_q   of packed queries: at least the longest sequence
        sink           (heads,), natural units

        batch * seqlen_q * heads is at most 2^31 - 1; the caller sees to it.
        """
        cfg = self.cfg
        if cutlass.const_expr(cfg.packed):
            batch, seqlen_q = cu_seqlens_q.shape[0] - 1, max_seqlen_q
        else:
            batch, seqlen_q = out.shape[0], out.shape[1]
        lengths = Lengths(
            cu_seqlens_q, None, seqused_q, None, None, Int32(out.shape[0]) if cfg.packed else None
        )
        rows = Int32(batch) * seqlen_q * out.shape[-2]
        self.kernel.set_name_prefix(
            f"cute_fa4_{cfg.name}", remove_cutlass_symbol=True, keep_mangled_name=False
        )
        partial, of_cta = Partial(partial_o, partial_lse, parts), WARPS // cfg.warps_of_row
        if cutlass.const_expr(cfg.cut):
            _, rows = rows_of_lists(partial)
        by = division(partial, Int32(batch), seqlen_q, out.shape[-2])
        to = Result(out, lse, sink)
        self.kernel(partial, to, lengths, Int32(batch), Int32(seqlen_q), by).launch(
            grid=[(rows + (of_cta - 1)) // of_cta, 1, 1],
            block=[THREADS, 1, 1],
            stream=stream,
            use_pdl=cfg.dependent_launch,
        )

    @cute.kernel
    def kernel(
        self,
        partial: Partial,
        to: Result,
        lengths: Lengths,
        num_sequences: Int32,
        seqlen_q: Int32,
        by: Division,
    ):
        block, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        number = block * WARPS + warp
        if cutlass.const_expr(self.cfg.warps_of_row > 1):
            number = number // self.cfg.warps_of_row
        row_of_all, head = divmod(number, by.heads)
        sequence, q_index = divmod(row_of_all, by.seqlen_q)
        if cutlass.const_expr(self.cfg.dependent_launch):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.cfg.cut):
            self.merge_cut(partial, by, to, lengths, number)
        elif sequence < num_sequences:
            first_row, length = queries(lengths, sequence, seqlen_q)
            if q_index < length:
                row = Row(sequence, q_index, first_row + q_index, head)
                self.merge_row(partial, by, to, row)

    @cute.jit
    def merge_cut(
        self,
        partial: Partial,
        by: Division,
        to: Result,
        lengths: Lengths,
        number: Int32,
    ):
        """Row `number` of those of work tiles whose lists are cut, and every step-th after it until none is left."""
        rows, step = rows_of_lists(partial)
        found = CutList.of(partial, by, number)
        while (number < rows) & (found.parts > 0):
            _, length = queries(lengths, found.sequence, Int32(to.out.shape[1]))
            if found.q_index < length:
                row = Row(found.sequence, found.q_index, found.q_index, found.head)
                self.merge_row(partial, by, to, row, found)
            number = number + step
            found = CutList.of(partial, by, number)

    @cute.jit
    def merge_row(
        self,
        partial: Partial,
        by: Division,
        to: Result,
        row: Row,
        of_list: CutList | None = None,
    ):
        cfg = self.cfg
        lane = cute.arch.lane_idx()
        if cutlass.const_expr(of_list is None):
            found = parts_of_row(cfg, partial, by, to.out, row)
        else:
            found = of_list.of_row(partial)
        own = lse_of(found, found.begin + lane)
        held = cute.make_rmem_tensor((ELEMENTS, AHEAD), found.o_of.element_type)
        self.fetch(found, found.begin, held)
        sums, state = self.summed(found, held, own)
        inverse = part_sums.inverse(state, self.of_sink(to, row, state))
        sums = row_math.multiplied([sums[e] for e in range(ELEMENTS)], inverse)
        if self.place(lane) < cfg.depth // ELEMENTS:
            piece = self.piece(to.out[o_place(cfg, row)], self.place(lane))
            if cutlass.const_expr(is_quantized(cfg.o_dtype)):  # four in a word
                words = cute.make_tensor(cute.recast_ptr(piece.iterator, dtype=Int32), 1)
                words[0] = row_math.pack([sums[i] for i in range(ELEMENTS)], cfg.o_dtype)[0]
            else:
                rounded = cute.make_rmem_tensor(ELEMENTS, to.out.element_type)
                for i in cutlass.range_constexpr(ELEMENTS):
                    rounded[i] = sums[i].to(to.out.element_type)
                cute.autovec_copy(rounded, piece)
        if cutlass.const_expr(cfg.write_lse):
            whole = part_sums.log_sum_exp(state)
            self.all_have_read()
            if self.place(lane) == 0:
                to.lse[lse_place(cfg, row)] = whole

    def of_sink(self, to: Result, row: Row, state: PartSums):
        """The weight of the row's sink, in the units of the sum of weights; None: there is no sink."""
        if not self.cfg.sink:
            return None
        return part_sums.weight(to.sink[row.head].to(Float32), state.largest)

    def place(self, lane):
        """Which four columns of the row a lane has."""
        if self.cfg.warps_of_row == 1:
            return lane
        return cute.arch.warp_idx() % self.cfg.warps_of_row * (COLUMNS_OF_WARP // ELEMENTS) + lane

    def all_have_read(self):
        """All warps of the row are here: before the log-sum-exp of the first part is written over."""
        number = self.cfg.warps_of_row
        if number == 1:
            cute.arch.sync_warp()
        else:
            row = cute.arch.warp_idx() // number
            cute.arch.barrier(barrier_id=OF_ROW + row, number_of_threads=WARP * number)

    @cute.jit
    def fetch(self, found: RowParts, first: Int32, held: cute.Tensor):
        """This lane's columns of the AHEAD parts from `first` on; of the last one, where there are fewer.

        A lane without columns reads those of the last one that has some.
        """
        mine = minimum(self.place(cute.arch.lane_idx()), self.cfg.depth // ELEMENTS - 1)
        if first < found.end:
            for i in cutlass.range_constexpr(AHEAD):
                existing = minimum(first + i, found.end - 1)
                cute.autovec_copy(self.piece(found.o(existing), mine), held[None, i])

    @cute.jit
    def summed(self, found: RowParts, held: cute.Tensor, own: Float32) -> tuple:
        """-> (this lane's columns of the sum, the state of the row): the lanes have the factors of 32 parts.

        held: the first AHEAD parts; own: the log-sum-exp of the lane's first part
        """
        lane = cute.arch.lane_idx()
        sums = cute.make_rmem_tensor(ELEMENTS, Float32)
        sums.fill(part_sums.NOTHING)
        state = PartSums.empty()
        of_old, of_part, largest = self.factors(own, state.largest)
        for first in cutlass.range(found.begin, found.end, AHEAD, unroll=1):
            inside = (first - found.begin) % WARP
            if (inside == 0) & (first != found.begin):
                own = lse_of(found, first + lane)
                of_old, of_part, largest = self.factors(own, state.largest)
            for i in cutlass.range_constexpr(AHEAD):
                # A part that does not exist changes nothing.
                old, new, m = (
                    cute.arch.shuffle_sync(value, inside + i)
                    for value in (of_old, of_part, largest)
                )
                state = PartSums(m, part_sums.added_weight(state, old, new))
                values = [held[e, i].to(Float32) for e in range(ELEMENTS)]
                values = part_sums.counted(values, new)
                before = [sums[e] for e in range(ELEMENTS)]
                for e, value in enumerate(row_math.weighted_sum(before, values, old, new)):
                    sums[e] = value
            self.fetch(found, first + AHEAD, held)
        return sums, state

    def factors(self, lse: Float32, before: Float32) -> tuple:
        """For the part of each lane: the factors of the sum before it and of the part, and the maximum up to it.

        before: the maximum of all earlier parts
        """
        largest = cute.arch.fmax(largest_up_to(lse), before)
        earlier = cute.arch.shuffle_sync_up(largest, 1)
        earlier = cutlass.select_(cute.arch.lane_idx() == 0, before, earlier)
        return (*part_sums.factors(earlier, largest, lse), largest)

    def piece(self, row: cute.Tensor, lane):
        """The columns of a lane."""
        nbytes = ELEMENTS * row.element_type.width // 8
        pointer = (row.iterator + lane * ELEMENTS).align(nbytes)
        return cute.make_tensor(pointer, cute.make_layout(ELEMENTS))
