"""tcgen05 with sparse A: half of the elements of K are stored; metadata in tensor memory selects them (sparse.py).

    tcgen05.mma.sp...kind::f16      [d], a, b, [metadata], idesc{, {disabled lanes}}, enable-input-d{, scale-input-d}
    tcgen05.mma.sp...kind::mxf4...  [d], a, b, [metadata], idesc, [scales of A], [scales of B], enable-input-d
    tcgen05.mma.ws.sp...kind::f16   [d], a, b, [metadata], idesc, enable-input-d{, zero-column-mask-desc}

tcgen05.cp, which uses the same queue, or tcgen05.st writes the metadata. PTX ISA, "tcgen05.mma.sp".
"""

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.instructions.tcgen05 import (
    enabled_lanes,
    pair_of,
    refuse_several_threads,
    scale_log2,
    submit_product,
)
from cute_fa4.emulator.machine.sparse import (
    SparseMultiply,
    SparseScaledMultiply,
    SparseWeightStationaryMultiply,
    decode_sparse_instruction,
    decode_sparse_scaled_instruction,
)
from cute_fa4.emulator.ptx.parser import Addr, Vec

_COLLECTOR_A = r"(?:\.collector::a::(?:fill|use|lastuse|discard))?"


def _operands(warp, group, d, a, b):
    """Common operands of sparse MMAs: CTAs, D, A, B, and whether A is in tensor memory."""
    refuse_several_threads(warp)
    cta, lane = warp.cta, warp.lane0
    cta.tmem.use_cta_group(group)
    in_tensor_memory = isinstance(a, Addr)
    return (
        pair_of(warp) if group == 2 else (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if in_tensor_memory else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        in_tensor_memory,
    )


def _enabled(warp, operand):
    return bool(warp.read_pred(operand) >> warp.lane0 & 1)


def _address(warp, operand):
    return int(warp.address(operand)[warp.lane0])


@instruction(
    pattern=r"tcgen05\.mma\.sp\.cta_group::([12])\.kind::(f16|tf32|f8f6f4|i8)" + _COLLECTOR_A
)
def mma(warp, ins, match):
    """[d], a, b, [metadata], idesc{, {disable-output-lane}}, enable-input-d{, scale-input-d}."""
    group, kind = int(match[1]), match[2]
    d, a, b, metadata, idesc, *rest = ins.operands
    operands = _operands(warp, group, d, a, b)
    lane = warp.lane0
    disabled = rest.pop(0) if isinstance(rest[0], Vec) else None
    descriptor, selector = decode_sparse_instruction(int(warp.read32(idesc)[lane]), kind, group)
    multiply = SparseMultiply(
        descriptor,
        *operands,
        _enabled(warp, rest[0]),
        scale_log2(rest[1:], kind),
        enabled_lanes(warp, disabled, group, lane),
        metadata=_address(warp, metadata),
        selector=selector,
    )
    submit_product(warp, multiply)


@instruction(
    pattern=r"tcgen05\.mma\.sp\.cta_group::([12])\.kind::(mxf8f6f4|mxf4|mxf4nvf4)\.block_scale"
    r"(?:\.(?:scale_vec::)?([124]X|block16|block32))?" + _COLLECTOR_A
)
def mma_scaled(warp, ins, match):
    """[d], a, b, [metadata], idesc, [scales of A], [scales of B], enable-input-d."""
    group = int(match[1])
    d, a, b, metadata, idesc, scale_a, scale_b, enable = ins.operands
    operands = _operands(warp, group, d, a, b)
    descriptor, selector = decode_sparse_scaled_instruction(
        int(warp.read32(idesc)[warp.lane0]), match[2], match[3], group
    )
    multiply = SparseScaledMultiply(
        descriptor,
        *operands,
        _enabled(warp, enable),
        scale_a=_address(warp, scale_a),
        scale_b=_address(warp, scale_b),
        metadata=_address(warp, metadata),
        selector=selector,
    )
    submit_product(warp, multiply)


@instruction(
    pattern=r"tcgen05\.mma\.ws\.sp\.cta_group::1\.kind::(f16|tf32|f8f6f4|i8)"
    r"(?:\.collector::b[0-3]::(?:fill|use|lastuse|discard))?"
)
def mma_ws(warp, ins, match):
    """[d], a, b, [metadata], idesc, enable-input-d{, zero-column-mask-desc}: see weight_stationary.py."""
    d, a, b, metadata, idesc, enable, *mask = ins.operands
    operands = _operands(warp, 1, d, a, b)
    lane = warp.lane0
    descriptor, selector = decode_sparse_instruction(
        int(warp.read32(idesc)[lane]), match[1], 1, True
    )
    multiply = SparseWeightStationaryMultiply(
        descriptor,
        *operands,
        _enabled(warp, enable),
        mask=int(warp.read64(mask[0])[lane]) if mask else 0,
        metadata=_address(warp, metadata),
        selector=selector,
    )
    submit_product(warp, multiply)
