"""Integers wider than 64 bits: sums with the carry flag CC.CF.

    add.cc.u32  d, a, b       d = a + b, CC.CF = carry          mad.lo.cc.u32  d, a, b, c    of the addition of c
    addc.u32    d, a, b       d = a + b + CC.CF                 madc.hi.u64    d, a, b, c
    sub.cc.u32  d, a, b       d = a - b, CC.CF = borrow         subc.cc.s64    d, a, b

Every lane has a flag. Reading one that no .cc has written is an error. PTX ISA, "Extended-Precision Integer
Arithmetic Instructions".
"""

import numpy as np

from cute_fa4.emulator.instructions.arithmetic import upper_half
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.warp import bools_of, mask_of


def _sum(a, b, carried):
    """a + b + carried of unsigned arrays, and where it carries."""
    part = a + b
    total = part + carried
    return total, (part < a) | (total < part)


def _difference(a, b, borrowed):
    """a - b - borrowed of unsigned arrays, and where it borrows."""
    part = a - b
    return part - borrowed, (a < b) | (part < borrowed)


@instruction(pattern=r"(add|sub)(?=c|\.cc)(c?)()(\.cc)?\.([us])(32|64)")
@instruction(pattern=r"(mad)(?=c|\.\w+\.cc)(c?)\.(lo|hi)(\.cc)?\.([us])(32|64)")
def with_carry(warp, ins, match):
    """d, a, b{, c}: the sum or difference, with the flag of each lane; .cc writes the flags."""
    operation, takes, half, writes, kind, bits = match.groups()
    unsigned, typed = (
        np.dtype(f"u{int(bits) // 8}"),
        np.dtype(f"{kind.replace('s', 'i')}{int(bits) // 8}"),
    )
    read, write = (warp.read64, warp.write64) if bits == "64" else (warp.read32, warp.write32)
    sources = [np.ascontiguousarray(read(source)).view(typed) for source in ins.operands[1:]]
    a, b = sources[:2]
    if operation == "mad":
        a, b = (upper_half(a, b) if half == "hi" else a * b), sources[2]
    if takes and warp.mask & ~warp.carry_written:
        warp.fault(f"{ins.opcode} reads the carry flag, which no instruction with .cc has written")
    flag = bools_of(warp.carry).astype(unsigned) if takes else unsigned.type(0)
    function = _difference if operation == "sub" else _sum
    result, carries = function(a.view(unsigned), b.view(unsigned), flag)
    write(ins.operands[0], result)
    if writes:
        warp.carry = warp.carry & ~warp.mask | mask_of(carries) & warp.mask
        warp.carry_written |= warp.mask
