"""Store of few rows: O_i / row sum -> registers -> global memory, 16 bytes a thread and instruction.

A thread has a row. A warp without an existing row reads nothing. O_i is free as soon as it is in registers, and no
shared memory is needed, which the ring gets instead. The stores of a full tile are not contiguous: each thread writes
elsewhere. So TMA stores tiles that are mostly full (store.py).
"""

from math import gcd

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass._mlir.dialects import llvm

from ...dtypes import bytes_of
from ..instructions import tensor_memory
from ..sync.kernel_args import KernelArgs, Smem
from ..work import results, rows
from ..work.tile import Work
from . import row_math
from .products import column_of
from .warpgroup import CorrectionGroup

COLUMNS = 32  # columns of O in registers at a time, at most
PIECE_WORDS = 4  # of 32 bits, in one instruction


def store_words(address: Int64, words: list):
    """Store four or two 32-bit words to global memory in one instruction."""
    number = len(words)
    places = ", ".join(f"${i + 1}" for i in range(number))
    llvm.inline_asm(
        None,
        [Int64(address).ir_value(), *(word.ir_value() for word in words)],
        f"st.global.v{number}.b32 [$0], {{{places}}};",
        ",".join(["l", *["r"] * number]),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def store_if(exists: Boolean, address: Int64, words: list):
    """Store two 32-bit words to global memory if they exist, without a branch."""
    llvm.inline_asm(
        None,
        [Int32(exists).ir_value(), Int64(address).ir_value(), *(word.ir_value() for word in words)],
        "{\n.reg .pred exists;\nsetp.ne.b32 exists, $0, 0;\n"
        "@exists st.global.v2.b32 [$1], {$2, $3};\n}",
        "r,l,r,r",
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def store_batch(address: Int64, words: list):
    """Store adjacent words, 16 bytes at a time, and 8 bytes that are left."""
    for i in range(0, len(words), PIECE_WORDS):
        store_words(address + 4 * i, words[i : i + PIECE_WORDS])


def address_of(o: cute.Tensor, place: tuple) -> Int64:
    """Global address of an element of O; the depth is contiguous, and rows are 16-byte aligned."""
    return (o.iterator + cute.crd2idx(place, o.layout)).toint()


def columns_of(cfg) -> int:
    """Columns in registers at a time: a power of two that divides the depth."""
    return gcd(cfg.ov_depth, COLUMNS)


@cute.jit
def place_of(
    cfg: cutlass.Constexpr, args: KernelArgs, work: Work, i: cutlass.Constexpr, row: Int32
) -> tuple:
    """-> (whether the thread's row of query tile i exists, the address of its first column)."""
    of_tile = rows.row_of(cfg, work, i, row)
    exists, address = results.is_row(cfg, args, work, of_tile), Int64(0)
    if exists:
        address = address_of(args.o, (*results.row_place(cfg, args, work, of_tile), 0))
    return exists, address


@cute.jit
def scaled(
    cfg: cutlass.Constexpr,
    group: CorrectionGroup,
    work: Work,
    i: cutlass.Constexpr,
    o_address: Int32,
    scale: Float32,
):
    """O_i * scale, rounded, to global memory. Every thread of the warpgroup calls it."""
    exists, address = place_of(cfg, group.args, work, i, group.row)
    if cute.arch.vote_any_sync(exists):
        store_row(cfg, o_address, scale, exists, address)


def store_o(cfg, group: CorrectionGroup, work: Work, i, q_tile, inverse):
    """O_i, scaled, to global memory, by the threads of its rows; then O_i is free (store_o of roles/correction.py)."""
    scaled(cfg, group, work, q_tile, group.tmem + column_of(cfg.tmem.o, i), inverse)
    tensor_memory.fence_before()
    group.events.p_ready.arrive(i)


@cute.jit
def store_row(
    cfg: cutlass.Constexpr, o_address: Int32, scale: Float32, exists: Boolean, address: Int64
):
    for column, values in tensor_memory.load_batches(o_address, cfg.ov_depth, columns_of(cfg)):
        words = row_math.pack(row_math.multiplied(values, scale), cfg.o_dtype)
        if exists:
            store_batch(address + bytes_of(cfg.o_dtype, column), words)


@cute.jit
def zeros(cfg: cutlass.Constexpr, args: KernelArgs, smem: Smem, work: Work, row: Int32):
    """Zeros for rows that see no key; tensor memory is not read."""
    for i in cutlass.range_constexpr(cfg.tiles.num_q):
        exists, address = place_of(cfg, args, work, i, row)
        if exists:
            store_batch(address, [Int32(0)] * (bytes_of(cfg.o_dtype, cfg.ov_depth) // 4))
