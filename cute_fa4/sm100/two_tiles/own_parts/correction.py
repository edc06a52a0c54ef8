"""Correction warpgroup of a CTA that merges the parts of its rows' keys (steps/part_sums.py).

    after a part's last key tile   wait row_scale[i] (row sum; its log-sum-exp is in the workspace) and o_ready[i]
    it begins its block            sum = O_i / row sum
    it does not                    sum = a sum + b O_i / row sum, with the sum of the workspace
    it ends its block              sum / weights to O, and the log-sum-exp; otherwise the sum to the workspace

A thread has the same two rows in every part. It keeps their maxima and weights in registers, and reads only those sums
that it wrote. Reads of L2 take longer than the work on what they bring. So the sums of both query tiles come as one
stream, AHEAD batches of columns before they are needed, the first ones before O_0 is complete; and the row sum of query
tile 1 is awaited in the middle of query tile 0.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from ...blueprint.entries import SUMS_OF_ACCESS
from ...instructions import tensor_memory
from ...roles.correction import key_tiles
from ...steps import part_sums, row_math, store
from ...steps.part_sums import PartSums
from ...steps.products import column_of
from ...steps.scores import first_state, row_context, row_lse
from ...steps.warpgroup import CorrectionGroup
from ...sync.kernel_args import KernelArgs, Smem
from ...work import own_parts, results, rows, scales
from ...work.tile import Work

COLUMNS = 8  # of a batch: of O in registers, twice, and of sums
AHEAD = 7  # batches of sums on their way


def cta():
    """The CTA's place in the workspace: of the CTAs of a launch no other has it."""
    block, _, _ = cute.arch.block_idx()
    return block


@dataclass(frozen=True)
class Merged:
    """The number of key tiles so far, the parity of the next O, and the state of this thread's two rows."""

    tiles: Int32
    o_phase: Int32
    first: PartSums
    second: PartSums

    @staticmethod
    def none() -> "Merged":
        return Merged(Int32(0), Int32(0), PartSums.empty(), PartSums.empty())


@cute.jit
def correct_tiles(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    before: Merged,
) -> Merged:
    """A part."""
    key_tiles(cfg, order, group, work.tiles.count, before.tiles)
    tiles = before.tiles + work.tiles.count
    phases = (tiles - 1) & 1, before.o_phase
    first, second = before.first, before.second
    if own_parts.begins_block(work.tile.part):
        none = PartSums.empty()
        first, second = end_part(cfg, group, work, phases, (none, none), None)
    else:
        sums = KeptSums(cfg, group)
        first, second = end_part(cfg, group, work, phases, (first, second), sums)
    return Merged(tiles, before.o_phase ^ 1, first, second)


@cute.jit
def end_part(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    phases: tuple,
    before: tuple,
    sums: cutlass.Constexpr,
) -> tuple:
    """Add O_0 and O_1 to the sums of this thread's rows; -> their states. phases: of row_scale and of o_ready.

    sums: of the parts before, a KeptSums; None: the part begins its block
    """
    first, second = before
    result = row_result(cfg, group, 0, phases)
    if own_parts.ends_block(work.tile.part, work.tiles):
        first, second = Tiles(cfg, group, work, phases, before, sums).finish(result, store_sum)
        if cutlass.const_expr(cfg.write_lse):
            for i, state in enumerate((first, second)):
                write_lse(cfg, group.args, work, i, group.row, part_sums.log_sum_exp(state))
    else:
        first, second = Tiles(cfg, group, work, phases, before, sums).finish(result, keep_sum)
    return first, second


def row_result(cfg, group: CorrectionGroup, i: int, phases: tuple) -> tuple:
    """-> (row sum, log-sum-exp) of a part of this thread's row in query tile i."""
    group.events.row_scale.wait(i, phases[0])
    thread = group.row + i * cfg.tiles.rows_per_q_tile
    return group.smem.row_scale[thread], group.args.splits.lse[cta(), thread]


class KeptSums:
    """The sums of the parts before, of both query tiles, batch by batch, AHEAD of them on their way."""

    def __init__(self, cfg, group: CorrectionGroup):
        of_tile = range(0, width_of(cfg), COLUMNS)
        self.group = group
        self.places = [(i, column) for i in range(cfg.tiles.num_q) for column in of_tile]
        self.first = [self.load(*place) for place in self.places[:AHEAD]]
        self.begin()

    def begin(self):
        """From the first batch on: the code of a branch."""
        self.waiting, self.following = list(self.first), self.places[len(self.first) :]

    def load(self, i: int, column: int) -> cute.Tensor:
        held = cute.make_rmem_tensor((SUMS_OF_ACCESS, COLUMNS // SUMS_OF_ACCESS), Float32)
        for four in range(COLUMNS // SUMS_OF_ACCESS):
            place = place_of(self.group, i, column + four * SUMS_OF_ACCESS)
            cute.autovec_copy(place, held[None, four])
        return held

    def take(self) -> list:
        """The next batch."""
        held = self.waiting.pop(0)
        return [held[n % SUMS_OF_ACCESS, n // SUMS_OF_ACCESS] for n in range(COLUMNS)]

    def load_next(self):
        """In the registers of the batch that was taken."""
        if self.following:
            self.waiting.append(self.load(*self.following.pop(0)))


@dataclass(frozen=True)
class Part:
    """What a row's O of a part becomes: O * inverse is its result, with factors of the sum before it and of it."""

    inverse: Float32
    of_sum: Float32
    of_part: Float32

    def added(self, sums: list | None, o: list) -> list:
        """The sum with O of the part. sums: None, if the part begins its block: then it is the sum."""
        result = row_math.multiplied(o, self.inverse)
        if sums is None:
            return result
        return row_math.weighted_sum(sums, result, self.of_sum, self.of_part)


class Tiles:
    """The end of a part for both query tiles, in one of the branches of end_part, whose arguments it has."""

    def __init__(self, cfg, group: CorrectionGroup, work: Work, phases, before, sums):
        self.cfg, self.group, self.work, self.phases = cfg, group, work, phases
        self.before, self.sums = before, sums
        if sums is not None:
            sums.begin()

    def finish(self, result: tuple, use) -> list[PartSums]:
        """-> the states of the rows. result: row_result of query tile 0; use: what becomes of the sums."""
        states = []
        for i in range(self.cfg.tiles.num_q):
            state, part = self.state_and_part(i, result)
            later: list = []
            use(self, i, self.batches(i, part, later), part_sums.inverse(state))
            states.append(state)
            result = later[0] if later else None
        return states

    def state_and_part(self, i: int, result: tuple) -> tuple[PartSums, Part]:
        """The row's state with this part, once O_i is complete."""
        cfg, group, before, (row_sum, lse) = self.cfg, self.group, self.before[i], result
        factor = scales.of_output(cfg, group.args, self.work)
        inverse = scales.times(row_math.inverse(row_sum), factor)
        group.events.o_ready.wait(i, self.phases[1])
        tensor_memory.fence_after()
        largest = cute.arch.fmax(before.largest, lse)
        of_sum, of_part = part_sums.factors(before.largest, largest, lse)
        clear_uncounted(cfg, group, i, of_part)
        state = PartSums(largest, part_sums.added_weight(before, of_sum, of_part))
        return state, Part(inverse, of_sum, of_part)

    def batches(self, i: int, part: Part, later: list):
        """(first column, the sum with O_i) in batches. later: gets row_result of the next query tile on the way."""
        cfg, group = self.cfg, self.group
        o_address, width = group.tmem + column_of(cfg.tmem.o, i), width_of(cfg)
        for column, o in tensor_memory.load_batches(o_address, width, COLUMNS):
            if column + COLUMNS == width:  # O_i is in registers: the next part may overwrite it
                tensor_memory.fence_before()
                group.events.p_ready.arrive(i)
            yield column, part.added(None if self.sums is None else self.sums.take(), o)
            if self.sums is not None:
                self.sums.load_next()
            if i + 1 < cfg.tiles.num_q and not later and column + COLUMNS >= width // 2:
                later.append(row_result(cfg, group, i + 1, self.phases))


def width_of(cfg) -> int:
    """Columns of O in tensor memory."""
    return cfg.tiles.pv_mma_shape[1]


def place_of(group: CorrectionGroup, i: int, column: int) -> cute.Tensor:
    """The place of four columns of this thread's row in the workspace."""
    of_row = group.args.splits.o[cta(), i, column // SUMS_OF_ACCESS, group.row, None]
    pointer = of_row.iterator.align(SUMS_OF_ACCESS * 4)
    return cute.make_tensor(pointer, cute.make_layout(SUMS_OF_ACCESS))


@cute.jit
def clear_uncounted(
    cfg: cutlass.Constexpr, group: CorrectionGroup, i: cutlass.Constexpr, of_part: Float32
):
    """O_i = 0 in rows for which the part has no weight: the merge kernel takes its result as 0 (part_sums.counted)."""
    if cute.arch.vote_any_sync(of_part == 0.0):
        o_address = group.tmem + column_of(cfg.tmem.o, i)
        clear_rows(o_address, width_of(cfg), of_part)


def clear_rows(o_address, width: int, of_part):
    for column in range(0, width, COLUMNS):
        o = tensor_memory.load(o_address + column, COLUMNS)
        tensor_memory.wait_load()
        tensor_memory.store(o_address + column, part_sums.counted(o, of_part))
    tensor_memory.wait_store()


def store_sum(tiles: Tiles, i: int, batches, inverse):
    """The sums over the weights to O. inverse: 1 / weights."""

    def values(sums):
        return row_math.multiplied(sums, inverse)

    store.write_out(tiles.cfg, tiles.group, tiles.work, i, batches, values, COLUMNS, lambda: None)


def keep_sum(tiles: Tiles, i: int, batches, inverse):
    """The sums to the workspace."""
    for column, values in batches:
        for first in range(0, COLUMNS, SUMS_OF_ACCESS):
            held = cute.make_rmem_tensor(SUMS_OF_ACCESS, Float32)
            for n in range(SUMS_OF_ACCESS):
                held[n] = values[first + n]
            cute.autovec_copy(held, place_of(tiles.group, i, column + first))


@cute.jit
def write_empty(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, row: Int32):
    """A block that sees no key: zeros, and the log-sum-exp of no keys or of the sink."""
    if cutlass.const_expr(cfg.write_lse):
        for i in cutlass.range_constexpr(cfg.tiles.num_q):
            context = row_context(cfg, args, work, i, row)
            state = first_state(cfg, args, work, context)
            lse = row_lse(cfg, args, work, context.head, state, context.factor)
            write_lse(cfg, args, work, i, row, lse)
    store.zeros(cfg, args, smem, work, row)


@cute.jit
def write_lse(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    work: Work,
    i: cutlass.Constexpr,
    row: Int32,
    lse: Float32,
):
    """The log-sum-exp of a row of query tile i, if it exists."""
    place = rows.row_of(cfg, work, i, row)
    if results.is_row(cfg, args, work, place):
        args.lse[results.lse_place(cfg, args, work, place)] = lse
