"""The kernel's arguments, and the objects that the prologue passes to the roles."""

from dataclasses import dataclass, make_dataclass
from functools import cache

import cutlass.cute as cute
from cutlass import Float32, Int32

from cute_fa4.tma.tensor_maps import TMAOperand

from ..blueprint.barriers import BarrierTable
from ..blueprint.memory_maps import SmemMap
from ..operands.rope import Rope
from ..operands.tma import KVOperand
from ..work.block_lists import BlockLists
from ..work.list_parts import ListParts
from ..work.own_parts import OwnParts
from ..work.packed_order import PackedOrder
from ..work.sequence import Lengths
from ..work.split import Splits
from ..work.stream_k import StreamK
from ..work.tile_order import TileOrder
from .pipelines import Event


@dataclass(frozen=True)
class KernelArgs:
    """Arguments of the kernel: TMA operands, lengths, sizes, scale, and what the variant adds."""

    q: TMAOperand
    k: KVOperand
    v: KVOperand
    o: TMAOperand | cute.Tensor  # stored by TMA, or by the threads
    lse: cute.Tensor | None  # (batch, heads, seqlen_q) or packed (heads, total_q), f32; or None
    lengths: Lengths
    page_table: cute.Tensor | None  # (batch, pages) int32, or None
    num_pages: Int32  # of the pool, where keys are paged
    page_divisor: (
        object  # keys of a page, as a fast divisor, where calls bind them; None: cfg.page_size
    )
    # (Q and O, K, V): rows from one batch or page to the next in their row spaces; Int32
    rows_per_block: tuple
    seqlen_q: Int32  # of dense queries; packed: of the longest sequence
    seqlen_k: Int32  # of dense keys; otherwise the most a sequence can have
    order: TileOrder | PackedOrder | StreamK
    splits: Splits | OwnParts | ListParts | None  # where the keys of a block are cut into parts
    scale: Float32  # softmax scale
    scale_log2: Float32  # the same times log2(e)
    descales: tuple  # of 8-bit operands, as cfg.descales names them: (batch, key/value heads), f32
    rope: Rope | None  # columns of K in a separate tensor, or None
    mask_sizes: tuple  # run-time numbers of the mask, Int32
    sink: cute.Tensor | None  # (heads,), or None
    aux: tuple  # tensors for score_mod and mask_mod
    blocks: BlockLists | None = None  # key blocks of each block of queries, where they are listed
    skip: tuple = ()  # log2 of the threshold's scale factor, Float32, and the counts


class Events:
    """The one-barrier events between the roles: one Event, of the same name, per barrier of the family's table."""

    @classmethod
    def of(cls, table: BarrierTable, mbarriers: cute.Pointer) -> "Events":
        """From the first mbarrier."""
        names = tuple(row.name for row in table.rows)
        return named(cls, names)(*(Event(mbarriers + table.first_index(name)) for name in names))

    def seen_by(self, role: str) -> "Events":
        """The events as a role raises and awaits them; CTAs that share an MMA override it for each role."""
        return self


@cache
def named(base: type, names: tuple[str, ...]) -> type:
    """A dataclass with these fields, made once: the compiler compares the types of loop-carried values."""
    return make_dataclass(base.__name__, names, bases=(base,), frozen=True)


def floats(pointer: cute.Pointer, *shape: int) -> cute.Tensor:
    """A float32 tensor of this shape that begins at a byte of shared memory."""
    layout = cute.make_layout(shape if len(shape) > 1 else shape[0])
    return cute.make_tensor(cute.recast_ptr(pointer, dtype=Float32), layout)


PLACED = frozenset(("work_queue", "mbarriers", "tmem_address"))  # by the prologue (kernel.py)


class Smem:
    """Shared memory, by the names of the family's map.

    NAME_address   the shared address of a region of bytes; Int32
    NAME           a region of float32, as a tensor; regions without bytes are missing
    """

    @classmethod
    def of(cls, places: SmemMap, base: cute.Pointer, **further: cute.Tensor) -> "Smem":
        """base: the CTA's dynamic shared memory; further: tensors that lie in regions of others."""
        found = {}
        for region in places.regions:
            if region.shape is None and region.name not in PLACED:
                address = base.toint()
                found[f"{region.name}_address"] = (
                    address + region.offset if region.offset else address
                )
            elif region.nbytes and region.shape is not None:
                found[region.name] = floats(base + region.offset, *region.shape)
        found |= further
        return named(cls, tuple(found))(**found)
