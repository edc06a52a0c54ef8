"""What crosses the kernel boundary, and what the prologue hands to the roles."""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32, Int32

from ..tma.tensor_maps import TMAOperand
from .operands.tma import KVOperand
from .sync.pipelines import Event
from .work.packed_order import PackedOrder
from .work.sequence import Lengths
from .work.tile_order import TileOrder


@dataclass(frozen=True)
class KernelArgs:
    """Arguments of the kernel: TMA operands, lengths, sizes, scale, and what the variant adds."""

    q: TMAOperand
    k: KVOperand
    v: KVOperand
    o: TMAOperand
    lse: cute.Tensor | None  # (batch, heads, seqlen_q) or packed (heads, total_q), f32; or None
    lengths: Lengths
    page_table: cute.Tensor | None  # (batch, pages) int32, or None
    num_pages: Int32  # of the pool, where keys are paged
    rows_per_block: (
        tuple  # (Q and O, K, V): rows from one batch or page to the next in their row spaces; Int32
    )
    seqlen_q: Int32  # of dense queries; packed: of the longest sequence
    seqlen_k: Int32  # of dense keys; otherwise the most a sequence can have
    order: TileOrder | PackedOrder
    scale: Float32  # softmax scale
    scale_log2: Float32  # the same times log2(e)
    mask_sizes: tuple  # run-time numbers of the mask, Int32
    sink: cute.Tensor | None  # (heads,), or None
    aux: tuple  # tensors for score_mod and mask_mod


@dataclass(frozen=True)
class Events:
    """The one-barrier events between the roles; barriers.py is their table."""

    q_full: Event
    q_free: Event
    s_ready: Event
    row_scale: Event
    p_ready: Event
    p_last: Event
    s_free: Event | None
    pv_done: Event | None
    o_ready: Event


@dataclass(frozen=True)
class Smem:
    """Shared memory: where the tiles and the row factors are."""

    q_address: Int32  # shared address of Q0
    kv_address: Int32  # shared address of slot 0
    o_address: Int32  # shared address of the first chunk of O
    # (256,) f32, by softmax thread: 2^(old max - new max), and after the last key tile the row sum
    row_scale: cute.Tensor
    # (256,) f32: what a thread adds to its scaled scores; read again late in a tile
    row_bias: cute.Tensor
