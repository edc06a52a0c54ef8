"""tcgen05 with scales: block-scaled products, and the copy that brings scales from shared to tensor memory.

    tcgen05.cp.cta_group::1.32x128b.warpx4 [taddr], descriptor      32 rows of 16 bytes -> 32 lanes, 4 columns; 4 times
    tcgen05.mma...kind::mxf4nvf4.block_scale.block16 [d], a, b, idesc, [scales of A], [scales of B], enable-input-d

Both go through the tensor core's queue, one after the other, so a product needs no wait for the copies before it.
PTX ISA, "tcgen05.cp", "tcgen05.mma".
"""

import numpy as np

from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.instruction_table import instruction
from cute_fa4.emulator.instructions.tcgen05 import refuse_several_threads, submit_product
from cute_fa4.emulator.machine.block_scale import ScaledMultiply, decode_scaled_instruction
from cute_fa4.emulator.machine.tensor_core import CHUNK, chunk_numbers
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.ptx_parser import Addr

_COLUMNS = 4


@instruction(pattern=r"tcgen05\.cp\.cta_group::1\.32x128b\.warpx4")
def copy(warp, ins, match):
    """[taddr], descriptor: row r of 16 bytes -> lanes r, r + 32, r + 64, r + 96, columns 0 to 3."""
    if warp.mask & warp.mask - 1:
        warp.fault(f"tcgen05.cp by {len(warp.lanes)} threads would copy as often; elect one thread")
    cta, lane = warp.cta, warp.lane0
    cta.tmem.use_cta_group(1)
    address, source = ins.operands
    first, column = split_address(int(warp.address(address)[lane]))
    bits = int(warp.read64(source)[lane])
    if first:
        warp.fault(f"{ins.opcode} to tensor memory lane {first}; accepted: 0")
    order, checked = cta.machine.ordering, None
    if order is not None:
        chunks, _ = chunk_numbers(bits, False, 2, 32)
        # A row has 16 bytes, the first of the two chunks of an operand's row.
        checked = tensor_checks.copy(order, warp, cta, chunks[:, :1], column, _COLUMNS)

    def action():
        if checked is not None:
            checked()
        rows = _rows(cta, bits)
        words = np.ascontiguousarray(rows).view(np.uint32).reshape(32, _COLUMNS)
        cta.tmem.write(0, column, np.tile(words.T, 4), "tcgen05.cp")

    cta.machine.engine.submit(
        action, "tcgen05.cp of 512 bytes", warp.issuer(), queue=("tensor", cta)
    )


def _rows(cta, bits):
    """The 32 rows of 16 bytes, as uint16 [32, 8]."""
    numbers, _ = chunk_numbers(bits, False, 2, 32)
    numbers = numbers[:, 0]
    return np.stack(
        [cta.shared.read(int(n) * CHUNK, CHUNK).view(np.uint16) for n in numbers.tolist()]
    )


@instruction(
    pattern=r"tcgen05\.mma\.cta_group::([12])\.kind::(mxf8f6f4|mxf4|mxf4nvf4)\.block_scale"
    r"(?:\.(?:scale_vec::)?([124]X|block16|block32))?(?:\.collector::a::(?:fill|use|lastuse|discard))?"
)
def mma(warp, ins, match):
    """[d], a, b, idesc, [scales of A], [scales of B], enable-input-d: see block_scale.py."""
    refuse_several_threads(warp)
    cta, lane, group = warp.cta, warp.lane0, int(match[1])
    cta.tmem.use_cta_group(group)
    d, a, b, idesc, scale_a, scale_b, enable = ins.operands
    descriptor = decode_scaled_instruction(int(warp.read32(idesc)[lane]), match[2], match[3], group)
    multiply = ScaledMultiply(
        descriptor,
        (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if isinstance(a, Addr) else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        isinstance(a, Addr),
        bool(warp.read_pred(enable) >> lane & 1),
        scale_a=int(warp.address(scale_a)[lane]),
        scale_b=int(warp.address(scale_b)[lane]),
    )
    submit_product(warp, multiply)
