"""L and delta as a further MMA step: the tensor core makes S - L / c and dP - delta where keys are owned.

There, every column of S^T and dP^T has its own L and delta. Read from shared memory by each thread, they would take 256
loads of 16 bytes for a tile, which all lanes of a warp read from one address. Instead, a step of 16 more values of the
contraction subtracts them. Float32 numbers are sums of three bf16 numbers, whatever dtype the tiles have:

    value of the contraction     0 to 2                 3 to 7   8 to 10              11 to 15
    row of a query               parts of -L / c        0        parts of -delta      0
    row of a key, for S          1                      0        0                    0
    row of a key, for dP         0                      0        1                    0

Then P = 2^(c (S - L / c)), with c = scale log2(e). Where L is infinite, the number is FAR: with 0 it makes 0.

Both are K-major without swizzle, cores of 8 rows of 16 bytes. delta.py writes a tile of queries in the order in which
the MMA reads it: the parts of L for eight rows, then the parts of delta for these rows, then the next eight rows. Every
row of keys holds the same numbers. Shared memory has three blocks of 128 rows of 16 bytes: zeros, ones, zeros. S reads
the last two, dP the first two.

In a pair, parts of L and of delta come apart, because S and dP are made a turn apart. A row of either has eight values,
which the MMA reads twice (leading offset 0): with ones, then with zeros. All groups of eight rows of keys are one
(stride 0), so the constant operand takes 256 bytes, and shared memory has room for tiles of 128 rows. On an H200, wgmma
reads such operands as the descriptor says and at full speed (benchmarks/hopper_strides.cu).
"""

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32

from ...layouts.scalars import choose
from ...layouts.swizzle import CHUNK_BYTES, ROWS_PER_PERIOD, SWIZZLE_NONE
from ...layouts.umma_descriptors import InstructionDescriptor, SmemDescriptor
from ..instructions import tensor_core
from ..steps import row_math
from .subtracted_sizes import BLOCK_BYTES, CORE_BYTES, ROWS

PARTS = 3  # bf16 numbers of 8 bits each, of a float32 of 24
WORDS = CHUNK_BYTES // 4
DTYPE = "bf16"
FAR = -(2.0**100)  # times the least c, 2^-64, it is far below the exponents of float32
DESCRIPTOR_UNIT = 16


def parts_of(number) -> list:
    """Words of the eight bf16 numbers of a row: three that add up to `number`, and zeros."""
    out = []
    for _ in range(PARTS):
        out.append(number.to(BFloat16).to(Float32))
        number = number - out[-1]
    words = row_math.pack([*out, Float32(0.0)], DTYPE)
    return words + [Int32(0)] * (WORDS - len(words))


def store(line: cute.Tensor, row, of_s, of_dp):
    """Write the parts of a query. line: NUMBERS float32; row: of the tile; of_s, of_dp: what is added to S and dP."""
    for number, value in enumerate((of_s, of_dp)):
        first = row // ROWS_PER_PERIOD * (2 * CORE_BYTES) + row % ROWS_PER_PERIOD * CHUNK_BYTES
        held = cute.make_rmem_tensor(WORDS, Int32)
        for i, word in enumerate(parts_of(Float32(value))):
            held[i] = word
        at = cute.recast_ptr(line.iterator + (first + number * CORE_BYTES) // 4, dtype=Int32)
        cute.autovec_copy(held, cute.make_tensor(at.align(16), cute.make_layout(WORDS)))


@cute.jit
def write_ones(owner: cutlass.Constexpr, base: cute.Pointer):
    """All threads of a CTA write the constant operand. base: of its shared memory."""
    ones, threads = owner.smem.ones, owner.warps.threads
    address = cute.recast_ptr(base + ones.offset, dtype=Int32)
    words = cute.make_tensor(address, cute.make_layout(ones.nbytes // 4))
    thread, _, _ = cute.arch.thread_idx()
    one = 0x3F80  # in bf16
    row = (Int32(one << 16 | one), Int32(one), Int32(0), Int32(0))
    if cutlass.const_expr(owner.ctas > 1):
        if thread < 2 * ROWS_PER_PERIOD:
            for i in cutlass.range_constexpr(WORDS):
                words[thread * WORDS + i] = choose(thread < ROWS_PER_PERIOD, row[i], Int32(0))
    else:
        for block in cutlass.range_constexpr(3):
            for first in cutlass.range_constexpr(0, ROWS, threads):
                if first + thread < ROWS:
                    for i in cutlass.range_constexpr(WORDS):
                        at = (block * ROWS + first + thread) * WORDS + i
                        words[at] = row[i] if cutlass.const_expr(block == 1) else Int32(0)
    cute.arch.fence_proxy("async.shared", space="cta")


def subtract(owner, tmem, ones_address, parts_address, of_dp: bool):
    """Add a step to S or dP in `tmem`: both addresses are of shared memory."""
    block = ones_address
    if owner.ctas > 1:
        ones = SmemDescriptor(0, CORE_BYTES, 0, SWIZZLE_NONE)
        parts = SmemDescriptor(0, 0, CORE_BYTES, SWIZZLE_NONE)
    else:
        ones = SmemDescriptor(0, BLOCK_BYTES, CORE_BYTES, SWIZZLE_NONE)
        parts = SmemDescriptor(0, CORE_BYTES, 2 * CORE_BYTES, SWIZZLE_NONE)
        block = block + (0 if of_dp else BLOCK_BYTES)
    a, b = (
        Int32(operand.low) + address // DESCRIPTOR_UNIT
        for operand, address in ((ones, block), (parts, parts_address))
    )
    rows, group = ROWS * owner.ctas, owner.ctas
    computes = InstructionDescriptor(rows, owner.other_rows, DTYPE, DTYPE, cta_group=group)
    tensor_core.mma_ss(tmem, a, b, [(0, 0)], computes, ones.high, parts.high, accumulate=True)
