"""Arguments of the kernels: TMA descriptors of tiles, and where a tile of a sequence is.

Loads and stores of dense tensors are clipped at the tensor's extent, those of packed ones at the end of the sequence.
Rows after that end reach no product and are not written (tma/tensor_maps.py).
"""

from dataclasses import dataclass
from functools import partial

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm

from ...dtypes import DTYPES
from ...layouts.scalars import minimum
from ...layouts.swizzle import ROWS_PER_PERIOD
from ...tma import copies
from ...tma.tensor_maps import (
    TMAOperand,
    clipped_load,
    clipped_load_view,
    clipped_store,
    clipped_store_view,
    dense_view,
    make_line_operand,
    make_operand,
    row_space,
)
from ..blueprint.chip import F32_BYTES
from ..sync.pipelines import Slot
from .listed import TileLists
from .owner import GRANULE, ROWS, STATS
from .subtracted_sizes import CORE_BYTES
from .work import Sequence, Sizes


@dataclass(frozen=True)
class JointArgs:
    """Further arguments of the kernel of all gradients (joint.py).

    counters: (heads x tiles + 1, COUNTERS) int32, of additions so far, the last line of pairs so far
    """

    columns: TMAOperand  # halves of the columns of K
    counters: cute.Tensor
    side: Int32  # heads whose pairs run at the same time
    added: TMAOperand  # the sum of dQ, or dq in float32: what pairs add to
    begun: TMAOperand | None = None  # the same sum: what the first pair stores to
    so_far: TMAOperand | None = None  # the same sum: what the last pair loads
    rounded: TMAOperand | None = None  # dq in 16 bits


@dataclass(frozen=True)
class Box:
    """The part of a tensor that one copy takes."""

    rows: int
    columns: int
    dtype: type  # of the DSL


@dataclass(frozen=True)
class OwnerArgs:
    """Arguments of an owner's kernel, which may be that of all gradients.

    own, others, results: in the order of Owner.depths
    """

    own: tuple[TMAOperand, TMAOperand]
    others: tuple[TMAOperand, TMAOperand]
    results: tuple[TMAOperand, ...]  # of Owner.results
    stats: cute.Tensor  # (heads_q, tiles, cfg.numbers_of_tile) f32, as delta.py writes it
    sizes: Sizes
    aux: tuple  # tensors for score_mod and mask_mod
    scale: Float32  # softmax scale
    scale_log2: Float32  # the same times log2(e)
    lines: tuple = ()  # (CTAs of a launch, numbers of each) f32, one for each wanted element (sums.py)
    lists: TileLists | None = None  # of tiles, where the call had lists of key blocks
    first: Int32 | None = None  # number of the launch's first CTA among all
    summed: tuple[
        TMAOperand, ...
    ] = ()  # in a pair: halves of columns, one for each of Owner.results
    parts: TMAOperand | None = (
        None  # in a pair whose MMAs subtract: parts of L or of delta in `stats`
    )
    joint: JointArgs | None = None


def load_operands(cfg, depths: tuple, tensors: tuple, rows: int, ctas=(1, 1)) -> tuple:
    """Tiles of so many rows, and of `depths` columns; zeros past the existing columns.

    ctas: for each, 2: its bytes count in CTA 0 of the pair
    """
    out = []
    for tensor, depth, group in zip(tensors, depths, ctas, strict=True):
        if cfg.packed:
            view = clipped_load_view(tensor, row_space(tensor))
        else:
            view = dense_view(tensor, GRANULE, depth)
        dtype = DTYPES[cfg.dtype].cutlass
        out.append(make_operand(view, dtype, rows, depth, cta_group=group))
    return tuple(out)


def parts_operand(owner, stats: cute.Tensor) -> TMAOperand:
    """Parts of L or of delta of a pair's rows, which count in CTA 0: a plain bulk copy counts in its own CTA.

    The view: groups of eight rows, numbers of a group, L or delta, lines, heads.
    """
    heads, lines, _ = stats.shape
    of_head, of_line, _ = stats.layout.stride
    core = CORE_BYTES // F32_BYTES
    layout = cute.make_layout(
        (ROWS // ROWS_PER_PERIOD, core, 2, lines, heads),
        stride=(2 * core, 1, core, of_line, of_head),
    )
    view = cute.make_tensor(stats.iterator + STATS, layout)
    groups = owner.tiles[0].rows // ROWS_PER_PERIOD
    return make_line_operand(view, groups, core, cta_group=owner.ctas)


def box_of(cfg) -> Box:
    """A depth chunk of a result."""
    return Box(ROWS, cfg.stored_columns, DTYPES[cfg.grad_dtype].cutlass)


def box_operand(cfg, tensor, box: Box, direction: str) -> TMAOperand:
    """Boxes of a tensor. direction: "load", "store", or "add", which adds to what is in memory"""
    if not cfg.packed:
        view = dense_view(tensor, box.columns, box.columns)
    elif direction == "load":
        view = clipped_load_view(tensor, row_space(tensor))
    else:
        view = clipped_store_view(tensor, row_space(tensor), box.rows, box.columns, box.columns)
    return make_operand(view, box.dtype, box.rows, box.columns, direction=direction)


def result_operand(cfg, tensor) -> TMAOperand:
    """Of dQ, dK or dV, stored or added to what is in memory."""
    return box_operand(cfg, tensor, box_of(cfg), "add" if cfg.accumulate else "store")


def load(
    cfg, operand: TMAOperand, address, mbarrier, of: Sequence, rows: tuple, head, first_column=0
):
    """Copy a tile. rows: (first row in the tensor, length of the sequence, row in the sequence)."""
    box = Box(ROWS, 0, DTYPES[cfg.dtype].cutlass)  # the operand knows its columns
    load_box(cfg, box, operand, (address, mbarrier), of, rows, head, first_column)


def load_box(
    cfg, box: Box, operand: TMAOperand, to: tuple, of: Sequence, rows: tuple, head, column
):
    """Copy a box in. to: (address, mbarrier)"""
    at, further = clipped(cfg, clipped_load, box, of, rows, head)
    address, mbarrier = to
    copies.load_tile(operand, box.dtype, address, mbarrier, at, further, column)


def store(cfg, box: Box, operand: TMAOperand, address, of: Sequence, rows: tuple, head, column):
    """Copy a box out; rows beyond the sequence are dropped. column: its first one"""
    at, further = clipped(cfg, partial(clipped_store, box.rows), box, of, rows, head)
    copies.store_tile(operand, box.dtype, address, at, further, first_column=column)


def clipped(cfg, packed, box: Box, of: Sequence, rows: tuple, head) -> tuple:
    """-> (first row, further coordinates) of a box. packed: makes them from first row, rows that exist, and head"""
    first, length, row = rows
    if cfg.packed:
        return packed(first + row, minimum(length - row, box.rows), head)
    return row, (head, of.index)


def first_slots(owner, phase: int) -> tuple[Slot, ...]:
    """Where the parts of the ring begin. phase: 0 for who waits for tiles, 1 for who waits for room."""
    return tuple(Slot(Int32(0), Int32(phase)) for _ in owner.parts)


def next_slots(owner, slots: tuple) -> tuple[Slot, ...]:
    return tuple(slot.next(number) for slot, number in zip(slots, owner.slots, strict=True))


def ring_index(owner, slots: tuple, part: int):
    """The barrier of a part."""
    return slots[part].index + owner.first_slot(part)


def ring_address(owner, cta, slots: tuple, part: int):
    """Where a part is."""
    ring = cta.ring_address + owner.ring_offset(part)
    return ring + slots[part].index * owner.slot_bytes(part)


def stats_address(owner, cta, slots: tuple, i: int):
    """Where the numbers are that S (i = 0) or dP (i = 1) subtracts, or compute warps read."""
    part = owner.made_part(i) if owner.ctas > 1 else 0
    first = cta.stats_address + owner.stats_offset(part)
    return first + slots[part].index * (owner.stats_of(part) * F32_BYTES)


def place_of_s(owner, n) -> Slot:
    """Where the S of turn n is."""
    return Slot(n & 1, (n >> 1) & 1) if owner.s_buffers == 2 else Slot(Int32(0), n & 1)


def load_stats(owner, line: cute.Tensor, first, address, mbarrier):
    """Copy L and delta of a tile of queries, L alone, or the parts of both. PTX ISA, "cp.async.bulk".

    first: which number of the line
    """
    text = "{\n.reg .pred leader_thread;\nelect.sync _|leader_thread, 0xffffffff;\n"
    text += "@leader_thread cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
    text += f"[$0], [$1], {owner.stats * 4}, [$2];\n}}"
    llvm.inline_asm(
        None,
        [
            Int32(address).ir_value(),
            (line.iterator + first).toint().ir_value(),
            Int32(mbarrier.toint()).ir_value(),
        ],
        text,
        "r,l,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
