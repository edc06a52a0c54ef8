"""tcgen05 with scales: block-scaled products.

    tcgen05.mma...kind::mxf4nvf4.block_scale.block16 [d], a, b, idesc, [scales of A], [scales of B], enable-input-d

tcgen05.cp copies the scales (tcgen05_copies.py). It uses the same queue, so an MMA needs no wait for them.
PTX ISA, "tcgen05.mma".
"""

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.tcgen05 import pair_of, refuse_several_threads, submit_product
from cute_fa4.emulator.machine.block_scale import ScaledMultiply, decode_scaled_instruction
from cute_fa4.emulator.ptx.parser import Addr


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
        pair_of(warp) if group == 2 else (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if isinstance(a, Addr) else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        isinstance(a, Addr),
        bool(warp.read_pred(enable) >> lane & 1),
        scale_a=int(warp.address(scale_a)[lane]),
        scale_b=int(warp.address(scale_b)[lane]),
    )
    submit_product(warp, multiply)
